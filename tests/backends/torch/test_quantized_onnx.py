"""Networks of ONNX Runtime's quantize_static as PyTorch modules: the engine qdq computes every node itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import qfmt
from networks import onnx_runtime as networks
from networks.onnx_models import FLOAT, node, proto
from qfmt.compare.classes import Counts
from qfmt.compare.judges import by_file
from qfmt.compare.side_by_side import SideBySide
from qfmt.frontends.witness import computed
from qfmt.model import Model
from support.counts import tell

FORMS = ("qdq u8s8 per channel", "qdq s8s8 per channel", "qdq u16u8", "qdq int4", "qdq float bias", "qoperator u8u8")


def with_all_outputs(model: Model) -> Model:
    return model.replace(
        graph=replace(model.graph, outputs=tuple(name for node in model.nodes for name in node.outputs))
    )


@pytest.mark.parametrize("name", ["cnn", "generator"])
@pytest.mark.parametrize("form", FORMS)
def test_qdq_has_no_fallbacks(name: str, form: str, tmp_path: Path) -> None:
    """Each node, on the inputs of the module's node, computes the same, except for proven ties and last bits of
    floats."""
    model = with_all_outputs(qfmt.convert(networks.static(name, form, tmp_path)))
    module = model.to_torch("qdq")
    assert not module.report()
    beside = SideBySide(model, by_file(model, "pt2e"), model.graph)  # the engine qdq uses PT2E's operators
    for seed in range(3):
        inputs = networks.inputs(networks.network(name), seed)
        values = zip(model.graph.outputs, module(*map(torch.from_numpy, inputs.values())), strict=True)
        beside.sample(inputs, {each: computed(value.numpy(), model.tensors[each]) for each, value in values})
    assert all(found.counts.total and not found.fault for found in beside.nodes.values())
    counts = Counts()
    for found in beside.nodes.values():
        counts = counts.plus(found.counts)
    tell(f"{name}, {form}: {counts}")
    assert counts.wrong == 0 < counts.equal


@pytest.mark.parametrize("engine", ["auto", "reference", "fast", "native", "onednn", "qdq"])
def test_sums_of_no_products(engine: str, tmp_path: Path) -> None:
    constants = {"s": np.float32(0.02), "z": np.uint8(120), "zw": np.int8(0), "w": np.zeros((5, 0), np.int8)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "s", "zw"], ["wd"]),
        node("Gemm", ["xd", "wd"], ["g"], transB=1),
        node("QuantizeLinear", ["g", "s", "z"], ["yq"]),
        node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
    ]
    onnx.save(proto(nodes, {"x": (FLOAT, [3, 0])}, ["y"], constants), tmp_path / "m.onnx")
    module = qfmt.convert(tmp_path / "m.onnx").to_torch(engine)
    assert torch.equal(module(torch.zeros(3, 0)), torch.zeros(3, 5))
