"""Runs the ONNX that qfmt writes in TVM and OpenVINO. Skipped if they are not installed.

Passes with apache-tvm 0.27.0.post1 and openvino 2026.4.1. The table of docs/onnx-runtimes.md lists these results.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

import qfmt
from networks import onnx_runtime
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.passes.lowering import lower_integer
from support import onnx_witness
from support.paths import DIGITS, ROOT

OPSET = 17
PAGE = (ROOT / "docs" / "onnx-runtimes.md").read_text(encoding="utf-8")

CASES = [
    ("cnn", "qdq u8s8"),
    ("cnn", "qdq u8s8 per channel"),
    ("generator", "qdq s8s8 per channel"),
    ("transformer", "qdq u8s8"),
    ("mlp", "qdq u8s8"),
    ("mlp", "dynamic"),
]


def by_tvm(model: onnx.ModelProto, given: dict[str, Any]) -> Any:
    tvm = pytest.importorskip("tvm", reason="needs apache-tvm")
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = relax.transform.LegalizeOps()(from_onnx(model, keep_params_in_input=False))
    machine = relax.VirtualMachine(relax.build(module, target="llvm"), tvm.cpu())
    out = machine["main"](*map(tvm.runtime.tensor, given.values()))
    return (out if hasattr(out, "numpy") else out[0]).numpy()


def by_openvino(model: onnx.ModelProto, given: dict[str, Any]) -> Any:
    openvino = pytest.importorskip("openvino", reason="needs openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString(), b""), "CPU")
    return next(iter(compiled(list(given.values())).values()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("runs", [by_tvm, by_openvino])
@pytest.mark.parametrize(("name", "form"), CASES)
def test_exports_compute_the_same_as_the_source(name: str, form: str, runs: Any, tmp_path: Path) -> None:
    path = onnx_runtime.dynamic(name, tmp_path) if form == "dynamic" else onnx_runtime.static(name, form, tmp_path)
    source, back = onnx.load(path), qfmt.convert(path).to_onnx(opset=OPSET)
    given = onnx_runtime.inputs(source, 3)
    mine, theirs = runs(back, given), runs(source, given)
    (wanted,) = onnx_witness.runtime(back, given)
    print(f"{name} {form}, {runs.__name__}: {(mine == theirs).sum()} of {mine.size} as from the source, "
          f"{(mine == wanted).sum()} as ONNX Runtime has them")  # fmt: skip
    largest = np.abs(theirs).max()
    assert np.abs(mine - theirs).max() <= 0.03 * largest
    if runs is by_tvm:
        assert np.abs(mine - wanted).max() <= 0.03 * largest


# -- the table of docs/onnx-runtimes.md ----------------------------------------------------------------------------


class Case(NamedTuple):
    """An ONNX model, an input, and the outputs that qfmt computes."""

    proto: onnx.ModelProto
    given: dict[str, Any]
    expected: Any


def _written(model: Model, given: dict[str, Any], form: str = "qdq") -> Case:
    return Case(model.to_onnx(form=form, opset=OPSET), given, model.run(given)[model.graph.outputs[0]])


def _quantized(folder: Path, name: str, form: str) -> Case:
    path = onnx_runtime.dynamic(name, folder) if form == "dynamic" else onnx_runtime.static(name, "qdq u8s8", folder)
    given = onnx_runtime.inputs(onnx.load(path), 3)
    return _written(qfmt.convert(path), given, "qoperator" if form == "qoperator" else "qdq")


def _integers(_: Path, form: str, bits: str) -> Case:
    """The integer-only network of examples/digits, and integers from the whole range of its input."""
    digits = qfmt.convert(DIGITS)
    model = lower_integer(digits, form=form, bits=int(bits), input_shapes={"x": (50, 1, 8, 8)})
    (name,) = model.graph.inputs
    grid = model.tensors[name].quantization
    assert grid is not None
    numbers = np.random.default_rng(0).integers(grid.quant_min, grid.quant_max + 1, (50, 1, 8, 8))
    return _written(model, {name: numbers.astype(model.tensors[name].dtype)})


def _recurrent(_: Path, kind: str, gates: str) -> Case:
    """A layer of PyTorch with int8 weights, in which each step quantizes its state."""
    rng, size, inputs = np.random.default_rng(0), 5, 6
    grid = Quantization.of((0.004,), (0,), -128, 127)
    rows = int(gates) * size
    constants = [
        Tensor.constant(name, rng.integers(-128, 128, (rows, columns)).astype(np.int8), grid)
        for name, columns in (("W_ih", inputs), ("W_hh", size))
    ]
    constants += [Tensor.constant(name, rng.normal(0, 0.3, rows).astype(np.float32)) for name in ("B_ih", "B_hh")]
    states = ("h", "c")[: 2 if kind == "LSTM" else 1]
    tensors = [*constants, Tensor("x", "float32", (7, 2, inputs)), Tensor("y", "float32", (7, 2, size))]
    tensors += [Tensor(name, "float32", (2, size)) for name in states]
    node = Node(f"qfmt.{kind}", ("x", *(each.name for each in constants)), ("y", *states),
                {"reduce_range": 1, "reverse": 0}, version=1, rule="dynamic_fma")  # fmt: skip
    graph = Graph(("x",), ("y",), [node], {each.name: each for each in tensors})
    return _written(Model(graph, engine="fbgemm"), {"x": rng.normal(0, 1, (7, 2, inputs)).astype(np.float32)})


MADE = {
    "Q and DQ around operators on floats (`--form qdq`)": (_quantized, "cnn", "qdq"),
    "operators on integers (`--form qoperator`)": (_quantized, "cnn", "qoperator"),
    "dynamic: `MatMulInteger`": (_quantized, "mlp", "dynamic"),
    "LSTM: `Scan`": (_recurrent, "LSTM", "4"),
    "GRU: `Scan`": (_recurrent, "GRU", "3"),
    "integer-only, `thresholds`": (_integers, "thresholds", "32"),
    "integer-only, `multiply_shift`, 8 bits": (_integers, "multiply_shift", "8"),
    "integer-only, `fixed_point_single`, 8 bits": (_integers, "fixed_point_single", "8"),
    "integer-only, `multiply_add_divide`, 8 bits": (_integers, "multiply_add_divide", "8"),
    "integer-only, `power_of_two`": (_integers, "power_of_two", "32"),
    "integer-only, `multiply_shift`, 16 bits": (_integers, "multiply_shift", "16"),
    "integer-only, `multiply_shift`, 32 bits": (_integers, "multiply_shift", "32"),
    "integer-only, `fixed_point_single`, 32 bits": (_integers, "fixed_point_single", "32"),
    "integer-only, `fixed_point_double`": (_integers, "fixed_point_double", "32"),
    "integer-only, `multiply_add_divide`, 32 bits": (_integers, "multiply_add_divide", "32"),
}


def by_onnxruntime(model: onnx.ModelProto, given: Mapping[str, Any]) -> Any:
    return onnx_witness.runtime(model, given)[0]


def told(runs: Any, case: Case) -> str:
    """The result of running a network in a program, in the words of the page."""
    try:
        found = np.asarray(runs(case.proto, case.given))
    except Exception:  # any error of the program for an unsupported model
        return "not supported"
    if case.expected.dtype.kind == "f":  # the rounding of float sums also depends on the processor
        return "close" if np.abs(found - case.expected).max() <= 0.03 * np.abs(case.expected).max() else "**wrong**"
    return "equal" if np.array_equal(found, case.expected) else "**wrong**"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MADE)
def test_rows_of_the_page_match_results(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tvm", reason="needs apache-tvm")
    pytest.importorskip("openvino", reason="needs openvino")
    make, *arguments = MADE[name]
    case = make(tmp_path, *arguments)
    row = f"| {name} | {' | '.join(told(runs, case) for runs in (by_onnxruntime, by_openvino, by_tvm))} |"
    print(row)
    assert row in PAGE.splitlines()


def test_the_page_has_no_other_rows() -> None:
    table = next(block for block in PAGE.split("\n\n") if block.startswith("| "))
    names = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert names[1:] == list(MADE)


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", "4"), ("GRU", "3")])
def test_the_body_of_a_scan_reads_only_initializers(kind: str, gates: str, tmp_path: Path) -> None:
    """OpenVINO refuses a Scan whose body reads values of outer nodes. ONNX Runtime computes the same as qfmt."""
    case = _recurrent(tmp_path, kind, gates)
    onnx.checker.check_model(case.proto)
    (scan,) = (each for each in case.proto.graph.node if each.op_type == "Scan")
    (body,) = (each.g for each in scan.attribute if each.name == "body")
    inside = {name for each in body.node for name in each.output} | {each.name for each in body.input}
    read = {name for each in body.node for name in each.input if name} - inside
    assert read
    assert read <= {each.name for each in case.proto.graph.initializer}
    assert np.abs(by_onnxruntime(case.proto, case.given) - case.expected).max() < 1e-6
