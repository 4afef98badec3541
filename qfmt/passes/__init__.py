"""Rewrites of a Model that keep what it computes."""

from .lowering import lower_integer

__all__ = ["lower_integer"]
