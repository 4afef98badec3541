"""Kernels of torch that the table of operators names: with inputs, attributes and output scales as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...ops import Operator
from ...ops.spelling import MISSING, Parameter, spellings
from .emit import Site


class Kernel(NamedTuple):
    """One call of torch, and the operator's meaning of each parameter."""

    target: Any
    operator: Operator
    parameters: Mapping[str, Parameter]

    @property
    def has_grid(self) -> bool:
        """Whether it has the scale and the zero point of its output as parameters."""
        return any(each.target == "$scale" for each in self.parameters.values())

    def arguments(self, s: Site, x: Sequence[Any], grid: tuple[float, int] | None = None) -> tuple[list[Any], Any]:
        """The positional and the named arguments for the inputs `x`."""
        known = dict(zip((each.name for each in self.operator.inputs), x, strict=False))
        if grid is not None:
            known |= {"$scale": grid[0], "$zero_point": grid[1]}
        skipped = False  # arguments after a default are passed by name
        places: list[Any] = []
        named: dict[str, Any] = {}
        for argument in self.target._schema.arguments:
            parameter = self.parameters[argument.name]
            if parameter.target in known:
                value = known[parameter.target]
            elif parameter.target in self.operator.attributes:
                value = s.attribute(parameter.target)
            elif argument.has_default_value():
                skipped = True
                continue
            else:
                value = False if parameter.required is MISSING else float(parameter.required)
            if argument.kwarg_only or skipped:
                named[argument.name] = value
            else:
                places.append(value)
        return places, named


def spelled(namespace: str) -> dict[str, Kernel]:
    """Operator → the first kernel of `aten` or `quantized` that is equal to the operator."""
    found: dict[str, Kernel] = {}
    for name, forms in spellings().items():
        prefix, _, last = name.partition("::")
        for operator, parameters in forms if prefix == namespace else ():
            target = getattr(getattr(torch.ops, namespace), last).default if operator.name not in found else None
            found.setdefault(operator.name, Kernel(target, operator, {each.torch_name: each for each in parameters}))
    return found
