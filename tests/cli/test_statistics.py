"""`qfmt inspect --stats` and `--tree`, and a tensor whose shards are not all there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qfmt
from qfmt.cli.statistics import ASCII, BLOCKS, spark
from qfmt.file.reader import Container
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.passes.statistics import channel_axes, statistics, stored_range
from qfmt.quantization import Parameter
from qfmt.view.description import describe
from support.command_line import invoke, tiny_model, trouble
from support.paths import DIGITS, HOSTILE
from support.web_server import Server


def stats(*arguments: object) -> dict[str, dict[str, object]]:
    return {each["name"]: each for each in json.loads(invoke("inspect", *arguments, "--stats", "--json").stdout)}


def test_statistics_of_codes_are_numpys(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).integers(-100, 101, (4, 3, 50)).astype(np.int8)
    weight[1] = 0
    weight[2, 0, :7] = 127
    grid = Quantization.of((0.5, 2.0, 0.25, 1.0), (0,) * 4, -127, 127, axis=0)
    Model(Graph((), (), (), {"w": Tensor.constant("w", weight, grid)})).save(tmp_path / "m.qfb")
    found = stats(tmp_path / "m.qfb")["w"]
    assert (found["min"], found["max"]) == (weight.min(), weight.max())
    assert found["low"] == int((weight == -127).sum())
    assert found["high"] == int((weight == 127).sum())
    assert found["used"] == len(np.unique(weight))
    assert (found["codes"], found["dead"], found["axis"]) == (256, 1, 0)
    assert (found["scale_min"], found["scale_max"]) == (0.25, 2.0)
    assert found["bins"] == np.bincount(weight.reshape(-1).astype(int) + 128, minlength=256).tolist()
    (title, row, *_) = invoke("inspect", tmp_path / "m.qfb", "--stats").stdout.splitlines()
    assert title.split() == ["tensor", "stored", "sat.", "codes", "scales", "dead"]
    saturated = f"{found['high'] / weight.size:.1%}"
    assert row.split() == ["w", f"{weight.min()}..127", saturated, f"{found['used']}/256", "×8", "1"]


def test_the_page_and_the_terminal_have_the_same_statistics() -> None:
    model = qfmt.convert(DIGITS)
    shown = stats(DIGITS)
    counted = 0
    for tensor in describe(model, "m")["tensors"]:
        for key, value in tensor.get("stats", {}).items():
            if key not in ("peaks", "bins", "width"):  # a page has fewer bins, and the peaks of channels
                assert shown[tensor["name"]][key] == value, (tensor["name"], key)
                counted += 1
    assert counted > 50


def test_one_tensor_is_asked_for_by_any_of_its_names(tiny: Path) -> None:
    assert [*stats(tiny, "--tensor", "fc1._packed_params._packed_params")] == ["fc1.weight"]
    assert "exclude each other" in trouble("inspect", tiny, "--stats", "--tree")


def test_statistics_of_a_computed_tensor_are_an_error(tiny: Path) -> None:
    output = qfmt.load(tiny).graph.outputs[0]
    assert f"{output} is not a constant" in trouble("inspect", tiny, "--stats", "--tensor", output)


@pytest.mark.parametrize("shape", [(7,), (5, 3), (4, 6, 2), (2, 3, 4, 5)])
def test_channels_on_any_axis_in_many_parts(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qfmt.arrays.PART", 8)
    rng = np.random.default_rng(len(shape))
    for axis, channels in enumerate(shape):
        codes = rng.integers(-128, 128, shape).astype(np.int8)
        points = rng.integers(-5, 6, channels)
        tensor = Tensor.constant("w", codes, Quantization.of(np.ones(channels), points, -128, 127, axis=axis))
        moved = np.moveaxis(codes.astype(int), axis, 0).reshape(channels, -1)
        expected = np.abs(moved - points[:, None]).max(1)
        assert statistics(tensor, axis, 256, 100)["peaks"] == expected.tolist()


def test_the_channels_of_a_weight_are_those_of_its_reader() -> None:
    model = tiny_model()
    assert channel_axes(model.graph) == {"fc1.weight": 0}


@pytest.mark.parametrize("drawn", [BLOCKS, ASCII])
def test_a_histogram_never_hides_what_occurs(drawn: str) -> None:
    assert len(drawn) == 9
    assert spark({"bins": [0, 1, 1000]}, drawn) == drawn[0] + drawn[1] + drawn[8]
    assert spark({"bins": [1, 0] * 128}, drawn) == drawn[8] * 12 or len(spark({"bins": [1, 0] * 128}, drawn)) <= 12
    assert spark({}, drawn) == spark({"bins": [0]}, drawn) == ""


# The tree


def scoped() -> Model:
    def node(scope: str, operator: str, *inputs: str) -> Node:
        return Node(operator, inputs, (f"{scope}.{operator}",), scope=scope)

    nodes = (
        node("block.0.conv", "Conv", "x", "block.0.conv.weight"),
        node("block.0.conv", "Relu", "block.0.conv.Conv"),
        node("block.1", "Conv", "block.0.conv.Relu", "block.1.weight"),
        node("", "Add", "block.1.Conv", "block.1.Conv"),
    )
    grid = Quantization.of(np.ones(2000), np.zeros(2000, np.int64), -128, 127, axis=0)
    tensors = [
        Tensor("x", "float32", ("N", 2)),
        Tensor.constant("block.0.conv.weight", np.zeros((2000, 2), np.int8), grid),
        Tensor.constant("block.1.weight", np.zeros((3, 5), np.float32)),
        *(Tensor(each.outputs[0], "float32", None) for each in nodes),
    ]
    graph = Graph(("x",), (nodes[-1].outputs[0],), nodes, {tensor.name: tensor for tensor in tensors})
    return Model(graph)


def test_the_tree_has_what_is_in_each_module(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr("qfmt.cli.inspect.open_model", lambda file: (scoped(), "qfb"))
    tree = json.loads(invoke("inspect", tiny, "--tree", "--json").stdout)
    assert (tree["nodes"], tree["parameters"], tree["operators"]) == (4, 4015, {"Conv": 2, "Relu": 1, "Add": 1})
    (block,) = tree["modules"]
    first, second = block["modules"]
    assert (block["name"], block["nodes"], first["name"], second["name"]) == ("block", 3, "0", "1")
    (conv,) = first["modules"]
    scales = 2000 * (4 + 1)
    assert conv == {
        "name": "conv",
        "nodes": 2,
        "parameters": 4000,
        "bytes": 4000 + conv["bytes"] - 4000,
        "operators": {"Conv": 1, "Relu": 1},
        "modules": [],
    }
    assert conv["bytes"] >= 4000 + scales
    assert second["bytes"] == 60
    rows = invoke("inspect", tiny, "--tree").stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["module", "all", "block", "0.conv", "1"]
    assert rows[3].startswith("    0.conv ")
    assert rows[3].endswith("1 Conv, 1 Relu")
    shallow = invoke("inspect", tiny, "--tree", "--depth", 1).stdout.splitlines()
    assert [row.split()[0] for row in shallow] == ["module", "all", "block"]
    assert "--depth is for --tree" in trouble("inspect", tiny, "--depth", 1)


def test_the_tree_of_tensors_without_a_graph(tmp_path: Path) -> None:
    names = ("layers.0.q.weight", "layers.0.k.weight", "layers.1.q.weight", "head.weight")
    tensors = {name: Tensor.constant(name, np.zeros((2, 3), np.int8)) for name in names}
    Model(Graph((), (), (), tensors)).save(tmp_path / "m.qfb")
    tree = json.loads(invoke("inspect", tmp_path / "m.qfb", "--tree", "--json").stdout)
    found = {each["name"]: each["parameters"] for each in tree["modules"]}
    assert found == {"head": 6, "layers": 18}


def test_names_with_many_dots_make_no_deep_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qfmt.cli.tree.MOST", 50)
    tensors = {f"{at}{'.a' * 5000}": Tensor.constant(f"{at}{'.a' * 5000}", np.zeros(1)) for at in range(100)}
    Model(Graph((), (), (), tensors)).save(tmp_path / "m.qfb")
    tree = json.loads(invoke("inspect", tmp_path / "m.qfb", "--tree", "--json").stdout)
    assert tree["parameters"] == 100
    assert sum(each["parameters"] for each in tree["modules"]) < 100


@pytest.mark.parametrize("path", sorted(HOSTILE.glob("*.qfb")), ids=lambda path: path.name)
def test_hostile_files(path: Path) -> None:
    for option in ("--stats", "--tree"):
        result = invoke("inspect", path, option)
        assert result.exit_code in (0, 2), result.output
        assert "bug in qfmt" not in result.stderr
        assert "\x1b" not in result.output


# Shards


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Four tensors, each with its codes in one shard and its scales and zero points in the next."""
    rng, tensors = np.random.default_rng(0), {}
    for name in "abcd":
        scales, points = rng.uniform(0.1, 1, (64, 256)).astype(np.float32), rng.integers(0, 15, (64, 256))
        grid = Quantization.of_blocks("uint4", (64, 8192), (1, 32), scales, points)
        tensors[name] = Tensor.constant(name, rng.integers(0, 16, (64, 8192)), grid, dtype="uint4")
    path = tmp_path / "m.qfb"
    qfmt.save(Model(Graph((), (), (), tensors)), path, shard_size=300_000)
    return path


def without_shard_of(path: Path, name: str, part: str) -> None:
    """Remove the shard that has the codes or the scales of a tensor."""
    container = Container(path, verify=True)
    tensor = container.tensors[name]
    data = tensor.data if part == "codes" else tensor.quantization.scale.data
    shards = container.data
    path.with_name(shards.shards[shards._index(data.offset)].name).unlink()


def test_a_tensor_is_shown_while_shards_of_others_are_missing(sharded: Path) -> None:
    whole = {name: invoke("inspect", sharded, "--tensor", name).stdout for name in "abcd"}
    for part in ("codes", "scales"):
        without_shard_of(sharded, "b", part)
    for name in "acd":
        assert invoke("inspect", sharded, "--tensor", name).stdout == whole[name]


def test_a_tensor_whose_scales_are_missing(sharded: Path) -> None:
    without_shard_of(sharded, "a", "scales")
    result = invoke("inspect", sharded, "--tensor", "a")
    assert result.exit_code == 0, result.output
    told = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert told["used range"].strip() == "0..15 (smallest and largest stored integer)"
    for key in ("scale", "zero point", "can hold", "real range"):
        assert told[key].strip().startswith("unknown: shard '")
        assert told[key].endswith("is missing")
    facts = json.loads(invoke("inspect", sharded, "--tensor", "a", "--json").stdout)
    assert (facts["stored_min"], facts["stored_max"], facts["real_min"]) == (0, 15, None)
    assert facts["error"].endswith("is missing")
    assert stats(sharded)["a"]["used"] == 16


def test_a_tensor_whose_codes_are_missing(sharded: Path) -> None:
    without_shard_of(sharded, "a", "codes")
    result = invoke("inspect", sharded, "--tensor", "a")
    assert result.exit_code == 0, result.output
    assert "scale       0.1" in result.stdout
    assert "real range  unknown: shard '" in result.stdout
    found = stats(sharded)
    assert "is missing" in str(found["a"]["error"])
    assert "error" not in found["b"]
    assert "a: " in invoke("inspect", sharded, "--stats").stdout


def test_a_damaged_tensor_is_an_error(tiny: Path) -> None:
    content = bytearray(tiny.read_bytes())
    at = content.index(bytes([1, 254, 3, 128, 5, 6]))
    content[at] ^= 1
    tiny.write_bytes(content)
    assert "is damaged" in trouble("inspect", tiny, "--tensor", "fc1.weight")


def test_a_remote_file_is_shown_like_a_local_one(server: Server, tiny: Path) -> None:
    server.files["tiny.qfb"], server.ranges = tiny.read_bytes(), True
    for option in ("--stats", "--tree"):
        assert invoke("inspect", server.url("tiny.qfb"), option).stdout == invoke("inspect", tiny, option).stdout


def test_the_range_of_a_table_in_any_order() -> None:
    """The smallest and the largest code are not those of the smallest and the largest number."""
    table = Parameter.of_values(np.array([5, -1, 100, -200, *range(7, 18), 6], np.float32))
    grid = replace(Quantization.of((1.0,), (0,), 0, 15), table=table)
    found = stored_range(Tensor.constant("t", np.array([0, 2, 3, 15], np.uint8), grid, dtype="uint4"))
    assert (found["stored_min"], found["stored_max"], found["real_min"], found["real_max"]) == (0, 15, -200, 100)
