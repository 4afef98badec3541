"""Rewrites of a Model that keep what it computes."""
