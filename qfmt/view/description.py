"""What a page shows of a model, as JSON. readers/page/src/description.ts has its types; a page makes the same from a
`.qfb` that is dropped onto it, without faults, hazards and proofs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..budget import BYTES, Budget
from ..errors import QfmtError, ValidityError, shortened
from ..model import Model, static_shape
from ..notation import json_value
from ..passes.statistics import channel_axes, number_range, statistics
from ..progress import counted

if TYPE_CHECKING:
    from ..model import Node, Proof, Quantization, Tensor

LONGEST = 500
"""Characters of a name or an attribute; a file may have a megabyte."""
BINS, CHANNELS, NUMBERS = 256, 4096, 200_000
"""The most bins of a histogram and channels of a plot; and how many numbers of a kind a page has, so that it is small:
of a network with more of them, histograms are coarser, and biases and multipliers left out."""
NUMBER_BYTES = 50
"""Bytes of a number of a channel in memory and in JSON."""
WHOLE = 2**53
"""JavaScript has no larger integers."""


def describe(model: Model, name: str, size: int | None = None) -> dict[str, Any]:
    """Everything about a model but its arrays. `name` is that of its file, `size` its bytes.

    Faults of the file are listed, not raised: a page is made to look for them.
    """
    graph = model.graph
    named = places(model)
    constants = sum(tensor.is_constant for tensor in graph.tensors.values()) or 1
    bins = max(16, min(BINS, 1 << (NUMBERS // constants).bit_length() - 1))
    vectors = sum(shape[0] for each in graph.constants() if len(shape := static_shape(each)) == 1)
    channels = CHANNELS if vectors <= NUMBERS else 0
    faults, hazards = _checked(model)
    axes = channel_axes(graph)
    most = CHANNELS if _fits(model, axes) else 0
    return {
        "name": text(name),
        "size": size,
        "content": _content(model),
        "graph": text(graph.name),
        "producer": text(model.producer),
        "engine": text(model.engine),
        "source": _pairs(model.source),
        "metadata": _pairs(model.metadata),
        "noGraph": text(model.no_graph),
        "vectors": len(model.vectors),
        "inputs": [named[each] for each in graph.inputs if each in named],
        "outputs": [named[each] for each in graph.outputs if each in named],
        "tensors": [
            _tensor(graph.tensors[each], axes.get(each), bins, min(channels, most), most)
            for each in counted(named, "", len(named), "tensors")
        ],
        "nodes": [_node(node, named, hazards.get(index)) for index, node in enumerate(graph.nodes)],
        "faults": faults,
        "proofs": {} if faults else _proofs(model),
    }


def places(model: Model) -> dict[str, int]:
    """The place of each tensor in a page, in the order of names: as in a `.qfb`, which the page may have, too."""
    return {name: place for place, name in enumerate(sorted(model.graph.tensors))}


def _checked(model: Model) -> tuple[list[str], dict[int, Any]]:
    """Broken rules of the graph; and the products that can overflow in an engine, by the place of their node."""
    from ..passes.hazards import placed

    try:
        found = {place: hazard for place, hazard in placed(model) if hazard.can_saturate}
    except ValidityError as error:
        return [str(each) for each in error.violations], {}
    except QfmtError as error:
        return [str(error)], {}
    return [], {
        node: {
            "channels": each.channels,
            "everywhere": each.everywhere,
            "overflow": {name: one.channels for name, one in each.engines.items() if one.channels},
        }
        for node, each in found.items()
    }


def _proofs(model: Model) -> dict[str, Any]:
    """What the file states about its sums, recomputed."""
    from ..passes.proofs import proofs

    if model.engine != "integer":
        return {}
    try:
        found = proofs(model)
    except QfmtError as error:
        return {"unknown": [str(error)]}
    return {
        "sums": found.sums,
        "reaches": found.reaches,
        "broken": [str(each) for each in found.violations],
        "unknown": [text(f"{where}: {why}") for where, why in found.unknown.items()],
    }


def _content(model: Model) -> str:
    try:
        return model.content_id().hex()
    except QfmtError:  # of a name that is not UTF-8, which is a fault
        return ""


def _fits(model: Model, axes: Mapping[str, int]) -> bool:
    """Whether the numbers of channels are in proportion to the model."""
    listed = sum(_channels(tensor, axes.get(name)) for name, tensor in model.graph.tensors.items())
    try:
        return NUMBER_BYTES * listed <= Budget.of(model, "describing a network of").bytes
    except QfmtError:  # an array is damaged
        return NUMBER_BYTES * listed <= BYTES[0]


def _channels(tensor: Tensor, axis: int | None) -> int:
    """How many scales and peaks of channels a page has of a tensor; tensors may share them."""
    scales = 0 if tensor.quantization is None else len(tensor.quantization.scale)
    shape = static_shape(tensor) if tensor.is_constant else ()
    peaks = shape[axis] if axis is not None and axis < len(shape) else 0
    return sum(count for count in (scales, peaks) if count <= CHANNELS)


def _tensor(tensor: Tensor, axis: int | None, bins: int, channels: int, scales: int) -> dict[str, Any]:
    shape = None if tensor.shape is None else [_attribute(size) for size in tensor.shape]
    found: dict[str, Any] = {"name": text(tensor.name), "dtype": tensor.dtype, "shape": shape}
    if tensor.aliases:
        found["aliases"] = [text(alias) for alias in tensor.aliases[:8]]
    if tensor.quantization is not None:
        found["grid"] = _grid(tensor.quantization, scales)
    if tensor.data is not None:
        stats = statistics(tensor, axis, bins, channels)
        found["stats"] = json_value(stats | {key: _whole(stats[key]) for key in ("min", "max") if key in stats})
        if len(tensor.shape or ()) < 2 and 0 < found["stats"].get("elements", 0) <= channels:
            found["values"] = json_value([_whole(_short(each)) for each in tensor.array.reshape(-1)])
    return found


def _grid(grid: Quantization, most: int) -> dict[str, Any]:
    """A quantization; more scales than `most`, and those of blocks, are given by their extremes."""
    kept = len(grid.scale) <= max(most, 1) and not grid.is_blocked
    found: dict[str, Any] = {"min": grid.quant_min, "max": grid.quant_max, "count": len(grid.scale)}
    found["type"] = grid.scale.dtype
    if grid.block:
        found["block"] = list(grid.block)
    if grid.axis is not None:
        found["axis"] = grid.axis
    try:
        if kept or not len(grid.scale):
            scales, points = grid.scale.numbers(), grid.zero_point.numbers()
        else:
            scales, points = number_range(grid.scale), tuple(sorted({*number_range(grid.zero_point)}))
        if grid.scale.dtype == "float32":  # in few digits: the nearest one to the decimal number
            scales = tuple(float(f"{each:.9g}") for each in scales)
        found |= {"scale": json_value(scales), "zero": json_value(points)}
    except QfmtError as error:
        found |= {"scale": [], "zero": [], "error": str(error)}
    parts = ("offset", "table", "group_index")
    if extras := [name.replace("_", " ") for name in parts if getattr(grid, name) is not None]:
        found["extras"] = extras
    if seen := grid.observed:
        low, high = (json_value(each[:CHANNELS]) for each in (seen.minimum, seen.maximum))
        found["observed"] = {"observer": text(seen.observer), "min": low, "max": high}
    return found


def _short(value: Any) -> Any:
    """An element of an array as a number of Python; a float32 in few digits: the nearest one to the decimal number."""
    if value.dtype.kind in "iub":
        return value.item()
    return float(value) if value.dtype.itemsize > 4 else float(f"{float(value):.9g}")


def _node(node: Node, named: Mapping[str, int], hazard: Any) -> dict[str, Any]:
    found = {
        "operator": text(node.operator),
        "version": node.version,
        "name": text(node.label),
        "scope": text(node.scope),
        "from": text(node.source_operator),
        "rule": text(node.rule),
        "inputs": [named.get(name, -1) for name in node.inputs],
        "outputs": [named.get(name, -1) for name in node.outputs],
        "attributes": [(text(key), _attribute(value)) for key, value in sorted(node.attributes.items())],
    }
    if node.proof is not None:
        found["proof"] = _proof(node.proof)
    if hazard:
        found["hazard"] = hazard
    return found


def _proof(proof: Proof) -> dict[str, Any]:
    return {
        "low": [_whole(each) for each in proof.low[:CHANNELS]],
        "high": [_whole(each) for each in proof.high[:CHANNELS]],
        "compared": text(proof.compared),
        "differs": sum(proof.differs),
        "largest": _whole(proof.largest),
    }


def _attribute(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_attribute(each) for each in value[:64]] + (["…"] if len(value) > 64 else [])
    return text(value) if isinstance(value, str) else json_value(_whole(value))


def _pairs(pairs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Not a dict: two long keys may be shortened alike."""
    return [(text(key), text(value)) for key, value in pairs.items()]


def text(whole: str) -> str:
    """A text of the file as a page has it."""
    return shortened(whole, LONGEST)


def _whole(value: Any) -> Any:
    """Integers that a page would round are given as text."""
    return str(value) if isinstance(value, int) and abs(value) >= WHOLE else value
