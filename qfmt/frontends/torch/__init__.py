"""Calls of PyTorch operators, and what they mean as a Model."""
