"""`qfmt inspect --hazards`: which products overflow 16 bits on processors without VNNI, by which engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..arrays import INT32
from .output import Column, as_json, line, table

if TYPE_CHECKING:
    from ..model import Model
    from ..passes.hazards import Count, Hazard, Overflow

LEGEND = """
pair    the largest sum of two neighbouring products that weights and input allow; 16 bits hold up to 32,767
engine  output channels with a pair that can exceed 16 bits, and the largest activation, as stored, for which none does
sum     the largest sum of all products, without the bias; 32 bits hold up to 2,147,483,647

On a processor without VNNI, kernels of these engines clip such pairs, so outputs differ between machines. The kernel of
fbgemm for depthwise convolutions does so on all processors.
qnnpack (`qfmt convert --engine qnnpack`), `qfmt run` and C programs are exact on every processor.
"""


def show_hazards(model: Model, json_: bool) -> None:
    """One row for each product, one column for each engine."""
    from ..passes.hazards import KERNELS, Count, hazards

    found = list(hazards(model))
    if json_:
        as_json(hazard_facts(found))
        return
    if found:
        columns = [Column("node", color="cyan"), Column("operator"), Column("pair", right=True)]
        columns += [*(Column(name) for name in KERNELS), Column("sum", right=True)]
        table(columns, [_row(each, KERNELS) for each in found])
        line()
    many = Count(sum(each.can_saturate for each in found), sum(each.everywhere for each in found), len(found))
    line(summary(many) or "no product can overflow 16 bits, in any engine")
    if wide := sum(each.largest_sum > INT32 for each in found):
        line(f"{wide} of {len(found)} products can overflow 32 bits, in every engine")
    if many.many:
        for text in LEGEND.rstrip().splitlines():
            line(text)


def summary(found: Count, engine: str = "") -> str:
    """How many products can overflow, in that engine or in any; "" if none can."""
    if not found.many:
        return ""
    where = f" in {engine}" if engine else ""
    text = f"{found.many} of {found.total} products can overflow 16 bits{where} on processors without VNNI"
    return f"{text}, {found.everywhere} in fbgemm on all processors" if found.everywhere else text


def hazard_facts(found: Iterable[Hazard]) -> list[dict[str, Any]]:
    """The hazards for JSON; qfmt/cli/facts.py lists the keys."""
    return [{**asdict(each), "can_saturate": each.can_saturate} for each in found]


def _row(hazard: Hazard, engines: Iterable[str]) -> list[str]:
    pair = max((each.largest for each in hazard.engines.values()), default=None)
    cells = [_cell(hazard, hazard.engines.get(name)) for name in engines]
    return [hazard.node, hazard.operator, "-" if pair is None else f"{pair:,}", *cells, f"{hazard.largest_sum:,}"]


def _cell(hazard: Hazard, found: Overflow | None) -> str:
    if found is None or not found.channels:
        return "cannot saturate"
    return f"{found.channels} of {hazard.channels}, beyond {found.harmless}"
