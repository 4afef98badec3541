"""Small networks, named tensor by tensor, and the numbers that go into them: the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from qfmt.interpreter import trace
from qfmt.model import DTYPES, Graph, Model, Node, Proof, Quantization, Tensor, numpy_dtype
from qfmt.ops import OPERATORS

Array = np.ndarray[Any, Any]

USUAL = ("mixed", "zero", "least", "greatest")
"""The test vectors of a case that does not name its own: numbers of every size, those that stand for 0, both ends."""


class Case(NamedTuple):
    """A file of the suite: what it is about, and the model in it, with its test vectors; other bytes that say it; the
    size of its shards, if it has any."""

    name: str
    about: str
    model: Model
    rewrite: Callable[[bytes], bytes] | None = None
    shard_size: int | None = None


def numbers(seed: int, shape: Sequence[int], low: int, high: int) -> Array:
    """Pseudo-random integers in [low, high], by a generator that no library can change (Knuth's MMIX)."""
    state, found = seed * 2654435761 + 1, []
    for _ in range(prod(shape)):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        found.append(low + (state >> 33) % (high - low + 1))
    return np.array(found, np.int64).reshape(shape)


def grid(
    scale: float, zero_point: int, dtype: str = "uint8", low: int | None = None, high: int | None = None
) -> Quantization:
    """Per tensor, in float32; [low, high] is the range of the type where it is not said."""
    kind = DTYPES[dtype]
    limits = kind.minimum if low is None else low, kind.maximum if high is None else high
    return Quantization.of((float(np.float32(scale)),), (zero_point,), *limits)


def channels(
    scales: Sequence[float], zero_points: int | Sequence[int], axis: int, dtype: str = "int8", low: int | None = None
) -> Quantization:
    """One scale for each slice along an axis."""
    points = (zero_points,) * len(scales) if isinstance(zero_points, int) else tuple(zero_points)
    kind = DTYPES[dtype]
    limits = kind.minimum if low is None else low, kind.maximum
    return Quantization.of(tuple(float(np.float32(scale)) for scale in scales), points, *limits, axis)


class Network:
    """A graph in the making. What a node outputs gets the shape that it has in the first test vector."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def input(self, name: str, dtype: str, shape: Sequence[int], quantization: Quantization | None = None) -> str:
        self.tensors[name] = Tensor(name, dtype, tuple(shape), None, quantization)
        self.inputs.append(name)
        return name

    def constant(self, name: str, values: Any, dtype: str, quantization: Quantization | None = None) -> str:
        array = np.asarray(values)
        kept = (
            array.astype(np.int64)
            if DTYPES[dtype].bits < 8 and DTYPES[dtype].is_integer
            else array.astype(numpy_dtype(dtype))
        )
        self.tensors[name] = Tensor.constant(name, kept, quantization, dtype=dtype)
        return name

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str | Sequence[str],
        dtype: str,
        quantization: Quantization | None = None,
        rule: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node; the result is the name of its first output."""
        outputs = [output] if isinstance(output, str) else list(output)
        for name in outputs:
            self.tensors[name] = Tensor(name, dtype, None, None, quantization)
        known = OPERATORS[operator]
        complete = known.complete(attributes)
        node = Node(operator, tuple(inputs), tuple(outputs), complete, outputs[0], known.version, rule)
        self.nodes.append(node)
        return outputs[0]

    def prove(self, low: int, high: int) -> None:
        """The least and the greatest sum that the last node requantizes."""
        self.nodes[-1] = replace(self.nodes[-1], proof=Proof((low,), (high,)))

    def case(
        self,
        name: str,
        about: str,
        *inputs: Mapping[str, Any],
        seed: int = 1,
        outputs: Sequence[str] | None = None,
        vectors: Sequence[str] = (),
        kinds: Sequence[str] = USUAL,
        digests: bool = False,
    ) -> Case:
        """The network with its test vectors: `inputs`, or else numbers of these kinds."""
        last = self.nodes[-1].outputs if outputs is None else tuple(outputs)
        graph = Graph(tuple(self.inputs), tuple(last), tuple(self.nodes), self.tensors, name)
        model = Model(graph, "qfmt conformance suite", metadata={"about": about})
        given = [self._typed(each) for each in inputs] or [self.values(kind, seed) for kind in kinds]
        names = vectors or (kinds if not inputs else [f"vector {index}" for index in range(len(given))])
        model = replace(model, graph=replace(graph, tensors=self._sized(model, given[0])))
        return Case(name, about, model.with_vectors(*given, names=names, digests=digests))

    def values(self, kind: str, seed: int) -> dict[str, Array]:
        """Something for each input: of every size, the least that it takes, the greatest, or what stands for zero."""
        found = {}
        for index, name in enumerate(self.inputs):
            tensor = self.tensors[name]
            low, high = limits(tensor)
            zero = 0 if tensor.quantization is None else int(tensor.quantization.zero_point[0])
            shape = tuple(size for size in tensor.shape or () if isinstance(size, int))
            if kind == "mixed":
                array = numbers(seed * 31 + index, shape, low, high)
            else:
                array = np.full(shape, {"least": low, "greatest": high, "zero": zero}[kind])
            found[name] = array.astype(numpy_dtype(tensor.dtype))
        return found

    def _typed(self, given: Mapping[str, Any]) -> dict[str, Array]:
        return {name: np.asarray(array).astype(numpy_dtype(self.tensors[name].dtype)) for name, array in given.items()}

    def _sized(self, model: Model, given: Mapping[str, Array]) -> dict[str, Tensor]:
        """The tensors, those that are computed with the shapes that they have in this run."""
        values: dict[str, Array] = {}
        tensors = dict(self.tensors)
        for node in trace(model, given, values):
            for name in node.outputs:
                tensors[name] = replace(tensors[name], shape=values[name].shape)
        return tensors


def limits(tensor: Tensor) -> tuple[int, int]:
    if tensor.quantization is not None:
        return tensor.quantization.quant_min, tensor.quantization.quant_max
    return DTYPES[tensor.dtype].minimum, DTYPES[tensor.dtype].maximum
