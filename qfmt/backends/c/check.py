"""Test vectors as a function of the program, which runs on the target device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...model import Vector
from .names import comment
from .plan import Plan
from .static import C_TYPES
from .text import array_of, text_of
from .views import View


def fitting(plan: Plan) -> list[Vector]:
    """The test vectors of the sizes that the program is written for."""
    views = [*plan.inputs, *plan.outputs]
    model = plan.network.model
    return [
        vector
        for vector in model.vectors
        if all(
            value.array.shape == view.shape
            for (_, _, value), view in zip(vector.stored(model.graph), views, strict=True)
        )
    ]


def outputs_of(plan: Plan) -> int:
    """How many outputs one test vector has."""
    return sum(view.size for view in plan.outputs)


def check(plan: Plan, vectors: Sequence[Vector]) -> str:
    """The file with the vectors, and the function that compares."""
    name = plan.names.name
    lines = ["/* Test vectors: inputs, and the outputs that the network must compute. */"]
    lines += ["", f'#include "{name}.h"']
    calls: list[str] = []
    for index, vector in enumerate(vectors):
        values = [value.array for _, _, value in vector.stored(plan.network.model.graph)]
        views = [*plan.inputs, *plan.outputs]
        if vector.name:
            lines += ["", f"/* {comment(vector.name)} */"]
        for view, value in zip(views, values, strict=True):
            declared = f"static const {{kind}} {_vector(index, view)}[{{size}}]"
            lines += ["", *array_of(declared, np.ascontiguousarray(value).astype(view.dtype))]
        calls += _compared(plan, index)
    made = [f"static {C_TYPES[view.dtype]} {view.buffer.name}[{max(1, view.size)}];" for view in plan.outputs]
    head = [f"int32_t {name}_check(void)", "{", "    int32_t wrong = 0;"]
    return text_of([*lines, "", *made, "", *head, *calls, "    return wrong;", "}"])


def _vector(index: int, view: View) -> str:
    return f"vector_{index}_{view.buffer.name}"


def _compared(plan: Plan, index: int) -> Iterator[str]:
    given = [*(_vector(index, view) for view in plan.inputs), *(view.buffer.name for view in plan.outputs)]
    yield f"    {plan.names.name}_run({', '.join(given)});"
    for view in plan.outputs:
        yield f"    for (int32_t i = 0; i < {view.size}; i++)"
        yield f"        wrong += {view.buffer.name}[i] != {_vector(index, view)}[i];"
