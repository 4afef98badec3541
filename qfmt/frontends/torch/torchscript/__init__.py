"""TorchScript archives, read without torch."""
