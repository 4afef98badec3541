"""What tests have counted, told at the end of the run: how many outputs were compared, and how many were equal."""

from __future__ import annotations

TOLD: list[str] = []


def tell(*rows: str) -> None:
    """Lines for the summary, under those that were told before."""
    TOLD.extend(rows)
