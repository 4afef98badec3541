"""Checks that qfmt survives reading a damaged file; tools/fuzzing/qfb.py makes such files."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

import qfmt
from fuzzing.qfb import mutants, sealed
from qfmt.errors import QfmtError
from qfmt.model import Model, Quantization

__all__ = ["mutants", "overwrite", "sealed", "small_file", "survives", "touch"]


def touch(model: Model) -> None:
    """Use everything in a model."""
    graph = model.graph
    _ = model.producer, model.source, model.metadata, graph.inputs, graph.outputs
    for tensor in graph.tensors.values():
        assert graph.tensors[tensor.name] is tensor
        if tensor.data is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # values may overflow float32
            tensor.dequantize()
        assert tensor.array.shape == tensor.shape
    for node in graph.nodes:
        assert all(name == "" or name in graph.tensors for name in (*node.inputs, *node.outputs))
        assert sorted(node.attributes) == list(node.attributes)
    for vector in model.vectors:
        assert all(value.array.shape == value.shape for *_, value in vector.stored(graph))
    model.content_id()


def overwrite(path: Path, data: bytes) -> None:
    """Replace the contents of a file in place: some file systems flush a file that was truncated first."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(data)
        file.truncate()


def survives(data: bytes, path: Path, *, verify: bool = True) -> bool:
    """Whether a file can be read completely. Exceptions other than QfmtError propagate."""
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
        Tensor("x", "uint8", ("N", 2), None, Quantization.of((0.5,), (3,), 0, 255)),
        Tensor.constant("w", weight, Quantization.of((0.25, 0.5), (0, 0), -127, 127, axis=0), aliases=("fc._packed",)),
        Tensor.constant("i", np.array([1, -8, 7]), Quantization.of((1.0,), (0,), -8, 7), dtype="int4"),
        Tensor.constant("g", np.arange(10).reshape(2, 5), _groups(), dtype="uint4"),
        Tensor("y", "uint8", ("N", 2), None, Quantization.of((0.125,), (3,), 3, 255)),
    ]
    attributes = {"alpha": 0.5, "axes": (1, 2), "mode": "linear", "names": ("a", "b"), "n": 7}
    nodes = (Node("vendor.Linear", ("x", "w", "", "i"), ("y",), attributes, "fc", 3, "float_bias", "fc", "q::linear"),)
    graph = Graph(("x",), ("y",), nodes, {tensor.name: tensor for tensor in tensors}, "small")
    Model(graph, "test", "fbgemm", {"framework": "none"}, {"a": "b", "c": "d"}).save(path)
    return path.read_bytes()


def _groups() -> Quantization:
    """Two scales and zero points per row of five."""
    scales = np.array([[0.5, -1], [2, 0]], np.float16)
    return Quantization.of_blocks("uint4", (2, 5), (1, 3), scales, np.array([[1, 2], [3, 4]]))
