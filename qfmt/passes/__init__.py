"""Rewrites of a Model that keep what it computes; each is imported from its own module."""
