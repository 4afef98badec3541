"""Torch's elementwise operators that are not one-to-one, and quantize and dequantize."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....errors import SourceError
from ....model import DTYPES, Quantization, numpy_dtype
from ....ops.activation import torch_output
from ...stored import StoredTensor
from .. import arguments, shapes
from ..arguments import operands
from ..building import Builder
from ..calls import EVALUATE, Value
from ..lifts import lifts
from ..values import Quotient, Refine, Size, TensorValue, Unknown
from . import qparams
from .logic import cast, in_type, is_tensor, rounded_once


@lifts("aten::quantize_per_tensor")
def quantize_per_tensor(lift: Builder, self: Any, scale: Any, zero_point: Any, dtype: int) -> Any:
    kind = quantized_type(dtype)
    quantization = arguments.quantization(lift, scale, zero_point, kind)
    return lift.emit("QuantizeLinear", [self], quantization=quantization, dtype=kind)


@lifts("aten::quantize_per_channel")
def quantize_per_channel(lift: Builder, self: Any, scales: Any, zero_points: Any, axis: int, dtype: int) -> Any:
    kind = quantized_type(dtype)
    limits = DTYPES[kind]
    quantization = qparams.per_channel(lift, scales, zero_points, axis, kind, (limits.minimum, limits.maximum))
    rule = "" if lift.engine == "onnx" else "reciprocal_offset"  # unlike quantize_per_tensor, which fuses
    return lift.emit("QuantizeLinear", [self], quantization=quantization, dtype=kind, rule=rule)


def quantized_type(code: Any) -> str:
    """The element type of integers by its code."""
    kind = arguments.dtype(code)
    if not DTYPES[kind].is_quantizable:
        raise SourceError(f"quantizes to {kind}, which is not supported")
    return kind


@lifts("aten::dequantize")
def dequantize(lift: Builder, self: Any) -> Any:
    if isinstance(self, list | tuple):
        return [dequantize(lift, value) for value in self]
    x = lift.tensor(self)
    return cast(lift, x, "float32") if x.quantization is None else lift.emit("DequantizeLinear", [x], dtype="float32")


@lifts("aten::contiguous")
def contiguous(lift: Builder, self: TensorValue, memory_format: int = 0) -> Any:
    """The same values; `memory_format` is 0, 2 or 3, channels last in images or volumes, or 1, unchanged."""
    result = lift.alias(self)
    if memory_format != 1:
        result.channels_last = memory_format in (2, 3)
    return result


@lifts(
    "aten::detach",
    "aten::alias",
    "aten::lift_fresh",
    "aten::lift_fresh_copy",
    "aten::cpu",
    "aten::positive",
    "aten::real",
    "aten::conj",
    "aten::resolve_conj",
    "aten::resolve_neg",
    "prim::data",
)
def unchanged(lift: Builder, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Memory layout and copies do not change values."""
    return self if not isinstance(self, TensorValue) else lift.alias(self)


@lifts("aten::clone")
def clone(lift: Builder, self: Any, *, memory_format: int | None = None) -> Any:
    """Also of a tensor of the module: in-place operators may change the copy. Quantized copies are NCHW by default."""
    x = lift.tensor(self)
    usual = 1 if x.quantization is None else 0
    return contiguous(lift, x, usual if memory_format is None else memory_format)


@lifts(
    *(f"aten::{kind}dropout(input, p, train)" for kind in ("", "feature_", "alpha_", "feature_alpha_")),
    "quantized::dropout(self:input, output_scale, output_zero_point, p=0.5, training:train=False)",
)
def dropout(lift: Builder, a: Any) -> Any:
    """A no-op in eval mode, or if it drops nothing."""
    if arguments.flag(lift, a.train) and arguments.number(lift, a.p):
        raise SourceError("is in training mode", hint=EVALUATE)
    return unchanged(lift, a.input)


@lifts("aten::to", "aten::type_as", "aten::_to_copy")
def to(lift: Builder, self: TensorValue, *args: Any, **kwargs: Any) -> Any:
    dtype = _target_dtype(lift, args, kwargs)
    if dtype is None or self.dtype == dtype:
        stated = kwargs.get("memory_format", args[-1] if len(args) > 3 else None)
        return contiguous(lift, self, 1 if stated is None or isinstance(stated, bool) else stated)
    if self.key in lift.undecided:  # torch does not cast quantized tensors
        raise Refine(lift.wanted[self.key], self.shape, is_real=True)
    if self.quantization is not None:
        raise SourceError(f"casts a quantized tensor to {dtype}")
    return lift.emit("Cast", [self], {"to": dtype})


def _target_dtype(lift: Builder, args: Any, kwargs: Any) -> str | None:
    for value in (kwargs.get("dtype"), kwargs.get("other"), *args):
        if isinstance(value, TensorValue):
            return lift.dtype_like(value)
        if isinstance(value, StoredTensor):
            return value.dtype
        if isinstance(value, int) and not isinstance(value, bool):
            return arguments.dtype(value)
    return None


def binary(lift: Builder, operator: str, a: Any, b: Any) -> Any:
    """An operator of two tensors, numbers or sizes."""
    if isinstance(a, Size) or isinstance(b, Size):
        return shapes.arithmetic(lift, operator, a, b)
    if operator == "Div" and _is_whole(lift, a) and _is_whole(lift, b):  # a number may not fit the type of the integers
        a, b = (cast(lift, lift.tensor(each), "float32") for each in (a, b))
    if operator not in ("Mul", "Div"):
        return lift.emit(operator, [*operands(lift, a, b)])
    a, b, half = _beside_number(lift, a, b)
    result = lift.emit(operator, [*operands(lift, a, b)])
    return cast(lift, result, half) if half else result


def _beside_number(lift: Builder, a: Any, b: Any) -> tuple[Any, Any, str]:
    """The operands of a product or quotient, and the type to round it to, unless it has that already: a number that a
    tensor of 16-bit floats cannot represent stays float32, but that of a first tensor is rounded
    (ATen/native/cpu/BinaryOpsKernel.cpp)."""
    half = _inexact_half(lift, a, b) or ("" if is_tensor(a) else _inexact_half(lift, b, a))
    if half:
        a, b = (cast(lift, lift.tensor(each), "float32") for each in (a, b))
    return a, b, half


def _inexact_half(lift: Builder, tensor: Any, number: Any) -> str:
    """The type of a tensor of 16-bit floats that may not represent the number beside it, which may be a tensor of one
    element; "" for any other tensor."""
    x = lift.tensor(tensor) if is_tensor(tensor) else None
    kind = "" if x is None else x.dtype
    if x is None or kind not in ("float16", "bfloat16"):
        return ""
    if is_tensor(number):
        y = lift.tensor(number)
        is_one = y.shape is not None and {*y.shape, 1} == {1} and (y.is_whole or (x.shape != () and not y.shape))
        if not is_one or y.dtype in (kind, "bool"):  # other floats promote the 16-bit ones
            return ""
        if not lift.is_constant(y):
            return kind
        number = lift.tensors[y.key].array.item()
    if not isinstance(number, int | float):
        return ""
    with np.errstate(over="ignore"):
        return "" if float(np.array(number).astype(numpy_dtype(kind))) == number else kind


def _is_whole(lift: Builder, value: Any) -> bool:
    """Whether a number or a tensor has integers or bools."""
    return isinstance(value, int) or (is_tensor(value) and lift.tensor(value).is_whole)


@lifts({"aten::add": "Add", "aten::sub": "Sub"})
def add(lift: Builder, operator: str, self: Any, other: Any, alpha: Any = 1) -> Any:
    if operator == "Add" and isinstance(self, list) and isinstance(other, list):
        return self + other
    if alpha == 1:
        return binary(lift, operator, self, other)
    if isinstance(self, Size) or isinstance(other, Size):
        return binary(lift, operator, self, binary(lift, "Mul", other, alpha))
    x, y = operands(lift, self, other)
    if x.dtype == "bool":  # alpha is a bool, too
        return lift.emit("Or", [x, y]) if operator == "Add" and alpha else NotImplemented
    return _scaled_sum(lift, operator, x, *operands(lift, y, alpha))  # alpha in the type of the tensors


@rounded_once
def _scaled_sum(lift: Builder, operator: str, x: TensorValue, y: TensorValue, alpha: TensorValue) -> TensorValue:
    return lift.emit(operator, [x, lift.emit("Mul", [y, alpha])])


@lifts("aten::rsub")
def rsub(lift: Builder, self: Any, other: Any, alpha: Any = 1) -> Any:
    return add(lift, "Sub", other, self, alpha)


@lifts("aten::mul")
def product(lift: Builder, self: Any, other: Any) -> Any:
    return binary(lift, "Mul", self, other)


@lifts("aten::div", "aten::true_divide")
def div(lift: Builder, self: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if isinstance(self, Size) or isinstance(other, Size):
        down, towards_zero = shapes.floor_divided(lift, self, other), shapes.arithmetic(lift, "Div", self, other)
        exact = Quotient(down, towards_zero) if rounding_mode is None else towards_zero
        return down if rounding_mode == "floor" else exact
    if rounding_mode is None:
        return binary(lift, "Div", self, other)
    return _whole_quotient(lift, self, other, rounding_mode)


@lifts("qfmt::div_0_3")
def div_before_version_4(lift: Builder, self: Any, other: Any) -> Any:
    """Archives before PyTorch 1.6 round quotients of integers towards zero."""
    if isinstance(self, Size) or isinstance(other, Size):
        return div(lift, self, other)
    x, y = operands(lift, self, other)
    return _whole_quotient(lift, x, y, "trunc") if x.is_whole and y.is_whole else div(lift, x, y)


@lifts("aten::floor_divide", "aten::floordiv")
def floor_divide(lift: Builder, self: Any, other: Any) -> Any:
    if isinstance(self, Size) or isinstance(other, Size):
        return shapes.floor_divided(lift, self, other)
    if not (isinstance(self, Value) or isinstance(other, Value)):
        return NotImplemented
    return _whole_quotient(lift, self, other, "floor")


def _whole_quotient(lift: Builder, a: Any, b: Any, rounding: str) -> Any:
    """Rounded down, or towards zero; Div of integers does the latter."""
    a, b, half = _beside_number(lift, a, b)
    if half:
        return cast(lift, _whole_quotient(lift, a, b, rounding), half)
    x, y = operands(lift, a, b)
    kind = x.dtype
    if rounding == "floor" and DTYPES[kind].is_integer:
        if kind in ("int8", "int16", "int32"):  # which may have no x - remainder
            x, y = (lift.emit("Cast", [each], {"to": "int64"}) for each in (x, y))
        x = lift.emit("Sub", [x, lift.emit("Mod", [x, y])])
        return cast(lift, lift.emit("Div", [x, y]), kind)
    if rounding == "floor":
        return _floor_quotient(lift, x, y)
    is_one = y.shape is not None and {*y.shape, 1} == {1}  # torch rounds quotients by more than one number first
    return (rounded_once(_truncated_quotient) if is_one else _truncated_quotient)(lift, x, y)


def _truncated_quotient(lift: Builder, x: TensorValue, y: TensorValue) -> Any:
    return trunc(lift, lift.emit("Div", [x, y]))


@lifts("aten::remainder")
def remainder(lift: Builder, self: Any, other: Any) -> Any:
    """With the sign of the divisor, as in Python."""
    if isinstance(self, Unknown) or isinstance(other, Unknown):
        return Unknown()
    if isinstance(self, Size) or isinstance(other, Size):
        return shapes.arithmetic(lift, "Mod", self, other)
    return _remainder(lift, *operands(lift, self, other))


@rounded_once
def _remainder(lift: Builder, x: TensorValue, y: TensorValue) -> TensorValue:
    if DTYPES[x.dtype].is_integer:
        return lift.emit("Mod", [x, y])
    rest = lift.emit("Mod", [x, y], {"fmod": 1})
    signs = lift.emit("Mul", [lift.emit("Sign", [rest]), lift.emit("Sign", [y])])
    differ = lift.emit("Less", [signs, arguments.scalar_like(lift, x, 0)])
    return lift.emit("Where", [differ, lift.emit("Add", [rest, y]), rest])


@lifts("aten::trunc", "aten::fix")
def trunc(lift: Builder, self: TensorValue) -> Any:
    if self.is_whole:
        return self
    return lift.emit("Mul", [lift.emit("Sign", [self]), lift.emit("Floor", [lift.emit("Abs", [self])])])


@rounded_once
def _floor_quotient(lift: Builder, x: TensorValue, y: TensorValue) -> TensorValue:
    """c10/util/generic_math.h, `div_floor_floating`, as in Python: 1 // 0.1 is 9, although 1 / 0.1 is rounded to 10.

    (x - fmod(x, y)) / y, rounded; 1 less where the remainder and y have different signs.
    """
    rest, zero = lift.emit("Mod", [x, y], {"fmod": 1}), arguments.scalar_like(lift, x, 0)
    whole = lift.emit("Round", [lift.emit("Div", [lift.emit("Sub", [x, rest]), y])])
    signs = lift.emit("Mul", [lift.emit("Sign", [rest]), lift.emit("Sign", [y])])
    less = lift.emit("Cast", [lift.emit("Less", [signs, zero])], {"to": x.dtype})
    by_zero = lift.emit("Equal", [y, zero])
    return lift.emit("Where", [by_zero, lift.emit("Div", [x, y]), lift.emit("Sub", [whole, less])])


@lifts("aten::neg")
def neg(lift: Builder, self: Any) -> Any:
    return shapes.arithmetic(lift, "Mul", self, -1) if isinstance(self, Size) else lift.emit("Neg", [self])


@lifts({"quantized::add_scalar": "add", "quantized::mul_scalar": "mul"})
def quantized_scalar(lift: Builder, name: str, qa: Any, b: Any) -> Any:
    """PyTorch keeps the integers and changes scale or zero point; this is written as the equivalent operator."""
    x, quantization = arguments.quantized(lift, qa)
    return (_times if name == "mul" else _plus)(lift, x, quantization, float(arguments.number(lift, b)))


@lifts({"quantized::add": "add", "quantized::mul": "mul"})
def quantizedbinary(lift: Builder, name: str, qa: Any, qb: Any, scale: Any = None, zero_point: Any = None) -> Any:
    """Without a scale, one operand is a number; with one, the operator's spelling applies."""
    if scale is not None:
        return NotImplemented
    tensor, number = (qb, qa) if isinstance(qa, int | float) else (qa, qb)
    return quantized_scalar(lift, name, tensor, number)


def _times(lift: Builder, x: TensorValue, q: Quantization, factor: float) -> Any:
    scale, low, high = q.scale[0], DTYPES[x.dtype].minimum, DTYPES[x.dtype].maximum
    if factor == 0:
        quantization = arguments.quantization(lift, 1.0, 0, x.dtype)
    else:
        zero_point = q.zero_point[0] if factor > 0 else low + high - q.zero_point[0]
        quantization = arguments.quantization(lift, abs(factor) * scale, zero_point, x.dtype)
    return lift.emit("Mul", [x, lift.constant(factor)], quantization=quantization, like="Add")


def _plus(lift: Builder, x: TensorValue, q: Quantization, addend: float) -> Any:
    """aten/native/quantized/cpu/qadd.cpp, _add_scalar_out: steps = rint(c / s), zero point z - steps; where
    that leaves the range, the scale grows until it fits."""
    scale, low, high = q.scale[0], DTYPES[x.dtype].minimum, DTYPES[x.dtype].maximum
    if not np.isfinite(addend / scale):
        raise SourceError(f"adds {addend} to a quantized tensor with the scale {scale}")
    steps = int(np.rint(addend / scale))
    zero_point = q.zero_point[0] - steps
    if zero_point < low:
        quantization = arguments.quantization(lift, (high - zero_point) / (high - low) * scale, low, x.dtype)
    elif zero_point > high:
        quantization = arguments.quantization(lift, (zero_point - low) / (high - low) * scale, high, x.dtype)
    else:
        quantization = arguments.quantization(lift, scale, zero_point, x.dtype)
    added = lift.constant(
        np.array(steps, np.int32), Quantization.per_tensor(scale, 0, "int32", scale_dtype=q.scale_dtype)
    )
    return lift.emit("Add", [x, added], quantization=quantization, rule="sum")


@lifts("aten::relu6", "quantized::relu6")
def relu6(lift: Builder, self: TensorValue) -> Any:
    return hardtanh(lift, self, 0.0, 6.0)


@lifts("aten::hardtanh")
def hardtanh(lift: Builder, self: TensorValue, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    bounds = [arguments.number(lift, value) for value in (min_val, max_val)]
    if self.is_whole:
        bounds = [int(bound) for bound in bounds]  # unlike clamp, hardtanh keeps the type
    return clamp(lift, self, *bounds)


@lifts("aten::clamp", "aten::clip", "aten::clamp_min", "quantized::clamp")
def clamp(lift: Builder, self: TensorValue, min: Any = None, max: Any = None) -> Any:
    if not (_is_number(lift, self, min) and _is_number(lift, self, max)):
        for operator, bound in (("Max", min), ("Min", max)):
            self = self if bound is None else lift.emit(operator, [*operands(lift, self, bound)])
        return self
    for bound in (min, max):
        self = self if bound is None else operands(lift, self, bound)[0]
    numbers = [None if bound is None else arguments.number(lift, bound) for bound in (min, max)]
    if numbers[1] is not None:
        arguments.require_no_relu(self, numbers[1], "clamps to at most")
    dtype = "float32" if self.quantization is not None else self.dtype
    try:
        bounds = [None if bound is None else lift.constant(np.array(bound, numpy_dtype(dtype))) for bound in numbers]
    except OverflowError:
        raise SourceError(f"clamps {dtype} to {numbers}, which that type does not have") from None
    return lift.emit("Clip", [self, *bounds], quantization=arguments.grid(self))


def _is_number(lift: Builder, clamped: TensorValue, value: Any) -> bool:
    """Whether it is one number, or absent, and not a tensor that is computed or has a bound for each element."""
    x = lift.tensor(value) if is_tensor(value) else None
    return x is None or (lift.is_constant(x) and x.shape in ((), (1,)) and (x.shape == () or clamped.shape != ()))


@lifts("aten::clamp_max")
def clamp_max(lift: Builder, self: TensorValue, max: Any) -> Any:
    return clamp(lift, self, None, max)


@lifts({"aten::sigmoid": "Sigmoid", "aten::tanh": "Tanh", "aten::hardsigmoid": "HardSigmoid"})
def bounded(lift: Builder, operator: str, self: TensorValue) -> Any:
    attributes = {"alpha": 1 / 6, "beta": 0.5} if operator == "HardSigmoid" else {}
    quantization = None
    if self.quantization is not None:
        if self.dtype not in ("int8", "uint8"):
            raise SourceError(f"is called with a quantized tensor of {self.dtype}, whose result torch does not define")
        quantization = arguments.quantization(lift, *torch_output(operator, self.dtype), self.dtype)
    return lift.emit(operator, [self], attributes, quantization=quantization)


@lifts("aten::silu")
@rounded_once
def silu(lift: Builder, self: TensorValue) -> Any:
    return lift.emit("Mul", [self, lift.emit("Sigmoid", [self])])


@lifts("aten::prelu(self, weight)", "quantized::prelu(qx:self, weight, output_scale:scale, output_zero_point:point)")
def prelu(lift: Builder, a: Any) -> Any:
    x = lift.tensor(a.self)
    grid = arguments.quantization(lift, a.scale, a.point, x.dtype) if hasattr(a, "scale") else arguments.grid(x)
    return lift.emit("PRelu", [x, _slope(lift, x, a.weight)], quantization=grid)


def _slope(lift: Builder, x: TensorValue, weight: Any) -> TensorValue:
    """Torch's slope runs over the channels (dimension 1); ONNX's broadcasts from the last dimension."""
    slope = lift.tensor(weight)
    rank = shapes.rank(lift, x)
    if slope.shape and slope.shape != (1,) and rank > 2:
        return shapes.reshape(lift, slope, [-1, *[1] * (rank - 2)])
    return slope


@lifts(
    {
        "aten::softmax": "Softmax", "aten::_softmax": "Softmax",
        "aten::log_softmax": "LogSoftmax", "aten::_log_softmax": "LogSoftmax",
    }
)  # fmt: skip
def softmax(lift: Builder, operator: str, self: Any, dim: int, dtype: Any = None) -> Any:
    """`_softmax` has a bool instead of the type: whether to widen float16 first."""
    x = in_type(lift, self, (6 if dtype else None) if isinstance(dtype, bool) else dtype)
    return lift.emit(operator, [x], {"axis": dim}, quantization=arguments.grid(x))
