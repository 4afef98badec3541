"""`python -m qfmt` is the command `qfmt`."""

from .cli import main

main(prog_name="qfmt")
