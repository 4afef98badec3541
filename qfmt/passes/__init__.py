"""Rewrites of a Model that keep what it computes."""

from .lowering import lower_integer
from .proofs import Proofs, proofs

__all__ = ["Proofs", "lower_integer", "proofs"]
