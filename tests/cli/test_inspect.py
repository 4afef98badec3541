"""`qfmt inspect`: its output for files, sources and damaged files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

import qfmt
from qfmt.model import Graph, Model, Node, Quantization, StoredArray, Tensor, Vector
from support.command_line import invoke, tiny_model, trouble
from support.paths import DIGITS, SUITE


def test_inspect_lists_nodes_and_tensors(tiny: Path) -> None:
    text = invoke("inspect", tiny).stdout
    assert text.splitlines()[0].startswith(f"file        {tiny}")
    assert "nodes       4: 1 QuantizeLinear, 1 qfmt.Linear, 1 DequantizeLinear, 1 Relu" in text
    assert "parameters  8: 75.0% int8, 25.0% float32" in text
    rows = {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words}
    assert rows["1"] == ["qfmt.Linear", "fc1", "[N,2]", "uint8", "0.25", "3", "3..255", "tensor"]
    assert rows["fc1.weight"] == ["[2,3]", "int8", "0.25..0.5", "0", "-128..127", "channel(0,", "2)"]
    assert rows["fc1.bias"] == ["[2]", "float32", "-", "-", "-", "-"]
    assert "quant" not in rows  # the node's row has the quantization of its output


def test_inspect_of_a_graph_whose_input_is_no_tensor(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file may be like that. It is opened all the same, and `qfmt check` reports the rule."""
    model = qfmt.load(tiny)
    broken = dataclasses.replace(model, graph=dataclasses.replace(model.graph, inputs=("",)))
    monkeypatch.setattr("qfmt.cli.inspect.open_model", lambda file: (broken, "qfb"))
    result = invoke("inspect", tiny)
    assert result.exit_code == 0, result.output
    assert "no tensor: run `qfmt check` to see what is wrong" in result.stdout


def test_inspect_never_cuts_a_name_in_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name, path = "a.very" * 50, tmp_path / "long.qfb"
    tiny_model(name).save(path)
    text = invoke("inspect", path).stdout
    assert f"\n{name}  [2,3]" in text
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize(("option", "title"), [("--nodes", "#  operator"), ("--tensors", "tensor")])
def test_inspect_prints_one_table_on_request(tiny: Path, option: str, title: str) -> None:
    lines = invoke("inspect", tiny, option).stdout.splitlines()
    assert lines[0].startswith(title)
    assert len(lines) == 1 + (4 if option == "--nodes" else 7)


def test_inspect_json_holds_everything(tiny: Path) -> None:
    facts = json.loads(invoke("inspect", tiny, "--json").stdout)
    model = tiny_model()
    assert facts["file"]["kind"] == "qfb"
    assert facts["file"]["content_id"] == model.content_id().hex()
    assert facts["inputs"] == ["x"]
    assert facts["outputs"] == ["y", "z"]
    assert facts["counts"]["operators"]["qfmt.Linear"] == 1
    assert facts["nodes"][1]["inputs"] == ["quant", "fc1.weight", "fc1.bias"]
    tensors = {tensor["name"]: tensor for tensor in facts["tensors"]}
    assert tensors.keys() == model.tensors.keys()
    for name, tensor in model.tensors.items():
        assert tensors[name]["shape"] == list(tensor.shape)
        held = tensors[name]["quantization"]
        assert (held is None) == (tensor.quantization is None)
        if tensor.quantization is not None:
            assert held["block"] == list(tensor.quantization.block)
            for key in ("scale", "zero_point"):
                assert held[key]["values"] == list(getattr(tensor.quantization, key))
            assert held["quant_min"] == tensor.quantization.quant_min
    assert tensors["fc1"]["written_by"] == 1
    assert tensors["fc1"]["read_by"] == [2]


@pytest.mark.parametrize("many", ["ends", "vectors"])
def test_inspect_shortens_and_charges_a_long_name(many: str, tmp_path: Path) -> None:
    """The output of the graph, again and again: JSON would write it out each time."""
    name, count = "y" * 20_000, 1000
    tensors = {each: Tensor(each, "float32", (1,)) for each in ("x", name)}
    ends = (name,) * (count if many == "ends" else 1)
    model = Model(Graph(("x",), ends, [Node("Relu", ("x",), (name,), version=14)], tensors))
    zeros = StoredArray.of(np.zeros(1, np.float32), "float32")
    vectors = [Vector({"x": zeros}, {name: zeros})] * (count if many == "vectors" else 0)
    model.replace(vectors=vectors).save(tmp_path / "m.qfb")
    assert "describing a network" in trouble("inspect", tmp_path / "m.qfb", "--json")
    done = invoke("inspect", tmp_path / "m.qfb")
    assert done.exit_code == 0 and len(done.stdout) < 1000 * count


def test_inspect_one_tensor_by_any_of_its_names(tiny: Path) -> None:
    text = invoke("inspect", tiny, "--tensor", "fc1._packed_params._packed_params").stdout
    assert "is a name of this tensor in its source" in text
    assert "used range   -128..6 (smallest and largest stored integer)" in text
    assert "real range   -32..1.5" in text
    assert "quant_min    -128 (int8 starts at -128)" in text
    assert "discarded by PyTorch's convert" in text


def test_inspect_shows_blocks_without_reading_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale, points = np.linspace(-1, 2, 4096, dtype=np.float16).reshape(64, 64), np.arange(4097) % 8
    grid = Quantization.of_blocks("uint4", (64, 2048), (1, 32), scale, points[1:].reshape(64, 64))
    weight = Tensor.constant("w", np.arange(1 << 17).reshape(64, 2048) % 16, grid, dtype="uint4")
    Model(Graph((), (), (), {"w": weight})).save(tmp_path / "m.qfb")
    ends = [(end - points[1:]) * scale.reshape(-1).astype(float) for end in (0, 15)]
    can_hold = f"can hold    {np.min(ends):.5g}..{np.max(ends):.5g}"
    shown = invoke("inspect", tmp_path / "m.qfb", "--tensor", "w.scale").output
    assert shown.startswith("w.scale is the scale of the constant w\n")
    for words in ("block(1x32, 4096)", "-1..2, float16 [64,64]", "0..7, uint8 [64,64]", can_hold):
        assert words in shown
    monkeypatch.setattr("qfmt.file.reader.Stored.view", lambda self: pytest.fail("was read"))
    shown = invoke("inspect", tmp_path / "m.qfb").output
    assert re.search(r"w +\[64,2048\] +uint4 +float16 +0\.\.7 +0\.\.15 +block\(1x32, 4096\)", shown)
    monkeypatch.undo()
    (tensor,) = json.loads(invoke("inspect", tmp_path / "m.qfb", "--json").output)["tensors"]
    assert tensor["quantization"]["block"] == [1, 32]
    form = {"shape": [64, 64], "quantization": None}
    assert tensor["quantization"]["scale"] == {"dtype": "float16", "values": None, **form}
    assert tensor["quantization"]["zero_point"] == {"dtype": "uint8", "values": points[1:].tolist(), **form}


def test_inspect_json_of_a_second_level_has_no_range() -> None:
    facts = json.loads(invoke("inspect", SUITE / "float" / "form-levels.qfb", "--json").stdout)
    (x,) = (tensor for tensor in facts["tensors"] if tensor["name"] == "x")
    level = x["quantization"]["scale"]["quantization"]
    assert level.keys() == {"block", "scale", "zero_point", "offset", "table", "group_index"}
    assert level["scale"]["quantization"] is None and level["block"] == [1]


def test_inspect_explains_scales_of_a_state_dict(tiny: Path) -> None:
    text = invoke("inspect", tiny, "--tensor", "fc1.scale").stdout
    assert text.startswith("fc1.scale is the scale of the output of fc1\n")
    assert "quant  uint8, scale 0.125, zero point 64" in text  # the origin of its input's quantization
    assert "can hold     0..63" in text


def test_inspect_shows_calibration_where_the_source_had_it(tmp_path: Path) -> None:
    from dataclasses import replace

    from qfmt.model import Observed

    model, path = tiny_model(), tmp_path / "observed.qfb"
    observed = Observed("HistogramObserver", (-1.5,), (2.5,))
    fc1 = model.tensors["fc1"]
    seen = replace(fc1, quantization=replace(fc1.quantization, observed=observed))
    graph = replace(model.graph, tensors={**model.tensors, "fc1": seen})
    model.replace(graph=graph).save(path)
    assert "HistogramObserver saw -1.5..2.5" in invoke("inspect", path, "--tensor", "fc1").stdout


def test_inspect_suggests_names_that_are_near(tiny: Path) -> None:
    assert "similar: fc1.weight" in trouble("inspect", tiny, "--tensor", "fc1.weigth")
    assert "similar: fc1._packed_params" in trouble("inspect", tiny, "--tensor", "_packed")
    assert "--tensors` lists them" in trouble("inspect", tiny, "--tensor", "zzz")


def test_inspect_states_a_reason_for_every_float(tiny: Path) -> None:
    rows = invoke("inspect", tiny, "--floats").stdout.splitlines()[1:]
    reasons = {row.split()[0]: row.split("]", 1)[1].strip() for row in rows}
    assert reasons == {
        "x": "input of the graph, quantized by quant",
        "fc1.bias": "bias of fc1: the engine adds it as a float, so an int32 bias would change the results",
        "y": "dequantized for the output of the graph",
        "z": "z (Relu) is not quantized in the source: it computes in float",
    }
    listed = json.loads(invoke("inspect", tiny, "--floats", "--json").stdout)
    assert {entry["name"]: entry["why"] for entry in listed} == reasons


def test_inspect_distinguishes_floats_of_quantized_layers(tmp_path: Path) -> None:
    grid = Quantization.per_tensor(0.5, 0, "int8")
    weight = Tensor.constant("w", np.ones((3, 4), np.int8), grid)
    bias = Tensor.constant("b", np.ones(3, np.float32))
    tensors = (Tensor("x", "float32", ("N", 4)), weight, bias, Tensor("y", "float32", ("N", 3)))
    node = Node("qfmt.DynamicLinear", ("x", "w", "b"), ("y",), {"reduce_range": 0, "per_token": 0}, rule="dynamic_fma")
    Model(Graph(("x",), ("y",), (node,), {each.name: each for each in tensors})).save(tmp_path / "m.qfb")
    listed = json.loads(invoke("inspect", tmp_path / "m.qfb", "--floats", "--json").stdout)
    why = "has quantized weights only: its output is a float"
    assert {entry["name"]: entry["why"] for entry in listed} == {
        "x": "input of the graph",
        "b": f"parameter of y, which {why}",
        "y": f"y (qfmt.DynamicLinear) {why}",
    }


def test_the_digest_of_the_header_is_not_called_as_that_of_the_file(tiny: Path) -> None:
    lines = dict(line.split(maxsplit=1) for line in invoke("inspect", tiny).stdout.splitlines() if line.strip())
    assert "sha256" not in lines
    assert lines["digest"] == tiny.read_bytes()[64:96].hex() != hashlib.sha256(tiny.read_bytes()).hexdigest()


def test_inspect_converts_other_formats_in_memory(tmp_path: Path) -> None:
    text = invoke("inspect", DIGITS).stdout
    assert "converted in memory" in text.splitlines()[0]
    dest = tmp_path / "digits.qfb"
    invoke("convert", DIGITS, dest)
    assert invoke("inspect", DIGITS, "--nodes").stdout == invoke("inspect", dest, "--nodes").stdout


def test_a_damaged_file_is_named_a_damaged_file(tiny: Path) -> None:
    damaged = bytearray(tiny.read_bytes())
    damaged[4:8] = b"XXXX"
    tiny.write_bytes(damaged)
    assert str(tiny) in trouble("inspect", tiny)
    tiny.write_bytes(b"")
    assert str(tiny) in trouble("inspect", tiny)
