"""Operators of older opsets: attributes that are inputs now, and changed semantics."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.shapes import axis_of
from .calls import Call
from .importer import Importer, imports


@imports("Clip")
def clip(im: Importer, call: Call) -> Any:
    if call.opset >= 11:
        return None if im.one_to_one(call) else NotImplemented
    dtype = im.tensors[call.inputs[0]].dtype
    bounds = [
        im.constant(np.array(call.attributes[name], dtype), f"{call.outputs[0]}.{name}")
        if name in call.attributes
        else ""
        for name in ("min", "max")
    ]
    im.emit("Clip", [call.inputs[0], *bounds], call.outputs)
    return None


def _vector(im: Importer, call: Call, attribute: str) -> str:
    """An attribute as a constant; "" if it is absent."""
    value = call.attributes.get(attribute)
    return "" if value is None else im.constant(np.array(value, np.int64), f"{call.outputs[0]}.{attribute}")


@imports("Squeeze", "Unsqueeze", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
         "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip
def axes_as_attribute(im: Importer, call: Call) -> Any:
    given = dict(call.attributes)
    axes = _vector(im, call, "axes") if "axes" in given else call.input(1)
    given.pop("axes", None)
    return None if im.one_to_one(call, given, [call.inputs[0], axes]) else NotImplemented


@imports("Split")
def split(im: Importer, call: Call) -> Any:
    given = dict(call.attributes)
    sizes = _vector(im, call, "split") if "split" in given else call.input(1)
    given.pop("split", None)
    given.pop("num_outputs", None)
    if not sizes:
        shape = im.shape(call.inputs[0])
        axis = given.get("axis", 0)
        size = None if shape is None else shape[axis_of(axis, len(shape))]
        if not isinstance(size, int):
            return NotImplemented
        part = -(-size // len(call.outputs))
        parts = [max(0, min(part, size - index * part)) for index in range(len(call.outputs))]
        sizes = im.constant(np.array(parts, np.int64), f"{call.outputs[0]}.split")
    return None if im.one_to_one(call, given, [call.inputs[0], sizes]) else NotImplemented


@imports("Slice")
def slice_(im: Importer, call: Call) -> Any:
    if call.opset >= 10:
        return None if im.one_to_one(call) else NotImplemented
    starts = _vector(im, call, "starts")
    inputs = [call.inputs[0], starts, _vector(im, call, "ends"), _vector(im, call, "axes")]
    return None if im.one_to_one(call, {}, inputs) else NotImplemented


@imports("Pad")
def pad(im: Importer, call: Call) -> Any:
    if call.opset >= 11:
        return None if im.one_to_one(call) else NotImplemented
    given = dict(call.attributes)
    fill = np.array(given.pop("value", 0.0), im.tensors[call.inputs[0]].dtype)
    pads = _vector(im, call, "pads" if "pads" in given else "paddings")
    mode = {"mode": given["mode"]} if "mode" in given else {}
    inputs = [call.inputs[0], pads, im.constant(fill, f"{call.outputs[0]}.value")]
    return None if im.one_to_one(call, mode, inputs) else NotImplemented


@imports("TopK")
def top_k(im: Importer, call: Call) -> Any:
    given = dict(call.attributes)
    if "k" not in given:
        return None if im.one_to_one(call) else NotImplemented
    count = im.constant(np.array([given.pop("k")], np.int64), f"{call.outputs[0]}.k")
    return None if im.one_to_one(call, given, [call.inputs[0], count]) else NotImplemented


@imports("Upsample")
def upsample(im: Importer, call: Call) -> Any:
    """The predecessor of Resize: asymmetric coordinates, nearest rounds down."""
    scales = call.input(1) or im.constant(np.array(call.attributes["scales"], np.float32), f"{call.outputs[0]}.scales")
    return _asymmetric_resize(im, call, scales)


@imports("Resize")
def resize(im: Importer, call: Call) -> Any:
    if call.opset >= 11:
        return None if im.one_to_one(call) else NotImplemented
    return _asymmetric_resize(im, call, call.inputs[1])


def _asymmetric_resize(im: Importer, call: Call, scales: str) -> Any:
    mode = call.attributes.get("mode", "nearest")
    attributes = {
        "mode": "linear" if mode in ("linear", "bilinear") else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    call = call._replace(operator="Resize")
    return None if im.one_to_one(call, attributes, [call.inputs[0], "", scales]) else NotImplemented


@imports("Softmax", "LogSoftmax", "Hardmax")
def softmax(im: Importer, call: Call) -> Any:
    """Before opset 13, softmax flattened all dimensions from the axis on."""
    if call.opset >= 13:
        return None if im.one_to_one(call) else NotImplemented
    rank = im.rank(call.inputs[0])
    axis = call.attributes.get("axis", 1)
    if rank is None:
        return NotImplemented
    if axis_of(axis, rank) == rank - 1:
        return None if im.one_to_one(call, {"axis": -1}) else NotImplemented
    flat = im.emit("Flatten", [call.inputs[0]], f"{call.outputs[0]}.flat", {"axis": axis_of(axis, rank)})
    im.tensors[call.outputs[0]] = im.tensors[call.inputs[0]]
    soft = im.emit(call.operator, [flat], f"{call.outputs[0]}.{call.operator.lower()}", {"axis": -1})
    im.emit(
        "Reshape",
        [soft, im.emit("Shape", [call.inputs[0]], f"{call.outputs[0]}.shape", {"start": 0, "end": 2**63 - 1})],
        call.outputs,
    )
    return None


@imports("Reshape")
def reshape(im: Importer, call: Call) -> Any:
    given = dict(call.attributes)
    given.pop("consumed_inputs", None)
    target = _vector(im, call, "shape") if "shape" in given else call.inputs[1]
    given.pop("shape", None)
    if given.pop("allowzero", 0):
        value = im.value(target)
        if value is None or 0 in value:
            return NotImplemented
    return None if im.one_to_one(call, given, [call.inputs[0], target]) else NotImplemented
