"""V40–V47 and V52–V57: each node against its operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import FormatError, QfmtError, RemoteError, brief
from ..model import DTYPES, Dimension, Node, Shape, Tensor, attribute_kind
from .rule import Stage, first_of, is_int, quoted

if TYPE_CHECKING:
    from ..ops import Operator

SIGNATURE = Stage()
MEANING = Stage()
CONSTANTS = Stage()
"""The values of constants that a node uses as integers."""


@SIGNATURE.rule(
    40,
    "The name of an operator is not empty. Its version is at least 1; the version of a known operator is not below "
    "its first one.",
)
def _operator(node: Node, operator: Operator | None) -> str:
    if not node.operator:
        return "the operator has no name"
    if not is_int(node.version) or node.version >= 1 << 32:
        return f"version {node.version!r} is not an integer below 2^32"
    first = _first_version(node.operator)
    return f"version {node.version} is below the first version, {first}" if node.version < first else ""


@SIGNATURE.rule(
    41,
    "A node has an output. A known operator has as many inputs and outputs as its signature states; no required one is "
    "absent. `X*` is one or more, none of them absent.",
)
def _arity(node: Node, operator: Operator | None) -> str:
    signature = () if operator is None else (operator.inputs, operator.outputs)
    for what, given, wanted in zip(("input", "output"), (node.inputs, node.outputs), signature, strict=False):
        variadic = bool(wanted) and wanted[-1].variadic
        if len(given) > len(wanted) and not variadic:
            return f"{len(given)} {what}s, but the operator has at most {len(wanted)}"
        for index, parameter in enumerate(wanted):
            own = given[index:] if parameter.variadic else given[index : index + 1]
            if not (parameter.optional or (own and all(own))):
                return f"the {what} {parameter.name} is absent"
    return "" if node.outputs else "it has no output"


@SIGNATURE.rule(53, "An attribute has a name and is a 64-bit integer, a float, a string, or a list of one of these.")
def _values(node: Node, operator: Operator | None) -> str:
    for name, value in node.attributes.items():
        if not name or not _is_attribute(value):
            return f"the attribute {quoted(name)} has the value {brief(value)}, which no attribute may have"
    return ""


@SIGNATURE.rule(
    42,
    "A known operator has exactly the attributes of its table, of the types and with the values stated there. An empty "
    "list is of each type of list.",
)
def _attributes(node: Node, operator: Operator | None) -> str:
    if operator is None:
        return ""
    if missing := [name for name in operator.attributes if name not in node.attributes]:
        return f"the attribute {first_of(missing)} is missing"
    for name, value in node.attributes.items():
        if name not in operator.attributes:
            return f"the operator has no attribute {quoted(name)}"
        if not _is_attribute(value):
            continue
        spec = operator.attributes[name]
        kind = attribute_kind(value) * (2 if isinstance(value, tuple) else 1)
        if kind != spec.kind and not (value == () and len(spec.kind) == 2):
            return f"the attribute {quoted(name)} is {value!r}, not of kind {spec.kind!r}"
        if wrong := spec.wrong(value):
            return f"the attribute {quoted(name)} {wrong}"
    return ""


@MEANING.rule(
    43,
    "Each output has the shape that the entry of the operator states, or else its formula gives, wherever both sizes "
    "are known. A node also breaks this rule if its attributes, constants and known sizes allow no output: if they "
    "give a size below 0, name an axis that does not exist, list an axis twice, or state parts that do not add up. An "
    "input that lists axes, sizes, parts, counts, bounds or pads has one dimension and the type int64; the axes of an "
    "Unsqueeze may also have none, and those of a Pad and all such inputs of a Slice may be int32. The K of a TopK and "
    "the depth of a OneHot are one number. Strides, dilations and sizes of windows are at least 1. Pads of windows are "
    "at least 0, except in a transposed convolution. Each of these numbers is at most 2^30, and so are the extent of a "
    "window and its padding along a dimension; a window has at most 30 dimensions. Scales of a Resize are finite and "
    "above 0, and float32 or float64.",
)
def _shapes(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops import UNFIT, Inference, UnknownRank

    shapes = [tensors[name].shape if name else None for name in node.inputs]
    absent = [None] * (len(operator.inputs) - len(shapes))
    values = _Values([*node.inputs, *("" for _ in absent)], tensors)
    try:
        inferred = operator.shape(Inference([*shapes, *absent], dict(node.attributes), values, len(node.outputs)))
    except UnknownRank:
        return ""
    except (FormatError, RemoteError):  # of an array that it reads: no fault of the node
        raise
    except QfmtError as error:
        return str(error)
    except (*UNFIT, RecursionError) as error:  # the attributes have the right types, but any values and lengths
        return f"the shape rule fails ({type(error).__name__}: {error})"
    for name, shape in zip(node.outputs, inferred, strict=False):
        if any(isinstance(size, int) and size < 0 for size in shape or ()):
            return f"the shape of {quoted(name)} would be {_words(shape)}"
        if not _agree(shape, tensors[name].shape):
            return f"the shape of {quoted(name)} is {_words(tensors[name].shape)}, expected {_words(shape)}"
    return ""


@MEANING.rule(
    44,
    "Outputs without quantization have the element type that the operator defines. With an operator that moves "
    "integers, every output has the element type of the first input.",
)
def _dtypes(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if not node.inputs:
        return ""
    inputs = node.input_tensors(tensors)
    for index, name in enumerate(node.outputs):
        tensor = tensors[name]
        expected = _output_dtype(operator, node, inputs, index, tensor)
        if expected is not None and tensor.dtype != expected:
            return f"{quoted(tensor.name)} is {tensor.dtype}, expected {expected}"
    return ""


@MEANING.rule(
    71,
    "An output without quantization that has the element type of an input with integers without quantization is "
    "computed from no quantized input, and a node whose first input holds such integers has no quantized output. "
    "Exceptions are QuantizeLinear, operators that use stored integers or requantize sums, and nodes that state a sum "
    "rule. The inputs of operators on bits, BitShift, ConvInteger and MatMulInteger are integers without quantization, "
    "and the zero points of the last two have the element type of the input that they belong to. "
    "ai.onnx.DequantizeLinear has no quantized inputs.",
)
def _mixed(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops import Trait

    inputs = node.input_tensors(tensors)
    real = [tensor.name for tensor in inputs if tensor is not None and tensor.quantization is not None]
    if operator.traits & Trait.PLAIN:
        is_real = operator.dtype == "attribute:output_dtype"  # ai.onnx.DequantizeLinear, which has a scale
        real += [x.name for x in inputs if x is not None and not (is_real or DTYPES[x.dtype].is_integer)]
        if real:
            return f"{first_of(real)} is not of plain integers, as the inputs of the operator must be"
        owners = {"a": 0, "x": 0, "b": 1, "w": 1}
        for parameter, point in zip(operator.inputs, inputs, strict=False):
            owner = inputs[owners[parameter.name[0]]] if parameter.name[1:] == "_zero_point" and not is_real else None
            if owner is not None and point is not None and point.dtype != owner.dtype:
                return f"the zero point {quoted(point.name)} is {point.dtype}, but {quoted(owner.name)} {owner.dtype}"
        return ""
    own = operator.takes_integers or operator.traits & Trait.REQUANTIZE
    if own or node.operator == "QuantizeLinear" or node.rule in operator.sum_rules:
        return ""
    for index, output in enumerate(tensors[name] for name in node.outputs):
        if output.quantization is not None and operator.moves:
            continue  # V45
        place = 0 if output.quantization is not None else operator.followed(index)
        source = inputs[place] if place is not None and place < len(inputs) else None
        if source is None or source.quantization is not None or not DTYPES[source.dtype].is_integer:
            continue
        if output.quantization is not None or real:
            return f"{quoted(source.name)} holds plain integers, but {first_of(real or [output.name])} is quantized"
    return ""


@MEANING.rule(
    73,
    "The first input of these is quantized or has a float type, unless the node states a sum rule: activations except "
    "Relu, Clip and PRelu, functions except Sign and Shrink, attention, normalizations, recurrent layers, Softmax, "
    "LogSoftmax and Hardmax, Sqrt, Exp, Log, Reciprocal, Sum, Mean, averaging pools and pools of norms. So is that "
    "of a DequantizeLinear. The bounds of a Clip without a quantized input have the element type of that input.",
)
def _of_reals(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    x = tensors[node.inputs[0]] if node.inputs and node.inputs[0] else None
    if x is None or x.quantization is not None or node.rule in operator.sum_rules:
        return ""
    if node.operator == "Clip":
        other = [tensor for tensor in node.input_tensors(tensors)[1:] if tensor is not None and tensor.dtype != x.dtype]
        return f"the bound {quoted(other[0].name)} is {other[0].dtype}, but {quoted(x.name)} {x.dtype}" if other else ""
    if not operator.is_of_reals:
        return ""
    return "" if DTYPES[x.dtype].kind == "f" else f"{quoted(x.name)} is {x.dtype}, expected floats, or quantized"


@MEANING.rule(
    72,
    "An input that is called axes, pads, repeats, shape, sizes or split is int64; axes of Slice and Pad may be int32. "
    "One that is called axis, ends, indices, offsets, position_ids, sequence_lens, starts or steps is int32 or int64, "
    "a condition is bool, and scales are float32 or float64; none is quantized, nor is an input that is called start, "
    "limit, delta or y_zero_point. The indices of a OneHot are an exception.",
)
def _counting(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops.registry import COUNTING
    from ..ops.shapes import INDICES

    if node.operator == "OneHot":
        return ""
    for parameter, tensor in zip(operator.inputs, node.input_tensors(tensors), strict=False):
        is_either = parameter.name == "axes" and node.operator in ("Slice", "Pad")
        wanted = INDICES if is_either else COUNTING.get(parameter.name)
        if tensor is None or wanted is None:
            continue
        if tensor.quantization is not None:
            return f"the input {parameter.name}, {quoted(tensor.name)}, is quantized"
        if wanted and tensor.dtype not in wanted:
            return (
                f"the input {parameter.name}, {quoted(tensor.name)}, is {tensor.dtype}, expected {' or '.join(wanted)}"
            )
    return ""


@MEANING.rule(
    45,
    "The outputs of an operator that moves integers have the scales and zero points of its first input, stored in the "
    "same types, or neither that input nor an output is quantized.",
)
def _moved(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    for source, name in _moves(node, operator, tensors):
        grid, own = source.quantization, tensors[name].quantization
        if (grid is None) != (own is None) or (grid is not None and not grid.same_grid(own)):
            return f"the quantization of {quoted(name)} differs from that of {quoted(source.name)}"
    return ""


@MEANING.rule(
    54,
    "The first input of an operator that moves integers has an affine quantization, if any, and one scale if a "
    "Pad inserts a constant. What a Pad inserts is quantized only if its first input is.",
)
def _moved_blocks(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    for source, _ in _moves(node, operator, tensors):
        if source.quantization is not None and not source.quantization.is_affine:
            return (
                f"{quoted(source.name)} has block-wise scales, which an operator that moves integers does not support"
            )
        if node.operator == "Pad" and node.attributes["mode"] == "constant" and _has_channels(source):
            return f"{quoted(source.name)} has multiple scales, which what a Pad inserts does not have"
        value = node.input_tensors(tensors)[2] if node.operator == "Pad" and len(node.inputs) > 2 else None
        if source.quantization is None and value is not None and value.quantization is not None:
            return f"{quoted(value.name)}, which a Pad inserts, is quantized, but {quoted(source.name)} is not"
    return ""


@MEANING.rule(
    55,
    "The outputs of an operator that moves integers have a range [quant_min, quant_max] that contains the range of "
    "its first input. Relu and Clip are exceptions: they clamp to the range of their output.",
)
def _moved_range(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops import Trait

    for source, name in _moves(node, operator, tensors):
        grid, own = source.quantization, tensors[name].quantization
        if grid is None or own is None or operator.traits & Trait.CLAMP:
            continue
        if grid.quant_min < own.quant_min or grid.quant_max > own.quant_max:
            outer, inner = ([each.quant_min, each.quant_max] for each in (own, grid))
            return f"the range {outer} of {quoted(name)} does not contain {inner}, that of {quoted(source.name)}"
    return ""


def _has_channels(tensor: Tensor) -> bool:
    return tensor.quantization is not None and tensor.quantization.is_per_channel


def _moves(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, str]]:
    """The first input with the name of each output, of an operator that moves integers."""
    moves = operator.moves and node.inputs and node.inputs[0]
    return [(tensors[node.inputs[0]], name) for name in node.outputs] if moves else []


@MEANING.rule(
    46,
    "An operator without a quantized form, or with quantized weights alone, has no quantized outputs. Neither has "
    "DequantizeLinear.",
)
def _float_only(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if not operator.is_real:
        return ""
    quantized = [name for name in node.outputs if tensors[name].quantization is not None]
    return f"{first_of(quantized)} is quantized" if quantized else ""


@MEANING.rule(
    47,
    "A node with a quantized output states one of the rounding rules of its operator, if the operator has any. So does "
    "a node with quantized weights, if its operator uses such weights; then all of them are quantized. Where quantized "
    "floats, quantizations that are not affine, or zero points of floats are involved, a node with a quantized output "
    "states a quantize rule, if its operator has any or accumulates. Any node may state a sum rule that its operator "
    "has.",
)
def _rounding_rule(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if len({*operator.quantized_weights(node.input_tensors(tensors))}) > 1:
        return "some weights are quantized, but not all"
    allowed = _rules(node, operator, tensors)
    if not allowed or node.rule in (*allowed, *operator.sum_rules):
        return ""
    return f"the rounding rule is {quoted(node.rule)}, expected {' or '.join(allowed)}"


@MEANING.rule(
    56,
    "A node that rounds nothing states no rounding rule: neither does a Concat, or a Resize to the nearest neighbour, "
    "that only moves integers.",
)
def _no_rule(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    if not node.rule or node.rule in operator.sum_rules or _rules(node, operator, tensors):
        return ""
    return f"the rounding rule is {quoted(node.rule)}, but the node rounds nothing"


def _rules(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Those of which the node must state one, or a sum rule; empty if it rounds nothing."""
    from ..ops import only_moves
    from ..ops.registry import QUANTIZE_RULES

    if only_moves(node, tensors):
        return ()
    rounds = any(tensors[name].quantization is not None for name in node.outputs if name)
    if not rounds and not operator.has_quantized_weights(node.input_tensors(tensors)):
        return ()
    if operator.takes_weights or not _is_beyond_integers(node, tensors):
        return operator.rules
    if operator.accumulates:
        return QUANTIZE_RULES
    return tuple(rule for rule in operator.rules if rule in QUANTIZE_RULES) or operator.rules


@MEANING.rule(
    52,
    "The weights of a node that states a requantize, dynamic, lookup or sum rule have scales per tensor or along the "
    "axis of its output channels: axis 1 for a transposed convolution, the columns of the product for MatMul and Gemm, "
    "axis 0 otherwise. A vector that MatMul multiplies has none. Of an operator with quantized weights "
    "alone they are affine, and only a lookup rule allows zero points of floats. No node takes the maximum of rows of "
    "a quantized table.",
)
def _scales_of_weights(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops.accumulation import output_axis
    from ..ops.registry import DYNAMIC_RULES, LOOKUP_RULES, REQUANTIZE_RULES, is_usable

    sums = operator.sum_rules if operator.weights else ()
    if node.rule not in (*REQUANTIZE_RULES, *DYNAMIC_RULES, *LOOKUP_RULES, *sums):
        return ""
    for index in operator.weights or (0,):  # the first is the table of a lookup rule
        if not (name := next(iter(node.inputs[index : index + 1]), "")):
            continue
        quantization, shape = tensors[name].quantization, tensors[name].shape
        if quantization is None:
            continue
        if operator.takes_weights and not is_usable(quantization, node.rule):
            return f"{quoted(name)} is not quantized per tensor or per channel, with integer zero points"
        if node.attributes.get("mode") == "max":
            return f"the maximum of {quoted(name)} is not defined, which is quantized"
        axis = output_axis(node, len(shape or ()))
        if quantization.is_per_channel and quantization.axis != axis:
            expected = "one scale" if axis is None else f"axis {axis}"
            return f"the scales of {quoted(name)} are along axis {quantization.axis}, expected {expected}"
    return ""


@MEANING.rule(
    57,
    "The first input and the output of a node that states a requantize rule have scales per tensor. If its operator "
    "accumulates, that input and the weights are quantized.",
)
def _scales_of_products(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..ops.registry import REQUANTIZE_RULES

    if node.rule not in REQUANTIZE_RULES:
        return ""
    for name in filter(None, (*node.inputs[:1], *node.outputs[:1])):
        quantization = tensors[name].quantization
        if quantization is not None and quantization.is_per_channel:
            return f"the scales of {quoted(name)} are per channel, expected one scale"
    for name in (node.inputs[index] for index in (0, *operator.weights)):
        if operator.accumulates and tensors[name].quantization is None:
            return f"{quoted(name)} is not quantized"
    return ""


@MEANING.rule(
    69,
    "The quantized inputs and outputs of a node that states a mean rule, `sum`, `product`, `interpolate` or "
    "`interpolate_fma` are affine and per tensor; so are the first input and the output with `moments` and `fused`. "
    "With `sum` both inputs have one scale; with a mean rule, `interpolate` or `interpolate_fma` the output has the "
    "scale and the zero point of the first input. Such a Resize is nearest or linear, without antialias, and not by "
    "tf_crop_and_resize. Both inputs of a PRelu with `product` are quantized.",
)
def _grids(node: Node, operator: Operator, tensors: Mapping[str, Tensor]) -> str:
    from ..arithmetic import MEAN

    is_normal = node.rule in ("moments", "fused")
    if not is_normal and node.rule not in (*MEAN, "interpolate", "interpolate_fma", "sum", "product"):
        return ""
    ends = (*node.inputs[: 1 if is_normal else None], *node.outputs)
    named = [(name, tensors[name].quantization) for name in ends if name]
    for name, grid in named:
        if grid is not None and grid.is_per_channel:
            return f"{quoted(name)} is not quantized per tensor"
    if node.operator == "PRelu" and (real := [name for name, grid in named if grid is None]):
        return f"{quoted(real[0])} is not quantized, as both inputs must be with the rule `product`"
    if node.rule in ("interpolate", "interpolate_fma") and (reason := _not_interpolated(node)):
        return f"the rule {quoted(node.rule)} does not support {reason}"
    (source, first), (_, last) = named[0], named[-1]
    if node.rule == "sum":
        scales = [grid and grid.scale for _, grid in named[:2]]
        return "" if scales[0] is not None and scales[0] == scales[1] else "the inputs do not have one scale"
    if is_normal or node.rule == "product" or (first is not None and first.same_grid(last)):
        return ""
    return f"the output lacks the scale and zero point of {quoted(source)}, which the rule {quoted(node.rule)} requires"


def _not_interpolated(node: Node) -> str:
    a = node.attributes  # of any operator: V56 is checked later
    if a.get("mode") == "cubic":
        return "the mode cubic"
    if a.get("antialias"):
        return "antialias"
    return "tf_crop_and_resize" if a.get("coordinate_transformation_mode") == "tf_crop_and_resize" else ""


def _is_beyond_integers(node: Node, tensors: Mapping[str, Tensor]) -> bool:
    """Whether something quantized cannot be summed as integers."""
    grids = ((tensors[name].dtype, tensors[name].quantization) for name in (*node.inputs, *node.outputs) if name)
    return any(grid is not None and not (grid.is_summable and DTYPES[dtype].is_integer) for dtype, grid in grids)


def _first_version(operator: str) -> int:
    from ..ops import OPERATORS

    return OPERATORS[operator].version if operator in OPERATORS else 1


class _Values(Sequence["Any"]):
    """The values of those inputs that are constants, read only if a shape rule asks."""

    def __init__(self, names: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        self._names = names
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        name = self._names[index]
        return self._tensors[name].array if name and self._tensors[name].is_constant else None


def _output_dtype(
    operator: Operator, node: Node, inputs: Sequence[Tensor | None], index: int, output: Tensor
) -> str | None:
    if operator.moves:
        return None if inputs[0] is None else inputs[0].dtype
    if output.quantization is not None or (node.rule and node.rule in operator.sum_rules):
        return None
    as_stored = operator.takes_integers
    dtypes = [None if x is None else x.dtype if x.quantization is None or as_stored else "float32" for x in inputs]
    return operator.output_dtype(index, dtypes, node.attributes)


def _agree(a: Shape, b: Shape) -> bool:
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(_same_size(x, y) for x, y in zip(a, b, strict=True))


def _same_size(x: Dimension, y: Dimension) -> bool:
    return x == y or not (isinstance(x, int) and isinstance(y, int))


def _is_attribute(value: object) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    kinds = {type(item) for item in values}
    if not kinds <= {int, float, str} or len(kinds) > 1:
        return False
    return kinds != {int} or (min(values) >= -(1 << 63) and max(values) < 1 << 63)


def _words(shape: Shape) -> str:
    return "unknown" if shape is None else "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
