"""Files of networks with altered parts: sealed and well-formed, so that only checks of the network itself can
prevent a crash."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from qfmt.file import writer
from qfmt.model import DTYPES, Model, Node, Parameter, Tensor, numpy_dtype

EVIL = (0, 1, -1, 2, 3, 5, 7, 8, 31, 32, 63, 255, 256, -128, 1 << 15, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32,
        1 << 40, 1 << 59, 1 << 62, (1 << 63) - 1, -(1 << 63))  # fmt: skip
TYPES = ("bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float32", "int4", "uint4")


def altered(model: Model, count: int, seed: int, path: Path) -> Iterator[bytes]:
    """Files of the model with one to three alterations each; those that cannot be written are omitted."""
    chance = Random(seed)
    for _ in range(count):
        with suppress(Exception):  # the writer validates less than the reader
            yield written(changed(model, chance), path)


def changed(model: Model, chance: Random) -> Model:
    """The model without its test vectors, with one to three alterations."""
    model = model.replace(vectors=())
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        model = chance.choice(ALTERATIONS)(model, chance)
    return model


def written(model: Model, path: Path) -> bytes:
    """The contents of a file of a model that may break rules."""
    with mock.patch.object(writer, "violations", lambda model: []), mock.patch.object(os, "fsync", lambda file: None):
        model.save(path)
    return path.read_bytes()


def _with_node(model: Model, index: int, node: Node) -> Model:
    nodes = [node if at == index else each for at, each in enumerate(model.nodes)]
    return model.replace(graph=replace(model.graph, nodes=nodes))


def _with_tensor(model: Model, tensor: Tensor) -> Model:
    return model.replace(graph=replace(model.graph, tensors={**model.graph.tensors, tensor.name: tensor}))


def _attribute(model: Model, chance: Random) -> Model:
    """Change a number of an attribute, or their count."""
    index = chance.randrange(len(model.nodes))
    node = model.nodes[index]
    if not node.attributes:
        return model
    name = chance.choice(sorted(node.attributes))
    value: Any = node.attributes[name]
    if isinstance(value, tuple) and value:
        at = chance.randrange(len(value))
        value = chance.choice([(*value[:at], chance.choice(EVIL), *value[at + 1 :]), value[1:], value * 2, ()])
    else:
        value = chance.choice((chance.choice(EVIL), "constant", "reflect", 0.5, (1, 2)))
    return _with_node(model, index, replace(node, attributes={**node.attributes, name: value}))


def _edge(model: Model, chance: Random) -> Model:
    """Replace an input, remove it, or add one."""
    index = chance.randrange(len(model.nodes))
    node, names = model.nodes[index], [*sorted(model.tensors), ""]
    if not node.inputs:
        return model
    at, name = chance.randrange(len(node.inputs)), chance.choice(names)
    inputs = chance.choice([(*node.inputs[:at], name, *node.inputs[at + 1 :]), node.inputs[:-1], (*node.inputs, name)])
    return _with_node(model, index, replace(node, inputs=inputs))


def _rule(model: Model, chance: Random) -> Model:
    index = chance.randrange(len(model.nodes))
    rules = ("", "exact", "folded", "multiply_shift", "fixed_point_double", "power_of_two", "thresholds", "divide")
    return _with_node(model, index, replace(model.nodes[index], rule=chance.choice(rules)))


def _operator(model: Model, chance: Random) -> Model:
    """Replace an operator, with the same operands."""
    index, other = chance.randrange(len(model.nodes)), chance.choice(NODES)
    node = model.nodes[index]
    return _with_node(model, index, replace(node, operator=other[0], version=other[1]))


NODES = (("Conv", 22), ("qfmt.Linear", 1), ("MatMul", 13), ("Mul", 14), ("qfmt.Table", 1), ("qfmt.PairTable", 1),
         ("Reshape", 23), ("Concat", 13), ("Gather", 13), ("Slice", 13), ("Split", 18), ("Pad", 23),
         ("Squeeze", 23), ("Transpose", 23), ("Tile", 13), ("Expand", 13), ("MaxPool", 22),
         ("ReduceMean", 18), ("Relu", 14), ("DequantizeLinear", 23))  # fmt: skip


def _shape(model: Model, chance: Random) -> Model:
    """Change a size or the rank of a computed tensor, or make its shape unknown."""
    tensor = model.tensors[chance.choice(sorted(model.tensors))]
    shape: Any = tensor.shape
    if tensor.data is not None or not shape:
        return model
    at, size = chance.randrange(len(shape)), chance.choice((*EVIL, None, "N"))
    shape = chance.choice([(*shape[:at], size, *shape[at + 1 :]), shape[1:], (1, *shape), None])
    return _with_tensor(model, replace(tensor, shape=shape))


def _dtype(model: Model, chance: Random) -> Model:
    tensor = model.tensors[chance.choice(sorted(model.tensors))]
    if tensor.data is not None:
        return model
    return _with_tensor(model, replace(tensor, dtype=chance.choice(TYPES), quantization=None))


def _constant(model: Model, chance: Random) -> Model:
    """Change the values or the shape of a constant."""
    tensor = model.tensors[chance.choice(sorted(model.tensors))]
    if tensor.data is None:
        return model
    values = tensor.array.copy()
    if values.size and chance.random() < 0.6:
        limits = DTYPES[tensor.dtype]
        number = chance.choice((*EVIL, limits.minimum, limits.maximum))
        values.reshape(-1)[chance.randrange(values.size)] = max(limits.minimum, min(limits.maximum, number))
    else:
        rows = np.atleast_1d(values)
        values = chance.choice([values.reshape(-1), values[None], rows[:1], rows[:0], rows.repeat(2, 0)])
    return _with_tensor(model, Tensor.constant(tensor.name, values, tensor.quantization, dtype=tensor.dtype))


def _quantization(model: Model, chance: Random) -> Model:
    """Remove a quantization, or change its numbers, blocks or form."""
    tensor = model.tensors[chance.choice(sorted(model.tensors))]
    q = tensor.quantization
    if q is None:
        return model
    other = chance.choice(
        [
            None,
            replace(q, zero_point=_numbers(q.zero_point, [chance.choice((0, 1, 3, 127)) for _ in q.zero_point])),
            replace(q, quant_min=q.quant_max),
            replace(q, quant_max=q.quant_min),
            replace(q, scale=_numbers(q.scale, [each * 2 for each in q.scale])),
            replace(q, block=(*(0 for _ in range(chance.choice((0, 1, 2, 9)))), chance.choice((0, 1, 2)))),
            replace(q, offset=q.scale),
            replace(q, scale=replace(q.scale, quantization=q)),
            replace(q, table=Parameter.of_values(np.arange(256, dtype=np.int16))),
        ]
    )
    return _with_tensor(model, replace(tensor, quantization=other))


def _numbers(like: Parameter, values: Sequence[float]) -> Parameter:
    return Parameter.of_values(np.array(values).reshape(like.shape).astype(numpy_dtype(like.dtype)), like.dtype)


def _ends(model: Model, chance: Random) -> Model:
    names = sorted(model.tensors)
    return model.replace(graph=replace(model.graph, **{chance.choice(("inputs", "outputs")): (chance.choice(names),)}))


ALTERATIONS = (_attribute, _attribute, _attribute, _edge, _edge, _rule, _operator, _shape, _shape, _dtype, _constant,
               _constant, _quantization, _ends)  # fmt: skip
