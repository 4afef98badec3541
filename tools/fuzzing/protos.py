"""Mutants of ONNX models: fields of the parsed protobuf."""

from __future__ import annotations

from random import Random
from typing import Any

from .flips import changed_bytes
from .trees import TEXTS, other_value


def changed_onnx(data: bytes, chance: Random) -> bytes:
    """A copy with changed, removed, duplicated or moved fields of the parsed model."""
    if chance.random() < 0.1:
        return changed_bytes(data, chance)
    from google.protobuf.message import DecodeError, EncodeError
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(data)
        for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
            _change_message(model, chance)
        return bytes(model.SerializeToString())
    except (DecodeError, EncodeError, ValueError, RecursionError):
        return changed_bytes(data, chance)


def _change_message(model: Any, chance: Random) -> None:
    messages: list[Any] = []
    _collect(model, messages)
    names = [name for each in messages if each.DESCRIPTOR.name == "NodeProto" for name in (*each.input, *each.output)]
    message = chance.choice([each for each in messages if each.ListFields()] or [model])
    if message.DESCRIPTOR.name == "NodeProto" and names and chance.random() < 0.5:
        _rewire(message, names, chance)
        return
    fields = [field for field, _ in message.ListFields()]
    if not fields or chance.random() < 0.1:  # a missing field
        fields = [field for field in message.DESCRIPTOR.fields if field.message_type is None]
    if not fields:
        return
    field = chance.choice(fields)
    value = getattr(message, field.name)
    repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    if repeated:
        _change_repeated(value, field, messages, chance)
    elif field.message_type is not None:
        if chance.random() < 0.5:
            message.ClearField(field.name)
        else:
            _graft(value, messages, chance)
    elif chance.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _fitting(value, field, names, chance))


def _collect(message: Any, found: list[Any]) -> None:
    found.append(message)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if hasattr(value, "DESCRIPTOR") else value:
                _collect(each, found)


def _rewire(node: Any, names: list[str], chance: Random) -> None:
    ends = chance.choice((node.input, node.input, node.input, node.output))
    way = chance.random()
    if not ends or way < 0.2:
        ends.append(chance.choice((*names, "")))
    elif way < 0.4:
        del ends[chance.randrange(len(ends))]
    else:
        ends[chance.randrange(len(ends))] = chance.choice((*names, *names, ""))


def _change_repeated(values: Any, field: Any, messages: list[Any], chance: Random) -> None:
    if field.message_type is not None:
        way = chance.random()
        if way < 0.4:
            del values[chance.randrange(len(values))]
        elif way < 0.7:
            values.add().CopyFrom(chance.choice(list(values)))
        else:
            _graft(chance.choice(list(values)), messages, chance)
        return
    way = chance.random()
    if not values or way < 0.2:
        start = {9: "", 12: b""}.get(field.type, 0.0 if field.type in (1, 2) else 0)
        values.append(_fitting(values[0] if values else start, field, [], chance))
    elif way < 0.4:
        del values[chance.randrange(len(values))]
    else:
        at = chance.randrange(len(values))
        values[at] = _fitting(values[at], field, [], chance)


def _graft(message: Any, messages: list[Any], chance: Random) -> None:
    """Replace a message by another one of the same type."""
    same = [each for each in messages if each.DESCRIPTOR is message.DESCRIPTOR]
    other = type(message)()
    other.CopyFrom(chance.choice(same))
    message.CopyFrom(other)


OPERATORS = (
    "Conv", "Gemm", "MatMul", "Add", "Mul", "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Reshape",
    "Transpose", "Concat", "Split", "Slice", "Pad", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear",
    "Resize", "Squeeze", "Unsqueeze", "Gather", "Softmax", "Cast", "Constant", "ConstantOfShape", "Upsample", "TopK",
    "BatchNormalization", "Dropout", "Shape", "ReduceMean", "Loop", "If", "Scan", "QLinearConv", "QLinearMatMul",
    "MatMulInteger", "ConvInteger", "LSTM", "GRU", "Expand", "Tile", "Range", "Where", "Identity", "Flatten",
    "QLinearAdd", "QGemm", "MatMulNBits", "GatherBlockQuantized", "QLinearConcat", "QLinearSoftmax", "ConvTranspose",
    "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QLinearAveragePool", "DepthToSpace", "GridSample", "Einsum",
    "NonZero", "CumSum", "ScatterND", "OneHot", "Trilu", "Size", "SequenceConstruct", "Optional", "Attention",
)  # fmt: skip


def _fitting(value: Any, field: Any, names: list[str], chance: Random) -> Any:
    """Another value for a field, of its type and inside the range of the type."""
    if field.name == "op_type":
        return chance.choice(OPERATORS)
    if field.name in ("raw_data", "string_data", "strings", "s") and isinstance(value, bytes):
        return changed_bytes(value, chance)
    if isinstance(value, str):
        return chance.choice((*TEXTS, *names, "axis", "axes", "com.microsoft", "ai.onnx", "SAME_UPPER", value))
    if isinstance(value, float):
        return max(-3.4e38, min(3.4e38, other_value(value, chance)))
    bits = 32 if field.cpp_type in (1, 3, 8) else 64
    number = int(other_value(int(value), chance))
    if field.cpp_type in (3, 4):
        return number % (1 << bits)
    return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
