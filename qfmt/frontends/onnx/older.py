"""Operators of older opsets: attributes that are inputs now, and changed semantics."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.shapes import axis_of
from .calls import Call
from .importer import Importer, imports

_INPUTS = {
    "Clip": ("min", "max"),
    "Slice": ("starts", "ends", "axes"),
    "TopK": ("k",),
    **dict.fromkeys(
        ("Squeeze", "Unsqueeze", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
         "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), ("axes",)
    ),
}  # fmt: skip
"""Operator → attributes of older opsets that are inputs now, in order, after the first input."""


@imports(*_INPUTS)
def attributes_as_inputs(im: Importer, call: Call) -> Any:
    return im.one_to_one(_with_inputs(im, call, *_INPUTS[call.operator]))


def _with_inputs(im: Importer, call: Call, *names: str) -> Call:
    """The call with these attributes as inputs after the first one; unchanged if it has none of them."""
    given = dict(call.attributes)
    if not given.keys() & set(names):
        return call
    constants = [_constant(im, call, name, given.pop(name)) if name in given else "" for name in names]
    return call._replace(inputs=(call.inputs[0], *constants), attributes=given)


def _constant(im: Importer, call: Call, name: str, value: Any) -> str:
    """An attribute as a constant: one float in the type of the first input, integers as a vector."""
    is_float = isinstance(value, float)
    array = np.array(value, im.tensors[call.inputs[0]].dtype) if is_float else np.atleast_1d(np.array(value, np.int64))
    return im.constant(array, f"{call.outputs[0]}.{name}")


@imports("Split")
def split(im: Importer, call: Call) -> Any:
    call = _with_inputs(im, call.without("num_outputs"), "split")
    if not call.input(1):
        shape = im.shape(call.inputs[0])
        size = None if shape is None else shape[axis_of(call.attributes.get("axis", 0), len(shape))]
        if not isinstance(size, int):
            return NotImplemented
        part = -(-size // len(call.outputs))
        parts = [max(0, min(part, size - index * part)) for index in range(len(call.outputs))]
        call = call._replace(inputs=(call.inputs[0], _constant(im, call, "split", parts)))
    return im.one_to_one(call)


@imports("Pad")
def pad(im: Importer, call: Call) -> Any:
    pads = "paddings" if "paddings" in call.attributes else "pads"
    if call.opset < 11:
        call = call._replace(attributes={"value": 0.0, **call.attributes})
    return im.one_to_one(_with_inputs(im, call, pads, "value"))


@imports("Upsample", "Resize")
def asymmetric_resize(im: Importer, call: Call) -> Any:
    """Before opset 11: asymmetric coordinates, nearest rounds down."""
    if call.operator == "Resize" and call.opset >= 11:
        return NotImplemented if _is_like_onnx(im, call) else im.opaque(call)
    scales = call.input(1) or im.constant(np.array(call.attributes["scales"], np.float32), f"{call.outputs[0]}.scales")
    mode = call.attributes.get("mode", "nearest")
    attributes = {
        "mode": "linear" if mode in ("linear", "bilinear") else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return im.one_to_one(call._replace(operator="Resize", attributes=attributes, inputs=(call.inputs[0], "", scales)))


def _is_like_onnx(im: Importer, call: Call) -> bool:
    """Whether qfmt's Resize is ONNX's: if a dimension keeps its size by a scale other than 1, only if all do; and if
    integers are not rounded."""
    a, scales, shape = call.attributes, im.value(call.input(2)) if call.input(2) else None, im.shape(call.inputs[0])
    weighted = a.get("mode") == "cubic" or a.get("antialias") or a.get("exclude_outside")
    if weighted and a.get("mode", "nearest") != "nearest" and "float" not in im.tensors[call.inputs[0]].dtype:
        return False
    if scales is None or shape is None or not scales.size or "axes" in a:
        return True
    pairs = [(size, scale) for size, scale in zip(shape, scales.tolist(), strict=True) if isinstance(size, int)]
    stays = [int(size * scale) == size for size, scale in pairs]
    changed = len(pairs) < len(shape) or not all(stays)
    return not (changed and any(stay and scale != 1 for stay, (_, scale) in zip(stays, pairs, strict=True)))


@imports("Softmax", "LogSoftmax", "Hardmax")
def softmax(im: Importer, call: Call) -> Any:
    """Before opset 13, softmax flattened all dimensions from the axis on."""
    rank = im.rank(call.inputs[0])
    axis = call.attributes.get("axis", 1)
    if call.opset >= 13:
        return NotImplemented
    if rank is None and axis != -1:
        return im.opaque(call)
    if rank is None or axis_of(axis, rank) == rank - 1:
        return im.one_to_one(call._replace(attributes={"axis": -1}))
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
    call = _with_inputs(im, call, "shape")
    if call.attributes.get("allowzero"):
        value = im.value(call.inputs[1])
        if value is None or 0 in value:
            return NotImplemented
    return im.one_to_one(call.without("allowzero"))
