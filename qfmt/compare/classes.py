"""Equal, off by one at a rounding tie, wrong: the classes of docs/spec/conversions.md, "Comparing two results".

A tie is proven: the value before the rounding is computed exactly (in float64, from the same operands) and must be
half-way between the two integers, up to the rounding errors of the float32 operations that led to it. Outputs of
torch that are wrong because its own kernel overflows are also proven and counted separately: recomputing in the
kernel's order reproduces them bit by bit. The kernel that an engine uses depends on the layer and on the processor, so
all its kernels are tried. An output that none of them reproduces may still be an overflow, in an order that qfmt does
not know: if the kernel saturates elsewhere in the node, and two products of the sum together exceed int16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod, sqrt
from typing import Any, NamedTuple, cast

import numpy as np
from ml_dtypes import finfo

from ..arithmetic import MEAN, REQUANTIZE, f32, quantize, whole_bias
from ..arrays import Array
from ..engines import RUNTIMES
from ..interpreter import execute
from ..model import DTYPES, Node, Tensor
from ..ops import OPERATORS, Operand, Trait, has
from ..ops.accumulation import terms_of, unit_of_sums
from ..ops.overflow import AnyPair, computed_by
from ..passes.hazards import KERNELS

CLOSE = 1e-5
"""How far apart float outputs may be, relative to what they are sums of, or else to the largest of the tensor: float32
sums in another order.

Statistics of n elements may be off by √n units of EPS: rounding errors of a long sum grow as a random walk
(Higham, Accuracy and Stability of Numerical Algorithms, 2.6). torch with one thread adds them sequentially, and those
of float16 in float32, too."""

EPS = 2.0**-23
"""The distance of 1.0 and the next float32."""

LAST_BITS = 2
"""The same in units in the last place, for float16 and bfloat16, which have fewer digits than CLOSE requires."""

RECURRENT = ("aten::quantized_lstm", "aten::quantized_gru")
RECURRENT_CLOSE = 2.0**-6
"""States that differ in the last bit, as tanh does between two libraries, may be quantized to neighbours on a 7-bit
grid; later values then differ by about such a step."""

ROUNDINGS = 8
"""The most float32 operations between exact sums or single operands and the rounding to an integer."""

WIDEST = 2.0**-7
"""The largest distance from a half, in steps of the output, that can be a tie, however inexact float32 is."""

SUMS_OF_FLOATS = (*RUNTIMES, "pt2e")
"""Engines that sum products of dequantized numbers in float32."""

WIDEST_OF_SUMS = 2.0**-2
"""The same if sums of products are known only in float32: 16-bit activations."""

BY_CHANCE = 2.0**-5
"""The largest share of other results that a kernel has by chance, in a few dozen outputs."""

CLAMPS = ("Clip", "Relu")
"""Nodes that another format may have as the range of the node before."""

MOST_CLAMPS = 4
"""The most of them in a row that are looked through."""

CHOICES = ("TopK", "ArgMax", "ArgMin")
"""Operators whose outputs of int64 are places of elements."""

JUMPS = ("ThresholdedRelu",)
"""Operators of one element whose result jumps, and that torch computes on quantized tensors."""

BESIDE_ONE = ("Celu", "Elu", "Selu", "Sigmoid")
"""Operators whose small results some libraries compute from numbers near 1, or alpha, such as exp(x) - 1: that is what
rounding errors are relative to. ONNX Runtime's Sigmoid is off by up to 2**-23, and 0 below -18 (MLAS, logistic.cpp)."""

BESIDE_INPUT = ("Gelu", "HardSwish", "Mish", "Swish")
"""The same of operators that multiply such a number by the input."""

ERF = 2.0**-21
"""The absolute error of erf in torch's and other kernels of float32, which compute it as 1 minus a small number."""

INTEGER_RULES = (*REQUANTIZE, *MEAN, "product", "sum")
"""Rules whose formulas are exact except for a few final float32 operations."""


class Counts(NamedTuple):
    """How many outputs are in each class; `largest` is the largest difference, in steps or in real numbers."""

    equal: int = 0
    tie: int = 0
    close: int = 0
    saturated: int = 0
    overflow: int = 0
    stated: int = 0
    wrong: int = 0
    largest: float = 0.0

    @property
    def total(self) -> int:
        return sum(self[:-1])

    def plus(self, other: Counts) -> Counts:
        sums = [a + b for a, b in zip(self[:-1], other[:-1], strict=True)]
        return Counts._make([*sums, max(self.largest, other.largest)])


class Classes(NamedTuple):
    """Which outputs are in each class: disjoint masks of one shape. The rest is wrong."""

    equal: Array
    near: Array
    """Ties of integers; floats that are close."""
    saturated: Array
    overflow: Array
    stated: Array

    @property
    def known(self) -> Array:
        known: Array = self.equal | self.near | self.saturated | self.overflow | self.stated
        return known

    def counts(self, mine: Array, theirs: Array) -> Counts:
        """How many there are, of these two results."""
        is_float, sums = DTYPES[mine.dtype.name].kind == "f", [int(each.sum()) for each in self]
        return Counts(
            sums[0],
            tie=0 if is_float else sums[1],
            close=sums[1] if is_float else 0,
            saturated=sums[2],
            overflow=sums[3],
            stated=sums[4],
            wrong=int((~self.known).sum()),
            largest=float(distance(mine.astype(np.float64), theirs.astype(np.float64)).max(initial=0)),
        )


def classify(
    node: Node,
    operands: Sequence[Operand | None],
    output: Tensor,
    mine: Array,
    theirs: Array,
    engine: str = "",
    *,
    direct: bool = True,
) -> Counts:
    """Two results of one node, computed from the same operands; `output` says what their integers mean.

    `engine` is that of `theirs`, where it is torch's or ONNX's. `direct`: it has the operands, too; otherwise they are
    only ours, and the last bits of what they were computed from may differ.
    """
    if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
        return Counts(wrong=max(mine.size, 1), largest=float("inf"))
    if mine.tobytes() == theirs.tobytes():
        return Counts(equal=mine.size)
    return classes(node, operands, output, mine, theirs, engine, direct=direct).counts(mine, theirs)


def classes(
    node: Node,
    operands: Sequence[Operand | None],
    output: Tensor,
    mine: Array,
    theirs: Array,
    engine: str,
    *,
    direct: bool,
) -> Classes:
    """The class of each output, of two results with the same shape and type."""
    equal = equal_elements(mine, theirs)
    near = ~equal & nearly(node, operands, output, mine, theirs, engine, direct=direct)
    overflown, possible = _overflows(node, operands, output, theirs, engine, ~equal & ~near)
    undefined = _from_nan(node, operands, output, mine, ~(equal | near | overflown | possible))
    return Classes(equal, near, overflown, possible, undefined)


def nearly(
    node: Node,
    operands: Sequence[Operand | None],
    output: Tensor,
    mine: Array,
    theirs: Array,
    engine: str,
    *,
    direct: bool,
) -> Array:
    """Where two results are equal, or differ only by rounding errors: integers at a tie, floats by the order of
    sums."""
    equal = equal_elements(mine, theirs)
    if DTYPES[mine.dtype.name].kind == "f":
        return np.asarray(equal | _close(node, operands, mine, theirs, direct))
    near = np.abs(mine.astype(np.int64) - theirs.astype(np.int64)) == 1
    if near.any():
        near &= rounding_ties(node, operands, output, (mine.astype(np.float64) + theirs) / 2, engine)
    near |= _at_jump(node, operands, output, theirs)
    if engine not in RUNTIMES:
        near |= _equal_choices(node, operands, mine, theirs)
    found: Array = equal | near
    return found


def _overflows(
    node: Node, operands: Sequence[Operand | None], output: Tensor, theirs: Array, engine: str, off: Array
) -> tuple[Array, Array]:
    """Of the outputs that differ: those that a saturating kernel of the engine explains, and other possible overflows.

    A kernel explains what it computes if exact sums give another result. Only a kernel that was seen to saturate in
    this node may have overflowed elsewhere in it: on other processors, differences have no such excuse.
    """
    none = np.zeros(off.shape, bool)
    if not off.any() or not (made := [*saturated(node, operands, output, engine)]):
        return none, none
    exact, alike = _executed(node, operands, output), partial(_alike, node, operands)
    most = max((off & alike(each, theirs) & ~alike(each, exact) for each in made), key=np.count_nonzero)
    rest = off & ~most
    if not rest.any() or not _is_evident(most, off, output, theirs):
        return most, none
    return most, rest & can_overflow(node, operands, output, engine)


def _alike(node: Node, operands: Sequence[Operand | None], mine: Array, theirs: Array) -> Array:
    return np.asarray(equal_elements(mine, theirs) | _close(node, operands, mine, theirs))


def _is_evident(explained: Array, off: Array, output: Tensor, theirs: Array) -> bool:
    """Whether a kernel explains more of the outputs that differ than chance does. At the ends of their range, results
    of any two kernels are often equal; within it, one of 256."""
    q = output.quantization
    within = off if q is None else off & (theirs > q.quant_min) & (theirs < q.quant_max)
    return int((explained & within).sum()) > BY_CHANCE * int(within.sum())


def equal_elements(mine: Array, theirs: Array) -> Array:
    """Where two arrays of one element type are equal, NaN and NaN included."""
    if DTYPES[mine.dtype.name].kind != "f":  # float64 does not hold every int64
        return np.asarray(mine == theirs)
    return same_numbers(mine.astype(np.float64), theirs.astype(np.float64))


def _close(node: Node, operands: Sequence[Operand | None], mine: Array, theirs: Array, direct: bool = True) -> Array:
    """Where floats differ by no more than the order of sums does; integers are equal or not."""
    if DTYPES[mine.dtype.name].kind != "f":
        return np.zeros(mine.shape, bool)
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    largest = np.abs(b[np.isfinite(b)]).max(initial=0)
    if node.source_operator in RECURRENT and (OPERATORS[node.operator].family == "recurrent" or not direct):
        return np.asarray(distance(a, b) <= RECURRENT_CLOSE * largest)
    eps = float(finfo(mine.dtype).eps)  # type: ignore[no-untyped-call]
    near = max(CLOSE, LAST_BITS * eps, sqrt(_summed(node, operands)) * EPS)
    with np.errstate(all="ignore"):
        sizes = _sizes(node, operands, np.abs(b), eps / near) if direct else inf
        if not direct or node.operator not in ("Add", "Sub"):  # terms may cancel in each of their results
            sizes = np.fmin(sizes, largest)
        apart, limit = distance(a, b), near * sizes
        if (apart > limit).any():
            limit = limit + _moved(node, operands, a.shape, eps) + LAST_BITS * eps * _beside(node, operands, a.shape)
            smallest = float(finfo(mine.dtype).smallest_subnormal)  # type: ignore[no-untyped-call]
            limit = limit + (LAST_BITS * smallest + (ERF if node.operator == "Erf" else 0.0))
    return np.asarray(apart <= limit)


def _beside(node: Node, operands: Sequence[Operand | None], shape: tuple[int, ...]) -> Array | float:
    """What an output is computed from that may be much larger than all outputs."""
    if node.operator in BESIDE_INPUT:
        return _magnitude(replace(node, rule=""), operands, shape)
    return abs(cast(float, node.attributes.get("alpha", 1.0))) if node.operator in BESIDE_ONE else 0.0


def _moved(node: Node, operands: Sequence[Operand | None], shape: tuple[int, ...], eps: float) -> Array | float:
    """How far rounding errors of the input move a normalized output: of elements that are nearly equal, any difference
    becomes large; exponentials grow with the errors of large ones."""
    if OPERATORS[node.operator].family not in ("normalization", "softmax") or operands[0] is None:
        return 0.0
    x = _real(operands[0], np.float64)
    signs = 1 - 2 * (np.arange(x.size) % 2).reshape(x.shape)
    results = [_computed(node, [Operand(each, None), *operands[1:]], np.float64) for each in (x, x * (1 + eps * signs))]
    found: Array = max(LAST_BITS, sqrt(_summed(node, operands))) * np.abs(results[1] - results[0])
    return found if found.shape == shape else 0.0


def _sizes(node: Node, operands: Sequence[Operand | None], result: Array, unit: float) -> Array | float:
    """What rounding errors of an output are relative to: the terms of its sum, itself and a little of what it is
    computed from; infinite if that is not known for each output. A large element must not hide errors of small ones."""
    if has(node, Trait.PRODUCT):
        terms = [each and Operand(np.abs(_real(each, np.float64)), None) for each in operands]
        sums = _computed(replace(node, rule=""), terms, np.float64)
        return sums if sums.shape == result.shape else inf
    if has(node, Trait.ELEMENTWISE):
        result = result + ROUNDINGS * unit * _magnitude(replace(node, rule=""), operands, result.shape)
    return result if has(node, Trait.ELEMENTWISE) or has(node, Trait.MOVE) else inf


def _summed(node: Node, operands: Sequence[Operand | None]) -> int:
    """How many floats of an input are summed at most, in an order that depends on the number of threads."""
    if OPERATORS[node.operator].family not in ("normalization", "reduction") or operands[0] is None:
        return 1
    return prod(operands[0].array.shape[1:])


def same_numbers(a: Array, b: Array) -> Array:
    """Where two float arrays are equal, NaN and NaN included."""
    same: Array = (a == b) | (np.isnan(a) & np.isnan(b))
    return same


def distance(a: Array, b: Array) -> Array:
    """The distance of two float arrays, element by element; infinite for NaN."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    return np.where(same_numbers(a, b), 0, np.where(np.isnan(apart), np.inf, apart))


def rounding_ties(
    node: Node, operands: Sequence[Operand | None], output: Tensor, halves: Array, engine: str = ""
) -> Array:
    """Where the exact value before the rounding equals `halves`, within float32 precision."""
    quantization = output.quantization
    if quantization is None or not _rounds(node):
        return np.zeros(halves.shape, bool)
    step = quantization.scales(halves.shape).astype(f32).astype(np.float64)
    offset = quantization.zero_points(halves.shape)
    with np.errstate(all="ignore"):
        exact = _computed(node, operands, np.float64) / step
        error = ROUNDINGS * 2.0**-24 * (_magnitude(node, operands, exact.shape) / step + np.abs(exact) + np.abs(offset))
        if node.rule not in INTEGER_RULES:
            in_float32 = _computed(node, operands, f32).astype(np.float64) / step
            apart = np.abs(in_float32 - exact)
            error = error + 4 * apart[np.isfinite(apart)].max(initial=0)
        elif engine in SUMS_OF_FLOATS:
            error = error + _sum_error(node, operands) / step
        return np.abs(exact + offset - halves) <= np.minimum(
            error, WIDEST_OF_SUMS if engine in SUMS_OF_FLOATS else WIDEST
        )


def _rounds(node: Node) -> bool:
    """Whether its integers are real numbers, rounded."""
    operator = OPERATORS[node.operator]
    return not (operator.takes_integers or not node.rule or node.rule in operator.sum_rules)


def _from_nan(node: Node, operands: Sequence[Operand | None], output: Tensor, mine: Array, off: Array) -> Array:
    """Of the outputs that differ: integers made from NaN. A file states quant_min; engines have different ones."""
    if not off.any() or output.quantization is None or not _rounds(node) or not DTYPES[output.dtype].is_integer:
        return np.zeros(off.shape, bool)
    with np.errstate(all="ignore"):
        exact = _computed(node, operands, np.float64)
    found: Array = off & np.isnan(exact) & (mine == output.quantization.quant_min)
    return found


def _at_jump(node: Node, operands: Sequence[Operand | None], output: Tensor, theirs: Array) -> Array:
    """Where a quantized element lies on the threshold of the node, up to a rounding error of its real number, and the
    other result is that of an element on the other side.

    torch computes `x · scale - zero_point · scale`, fused, in full vectors of elements, and `(x - zero_point) · scale`
    in the rest.
    """
    none, (x, *_) = np.zeros(theirs.shape, bool), operands
    if node.operator not in JUMPS or x is None or x.quantization is None or output.quantization is None:
        return none
    error = 2 * 2.0**-24 * _size(x)
    sides = []
    for real in (_real(x, np.float64) - error, _real(x, np.float64) + error):
        y = np.asarray(OPERATORS[node.operator].reference(real, **node.attributes))
        sides.append(quantize(y.astype(f32), output.quantization, theirs.dtype, "reciprocal"))
    below, above = sides
    jumps: Array = (below != above) & ((theirs == below) | (theirs == above))
    return jumps


def _equal_choices(node: Node, operands: Sequence[Operand | None], mine: Array, theirs: Array) -> Array:
    """Where two indices select equal elements: which of them comes first, torch does not say. ONNX does."""
    none, x = np.zeros(mine.shape, bool), operands[0] if operands else None
    if node.operator not in CHOICES or x is None or mine.dtype != np.int64 or not x.array.ndim:
        return none
    axis = node.int("axis")
    if not node.int("keepdims", 1):
        mine, theirs = np.expand_dims(mine, axis), np.expand_dims(theirs, axis)
    size = x.array.shape[axis]
    if mine.ndim != x.array.ndim or not ((theirs >= 0) & (theirs < size)).all():
        return none
    chosen = (np.take_along_axis(x.array, each, axis) for each in (mine, theirs))
    return equal_elements(*chosen).reshape(none.shape)


def _sum_error(node: Node, operands: Sequence[Operand | None]) -> Array:
    """The error of sums in float32, as ONNX computes them: n · 2^-24 · Σ|x|·|w| for n terms, or n · 2^-24 · Σ|x|/n."""
    sizes = [
        Operand(np.abs(_real(each, np.float64)), None) if each is not None and _is_real(each) else each
        for each in operands
    ]
    sums = np.abs(_computed(replace(node, rule=""), sizes, np.float64))
    x, *others = operands
    assert x is not None
    if not has(node, Trait.PRODUCT):
        kernel = cast("tuple[int, ...]", node.attributes.get("kernel_shape", ()))
        return (prod(kernel) if kernel else x.array.size // max(sums.size, 1)) * 2.0**-24 * sums
    weight = others[0]
    assert weight is not None
    return prod(terms_of(node, weight.array).shape[1:]) * 2.0**-24 * sums


def _computed(node: Node, operands: Sequence[Operand | None], kind: type[np.floating[Any]]) -> Array:
    """The real result of the node, computed in float64 (where it is exact but for 1e-15) or float32."""
    operator = OPERATORS[node.operator]
    reals: list[Any] = [None if operand is None else _real(operand, kind) for operand in operands]
    if node.rule.startswith("integer_bias") and len(operands) > 2 and operands[2] is not None:
        reals[2] = _whole_bias(node, operands).astype(kind)  # rounding the bias is part of the rule
    if node.operator == "Resize":  # scales, in their own type, determine the shape of the result
        reals[1:] = [None if operand is None else operand.array for operand in operands[1:]]
    fixed = [parameter for parameter in operator.inputs if not parameter.variadic]
    reals += [None] * (len(fixed) - len(reals))
    return np.asarray(operator.reference(*reals, **node.attributes))


def _real(operand: Operand, kind: type[np.floating[Any]]) -> Array:
    array, quantization = operand
    if quantization is None:
        return array.astype(kind) if array.dtype.kind == "f" and array.dtype != np.float64 else array
    scales = quantization.scales(array.shape).astype(f32).astype(kind)
    real: Array = (array.astype(np.float64) - quantization.zero_points(array.shape)).astype(kind) * scales
    return real


def _whole_bias(node: Node, operands: Sequence[Operand | None]) -> Array:
    """`rint(b / at) · at`, per output channel; `rint` as in the rule."""
    x, weight, bias = operands[:3]
    assert x is not None and x.quantization is not None
    assert weight is not None and weight.quantization is not None and bias is not None
    if bias.quantization is not None:
        return _real(bias, np.float64)
    at = unit_of_sums(x.quantization, weight.quantization, node.attributes)
    return whole_bias(bias.array, at, node.rule) * at.astype(np.float64)


def _magnitude(node: Node, operands: Sequence[Operand | None], shape: tuple[int, ...]) -> Array:
    """The magnitude of the numbers that the result is computed from: per element if possible, else the largest."""
    if node.rule in INTEGER_RULES:  # sums and products are exact; only the bias is added to them
        bias = operands[2] if len(operands) > 2 else None
        return np.asarray(0.0 if bias is None else 2 * np.abs(_real(bias, np.float64)).max(initial=0))
    sizes = [_size(operand) for operand in operands if operand is not None and _is_real(operand)]
    if node.operator == "Resize" and operands[0] is not None:  # positions are computed in float32, too
        sizes = [size * max(operands[0].array.shape, default=1) for size in sizes]
    if any(size.shape != shape and size.size > 1 for size in sizes):
        sizes = [np.asarray(size.max(initial=0)) for size in sizes]
    return np.asarray(sum(sizes, np.zeros(())))


def _is_real(operand: Operand) -> bool:
    return operand.quantization is not None or operand.array.dtype.kind == "f"


def _size(operand: Operand) -> Array:
    array, quantization = operand
    if quantization is None:
        return np.abs(array.astype(np.float64))
    integers = np.abs(array.astype(np.float64)) + np.abs(quantization.zero_points(array.shape))
    size: Array = integers * quantization.scales(array.shape)
    return size


def saturated(node: Node, operands: Sequence[Operand | None], output: Tensor, engine: str) -> Iterator[Array]:
    """One output of a node, as each saturating kernel of the engine computes it."""
    for kernel in KERNELS.get(engine.partition(":")[0], ()):
        with computed_by(kernel):
            yield _executed(node, operands, output)


def can_overflow(node: Node, operands: Sequence[Operand | None], output: Tensor, engine: str) -> Array:
    """Where an output depends on a sum with two products that together exceed int16; broadcasts against the output."""
    if engine.partition(":")[0] not in KERNELS:
        return np.array(False)
    noting = AnyPair()
    with computed_by(noting):
        shape = _executed(node, operands, output).shape
    if len(noting.found) == 1 and noting.found[0].shape == shape:
        return noting.found[0]
    return np.array(any(found.any() for found in noting.found))


def _executed(node: Node, operands: Sequence[Operand | None], output: Tensor) -> Array:
    # operators with sums have one output or, as recurrent layers, multiple similar ones
    return execute(node, operands, [output] * len(node.outputs))[node.outputs.index(output.name)]
