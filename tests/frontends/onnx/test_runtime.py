"""Models quantized by ONNX Runtime's own tools: compared with ONNX Runtime node by node, and exported to ONNX
again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import qfmt
from networks import onnx_runtime
from networks.onnx_runtime import NETWORKS, STATIC
from qfmt.arrays import DTYPES
from qfmt.compare import Report
from support import onnx_witness

FEW = ("qdq u8s8 per channel", "qdq s16s8 per channel", "qdq float weights", "qdq float bias", "qoperator u8s8")
CASES = [("cnn", form) for form in STATIC] + [(name, form) for name in NETWORKS if name != "cnn" for form in FEW]

ITS_OWN = {
    "Softmax": "QLinearSoftmax looks exponentials up in a table of integers",
    "Q4": "a product with block-wise weights rounds the other operand to int8",
}
"""Models that ONNX Runtime computes differently with optimizations: off by one, or by more for block-wise
products."""


def told(report: Report) -> str:
    kinds = ("outputs", "equal", "tie", "close", "wrong")
    return f"{report.engine}: " + ", ".join(f"{sum(getattr(n, kind) for n in report.nodes):,} {kind}" for kind in kinds)


def check(path: Path, what: str) -> qfmt.Model:
    """Convert a quantized model, compare its nodes with ONNX Runtime's, and export it with equal outputs."""
    stored = path.with_suffix(".qfb")
    qfmt.save(qfmt.convert(path), stored)
    assert qfmt.check(stored) == []
    model = qfmt.load(stored)
    plain = qfmt.verify(path, model, samples=2, engine="onnxruntime")
    optimized = qfmt.verify(path, fused(model), samples=2, engine="onnxruntime:all")
    print(f"{what}: {told(plain)}; {told(optimized)}")
    assert plain.ok, (plain.first_wrong, [each for each in (*plain.nodes, *plain.weights) if not each.ok])
    for node in optimized.nodes:
        if "s16s8 per channel" in what and node.operator in ("MatMul", "Gemm"):
            continue  # ORT 1.32 rounds the input to int8: test_sixteen_bits_with_one_option
        assert not node.wrong or any(each in f"{what} {node.operator} {node.name}" for each in ITS_OWN), node
        assert not node.wrong or node.largest <= 1, node
    return model


def fused(model: qfmt.Model) -> qfmt.Model:
    """The model with the rule of the fused operators, which round a float bias to int32. None exist for 16 bits."""

    def rule(node: qfmt.Node) -> str:
        is_fused = DTYPES[model.tensors[node.inputs[0]].dtype].bits <= 8
        return node.rule.replace("float_bias", "integer_bias") if is_fused else node.rule

    nodes = tuple(replace(node, rule=rule(node)) if node.rule else node for node in model.nodes)
    return model.replace(graph=replace(model.graph, nodes=nodes))


def check_back(path: Path, model: qfmt.Model, form: str = "qdq", oldest: int = 0) -> None:
    """Export a model to ONNX: ONNX Runtime without optimizations computes the same bits, and names are unchanged."""
    source = onnx.load(path)
    (opset,) = (each.version for each in source.opset_import if not each.domain)  # ORT's kernels depend on it
    back = model.to_onnx(form=form, opset=max(opset, oldest))
    for seed in (9, 10):
        given = onnx_runtime.inputs(source, seed)
        for mine, theirs in zip(onnx_witness.runtime(back, given), onnx_witness.runtime(str(path), given), strict=True):
            assert mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes()
    for kind in ("input", "output"):
        assert [each.name for each in getattr(back.graph, kind)] == [each.name for each in getattr(source.graph, kind)]


def weights(proto: onnx.ModelProto) -> dict[str, Any]:
    """The constants except quantization parameters, shapes and bounds of a Clip."""
    helpers = {name for node in proto.graph.node if node.op_type.endswith("uantizeLinear") for name in node.input[1:]}
    every = onnx_witness.initializers(proto)
    several = {name for name, array in every.items() if array.ndim and array.dtype != np.int64}
    return {name: every[name] for name in several - helpers}


@pytest.mark.parametrize(("name", "form"), CASES, ids=[f"{name}-{form.replace(' ', '-')}" for name, form in CASES])
def test_quantize_static(name: str, form: str, tmp_path: Path) -> None:
    path = onnx_runtime.static(name, form, tmp_path)
    model = check(path, f"{name} {form}")
    check_back(path, model, "qoperator" if form.startswith("qoperator") else "qdq")
    if form.startswith("qdq") and form != "qdq float weights":  # float weights become integers
        before, after = weights(onnx.load(path)), weights(model.to_onnx())
        assert before.keys() <= after.keys()
        assert [name for name in before if before[name].tobytes() != after[name].tobytes()] == []


@pytest.mark.parametrize("name", NETWORKS)
def test_quantize_dynamic(name: str, tmp_path: Path) -> None:
    path = onnx_runtime.dynamic(name, tmp_path)
    check_back(path, check(path, f"{name} dynamic"))


@pytest.mark.parametrize("form", ["qdq s16s8 per channel", "qdq u16u8"])
def test_sixteen_bits_with_one_option(form: str, tmp_path: Path) -> None:
    """ONNX Runtime computes the products of 16-bit inputs as stated, if it may not round the inputs to int8."""
    path = onnx_runtime.static("mlp", form, tmp_path)
    given = onnx_runtime.inputs(onnx.load(path), 5)
    (plain,) = onnx_witness.runtime(str(path), given)
    (optimized,) = onnx_witness.runtime(str(path), given, "fused", {"session.qdq_matmulnbits_accuracy_level": "0"})
    print(f"{int((plain == optimized).sum())} of {plain.size} outputs equal")
    assert plain.tobytes() == optimized.tobytes()


WEIGHT_ONLY: dict[str, dict[str, Any]] = {
    "symmetric": {"bits": 4, "block_size": 16, "is_symmetric": True},
    "with zero points": {"bits": 4, "block_size": 16, "is_symmetric": False},
    "8 bits": {"bits": 8, "block_size": 32},
    "Q4 qdq": {"bits": 4, "block_size": 16, "is_symmetric": True, "quant_format": onnx_runtime.QuantFormat.QDQ},
}


@pytest.mark.parametrize("options", WEIGHT_ONLY)
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_weights_by_blocks(name: str, options: str, tmp_path: Path) -> None:
    path = onnx_runtime.weight_only(name, tmp_path, **WEIGHT_ONLY[options])
    check_back(path, check(path, f"{name} block-wise, {options}"), oldest=21)


# -- on to PyTorch -------------------------------------------------------------------------------------

BUILT: list[tuple[str, str, Callable[[str, Path], Path]]] = [
    ("cnn", "qdq u8s8 per channel", lambda name, folder: onnx_runtime.static(name, "qdq u8s8 per channel", folder)),
    ("cnn", "qoperator u8s8", lambda name, folder: onnx_runtime.static(name, "qoperator u8s8", folder)),
    ("generator", "qdq s8s8 per channel", lambda n, folder: onnx_runtime.static(n, "qdq s8s8 per channel", folder)),
    ("transformer", "qdq u8s8", lambda name, folder: onnx_runtime.static(name, "qdq u8s8", folder)),
    ("mlp", "dynamic", lambda name, folder: onnx_runtime.dynamic(name, folder)),
]


@pytest.mark.parametrize(
    ("name", "form", "make"), BUILT, ids=[f"{each[0]}-{each[1].replace(' ', '-')}" for each in BUILT]
)
def test_every_engine_of_pytorch_runs_them(
    name: str, form: str, make: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    model = qfmt.convert(make(name, tmp_path))
    given = onnx_runtime.inputs(onnx.load(tmp_path / "m.onnx"), 3)
    (expected,) = model.run(given).values()
    tensors = [torch.from_numpy(values) for values in given.values()]
    for engine in ("reference", "onednn", "native", "qdq", "auto"):
        with torch.no_grad():
            got = np.asarray(model.to_torch(engine=engine)(*tensors))
        equal, off = int((got == expected).sum()), np.abs(got - expected).max()
        print(f"{name} {form}, {engine}: {equal} of {expected.size} equal, largest difference {off:.2g}")
        assert got.dtype == expected.dtype and got.shape == expected.shape
        assert off <= 0.1 * np.abs(expected).max()  # few differences of a step: engines round differently
        assert engine != "reference" or equal == expected.size
