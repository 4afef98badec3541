"""Find products that overflow 16 bits in kernels of processors without VNNI, from the file alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..budget import Budget
from ..model import DTYPES, Model, Node, Tensor
from ..ops import OPERATORS, known
from ..ops.accumulation import range_met, reach_of_sums, terms_of
from ..ops.overflow import INT16, PairSums, farthest
from ..rules import require_sound

TAPS_FIRST, TAPS_OF_FOURS, CHANNELS_FIRST = PairSums(), PairSums(fill=4), PairSums(channels_last=False)
HALVES = PairSums(fill=4, halves=range(257, 769))

KERNELS: Mapping[str, tuple[PairSums, ...]] = {
    "fbgemm": (TAPS_FIRST,),
    "x86": (TAPS_FIRST, TAPS_OF_FOURS),
    "onednn": (TAPS_OF_FOURS, HALVES),
    "onnxruntime": (TAPS_FIRST, CHANNELS_FIRST),
}
"""Engine → its kernels that sum pairs in int16 if the processor has no VNNI. Measured by recomputation, bit by
bit (docs/spec/conversions.md, "Kernels that saturate"). MLAS of ONNX Runtime multiplies in the order of fbgemm in
QLinearConv and MatMulInteger, and in ConvInteger channel by channel. Engines that are not listed, such as qnnpack,
have none."""

INTEGER_CONVOLUTIONS = ("ConvInteger", "qfmt.DynamicConv")
"""ONNX Runtime computes convolutions that output their sums as ConvInteger, which clips int8 by uint8."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """The range of one product in an engine's kernel; if it has multiple kernels, in the one with the largest.

    `largest` is the largest magnitude of a sum of two neighbouring products that the weights and the range of the input
    allow. `channels` output channels have one that exceeds 16 bits. No pair does as long as stored activations, and the
    zeros of padding, are at most `harmless`.
    """

    largest: int
    channels: int
    harmless: int


@dataclass(frozen=True, slots=True)
class Hazard:
    """One product of a network, with constant weights, and what can overflow in it.

    `largest_sum` is the largest magnitude of the accumulator, without a bias, over its `channels` output channels, or
    those of all matrices of a MatMul: it should stay below 2³¹. `engines` has those whose kernels can sum pairs in 16
    bits for products of these types. `everywhere`: it can overflow on processors with VNNI, too, in fbgemm's kernel for
    depthwise convolutions.
    """

    node: str
    operator: str
    weight: str
    channels: int
    largest_sum: int
    engines: Mapping[str, Overflow]
    everywhere: bool

    @property
    def can_saturate(self) -> bool:
        return any(found.channels for found in self.engines.values())


def hazards(model: Model) -> Iterator[Hazard]:
    """For every product of integers of up to 16 bits with constant weights, in the order of the graph.

    Raises ValidityError for a graph that breaks rules, and BudgetError if too many products share one weight.
    """
    return (hazard for _, hazard in placed(model))


def placed(model: Model) -> Iterator[tuple[int, Hazard]]:
    """The same with the place of the node: names need not be unique."""
    require_sound(model)
    for place, node in enumerate(_read(model)):
        yield from ((place, hazard) for hazard in hazards_of(node, model.tensors))


def _read(model: Model) -> Iterator[Node]:
    """The nodes; each is charged for its constants, which many may share."""
    budget = Budget.of(model, "finding overflows in a network of")
    for node in model.nodes:
        budget.visit(node, model.tensors)
        yield node


def hazards_of(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[Hazard]:
    """Those of one node of a sound graph."""
    for product in _products(node, tensors):
        yield _hazard(node, *product)


class Count(NamedTuple):
    """Of `total` products, `many` can overflow 16 bits; of these `everywhere` on every processor."""

    many: int
    everywhere: int
    total: int


def count(model: Model, engine: str = "") -> Count:
    """The products of a sound graph, and those that can overflow, in that engine or in any.

    The same as counting `hazards`, in a third of the time: the first kernel that can overflow decides. Raises
    BudgetError, too.
    """
    found = [_can_overflow(node, engine, *each) for node in _read(model) for each in _products(node, model.tensors)]
    return Count(sum(can for can, _ in found), sum(everywhere for _, everywhere in found), len(found))


def _products(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Stored]]:
    """Every constant weight that a node multiplies, with the integers that it multiplies it with."""
    entry = known(node)
    for index in entry.weights if entry else ():
        x, w = tensors[node.inputs[0]], tensors[node.inputs[index]]
        if w.is_constant and _is_narrow(w) and (stored := _stored(node, x)) is not None:
            yield w, stored


def _hazard(node: Node, w: Tensor, x: Stored) -> Hazard:
    terms, low, high = terms_of(node, w.array), x.low, x.high
    engines = _overflows(terms, _engines(node, x.dtype, w.dtype, terms), low, high, _offset(x, w))
    return Hazard(
        node=node.label,
        operator=node.operator,
        weight=w.name,
        channels=len(terms),
        largest_sum=max(_largest_sum(_centred(node, w, terms), low - zero, high - zero) for zero in x.zero_points),
        engines=engines,
        everywhere=_clips_everywhere(node, terms, [name for name, found in engines.items() if found.channels]),
    )


def _can_overflow(node: Node, engine: str, w: Tensor, x: Stored) -> tuple[bool, bool]:
    """Whether it can, and on every processor."""
    terms, offset = terms_of(node, w.array), _offset(x, w)
    engines = [name for name in _engines(node, x.dtype, w.dtype, terms) if engine in ("", name)]
    kernels = dict.fromkeys(kernel for name in engines for kernel in KERNELS[name])
    ranges = x.low + offset, x.high + offset
    can = any((farthest(kernel.pairs(terms), *ranges) > INT16.max).any() for kernel in kernels)
    return can, can and _clips_everywhere(node, terms, engines)


def _clips_everywhere(node: Node, terms: Array, engines: Iterable[str]) -> bool:
    """If these engines clip it: fbgemm's kernel for depthwise convolutions does so on every processor."""
    is_convolution = node.operator in ("Conv", "qfmt.DynamicConv")
    return "fbgemm" in engines and is_convolution and terms.shape[1] == 1 and node.int("group") > 1


def _offset(x: Stored, w: Tensor) -> int:
    """What is added to int8 inputs, which become uint8."""
    return 128 if x.dtype == w.dtype else 0


class Stored(NamedTuple):
    """The integers that a product gets: their type, smallest, largest, and zero points, the extremes if not known."""

    dtype: str
    low: int
    high: int
    zero_points: tuple[int, ...]


def _stored(node: Node, x: Tensor) -> Stored | None:
    """What a node reads from a tensor; None if these are no integers of up to 16 bits."""
    if "reduce_range" in node.attributes:  # quantized at run time
        high = 127 if node.attributes["reduce_range"] else 255
        return Stored("uint8", 0, high, (0, high))
    if not _is_narrow(x):
        return None
    kind, grid = DTYPES[x.dtype], x.quantization
    if grid is None or not grid.zero_point:
        return Stored(x.dtype, kind.minimum, kind.maximum, (kind.minimum, kind.maximum))
    zero = int(grid.zero_point[0])
    return Stored(x.dtype, *range_met(node, grid.quant_min, grid.quant_max, zero), (zero,))


def _is_narrow(tensor: Tensor) -> bool:
    kind = DTYPES[tensor.dtype]
    return kind.is_integer and kind.bits <= 16


def _engines(node: Node, dtype: str, weight: str, terms: Array) -> list[str]:
    """Engines whose kernels sum pairs of products of such inputs. The depthwise QLinearConv of ONNX Runtime is exact.

    int8 inputs become uint8 where ONNX Runtime makes QLinearConv, QLinearMatMul or QGemm of Q and DQ around operators.
    """
    gives_sums = node.rule in OPERATORS[node.operator].sum_rules
    in_onnx = node.operator in INTEGER_CONVOLUTIONS or (node.operator == "Conv" and gives_sums)
    is_depthwise = node.operator == "Conv" and terms.shape[:2] == (node.attributes["group"], 1)
    if (dtype, weight) == ("int8", "uint8"):
        return ["onnxruntime"] if in_onnx else []
    if (dtype, weight) == ("int8", "int8"):
        return ["onnxruntime"] if node.rule and not gives_sums and not is_depthwise else []
    if (dtype, weight) != ("uint8", "int8"):
        return []
    return [name for name in KERNELS if name != "onnxruntime" or not (in_onnx or is_depthwise)]


def _overflows(terms: Array, engines: Iterable[str], low: int, high: int, offset: int) -> dict[str, Overflow]:
    """The sums of pairs of weights [M, K, taps] times low..high plus `offset`, in each engine's worst kernel."""
    order = {kernel: kernel.order(*terms.shape[1:]) for engine in engines for kernel in KERNELS[engine]}
    found: dict[bytes, Overflow] = {}
    low, high = low + offset, high + offset
    for kernel in {pairs: kernel for kernel, pairs in order.items()}.values():
        pairs = kernel.pairs(terms)
        largest, unit = farthest(pairs, low, high), int(farthest(pairs, -1 if low < 0 else 0, 1).max(initial=0))
        harmless = (min(INT16.max // unit, high) if unit else high) - offset
        found[order[kernel]] = Overflow(int(largest.max(initial=0)), int((largest > INT16.max).sum()), harmless)
    return {
        engine: max((found[order[each]] for each in KERNELS[engine]), key=attrgetter("largest", "channels"))
        for engine in engines
    }


def _largest_sum(terms: Array, low: int, high: int) -> int:
    """The largest |sum| of integers of low..high times weights [M, K, taps]."""
    return int(np.abs(reach_of_sums(terms.reshape(len(terms), prod(terms.shape[1:])), low, high)).max(initial=0))


def _centred(node: Node, w: Tensor, terms: Array) -> Array:
    """The weights less their zero points."""
    grid = w.quantization
    if grid is None or not any(grid.zero_point):
        return terms
    return terms_of(node, w.array.astype(np.int32) - np.asarray(grid.zero_points(w.array.shape), np.int32))
