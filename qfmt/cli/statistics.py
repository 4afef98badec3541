"""`qfmt inspect FILE --stats`: how the constants use their integers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import QfmtError
from ..notation import NOTHING
from ..progress import counted
from .output import Column, as_json, can_show, line, table
from .progress import working

if TYPE_CHECKING:
    from ..model import Model, Tensor

BINS = 256
WIDE = 12
"""Columns of a histogram."""
BLOCKS, ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*%#"

COLUMNS = [
    Column("tensor", color="cyan"),
    Column("stored", right=True),
    Column("sat.", right=True),
    Column("codes", right=True),
    Column("scales", right=True),
    Column("dead", right=True),
]
LEGEND = """
stored  the smallest and the largest value, as stored
sat.    saturated: integers that are quant_min or quant_max
codes   how many of the integers that the type has occur
scales  the largest scale divided by the smallest
dead    output channels that are zero everywhere
"""


def show_statistics(model: Model, tensors: Sequence[Tensor], file: str, json_: bool) -> None:
    """One row for each constant; on a terminal with a histogram of what is stored."""
    from ..passes.statistics import channel_axes, scale_range, statistics

    axes, found = channel_axes(model.graph), []
    with working(f"reading {file}"):
        for tensor in counted(tensors, "", len(tensors), "tensors"):
            facts: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape or ())}
            facts |= {"axis": axes.get(tensor.name)} | statistics(tensor, axes.get(tensor.name), BINS, 0)
            try:
                if tensor.quantization is not None:
                    low, high = scale_range(tensor.quantization)
                    facts |= {"scale_min": low, "scale_max": high}
            except QfmtError as error:
                facts["error"] = str(error)
            found.append(facts)
    if json_:
        as_json(found)
        return
    drawn = BLOCKS if can_show(BLOCKS, sys.stdout) else ASCII
    histogram = [Column("histogram", right=True)] if sys.stdout.isatty() else []
    table([*COLUMNS, *histogram], [[*_row(each), *[spark(each, drawn) for _ in histogram]] for each in found])
    for each in found:
        if "error" in each:
            line(f"{each['name']}: {each['error']}")
    for text in LEGEND.rstrip().splitlines() if found else ():
        line(text)


def _row(facts: dict[str, Any]) -> list[str]:
    stored = f"{_short(facts['min'])}..{_short(facts['max'])}" if "min" in facts else NOTHING
    elements, low, high = (facts.get(key, 0) for key in ("elements", "low", "high"))
    saturated = _share(low + high, elements) if "low" in facts else NOTHING
    codes = f"{facts['used']}/{facts['codes']}" if "used" in facts else NOTHING
    low, high = (facts.get(key, 0) for key in ("scale_min", "scale_max"))
    scales = f"×{high / low:.3g}" if low and high > low else NOTHING
    return [facts["name"], stored, saturated, codes, scales, str(facts.get("dead", NOTHING))]


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if count / total >= 0.001 else "<0.1%" if count else "0"


def spark(facts: dict[str, Any], drawn: str) -> str:
    """A histogram as a line of blocks, of which the highest is the largest count; what occurs is never blank."""
    bins = facts.get("bins", [])
    step = -(-len(bins) // WIDE)
    heights = [sum(bins[at : at + step]) for at in range(0, len(bins), step)] if bins else []
    top = max(heights, default=0)
    return "".join(drawn[-(-each * (len(drawn) - 1) // top)] for each in heights) if top else ""
