"""C programs apart from arithmetic: malicious names, memory, operators that move elements, folders, refusals."""

from __future__ import annotations

import re
import shlex
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import qfmt
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.backends.c import program as texts_of
from qfmt.backends.c import write_c
from qfmt.backends.c.layers import write_nodes
from qfmt.backends.c.names import Names, comment, identifier
from qfmt.backends.c.plan import ALIGNMENT, Plan, place
from qfmt.backends.c.static import fixed
from qfmt.cli import main as cli
from qfmt.errors import DestinationError, InexpressibleNodesError
from qfmt.ops import OPERATORS
from qfmt.passes.lowering import lower_integer
from support.c_program import SANITIZED, compile_c, flat, program, random_inputs, run_main
from support.counts import tell
from support.paths import DIGITS, INTEGER_SUITE

GRID = Quantization.of((0.5,), (3,), -128, 127)


@pytest.fixture(scope="module")
def digits() -> Model:
    return lower_integer(qfmt.convert(DIGITS, input_shapes={"x": ("N", 1, 8, 8)}), exact=True)


def renamed(model: Model, names: dict[str, str]) -> Model:
    """The same network with other names."""

    def of(name: str) -> str:
        return names.get(name, name)

    graph = model.graph
    nodes = tuple(
        replace(node, inputs=tuple(map(of, node.inputs)), outputs=tuple(map(of, node.outputs)), name=of(node.name))
        for node in graph.nodes
    )
    tensors = {of(name): replace(tensor, name=of(name)) for name, tensor in graph.tensors.items()}
    return model.replace(graph=Graph(tuple(map(of, graph.inputs)), tuple(map(of, graph.outputs)), nodes, tensors))


# Names

HOSTILE = [
    "*/ int injected = 1; /*",
    '"); system("true"); ("',
    "a\\\nb",
    "line\nint injected;",
    "??/",
    "// comment \\",
    "run",
    "int",
    "int main(void)",
    "日本語",
    "\u202e\x00\x07",
    "9lives",
    "ALIGNED",
    "weights",
    "t",
    "_",
    "x" * 3000,
    "#include <float.h>",
    "double",
    "in_run",
    "%s%n",
]


def test_names_inject_nothing(digits: Model, tmp_path: Path) -> None:
    names = [name for name in digits.tensors if name]
    hostile = {name: f"{HOSTILE[i % len(HOSTILE)]}{'' if i < len(HOSTILE) else i}" for i, name in enumerate(names)}
    model = renamed(digits, hostile)
    main = program(model, tmp_path / "int", *SANITIZED, "-Wcomment", "-Wtrigraphs")
    text = "".join(path.read_text(encoding="ascii") for path in main.parent.glob("*.[ch]"))
    assert not re.search(
        r"injected\s*[=;]|system\(|float|double|\?\?/|\\\n", re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    )
    inputs = random_inputs(model, np.random.default_rng(5))
    assert run_main(main, model, inputs).tolist() == flat(model.run(inputs), model).tolist()


@pytest.mark.parametrize("text", HOSTILE)
def test_identifiers_and_comments_of_hostile_names(text: str) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]{0,45}", identifier(text))
    assert not re.search(r"\*/|/\*|//|\\|\n|\?\?|[^ -~]", comment(text))


@pytest.mark.parametrize("folder", ["int", "main", "9 lives", "-", "pool", "stdint", "float", "int8", "layer"])
def test_a_folder_of_any_name_is_a_program(digits: Model, tmp_path: Path, folder: str) -> None:
    write_c(digits, tmp_path / folder)
    compile_c(tmp_path / folder, "main", "-O0")


def test_lines_are_as_long_as_people_read(digits: Model) -> None:
    for model in (digits, *map(qfmt.load, INTEGER_SUITE)):
        for name, text in texts_of(model, "a_name_that_is_rather_long").items():
            assert max(map(len, text.split("\n"))) <= 120, name
            assert not re.search(r"\((u?int\d+_t)\)\(\1\)|[-+] \(0\)", text), name


# Memory


def planned(model: Model) -> tuple[Plan, dict[int, int]]:
    plan = Plan(fixed(model, {}), Names("net"))
    write_nodes(plan)
    return plan, place(plan)


def test_no_two_buffers_that_live_at_once_share_memory(digits: Model) -> None:
    pairs = 0
    for model in (digits, *map(qfmt.load, INTEGER_SUITE)):
        plan, sizes = planned(model)
        found = {operand.view.buffer for step in plan.steps for operand in (*step.operands, *step.scratch)}
        buffers = [buffer for buffer in found if not buffer.external]
        for i, a in enumerate(buffers):
            assert a.offset * a.width % ALIGNMENT == 0
            assert a.offset >= 0 and a.offset + a.size <= sizes[a.width]
            for b in buffers[:i]:
                if a.width == b.width and a.first <= b.last and b.first <= a.last:
                    pairs += 1
                    assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
    assert pairs > 100
    tell(f"C: {pairs} pairs of buffers that live at the same time, none overlaps")


def test_memory_is_used_again(digits: Model) -> None:
    plan, sizes = planned(digits)
    found = {operand.view.buffer for step in plan.steps for operand in (*step.operands, *step.scratch)}
    together = sum(buffer.size for buffer in found if not buffer.external and buffer.width == 1)
    largest = max(
        sum(operand.view.buffer.size for operand in (*step.operands, *step.scratch)
            if not operand.view.buffer.external and operand.view.buffer.width == 1)
        for step in plan.steps
    )  # fmt: skip
    assert largest <= sizes[1] < together / 1.5


def test_sums_are_never_stored_whole(digits: Model) -> None:
    """An accumulator with one requantization as its reader is stored for only a few positions at a time."""
    plan, sizes = planned(digits)
    stem = digits.tensors[digits.nodes[0].outputs[0]].shape
    assert stem is not None and stem[1:] == (16, 8, 8)
    assert sizes[4] < 16 * 8 * 8
    assert not any(buffer.name.endswith(".sums") for step in plan.steps for buffer in [step.operands[-1].view.buffer])


# Folders


def test_the_current_folder_is_not_replaced(digits: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net").mkdir()
    monkeypatch.chdir(tmp_path / "net")
    for name in (".", "../net", ".."):
        with pytest.raises(DestinationError, match="is, or contains, the current folder"):
            write_c(digits, Path(name))


def test_a_folder_with_other_files_is_not_changed(
    digits: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if another process puts them there meanwhile."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(DestinationError, match="contains other files"):
        write_c(digits, folder)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    write_c(digits, tmp_path / "net")
    for name in ("notes.txt", "net_weights.npz", "mine.o"):
        mine = tmp_path / "net" / name
        mine.write_text("mine")
        with pytest.raises(DestinationError, match="contains other files"):
            write_c(digits, tmp_path / "net")
        assert mine.read_text() == "mine"
        mine.unlink()
    with pytest.raises(DestinationError, match="contains other files"):
        write_c(digits, tmp_path / "net", name="second")
    mine = tmp_path / "net" / "mine.txt"
    monkeypatch.setattr("qfmt.backends.c.emit.files", lambda plan: mine.write_text("mine") and {"net.h": "new"})
    with pytest.raises(DestinationError, match="contains other files"):
        write_c(digits, tmp_path / "net")
    assert mine.read_text() == "mine" and (tmp_path / "net" / "net.h").read_text() != "new"
    assert (tmp_path / "net" / "net.c").exists()


def test_a_program_is_replaced_with_what_was_compiled_of_it(digits: Model, tmp_path: Path) -> None:
    folder = tmp_path / "net"
    names = write_c(digits, folder)
    compile_c(folder, "main", "-O0")
    (folder / "net.o").write_bytes(b"")
    assert write_c(digits, folder) == names
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_nothing_is_half_written(digits: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "net"
    write_c(digits, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    written = Path.write_text

    def full(self: Path, *args: Any, **options: Any) -> int:
        if self.name == "main.c":
            raise OSError(28, "No space left on device")
        return written(self, *args, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DestinationError, match="No space left"):
        write_c(digits, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


@pytest.mark.parametrize("kind", ["file", "link", "nowhere"])
def test_a_destination_that_is_not_a_folder_is_refused(digits: Model, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "net"
    if kind == "file":
        target.write_text("x")
    elif kind == "link":
        target.symlink_to(tmp_path)
    else:
        target = tmp_path / "a" / "b"
    with pytest.raises(DestinationError, match="folder"):
        write_c(digits, target)


# Refusals


def test_a_network_of_real_numbers_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match=r"x: is float32.*--integer-only --exact"):
        write_c(qfmt.convert(DIGITS), tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_a_constant_of_real_numbers_does_not_go_out(tmp_path: Path) -> None:
    model = Model(Graph((), ("c",), (), {"c": Tensor.constant("c", np.ones(3, np.float32))}))
    with pytest.raises(DestinationError, match="c: is float32"):
        write_c(model, tmp_path / "net")


def test_unknown_sizes_are_an_error(digits: Model, tmp_path: Path) -> None:
    (name,) = digits.graph.inputs
    tensor = replace(digits.tensors[name], shape=("N", 1, "H", None))
    model = digits.replace(graph=replace(digits.graph, tensors=dict(digits.tensors) | {name: tensor}))
    with pytest.raises(DestinationError, match=r"fixed sizes.*\[1,1,H,\?\].*--input-shape quant=1,1,64,64`"):
        write_c(model, tmp_path / "net")
    for wrong in ((1, 3, 8, 8), (1, 1, 8), (1, 1, 100_000, 100_000)):
        with pytest.raises(DestinationError, match=r"so it cannot be \[|10,000,000,000 elements"):
            write_c(model, tmp_path / "net", shapes={name: wrong})
    with pytest.raises(DestinationError, match=r"nobody: is not an input.*inputs are quant"):
        write_c(model, tmp_path / "net", shapes={"nobody": (1, 2)})
    write_c(model, tmp_path / "net", shapes={name: (1, 1, 8, 8)})
    assert "[1,1,8,8]" in (tmp_path / "net" / "net.h").read_text()


def test_an_error_names_all_inputs_without_a_shape(tmp_path: Path) -> None:
    x = Tensor("x", "int8", ("N", None, 5), quantization=GRID)
    inputs = ("x", "known", "vague")
    tensors = dict(zip(inputs, (x, replace(x, name="known", shape=("N", 2)), replace(x, name="vague", shape=None)),
                       strict=True))  # fmt: skip
    model = Model(Graph(inputs, inputs, (), tensors))
    asked = r"x, vague: .* \[1,\?,5\], of unknown rank.*--input-shape x=1,64,5 --input-shape vague=1,64`"
    with pytest.raises(DestinationError, match=asked):
        write_c(model, tmp_path / "net")


def test_a_batch_is_computed_at_once(digits: Model, tmp_path: Path) -> None:
    (name,) = digits.graph.inputs
    main = program(digits, tmp_path / "net", shapes={name: (3, 1, 8, 8)})
    x = np.random.default_rng(4).integers(0, 256, (3, 1, 8, 8)).astype(np.uint8)
    got = run_main(main, digits, {name: x})
    assert got.size == 30 and got.tolist() == flat(digits.run({name: x}), digits).tolist()


@pytest.mark.parametrize(("name", "inputs"), [("in", ("data_w", "check")), ("in_x", ("x_data_w", "x_check"))])
def test_parameters_and_constants_that_would_have_one_name(name: str, inputs: tuple[str, str], tmp_path: Path) -> None:
    """`in` is the beginning of the names of parameters, and here of constants, too."""
    tensors = {each: Tensor(each, "int8", (3,)) for each in inputs}
    tensors |= {"w": Tensor.constant("w", np.array([5, -6, 7], np.int8)), "y": Tensor("y", "int32", (3,))}
    node = Node("qfmt.WeightedSum", (*inputs, "w"), ("y",), {"weights": (1, 10, 100)}, "", 1)
    model = Model(Graph(inputs, ("y",), (node,), tensors))
    given = dict(zip(inputs, (np.array([[1, 2, 3], [4, 5, 6]], np.int8)), strict=True))
    main = program(model.with_vectors(given), tmp_path / "net", name=name)
    assert run_main(main, model, given).tolist() == [541, -548, 763]


def test_inputs_that_nothing_reads_and_outputs_that_nothing_computes(tmp_path: Path) -> None:
    x = Tensor("x", "int8", (2, 3), quantization=GRID)
    tensors = {name: replace(x, name=name) for name in ("x", "unread", "y")}
    tensors["c"] = Tensor.constant("c", np.array([[5, -6]], np.int16))
    tensors["empty"] = Tensor.constant("empty", np.zeros((0, 3), np.int8), GRID)
    tensors["joined"] = replace(x, name="joined")
    nodes = (
        Node("Identity", ("x",), ("y",), version=23),
        Node("Concat", ("x", "empty"), ("joined",), {"axis": 0}, version=13),
    )
    model = Model(Graph(("x", "unread"), ("x", "y", "c", "joined"), nodes, tensors))
    main = program(model, tmp_path / "net")
    inputs = random_inputs(model, np.random.default_rng(2))
    assert run_main(main, model, inputs).tolist() == flat(model.run(inputs), model).tolist()


def test_an_integer_beyond_its_type_reads_nothing_beyond_a_table(tmp_path: Path) -> None:
    """A 4-bit integer is in a byte, in which a caller may pass a larger value."""
    model = qfmt.load(next(path for path in INTEGER_SUITE if path.stem == "pair-table-uint4-int4"))
    main = program(model, tmp_path / "net")
    given = {name: np.full(vector.array.shape, 77, np.uint8) for name, vector in model.vectors[0].inputs.items()}
    assert run_main(main, model, given).size > 0


def test_sums_that_may_leave_int32_are_refused(tmp_path: Path) -> None:
    x = Tensor("x", "int16", (1, 3), quantization=Quantization.of((0.5,), (0,), -32768, 32767))
    w = Tensor.constant("w", np.full((1, 3), 32767, np.int16), Quantization.of((1.0,), (0,), -32768, 32767))
    node = Node("qfmt.Linear", ("x", "w"), ("y",), rule="exact")
    model = Model(Graph(("x",), ("y",), (node,), {"x": x, "w": w, "y": Tensor("y", "int32", (1, 1))}))
    with pytest.raises(InexpressibleNodesError, match="computes sums that may exceed int32"):
        write_c(model, tmp_path / "net")


def test_every_node_without_a_form_is_named(tmp_path: Path) -> None:
    x = Tensor("x", "int8", (2, 3), quantization=GRID)
    names = ("a", "b", "c")
    tensors = {"x": x} | {name: replace(x, name=name) for name in names}
    nodes = (
        Node("Add", ("x", "x"), ("a",), version=14, rule="divide"),
        Node("Sub", ("x", "x"), ("b",), version=14, rule="divide"),
        Node("Add", ("a", "x"), ("c",), version=14, rule="divide"),
    )
    model = Model(Graph(("x",), ("b", "c"), nodes, tensors))
    with pytest.raises(InexpressibleNodesError, match=r"2 nodes cannot be written in C: Add .*\(1×: a\), Sub .*: b"):
        write_c(model, tmp_path / "net")


def test_advice_for_a_network_that_is_integer_only(tmp_path: Path) -> None:
    x, y = Tensor("x", "int8", (2, 3), quantization=GRID), Tensor("y", "int64", (2, 1))
    node = Node("ArgMax", ("x",), ("y",), OPERATORS["ArgMax"].complete({"axis": 1}), version=13)
    model = Model(Graph(("x",), ("y",), (node,), {"x": x, "y": y}))
    for engine, hint in (("fbgemm", "integer-only first"), ("integer", "before them (`--end-at`)")):
        with pytest.raises(InexpressibleNodesError) as caught:
            write_c(replace(model, engine=engine), tmp_path / "net")
        assert hint in caught.value.hint


# The command


def test_the_wheel_holds_the_templates(tmp_path: Path) -> None:
    wheel = pytest.importorskip("flit_core.wheel", reason="flit_core is in the test extra")
    root = DIGITS.parents[2]
    built = wheel.make_wheel_in(root / "pyproject.toml", tmp_path).file
    with zipfile.ZipFile(built) as archive:
        held = {name for name in archive.namelist() if name.startswith("qfmt/backends/c/kernels/")}
    assert held == {f"qfmt/backends/c/kernels/{path.name}" for path in (root / "qfmt/backends/c/kernels").iterdir()}


def test_from_torch_to_c_in_one_command(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    arguments = ["convert", str(DIGITS), str(folder), "--integer-only", "--exact"]
    result = CliRunner().invoke(cli, [*arguments, "--input-shape", "x=N,1,8,8"])
    assert result.exit_code == 0, result.output
    assert f"next: make -C {folder}" in result.stderr
    model = lower_integer(qfmt.convert(DIGITS, input_shapes={"x": ("N", 1, 8, 8)}), exact=True)
    inputs = random_inputs(model, np.random.default_rng(6))
    got = run_main(compile_c(folder, "main", "-O1"), model, inputs)
    assert got.tolist() == flat(model.run(inputs), model).tolist()


def test_suggested_commands_can_be_pasted(digits: Model, tmp_path: Path) -> None:
    """Names with spaces, brackets and other special characters of a shell; and with a misleading suffix."""
    source, folder = tmp_path / "digits.qfb", tmp_path / "my net-1.0 (ü); $x"
    digits.save(source)
    result = CliRunner().invoke(cli, ["convert", str(source), f"{folder}/"])
    assert result.exit_code == 0, result.output
    (said,) = re.findall(r"^next: (.*)$", result.stderr, re.MULTILINE)
    assert shlex.split(said) == ["make", "-C", str(folder)]
    fewer = CliRunner().invoke(cli, ["convert", str(source), str(tmp_path / "small"), "--compact"])
    assert fewer.exit_code == 0
    weights = [next(each.glob("*_weights.c")).stat().st_size for each in (tmp_path / "small", folder)]
    assert weights[0] < weights[1]
    assert CliRunner().invoke(cli, ["convert", str(source), "m.qfb", "--compact"]).exit_code == 2
    named = CliRunner().invoke(cli, ["convert", str(source), str(tmp_path / "other" / "network.c")])
    assert named.exit_code == 0
    assert {path.name for path in (tmp_path / "other").iterdir()} >= {"network.c", "network.h", "Makefile"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--opset", "21"], "--opset, --form and --same-types are for ONNX"),
        ([], "--integer-only --exact"),
    ],
)
def test_commands_that_cannot_be_done(tmp_path: Path, options: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["convert", str(DIGITS), str(tmp_path / "net"), *options])
    assert result.exit_code == 2 and said in result.stderr and not (tmp_path / "net").exists()
