"""Sound files, and files that differ from them in one thing: in a table, a number, a byte of the data."""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from qfmt import save
from qfmt.file import header
from qfmt.file.decode import Decoder
from qfmt.file.encode import encode
from qfmt.model import Graph, Model, Node, Proof, Quantization, Tensor
from qfmt.ops import OPERATORS

from .containers import PRODUCER, plain

Record = dict[str, Any]


def sound() -> Model:
    """What is broken: a layer, a ReLU, blocks, a bool, a test vector."""
    scales = np.array([[0.5, -0.25], [0.0, 1.5], [2.0, 0.125]], np.float16)
    groups = Quantization.of_blocks("uint4", (3, 5), (1, 3), scales, np.arange(6).reshape(3, 2))
    out = Quantization.of((0.25,), (3,), 3, 255)
    tensors = [
        Tensor.constant("b", np.array([0.5, -0.5, 0.0], np.float32)),
        Tensor.constant("flag", np.array([True, False, True])),
        Tensor.constant("g", np.arange(15).reshape(3, 5), groups, dtype="uint4"),
        Tensor("r", "uint8", ("N", 3), None, out),
        Tensor.constant(
            "w", np.arange(12, dtype=np.int8).reshape(3, 4), Quantization.of((0.5, 1.0, 2.0), (0,) * 3, -127, 127, 0)
        ),
        Tensor("x", "uint8", ("N", 4), None, Quantization.of((0.5,), (7,), 0, 255)),
        Tensor("y", "uint8", ("N", 3), None, out),
    ]
    nodes = (
        Node("qfmt.Linear", ("x", "w", "b"), ("y",), {}, "fc", OPERATORS["qfmt.Linear"].version, "float_bias"),
        Node("Relu", ("y",), ("r",), {}, "relu", OPERATORS["Relu"].version),
    )
    graph = Graph(("x",), ("r",), nodes, {tensor.name: tensor for tensor in tensors})
    model = Model(graph, PRODUCER, "fbgemm", {"format": "none"}, {"a": "1", "b": "2"})
    model = model.with_vectors({"x": np.arange(80, dtype=np.uint8).reshape(20, 4)})
    log = Node("vendor.Log", ("r",), ("z",), {"level": 1, "names": ("a",)})
    logged = Tensor("z", "uint8", ("M", 4), None, Quantization.of((0.5,), (7,), 0, 255))
    tensors.append(logged)  # no rule of an operator is about it
    known = {tensor.name: tensor for tensor in tensors}
    return replace(model, graph=replace(graph, nodes=(*nodes, log), tensors=known))


def integers() -> Model:
    """What is broken in integer-only networks: sums, then multiplied or counted, then a table."""
    tensors = [
        Tensor("x", "uint8", (1, 4), None, Quantization.of((0.5,), (7,), 0, 255)),
        Tensor.constant("w", np.arange(8, dtype=np.int8).reshape(2, 4), Quantization.of((0.5,), (0,), -127, 127)),
        Tensor("sums", "int32", (1, 2)),
        Tensor.constant("multiplier", np.array([3, 5], np.int32)),
        Tensor.constant("shift", np.array([2, 3], np.uint8)),
        Tensor.constant("add", np.array([1, 2], np.int64)),
        Tensor.constant("thresholds", np.array([[-5, 0, 5], [1, 1, 9]], np.int32)),
        Tensor.constant("row", np.array([-1, 1], np.int32)),
        Tensor("y", "uint2", (1, 2), None, Quantization.of((0.25,), (1,), 0, 3)),
        Tensor.constant("table", np.array([0, 10, 20, 30], np.int8)),
        Tensor("z", "int8", (1, 2), None, Quantization.of((0.25,), (0,), -50, 50)),
    ]
    names = ("sums", "multiplier", "shift", "add", "thresholds", "row")
    nodes = (
        Node("qfmt.Linear", ("x", "w"), ("sums",), {}, "sums", 1, "folded"),
        Node("qfmt.Requantize", names, ("y",), {"axis": 1}, "y", 1, "multiply_shift", proof=Proof((-9999,), (9999,))),
        Node("qfmt.Table", ("y", "table"), ("z",), {"axis": -1}, "z", 1),
    )
    graph = Graph(("x",), ("z",), nodes, {tensor.name: tensor for tensor in tensors})
    return Model(graph, PRODUCER).with_vectors({"x": np.array([[1, 2, 3, 4]], np.uint8)})


HALVES = Quantization.of((0.5,), (7,), 0, 255)
POOL = {"ceil_mode": 0, "count_include_pad": 0, "dilations": (1, 1), "kernel_shape": (2, 2), "strides": (2, 2)}


def formulas() -> Model:
    """What is broken: operators that move integers, and rules whose grids must fit."""
    one = Quantization.of((0.25,), (0,), -8, 7)
    tensors = [
        Tensor("a", "uint8", (1, 1, 4, 4), None, HALVES),
        Tensor.constant("one", np.array([9], np.uint8), HALVES),
        Tensor.constant("tiles", np.ones((3, 4), np.int8), one),
        Tensor("pool", "uint8", (1, 1, 2, 2), None, HALVES),
        Tensor("same", "uint8", (1, 1, 4, 4), None, HALVES),
        Tensor("moved", "int8", (3, 4), None, one),
        Tensor("shape", "int64", (4,)),
        Tensor("real", "float32", (1, 1, 4, 4)),
        Tensor("sum", "uint8", (1, 1, 4, 4), None, HALVES),
        Tensor("product", "uint8", (1, 1, 4, 4), None, HALVES),
    ]
    nodes = (
        _node("AveragePool", ("a",), "pool", "mean_reciprocal", **POOL, pads=(0, 0, 0, 0)),
        _node("Identity", ("a",), "same"),
        _node("Identity", ("tiles",), "moved"),
        _node("Shape", ("a",), "shape"),
        _node("DequantizeLinear", ("a",), "real"),
        _node("Add", ("a", "one"), "sum", "sum"),
        _node("Mul", ("a", "one"), "product", "product"),
    )
    return _model(("a",), nodes, tensors)


def sums() -> Model:
    """What is broken: exact sums of other operators, and what uses them."""
    tensors = [
        Tensor("a", "uint8", (1, 1, 4, 4), None, HALVES),
        Tensor("rows", "uint8", (2, 2), None, HALVES),
        Tensor("small", "uint2", (3,)),
        Tensor.constant("one", np.array([9], np.uint8), HALVES),
        Tensor.constant("w", np.array([[1, 2], [3, 4]], np.int8), Quantization.of((0.5,), (0,), -127, 127)),
        Tensor.constant("mul", np.array([3], np.int32)),
        Tensor.constant("table", np.array([0, 10, 20, 30], np.int8)),
        Tensor("mean", "int32", (1, 1, 2, 2)),
        Tensor("weighted", "int32", (1, 1, 4, 4)),
        Tensor("shifted", "uint8", (1, 1, 4, 4), None, HALVES),
        Tensor("sums", "int32", (2, 2)),
        Tensor("found", "int8", (3,)),
    ]
    nodes = (
        _node("AveragePool", ("a",), "mean", "exact", **{**POOL, "kernel_shape": (3, 3)}, pads=(1, 1, 0, 0)),
        _node("qfmt.WeightedSum", ("a", "one"), "weighted", weights=(1, 2)),
        _node("qfmt.RequantShift", ("weighted", "mul", "mul"), "shifted", "multiply_add_divide", div=2),
        _node("Gemm", ("rows", "w"), "sums", "exact"),
        _node("qfmt.Table", ("small", "table"), "found"),
    )
    return _model(("a", "rows", "small"), nodes, tensors)


def values() -> Model:
    """What is broken in values of test vectors: inputs that are outputs."""
    tensors = [Tensor("a", "bool", (3,)), Tensor("b", "uint2", (3,))]
    given = {"a": np.array([True, False, True]), "b": np.array([1, 2, 3], np.uint8)}
    return _model(("a", "b"), (), tensors, ("a", "b")).with_vectors(given)


def _node(operator: str, inputs: tuple[str, ...], output: str, rule: str = "", **attributes: Any) -> Node:
    known = OPERATORS[operator]
    return Node(operator, inputs, (output,), known.complete(attributes), "", known.version, rule)


def alone(
    operator: str,
    inputs: Sequence[Tensor | None],
    *outputs: Tensor,
    rule: str = "",
    proof: Proof | None = None,
    **attributes: Any,
) -> bytes:
    """The file of one node, whose inputs are constants, or inputs of the graph; it may break rules."""
    known, given = OPERATORS[operator], [each for each in inputs if each is not None]
    names = tuple(each.name if each is not None else "" for each in inputs)
    made = tuple(each.name for each in outputs)
    node = Node(operator, names, made, known.complete(attributes), "", known.version, rule, proof=proof)
    ends = tuple(each.name for each in given if not each.is_constant)
    return unchecked(Model(Graph(ends, made, (node,), {each.name: each for each in (*given, *outputs)}), PRODUCER))


def _model(
    inputs: tuple[str, ...], nodes: tuple[Node, ...], tensors: list[Tensor], moved: tuple[str, ...] = ()
) -> Model:
    read = {name for node in nodes for name in node.inputs}
    outputs = tuple(name for node in nodes for name in node.outputs if name not in read)
    return Model(Graph(inputs, outputs + moved, nodes, {tensor.name: tensor for tensor in tensors}), PRODUCER)


def unchecked(model: Model) -> bytes:
    """The file of a model that breaks a rule."""
    with tempfile.TemporaryDirectory() as folder, mock.patch("qfmt.file.writer.violations", return_value=[]):
        save(model, Path(folder) / "broken.qfb")
        return (Path(folder) / "broken.qfb").read_bytes()


class Base:
    """The bytes of the sound file, and files that differ from it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.meta_size, self.data_offset = struct.unpack_from("<QQ", data, 16)

    def record(self) -> Record:
        record: Record = plain(Decoder(self.data[: self.meta_size], "Model", start=header.SIZE).root())
        return record

    def changed(self, change: Callable[[Record], object]) -> bytes:
        """Another record about the same data."""
        record = self.record()
        change(record)
        return written(record, self.data[self.data_offset :])

    def with_data(self, at: int, new: bytes) -> bytes:
        """Other bytes in the data segment, under digests that fit."""
        segment = bytearray(self.data[self.data_offset :])
        segment[at : at + len(new)] = new

        def change(record: Record) -> None:
            for buffer in record["buffers"]:
                stored = segment[buffer["offset"] : buffer["offset"] + buffer["size"]]
                buffer["sha256"] = hashlib.sha256(stored).digest()

        record = self.record()
        change(record)
        return written(record, bytes(segment))

    def offset(self, name: str) -> int:
        """Where the data of a tensor begins in the segment."""
        record = self.record()
        return int(record["buffers"][tensor(record, name)["buffer"]]["offset"])

    def value_offset(self, end: str) -> int:
        """Where the first value of the first test vector begins in the segment."""
        record = self.record()
        return int(record["buffers"][record["vectors"][0][end][0]["buffer"]]["offset"])


def written(record: Record, segment: bytes) -> bytes:
    made = header.seal(*encode("Model", record), len(segment))
    return made + bytes(-len(made) % header.PAGE) + segment


def tensor(record: Record, name: str) -> Record:
    found: Record = next(each for each in record["graph"]["tensors"] if each["name"] == name)
    return found


def setting(which: str, **fields: Any) -> Callable[[Record], object]:
    """A tensor with other fields."""
    return lambda record: tensor(record, which).update(fields)


def grid(which: str, **fields: Any) -> Callable[[Record], object]:
    """A tensor with other fields of its quantization."""

    def change(record: Record) -> None:
        own = tensor(record, which)
        own["quantization"] = {**own["quantization"], **fields}

    return change


def numbers(
    which: str, name: str, *, new: bool = False, block: list[int] | None = None, **fields: Any
) -> Callable[[Record], object]:
    """A tensor with other fields of an array of its quantization, or, if it is `new`, with these alone."""

    def change(record: Record) -> None:
        own = tensor(record, which)["quantization"]
        made = {**own, name: fields if new else {**own[name], **fields}}
        tensor(record, which)["quantization"] = made if block is None else {**made, "block": block}

    return change


def node(index: int, **fields: Any) -> Callable[[Record], object]:
    return lambda record: record["graph"]["nodes"][index].update(fields)


def attribute(index: int, which: str, **fields: Any) -> Callable[[Record], object]:
    """A node with other fields of an attribute."""
    return lambda record: next(
        each for each in record["graph"]["nodes"][index]["attributes"] if each["name"] == which
    ).update(fields)


def both(*changes: Callable[[Record], object]) -> Callable[[Record], object]:
    return lambda record: [change(record) for change in changes]


def graph(**fields: Any) -> Callable[[Record], object]:
    return lambda record: record["graph"].update(fields)


def root(**fields: Any) -> Callable[[Record], object]:
    return lambda record: record.update(fields)


def value(end: str, **fields: Any) -> Callable[[Record], object]:
    return lambda record: record["vectors"][0][end][0].update(fields)
