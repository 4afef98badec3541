"""Node data for Model Explorer: a number for each node, which colours it. Its keys are the places of the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .comparison import of_report as compared

if TYPE_CHECKING:
    from ..compare import Report
    from ..model import Model

GOOD, MILD, BAD = "#b7e4c7", "#ffe8a3", "#ffb4ab"


def of_report(model: Model, report: Report) -> dict[str, Any]:
    """The percentage of outputs of each node that are wrong; explained differences have another colour."""
    results = {}
    for index, node in enumerate(compared(model, report)["nodes"]):
        if node is not None and node["outputs"]:
            off = node["wrong"] or node["differences"]
            colour = BAD if off else GOOD if node["equal"] == node["outputs"] else MILD
            results[str(index)] = {"value": 100 * node["wrong"] / node["outputs"], "bgColor": colour}
    return {"name": "qfmt verify: % wrong", "results": results}


def of_hazards(model: Model) -> dict[str, Any]:
    """How many channels of each product can overflow 16 bits, in the engine where most do."""
    from ..passes.hazards import placed

    results = {}
    for place, hazard in placed(model):
        worst = max((each.channels for each in hazard.engines.values()), default=0)
        results[str(place)] = {"value": worst, "bgColor": BAD if worst else GOOD}
    return {"name": "qfmt: channels that can overflow 16 bits", "results": results}
