"""Shapes: as known while lifting, and as computed at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import SourceError
from ...model import Dimension
from ...notation import in_shell
from ...ops.shapes import axis_of
from ...passes.likely_shapes import filled
from .arguments import whole
from .building import Builder
from .values import RANK_NAMES, Refine, Size, TensorValue


def hint(lift: Builder) -> str:
    """Every input with possible sizes: those of its trace, if it has them."""
    shapes = {lift.wanted[key]: _likely(lift, key) for key in lift.inputs}
    stated = (f"{name}={','.join(map(str, sizes))}" for name, sizes in shapes.items())
    options = " ".join(in_shell("--input-shape", text) for text in stated)
    return f"state the sizes of the inputs, as in `{options}`; in Python, input_shapes={shapes}"


def _likely(lift: Builder, key: str) -> tuple[int, ...]:
    shape, example = lift.tensors[key].shape, lift.examples.get(key)
    guess = filled((None,) * lift.assumed_rank if shape is None else shape, example)
    return guess if example is None or len(example) != len(guess) else (*example[:1], *guess[1:])


def rank(lift: Builder, value: TensorValue) -> int:
    """The number of dimensions; if it depends on an unknown input, it is assumed."""
    if value.shape is None:
        unknown = [lift.wanted[key] for key in lift.inputs if lift.tensors[key].shape is None]
        if value.origin or unknown:
            raise Refine(value.origin or unknown[0], RANK_NAMES[lift.assumed_rank], assumed=True)
        raise SourceError("needs the number of dimensions of its input", hint=hint(lift))
    return len(value.shape)


def need(lift: Builder, value: TensorValue, shape: tuple[Dimension, ...], *, any_rank: bool = False) -> None:
    """State what the current call requires of a tensor; new knowledge about an input restarts the lift.

    With `any_rank` it takes tensors of other ranks, too, so it does not confirm one that is assumed.
    """
    known = value.shape
    if known is not None and len(known) != len(shape):
        return  # the shape rule of the operator reports the error
    if value.origin:
        lift.confirmed |= set() if any_rank else {value.origin}
        base = RANK_NAMES.get(len(shape), (None,) * len(shape)) if known is None else known
        learnt = tuple(b if a is None or isinstance(b, int) else a for a, b in zip(shape, base, strict=True))
        if learnt != known:
            raise Refine(value.origin, learnt)
    elif known is None:
        value.shape = shape
        lift.tensors[value.key] = replace(lift.tensors[value.key], shape=shape)


def know(lift: Builder, value: TensorValue, shape: Sequence[Dimension]) -> None:
    """What is known about a shape in addition to its operator's inference."""
    inferred = value.shape or (None,) * len(shape)
    value.shape = tuple(a if a is not None else b for a, b in zip(inferred, shape, strict=True))
    lift.tensors[value.key] = replace(lift.tensors[value.key], shape=value.shape)


def size(lift: Builder, value: TensorValue, axis: int) -> int | Size:
    """The size of a dimension, counted from 0: a number if it is fixed, else a Size."""
    dimension = value.shape[axis_of(axis, len(value.shape))] if value.shape is not None else None
    if isinstance(dimension, int):
        return dimension
    build = partial(lift.emit, "Shape", [lift.alias(value)], {"start": axis, "end": axis + 1})
    return Size(build, (value.key, axis), dimension)


def sizes(lift: Builder, value: TensorValue) -> list[int | Size]:
    """The sizes of all dimensions."""
    return [size(lift, value, axis) for axis in range(rank(lift, value))]


def shape_tensor(lift: Builder, sizes: Sequence[Any]) -> TensorValue:
    """Numbers and sizes as one int64 tensor of rank 1."""
    pieces: list[TensorValue] = []
    run: list[int] = []
    for size in sizes:
        if isinstance(size, Size):
            if run:
                pieces.append(lift.constant(np.array(run, np.int64)))
                run = []
            pieces.append(size.build())
        else:
            run.append(whole(lift, size))
    if run or not pieces:
        pieces.append(lift.constant(np.array(run, np.int64)))
    return pieces[0] if len(pieces) == 1 else lift.emit("Concat", pieces, {"axis": 0})


def reshape(lift: Builder, value: TensorValue, sizes: Sequence[Any]) -> TensorValue:
    """Reshape with as few computed sizes as possible: 0 copies a dimension, one -1 is the rest."""
    target = [size if isinstance(size, Size) else whole(lift, size) for size in sizes]
    for axis, size in enumerate(target):
        if isinstance(size, Size) and _is_dimension(size, value, axis):
            target[axis] = 0
    dynamic = [axis for axis, size in enumerate(target) if isinstance(size, Size)]
    if len(dynamic) == 1 and -1 not in [size for size in target if isinstance(size, int)]:
        target[dynamic[0]] = -1
    result = lift.emit("Reshape", [value, shape_tensor(lift, target)])
    if not lift.is_constant(result):
        know(lift, result, [_resulting(size, value, axis) for axis, size in enumerate(target)])
    return result


def _resulting(size: int | Size, value: TensorValue, axis: int) -> Dimension:
    """The size of the result of a reshape for an element of its target."""
    if isinstance(size, Size):
        return size.dimension
    if size == 0:
        return None if value.shape is None else value.shape[axis]
    return None if size < 0 else size


def _is_dimension(size: Size, value: TensorValue, axis: int) -> bool:
    if size.source == (value.key, axis):
        return True
    known = value.shape is not None and axis < len(value.shape)
    return known and size.dimension is not None and value.shape[axis] == size.dimension  # type: ignore[index]


def arithmetic(lift: Builder, operator: str, a: Any, b: Any) -> Size:
    """A Size computed from sizes and integers; Div is rounded towards zero."""
    for value in (a, b):
        if not isinstance(value, Size | int):
            raise SourceError("computes with a size in a way that is not supported", hint=hint(lift))
    natural = operator != "Sub" and all(each.natural if isinstance(each, Size) else each >= 0 for each in (a, b))
    if operator == "Pow" and not natural:
        raise SourceError("raises to a power that may be negative", hint=hint(lift))
    return Size(lambda: lift.emit(operator, [shape_tensor(lift, [a]), shape_tensor(lift, [b])]), natural=natural)


def floor_divided(lift: Builder, a: Any, b: Any) -> Size:
    """A Size divided by another, rounded down."""
    quotient = arithmetic(lift, "Div", a, b)
    if quotient.natural:
        return quotient
    return arithmetic(lift, "Div", arithmetic(lift, "Sub", a, arithmetic(lift, "Mod", a, b)), b)
