"""What tests have counted, told at the end of the run: how many outputs were compared, and how many were equal."""

from __future__ import annotations

from collections import Counter

TOLD: list[str] = []

OUTPUTS: Counter[str] = Counter()
"""Outputs compared with engines: `equal`, `tied`; and the `saturated` sums of products among what gave them."""

ENGINES: dict[str, bool] = {}
"""Whether the engine's matrix products saturate on this processor."""


def tell(*rows: str) -> None:
    """Lines for the summary, under those that were told before."""
    TOLD.extend(rows)


def summary() -> list[str]:
    """What the processor at hand is, as far as engines tell, and what was compared on it."""
    kinds = [
        f"{', '.join(sorted(name for name, saturates in ENGINES.items() if saturates == kind))} {what}"
        for kind, what in ((True, "saturate pairs of products"), (False, "add up exactly"))
        if kind in ENGINES.values()
    ]
    counts = [f"{OUTPUTS[name]:,} {name}" for name in ("equal", "tied")]
    return [
        *([f"on this processor: {'; '.join(kinds)}"] if kinds else []),
        *([f"outputs: {', '.join(counts)}; {OUTPUTS['saturated']:,} sums saturated, as recomputed"] if OUTPUTS else []),
    ]
