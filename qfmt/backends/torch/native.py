"""torch's own quantized kernels, with parameters packed for a named backend, as in the source module.

Their tensors are quint8 and qint8, which PyTorch plans to remove; this engine ends with them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, inf, isclose, nextafter
from typing import Any

import torch

from ...errors import first_line
from ...model import DTYPES, Tensor, static_shape
from ...ops import OPERATORS
from ...ops.activation import torch_output
from .arithmetic import quantize
from .emit import Emitter, Lacks, Site
from .floats import bounds
from .moves import MOVES
from .native_maps import MAP_EMITTERS
from .processor import overflows, quantized_kernels
from .products import real_bias
from .ranges import check_clamp, is_relu, real_range, runs_qnnpack, same_grid, scale_and_zero_point, within_range
from .spelled import Kernel, spelled
from .windows import Geometry

aten, quantized = torch.ops.aten, torch.ops.quantized

# Packed parameters


def quantized_weight(s: Site, index: int) -> torch.Tensor:
    """A constant input as one of torch's quantized tensors, which shares the memory of the buffer."""
    tensor = s.tensor(index)
    q, values = tensor.quantization, s.constant(index).contiguous()
    if q is None or tensor.dtype not in ("int8", "uint8"):
        raise Lacks(f"torch does not pack weights of {tensor.dtype}")
    kind = torch.qint8 if tensor.dtype == "int8" else torch.quint8
    if q.axis is None:
        made = torch._empty_affine_quantized(
            values.shape, scale=q.scale[0], zero_point=int(q.zero_point[0]), dtype=kind
        )
    else:
        scales, points = torch.tensor(q.scale, dtype=torch.float64), torch.tensor(q.each_zero_point, dtype=torch.int64)
        made = torch._empty_per_channel_affine_quantized(
            values.shape, scales=scales, zero_points=points, axis=q.axis, dtype=kind
        )
    return made.set_(values.untyped_storage(), values.storage_offset(), values.shape, values.stride())


def int8_weight(s: Site, index: int) -> torch.Tensor:
    """The weight of a product as such a tensor. QNNPACK packs other types, and fails when it runs."""
    if s.tensor(index).dtype != "int8":
        raise Lacks(f"torch's kernels require weights of int8, not {s.tensor(index).dtype}")
    if 0 in (s.tensor(index).shape or ()):
        raise Lacks("torch's kernels leave the sums of no products undefined")
    return quantized_weight(s, index)


def by_kernels(s: Site, pack: Callable[[], Any]) -> Any:
    """The parameters packed by `pack` for the first of the engine's kernels that are correct for the node.

    Kernels that can overflow on this processor are noted. An exact engine skips them, and those with another rule.
    """
    engine, reasons = s.builder.engine, []
    rules = OPERATORS[s.node.operator].engines
    for kernels in engine.kernels:
        if engine.exact and rules.get(kernels) != s.node.rule:
            reasons.append(f"{kernels} kernels have another rule than {s.node.rule!r}")
            continue
        reason = f"can overflow 16 bits in {kernels} kernels on this processor" if overflows(s, kernels) else ""
        if len(engine.kernels) > 1 and _errs(s, kernels):
            reasons.append(f"is computed incorrectly by {kernels} kernels")
            continue
        if reason and engine.exact:
            reasons.append(reason)
            continue
        try:
            with quantized_kernels(kernels):
                made = pack()
        except RuntimeError as error:
            reasons.append(f"torch cannot pack it: {first_line(error)}")
            continue
        if reason or reasons:
            s.builder.notes.append(s.row(f"native:{kernels}", reason or reasons[0]))
        return made
    raise Lacks(reasons[0])


def _errs(s: Site, kernels: str) -> bool:
    """Whether these kernels of torch compute a transposed convolution incorrectly, far beyond rounding.

    Measured with torch 2.13 on x86: oneDNN's misread the shape of weights if the groups have different numbers of
    inputs and outputs; fbgemm's have a separate path for 2 × 2 kernels with strides of 2 and multiples of 8 channels.
    """
    if s.node.operator != "ConvTranspose":
        return False
    inputs, outputs, *kernel = static_shape(s.tensor(1))
    if kernels in ("x86", "onednn"):
        return bool(inputs != outputs * s.attribute("group"))
    return kernels == "fbgemm" and kernel == [2, 2] and inputs % 8 == 0 and outputs % 8 == 0


def _packed(s: Site, prepack: Any, *rest: Any) -> Any:
    if s.tensor(1).data is None:
        raise Lacks("torch packs constant weights only")
    if s.grid(0).dtype != torch.uint8:
        raise Lacks(f"torch's kernels require uint8, not {s.tensor(0).dtype}")
    weight, bias = int8_weight(s, 1), real_bias(s)
    packed = by_kernels(s, lambda: prepack(weight, bias, *rest))
    return s.derive("packed", packed)


def _conv(s: Site) -> Any:
    geometry, grid = Geometry.of(s).even(), s.tensor(1).quantization
    name, fuses = geometry.name, geometry.output_padding is None
    if not fuses and geometry.group > 1 and grid is not None and grid.is_per_channel and runs_qnnpack(s):
        raise Lacks("QNNPACK reads a scale for each output channel, and groups share theirs")
    fused = f"{name}_relu" if fuses and is_relu(s) else name
    packed = _packed(s, getattr(quantized, f"{name}_prepack"), *geometry.packing())
    target = getattr(quantized, fused)
    target = target.new if name in ("conv2d", "conv3d") else target.default
    return within_range(s, target, s.channels(), packed, *scale_and_zero_point(s), relu=fuses)


def check_matrices(s: Site) -> None:
    shape = s.tensor(0).shape
    if shape is not None and len(shape) < 2:
        raise Lacks("torch's kernels require matrices")


def _linear(s: Site) -> Any:
    check_matrices(s)
    packed = _packed(s, quantized.linear_prepack)
    target = quantized.linear_relu.default if is_relu(s) else quantized.linear.default
    return within_range(s, target, s.features(), packed, *scale_and_zero_point(s))


# Quantize and dequantize


def _quantize(s: Site) -> Any:
    x = s.x(0) if s.tensor(0).quantization is None else s.call(aten.dequantize.self, s.x(0))
    if s.tensor(0).quantization is None and s.tensor(0).dtype != "float32":
        raise Lacks(f"torch quantizes no {s.tensor(0).dtype}")
    kind = {"uint8": torch.quint8, "int8": torch.qint8}.get(s.out.dtype)
    if kind is None:
        raise Lacks(f"torch does not quantize to {s.out.dtype} exactly")
    return within_range(s, aten.quantize_per_tensor.default, x, *scale_and_zero_point(s), kind, relu=False)


def _dequantize(s: Site) -> Any:
    if s.tensor(0).dtype == "int32":
        raise Lacks("torch dequantizes int32 with a zero point of float32")
    return s.result(aten.dequantize.self, s.x(0))


# Arithmetic on elements


def _both(s: Site, plain: Any, with_relu: Any, scalar: Any) -> Any:
    """add and mul: of two quantized tensors, or of one and a number that changes its quantization."""
    a, b, output = s.tensor(0), s.tensor(1), scale_and_zero_point(s)
    if _are_of_one_type(a, b):
        target = with_relu if is_relu(s) else plain
        return within_range(s, target, *_largest_first(s), *output)
    x = s.x(0)  # Lacks if torch has no such quantized tensor
    number = _number(s, scalar) if a.quantization is not None and b.data is not None else None
    if number is None:
        raise Lacks("torch adds and multiplies quantized tensors only")
    return within_range(s, scalar, x, number, relu=False)


def _largest_first(s: Site) -> tuple[Any, Any]:
    """Both inputs, first the one with the shape of the result: torch uses the shape of the first."""
    a, b = s.tensor(0), s.tensor(1)
    if _takes(a, b):
        return s.x(0), s.x(1)
    if not _takes(b, a):
        raise Lacks("torch broadcasts only one input here")
    return s.x(1), s.x(0)


def _are_of_one_type(*tensors: Tensor) -> bool:
    """Whether all are quantized, to integers of one type."""
    return all(tensor.quantization is not None for tensor in tensors) and len({each.dtype for each in tensors}) == 1


def _takes(a: Tensor, b: Tensor) -> bool:
    """Whether the result has the shape of `a`. Computed tensors of unknown shape are assumed to have one shape."""
    if a.shape is None or b.shape is None:
        return b.shape == () or (a.data is None and b.data is None)
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return len(a.shape) >= len(b.shape) and not any(x == 1 and y != 1 for x, y in pairs)


def _number(s: Site, scalar: Any) -> float | None:
    """The number for which torch's add_scalar or mul_scalar has the output's quantization, if any.

    That of the source was a double; the model has it in float32, and as a change of the quantization.
    """
    x, y, b, value = s.grid(0), s.out_grid, s.tensor(1), s.scalar(1)
    if not _takes(s.tensor(0), b):
        return None
    if b.quantization is not None:
        value = (float(b.array.reshape(())) - b.quantization.zero_point[0]) * b.quantization.scale[0]
    sample = torch._make_per_tensor_quantized_tensor(torch.zeros(1, dtype=x.dtype), x.scale, x.zero_point)
    ratio = copysign(y.scale / x.scale, value)
    for number in (value, ratio, nextafter(ratio, inf), nextafter(ratio, -inf)):
        if not isclose(number, value, rel_tol=1e-6):
            continue
        result = scalar(sample, number)
        if (result.q_scale(), result.q_zero_point()) == (y.scale, y.zero_point):
            return number
    return None


def _add(s: Site) -> Any:
    return _both(s, quantized.add.default, quantized.add_relu.default, quantized.add_scalar.default)


def _mul(s: Site) -> Any:
    return _both(s, quantized.mul.default, quantized.mul_relu.default, quantized.mul_scalar.default)


def _matmul(s: Site) -> Any:
    first, second = s.tensor(0), s.tensor(1)
    if not _are_of_one_type(first, second) or first.shape is None or len(first.shape) != len(second.shape or ()):
        raise Lacks("torch multiplies operands of one type and rank")
    return within_range(s, quantized.matmul.default, s.x(0), s.x(1), *scale_and_zero_point(s), relu=False)


def _concat(s: Site) -> Any:
    if not _are_of_one_type(*(s.tensor(index) for index in range(len(s.node.inputs)))):
        raise Lacks("torch joins quantized tensors of one type")
    values = [s.x(index) for index in range(len(s.node.inputs))]
    target = quantized.cat_relu.default if is_relu(s) else quantized.cat.default
    return within_range(s, target, values, s.attribute("axis"), *scale_and_zero_point(s))


# Functions of one element


def _with_grid(kernel: Kernel) -> Emitter:
    def emit(s: Site) -> Any:
        s.grid(0)
        places, named = kernel.arguments(s, [s.x(0)], scale_and_zero_point(s))
        return within_range(s, kernel.target, *places, relu=False, **named)

    return emit


def _bounded(target: Any, general: Any = None) -> Emitter:
    def emit(s: Site) -> Any:
        s.grid(0)
        if scale_and_zero_point(s) == torch_output(s.node.operator, s.out.dtype):
            return within_range(s, target, s.x(0), relu=False)
        if general is None or runs_qnnpack(s):
            raise Lacks("torch uses a different quantization for its output")
        return within_range(s, general, s.x(0), *scale_and_zero_point(s), relu=False)

    return emit


def _threshold(s: Site) -> Any:
    same_grid(s)
    return within_range(s, quantized.threshold.default, s.x(0), s.attribute("alpha"), 0.0, relu=False)


def _prelu(s: Site) -> Any:
    if s.node.rule != "product":
        raise Lacks("torch multiplies integers here")
    x, slope = s.tensor(0), s.tensor(1)
    if slope.data is None or not _are_of_one_type(x, slope):
        raise Lacks("needs a constant slope that is quantized to the type of the input")
    count = slope.array.size
    if not _takes(x, slope) or (count != 1 and slope.shape != (count, *(1,) * (s.rank() - 2))):
        raise Lacks("torch supports one slope, or one for each channel")
    weight = quantized_weight(s, 1).reshape(-1)
    held = s.derive("slope", weight)
    return within_range(s, quantized.prelu.default, s.x(0), held, *scale_and_zero_point(s), relu=False)


def _relu(s: Site) -> Any:
    same_grid(s)
    if s.out_grid.minimum not in (DTYPES[s.out.dtype].minimum, s.out_grid.zero_point):
        raise Lacks("has a range that torch's relu does not support")
    if s.out_grid.maximum != DTYPES[s.out.dtype].maximum:
        raise Lacks("has a range that torch's relu does not support")
    return s.result(aten.relu.default, s.x(0))


def _clip(s: Site) -> Any:
    same_grid(s)
    limits = bounds(s)
    if limits == [None, None]:
        raise Lacks("has no bounds")
    both = [end if given is None else given for given, end in zip(limits, real_range(s), strict=True)]  # for qnnpack
    check_clamp(
        s, *(int(quantize(torch.tensor(bound, dtype=torch.float32), s.out_grid, "reciprocal_offset")) for bound in both)
    )
    return within_range(s, aten.clamp.default, s.x(0), *both, relu=False)


NATIVE_EMITTERS: dict[str, Emitter] = {
    **MOVES,
    **{name: _with_grid(kernel) for name, kernel in spelled("quantized").items() if kernel.has_grid},
    "Conv": _conv,
    "ConvTranspose": _conv,
    "qfmt.Linear": _linear,
    "MatMul": _matmul,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Add": _add,
    "Mul": _mul,
    "Concat": _concat,
    "Sigmoid": _bounded(aten.sigmoid.default, quantized.sigmoid.default),
    "Tanh": _bounded(aten.tanh.default),
    "HardSigmoid": _bounded(aten.hardsigmoid.default),
    "ThresholdedRelu": _threshold,
    "PRelu": _prelu,
    "Relu": _relu,
    "Clip": _clip,
    **MAP_EMITTERS,
}
