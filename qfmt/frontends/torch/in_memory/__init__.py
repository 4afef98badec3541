"""Networks in memory: modules of PyTorch, with or without the model that was calibrated."""
