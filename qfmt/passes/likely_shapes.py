"""Likely shapes of inputs with open sizes: those of the trace, of the first layer, or of typical images.

Code that needs unstated sizes tries these, or names them in a hint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..graph import MAXIMUM_RANK
from ..model import Dimension, Model
from ..notation import in_shell, is_size_name
from ..ops import known
from ..ops.accumulation import input_size

EXAMPLES = "example_shapes"
"""Key of `source`: the shapes that the network was traced with, by input, as JSON."""

IMAGE = 224
"""Height and width of images of CHANNELS channels, which most networks for them were trained with."""

SIZE = 64
"""Any other unknown size."""

CHANNELS = 3
"""The second dimension of images and volumes, where it is not known."""

VOLUME = 16
"""Each side of a volume is at most this."""

_PASSED_ON = ("QuantizeLinear", "DynamicQuantizeLinear", "Cast", "Identity")


class Taken(NamedTuple):
    """The input shape of the first layer: its number of dimensions (None: any), and the size along `axis`."""

    rank: int | None
    axis: int
    size: int


def likely_shapes(
    model: Model, size: int | None = None, examples: Mapping[str, Sequence[int]] | None = None
) -> dict[str, tuple[int, ...]]:
    """The shape of each input: as stated, else of its example (default: of its trace), else guessed, with `size` for
    unknown sizes (default: IMAGE for images, else SIZE). An open first dimension is 1, except for a vector.
    """
    told, all_taken, shapes = {**example_shapes(model), **(examples or {})}, _taken(model), {}
    for name in model.graph.inputs:
        stated, example, taken = model.tensors[name].shape, told.get(name), all_taken.get(name)
        if stated is None:
            rank = len(example) if example is not None else (taken and taken.rank) or 2
            stated = (None,) * rank
        shapes[name] = filled(stated, example, size, taken)
    return shapes


def filled(
    stated: Sequence[Dimension],
    example: Sequence[int] | None = None,
    size: int | None = None,
    taken: Taken | None = None,
) -> tuple[int, ...]:
    """A shape with numbers for its open sizes; see `likely_shapes`."""
    if example is not None and len(example) == len(stated):
        guesses = [1, *example[1:]] if len(stated) > 1 else list(example)
    else:
        guesses = _guessed(stated, size, taken)
    return tuple(own if isinstance(own, int) else guess for own, guess in zip(stated, guesses, strict=True))


def _guessed(stated: Sequence[Dimension], size: int | None, taken: Taken | None) -> list[int]:
    rank = len(stated)
    if rank == 0:
        return []
    sizes = [1, *[SIZE if size is None else size] * (rank - 1)]
    if rank == 1:
        sizes = [SIZE if size is None else size]
    elif rank > 3:
        channels = taken.size if taken and taken.axis == 1 else CHANNELS
        channels = own if isinstance(own := stated[1], int) else channels
        if size is None:
            size = IMAGE if rank == 4 and channels == CHANNELS else SIZE
        sizes = [1, channels, *[size if rank == 4 else min(size, VOLUME)] * (rank - 2)]
    if taken and (taken.rank in (None, rank)):
        sizes[taken.axis] = taken.size
    return sizes


def _taken(model: Model) -> dict[str, Taken]:
    """The input shapes of the convolutions, linear layers or products that read the inputs, quantized or not."""
    found: dict[str, Taken] = {}
    inputs = {name: name for name in model.graph.inputs}
    """Tensor → the input that it is equal to, but for its type."""
    for node in model.nodes:
        name = inputs.get(node.inputs[0], "") if node.inputs else ""
        if not name or name in found:
            continue
        if node.operator.rpartition(".")[2] in _PASSED_ON:
            inputs[node.outputs[0]] = name
            continue
        entry = known(node)
        weight = model.tensors[node.inputs[1]].shape if entry and entry.weights and any(node.inputs[1:2]) else None
        sizes = [size for size in weight or () if isinstance(size, int)]
        if entry is not None and weight is not None and len(sizes) >= max(2, len(weight)):
            rank, axis = (len(sizes), 1) if "kernel_shape" in entry.attributes else (None, -1)
            found[name] = Taken(rank, axis, input_size(node, sizes))
    return found


def example_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """The shapes that the network was traced with, by input, as far as its source states them."""
    try:
        told = json.loads(model.source.get(EXAMPLES, "{}"))
        return {
            name: tuple(sizes)
            for name, sizes in told.items()
            if isinstance(sizes, list) and len(sizes) <= MAXIMUM_RANK and all(map(_is_size, sizes))
        }
    except (ValueError, AttributeError, RecursionError):  # a file of another program
        return {}


def _is_size(size: object) -> bool:
    return isinstance(size, int) and 0 <= size < 1 << 63


def shape_options(model: Model, first: str = "") -> str:
    """`--input-shape` for every input with open sizes besides the first dimension, with likely sizes that work.

    `first` is the text for an open first dimension; "": its name.
    """
    options = []
    for name, likely in likely_shapes(model).items():
        stated = model.tensors[name].shape
        if stated is not None and all(isinstance(size, int) for size in stated[1:]):
            continue
        sizes = [str(size) for size in likely]
        if len(sizes) > 1 and not (stated and isinstance(stated[0], int)):
            named = str((stated and stated[0]) or "")
            sizes[0] = first or (named if is_size_name(named) else "N")
        options.append(in_shell("--input-shape", f"{name}={','.join(sizes)}"))
    return " ".join(options)
