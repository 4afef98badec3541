"""V48–V49, V58–V68: nodes that compute with integers only. What these rules prove, also from stored values, holds
wherever a node runs: nothing overflows, and no index is outside a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import le
from typing import TYPE_CHECKING, Any

from ..arrays import Array
from ..model import DTYPES, INT32, Dimension, Node, Tensor
from .nodes import CONSTANTS, MEANING
from .rule import first_of, quoted

if TYPE_CHECKING:
    from ..ops import Operator

PARAMETER_DTYPES = {"multiplier": "int32", "shift": "uint8", "add": "int64", "thresholds": "int32", "row": "int32"}


@MEANING.rule(48, "The output of a node that states `exact` or `folded` is int32, and its zero points are 0.")
def _sums(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if not _adds(node, operator):
        return ""
    out = tensors[node.outputs[0]]
    if out.dtype == "int32" and not (out.quantization is not None and any(out.quantization.zero_point)):
        return ""
    return f"the sums {quoted(out.name)} must be int32 with zero points of 0 (they are {out.dtype})"


@MEANING.rule(
    58,
    "The inputs that a node sums by `exact` or `folded` are integers of at most 16 bits. If they are quantized, the "
    "quantization is affine with integer zero points, and per tensor unless it is that of a weight.",
)
def _factors(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if operator.sums is None or not _adds(node, operator):
        return ""
    for index, tensor in enumerate(node.input_tensors(tensors)[: operator.sums.factors]):
        if tensor is None or (wrong := _not_integers(tensor, 16, per_channel=operator.accumulates and index == 1)):
            return wrong if tensor is not None else f"input {index} is absent"
    return ""


@MEANING.rule(59, "A bias of a node that states `exact` or `folded` is int32 and not quantized.")
def _bias(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    bias = next(iter(node.input_tensors(tensors)[2:]), None)
    if not (_adds(node, operator) and operator.accumulates) or bias is None:
        return ""
    if bias.dtype == "int32" and bias.quantization is None:
        return ""
    return f"the bias {quoted(bias.name)} must be int32 and not quantized (it is {bias.dtype})"


@MEANING.rule(60, "With `exact`, `folded` or a requantize rule, alpha and beta are 1.")
def _unscaled(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops.registry import REQUANTIZE_RULES

    scaled = any(node.attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta"))
    return "alpha or beta is not 1" if scaled and (_adds(node, operator) or node.rule in REQUANTIZE_RULES) else ""


@MEANING.rule(61, "With `folded`, the weight is a constant whose zero points are 0.")
def _folded(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if node.rule != "folded" or not _adds(node, operator):
        return ""
    weight = tensors[node.inputs[1]]
    if not weight.is_constant:
        return f"the weight {quoted(weight.name)} is not a constant"
    zero_points = () if weight.quantization is None else weight.quantization.zero_point
    most = max(zero_points, key=abs, default=0)
    return f"the weight {quoted(weight.name)} has a zero point of {most}" if most else ""


@MEANING.rule(
    62,
    "If the windows of a mean with `exact` may differ in size, the sizes of the dimensions that they slide over are "
    "known. They may: along a dimension with pads that are not counted, with `ceil_mode`, and in bins, unless there is "
    "one.",
)
def _windows(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    """The factors L / n of their sums need a size that is not stated."""
    from ..ops.geometry import may_differ

    if operator.accumulates or not _adds(node, operator):
        return ""
    x, uneven = tensors[node.inputs[0]], may_differ(node.attributes)
    sizes = (None,) * len(uneven) if x.shape is None else x.shape[-len(uneven) :]
    is_open = any(each and not isinstance(size, int) for each, size in zip(uneven, sizes, strict=False))
    return f"windows over {quoted(x.name)} may differ in size, but its sizes are not known" if is_open else ""


def _adds(node: Node, operator: Operator) -> bool:
    """Whether the node outputs exact sums."""
    return bool(node.rule) and node.rule in operator.sum_rules


def _is_integer(tensor: Tensor, bits: int) -> bool:
    kind = DTYPES[tensor.dtype]
    return kind.is_integer and kind.bits <= bits and kind.maximum <= INT32


def _not_integers(tensor: Tensor, bits: int, *, per_channel: bool) -> str:
    """Why arithmetic of integers cannot use a tensor: its type, or a quantization that is not only a scale and an
    integer zero point, one for all or `per_channel`."""
    q = tensor.quantization
    if not _is_integer(tensor, bits):
        return f"{quoted(tensor.name)} is {tensor.dtype}, not an integer type of at most {bits} bits"
    if q is not None and (not q.is_summable or (q.is_per_channel and not per_channel)):
        form = "per tensor or channel" if per_channel else "per tensor"
        return f"{quoted(tensor.name)} is not quantized {form}, with integer zero points"
    return ""


@MEANING.rule(
    49,
    "The inputs of a node that uses stored integers have an integer type whose values int32 can hold; the inputs that "
    "index a table have at most 8 bits.",
)
def _integers(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if not operator.takes_integers:
        return ""
    bits = 8 if "table" in operator.constants else 32
    for tensor in _arguments(node, operator, tensors):
        if not _is_integer(tensor, bits):
            return f"{quoted(tensor.name)} is {tensor.dtype}, a type that the operator does not support"
    return ""


def _arguments(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The inputs that are neither parameters nor tables."""
    count = len(node.inputs) if operator.inputs[-1].variadic else len(operator.inputs) - len(operator.constants)
    return [tensor for tensor in node.input_tensors(tensors)[:count] if tensor is not None]


def _parameters(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that are present, by their names in the signature."""
    given = zip(operator.inputs, node.input_tensors(tensors), strict=False)
    return {each.name: tensor for each, tensor in given if tensor is not None and each.name in operator.constants}


@MEANING.rule(
    63,
    "The parameters and tables of a node that uses stored integers are constants without quantization, of the types "
    "and shapes that its entry lists. They are not empty, and have one element, or one for each channel along `axis`, "
    "which is a dimension of x, or 0 if x has none.",
)
def _forms(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if not operator.takes_integers:
        return ""
    found = _parameters(node, operator, tensors)
    for tensor in found.values():
        if not tensor.is_constant or tensor.quantization is not None:
            return f"{quoted(tensor.name)} must be a constant without quantization"
    x, out = tensors[node.inputs[0]], tensors[node.outputs[0]]
    if "table" in found:
        if _integers(node, operator, tensors):
            return ""
        has_rows = node.attributes.get("axis", -1) != -1
        return _unfit_table(found["table"], _arguments(node, operator, tensors), out, int(has_rows))
    return _unfit(found, out) or _miscounted(node, x, found) if operator.constants else ""


@MEANING.rule(65, "A qfmt.Requantize has the parameters that its rule uses, and no others.")
def _uses(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops.requantization import TAKES

    if operator.name != "qfmt.Requantize":
        return ""
    found = _parameters(node, operator, tensors)
    needs, may = TAKES.get(node.rule, ((), ()))
    if missing := [name for name in needs if name not in found]:
        return f"the rule requires {first_of(missing)}"
    if excess := [name for name in found if name not in (*needs, *may)]:
        return f"the rule does not use {first_of(excess)}"
    if "thresholds" in may and ("row" in found) != ("thresholds" in found):
        return "thresholds and row must both be present or both be absent"
    return ""


@MEANING.rule(
    66,
    "The output of qfmt.Requantize is quantized. It, and the output of qfmt.RequantShift if that is quantized, have an "
    "integer type whose values int32 can hold, and an affine quantization per tensor with an integer zero point. So "
    "have the quantized inputs of that qfmt.RequantShift, which may be quantized per channel, too.",
)
def _requantized(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops import Trait

    if not operator.traits & Trait.REQUANTIZE:
        return ""
    out = tensors[node.outputs[0]]
    if out.quantization is None:
        return f"{quoted(out.name)} is not quantized" if operator.takes_integers else ""
    if wrong := _not_integers(out, 32, per_channel=False):
        return wrong
    if operator.takes_integers:
        return ""
    read = (each for each in node.input_tensors(tensors) if each is not None and each.quantization is not None)
    return next(filter(None, (_not_integers(each, 32, per_channel=True) for each in read)), "")


@MEANING.rule(67, "A qfmt.WeightedSum has one weight for each input and outputs int32, and no sum exceeds int64.")
def _weighted(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if "weights" not in operator.attributes:
        return ""
    weights, given = node.ints("weights"), _arguments(node, operator, tensors)
    if len(weights) != len(given):
        return f"{len(weights)} weights for {len(given)} inputs"
    if tensors[node.outputs[0]].dtype != "int32":
        return f"{quoted(node.outputs[0])} is {tensors[node.outputs[0]].dtype}, expected int32"
    if _integers(node, operator, tensors):
        return ""
    sizes = [DTYPES[tensor.dtype].maximum + 1 for tensor in given]
    reach = sum(abs(weight) * size for weight, size in zip(weights, sizes, strict=True))
    return "" if reach < 1 << 63 else f"a sum of up to {reach} exceeds int64"


def _unfit_table(table: Tensor, arguments: list[Tensor], out: Tensor, more: int) -> str:
    """`more`: how many dimensions it has besides one for each argument."""
    if table.dtype != out.dtype or not DTYPES[table.dtype].is_integer:
        return f"the table is {table.dtype}, but {quoted(out.name)} is {out.dtype}"
    sizes = [1 << DTYPES[tensor.dtype].bits for tensor in arguments]
    shape = list(table.shape or ())
    if len(shape) == len(sizes) + more and shape[more:] == sizes:
        return ""
    return f"the table has the shape {shape}, but its inputs have {sizes} values"


def _unfit(found: Mapping[str, Tensor], out: Tensor) -> str:
    """The first parameter of the wrong type or shape; V66 is about the output."""
    for name, tensor in found.items():
        shape = tensor.shape or ()
        if tensor.dtype != PARAMETER_DTYPES[name] or len(shape) != (2 if name == "thresholds" else 1) or not shape[0]:
            return f"{name} is {tensor.dtype} {list(shape)}: wrong type or shape"
        steps = None if out.quantization is None else out.quantization.quant_max - out.quantization.quant_min
        if name == "thresholds" and steps not in (None, shape[1]):
            return f"{shape[1]} thresholds for {steps} steps from quant_min to quant_max"
    return ""


def _miscounted(node: Node, x: Tensor, found: Mapping[str, Tensor]) -> str:
    axis = node.int("axis")
    if axis < 0 or (x.shape is not None and axis >= max(1, len(x.shape))):
        return f"axis {axis} is not a dimension of {quoted(x.name)}"
    return _uneven(_counts(found), 1 if x.shape == () else x.shape[axis] if x.shape else None)


def _counts(found: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of elements of each parameter, or of rows, if one belongs to each channel."""
    by_row = {"thresholds"} if found.keys() & {"row", "shift"} else set()
    return {name: int((tensor.shape or (0,))[0] or 0) for name, tensor in found.items() if name not in by_row}


def _uneven(counts: Mapping[str, int], channels: Dimension) -> str:
    """The first number that is neither one nor that of the channels, if that is known."""
    several = {name: count for name, count in counts.items() if count != 1}
    known = channels if isinstance(channels, int) else max(several.values(), default=1)
    wrong = (f"{count} {name} for {known} channels" for name, count in several.items() if count != known)
    return next(wrong, "")


@CONSTANTS.rule(
    64,
    "The parameters and tables of a node that uses stored integers have values that its entry allows. The values of a "
    "table are within [quant_min, quant_max] of the output. The div of a qfmt.RequantShift is at least 1.",
)
def _values(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops.requantization import LARGEST_ADD

    if "div" in operator.attributes and node.int("div") < 1:
        return f"div is {node.int('div')}"
    if not operator.takes_integers:
        return ""
    arrays = {name: tensor.array for name, tensor in _parameters(node, operator, tensors).items()}
    rows = len(arrays["thresholds"]) if "thresholds" in arrays else 0
    limits = {
        "multiplier": (1, INT32),
        "shift": (0, 62),
        "add": (-LARGEST_ADD, LARGEST_ADD),
        "row": (-1 if "shift" in arrays else 0, rows - 1),
    }
    q = tensors[node.outputs[0]].quantization
    if q is not None:
        limits["table"] = q.quant_min, q.quant_max
    for name, (least, most) in limits.items():
        if name in arrays and not _inside(arrays[name], least, most):
            return f"{name} has values outside [{least}, {most}]"
    steps: Any = arrays["thresholds"] if rows else None
    return "" if steps is None or bool((steps[:, 1:] >= steps[:, :-1]).all()) else "thresholds are not ascending"


def _inside(values: Array, low: int, high: int) -> bool:
    return not values.size or bool(low <= int(values.min()) and int(values.max()) <= high)


@CONSTANTS.rule(
    68,
    "Only a qfmt.Requantize or qfmt.RequantShift has a proof. Its numbers are stated once for all channels or once "
    "for each: as many low as high, and as many differs, if there are any; low ≤ high, and no count is negative. The "
    "channels of a qfmt.RequantShift are the elements of mul and add, which are then constants.",
)
def _proof(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops import Trait

    proof = node.proof
    if proof is None:
        return ""
    if not operator.traits & Trait.REQUANTIZE:
        return "it has a proof, but does not requantize"
    if len(proof.low) != len(proof.high) or (proof.differs and len(proof.differs) != len(proof.low)):
        return f"the proof has {len(proof.low)} low, {len(proof.high)} high, {len(proof.differs)} differs"
    x, *given = (tensors[name] for name in node.inputs if name)
    if operator.takes_integers:
        counts, axis = _counts(_parameters(node, operator, tensors)), node.int("axis")
        channels = x.shape[axis] if x.shape is not None and axis < len(x.shape) else None
    elif not all(tensor.is_constant for tensor in given):
        return "mul or add is not a constant, so nothing can be proven"
    else:
        counts, channels = {name: t.array.size for name, t in zip(("mul", "add"), given, strict=True)}, None
    if wrong := _uneven({**counts, "low": len(proof.low)}, channels):
        return wrong
    is_sound = all(map(le, proof.low, proof.high)) and min(proof.differs, default=0) >= 0
    return "" if is_sound else "the proof has a low above its high, or a negative count"
