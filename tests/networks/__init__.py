"""Networks that tests convert, run and write, with fixed seeds."""
