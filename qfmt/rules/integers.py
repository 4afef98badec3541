"""V48–V49: nodes that compute with integers only. What these rules prove, also from stored values, holds wherever a
node runs: nothing overflows, and no index is outside a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..arrays import Array
from ..model import DTYPES, INT32, Node, Tensor
from .nodes import MEANING
from .rule import first_of, quoted

if TYPE_CHECKING:
    from ..ops import Operator

KNOWN = ("reach_low", "reach_high", "differs")

PARAMETER_DTYPES = {"multiplier": "int32", "shift": "uint8", "add": "int64", "thresholds": "int32", "row": "int32"}


@MEANING.rule(
    48,
    "The output of a node that states `exact` or `folded` is int32, and its zero points are 0. The inputs that it sums "
    "are integers of at most 16 bits: an affine weight, all others affine and per tensor. A "
    "bias is int32 and not quantized; alpha and beta are 1. With `folded`, the weight is a constant whose zero points "
    "are 0. If the windows of a mean may differ in size, the sizes of the dimensions that they slide over are known.",
)
def _sums(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if operator.sums is None or node.rule not in operator.sum_rules:
        return ""
    out, accumulates = tensors[node.outputs[0]], operator.accumulates
    if out.dtype != "int32" or (out.quantization is not None and any(out.quantization.zero_point)):
        return f"the sums {quoted(out.name)} must be int32 with zero points of 0 (they are {out.dtype})"
    for index, tensor in enumerate(_inputs(node, tensors)[: operator.sums.factors]):
        if tensor is None or (wrong := _not_a_factor(tensor, per_channel=accumulates and index == 1)):
            return wrong if tensor is not None else f"input {index} is absent"
    bias = next(iter(_inputs(node, tensors)[2:]), None) if accumulates else None
    if bias is not None and (bias.dtype != "int32" or bias.quantization is not None):
        return f"the bias {quoted(bias.name)} must be int32 and not quantized (it is {bias.dtype})"
    if any(node.attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return "alpha or beta is not 1"
    if not accumulates and (wrong := _open_windows(node.attributes, tensors[node.inputs[0]])):
        return wrong
    return _not_folded(tensors[node.inputs[1]]) if node.rule == "folded" else ""


def _inputs(node: Node, tensors: Mapping[str, Tensor]) -> list[Tensor | None]:
    return [tensors[name] if name else None for name in node.inputs]


def _open_windows(a: Mapping[str, Any], x: Tensor) -> str:
    """Whether windows may differ in size, so that the factors L / n of their sums need a size that is not stated."""
    from ..ops.geometry import may_differ

    uneven = may_differ(a)
    sizes = (None,) * len(uneven) if x.shape is None else x.shape[-len(uneven) :]
    is_open = any(each and not isinstance(size, int) for each, size in zip(uneven, sizes, strict=False))
    return f"windows over {quoted(x.name)} may differ in size, but its sizes are not known" if is_open else ""


def _is_integer(tensor: Tensor, bits: int) -> bool:
    kind = DTYPES[tensor.dtype]
    return kind.is_integer and kind.bits <= bits and kind.maximum <= INT32


def _not_a_factor(tensor: Tensor, *, per_channel: bool) -> str:
    q = tensor.quantization
    if not _is_integer(tensor, 16):
        return f"{quoted(tensor.name)} is {tensor.dtype}, not an integer type of at most 16 bits"
    if q is not None and (not q.is_affine or q.has_float_zero_points or (q.is_per_channel and not per_channel)):
        return f"{quoted(tensor.name)} is not quantized per tensor"
    return ""


def _not_folded(weight: Tensor) -> str:
    if not weight.is_constant:
        return f"the weight {quoted(weight.name)} is not a constant"
    zero_points = () if weight.quantization is None else weight.quantization.zero_point
    return (
        f"the weight {quoted(weight.name)} has a zero point of {max(zero_points, key=abs)}" if any(zero_points) else ""
    )


@MEANING.rule(
    49,
    "A node that uses stored integers has inputs of the types that its entry lists. Parameters and tables "
    "are constants without quantization, have the types, lengths and values stated there, and are those that its rule "
    "uses. No result is outside [quant_min, quant_max], and no sum exceeds int64. A requantized output is quantized "
    "per tensor, in integers of at most 32 bits. What a qfmt.RequantShift states about itself, it states once for all "
    "channels or once for each.",
)
def _integers(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if not operator.takes_integers:
        return _misstated(node, tensors) if operator.name == "qfmt.RequantShift" else ""
    for parameter, tensor in zip(operator.inputs, _inputs(node, tensors), strict=False):
        if parameter.name in operator.constants and tensor is not None:
            if not tensor.is_constant or tensor.quantization is not None:
                return f"{quoted(tensor.name)} must be a constant without quantization"
        elif tensor is not None and not _is_integer(tensor, 8 if "table" in operator.constants else 32):
            return f"{quoted(tensor.name)} is {tensor.dtype}, a type that the operator does not support"
    if "weights" in node.attributes:
        return _weighted(node, tensors)
    return _table(node, tensors) if "table" in operator.constants else _requantized(node, operator, tensors)


def _misstated(node: Node, tensors: Mapping[str, Tensor]) -> str:
    """What a node states about itself that does not fit the number of its channels."""
    counts = {name: len(value) for name in KNOWN if isinstance(value := node.attributes.get(name, ()), tuple)}
    low, high = node.ints("reach_low", ()), node.ints("reach_high", ())
    if not any(counts.values()):
        return ""
    for name, tensor in zip(("mul", "add"), _inputs(node, tensors)[1:], strict=False):
        if tensor is None or not tensor.is_constant:
            return f"{name} is not a constant, so reach and differences cannot be stated"
        counts[name] = tensor.array.size
    channels = max(counts.values())
    if wrong := [
        f"{count} {name} for {channels} channels" for name, count in counts.items() if count not in (1, channels)
    ]:
        return wrong[0]
    if not all(a <= b and DTYPES["int32"].holds(a, b) for a, b in zip(low, high, strict=False)):
        return "reach_low to reach_high is not a range of int32"
    return ""


def _weighted(node: Node, tensors: Mapping[str, Tensor]) -> str:
    weights = node.ints("weights")
    given = _inputs(node, tensors)
    if len(weights) != len(given) or None in given:
        return f"{len(weights)} weights for {len(given)} inputs"
    wrong = [tensor.name for tensor in given if tensor is not None and not _is_integer(tensor, 32)]
    if wrong:
        return f"{first_of(wrong)} is not an integer type of at most 32 bits"
    sizes = [DTYPES[tensor.dtype].maximum + 1 for tensor in given if tensor is not None]
    reach = sum(abs(weight) * size for weight, size in zip(weights, sizes, strict=True))
    return "" if reach < 1 << 63 else f"a sum of up to {reach} exceeds int64"


def _table(node: Node, tensors: Mapping[str, Tensor]) -> str:
    *arguments, table = _inputs(node, tensors)
    out = tensors[node.outputs[0]]
    assert table is not None
    if table.dtype != out.dtype or not DTYPES[table.dtype].is_integer:
        return f"the table is {table.dtype}, but {quoted(out.name)} is {out.dtype}"
    sizes = [1 << DTYPES[tensor.dtype].bits for tensor in arguments if tensor is not None]
    shape = list(table.shape or ())
    if shape[-len(sizes) :] != sizes:
        return f"the table has the shape {shape}, but its inputs have {sizes} values"
    if out.quantization is not None and not _inside(
        table.array, out.quantization.quant_min, out.quantization.quant_max
    ):
        return f"the table has values outside [{out.quantization.quant_min}, {out.quantization.quant_max}]"
    return ""


def _inside(values: Array, low: int, high: int) -> bool:
    return not values.size or bool(low <= int(values.min()) and int(values.max()) <= high)


def _requantized(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    """The first fault in the parameters of qfmt.Requantize: which are present, their types, lengths and values."""
    from ..ops.requantization import PARAMETERS, TAKES

    x, out = tensors[node.inputs[0]], tensors[node.outputs[0]]
    q = out.quantization
    if q is None or q.is_per_channel or not q.is_affine or not _is_integer(out, 32) or q.has_float_zero_points:
        return f"{quoted(out.name)} must be quantized per tensor, in at most 32 bits (it is {out.dtype})"
    given = dict(zip(PARAMETERS, _inputs(node, tensors)[1:], strict=False))
    found = {name: tensor for name, tensor in given.items() if tensor is not None}
    needs, may = TAKES.get(node.rule, ((), ()))
    if missing := [name for name in needs if name not in found]:
        return f"the rule requires {first_of(missing)}"
    if excess := [name for name in found if name not in (*needs, *may)]:
        return f"the rule does not use {first_of(excess)}"
    if "thresholds" in may and ("row" in found) != ("thresholds" in found):
        return "thresholds and row must both be present or both be absent"
    return _unfit(found, q.quant_max - q.quant_min) or _miscounted(node, x, found) or _wrong_values(node, found)


def _unfit(found: Mapping[str, Tensor], steps: int) -> str:
    for name, tensor in found.items():
        shape = tensor.shape or ()
        if tensor.dtype != PARAMETER_DTYPES[name] or len(shape) != (2 if name == "thresholds" else 1) or not shape[0]:
            return f"{name} is {tensor.dtype} {list(shape)}: wrong type or shape"
        if name == "thresholds" and shape[1] != steps:
            return f"{shape[1]} thresholds for {steps} steps from quant_min to quant_max"
    return ""


def _miscounted(node: Node, x: Tensor, found: Mapping[str, Tensor]) -> str:
    """Parameters that have neither one element nor one per channel; likewise the attributes that are `known`."""
    counts = {name: (tensor.shape or ())[0] for name, tensor in found.items() if name != "thresholds"}
    if "thresholds" in found and "row" not in found:
        counts["thresholds"] = (found["thresholds"].shape or ())[0]
    for name in KNOWN:
        counts[name] = len(node.ints(name)) or int(name == "differs")
    several = {name: count for name, count in counts.items() if count != 1}
    axis = node.int("axis")
    if axis < 0 or (several and x.shape is not None and axis >= len(x.shape)):
        return f"axis {axis} is not a dimension of {quoted(x.name)}"
    channels = x.shape[axis] if several and x.shape is not None else None
    known = channels if isinstance(channels, int) else next(iter(several.values()), None)
    wrong = [f"{count} {name} for {known} channels" for name, count in several.items() if count != known or not count]
    return wrong[0] if wrong else ""


def _wrong_values(node: Node, found: Mapping[str, Tensor]) -> str:
    """The first value that is not allowed; all counts are known to be right."""
    from ..ops.requantization import LARGEST_ADD

    low, high = node.ints("reach_low"), node.ints("reach_high")
    pairs = zip(low * max(1, len(high) // len(low)), high * max(1, len(low) // len(high)), strict=True)
    if not all(a <= b and DTYPES["int32"].holds(a, b) for a, b in pairs):
        return "reach_low to reach_high is not a range of int32"
    arrays = {name: tensor.array for name, tensor in found.items()}
    rows = len(arrays["thresholds"]) if "thresholds" in arrays else 0
    limits = {
        "multiplier": (1, INT32),
        "shift": (0, 62),
        "add": (-LARGEST_ADD, LARGEST_ADD),
        "row": (-1 if "shift" in arrays else 0, rows - 1),
    }
    for name, (least, most) in limits.items():
        if name in arrays and not _inside(arrays[name], least, most):
            return f"{name} has values outside [{least}, {most}]"
    steps: Any = arrays["thresholds"] if rows else None
    return "" if steps is None or bool((steps[:, 1:] >= steps[:, :-1]).all()) else "thresholds are not ascending"
