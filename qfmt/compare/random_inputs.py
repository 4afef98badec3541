"""Pseudo-random inputs: the same ones every time, in a range that the network was made for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import QfmtError
from ..model import DTYPES, Model, Quantization, Tensor, numpy_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SEED = 0

SIZES = (64, 224, 32, 28, 16, 8, 128, 256)
"""Tried one after the other for sizes that neither the file nor anybody else tells."""

CHANNELS = 3
"""For the second dimension of images and volumes, where it is not known."""

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
        chosen = {}
        for index, name in enumerate(model.graph.inputs):
            example = examples[index] if index < len(examples) else None
            chosen[name] = tuple(given[name]) if name in given else _shape(model.tensors[name], example, size, batch)
        if chosen not in tried:
            tried.append(chosen)
            yield chosen


def _shape(tensor: Tensor, example: Sequence[int] | None, size: int, batch: int | None) -> tuple[int, ...]:
    if tensor.shape is None:
        if example is None:
            raise QfmtError("the rank of an input is not known", where=tensor.name, hint="give --input-shape")
        return tuple(example)
    rank = len(tensor.shape)
    if example is None or len(example) != rank:
        example = (1, CHANNELS if rank > 3 else size, *[min(size, 16) if rank > 4 else size] * rank)
    open_ = (batch or example[0], *example[1:]) if rank else ()
    return tuple(size if isinstance(size, int) else open_[axis] for axis, size in enumerate(tensor.shape))


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
        return generator.integers(low, top, shape, endpoint=True).astype(kind)
    if DTYPES[tensor.dtype].kind != "f":
        return generator.integers(0, _rows(model, tensor.name), shape).astype(kind)
    middle, spread = _expected(model, tensor.name, engine)
    return (middle + spread * generator.standard_normal(shape)).astype(kind)


def _expected(model: Model, name: str, engine: str) -> tuple[float, float]:
    """Mean and standard deviation: two of these either way fill the range that the input's quantizer was calibrated
    for. Standard normal where the input is not quantized at once."""
    for node in model.nodes:
        quantization = model.tensors[node.outputs[0]].quantization
        if node.operator == "QuantizeLinear" and node.inputs[0] == name and quantization is not None:
            low, high = _calibrated(quantization, engine)
            return (low + high) / 2, (high - low) / 4
    return 0.0, 1.0


def _calibrated(quantization: Quantization, engine: str) -> tuple[float, float]:
    low, high = quantization.quant_min, quantization.quant_max
    top = low + (high - low) // 2 if engine in REDUCED else high
    scale, zero_point = quantization.scale[0], quantization.zero_point[0]
    return (low - zero_point) * scale, (top - zero_point) * scale


def _rows(model: Model, name: str) -> int:
    """How many rows the table has that integers of this input choose from; 2 if they choose from none."""
    for node in model.nodes:
        if name in node.inputs:
            table = next(
                (model.tensors[each] for each in node.inputs if each and model.tensors[each].is_constant), None
            )
            if table is not None and table.shape and isinstance(table.shape[0], int):
                return table.shape[0]
    return 2
