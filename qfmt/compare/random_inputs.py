"""Pseudo-random inputs: the same ones every time, in a range that the network was made for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import QfmtError
from ..model import DTYPES, Model, Node, Quantization, Tensor, numpy_dtype
from ..ops import OPERATORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SEED = 0

SIZES = (64, 224, 32, 28, 16, 8, 128, 256)
"""Tried one after the other for sizes that neither the file nor anybody else tells."""

CHANNELS = 3
"""For the second dimension of images and volumes, where it is not known."""

_FEATURES = {"Linear": 1, "DynamicLinear": 1, "MatMul": -2, "MatMulInteger": -2}
"""Operator → the dimension of its second input that is as long as the last one of its first."""

REDUCED = ("fbgemm", "x86")
"""Engines for which PyTorch calibrates to half the integers of a tensor, which is where inputs then lie."""


def shapes(
    model: Model, given: Mapping[str, Sequence[int]], examples: Sequence[Sequence[int] | None]
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes for the inputs, the likeliest first: as given; else the file's, open sizes as in the example with
    which the network was traced; else one of SIZES. An open first dimension is one sample, or that of the example,
    which a trace may have baked in."""
    if unknown := [name for name in given if name not in model.graph.inputs]:
        inputs = ", ".join(model.graph.inputs)
        raise QfmtError(f"the network has no input {unknown[0]!r}", hint=f"its inputs are {inputs}")
    tried = []
    for size, batch in [(size, 1) for size in SIZES] + [(SIZES[0], None)]:
        chosen: dict[str, tuple[int, ...]] = {}
        named: dict[str, int] = {}
        for index, name in enumerate(model.graph.inputs):
            example = examples[index] if index < len(examples) else None
            guessed = tuple(given[name]) if name in given else _shape(model, name, example, size, batch)
            stated = model.tensors[name].shape or (None,) * len(guessed)
            chosen[name] = tuple(  # sizes of one name are equal
                named.setdefault(word, number) if isinstance(word, str) else number
                for word, number in zip(stated, guessed, strict=True)
            )
        if chosen not in tried:
            tried.append(chosen)
            yield chosen


def _shape(model: Model, name: str, example: Sequence[int] | None, size: int, batch: int | None) -> tuple[int, ...]:
    stated = model.tensors[name].shape
    if stated is None:
        return tuple(example) if example is not None else (1, _features(model, name) or size)
    if example is None or len(example) != len(stated):
        example = _guessed(len(stated), size, _features(model, name))
    sizes = [batch, *example[1:]] if batch and len(stated) > 1 else example
    return tuple(size if isinstance(size, int) else guess for size, guess in zip(stated, sizes, strict=True))


def _guessed(rank: int, size: int, features: int | None) -> list[int]:
    """A vector of this size, or one sample: a square image, a cube of at most 16; the last size as a layer takes it."""
    side = min(size, 16) if rank > 4 else size
    channels = CHANNELS if rank > 3 else side
    sizes = [side] if rank == 1 else [1, channels, *[side] * rank][:rank]
    return [*sizes[:-1], features] if features else sizes


def _features(model: Model, name: str) -> int | None:
    """How many features a linear layer or a product takes that reads this input, quantized or not."""
    same = {name} | {
        node.outputs[0] for node in model.nodes if name in node.inputs and "QuantizeLinear" in node.operator
    }
    for node in model.nodes:
        axis = _FEATURES.get(node.operator.rpartition(".")[2])
        if axis is not None and node.inputs[0] in same:
            shape = model.tensors[node.inputs[1]].shape
            size = shape[axis] if shape and len(shape) > 1 else None
            return size if isinstance(size, int) else None
    return None


def draw(model: Model, shapes: Mapping[str, tuple[int, ...]], count: int, engine: str) -> Iterator[dict[str, Array]]:
    """`count` times inputs of these shapes."""
    generator = np.random.default_rng(SEED)
    for _ in range(count):
        yield {name: _array(model, model.tensors[name], shape, engine, generator) for name, shape in shapes.items()}


def _array(model: Model, tensor: Tensor, shape: tuple[int, ...], engine: str, generator: np.random.Generator) -> Array:
    kind = numpy_dtype(tensor.dtype)
    if tensor.quantization is not None:
        low, high = tensor.quantization.quant_min, tensor.quantization.quant_max
        top = low + (high - low) // 2 if engine in REDUCED else high
        return np.asarray(generator.integers(low, top, shape, endpoint=True), kind)
    if DTYPES[tensor.dtype].kind != "f":
        return np.asarray(_indices(model, tensor.name, shape, generator), kind)
    middle, spread = _expected(model, tensor.name, engine)
    return np.asarray(middle + spread * generator.standard_normal(shape), kind)


def _expected(model: Model, name: str, engine: str) -> tuple[float, float]:
    """Mean and standard deviation: two of these either way fill the range that the input's quantizer was calibrated
    for. Standard normal where the input is not quantized at once."""
    same = {name}
    for node in model.nodes:
        quantization = model.tensors[node.outputs[0]].quantization
        if node.operator == "Cast" and node.inputs[0] in same:
            same.add(node.outputs[0])
        if node.operator == "QuantizeLinear" and node.inputs[0] in same and quantization is not None:
            low, high = _calibrated(quantization, engine)
            return (low + high) / 2, (high - low) / 4
    return 0.0, 1.0


def _calibrated(quantization: Quantization, engine: str) -> tuple[float, float]:
    low, high = quantization.quant_min, quantization.quant_max
    top = low + (high - low) // 2 if engine in REDUCED else high
    scale, zero_point = quantization.scale[0], quantization.zero_point[0]
    return (low - zero_point) * scale, (top - zero_point) * scale


def _indices(model: Model, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Rows of the table that they choose from, starts of bags that hold one each; else zeros and ones."""
    for node in model.nodes:
        if name not in node.inputs[1:]:
            continue
        index, table = node.inputs.index(name, 1), model.tensors[node.inputs[0]]
        if _is_offsets(node, index):
            return np.arange(prod(shape)).reshape(shape)
        if table.is_constant and table.shape and isinstance(table.shape[0], int):
            return generator.integers(0, table.shape[0], shape)
    return generator.integers(0, 2, shape)


def _is_offsets(node: Node, index: int) -> bool:
    operator = OPERATORS.get(node.operator)
    return operator is not None and [parameter.name for parameter in operator.inputs][index : index + 1] == ["offsets"]
