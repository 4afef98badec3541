"""Counts of tests, printed at the end of the run: the numbers of compared and equal outputs."""

from __future__ import annotations

from collections import Counter

TOLD: list[str] = []

OUTPUTS: Counter[str] = Counter()
"""Outputs compared with engines: `equal`, `tied`; and the number of `saturated` sums of products."""

ENGINES: dict[str, bool] = {}
"""Whether the engine's matrix products saturate on this processor."""


def tell(*rows: str) -> None:
    """Add lines to the summary."""
    TOLD.extend(rows)


def summary() -> list[str]:
    """The kind of this processor, as engines show it, and the comparisons on it."""
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
