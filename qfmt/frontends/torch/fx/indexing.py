"""`x[:, 1:, 0]` as the equivalent calls: torch/csrc/autograd/python_variable_indexing.cpp."""

from __future__ import annotations

from typing import Any

from ....errors import SourceError
from ..calls import Value
from .functional import Call


def indexed(call: Call, x: Any, index: Any) -> Any:
    """A tensor indexed by integers, slices, None and an ellipsis."""
    items = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in items) > 1:
        raise SourceError("indexes with two ellipses")
    if Ellipsis in [item for item in items if item is Ellipsis]:
        at = next(place for place, item in enumerate(items) if item is Ellipsis)
        used = sum(item is not None and item is not Ellipsis for item in items)
        dimensions = call("aten::dim", x)
        if not isinstance(dimensions, int):
            return dimensions  # of an operator that is not supported, which is reported
        items[at : at + 1] = [slice(None)] * (dimensions - used)
    axis = 0
    for item in items:
        if item is None:
            x = call("aten::unsqueeze", x, axis)
            axis += 1
        elif isinstance(item, slice):
            if (item.start, item.stop, item.step) != (None, None, None):
                step = 1 if item.step is None else item.step
                x = call("aten::slice", x, axis, item.start, item.stop, step)
            axis += 1
        elif isinstance(item, int | Value) and not isinstance(item, bool):
            x = call("aten::select", x, axis, item)
        else:
            raise SourceError("indexes in a way that is not supported")
    return x
