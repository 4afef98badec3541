"""Networks in memory: modules of PyTorch, with or without the model that was calibrated."""

from __future__ import annotations


def is_torch(source: object) -> bool:
    """Whether a source is an object of torch, or a mapping that holds some; torch is not imported to find out."""
    if isinstance(source, dict):
        return any(is_torch(value) for value in source.values() if not isinstance(value, dict))
    return any(base.__module__.partition(".")[0] == "torch" for base in type(source).__mro__)
