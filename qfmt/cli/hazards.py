"""`qfmt inspect --hazards`: which products overflow 16 bits on processors without VNNI, by which engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .output import Column, as_json, line, table

if TYPE_CHECKING:
    from ..model import Model
    from ..passes.hazards import Hazard


def show_hazards(model: Model, json_: bool) -> None:
    """A row for each product, a column for each engine."""
    from ..passes.hazards import KERNELS, hazards

    found = list(hazards(model))
    if json_:
        as_json(hazard_facts(found))
        return
    if not found:
        line("No product of uint8 activations with int8 weights: no kernel that qfmt knows overflows 16 bits here.")
        return
    rows: dict[tuple[str, str], list[str]] = {}
    for each in found:
        rows.setdefault((each.node, each.weight), [each.node, each.operator]).append(_cell(each))
    table([Column("node", style="cyan"), Column("operator"), *(Column(name) for name in KERNELS)], list(rows.values()))
    line()
    line("Channels with two neighbouring products whose sum can exceed 16 bits, and the largest activation, as stored,")
    line("for which none does. Kernels of these engines saturate there on processors without VNNI: outputs are then")
    line("off, and differ from those of other processors. qnnpack, `qfmt run` and C programs are exact everywhere.")


def hazard_facts(found: Sequence[Hazard]) -> list[dict[str, Any]]:
    """For JSON."""
    return [{**asdict(each), "can_saturate": each.can_saturate} for each in found]


def _cell(hazard: Hazard) -> str:
    if not hazard.can_saturate:
        return "cannot saturate"
    return f"{hazard.channels} of {hazard.total} channels, beyond {hazard.harmless}"
