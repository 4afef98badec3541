"""Damaged files, and what it means to survive reading one."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import qfmt
from qfmt.errors import QfmtError
from qfmt.file.header import SIZE, metadata_digest
from qfmt.model import Model, Quantization

EVIL = (0, 1, 2, 3, 4, 7, 8, 64, 0x7F, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)


def sealed(data: bytes | bytearray) -> bytes:
    """A file whose metadata were changed, with a digest that fits: now only the decoder stands in the way."""
    meta_size = struct.unpack_from("<Q", data, 16)[0]
    return bytes(data[:64]) + metadata_digest(bytes(data[:meta_size])) + bytes(data[96:])


def mutants(data: bytes, *, count: int, seed: int) -> Iterator[bytes]:
    """Copies of a file with one to four changes in the metadata or the root offset, and a fitting digest."""
    chance = random.Random(seed)
    meta_size = struct.unpack_from("<Q", data, 16)[0]
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.choice((0, *[chance.randrange(SIZE, meta_size)] * 30))
            if chance.random() < 0.5:
                changed[at] ^= 1 << chance.randrange(8)
            else:
                at = at // 4 * 4
                value = chance.choice((*EVIL, chance.randrange(meta_size)))
                changed[at : at + 4] = struct.pack("<I", value)[: meta_size - at]
        yield sealed(changed)


def touch(model: Model) -> None:
    """Use everything that a model holds."""
    graph = model.graph
    _ = model.producer, model.source, model.metadata, graph.inputs, graph.outputs
    for tensor in graph.tensors.values():
        assert graph.tensors[tensor.name] is tensor
        if tensor.data is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # values that overflow float32 are not damage
            tensor.dequantize()
        assert tensor.array.shape == tensor.shape
    for node in graph.nodes:
        assert all(name == "" or name in graph.tensors for name in (*node.inputs, *node.outputs))
        assert sorted(node.attributes) == list(node.attributes)
    for vector in model.vectors:
        assert all(value.array.shape == value.shape for *_, value in vector.stored(graph))
    model.content_id()


def overwrite(path: Path, data: bytes) -> None:
    """Make `data` the contents of a file in place: some file systems flush what was first truncated to nothing."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(data)
        file.truncate()


def survives(data: bytes, path: Path, *, verify: bool = True) -> bool:
    """Whether a file can be read completely. Any exception but QfmtError escapes."""
    overwrite(path, data)
    try:
        touch(qfmt.load(path, verify=verify))
    except QfmtError as error:
        assert str(error).startswith(f"{path}: ")
        assert "\n" not in str(error)
        return False
    return True


def small_file(path: Path) -> bytes:
    """A file of less than 6 kB with three quantized constants, nodes, attributes, maps and padding."""
    from qfmt import Graph, Node, Tensor

    weight = np.array([[-127, 3], [4, 127]], np.int8)
    tensors = [
        Tensor("x", "uint8", ("N", 2), None, Quantization((0.5,), (3,), 0, 255)),
        Tensor.constant("w", weight, Quantization((0.25, 0.5), (0, 0), -127, 127, axis=0), aliases=("fc._packed",)),
        Tensor.constant("i", np.array([1, -8, 7]), Quantization((1.0,), (0,), -8, 7), dtype="int4"),
        Tensor.constant("g", np.arange(10).reshape(2, 5), _groups(), dtype="uint4"),
        Tensor("y", "uint8", ("N", 2), None, Quantization((0.125,), (3,), 3, 255)),
    ]
    attributes = {"alpha": 0.5, "axes": (1, 2), "mode": "linear", "names": ("a", "b"), "n": 7}
    nodes = (Node("vendor.Linear", ("x", "w", "", "i"), ("y",), attributes, "fc", 3, "float_bias", "fc", "q::linear"),)
    graph = Graph(("x",), ("y",), nodes, {tensor.name: tensor for tensor in tensors}, "small")
    Model(graph, "test", "fbgemm", {"framework": "none"}, {"a": "b", "c": "d"}).save(path)
    return path.read_bytes()


def _groups() -> Quantization:
    """Two scales and zero points a row of five."""
    scales = np.array([[0.5, -1], [2, 0]], np.float16)
    return Quantization.of_blocks("uint4", (2, 5), (1, 3), scales, np.array([[1, 2], [3, 4]]))
