"""Networks in memory: modules of PyTorch, with or without the model that was calibrated."""

from __future__ import annotations


def is_torch(source: object, depth: int = 8) -> bool:
    """Whether a source is an object of torch, or a dict that holds some; torch is not imported to find out."""
    if isinstance(source, dict):
        return depth > 0 and any(is_torch(value, depth - 1) for value in source.values())
    return any(base.__module__.partition(".")[0] == "torch" for base in type(source).__mro__)
