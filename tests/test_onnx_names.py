"""Names on the way from ONNX and back to it, and what a second conversion of what was written finds."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_networks
import pytest

import qfmt

FORMS = [
    "qdq u8s8 per channel",
    "qdq float bias",
    "qdq s8s8 per channel",
    "qoperator u8s8",
    "qoperator s8s8 per channel",
]


def files(name: str, form: str, folder: Path) -> onnx.ModelProto:
    path = onnx_networks.dynamic(name, folder) if form == "dynamic" else onnx_networks.static(name, form, folder)
    return onnx.load(path)


@pytest.mark.parametrize("name", ["cnn", "mlp"])
@pytest.mark.parametrize("form", [*FORMS, "dynamic"])
def test_every_tensor_has_a_name_of_the_source(name: str, form: str, tmp_path: Path) -> None:
    source = files(name, form, tmp_path)
    known = {name for node in source.graph.node for name in (*node.input, *node.output)}
    made = qfmt.convert(source)
    # MatMulInteger takes a weight that is turned around: its name says so.
    strange = {each for each in made.tensors if each.removesuffix(".T") not in known}
    assert not strange


@pytest.mark.parametrize("name", ["cnn", "mlp", "generator", "transformer"])
@pytest.mark.parametrize("form", FORMS)
def test_there_and_back_is_the_same_content(name: str, form: str, tmp_path: Path) -> None:
    first = qfmt.convert(files(name, form, tmp_path))
    written = first.to_onnx()
    second = qfmt.convert(written)
    difference = qfmt.diff(first, second)
    assert second.content_id() == first.content_id(), difference
    assert [node.name for node in second.nodes] == [node.name for node in first.nodes]


def test_dynamic_weights_are_turned_around_once(tmp_path: Path) -> None:
    first = qfmt.convert(files("mlp", "dynamic", tmp_path))
    second = qfmt.convert(first.to_onnx())
    weights = {name for name in first.tensors if name.endswith(".T")}
    assert weights
    for name in weights:
        assert (second.tensors[name].array == first.tensors[name].array).all()
        assert second.tensors[name].quantization == first.tensors[name].quantization
