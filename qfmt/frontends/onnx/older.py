"""Operators of older opsets: attributes that are inputs now, and changed semantics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp
from typing import Any, NamedTuple

import numpy as np

from ...arithmetic import f32
from ...arrays import Array
from ...errors import SourceError
from ...graph import MAXIMUM_RANK
from ...model import DTYPES, Attribute
from ...ops import OPERATORS
from ...ops.resize import (
    check_scales,
    divided_neighbours,
    divides_alike,
    enlarged,
    is_nearest,
    may_stay,
    neighbours,
    on_a_border,
)
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
    sizes = im.value(call.inputs[1])
    if sizes is not None and sizes.size != len(call.outputs):  # thousands of nodes may share it
        raise SourceError(f"splits into {sizes.size:,} parts, but has {len(call.outputs):,} outputs")
    return im.one_to_one(call)


@imports("Pad")
def pad(im: Importer, call: Call) -> Any:
    pads = "paddings" if "paddings" in call.attributes else "pads"
    if call.opset < 11:
        call = call._replace(attributes={"value": 0.0, **call.attributes})
    call = _with_inputs(im, call, pads, "value")
    widths = im.value(call.inputs[1])
    if call.attributes.get("mode") == "wrap" and widths is not None and np.any(widths < 0):
        return im.opaque(call)  # ONNX does not say whether it repeats what is left
    return im.one_to_one(call)


@imports("Upsample", "Resize")
def resize(im: Importer, call: Call) -> Any:
    """Before opset 11: asymmetric coordinates, nearest rounds down."""
    now = call
    if call.opset < 11:
        scales = call.input(1) or im.constant(
            np.array(call.attributes["scales"], np.float32), f"{call.outputs[0]}.scales"
        )
        mode = call.attributes.get("mode", "nearest")
        attributes = {
            "mode": "linear" if mode in ("linear", "bilinear") else mode,
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        now = call._replace(operator="Resize", attributes=attributes, inputs=(call.inputs[0], "", scales))
        if call.operator == "Resize" and mode == "nearest" and not _are_whole(_given(im, now, 2)):
            return im.opaque(call)
    if not _is_like_onnx(im, now):
        return im.opaque(call)
    for name, spec in OPERATORS["Resize"].attributes.items():
        if name in now.attributes and (wrong := spec.wrong(now.attributes[name])):
            raise SourceError(f"the attribute {name!r} {wrong}")
    if (found := _selected(im, now)) is not None:
        return _gathered(im, now, found) if found else im.opaque(call)
    if _depends_on_run(im, now):
        im.unchecked.append(now.outputs[0])
    if now.input(2) and not _given(im, now, 2) and not now.input(3):
        now = now._replace(inputs=(*now.inputs[:2], _checked(im, now)))
    return im.one_to_one(now)


def _selected(im: Importer, call: Call) -> dict[int, Array] | None:
    """Axis → the elements that a nearest Resize selects, if they are others than those of qfmt's Resize; none if they
    are not known. None if they are the same, or if that depends on a run."""
    a = {**RESIZE, **call.attributes}
    along = _along(im, call, a["keep_aspect_ratio_policy"])
    if along is None or not is_nearest(a) or a["keep_aspect_ratio_policy"] != "stretch":
        return None
    by_scale = bool(_given(im, call, 2))
    found, alike = {}, True
    for axis, each in zip(call.attributes.get("axes") or range(len(along)), along, strict=True):
        if each.scale == 1 or each.out == each.size is not None:
            continue
        if each.size is None or each.out is None:
            if not divides_alike(f32(each.scale), a):
                return {}
            continue
        im.budget.allocate(64 * each.out)
        if on_a_border(each.size, each.out, each.scale, a):
            return {}
        scale = f32(each.scale) if by_scale else f32(each.out) / f32(each.size)
        found[axis] = divided_neighbours(each.size, each.out, scale, a)
        own = neighbours(each.size, a, scale=scale) if by_scale else neighbours(each.size, a, size=each.out)
        alike = alike and np.array_equal(found[axis], own)
    return None if alike else found if len(found) == sum(each.scale != 1 for each in along) else {}


def _depends_on_run(im: Importer, call: Call) -> bool:
    """Whether the elements that a nearest Resize selects are known only at run time. ONNX may select others."""
    a = {**RESIZE, **call.attributes}
    along = _along(im, call, a["keep_aspect_ratio_policy"])
    return is_nearest(a) and (along is None or a["keep_aspect_ratio_policy"] != "stretch")


def _gathered(im: Importer, call: Call, found: Mapping[int, Array]) -> None:
    name, result = call.inputs[0], call.outputs[0]
    for number, (axis, indices) in enumerate(found.items(), 1):
        outputs = [result if number == len(found) else im.fresh(f"{result}.{axis}")]
        im.emit("Gather", [name, im.constant(indices, f"{result}.neighbours")], outputs, {"axis": axis})
        name = outputs[0]


RESIZE: dict[str, Any] = {
    "mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor",
    "keep_aspect_ratio_policy": "stretch",
}  # fmt: skip
"""ONNX's defaults."""


def _are_whole(scales: Sequence[float]) -> bool:
    """Whether nearest elements are at whole positions wherever a size shrinks: opset 10 does not say how they are
    rounded, and ONNX Runtime rounds them up."""
    return bool(scales) and all(scale >= 1 or frexp(scale)[0] == 0.5 for scale in scales)


def _checked(im: Importer, call: Call) -> str:
    """Computed scales, which become NaN, an error, if the result is not like ONNX's (`_is_like_onnx`)."""
    name = call.inputs[2]

    def emit(operator: str, *inputs: str, **attributes: Attribute) -> str:
        return im.emit(operator, inputs, f"{name}.{operator.lower()}", attributes)

    sizes = emit("Shape", call.inputs[0], start=0, end=2**63 - 1)
    if axes := call.attributes.get("axes"):
        sizes = emit("Gather", sizes, im.constant(np.array(axes, np.int64), f"{name}.axes"), axis=0)
    sizes = emit("Cast", sizes, to=im.tensors[name].dtype)
    stays = emit("Equal", emit("Floor", emit("Mul", sizes, name)), sizes)
    scaled = emit("Not", emit("Equal", name, im.constant(np.float32(1), f"{name}.one")))
    changes = emit("ReduceMax", emit("Cast", emit("Not", stays), to="int32"), keepdims=1, noop_with_empty_axes=0)
    wrong = emit("And", emit("And", stays, scaled), emit("Cast", changes, to="bool"))
    return emit("Where", wrong, im.constant(np.float32(np.nan), f"{name}.nan"), name)


class _Along(NamedTuple):
    """Size, output size and scale of a dimension that is resized; None for sizes that are not known."""

    size: int | None
    out: int | None
    scale: float

    @property
    def may_stay(self) -> bool:
        return may_stay(self.scale) if self.size is None else self.out == self.size

    @property
    def may_change(self) -> bool:
        return self.size is None or self.out != self.size


def _is_like_onnx(im: Importer, call: Call) -> bool:
    """Whether qfmt's Resize is ONNX's, whatever the sizes are that only a run knows.

    ONNX does not say how numbers between integers are rounded. It interpolates along dimensions that keep their size by
    a scale other than 1, unless all dimensions keep theirs.
    """
    a = {**RESIZE, **call.attributes}
    if a["coordinate_transformation_mode"] == "tf_half_pixel_for_nn":  # opset 11 has it, and no later one
        return False
    dtype, along = im.tensors[call.inputs[0]].dtype, _along(im, call, a["keep_aspect_ratio_policy"])
    if a["mode"] != "nearest" and "float" not in dtype:
        return DTYPES[dtype].bits == 8 and along is not None and _is_exact(a, [each.scale for each in along])
    if along is None or (a["keep_aspect_ratio_policy"] == "stretch" and not _given(im, call, 2)):
        return a["keep_aspect_ratio_policy"] == "stretch" or not _given(im, call, 3)
    scaled = [each for each in along if each.scale != 1]
    return len(scaled) < 2 or not any(each.may_stay for each in scaled) or not any(each.may_change for each in scaled)


def _along(im: Importer, call: Call, policy: str) -> list[_Along] | None:
    """Each dimension that is resized; None if scales are not known."""
    shape, scales, wanted = im.shape(call.inputs[0]), _given(im, call, 2), _given(im, call, 3)
    check_scales(im.value(call.input(2)))
    axes = call.attributes.get("axes") or range(len(scales or wanted))
    known = [None if shape is None else shape[axis] for axis in axes]
    sizes = [size if isinstance(size, int) else None for size in known]
    if scales:
        pairs = zip(sizes, scales, strict=True)
        return [_Along(size, None if size is None else enlarged(size, f32(scale)), scale) for size, scale in pairs]
    static = [size for size in sizes if size]
    if not wanted or len(static) < len(sizes):
        return None
    ratios = [out / size for size, out in zip(static, wanted, strict=True)]
    if policy == "stretch":
        return [*map(_Along, static, wanted, ratios)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [_Along(size, int(scale * size + 0.5), scale) for size in static]


def _given(im: Importer, call: Call, place: int) -> list[Any]:
    """The scales or sizes; none if they are absent or computed. SourceError for more than a tensor has dimensions:
    thousands of nodes may share them."""
    value = im.value(call.input(place))
    if value is not None and value.size > MAXIMUM_RANK:
        raise SourceError(f"has {value.size:,} scales or sizes; a tensor has up to {MAXIMUM_RANK} dimensions")
    return [] if value is None else [*value.reshape(-1).tolist()]


def _is_exact(a: Mapping[str, Any], scales: Sequence[float]) -> bool:
    """Whether a linear Resize of integers of 8 bits is exact in float32 in any order: then they are truncated alike."""
    whole = a["mode"] == "linear" and not a.get("antialias") and not a.get("exclude_outside")
    powers = all(frexp(scale)[0] == 0.5 and 1 / 16 <= scale <= 16 for scale in scales)
    places = a.get("coordinate_transformation_mode", "half_pixel")
    return whole and powers and places in ("asymmetric", "half_pixel", "pytorch_half_pixel")


@imports("GridSample")
def grid_sample(im: Importer, call: Call) -> Any:
    """Before opset 20 two modes had other names."""
    names = {"bilinear": "linear", "bicubic": "cubic"} if call.opset < 20 else {}
    given = call.attributes.get("mode", "linear")
    return im.one_to_one(call._replace(attributes={**call.attributes, "mode": names.get(given, given)}))


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
