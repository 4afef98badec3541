"""The command line: what each command prints, its exit status, and that trouble is one line."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

import qfmt
from qfmt.cli import COMMANDS, main
from qfmt.errors import SourceError, UnsupportedOperatorsError
from qfmt.model import Graph, Model, Node, Quantization, Tensor

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "examples" / "digits" / "digits_int8.pt"
HOSTILE = "evil\x1b[2Jname\nqfmt: fake"


def tiny_model(weight_name: str = "fc1.weight") -> Model:
    """x → quantize → Linear with a fused ReLU → dequantize → y; then a float Relu → z."""
    weight = np.array([[1, -2, 3], [-128, 5, 6]], np.int8)
    per_channel = Quantization((0.5, 0.25), (0, 0), -128, 127, axis=0, scale_dtype="float64")
    tensors = [
        Tensor("x", "float32", ("N", 3)),
        Tensor("quant", "uint8", ("N", 3), quantization=Quantization.per_tensor(0.125, 64, "uint8")),
        Tensor.constant(weight_name, weight, per_channel, aliases=("fc1._packed_params._packed_params",)),
        Tensor.constant("fc1.bias", np.array([0.5, -1.0], np.float32)),
        Tensor("fc1", "uint8", ("N", 2), quantization=Quantization.per_tensor(0.25, 3, "uint8", quant_min=3)),
        Tensor("y", "float32", ("N", 2)),
        Tensor("z", "float32", ("N", 2)),
    ]
    nodes = (
        Node("QuantizeLinear", ("x",), ("quant",), version=23, rule="reciprocal_fma"),
        Node("qfmt.Linear", ("quant", weight_name, "fc1.bias"), ("fc1",), name="fc1", rule="float_bias"),
        Node("DequantizeLinear", ("fc1",), ("y",), version=23),
        Node("Relu", ("y",), ("z",), version=14),
    )
    graph = Graph(("x",), ("y", "z"), nodes, {tensor.name: tensor for tensor in tensors})
    return Model(graph, "test", "fbgemm", {"framework": "pytorch", "format": "torchscript"})


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.qfb"
    tiny_model().save(path)
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="qfmt")


def trouble(*arguments: object) -> str:
    """The one line that a failing command prints."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("qfmt: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def start(*arguments: object, variables: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """The command as a process of its own, in which this checkout is found; options are Popen's."""
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "QFMT_DEBUG")}
    environment |= {"PYTHONPATH": str(ROOT), **(variables or {})}
    return subprocess.Popen([sys.executable, "-m", "qfmt", *map(str, arguments)], env=environment, **options)


# The group


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_usage(command: str) -> None:
    result = invoke(*command.split(), "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: qfmt {command}".rstrip())


def test_version() -> None:
    assert invoke("--version").stdout == f"qfmt {qfmt.__version__}\n"


def test_every_module_of_a_command_is_listed() -> None:
    for name in COMMANDS:
        assert isinstance(main.get_command(click.Context(main), name), click.Command)


@pytest.mark.parametrize(
    ("typed", "advice"), [("convrt", "did you mean 'convert'?"), ("xyzzy", "the commands are convert, inspect")]
)
def test_unknown_command_is_answered_with_a_suggestion(typed: str, advice: str) -> None:
    assert advice in trouble(typed)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nonsense",),
        ("inspect",),
        ("inspect", "no-such-file.qfb"),
        ("inspect", str(DIGITS.parent)),
        ("inspect", DIGITS, "--nonsense"),
        ("inspect", DIGITS, "--floats", "--nodes"),
        ("convert", DIGITS, "x.qfb", "--engine", "nonsense"),
    ],
)
def test_bad_arguments_are_trouble(arguments: tuple[object, ...]) -> None:
    assert "--help" in trouble(*arguments)


def test_unexpected_errors_ask_for_a_report_and_show_no_traceback(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(qfmt, "load", fail)
    assert "unexpected ZeroDivisionError: surprise" in trouble("inspect", tiny)
    for arguments, variables in ((["--debug"], {}), ([], {"QFMT_DEBUG": "1"})):
        result = CliRunner().invoke(main, [*arguments, "inspect", str(tiny)], env=variables)
        assert "Traceback" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("qfmt: error: unexpected")


def test_interruption_is_status_130_without_traceback(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(qfmt, "load", interrupt)
    result = invoke("inspect", tiny)
    assert (result.exit_code, result.output) == (130, "")


def test_a_reader_that_has_had_enough_is_no_error(tiny: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed, start("inspect", tiny, stdout=closed, stderr=subprocess.PIPE) as running:
        assert running.communicate(timeout=60)[1] == b""
    assert running.returncode == 0


def test_names_from_a_file_do_not_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "hostile.qfb"
    tiny_model(HOSTILE).save(path)
    for options in ((), ("--floats",), ("--tensor", HOSTILE), ("--json",)):
        result = invoke("inspect", path, *options)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output
        assert "\nqfmt: fake" not in result.output
    assert "\\x1b[2J" in invoke("inspect", path).stdout


def test_output_survives_a_terminal_without_the_letters(tmp_path: Path) -> None:
    path = tmp_path / "letters.qfb"
    tiny_model("重み").save(path)
    with start("inspect", path, variables={"PYTHONIOENCODING": "latin-1"}, stdout=subprocess.PIPE) as running:
        assert rb"\u91cd" in running.communicate(timeout=60)[0]
    assert running.returncode == 0


def test_inspect_imports_neither_numpy_nor_rich_nor_a_framework(tiny: Path) -> None:
    code = (
        "import sys; from qfmt.cli import main\n"
        f"main(['inspect', {str(tiny)!r}], standalone_mode=False)\n"
        "print(*{'numpy', 'rich', 'torch', 'onnx', 'flatbuffers'} & sys.modules.keys(), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=60)
    assert finished.stdout.startswith(b"file")
    assert finished.stderr.strip() == b""


# convert


def test_convert_writes_the_file_and_says_so_on_stderr(tmp_path: Path) -> None:
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
        ("d.npz", "qfmt does not write .npz files; end it in .qfb, .onnx or .c; the name of a folder"),
        (".qfb", "has no name before its suffix"),
        ("d/my-net.c", "'my-net' is not a name in C"),
        ("d.h", "qfmt does not write .h files; end it in"),
        ("d", "--integer-only --exact"),
        ("d/d.c", "--integer-only --exact"),
        ("d.pt/", "--integer-only --exact"),
        ("d.pt", "end it in .qfb, .onnx or .c"),
    ],
)
def test_convert_refuses_kinds_that_it_cannot_write(tmp_path: Path, name: str, said: str) -> None:
    assert said in trouble("convert", DIGITS, f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_convert_refuses_to_replace_its_source(tmp_path: Path) -> None:
    source, link = tmp_path / "model.qfb", tmp_path / "other.qfb"
    source.write_bytes(DIGITS.read_bytes())
    link.hardlink_to(source)
    for dest in (source, link):
        assert "is the source itself" in trouble("convert", source, dest)
    assert source.read_bytes() == DIGITS.read_bytes()


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
    options += ["--prepared", str(DIGITS)]
    trouble("convert", DIGITS, tmp_path / "out.qfb", *options)
    assert given == {
        "source": DIGITS,
        "prepared": DIGITS,
        "engine": "qnnpack",
        "input_shapes": {"x": ("N", 3, 224, 224), "y": (1,)},
        "input_quantization": {"x": (0.0078125, 128, "uint8"), "y": (1e-3, -4, "int8")},
    }


def test_a_program_in_c_needs_a_folder() -> None:
    said = trouble("convert", DIGITS, "net.c")
    assert "a C program is multiple files; name a folder for them, as in net/net.c" in said


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
def test_one_input_is_told_of_once(option: tuple[str, str, str], tmp_path: Path) -> None:
    name, first, second = option
    said = trouble("convert", DIGITS, tmp_path / "d.qfb", name, first, name, second)
    assert f"'{name}': it is given twice for x" in said


@pytest.mark.parametrize(
    "option",
    [
        ("--input-shape", "3,224"),
        ("--input-shape", "x="),
        ("--input-shape", "x=1,-2"),
        ("--input-quantization", "x=0.1"),
        ("--input-quantization", "x=a,b"),
        ("--input-quantization", "x=0.1,2,uint8,more"),
    ],
)
def test_convert_explains_its_options(option: tuple[str, str], tmp_path: Path) -> None:
    assert "as in x=" in trouble("convert", DIGITS, tmp_path / "out.qfb", *option)


def test_convert_of_a_qfb_takes_no_options_of_its_source(tmp_path: Path) -> None:
    """They would change nothing: the file states its engine."""
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
    assert "note   kept as they are, but qfmt cannot run them: some.domain.Fancy (2×)" in result.stderr


# inspect


def test_inspect_lists_nodes_and_tensors(tiny: Path) -> None:
    text = invoke("inspect", tiny).stdout
    assert text.splitlines()[0].startswith(f"file        {tiny}")
    assert "nodes       4: 1 QuantizeLinear, 1 qfmt.Linear, 1 DequantizeLinear, 1 Relu" in text
    assert "parameters  8: 75.0% int8, 25.0% float32" in text
    rows = {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words}
    assert rows["1"] == ["qfmt.Linear", "fc1", "[N,2]", "uint8", "0.25", "3", "3..255", "tensor"]
    assert rows["fc1.weight"] == ["[2,3]", "int8", "0.25..0.5", "0", "-128..127", "channel(0,", "2)"]
    assert rows["fc1.bias"] == ["[2]", "float32", "-", "-", "-", "-"]
    assert "quant" not in rows  # what a node computes stands with the node


def test_inspect_of_a_graph_whose_input_is_no_tensor(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file may say so, and is opened all the same: `qfmt check` names the rule."""
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
            assert held["scale"] == list(tensor.quantization.scale)
            assert held["zero_point"] == list(tensor.quantization.zero_point)
            assert held["quant_min"] == tensor.quantization.quant_min
    assert tensors["fc1"]["written_by"] == 1
    assert tensors["fc1"]["read_by"] == [2]


def test_inspect_one_tensor_by_any_of_its_names(tiny: Path) -> None:
    text = invoke("inspect", tiny, "--tensor", "fc1._packed_params._packed_params").stdout
    assert "is a name that this tensor had in its source" in text
    assert "used range   -128..6 (smallest and largest stored integer)" in text
    assert "real range   -32..1.5" in text
    assert "quant_min    -128 (int8 starts at -128)" in text
    assert "discarded by PyTorch's convert" in text


def test_inspect_shows_blocks_without_reading_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = np.linspace(-1, 2, 8, dtype=np.float16).reshape(4, 2)
    grid = Quantization.of_blocks("uint4", (4, 64), (1, 32), scale, np.arange(8).reshape(4, 2))
    weight = Tensor.constant("w", np.arange(256).reshape(4, 64) % 16, grid, dtype="uint4")
    Model(Graph((), (), (), {"w": weight})).save(tmp_path / "m.qfb")
    shown = invoke("inspect", tmp_path / "m.qfb", "--tensor", "w.scale").output
    assert shown.startswith("w.scale is the scale of the constant w\n")
    for words in ("block(1x32, 8)", "-1..2, float16 [4,2]", "0..7, uint4 [4,2]", "can hold    -15..16"):
        assert words in shown
    monkeypatch.setattr("qfmt.file.reader.Stored.view", lambda self: pytest.fail("was read"))
    assert re.search(
        r"w +\[4,64\] +uint4 +float16 +uint4 +0\.\.15 +block\(1x32, 8\)", invoke("inspect", tmp_path / "m.qfb").output
    )
    monkeypatch.undo()
    (tensor,) = json.loads(invoke("inspect", tmp_path / "m.qfb", "--json").output)["tensors"]
    assert tensor["quantization"]["scale"] == []
    assert tensor["quantization"]["blocks"] == {
        "shape": [1, 32],
        "counts": [4, 2],
        "scale_bytes": 16,
        "zero_point_dtype": "uint4",
        "zero_point_bytes": 4,
    }


def test_inspect_says_what_a_scale_in_a_state_dict_is(tiny: Path) -> None:
    text = invoke("inspect", tiny, "--tensor", "fc1.scale").stdout
    assert text.startswith("fc1.scale is the scale of the output of fc1\n")
    assert "quant  uint8, scale 0.125, zero point 64" in text  # where the quantization of its input comes from
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


def test_inspect_gives_a_reason_for_every_float(tiny: Path) -> None:
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


def test_inspect_tells_floats_of_what_has_quantized_weights(tmp_path: Path) -> None:
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


# check


def test_check_of_a_valid_file(tiny: Path) -> None:
    result = invoke("check", tiny)
    assert (result.exit_code, result.stdout) == (0, f"{tiny}: valid\n")
    assert json.loads(invoke("check", tiny, "--json").stdout) == {"file": str(tiny), "valid": True, "violations": []}


def test_check_lists_every_violation(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qfmt.errors import Violation

    broken = [Violation("V12", "tensor fc1", "has no scale"), Violation("V33", "node 1", "reads what is not there")]
    monkeypatch.setattr(qfmt, "check", lambda _: broken)
    result = invoke("check", tiny)
    assert result.exit_code == 1
    assert result.stdout == "V12 tensor fc1: has no scale\nV33 node 1: reads what is not there\n"
    listed = json.loads(invoke("check", tiny, "--json").stdout)["violations"]
    assert listed[0] == {"rule": "V12", "where": "tensor fc1", "what": "has no scale"}


def test_check_of_what_is_no_qfb_is_trouble() -> None:
    assert str(DIGITS) in trouble("check", DIGITS)


# run


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / "arrays.npz"
    np.savez(path, x=np.array([[1, 2, 3], [-4, 5, 1]], np.float32), labels=np.array([0, 1]))
    return path


def test_run_takes_arrays_by_name_and_sums_up(tiny: Path, arrays: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out.npz"
    result = invoke("run", tiny, "--input", arrays, "--output", dest)
    assert result.exit_code == 0, result.output
    assert result.stderr == f"note: {arrays}: ignored, because not inputs: labels\n"
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["output", "dtype", "shape", "min", "max", "argmax"]
    expected = tiny_model().run({"x": np.load(arrays)["x"]})
    with np.load(dest) as written:
        assert sorted(written.files) == ["y", "z"]
        for name, array in expected.items():
            np.testing.assert_array_equal(written[name], array)
    summary = json.loads(invoke("run", tiny, "--input", arrays, "--json").stdout)
    assert summary["y"]["argmax"] == expected["y"].argmax(axis=1).tolist()
    assert summary["y"]["max"] == expected["y"].max()


def test_run_takes_the_only_array_for_the_only_input(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3), np.float32))
    np.savez(tmp_path / "x.npz", other_name=np.zeros((1, 3), np.float32))
    answers = [invoke("run", tiny, "--input", tmp_path / name) for name in ("x.npy", "x.npz")]
    assert [answer.exit_code for answer in answers] == [0, 0]
    assert answers[0].stdout == answers[1].stdout


def test_run_never_unpickles(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}]), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([{"a": 1}]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("1 2 3")
    for name in ("x.npy", "x.npz", "text.npy"):
        said = trouble("run", tiny, "--input", tmp_path / name)
        assert f"{name}: is not a .npy or .npz file of plain arrays" in said
        assert "allow_pickle" not in said and "trust" not in said


def test_arrays_that_a_small_file_blows_up(tiny: Path, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1 << 23, 3), np.float32))
    said = trouble("run", tiny, "--input", tmp_path / "x.npz")
    assert "x.npz: reading " in said and "would take more than" in said


@pytest.mark.parametrize("name", ["y.foo", "y", "y.NPY"])
def test_run_writes_no_other_formats(tiny: Path, arrays: Path, name: str, tmp_path: Path) -> None:
    said = trouble("run", tiny, "--input", arrays, "--output", tmp_path / name)
    assert f"{name}: not supported: arrays as " in said and said.rstrip().endswith("end its name in .npy or .npz")
    assert not (tmp_path / name).exists()


def test_run_writes_npy_as_npy(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    dest = tmp_path / "y.npy"
    assert "holds one array, and there are 2 outputs; end its name in .npz" in trouble(
        "run", tiny, "--input", tmp_path / "x.npy", "--output", dest
    )
    assert not dest.exists()
    model = qfmt.load(tiny)
    model.replace(graph=dataclasses.replace(model.graph, outputs=("y",))).save(tmp_path / "one.qfb")
    assert invoke("run", tmp_path / "one.qfb", "--input", tmp_path / "x.npy", "--output", dest).exit_code == 0
    np.testing.assert_array_equal(np.load(dest), tiny_model().run({"x": np.ones((2, 3), np.float32)})["y"])


def test_run_notes_what_it_converts_and_refuses_the_rest(tmp_path: Path) -> None:
    kinds = {"real": "float32", "index": "int32", "grid": "uint8"}
    grid = Quantization.per_tensor(0.5, 3, "uint8")
    for name, kind in kinds.items():
        tensors = {each: Tensor(each, kind, ("N",), quantization=grid if name == "grid" else None) for each in "xy"}
        graph = Graph(
            inputs=("x",), outputs=("y",), nodes=[Node("Identity", ("x",), ("y",), {}, version=23)], tensors=tensors
        )
        Model(graph).save(tmp_path / f"{name}.qfb")
    path = tmp_path / "x.npy"

    def said(name: str, array: Any) -> str:
        np.save(path, array)
        result = invoke("run", tmp_path / f"{name}.qfb", "--input", path)
        assert result.stderr.count("\n") <= 1
        return result.stderr if result.exit_code == 0 else f"status {result.exit_code}: {result.stderr}"

    for name, kind in kinds.items():
        assert said(name, np.ones(2, kind)) == ""
    assert said("real", np.ones(2)) == f"note: {path}: input x takes float32; float64 was converted\n"
    assert said("index", np.ones(2, np.int64)) == f"note: {path}: input x takes int32; int64 was converted\n"
    assert said("index", np.array([1, 1 << 40])).startswith("status 2: qfmt: error: input x: takes int32, which cannot")
    assert "input x: takes uint8, not int64" in said("grid", np.ones(2, np.int64))
    assert "input x: takes int32, not float64" in said("index", np.ones(2))


def test_run_explains_what_does_not_fit(tiny: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(3))
    assert "no array 'x', but a, b; the inputs are x" in trouble("run", tiny, "--input", tmp_path / "x.npz")
    np.save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
    assert "must be 3" in trouble("run", tiny, "--input", tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY")
    assert "x.npy: is not a .npy" in trouble("run", tiny, "--input", tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.zeros((1, 3), np.float32))
    missing = tmp_path / "missing" / "y.npz"
    assert str(missing) in trouble("run", tiny, "--input", tmp_path / "x.npy", "--output", missing)


def test_run_replaces_neither_what_it_reads_nor_what_is_no_file(tiny: Path, tmp_path: Path) -> None:
    arrays = tmp_path / "x.npy"
    np.save(arrays, np.zeros((1, 3), np.float32))
    before = tiny.read_bytes(), arrays.read_bytes()
    for dest in (tiny, arrays):
        assert "is the source itself" in trouble("run", tiny, "--input", arrays, "--output", dest)
    assert (tiny.read_bytes(), arrays.read_bytes()) == before
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.npz")
        said = trouble("run", tiny, "--input", arrays, "--output", tmp_path / "pipe.npz")
        assert "read-only or not a regular file" in said
        assert (tmp_path / "pipe.npz").is_fifo()


@pytest.mark.skipif(sys.platform == "win32", reason="streams are closed by the shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_is_no_error(tiny: Path, closed: str) -> None:
    command = f'"$0" -m qfmt check "$1" {closed}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        ["sh", "-c", command, sys.executable, str(tiny)], env=environment, capture_output=True, timeout=60
    )
    assert (finished.returncode, finished.stderr) == (0, b"")


def test_a_destination_without_suffix_is_a_c_program_and_could_be_a_qfb(tmp_path: Path) -> None:
    message = trouble("convert", DIGITS, tmp_path / "model")
    assert f"for a .qfb file name it {tmp_path / 'model.qfb'}; for a C program" in message
    assert "name it" not in trouble("convert", DIGITS, tmp_path / "a" / "model.c")


# ops


def test_ops_lists_every_operator() -> None:
    from qfmt.ops import OPERATORS

    lines = invoke("ops").stdout.splitlines()[1:]
    assert {line.split()[0] for line in lines} == OPERATORS.keys()
    assert {entry["name"] for entry in json.loads(invoke("ops", "--json").stdout)} == OPERATORS.keys()


def test_ops_explains_one_by_its_name_here_or_in_torch() -> None:
    text = invoke("ops", "Conv").stdout
    assert "X W B? -> Y" in text
    assert "fbgemm: float_bias" in text
    assert "strides" in text
    assert invoke("ops", "quantized::add").stdout == invoke("ops", "Add").stdout
    assert "similar: Conv" in trouble("ops", "Cov")
    assert invoke("ops", "aten::relu").stdout == invoke("ops", "Relu").stdout
    assert "'aten::relu6' is converted, to operators" in trouble("ops", "aten::relu6")


# On a terminal


def on_a_terminal(*command: str, **variables: str) -> tuple[int, bytes]:
    """Status and everything that a process prints when both its streams are a terminal of 120 columns."""
    if not hasattr(os, "openpty"):
        pytest.skip("this system has no pseudo-terminals")
    ours, theirs = os.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120", **variables}
    printed = b""
    with subprocess.Popen([sys.executable, *command], env=environment, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        with contextlib.suppress(OSError):  # Linux's way to say that the other side was closed
            while block := os.read(ours, 4096):
                printed += block
    os.close(ours)
    return running.returncode, printed


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_a_drawn_table_and_color_unless_told_otherwise(tiny: Path, no_color: bool) -> None:
    variables = {"NO_COLOR": "1"} if no_color else {}
    status, drawn = on_a_terminal("-m", "qfmt", "inspect", str(tiny), **variables)
    assert status == 0
    assert b"fc1.weight" in drawn
    assert (b"\x1b[36m" in drawn) != no_color


def test_work_that_takes_long_says_so_on_a_terminal_only() -> None:
    code = (
        "import time; from qfmt.cli import output; output.PATIENCE = 0.01\n"
        "with output.working('converting [bold]net.pt'): time.sleep(0.5)"
    )
    status, drawn = on_a_terminal("-c", code)
    assert (status, b"converting [bold]net.pt" in drawn) == (0, True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    piped = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=60)
    assert (piped.returncode, piped.stdout + piped.stderr) == (0, b"")
