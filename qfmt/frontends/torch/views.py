"""Calls whose result is a view of their first argument's memory: writing to one changes the other.

Torch's documentation, "Tensor Views". A tensor of the graph has one value, so a tensor that was changed through another
view cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import SourceError
from .values import TensorValue

VIEWS = {
    f"aten::{name}"
    for name in (
        "alias", "as_strided", "broadcast_to", "chunk", "contiguous", "detach", "diagonal", "dropout", "expand",
        "expand_as", "flatten", "movedim", "narrow", "numpy_T", "permute", "reshape", "reshape_as", "select", "slice",
        "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "to", "transpose",
        "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as",
    )
}  # fmt: skip
"""Some of them sometimes copy; they are always treated as views."""

_SAME_ONLY = {"aten::to", "aten::type_as"}
"""Calls that return a view only if there is nothing to do."""

HINT = "export it and convert program.run_decompositions(), or remove in-place operators from the model"


def share(target: str, args: Sequence[Any], result: Any) -> None:
    """Record the memory of the results of a view."""
    if target not in VIEWS or not args or not isinstance(args[0], TensorValue):
        return
    for value in result if isinstance(result, list | tuple) else [result]:
        if isinstance(value, TensorValue) and (target not in _SAME_ONLY or value.key == args[0].key):
            value.memory = args[0].memory


def check_unchanged(target: str, values: Any) -> None:
    """Raise SourceError if a tensor among the arguments of a call was changed through another view of its memory."""
    for value in _tensors(values):
        if value.memory.changed_by:
            what = f"{target} reads a tensor that {value.memory.changed_by} changed through another view of it"
            raise SourceError(what, hint=HINT)


def _tensors(values: Any) -> Iterator[TensorValue]:
    for value in values:
        if isinstance(value, TensorValue):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
