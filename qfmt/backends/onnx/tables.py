"""Rows of a table, and sums of rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...model import DTYPES, Tensor
from .lowering import Site, lowers
from .older import reduced
from .opsets import Lacks, has_cast


@lowers("qfmt.Embedding")
def embedding(site: Site) -> ir.Value:
    return _rows(site, site.stored(1))


def _rows(site: Site, indices: ir.Value | None) -> ir.Value:
    """Real rows of the table: q · s - z · s, of those rows only."""
    tensor, grid = site.tensor(0), site.tensor(0).quantization
    if grid is None:
        rows = site.emit("Gather", site.stored(0), indices)
        return rows if tensor.dtype == "float32" else site.to("float32", rows)
    rows = site.to("float32", site.emit("Gather", _table(site, tensor), indices))
    slope, point = (
        site.builder.constant(f"{tensor.name}.{what}", np.array(values, np.float32).reshape(-1, 1))
        for what, values in (("scale", grid.scale), ("zero_point", grid.zero_point))
    )
    if grid.is_per_channel:
        slope, point = site.emit("Gather", slope, indices), site.emit("Gather", point, indices)
    offset = site.emit("Mul", site.emit("Neg", point), slope)
    if site.node.rule == "lookup_float16":
        slope, offset = _through_float16(site, slope), _through_float16(site, offset)
    return site.emit("Add", site.emit("Mul", rows, slope), offset)


def _table(site: Site, tensor: Tensor) -> ir.Value | None:
    """The integers of a table, those of less than 8 bits as bytes: ONNX Runtime's Gather supports no others, and old
    opsets have no Cast of them."""
    dtype = DTYPES[tensor.dtype]
    if dtype.bits >= 8:
        return site.stored(0)
    held = "int8" if dtype.kind == "i" else "uint8"
    if has_cast(site.opset, tensor.dtype) or not tensor.is_constant:
        return site.to(held, site.stored(0))
    return site.builder.constant(f"{tensor.name}.bytes", tensor.array.astype(held))


def _through_float16(site: Site, value: ir.Value) -> ir.Value:
    return site.to("float32", site.to("float16", value))


@lowers("qfmt.EmbeddingBag")
def embedding_bag(site: Site) -> ir.Value:
    """Weighted rows, then their sum, mean or maximum over each bag."""
    indices = site.to("int64", site.stored(1))
    last = _integers(site, [-1])
    rows = _rows(site, indices)
    if site.has(3):
        rows = site.emit("Mul", rows, site.emit("Unsqueeze", site.real(3), last))
    counted = site.emit("Equal", indices, _integers(site, site.attributes["padding_idx"]))
    counted = site.emit("Unsqueeze", site.emit("Not", counted), last)
    count = site.to("float32", counted)
    mode = site.attributes["mode"]
    nothing = site.constant("nothing", np.array(-np.inf if mode == "max" else 0, np.float32))
    rows = site.emit("Where", counted, rows, nothing)
    if site.has(2):
        total, counts = _scattered(site, rows, count, mode, nothing)
    else:
        total = reduced(site, "ReduceMax", rows, [1], 0) if mode == "max" else _sum(site, rows)
        counts = _sum(site, count)
    if mode == "mean":
        return site.emit("Div", total, site.emit("Max", counts, site.constant("one", np.array(1, np.float32))))
    if mode == "sum":
        return total
    zero = site.constant("zero", np.array(0, np.float32))
    return site.emit("Where", site.emit("Greater", counts, zero), total, zero)


def _integers(site: Site, values: object) -> ir.Value:
    return site.constant("integers", np.asarray(values, np.int64))


def _sum(site: Site, rows: ir.Value) -> ir.Value:
    return site.emit("ReduceSum", rows, _integers(site, [1]), keepdims=0)


def _scattered(site: Site, rows: ir.Value, count: ir.Value, mode: str, nothing: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Bags bounded by offsets: the bag of a row is the number of bags that began before it, less one."""
    if site.opset < (needed := 18 if mode == "max" else 16):
        raise Lacks(f"needs ScatterND of opset {needed} for offsets")
    zero, one = _integers(site, [0]), _integers(site, [1])
    starts = site.to("int64", site.stored(2))
    if site.attributes["include_last_offset"]:
        end = site.emit("Slice", starts, _integers(site, [-1]), _integers(site, [2**31 - 1]))
        starts = site.emit("Slice", starts, zero, _integers(site, [-1]))
        rows, count = site.emit("Slice", rows, zero, end), site.emit("Slice", count, zero, end)
    total = site.emit("Slice", site.emit("Shape", rows), zero, one)
    room = site.emit("Expand", _integers(site, 0), site.emit("Add", total, one))
    begun = site.emit("Expand", _integers(site, 1), site.emit("Shape", starts))
    marks = site.emit("ScatterElements", room, starts, begun, axis=0, reduction="add")
    bag = site.emit("Sub", site.emit("CumSum", marks, _integers(site, 0)), one)
    bag = site.emit("Unsqueeze", site.emit("Slice", bag, zero, total), _integers(site, [-1]))
    columns = site.emit("Slice", site.emit("Shape", rows), one, _integers(site, [2]))
    bags = site.emit("Shape", starts)
    empty = site.emit("Expand", nothing, site.emit("Concat", bags, columns, axis=0))
    none = site.emit("Expand", site.constant("zero", np.array(0, np.float32)), site.emit("Concat", bags, one, axis=0))
    sums = site.emit("ScatterND", empty, bag, rows, reduction="max" if mode == "max" else "add")
    return sums, site.emit("ScatterND", none, bag, count, reduction="add")
