"""The program before it is text: the buffer of each tensor and its place in memory, the steps, and the constants that
they read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays import Array
from ...budget import AT_ONCE
from ...errors import DestinationError, QfmtError
from .loops import transfer
from .names import Names, comment
from .static import C_TYPES, Network, Value
from .views import Buffer, Order, Parameter, View, alike, plain

ALIGNMENT = 64
"""The alignment of memory and of the weights of inner loops, in bytes: a cache line, or a register."""

COMPACT_ALIGNMENT = 4
"""The alignment if memory matters more than speed: a word."""


@dataclass(slots=True)
class Step:
    """One function of the program: a comment that says what it computes, its parameters, its body."""

    title: str
    operands: list[Parameter]
    body: list[str]
    scratch: list[Parameter]


class Plan:
    """The steps and constants so far, and where each tensor can be read."""

    def __init__(self, network: Network, names: Names, compact: bool = False) -> None:
        self.network = network
        self.names = names
        self.compact = compact
        self.alignment = COMPACT_ALIGNMENT if compact else ALIGNMENT
        self.steps: list[Step] = []
        self.constants: dict[tuple[str, bytes], tuple[str, Array]] = {}
        self.aligned: set[str] = set()
        self.struct_bytes = 0
        self.types: list[str] = []
        self.structs: list[str] = []
        self.kernels: dict[str, str] = {}
        self.fused: set[str] = set()
        self._views: dict[str, list[View]] = {}
        self._packed: dict[tuple[str, Order], View] = {}
        self.inputs = [self._external(name, "in") for name in network.model.graph.inputs]
        for name, view in zip(network.model.graph.inputs, self.inputs, strict=True):
            self._views[name] = [view]
        self.outputs = [self._external(name, "out") for name in network.model.graph.outputs]
        self._outputs: dict[str, list[View]] = {}
        for name, view in zip(network.model.graph.outputs, self.outputs, strict=True):
            self._outputs.setdefault(name, []).append(view)

    def _external(self, name: str, role: str) -> View:
        value = self.network.value(name)
        buffer = Buffer(value.dtype, value.size, self.names.parameter(name, role), external=True)
        return View(buffer, value.shape, plain(len(value.shape)))

    # Reading

    def is_there(self, name: str) -> bool:
        return name in self._views or self.value(name).array is not None

    def is_output(self, name: str) -> bool:
        return name in self._outputs

    def value(self, name: str) -> Value:
        return self.network.value(name)

    def array(self, name: str, what: str) -> Array:
        """The array of an input that must be a constant; `what` says in an error that it is not."""
        array = self.value(name).array
        if array is None:
            raise QfmtError(f"has {what} not constant; C requires constants")
        return array

    def order(self, name: str) -> Order:
        """The memory order of a computed tensor; a constant has the plain order, and any other on demand."""
        views = self._views.get(name)
        return views[0].order if views else plain(len(self.value(name).shape))

    def read(self, name: str, order: Order | None = None) -> View:
        """The tensor as a step reads it, in the requested order; copied into that order if necessary."""
        value = self.value(name)
        if value.array is not None:
            return self._constant_view(value, order or plain(len(value.shape)))
        views = self._views[name]
        for view in views:
            if order is None or alike(view.shape, view.order, order):
                return view
        assert order is not None
        view = self._arena(value, order)
        transfer(self, f"{comment(name)}, in a new layout", views[:1], view)
        views.append(view)
        return view

    def _constant_view(self, value: Value, order: Order) -> View:
        key = value.name, order
        if key not in self._packed:
            assert value.array is not None
            if value.dtype not in C_TYPES:
                raise DestinationError(f"is {value.dtype}, but a C program is integer-only", where=value.name)
            array = np.asarray(value.array).astype(value.dtype)
            name = self.constant(array.transpose(order), value.name)
            self._packed[key] = View(Buffer(value.dtype, value.size, name, external=True), value.shape, order)
        return self._packed[key]

    # Writing

    def result(self, name: str, order: Order) -> View:
        """Memory for a computed tensor: the argument of the program if the tensor is an output in this order."""
        value = self.value(name)
        view = self._arena(value, order)
        for view_out in self._outputs.get(name, ()):
            if alike(value.shape, order, view_out.order):
                view = View(view_out.buffer, value.shape, order)
                break
        self._views[name] = [view]
        return view

    def same(self, name: str, view: View) -> None:
        """Let `name` use existing memory."""
        self._views[name] = [view]

    def _arena(self, value: Value, order: Order) -> View:
        return View(Buffer(value.dtype, max(1, value.size), value.name), value.shape, order)

    # Text

    def step(
        self,
        title: str,
        operands: Iterable[Parameter],
        body: Iterable[str],
        scratch: Iterable[tuple[str, int, str]] = (),
    ) -> None:
        """A function of the program; `scratch`: element type, size and name of memory for its duration."""
        memory = [
            Parameter(name, View(Buffer(dtype, size, name), (size,), (0,)), True) for dtype, size, name in scratch
        ]
        self.steps.append(Step(title, list(operands), list(body), memory))

    def constant(self, array: Any, label: str, aligned: bool = False) -> str:
        """The identifier of a constant array; equal arrays are written once. `aligned`: unless it is small."""
        numbers = np.ascontiguousarray(array)
        self.network.budget.allocate(numbers.nbytes)
        key = str(numbers.dtype), numbers.tobytes()
        if key not in self.constants:
            self.constants[key] = self.names.constant(label), numbers
        name = self.constants[key][0]
        if aligned and numbers.nbytes >= 4 * self.alignment:
            self.aligned.add(name)
        return name

    def declare(self, text: str) -> None:
        """A type of the program, once."""
        if text not in self.types:
            self.types.append(text)

    def struct(self, kind: str, label: str, fields: dict[str, str]) -> str:
        """The identifier of a constant `struct kind`."""
        name = self.names.constant(label)
        self.struct_bytes += 4 * sum(text.count(",") + 1 for text in fields.values())  # a pointer may be longer
        inner = ",\n".join(f"    .{field_name} = {text}" for field_name, text in fields.items())
        self.structs.append(f"static const struct {kind} {name} = {{\n{inner},\n}};")
        return name

    # The end

    def finish(self) -> None:
        """Copy outputs that are elsewhere to the arguments; then the lifetime of each buffer is known."""
        for name, view in zip(self.network.model.graph.outputs, self.outputs, strict=True):
            source = self.read(name)
            if source.buffer is not view.buffer or not alike(view.shape, source.order, view.order):
                transfer(self, f"{comment(name)} as an output", [source], view)
        for index, step in enumerate(self.steps):
            for operand in (*step.operands, *step.scratch):
                buffer = operand.view.buffer
                buffer.first = index if buffer.first < 0 else buffer.first
                buffer.last = index


WIDTHS = (1, 2, 4, 8)


def place(plan: Plan) -> dict[int, int]:
    """Set the offset of every buffer; the result is how many elements the arena of each width has.

    The largest first, each at the lowest offset that is free during its lifetime. There is an arena for each
    width of elements, because C does not allow memory of one type to be used as another, except for bytes.
    """
    found = dict.fromkeys(operand.view.buffer for step in plan.steps for operand in (*step.operands, *step.scratch))
    buffers = [buffer for buffer in found if not buffer.external]
    sizes = {}
    for width in WIDTHS:
        own = sorted((each for each in buffers if each.width == width), key=lambda b: (-b.size, b.first, b.name))
        step = max(1, plan.alignment // width)
        first, last, begin, end = placed = np.zeros((4, len(own)), np.int64)  # in the order of `begin`
        for count, buffer in enumerate(own):
            plan.network.budget.spend(4 * count // AT_ONCE)
            rivals = np.flatnonzero((first[:count] <= buffer.last) & (last[:count] >= buffer.first))
            free = np.append(0, np.maximum.accumulate(end[rivals]))
            room = np.append(begin[rivals], np.iinfo(np.int64).max) - free
            buffer.offset = int(free[(room >= buffer.size).argmax()])
            index = int(np.searchsorted(begin[:count], buffer.offset))
            placed[:, index + 1 : count + 1] = placed[:, index:count]
            after = -(-(buffer.offset + buffer.size) // step) * step
            placed[:, index] = buffer.first, buffer.last, buffer.offset, after
        if own:
            sizes[width] = max(each.offset + each.size for each in own)
    return sizes
