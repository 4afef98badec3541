"""Standard ONNX operators whose older or shorthand forms differ from qfmt's operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import ge
from typing import Any

import numpy as np

from ...errors import SourceError
from ...model import Attribute, Tensor
from ...ops.onnx_recurrent import TAKES_ALPHA, TAKES_BETA
from ...ops.shapes import axis_of
from .calls import Call
from .importer import Importer, imports
from .tensors import dtype_of, stored


@imports("Constant")
def constant(im: Importer, call: Call) -> Any:
    """One of value, value_float(s), value_int(s); strings cannot be stored."""
    (kind, value), *more = call.attributes.items()
    if more or kind not in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        return NotImplemented
    name = call.outputs[0]
    if kind == "value":
        im.tensors[name] = stored(name, value)
        im.budget.allocate(value.nbytes)  # a function with constants may be inlined many times
    else:
        im.tensors[name] = Tensor.constant(name, np.array(value, np.float32 if "float" in kind else np.int64))
    return None


@imports("ConstantOfShape")
def constant_of_shape(im: Importer, call: Call) -> Any:
    """One value, broadcast."""
    given = call.attributes.get("value")
    value = np.zeros(1, np.float32) if given is None else stored(call.outputs[0], given).array
    im.emit("Expand", [im.constant(value.reshape(()), f"{call.outputs[0]}.value"), call.inputs[0]], call.outputs)


@imports("Identity", "Dropout")
def identity(im: Importer, call: Call) -> Any:
    """At inference a dropout is the identity, if nobody reads its mask."""
    call = im.without_unread(call)
    training = (
        im.value(call.input(2)) if call.input(2) else np.array(call.opset < 7 and not call.attributes.get("is_test"))
    )
    if any(call.outputs[1:]) or training is None or (call.operator == "Dropout" and training.any()):
        return NotImplemented
    im.alias(call, call.inputs[0])
    return None


@imports("Max", "Min")
def of_one(im: Importer, call: Call) -> Any:
    """Of one tensor, the identity: qfmt writes it where ONNX Runtime must not fuse nodes. Of float16, it is what makes
    ONNX Runtime round."""
    is_identity = len(call.inputs) == 1 and im.tensors[call.inputs[0]].dtype == "float32"
    return im.alias(call, call.inputs[0]) if is_identity else NotImplemented


@imports("Cast", "CastLike")
def cast(im: Importer, call: Call) -> Any:
    like = call.operator == "CastLike"
    dtype = im.tensors[call.inputs[1]].dtype if like else dtype_of(call.attributes["to"])
    if im.tensors[call.inputs[0]].dtype == dtype:
        return im.alias(call, call.inputs[0])
    if "e8m0" in dtype:  # rounded up, unless `round_mode` says otherwise
        return im.opaque(call)
    attributes: dict[str, Attribute] = {"to": dtype, "saturate": call.attributes.get("saturate", 1)}
    return im.emit("Cast", call.inputs[:1], call.outputs, attributes) and None


@imports("Compress")
def compress(im: Importer, call: Call) -> Any:
    """Without an axis, compress the flattened input."""
    if "axis" in call.attributes:
        return NotImplemented
    minus = im.constant(np.array([-1], np.int64), "flat")
    flat = im.emit("Reshape", [call.inputs[0], minus], f"{call.outputs[0]}.flat")
    im.emit("Compress", [flat, *call.inputs[1:]], call.outputs, {"axis": 0})
    return None


# -- windows -------------------------------------------------------------------------------------------------


@imports("Conv", "ConvInteger", "ConvTranspose")
def conv(im: Importer, call: Call) -> Any:
    shape = im.shape(call.inputs[1])
    kernel = call.attributes.get("kernel_shape", shape[2:] if shape is not None else None)
    if kernel is None or not all(isinstance(size, int) for size in kernel):
        raise SourceError("the size of its kernel is not known", hint="state kernel_shape")
    return _windowed(im, call, [int(size) for size in kernel])


@imports("MaxPool", "AveragePool", "LpPool")
def pool(im: Importer, call: Call) -> Any:
    if call.attributes.get("storage_order"):  # it is the order of the indices
        call = im.without_unread(call)
    return _windowed(im, call, list(call.attributes["kernel_shape"]))


def _windowed(im: Importer, call: Call, kernel: list[int]) -> Any:
    """Convert auto_pad to pads, and write defaults explicitly."""
    rank = len(kernel)
    given = dict(call.attributes)
    auto_pad = given.pop("auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise SourceError(f"its auto_pad is {auto_pad!r}", hint="run onnx.checker for details")
    if not given.get("storage_order", 0) or not any(call.outputs[1:]):
        given.pop("storage_order", None)
    attributes = {"kernel_shape": kernel, "strides": [1] * rank, "dilations": [1] * rank, **given}
    shape = im.shape(call.inputs[0])
    sizes = shape[2:] if shape is not None else (None,) * rank
    if call.operator == "ConvTranspose":
        attributes.setdefault("output_padding", [0] * rank)
        if not _transposed_pads(attributes, sizes, auto_pad):
            return im.opaque(call)
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = _same_totals(attributes, sizes, auto_pad)
        dilated = any(size > 1 and step > 1 for size, step in zip(kernel, attributes["dilations"], strict=True))
        if not call.operator.startswith("Conv") and (dilated or min(totals) < 0):
            return im.opaque(call)  # ONNX Runtime and onnx's reference differ from each other
        attributes["pads"] = _two_sides([max(0, total) for total in totals], auto_pad)
    attributes.setdefault("pads", [0] * 2 * rank)
    return im.one_to_one(call._replace(attributes=attributes))


def _same_totals(a: Mapping[str, Any], sizes: Sequence[Any], auto_pad: str) -> list[int]:
    """The padding of each dimension; negative where a stride is larger than the window and leaves elements out."""
    if any(not isinstance(size, int) for size, stride in zip(sizes, a["strides"], strict=True) if stride != 1):
        raise SourceError(f"auto_pad {auto_pad} requires a known input size", hint="fix the input's shape")
    totals = []
    for size, kernel, stride, dilation in zip(sizes, a["kernel_shape"], a["strides"], a["dilations"], strict=True):
        positions = -(-size // stride) if stride != 1 else None
        reach = (kernel - 1) * dilation
        totals.append(reach if positions is None else (positions - 1) * stride + reach + 1 - size)
    return totals


def _transposed_pads(a: dict[str, Any], sizes: Sequence[Any], auto_pad: str) -> bool:
    """Convert output_shape and auto_pad to pads. With auto_pad the output size is the input size times the stride;
    False if the windows do not reach that far: ONNX Runtime returns less then."""
    wanted = a.pop("output_shape", None)
    if wanted is None and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return True
    if any(not isinstance(size, int) for size in sizes):
        raise SourceError("its output shape requires a known input size", hint="fix the input's shape")
    totals = []
    for index, size in enumerate(sizes):
        target = size * a["strides"][index] if wanted is None else wanted[-len(sizes) :][index]
        reach = (a["kernel_shape"][index] - 1) * a["dilations"][index] + 1
        full = a["strides"][index] * (size - 1) + a["output_padding"][index] + reach
        totals.append(full - target)
    if wanted is None and min(totals) < 0:
        return False
    for index, total in enumerate(totals):  # a missing rest is padded at the end
        if total < 0:
            a["output_padding"] = list(a["output_padding"])
            a["output_padding"][index] -= total
            totals[index] = 0
    a["pads"] = _two_sides(totals, "SAME_UPPER" if auto_pad == "SAME_UPPER" else "SAME_LOWER")
    return True


def _two_sides(totals: Sequence[int], auto_pad: str) -> list[int]:
    """Split padding into two sides; an odd element goes to the end (SAME_UPPER) or to the start (SAME_LOWER)."""
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return less + more if auto_pad == "SAME_UPPER" else more + less


@imports("Gemm")
def gemm(im: Importer, call: Call) -> Any:
    """A Gemm with weight [out, in] becomes a linear layer: no weight is transposed."""
    call = call.without("broadcast")
    a = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **call.attributes}
    if not a["beta"]:  # what is not finite in the third input has no effect
        call = call._replace(inputs=call.inputs[:2])
    bias = call.input(2)
    if "float" not in im.tensors[call.inputs[0]].dtype and not (a["alpha"].is_integer() and a["beta"].is_integer()):
        return im.opaque(call)  # ONNX does not say how such a product of integers is rounded
    plain = a["alpha"] == 1 and not a["transA"] and a["transB"] and (a["beta"] == 1 or not bias)
    weight, shape = im.shape(call.inputs[1]), im.shape(bias) if bias else ()
    flat = not bias or (shape is not None and weight is not None and len(shape) == 1 and shape[0] == weight[0])
    if not plain or not flat or im.rank(call.inputs[0]) != 2:
        return im.one_to_one(call)
    im.emit("qfmt.Linear", [call.inputs[0], call.inputs[1], bias], call.outputs)
    return None


@imports("RNN", "GRU", "LSTM")
def recurrent(im: Importer, call: Call) -> Any:
    """ONNX Runtime does not clip the cell of an LSTM. ONNX has no defaults of alpha and beta for some activations."""
    if call.operator == "LSTM" and call.attributes.get("clip"):
        return im.opaque(call)
    named = call.attributes.get("activations", ())
    stated = [len(call.attributes.get(name, ())) for name in ("activation_alpha", "activation_beta")]
    needed = [len([name for name in named if name in takes]) for takes in (TAKES_ALPHA, TAKES_BETA)]
    is_complete = all(map(ge, stated, needed))
    return NotImplemented if is_complete or not WITHOUT_DEFAULTS.intersection(named) else im.opaque(call)


WITHOUT_DEFAULTS = {"Affine", "ScaledTanh", "ThresholdedRelu"}


@imports("BatchNormalization")
def batch_normalization(im: Importer, call: Call) -> Any:
    a = call.attributes
    testing = a.get("is_test") or call.opset >= 7
    if not testing or not a.get("spatial", 1) or a.get("training_mode") or any(call.outputs[1:]):
        return NotImplemented
    return im.one_to_one(call.without("is_test", "spatial", "training_mode")._replace(outputs=call.outputs[:1]))


@imports("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", "PRelu")
def stretched(im: Importer, call: Call) -> Any:
    """Before opset 7 the second operand was aligned at an axis, and broadcast only if `broadcast` was set."""
    if call.opset >= 7:
        return NotImplemented
    axis = call.attributes.get("axis", 1 if call.operator == "PRelu" else None)
    first, second = (im.shape(name) for name in call.inputs[:2])
    if first is None or second is None or None in second:
        raise SourceError("of opset 6 or older requires known input shapes", hint="run onnx.shape_inference")
    behind = 0 if axis is None or not second else len(first) - len(second) - axis_of(axis, len(first))
    other = call.inputs[1]
    if behind > 0:
        target = im.constant(np.array([*second, *[1] * behind], np.int64), f"{other}.shape")
        other = im.emit("Reshape", [other, target], f"{other}.aligned")
    return im.one_to_one(call.without("axis", "broadcast")._replace(inputs=(call.inputs[0], other)))


@imports("GroupNormalization")
def group_normalization(im: Importer, call: Call) -> Any:
    """Before opset 21 scale and bias had one element per group."""
    shape, groups = im.shape(call.inputs[0]), call.attributes["num_groups"]
    if call.opset >= 21 or shape is None or not isinstance(shape[1], int):
        return NotImplemented if call.opset >= 21 else im.opaque(call)
    im.budget.allocate(8 * shape[1])
    each = im.constant(np.arange(shape[1]) * groups // shape[1], "channels")
    spread = [im.emit("Gather", [name, each], f"{name}.channels", {"axis": 0}) for name in call.inputs[1:]]
    return im.one_to_one(call._replace(inputs=(call.inputs[0], *spread)))


@imports("Transpose")
def transpose(im: Importer, call: Call) -> Any:
    rank = im.rank(call.inputs[0])
    if "perm" in call.attributes or rank is None:
        return NotImplemented
    return im.one_to_one(call._replace(attributes={"perm": tuple(reversed(range(rank)))}))


@imports("Shape")
def shape(im: Importer, call: Call) -> Any:
    given = {"start": 0, "end": 2**63 - 1, **call.attributes}
    known = im.shape(call.inputs[0])
    if known is not None and all(isinstance(size, int) for size in known) and call.outputs[0] not in im.outputs:
        sizes = np.array(known, np.int64)[slice(given["start"], given["end"])]
        return im.alias(call, im.constant(sizes, call.outputs[0]))
    return im.one_to_one(call._replace(attributes=given))


@imports("Flatten")
def flatten(im: Importer, call: Call) -> Any:
    return im.one_to_one(call._replace(attributes={"axis": 1, **call.attributes}))
