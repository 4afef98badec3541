"""Shapes of inputs that are not stated: the likely shapes work, and so does the command line in a hint."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import qfmt
from networks import pytorch
from qfmt.cli import main
from qfmt.compare.random_inputs import draw
from qfmt.compare.random_inputs import shapes as tried
from qfmt.errors import QfmtError, SourceError
from qfmt.model import Graph, Model, Node, Tensor
from qfmt.notation import in_shell
from qfmt.ops import OPERATORS
from qfmt.passes.likely_shapes import example_shapes, likely_shapes, shape_options
from support.command_line import invoke, trouble
from support.paths import DIGITS


class Squeezed(torch.nn.Module):
    def forward(self, x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x.squeeze()), v.squeeze()


def reading(
    operator: str, weight: tuple[int, ...], shape: tuple[int | str | None, ...] | None, **attributes: int
) -> Model:
    constant = Tensor.constant("w", np.zeros(weight, np.float32))
    node = Node(operator, ("x", "w"), ("y",), attributes, version=OPERATORS[operator].version)
    return network(("x",), node, Tensor("x", "float32", shape), constant)


def network(inputs: tuple[str, ...], node: Node, *tensors: Tensor) -> Model:
    named = {tensor.name: tensor for tensor in (*tensors, Tensor("y", "float32", None))}
    return Model(Graph(inputs=inputs, outputs=("y",), nodes=[node], tensors=named))


@pytest.mark.parametrize(
    ("operator", "weight", "stated", "attributes", "likely"),
    [
        ("Conv", (8, 3, 3, 3), ("N", None, "H", "W"), {}, (1, 3, 224, 224)),
        ("Conv", (8, 3, 3, 3), None, {}, (1, 3, 224, 224)),
        ("Conv", (8, 1, 3, 3), ("N", None, "H", "W"), {}, (1, 1, 64, 64)),
        ("Conv", (8, 1, 3, 3), ("N", "C", "H", "W"), {"group": 8}, (1, 8, 64, 64)),
        ("Conv", (8, 2, 5), None, {}, (1, 2, 64)),
        ("Conv", (8, 4, 3, 3, 3), None, {}, (1, 4, 16, 16, 16)),
        ("ConvTranspose", (6, 2, 3, 3), None, {"group": 2}, (1, 6, 64, 64)),
        ("qfmt.Linear", (5, 24), ("N", 6, None), {}, (1, 6, 24)),
        ("qfmt.Linear", (5, 24), None, {}, (1, 24)),
        ("Gemm", (5, 24), None, {"transB": 1}, (1, 24)),
        ("Gemm", (24, 5), None, {}, (1, 24)),
        ("Relu", (5, 24), ("N",), {}, (64,)),
        ("Relu", (5, 24), (), {}, ()),
    ],
)  # fmt: skip
def test_the_first_layer_determines_the_shape(
    operator: str, weight: tuple[int, ...], stated: tuple[int | str | None, ...] | None,
    attributes: dict[str, int], likely: tuple[int, ...],
) -> None:  # fmt: skip
    model = reading(operator, weight, stated, **attributes)
    assert likely_shapes(model)["x"] == likely
    assert next(tried(model, {}, [])) == {"x": likely}


def test_a_trace_determines_shapes(tmp_path: Path) -> None:
    module, inputs = pytorch.quantized("two_inputs", "eager")
    traced, scripted = (
        qfmt.convert(pytorch.save_as(module, inputs, kind, tmp_path / f"{kind}.pt")) for kind in ("trace", "script")
    )
    assert example_shapes(traced) == {"image": (2, 3, 16, 16), "vector": (2, 5)}
    assert example_shapes(scripted) == {}
    assert shape_options(traced, "1") == "--input-shape image=1,3,16,16 --input-shape vector=1,5"
    traced.save(tmp_path / "m.qfb")
    assert example_shapes(qfmt.load(tmp_path / "m.qfb")) == example_shapes(traced)


NAME = "x=1;$(touch PWNED)'`"


def test_a_name_in_a_hint_is_one_word_of_a_shell(tmp_path: Path) -> None:
    """Also one with "=", at the last of which the options split."""
    model = qfmt.convert(DIGITS).rename({"x": NAME})
    model.save(tmp_path / "m.qfb")
    said = trouble("convert", tmp_path / "m.qfb", tmp_path / "out.qfb", "--integer-only")
    command = said[said.index("as in `") + len("as in `") : said.rindex("`")]
    assert shlex.split(command) == ["--input-shape", f"{NAME}=N,1,64,64"]
    lowered = invoke("convert", tmp_path / "m.qfb", tmp_path / "out.qfb", "--integer-only", *shlex.split(command))
    assert lowered.exit_code == 0, lowered.output
    said = trouble("inspect", tmp_path / "m.qfb", "--stats", "--tensor", NAME)
    assert f"`qfmt inspect FILE --tensor {shlex.quote(NAME)}` shows" in said


@pytest.mark.parametrize(("name", "shown"), [("B", "B"), ("x.B", "x.B"), ("batch-size", "N"), ("=", "N"), (None, "N")])
def test_a_hint_has_only_names_of_sizes_that_the_option_takes(name: str | None, shown: str) -> None:
    assert shape_options(reading("qfmt.Linear", (5, 24), (name, 6, None))) == f"--input-shape x={shown},6,24"


@pytest.mark.parametrize("limit", [500, 1000])
def test_a_hint_that_is_cut_is_no_command(limit: int, tmp_path: Path) -> None:
    """Wherever it is cut, also in the quotes of a quote."""
    for at in range(limit - 25, limit):
        name = "A" * at + "'" + "A" * 5000 + '$(touch PWNED)" #'
        said = str(QfmtError("wrong", hint=in_shell("--input-shape", f"{name}=1,2")))
        command = f"echo {said.partition('; ')[2]}"
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, timeout=60)
        assert done.returncode and not list(tmp_path.iterdir())


@pytest.mark.parametrize("word", ["plain", "a b", "it's", "new\nline's \\n", "\x1b[31m", "h\udcff.qfb", "a\u202eé"])
def test_a_hint_names_any_file(word: str) -> None:
    command = str(QfmtError("wrong", hint=in_shell("printf %s", word))).partition("; ")[2]
    assert command.isprintable()
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
    assert done.stdout == os.fsencode(word)


def test_a_hint_with_half_a_character() -> None:
    assert in_shell("echo", "a\ud800b") == "echo $'a?b'"


def test_a_path_in_a_hint_is_no_option() -> None:
    assert in_shell("qfmt inspect", "-x.qfb") == "qfmt inspect ./-x.qfb"
    assert in_shell("--input-shape", "-x=1") == "--input-shape -x=1"


NO_SHAPES = [3, ["N"], [-1], [1] * 65, [1 << 63]]


@pytest.mark.parametrize("told", ["[1]", "{", "[" * 10_000, *(json.dumps({"x": shape}) for shape in NO_SHAPES)])
def test_examples_that_make_no_sense_are_none(told: str) -> None:
    model = reading("Relu", (1, 1), ("N",)).replace(source={"example_shapes": told})
    assert example_shapes(model) == {} and likely_shapes(model)["x"] == (64,)


def options_of(message: str) -> list[str]:
    (command,) = re.findall("`([^`]*)`", message)
    return shlex.split(command)


@pytest.mark.parametrize(("name", "kind"), [("two_inputs", "script"), ("conv1d", "trace"), ("conv1d", "script")])
@pytest.mark.parametrize("arguments", [("m.qfb", "--integer-only")], ids=["lowered"])
def test_the_command_line_of_a_hint_works(name: str, kind: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    module, inputs = pytorch.quantized(name, "eager")
    source = pytorch.save_as(module, inputs, kind, tmp_path / "m.pt")
    command = ["convert", str(source), str(tmp_path / arguments[0]), *arguments[1:]]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    options = options_of(refused.stderr)
    assert options.count("--input-shape") == len(inputs)
    assert CliRunner().invoke(main, [*command, *options]).exit_code == 0


def test_so_does_that_of_a_program_in_c(tmp_path: Path) -> None:
    module, inputs = pytorch.quantized("two_inputs", "eager")
    source = pytorch.save_as(module, inputs, "trace", tmp_path / "m.pt")
    assert CliRunner().invoke(main, ["convert", str(source), str(tmp_path / "m.qfb"), "--integer-only"]).exit_code == 0
    command = ["convert", str(tmp_path / "m.qfb"), str(tmp_path / "folder")]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2
    assert CliRunner().invoke(main, [*command, *options_of(refused.stderr)]).exit_code == 0


def test_a_front_end_names_all_inputs_as_in_the_trace(tmp_path: Path) -> None:
    source = pytorch.save_as(Squeezed(), (torch.ones(1, 3, 5), torch.ones(7, 1)), "trace", tmp_path / "m.pt")
    with pytest.raises(SourceError) as refused:
        qfmt.convert(source)
    assert refused.value.hint.startswith(
        "state the sizes of the inputs, as in `--input-shape x=1,3,5 --input-shape v=7,1`"
    )
    told = ast.literal_eval(refused.value.hint.rpartition("input_shapes=")[2])
    assert told == {"x": (1, 3, 5), "v": (7, 1)}
    assert qfmt.verify(source, qfmt.convert(source, input_shapes=told), samples=1).is_exact


@pytest.mark.parametrize("include_last", [0, 1])
@pytest.mark.parametrize(("indices", "offsets"), [(12, 5), (64, 64), (3, 9), (7, 1), (0, 2), (5, 2)])
def test_drawn_offsets_are_those_of_bags(include_last: int, indices: int, offsets: int) -> None:
    bag = Node("qfmt.EmbeddingBag", ("w", "i", "o"), ("y",),
               {"include_last_offset": include_last, "mode": "sum", "padding_idx": -1})  # fmt: skip
    tensors = [Tensor.constant("w", np.zeros((9, 4), np.float32)),
               Tensor("i", "int64", ("I",)), Tensor("o", "int64", ("O",))]  # fmt: skip
    model = network(("i", "o"), bag, *tensors)
    (drawn,) = draw(model, {"i": (indices,), "o": (offsets,)}, 1, "fbgemm")
    expected = torch.nn.functional.embedding_bag(
        torch.from_numpy(drawn["i"]), torch.zeros(9, 4), torch.from_numpy(drawn["o"]),
        include_last_offset=bool(include_last), mode="sum",
    )  # fmt: skip
    assert expected.shape == (offsets - include_last, 4)
    assert drawn["o"][0] == 0 and (np.diff(drawn["o"]) >= 0).all() and drawn["o"][-1] <= indices
    if include_last and offsets > 1:
        assert drawn["o"][-1] == indices
