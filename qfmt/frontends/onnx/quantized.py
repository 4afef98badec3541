"""Quantized operators of ONNX and ONNX Runtime, converted to real operators between DequantizeLinear and
QuantizeLinear. `passes` decides which of them become operators on integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...errors import SourceError
from ...model import DTYPES, Attribute, numpy_dtype
from ...ops.quantization import is_static
from ...ops.shapes import axis_of
from ...passes.qdq import DEQUANTIZE, QUANTIZE
from .calls import Call
from .importer import Importer, imports
from .tensors import dtype_of


class Form(NamedTuple):
    """An operator on integers: the position and axis of each (integers, scale, zero point) among its inputs, and the
    position of scale and zero point of its output."""

    operands: tuple[tuple[int, int], ...]
    output: int


PRECISION_SINCE = 23
"""The opset since which QuantizeLinear divides in the type of the scale, or in the one it states; ONNX Runtime divided
in float32 before."""

_UNARY = "Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool", "ReduceMean"

QLINEAR = {
    "QLinearConv": Form(((0, 1), (3, 0)), 6),
    "QLinearMatMul": Form(((0, -2), (3, -1)), 6),
    **{f"QLinear{operator}": Form(((0, 1), (3, 1)), 6) for operator in ("Add", "Mul")},
    **{f"QLinear{operator}": Form(((0, 1),), 3) for operator in _UNARY},
    "QLinearWhere": Form(((1, 1), (4, 1)), 7),
}
"""Operators of which the real ones have the names without "QLinear"."""


@imports("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize_linear(im: Importer, call: Call) -> Any:
    given = call.attributes
    point = call.input(2)
    stated = given.get("output_dtype", 0)
    dtype = im.tensors[point].dtype if point else dtype_of(stated) if stated else "uint8"
    attributes: dict[str, Attribute] = {**_blocks(given), "output_dtype": dtype, "saturate": given.get("saturate", 1)}
    precision = dtype_of(given["precision"]) if given.get("precision") else im.tensors[call.inputs[1]].dtype
    if call.opset >= PRECISION_SINCE and not call.domain and precision != "float32":
        return _divided(im, call, precision, point, attributes)
    if im.model.producer_name == "qfmt":  # our exports name the tensor after rounding
        im.preferred[call.inputs[0]] = call.outputs[0]
    im.emit(QUANTIZE, call.inputs, call.outputs, attributes)
    return None


def _divided(im: Importer, call: Call, precision: str, point: str, attributes: Mapping[str, Attribute]) -> None:
    """Divide by the scale in another type than float32, then quantize with scale 1, which changes nothing."""
    x, scale = call.inputs[:2]
    rank, shape = im.rank(x), im.shape(scale)
    if attributes["block_size"] or rank is None or shape is None or not is_static(shape):
        what = f"divides in {precision}, which is supported for scales of known shape, not of blocks"
        raise SourceError(what, hint="state the precision float32, or convert the model to opset 21")
    if prod(shape) > 1:
        axis = axis_of(call.attributes.get("axis", 1), rank)
        along = [-1 if each == axis else 1 for each in range(rank)]
        scale = im.emit("Reshape", [scale, im.constant(np.array(along, np.int64), "along")], f"{scale}.along")
    narrow: dict[str, Attribute] = {"to": precision}
    given = [im.emit("Cast", [name], f"{name}.{precision}", narrow) for name in (x, scale)]
    quotient = im.emit("Div", given, f"{call.outputs[0]}.quotient")
    wide = im.emit("Cast", [quotient], f"{call.outputs[0]}.wide", {"to": "float32"})
    im.budget.allocate(4 * prod(shape))
    im.emit(QUANTIZE, [wide, im.constant(np.ones(shape, np.float32), "one"), point], call.outputs, attributes)


@imports("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_linear(im: Importer, call: Call) -> Any:
    stated = call.attributes.get("output_dtype", 0)
    dtype = dtype_of(stated) if stated else im.tensors[call.inputs[1]].dtype
    im.emit(DEQUANTIZE, call.inputs, call.outputs, {**_blocks(call.attributes), "output_dtype": dtype})


def _blocks(given: Mapping[str, Any]) -> dict[str, int]:
    return {"axis": given.get("axis", 1), "block_size": given.get("block_size", 0)}


def real(im: Importer, name: str, scale: str, point: str, axis: int = 1) -> str:
    """Dequantize an operand. One zero point may serve the scales of all channels."""
    if point and _count(im, scale) > 1 == _count(im, point):
        point = im.emit(
            "Expand", [point, im.constant(np.array(im.shape(scale), np.int64), "channels")], f"{point}.each"
        )
    attributes: dict[str, Attribute] = {"axis": axis, "block_size": 0, "output_dtype": im.tensors[scale].dtype}
    return im.emit(DEQUANTIZE, [name, scale, point], f"{name}.dequantized", attributes)


def quantized_input(im: Importer, name: str, scale: float, zero_point: int, dtype: str) -> None:
    """Declare a float input as quantized: it contains integers with these quantization parameters."""
    tensor = im.tensors[name]
    if tensor.dtype != "float32":
        raise SourceError(f"is {tensor.dtype} in the model, not float32", where=f"input {name}")
    im.tensors[name] = replace(tensor, dtype=dtype)
    integer = np.array(zero_point, numpy_dtype(dtype))
    point = im.constant(integer, f"{name}.zero_point", dtype) if zero_point else ""
    im.names[name] = real(im, name, im.constant(np.float32(scale), f"{name}.scale"), point)


ACTIVATIONS = "uint8", "int8", "uint16", "int16"
"""Types of quantized activations."""


def on_grid(im: Importer, value: str, scale: str, point: str, call: Call) -> None:
    """Quantize a real result into the first output of a node: without a zero point, in the type of its input."""
    kinds = (im.tensors[name].dtype for name in ([point] if point else call.inputs) if name)
    dtype = next((kind for kind in kinds if kind in ACTIVATIONS), "uint8")
    attributes: dict[str, Attribute] = {"axis": 1, "block_size": 0, "output_dtype": dtype, "saturate": 1}
    im.emit(QUANTIZE, [value, scale, point], call.outputs, attributes)


def computed(im: Importer, call: Call, operator: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> str:
    """The real result of an ONNX operator, converted by its registered function.

    A result that becomes integer-only keeps its name in the file.
    """
    result = im.fresh(f"{call.outputs[0]}.real")
    im.preferred[result] = call.outputs[0]
    inner = call._replace(
        operator=operator,
        domain="",
        opset=max(im.opsets.get("", 0), 13),
        inputs=tuple(inputs),
        outputs=(result,),
        attributes=dict(attributes),
    )
    im.dispatch(inner)
    return result


@imports("QLinearConv", "QLinearMatMul", *(f"com.microsoft.{name}" for name in QLINEAR))
def qlinear(im: Importer, call: Call) -> Any:
    form, given = QLINEAR[call.operator], call.without("opset", "channels_last").attributes
    operator, axis = call.operator.removeprefix("QLinear"), given.get("axis", 1)
    if call.attributes.get("channels_last") or (given.get("ceil_mode") and given.get("count_include_pad")):
        return NotImplemented  # ONNX Runtime also counts elements beyond the padding
    if operator in ("Conv", "MatMul") and _by_integers(im, call, operator, given) is not NotImplemented:
        return None
    a = call.inputs
    if operator == "Softmax":
        flattens = call.attributes.get("opset", 13) < 13 and axis not in (-1, (im.rank(a[0]) or 0) - 1)
        unit = im.value(a[form.output]) if _count(im, a[form.output]) == 1 else None
        with np.errstate(all="ignore"):
            if flattens or unit is None or (1 / unit % 1).any():  # ONNX Runtime rounds 1 / scale down
                return NotImplemented
    inputs = [real(im, a[at], a[at + 1], a[at + 2], along) for at, along in form.operands]
    if operator == "Where":
        inputs.insert(0, call.inputs[0])
    if operator == "Conv" and call.input(8):
        inputs.append(_bias(im, call.input(8), call.inputs[1], call.inputs[4]))
    scale, point = call.inputs[form.output], call.input(form.output + 1)
    return on_grid(im, computed(im, call, operator, inputs, given), scale, point, call)


def _by_integers(im: Importer, call: Call, operator: str, given: Mapping[str, Any]) -> Any:
    """clamp(rint(f32(Σ (A - za) · (B - zb) + bias) · (sa · sb / sy)) + zy), for computed scales or zero points; with
    constants, the passes make it of the real operator."""
    a, sa, za, b, sb, zb, sy, zy = call.inputs[:8]
    rank, counts = im.rank(a), [_count(im, name) for name in (sa, sy, sb)]
    kinds = [im.tensors[name].dtype for name in (sa, sb, sy)]
    if kinds != ["float32"] * 3 or any(DTYPES[im.tensors[name].dtype].bits != 8 for name in (a, b)):
        return NotImplemented
    if rank is None or counts[:2] != [1, 1] or not counts[2] or (im.rank(sb) or 0) > 1:
        return NotImplemented
    if all(im.value(name) is not None for name in (sa, za, sb, zb, sy, zy) if name):
        return NotImplemented

    def shaped(name: str, *sizes: int) -> str:
        return im.emit("Reshape", [name, im.constant(np.array(sizes, np.int64), f"{name}.sizes")], f"{name}.shaped")

    along = (-1, *[1] * (rank - 2)) if operator == "Conv" else (-1,)
    sums = computed(im, call, f"{operator}Integer", [a, b, za, zb], given)
    if call.input(8):
        sums = im.emit("Add", [sums, shaped(call.input(8), *along)], f"{sums}.biased")
    product = im.emit("Mul", [shaped(sa), shaped(sb, *(along if counts[2] > 1 else ()))], f"{sums}.product")
    unit = im.emit("Div", [product, shaped(sy)], f"{sums}.unit")
    wide = im.emit("Cast", [sums], f"{sums}.wide", {"to": "float32"})
    return on_grid(im, im.emit("Mul", [wide, unit], f"{sums}.scaled"), im.constant(np.float32(1), "one"), zy, call)


def _count(im: Importer, name: str) -> int:
    """The number of elements; 0 if it is not known."""
    shape = im.shape(name)
    return prod(shape) if shape is not None and is_static(shape) else 0


def _bias(im: Importer, bias: str, *scales: str) -> str:
    """Dequantize an int32 bias, whose scale is the product of `scales`, as in the accumulator: for each column, if
    there are several."""
    unit = scales[0]
    for other in scales[1:]:
        unit = im.emit("Mul", [unit, other], f"{bias}.scale")
    columns = _count(im, unit)
    if columns > 1 and (im.shape(bias) or (1,))[-1] != columns:
        bias = im.emit("Expand", [bias, im.constant(np.array([columns]), "columns")], f"{bias}.each")
    return real(im, bias, unit, "", -1)


@imports("com.microsoft.QGemm")
def qgemm(im: Importer, call: Call) -> Any:
    """A, sa, za, B, sb, zb, C (int32 in units of alpha · sa · sb), sy, zy; without sy the result is real."""
    a, sa, za, b, sb, zb = call.inputs[:6]
    if call.input(7) and not call.input(8):  # ONNX Runtime outputs floats then
        return NotImplemented
    given = {"alpha": 1.0, "transA": 0, "transB": 0, **call.attributes}
    inputs = [real(im, a, sa, za), real(im, b, sb, zb, 0 if given["transB"] else 1)]
    if call.input(6):
        alpha = im.constant(np.float32(given["alpha"]), "alpha") if given["alpha"] != 1 else ""
        inputs.append(_bias(im, call.input(6), sa, sb, *([alpha] if alpha else [])))
    result = computed(im, call, "Gemm", inputs, given)
    if not call.input(7):
        return im.alias(call, result)
    return on_grid(im, result, call.input(7), call.input(8), call)


@imports("com.microsoft.QLinearConcat")
def qlinear_concat(im: Importer, call: Call) -> Any:
    """sy, zy, then X, sx, zx for each input"""
    sy, zy, *rest = call.inputs
    parts = [real(im, *operand) for operand in zip(rest[::3], rest[1::3], rest[2::3], strict=True)]
    on_grid(im, computed(im, call, "Concat", parts, call.attributes), sy, zy, call)


@imports("com.microsoft.DynamicQuantizeMatMul")
def dynamic_quantize_matmul(im: Importer, call: Call) -> Any:
    """A, B, sb, zb, bias: DynamicQuantizeLinear of A, then the product of integers"""
    a, b, scale = call.inputs[:3]
    names = [im.fresh(f"{a}.{part}") for part in ("quantized", "scale", "zero_point")]
    im.emit("DynamicQuantizeLinear", [a], names)
    _real_product(im, call, names[0], b, names[1], scale, names[2], call.input(3), call.input(4))


@imports("com.microsoft.MatMulIntegerToFloat")
def matmul_integer_to_float(im: Importer, call: Call) -> Any:
    """A, B, sa, sb, za, zb, bias"""
    a, b, a_scale, b_scale = call.inputs[:4]
    _real_product(im, call, a, b, a_scale, b_scale, *(call.input(position) for position in (4, 5, 6)))


def _real_product(
    im: Importer, call: Call, a: str, b: str, a_scale: str, b_scale: str, a_zero: str, b_zero: str, bias: str
) -> None:
    """f32(Σ (A - za) · (B - zb)) · (sa · sb) + bias"""
    result = call.outputs[0]
    acc = im.emit("MatMulInteger", [a, b, a_zero, b_zero], f"{result}.sums")
    wide = im.emit("Cast", [acc], f"{result}.real", {"to": im.tensors[a_scale].dtype})
    unit = im.emit("Mul", [a_scale, b_scale], f"{result}.unit")
    if bias:
        wide = im.emit("Mul", [wide, unit], f"{result}.scaled")
        im.emit("Add", [wide, bias], call.outputs)
    else:
        im.emit("Mul", [wide, unit], call.outputs)
