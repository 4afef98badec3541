"""Findings of tools/fuzz.py, in the smallest form."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qfmt
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.backends.c import write_c
from qfmt.errors import DigestError, QfmtError, SourceError
from qfmt.ops import OPERATORS
from qfmt.ops.registry import Inference
from support.mutants import sealed
from support.paths import SUITE
from support.torchscript_archives import module_of

QUANTIZED = "q = torch.quantize_per_tensor(x, 0.1, 3, 13)"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("y = torch.cat(q, 0)", "aten::cat is called with a TensorValue for tensors"),
        ("y = torch.cat([], 0)", "joins no tensors"),
        ("y = torch.stack([], 0)", "joins no tensors"),
        ('y = torch.transpose(q, 0, "x")', "aten::transpose is called with a str for dim1"),
        (
            "y = torch.quantize_per_tensor(x, 0.1, 3, (0, 1))",
            "aten::quantize_per_tensor is called with a tuple for dtype",
        ),
        ("y = ops.quantized.cat(q, 0, 0.1, 3)", "quantized::cat is called with a TensorValue for qx"),
        ("y = ops.quantized.hardswish(None, 0.1, 3)", "is called without a tensor"),
    ],
)
def test_arguments_of_another_type(body: str, words: str, tmp_path: Path) -> None:
    path = module_of(tmp_path / "m.pt", QUANTIZED, body, "return torch.dequantize(y)")
    with pytest.raises(SourceError, match=r"m\.pt") as caught:
        qfmt.convert(path)
    assert words in str(caught.value)


def _convolution(bias: list[float]) -> Model:
    scales = Quantization.of((0.5, 0.25, 0.125), (0, 0, 0), -127, 127, axis=0)
    grid = Quantization.of((0.5,), (3,), 0, 255)
    tensors = [
        Tensor("x", "uint8", (1, 1, 2, 2), None, grid),
        Tensor.constant("w", np.ones((3, 1, 1, 1), np.int8), scales),
        Tensor.constant("b", np.array(bias, np.float32)),
        Tensor("y", "uint8", (1, 3, 2, 2), None, grid),
    ]
    attributes = {"kernel_shape": (1, 1), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}
    nodes = (Node("Conv", ("x", "w", "b"), ("y",), attributes, "", 22, "integer_bias"),)
    return Model(Graph(("x",), ("y",), nodes, {tensor.name: tensor for tensor in tensors}))


def test_damaged_constants_are_reported_by_the_onnx_export(tmp_path: Path) -> None:
    """onnx-ir reads the constants while it makes the proto, and wraps the error in its own."""
    pytest.importorskip("onnx_ir")
    path = tmp_path / "m.qfb"
    _convolution([1.0, 2.0, 3.0]).save(path)
    data = bytearray(path.read_bytes())
    data[struct.unpack_from("<Q", data, 24)[0]] ^= 1
    path.write_bytes(sealed(data))
    with pytest.raises(DigestError, match="damaged"):
        qfmt.load(path).to_onnx()


def test_rows_of_thresholds_whose_index_is_an_empty_name(tmp_path: Path) -> None:
    """The C backend treated them as one row for all channels."""
    model = qfmt.load(SUITE / "integer" / "thresholds-rows.qfb")
    (node,) = model.nodes
    programs = []
    for ends in ((), ("",)):
        nodes = (dataclasses.replace(node, inputs=(*node.inputs[:5], *ends)),)
        folder = tmp_path / f"{len(ends)}"
        write_c(model.replace(graph=dataclasses.replace(model.graph, nodes=nodes), vectors=()), folder, name="m")
        programs.append((folder / "m.c").read_text())
    assert programs[0] == programs[1]


def test_the_log_of_onnx_ir_is_not_printed(tmp_path: Path) -> None:
    """onnx-ir does not know the type of an empty list."""
    pytest.importorskip("onnx_ir")
    source = SUITE / "read" / "unknown-operator.qfb"
    command = [sys.executable, "-m", "qfmt", "convert", str(source), str(tmp_path / "m.onnx"), "--opset", "21"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "empty sequence" not in done.stderr


MOVES = {
    "Pad": (np.ones(4, np.int64), {"mode": "x"}, "V42 .*'mode' is 'x'"),
    "Reshape": (np.array([[2, 2]]), {"allowzero": 0}, "must be a vector"),
}


@pytest.mark.parametrize("operator", MOVES)
def test_moves_that_have_no_meaning_are_not_written_in_c(operator: str, tmp_path: Path) -> None:
    where, attributes, words = MOVES[operator]
    grid = Quantization.per_tensor(1.0, 0, "uint8")
    tensors = [
        Tensor("x", "uint8", (2, 2), None, grid),
        Tensor.constant("where", where),
        Tensor("y", "uint8", None, None, grid),
    ]
    nodes = (Node(operator, ("x", "where"), ("y",), attributes, "", OPERATORS[operator].version),)
    model = Model(Graph(("x",), ("y",), nodes, {tensor.name: tensor for tensor in tensors}))
    with pytest.raises(QfmtError, match=words):
        write_c(model, tmp_path / "c")


def test_a_split_into_a_million_parts() -> None:
    given = Inference([(1 << 20,), (1 << 20,)], {"axis": 0, "num_outputs": 0}, [None, np.ones(1 << 20, np.int64)])
    with pytest.raises(QfmtError, match="a split into 1,048,576 parts; known are up to 65,536"):
        OPERATORS["Split"].infer(given)
