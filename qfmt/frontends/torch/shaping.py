"""Shapes: what is known of them while lifting, and what is computed with them when the network runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...budget import Budget
from ...errors import SourceError
from ...model import Dimension
from ...ops.shapes import axis_of
from ...passes.likely import filled
from .arguments import ArgumentReader
from .sizes import Size
from .values import RANK_NAMES, Refine, TensorValue


class Shaper(ArgumentReader):
    """Answers what a call asks about shapes, learns from calls what inputs must be, and reshapes.

    An input without a rank gets `assumed_rank` where something depends on it; `confirmed` are the inputs
    whose rank a call did require.
    """

    def __init__(self, engine: str, assumed_rank: int, budget: Budget) -> None:
        super().__init__(engine, budget)
        self.assumed_rank = assumed_rank
        self.confirmed: set[str] = set()

    @property
    def shape_hint(self) -> str:
        """Every input with sizes that the network may take: those of its trace, where it has them."""
        shapes = {self._wanted[key]: self._likely(key) for key in self.inputs}
        options = " ".join(f"--input-shape {name}={','.join(map(str, sizes))}" for name, sizes in shapes.items())
        return f"state the sizes of the inputs, as in `{options}`; in Python, input_shapes={shapes}"

    def _likely(self, key: str) -> tuple[int, ...]:
        shape, example = self.tensors[key].shape, self.examples.get(key)
        guess = filled((None,) * self.assumed_rank if shape is None else shape, example)
        return guess if example is None or len(example) != len(guess) else (*example[:1], *guess[1:])

    def rank(self, value: TensorValue) -> int:
        """The number of dimensions; where an input of which nothing is known decides on it, that is assumed."""
        if value.shape is None:
            unknown = [self._wanted[key] for key in self.inputs if self.tensors[key].shape is None]
            if value.origin or unknown:
                raise Refine(value.origin or unknown[0], RANK_NAMES[self.assumed_rank], assumed=True)
            raise SourceError("needs the number of dimensions of its input", hint=self.shape_hint)
        return len(value.shape)

    def need(self, value: TensorValue, shape: tuple[Dimension, ...]) -> None:
        """Tell what the present call requires of a tensor; what is learnt about an input restarts the lift."""
        known = value.shape
        if known is not None and len(known) != len(shape):
            return  # the shape rule of the operator says what is wrong
        if value.origin:
            self.confirmed.add(value.origin)
            base = RANK_NAMES.get(len(shape), (None,) * len(shape)) if known is None else known
            learnt = tuple(b if a is None or isinstance(b, int) else a for a, b in zip(shape, base, strict=True))
            if learnt != known:
                raise Refine(value.origin, learnt)
        elif known is None:
            value.shape = shape
            self.tensors[value.key] = replace(self.tensors[value.key], shape=shape)

    def know(self, value: TensorValue, shape: Sequence[Dimension]) -> None:
        """What is known of a shape beside what its operator could infer."""
        inferred = value.shape or (None,) * len(shape)
        value.shape = tuple(a if a is not None else b for a, b in zip(inferred, shape, strict=True))
        self.tensors[value.key] = replace(self.tensors[value.key], shape=value.shape)

    def size(self, value: TensorValue, axis: int) -> int | Size:
        """The size of a dimension, counted from 0: a number where it is fixed, else something to compute with."""
        dimension = value.shape[axis_of(axis, len(value.shape))] if value.shape is not None else None
        if isinstance(dimension, int):
            return dimension
        build = partial(self.emit, "Shape", [self.alias(value)], {"start": axis, "end": axis + 1})
        return Size(build, (value.key, axis), dimension)

    def shape_tensor(self, sizes: Sequence[Any]) -> TensorValue:
        """Numbers and sizes as one int64 tensor of rank 1."""
        pieces: list[TensorValue] = []
        run: list[int] = []
        for size in sizes:
            if isinstance(size, Size):
                if run:
                    pieces.append(self.constant(np.array(run, np.int64)))
                    run = []
                pieces.append(size.build())
            else:
                run.append(self.whole(size))
        if run or not pieces:
            pieces.append(self.constant(np.array(run, np.int64)))
        joined: TensorValue = pieces[0] if len(pieces) == 1 else self.emit("Concat", pieces, {"axis": 0})
        return joined

    def reshape(self, value: TensorValue, sizes: Sequence[Any]) -> TensorValue:
        """Reshape with as little as possible left to compute: 0 copies a dimension, one -1 is the rest."""
        target = [size if isinstance(size, Size) else self.whole(size) for size in sizes]
        for axis, size in enumerate(target):
            if isinstance(size, Size) and self._is_dimension(size, value, axis):
                target[axis] = 0
        dynamic = [axis for axis, size in enumerate(target) if isinstance(size, Size)]
        if len(dynamic) == 1 and -1 not in [size for size in target if isinstance(size, int)]:
            target[dynamic[0]] = -1
        result: TensorValue = self.emit("Reshape", [value, self.shape_tensor(target)])
        if not self.is_constant(result):
            self.know(result, [self._resulting(size, value, axis) for axis, size in enumerate(target)])
        return result

    @staticmethod
    def _resulting(size: int | Size, value: TensorValue, axis: int) -> Dimension:
        """What the result of a reshape has for an element of its target."""
        if isinstance(size, Size):
            return size.dimension
        if size == 0:
            return None if value.shape is None else value.shape[axis]
        return None if size < 0 else size

    @staticmethod
    def _is_dimension(size: Size, value: TensorValue, axis: int) -> bool:
        if size.source == (value.key, axis):
            return True
        known = value.shape is not None and axis < len(value.shape)
        return known and size.dimension is not None and value.shape[axis] == size.dimension  # type: ignore[index]
