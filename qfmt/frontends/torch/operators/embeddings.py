"""Torch's embeddings and bags of embeddings, quantized and float."""

from __future__ import annotations

from typing import Any

from ....errors import SourceError
from ....model import Attribute
from .. import arguments, shapes
from ..building import Builder
from ..lifts import lifts
from ..values import TensorValue, Unsupported
from .linear import require_packed, weight_of
from .logic import as_in

MODES = ("sum", "mean", "max")
"""Torch's codes for the reduction of a bag."""


@lifts("aten::embedding(weight, indices, padding_idx:_=-1, scale_grad_by_freq:_=False, sparse:_=False)")
def embedding(lift: Builder, a: Any) -> Any:
    """The padding index and the arguments after it affect only gradients."""
    return lift.emit("Gather", [a.weight, arguments.indices(lift, a.indices)], {"axis": 0})


@lifts(
    "aten::embedding_bag(weight, indices, offsets, scale_grad_by_freq:_=False, mode=0, sparse:_=False,"
    " per_sample_weights=None, include_last_offset=False, padding_idx=None)"
)
def embedding_bag(lift: Builder, a: Any) -> Any:
    table = lift.tensor(a.weight)
    if table.dtype == "float64":  # the sums are in float32
        return NotImplemented
    attributes: dict[str, Attribute] = {
        "mode": _mode(lift, a.mode),
        "include_last_offset": arguments.flag(lift, a.include_last_offset),
        "padding_idx": -1 if a.padding_idx is None else _row(lift, table, a.padding_idx),
    }
    inputs = [table, _list(lift, a.indices), _list(lift, a.offsets), a.per_sample_weights]
    sums = as_in(lift, lift.emit("qfmt.EmbeddingBag", inputs, attributes), table)
    return [sums, *(Unsupported() for _ in range(3))]


def _mode(lift: Builder, code: Any) -> str:
    number = arguments.number(lift, code)
    if number not in range(len(MODES)):
        raise SourceError(f"reduces bags with mode {number}, which torch does not have")
    return MODES[int(number)]


def _list(lift: Builder, value: Any) -> TensorValue:
    """Indices or offsets of bags: one dimension."""
    at = arguments.indices(lift, value)
    shapes.need(lift, at, (None,))
    return at


def _row(lift: Builder, table: TensorValue, index: Any) -> int:
    """A row of the table, which torch may count from the end."""
    row, rows = arguments.whole(lift, index), table.shape[0] if table.shape else None
    if row < 0 and not isinstance(rows, int):
        raise SourceError("counts a padding index from the end of a table whose size is not known")
    return row if row >= 0 or not isinstance(rows, int) else row + rows


@lifts("quantized::embedding_byte", "quantized::embedding_4bit")
def quantized_embedding(lift: Builder, weight: Any, indices: Any, pruned_weights: bool = False) -> Any:
    table = _table(lift, weight)
    return lift.emit("qfmt.Embedding", [table, arguments.indices(lift, indices)], rule=_rule(table))


@lifts(
    *(
        f"quantized::embedding_bag_{bits}(weight, indices, offsets=None, scale_grad_by_freq:_=False, mode:_=0,"
        " pruned_weights=False, per_sample_weights=None, compressed_indices_mapping=None, include_last_offset=False)"
        for bits in ("byte", "4bit")
    )
)
def quantized_embedding_bag(lift: Builder, a: Any) -> Any:
    """In every mode, torch sums rows of a quantized table."""
    if arguments.flag(lift, a.pruned_weights) and a.compressed_indices_mapping is not None:
        raise SourceError("looks up rows in a pruned table, which is not supported")
    table, at = _table(lift, a.weight), arguments.indices(lift, a.indices)
    shapes.need(lift, at, (None, None) if a.offsets is None else (None,))
    inputs = [table, at, None if a.offsets is None else _list(lift, a.offsets), a.per_sample_weights]
    attributes = {"include_last_offset": arguments.flag(lift, a.include_last_offset)}
    return lift.emit("qfmt.EmbeddingBag", inputs, attributes, rule=_rule(table))


def _table(lift: Builder, packed: Any) -> TensorValue:
    require_packed(lift, packed, "embedding", "a packed table of embeddings")
    return weight_of(lift, packed)


def _rule(table: TensorValue) -> str:
    """PyTorch packs scale and offset of 4-bit rows as float16, of 8-bit rows as float32, in every engine."""
    return "lookup_float16" if table.dtype == "uint4" else "lookup_float32"
