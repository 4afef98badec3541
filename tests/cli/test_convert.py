"""`qfmt convert`: files that it writes, messages, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import qfmt
from qfmt.errors import SourceError, UnsupportedOperatorsError
from qfmt.model import Model
from support.command_line import invoke, trouble
from support.paths import DIGITS


def test_convert_writes_the_file_and_reports_on_stderr(tmp_path: Path) -> None:
    dest = tmp_path / "digits.qfb"
    result = invoke("convert", DIGITS, dest)
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    assert [line.split()[0] for line in result.stderr.splitlines() if line] == [
        "read",
        "graph",
        "write",
        "note",
        "next:",
    ]
    assert qfmt.check(dest) == []


def test_convert_replaces_what_was_there_as_cp_does(tmp_path: Path) -> None:
    dest, fresh = tmp_path / "digits.qfb", tmp_path / "fresh.qfb"
    dest.write_bytes(b"old")
    assert invoke("convert", DIGITS, dest).exit_code == 0
    assert invoke("convert", DIGITS, fresh).exit_code == 0
    assert dest.read_bytes() == fresh.read_bytes()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("d.npz", "qfmt does not write .npz files; end the name in .qfb, .onnx or .c, or in / for a folder"),
        (".qfb", "has no name before the suffix"),
        ("d/my-net.c", "'my-net' is not a valid C identifier"),
        ("d.h", "qfmt does not write .h files; end the name in"),
        ("d", "--integer-only --exact"),
        ("d/d.c", "--integer-only --exact"),
        ("d.pt/", "--integer-only --exact"),
        ("d.pt", "end the name in .qfb, .onnx or .c"),
    ],
)
def test_convert_refuses_kinds_that_it_cannot_write(tmp_path: Path, name: str, said: str) -> None:
    assert said in trouble("convert", DIGITS, f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_convert_stores_test_vectors_that_another_reader_can_repeat(tmp_path: Path) -> None:
    first, again, more = (tmp_path / f"{name}.qfb" for name in ("first", "again", "more"))
    for dest in (first, again):
        assert invoke("convert", DIGITS, dest, "--vectors", 2, "--input-shape", "x=N,1,8,8").exit_code == 0
    assert first.read_bytes() == again.read_bytes()
    model = qfmt.load(first)
    assert [vector.name for vector in model.vectors] == ["random 0 of seed 0", "random 1 of seed 0"]
    assert model.content_id() == qfmt.convert(DIGITS, input_shapes={"x": ("N", 1, 8, 8)}).content_id()
    one, two = (vector.inputs["x"].array for vector in model.vectors)
    assert one.shape == two.shape == (1, 1, 8, 8) and (one != two).any()
    low, high = 0.0, 127 * model.tensors["quant"].quantization.scale[0]  # the calibrated range, of 7 bits
    assert low <= one.min() < one.max() <= high
    assert len(set(one.ravel())) > 20
    network = torch.jit.load(DIGITS)
    for vector in model.vectors:
        theirs = network(torch.from_numpy(vector.inputs["x"].array.copy())).numpy()
        assert vector.outputs["dequant"].array.tolist() == theirs.tolist()
    assert invoke("check", first, "--replay").exit_code == 0
    assert invoke("convert", first, more, "--vectors", 1, "--input-shape", "x=3,1,8,8").exit_code == 0
    assert [vector.inputs["x"].shape[0] for vector in qfmt.load(more).vectors] == [1, 1, 3]
    assert "--vectors is for .qfb files" in trouble("convert", DIGITS, tmp_path / "x.onnx", "--vectors", 1)
    assert "require fixed sizes" in trouble("convert", first, more, "--vectors", 1, "--input-shape", "x=N,1,8,8")


def test_convert_refuses_to_replace_its_source(tmp_path: Path) -> None:
    source, link = tmp_path / "model.qfb", tmp_path / "other.qfb"
    source.write_bytes(DIGITS.read_bytes())
    link.hardlink_to(source)
    for dest in (source, link):
        assert "is the source itself" in trouble("convert", source, dest)
        assert "is the source itself" in trouble("convert", DIGITS, dest, "--prepared", source)
    assert source.read_bytes() == DIGITS.read_bytes()


def test_data_of_the_source_is_not_replaced(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    network, model = qfmt.convert(DIGITS), tmp_path / "m.onnx"
    for data in ("m.qfb", "m.html", "y.npy", "other.onnx"):
        onnx.save_model(network.to_onnx(), model, save_as_external_data=True, location=data, size_threshold=0)
        before = (tmp_path / data).read_bytes()
        arguments = {"m.html": ["view", model, "--html"]}.get(data, ["convert", model])
        if data == "y.npy":
            np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.float32))
            arguments = ["run", model, "--input", tmp_path / "x.npy", "--output"]
        assert "has data of the source" in trouble(*arguments, tmp_path / data)
        assert (tmp_path / data).read_bytes() == before
        (tmp_path / data).unlink()


def test_what_is_found_when_the_result_is_written_names_the_source(tmp_path: Path) -> None:
    header = json.dumps({"t": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}).encode()
    source = tmp_path / "m.safetensors"
    source.write_bytes(len(header).to_bytes(8, "little") + header + b"\2")
    said = trouble("convert", source, tmp_path / "out.qfb")
    assert f"error: {source}: breaks rule V11 tensor 't': a byte is 2, not 0 or 1; correct this in the source" in said


def test_convert_that_fails_leaves_no_file_and_harms_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, dest = tmp_path / "broken.pt", tmp_path / "out.qfb"
    broken.write_bytes(DIGITS.read_bytes()[:1000])
    trouble("convert", broken, dest)
    assert not dest.exists()
    dest.write_bytes(b"precious")
    trouble("convert", broken, dest)

    def refuse(*_: object, **__: object) -> Model:
        raise UnsupportedOperatorsError({"aten::nonzero": ["head", "neck"]}, where="model.pt")

    monkeypatch.setattr(qfmt, "convert", refuse)
    assert "aten::nonzero (2×: head, neck)" in trouble("convert", DIGITS, dest)
    assert dest.read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.pt", "out.qfb"]


def test_convert_into_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder.qfb").mkdir()
    for dest in (tmp_path / "missing" / "out.qfb", tmp_path / "folder.qfb"):
        assert str(dest) in trouble("convert", DIGITS, dest)


def test_convert_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {}

    def record(source: Path, **options: object) -> Model:
        given.update(options, source=source)
        raise SourceError("enough")

    monkeypatch.setattr(qfmt, "convert", record)
    options = ["--input-shape", "x=N,3,224,224", "--input-shape", "y=1", "--engine", "qnnpack"]
    options += ["--input-quantization", "x=0.0078125,128", "--input-quantization", "y=1e-3,-4,int8"]
    options += ["--prepared", str(DIGITS), "--input-dtype", "z=int64", "--eval-mode"]
    options += ["--input-shape", "a=b=1,2", "--input-quantization", "a=b=1,2", "--input-dtype", "a=b= int32"]
    trouble("convert", DIGITS, tmp_path / "out.qfb", *options)
    assert given == {
        "source": DIGITS,
        "prepared": DIGITS,
        "engine": "qnnpack",
        "input_shapes": {"x": ("N", 3, 224, 224), "y": (1,), "a=b": (1, 2)},
        "input_quantization": {"x": (0.0078125, 128, "uint8"), "y": (1e-3, -4, "int8"), "a=b": (1, 2, "uint8")},
        "input_dtypes": {"z": "int64", "a=b": "int32"},
        "eval_mode": True,
    }


def test_a_program_in_c_needs_a_folder() -> None:
    said = trouble("convert", DIGITS, "net.c")
    assert "a C program consists of multiple files; name a folder for them, as in net/net.c" in said


def test_convert_prints_json_or_nothing_on_request(tmp_path: Path) -> None:
    dest = tmp_path / "digits.qfb"
    told = invoke("convert", DIGITS, dest, "--json")
    assert (told.exit_code, told.stderr) == (0, "")
    facts, model = json.loads(told.stdout), qfmt.load(dest)
    assert (facts["source"], facts["dest"], facts["kind"]) == (str(DIGITS), str(dest), "qfb")
    assert (facts["nodes"], facts["tensors"]) == (len(model.nodes), len(model.tensors))
    assert facts["bytes"] == dest.stat().st_size
    silent = invoke("convert", DIGITS, dest, "--quiet")
    assert (silent.exit_code, silent.stdout, silent.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "option", [("--input-shape", "x=1,1,8,8", "x=2,1,8,8"), ("--input-quantization", "x=1,2", "x=1,2")]
)
def test_options_given_twice_are_refused(option: tuple[str, str, str], tmp_path: Path) -> None:
    name, first, second = option
    said = trouble("convert", DIGITS, tmp_path / "d.qfb", name, first, name, second)
    assert f"'{name}': it is given twice for x" in said


@pytest.mark.parametrize(
    "option",
    [
        ("--input-shape", "3,224"),
        ("--input-shape", "x="),
        ("--input-shape", "x=1,-2"),
        ("--input-shape", f"x={'1' * 5000}"),
        ("--input-quantization", "x=0.1"),
        ("--input-quantization", "x=a,b"),
        ("--input-quantization", "x=0.1,2,uint8,more"),
    ],
)
def test_convert_explains_its_options(option: tuple[str, str], tmp_path: Path) -> None:
    assert "as in x=" in trouble("convert", DIGITS, tmp_path / "out.qfb", *option)


def test_convert_of_a_qfb_refuses_options_for_sources(tmp_path: Path) -> None:
    """The options would have no effect: the file states its engine."""
    source = tmp_path / "digits.qfb"
    qfmt.save(qfmt.convert(DIGITS), source)
    for option in (("--engine", "onnx"), ("--input-shape", "x=1,1,8,8"), ("--input-quantization", "x=0.1,2")):
        assert "when you convert the original" in trouble("convert", source, tmp_path / "d.onnx", *option)


def test_convert_names_what_cannot_be_run(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnx_ir")
    text = "agraph (float[2] x) => (float[2] y) { m = some.domain.Fancy(x)  n = some.domain.Fancy(m)  y = Relu(n) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "some.domain": 1]> {text}')
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    result = invoke("convert", tmp_path / "m.onnx", tmp_path / "m.qfb")
    assert result.exit_code == 0
    assert "note   kept unchanged, but qfmt cannot run them: some.domain.Fancy (2×)" in result.stderr


def test_a_destination_without_suffix_is_a_c_program_and_could_be_a_qfb(tmp_path: Path) -> None:
    message = trouble("convert", DIGITS, tmp_path / "model")
    assert f"for a .qfb file use the name {tmp_path / 'model.qfb'}; for a C program" in message
    assert "use the name" not in trouble("convert", DIGITS, tmp_path / "a" / "model.c")
    assert "use the name s3://models/NAME.qfb; for a C" in trouble("convert", DIGITS, "s3://models/")


def test_the_content_of_a_source_counts_not_its_name(tmp_path: Path) -> None:
    source, dest = tmp_path / "net.qfb", tmp_path / "digits.qfb"
    source.write_bytes(DIGITS.read_bytes())
    assert invoke("convert", source, dest).exit_code == 0
    assert qfmt.load(dest).content_id() == qfmt.convert(DIGITS).content_id()
    assert "converted in memory" in invoke("inspect", source).output
    source.write_bytes(dest.read_bytes()[:-1])
    assert "is truncated" in trouble("convert", source, dest)
    source.write_bytes(b"")
    assert "is not a .qfb file; it is an empty file" in trouble("convert", source, dest)
    source.write_bytes(dest.read_bytes()[:7])
    assert "is not a .qfb file; it ends in the first 8 bytes; download or" in trouble("convert", source, dest)


def test_damaged_data_is_reported_once_whatever_is_written(tmp_path: Path) -> None:
    source = tmp_path / "damaged.qfb"
    qfmt.convert(DIGITS).save(source)
    content = bytearray(source.read_bytes())
    content[-200] ^= 1
    source.write_bytes(content)
    options = ["--integer-only", "--exact", "--input-shape", "x=N,1,8,8"]
    lowered, program = (
        trouble("convert", source, tmp_path / "a.qfb", *options),
        trouble("convert", source, tmp_path / "a"),
    )
    assert lowered == program == trouble("convert", source, tmp_path / "a.onnx")
    assert lowered.count(str(source)) == 1 and lowered.endswith("; download or convert the file again\n")
