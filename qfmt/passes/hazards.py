"""Which products of a network overflow 16 bits in kernels of processors without VNNI, from the file alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..model import DTYPES, Model, Node, Quantization, Tensor
from ..ops.overflow import INT16, PairSums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

TAPS_FIRST, TAPS_OF_FOURS, CHANNELS_FIRST = PairSums(), PairSums(fill=4), PairSums(channels_last=False)
HALVES = PairSums(halves=range(257, 769))

KERNELS: Mapping[str, tuple[PairSums, ...]] = {
    "fbgemm": (TAPS_FIRST,),
    "x86": (TAPS_FIRST, TAPS_OF_FOURS),
    "onednn": (TAPS_OF_FOURS, HALVES),
    "onnxruntime": (TAPS_FIRST, CHANNELS_FIRST),
}
"""Engine → its kernels that add up pairs in int16, where the processor has no VNNI. Measured by recomputation, bit by
bit (spec.md, "Requantize rules"). MLAS of ONNX Runtime multiplies in the order of fbgemm in QLinearConv and
MatMulInteger, and in ConvInteger channel by channel. Engines that are not here, as qnnpack, have none."""

WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "Conv": (1,), "ConvTranspose": (1,), "qfmt.Linear": (1,), "Gemm": (1,), "MatMul": (1,),
    "qfmt.DynamicConv": (1,), "qfmt.DynamicConvTranspose": (1,), "qfmt.DynamicLinear": (1,),
    "qfmt.LSTM": (1, 2), "qfmt.GRU": (1, 2), "qfmt.LSTMCell": (1, 2), "qfmt.GRUCell": (1, 2), "qfmt.RNNCell": (1, 2),
}  # fmt: skip
"""Operator → its inputs that are weights of a product with an input of 8 bits."""


@dataclass(frozen=True, slots=True)
class Hazard:
    """One product of a network, by the engine's kernel that reaches farthest.

    `largest` is the largest magnitude of the sum of two neighbouring products that the weights and the range of the
    input allow; it overflows beyond 32767. `channels` of `total` output channels have such a pair. None can as long as
    activations, as stored, are at most `harmless`.
    """

    node: str
    operator: str
    weight: str
    engine: str
    largest: int
    channels: int
    total: int
    harmless: int

    @property
    def can_saturate(self) -> bool:
        return self.channels > 0


def hazards(model: Model) -> Iterator[Hazard]:
    """For every product of uint8 with constant int8 weights, and each engine, in the order of the graph.

    Products of other types are exact: qfmt knows no kernel that overflows on them.
    """
    for node in model.nodes:
        for index in WEIGHTS.get(node.operator, ()):
            weight = model.tensors.get(node.inputs[index]) if index < len(node.inputs) else None
            span = _range(node, model.tensors.get(node.inputs[0]))
            if weight is None or span is None or not weight.is_constant or weight.dtype != "int8":
                continue
            terms = _terms(node, weight.array)
            for engine, kernels in KERNELS.items():
                kernel = max(kernels, key=lambda each: int(each.reach(terms, *span).max(initial=0)))
                reach, unit = kernel.reach(terms, *span), int(kernel.reach(terms, 0, 1).max(initial=0))
                yield Hazard(
                    node=node.label,
                    operator=node.operator,
                    weight=weight.name,
                    engine=engine,
                    largest=int(reach.max(initial=0)),
                    channels=int((reach > INT16.max).sum()),
                    total=len(reach),
                    harmless=min(INT16.max // unit, span[1]) if unit else span[1],
                )


def _range(node: Node, x: Tensor | None) -> tuple[int, int] | None:
    """The integers that an input may hold as stored; None unless they are uint8."""
    if "reduce_range" in node.attributes:  # quantized while the network runs
        return 0, 127 if node.attributes["reduce_range"] else 255
    if x is None or x.dtype != "uint8":
        return None
    grid: Quantization | None = x.quantization
    kind = DTYPES[x.dtype]
    return (kind.minimum, kind.maximum) if grid is None else (grid.quant_min, grid.quant_max)


def _terms(node: Node, w: Array) -> Array:
    """[output channels, channels of the group, taps]"""
    if "group" not in node.attributes:
        rows = w if node.operator not in ("MatMul", "Gemm") or node.attributes.get("transB") else w.swapaxes(-1, -2)
        return rows.reshape(-1, rows.shape[-1], 1)
    if node.operator.endswith("Transpose"):
        group: Any = node.attributes["group"]
        w = w.reshape(group, -1, *w.shape[1:]).swapaxes(1, 2).reshape(-1, w.shape[0] // group, *w.shape[2:])
    return w.reshape(*w.shape[:2], -1)
