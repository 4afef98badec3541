"""Pseudo-random inputs: the same ones every time, in the range that the network was calibrated for."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..backstop import paused
from ..errors import QfmtError, RunError
from ..memory import limit_for
from ..model import DTYPES, Graph, Model, Node, Quantization, Tensor, numpy_dtype, static_shape
from ..ops import Trait, has, known
from ..ops.activation import torch_output
from ..ops.quantization import is_static
from ..ops.registry import COUNTING
from ..passes.likely_shapes import likely_shapes
from ..passes.sizes import with_input_shapes
from ..rules import require_sound

SEED = 0

SIZES = (64, 224, 32, 28, 16, 8, 128, 256)
"""Tried in turn for sizes that neither the file nor the user states."""

MOST = 1 << 25
"""The most elements of a drawn input, unless the user gives its shape: a file may state any."""

ELEMENT = 8
"""Bytes of an element while it is drawn."""

MOST_LINES, MOST_CHANNELS = 100, 10_000
"""How many tensors are looked at for the range of an input, and how many constants for each."""

CLAMPS = ("Clip", "Relu")
IN_RANGE = (*CLAMPS, "AveragePool", "MaxPool", "Pad", "Resize")
"""Operators, besides those that move elements, whose results are mostly in the range of their input."""

REDUCED = ("fbgemm", "x86")
"""Engines for which PyTorch usually calibrates to half the integers of a tensor; inputs are then in that half."""


def shapes(
    model: Model, given: Mapping[str, Sequence[int]], examples: Sequence[Sequence[int] | None]
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes for the inputs, most likely first. A shape is the given one, else that of the file. Open sizes are
    those of the example with which the network was traced, else those of `likely_shapes`, else one of SIZES. An open
    first dimension is 1 or, as a last resort, that of the example, which a trace may have hard-coded. Of multiple
    inputs it is that of the example first: their sizes belong together."""
    known_names = {*model.graph.inputs}
    if unknown := [name for name in given if name not in known_names]:
        inputs = ", ".join(model.graph.inputs)
        raise QfmtError(f"the network has no input {unknown[0]!r}", hint=f"its inputs are {inputs}")
    told = {name: each for name, each in zip(model.graph.inputs, examples, strict=False) if each is not None}
    asked = {name: tuple(sizes) for name, sizes in given.items()}
    guesses = [likely_shapes(model, size, told) for size in (None, *SIZES)]
    batched = {name: _batched(shape, told.get(name)) for name, shape in guesses[0].items()}
    guesses.insert(0 if len(model.graph.inputs) > 1 else len(guesses), batched)
    tried = []
    for guessed in guesses:
        if (chosen := _same_sizes(model, guessed, asked)) not in tried:
            tried.append(chosen)
            yield _checked(chosen, given)


def as_taken(source: Model, ends: Mapping[str, str], file: Model) -> Model:
    """The source, completed with what only the file states about its inputs: sizes or their names, and the ranges of
    integers, because the file takes no others. `ends` maps inputs of the source to inputs of the file.

    A size of 0 is not taken: nothing would be computed, and nothing compared.
    """
    tensors = dict(source.graph.tensors)
    for origin, name in ends.items():
        if origin not in source.graph.inputs:
            continue
        own, other = tensors[origin], file.tensors[name]
        if own.quantization is None and own.dtype == other.dtype:
            tensors[origin] = own = replace(own, quantization=other.quantization)
        mine, theirs = own.shape, other.shape
        if theirs is None or (mine is not None and len(mine) != len(theirs)):
            continue
        pairs = zip(mine or (None,) * len(theirs), theirs, strict=True)
        shape = tuple(stated if stated and not isinstance(size, int) else size for size, stated in pairs)
        tensors[origin] = replace(own, shape=shape)
    return source.replace(graph=replace(source.graph, tensors=tensors))


def _checked(chosen: dict[str, tuple[int, ...]], given: Container[str]) -> dict[str, tuple[int, ...]]:
    """These shapes; RunError if one is too large to draw."""
    for name, shape in chosen.items():
        if prod(shape) > (limit_for(0) // ELEMENT if name in given else MOST):
            hint = "set smaller sizes" if name in given else "give it with --input, or set its sizes with --input-shape"
            raise RunError(f"an input of shape {list(shape)} is too large", where=name, hint=hint)
    return chosen


def _batched(shape: tuple[int, ...], example: Sequence[int] | None) -> tuple[int, ...]:
    return shape if example is None or len(example) != len(shape) else (*example[:1], *shape[1:])


def _same_sizes(
    model: Model, guessed: Mapping[str, tuple[int, ...]], asked: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Sizes of one name are equal: the first one determines the others, of those that the user gave if there are some.
    RunError if the user gave two."""
    chosen: dict[str, tuple[int, ...]] = {}
    named: dict[str, int] = {}
    for name in (*asked, *(name for name in model.graph.inputs if name not in asked)):
        wanted = asked.get(name, guessed[name])
        stated = model.tensors[name].shape or (None,) * len(wanted)
        if len(stated) != len(wanted):
            raise RunError(f"has {len(stated)} dimensions, not {len(wanted)}", where=name, hint="check --input-shape")
        pairs = zip(stated, wanted, strict=True)
        chosen[name] = tuple(named.setdefault(word, size) if isinstance(word, str) else size for word, size in pairs)
        if name in asked and chosen[name] != wanted:
            what = f"a size cannot be {list(wanted)} here and another one in an input with a size of the same name"
            raise RunError(what, where=name, hint="check --input-shape")
    return {name: chosen[name] for name in model.graph.inputs}


def draw(
    model: Model, shapes: Mapping[str, tuple[int, ...]], count: int, engine: str, form: Graph | None = None
) -> Iterator[dict[str, Array]]:
    """`count` sets of inputs of these shapes. Another `form` of the network may say which are offsets."""
    generator, readers = np.random.default_rng(SEED), model.graph.readers()
    engine = engine if engine in REDUCED and _is_calibrated_to_half(model) else ""
    forms = [(model.graph, readers), *([(form, form.readers())] if form else [])]
    offsets = _offsets_in(forms, shapes)
    ranges = {name: _calibrated(model, name, readers, engine) for name in shapes}
    drawn = [
        _Drawn(
            model.tensors[name],
            shape,
            ranges[name],
            _integers(model, name, readers, ranges[name]),
            offsets.get(name),
        )
        for name, shape in shapes.items()
    ]
    for _ in range(count):
        yield {each.tensor.name: each.array(generator, engine) for each in drawn}


class _Drawn(NamedTuple):
    """An input that is drawn: real numbers of the calibrated range, offsets of bags, or integers of a range."""

    tensor: Tensor
    shape: tuple[int, ...]
    calibrated: tuple[float, float] | None
    integers: tuple[int, int]
    offsets: Array | None

    def array(self, generator: np.random.Generator, engine: str) -> Array:
        kind, grid = numpy_dtype(self.tensor.dtype), self.tensor.quantization
        if grid is not None:
            return np.asarray(generator.integers(grid.quant_min, _top(grid, engine), self.shape, endpoint=True), kind)
        if self.offsets is not None and DTYPES[self.tensor.dtype].kind != "f":
            return np.asarray(self.offsets, kind)
        limits = DTYPES[self.tensor.dtype]
        if limits.kind != "f":
            integers = generator.integers(*self.integers, self.shape, endpoint=True)
            if self.integers == (limits.minimum, limits.maximum):
                flags = generator.integers(0, 1, self.shape, endpoint=True)  # it may be a mask
                integers = np.where(generator.random(self.shape) < 1 / 4, flags, integers)
            return np.asarray(integers, kind)
        values = generator.standard_normal(self.shape)
        if self.calibrated is not None:
            first, last = self.calibrated  # two standard deviations either way
            values = np.clip((first + last) / 2 + (last - first) / 4 * values, first, last)
        with np.errstate(over="ignore"):  # calibrated beyond the type
            return np.asarray(values, kind)


def with_random_vectors(model: Model, count: int, given: Mapping[str, Sequence[int]]) -> Model:
    """The model with `count` more test vectors: drawn inputs, and what the reference interpreter computes from them.

    Their names state the seed. Raises ValidityError for a graph that breaks rules, and what `Model.run` raises, if the
    network runs on none of the likely shapes.
    """
    require_sound(model)
    refused: RunError | None = None
    for chosen in shapes(model, given, ()):
        with paused():
            made = _tried(model, count, chosen)
        if not isinstance(made, RunError):
            return made
        refused = refused or made
    assert refused is not None
    raise refused


def _tried(model: Model, count: int, chosen: Mapping[str, tuple[int, ...]]) -> Model | RunError:
    names = [f"random {index} of seed {SEED}" for index in range(count)]
    try:
        return model.with_vectors(*draw(model, chosen, count, model.engine), names=names, digests=True)
    except RunError as error:
        return error


def _calibrated(
    model: Model, name: str, readers: Mapping[str, Sequence[Node]], engine: str
) -> tuple[float, float] | None:
    """The range that the quantizer of an input was calibrated for, also if the network first moves, casts or normalizes
    the input by constants; None if there is no quantizer."""
    lines = {name: (np.ones(1), np.zeros(1))}
    """Tensors that are a · x + b of the input x → a and b, per channel."""
    waiting, clamped = [name], set[str]()
    for each in waiting:
        a, b = lines[each]
        for node in filter(known, readers.get(each, ())):
            result = node.outputs[0]
            quantization = model.tensors[result].quantization
            if node.operator == "QuantizeLinear" and node.inputs[0] == each and quantization is not None:
                low, high = _widened(quantization, model.tensors[result].dtype, engine)
                scale, zero_point = quantization.scale[0], quantization.zero_point[0]
                with np.errstate(all="ignore"):
                    ends = [((end - zero_point) * scale - b) / a for end in (low, high)]
                more = np.ptp(ends) / 4 if each in clamped else 0.0  # clamps must act
                return (float(np.min(ends) - more), float(np.max(ends) + more)) if np.isfinite(ends).all() else None
            with np.errstate(all="ignore"):
                line = None if len(lines) > MOST_LINES or result in lines else _line(model, node, each, a, b)
            if line is not None and np.isfinite(line).all() and line[0].all():
                lines[result] = line[0], line[1]
                waiting.append(result)
                clamped |= {result} if each in clamped or node.operator in CLAMPS else set()
    return None


def _line(model: Model, node: Node, name: str, a: Array, b: Array) -> tuple[Array, Array] | None:
    """The a and b of what a node computes from the tensor `name`, which is a · x + b; None if it is no such line."""
    if node.operator == "Cast" or (node.inputs[0] == name and (has(node, Trait.MOVE) or node.operator in IN_RANGE)):
        return a, b
    if node.operator == "BatchNormalization" and node.inputs[0] == name:
        given = [model.tensors[other] for other in node.inputs[1:5]]
        if not all(each.is_constant for each in given) or not 0 < prod(static_shape(given[0])) <= MOST_CHANNELS:
            return None
        scale, bias, mean, var = (each.dequantize().astype(np.float64).reshape(-1) for each in given)
        epsilon = node.attributes["epsilon"]
        assert isinstance(epsilon, float)
        factor = scale / np.sqrt(var + epsilon)
        return (a * factor, (b - mean) * factor + bias) if a.size in (1, factor.size) else None
    others = [model.tensors[other] for other in node.inputs if other and other != name]
    if node.operator not in ("Add", "Sub", "Mul", "Div") or len(others) != 1 or not others[0].is_constant:
        return None
    count = prod(static_shape(others[0]))
    if not 0 < count <= MOST_CHANNELS or (1 not in (count, a.size) and count != a.size):
        return None
    c, is_first = others[0].dequantize().astype(np.float64).reshape(-1), node.inputs[0] == name
    match node.operator:
        case "Add":
            return a + 0 * c, b + c
        case "Sub":
            return (a + 0 * c, b - c) if is_first else (0 * c - a, c - b)
        case "Mul":
            return a * c, b * c
        case _:
            return (a / c, b / c) if is_first and c.all() else None


def _is_number(model: Model, name: str, readers: Mapping[str, Sequence[Node]]) -> bool:
    """Whether a network computes with the integers of an input, as with an image or sound: no conditions, indices or
    sizes are made of them."""
    read = _readings(model.graph, name, readers, computed=True)
    return name in readers and all(known(node) is not None and not _counts(node, each) for node, each in read)


def _readings(
    graph: Graph, name: str, readers: Mapping[str, Sequence[Node]], *, computed: bool = False
) -> Iterator[tuple[Node, str]]:
    """Each node that reads the integers of an input, and the tensor in which it does: also after casts and moves, and
    if asked, integers that are computed from them."""
    waiting, seen = [name], {name}
    for each in waiting:
        for node in readers.get(each, ()):
            yield node, each
            if (operator := known(node)) is None or _counts(node, each):
                continue
            moves = has(node, Trait.MOVE) or computed
            for index, result in enumerate(node.outputs):
                if not result or result in seen:
                    continue
                is_one = DTYPES[graph.tensors[result].dtype].kind != "f" and operator.followed(index) is not None
                if node.operator == "Cast" or (moves and is_one):
                    seen.add(result)
                    waiting.append(result)


def _counts(node: Node, name: str, what: Container[str] = COUNTING) -> bool:
    """Whether a node selects or counts elements by a tensor."""
    operator = known(node)
    parameters = zip(operator.inputs, node.inputs, strict=False) if operator is not None else ()
    return any(own == name and parameter.name in what for parameter, own in parameters)


def _is_calibrated_to_half(model: Model) -> bool:
    """Whether no zero point of a computed tensor of 8 bits is in the upper half, as none is that PyTorch calibrates to
    the lower one. A Tanh has its own."""
    for tensor in model.tensors.values():
        grid = tensor.quantization
        if tensor.data is None and grid is not None and grid.is_affine and DTYPES[tensor.dtype].bits == 8:
            half = grid.quant_min + (grid.quant_max - grid.quant_min + 1) // 2
            is_of_tanh = (grid.scale[0], grid.zero_point[0]) == torch_output("Tanh", tensor.dtype)
            if not is_of_tanh and max(grid.zero_point) >= half:
                return False
    return True


def _widened(grid: Quantization, dtype: str, engine: str) -> tuple[int, int]:
    """The integers that are drawn. Some are beyond a range that is narrower than that of the type: clamps must act."""
    more, limits = -(-(grid.quant_max - grid.quant_min) // 4), DTYPES[dtype]
    low, high = max(grid.quant_min - more, limits.minimum), min(grid.quant_max + more, limits.maximum)
    return low, low + (high - low) // 2 if engine in REDUCED and high == limits.maximum else high


def _top(grid: Quantization, engine: str) -> int:
    """The largest integer to draw."""
    low, high = grid.quant_min, grid.quant_max
    return low + (high - low) // 2 if engine in REDUCED else high


def _integers(
    model: Model, name: str, readers: Mapping[str, Sequence[Node]], calibrated: tuple[float, float] | None
) -> tuple[int, int]:
    """The smallest and the largest integer to draw for an input: all slices that every table has, if it selects from
    tables; else the calibrated range; else the whole type, if that has up to 16 bits and the network computes with the
    integers; else 0 and 1, as in a mask."""
    nodes = [node for node, each in _readings(model.graph, name, readers) if _counts(node, each)]
    tables = ((node, static_shape(table)) for node in nodes if (table := model.tensors[node.inputs[0]]).is_constant)
    counts = [sizes[node.int("axis", 0) % len(sizes)] for node, sizes in tables if sizes]
    limits = DTYPES[model.tensors[name].dtype]
    if counts or not limits.is_integer:
        return 0, max(min(counts, default=2) - 1, 0)
    if calibrated is not None:
        most = min(limits.maximum, (1 << 53) - 1)  # a double has all integers up to there
        low, high = np.clip(calibrated, max(limits.minimum, -most), most)
        return round(low), max(round(low), round(high))  # a mask may be calibrated to a little less than 1
    return (limits.minimum, limits.maximum) if limits.bits <= 16 and _is_number(model, name, readers) else (0, 1)


def _offsets_in(
    forms: Sequence[tuple[Graph, Mapping[str, Sequence[Node]]]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Array]:
    """The offsets of bags, for each input that a node of a graph reads as such. `forms`: graphs with their readers."""
    found: dict[str, Array] = {}
    for graph, readers in forms:
        read = ((name, *reading) for name in shapes for reading in _readings(graph, name, readers))
        bags = [(name, node) for name, node, each in read if _counts(node, each, ("offsets",))]
        tensors = _with_shapes(graph, shapes).tensors if bags else graph.tensors
        for name, node in bags:
            shape = tensors[node.inputs[1]].shape
            indices = shape if is_static(shape) else shapes[name]
            found.setdefault(name, _offsets(shapes[name], indices, bool(node.attributes.get("include_last_offset"))))
    return found


def _with_shapes(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph with the shapes that follow from these of its inputs; unchanged if they contradict it."""
    try:
        return with_input_shapes(graph, shapes)
    except QfmtError:
        return graph


def _offsets(shape: tuple[int, ...], indices: tuple[int, ...], include_last: bool) -> Array:
    """Where bags start that share all indices evenly; with `include_last` the end of the last one, too."""
    bags = max(prod(shape) - include_last, 1)
    return (np.arange(prod(shape)) * prod(indices) // bags).reshape(shape)
