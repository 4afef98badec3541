"""What a page is made of: statistics, compared with NumPy on whole arrays; what cannot be read; comparisons."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import qfmt
from qfmt.arrays import PART
from qfmt.errors import QfmtError
from qfmt.model import Graph, Model, Node, Quantization, StoredArray, Tensor
from qfmt.passes.statistics import statistics
from qfmt.view import page
from qfmt.view.comparison import of_two
from qfmt.view.description import describe
from qfmt.view.drawing import as_svg
from support.command_line import tiny_model
from support.paths import DIGITS, GOLDEN, HOSTILE


def _constant(array: Any, grid: Quantization | None = None, dtype: str | None = None) -> Tensor:
    return Tensor.constant("w", array, grid, dtype=dtype)


def test_counts_of_integers() -> None:
    codes = np.random.default_rng(0).integers(-128, 128, (6, 50_000)).astype(np.int8)
    codes[2] = 3
    codes[codes == 77] = 78
    grid = Quantization.of((0.5,) * 6, (0, 0, 3, 0, 0, 0), -128, 127, axis=0)
    found = statistics(_constant(codes, grid), 0, 256, 10)
    counted = [int((codes == code).sum()) for code in range(-128, 128)]
    assert found["bins"] == counted
    assert (found["first"], found["width"], found["codes"]) == (-128, 1, 256)
    assert found["used"] == 255
    assert (found["low"], found["high"]) == (counted[0], counted[-1])
    assert found["dead"] == 1
    assert found["peaks"] == [128, 128, 0, 128, 128, 128]
    coarse = statistics(_constant(codes, grid), 0, 16, 5)
    assert coarse["bins"] == np.reshape(counted, (16, 16)).sum(1).tolist()
    assert (coarse["width"], coarse["dead"], "peaks" in coarse) == (16, 1, False)


def test_large_arrays_are_counted_in_parts() -> None:
    codes = np.arange(PART + 1000, dtype=np.int64).astype(np.uint8)
    found = statistics(_constant(codes, Quantization.per_tensor(1.0, 0, "uint8")), None, 256, 10)
    assert found["bins"] == np.bincount(codes, minlength=256).tolist()


def test_small_types_have_a_bin_for_each_code() -> None:
    grid = Quantization.per_tensor(1.0, 0, "int4")
    found = statistics(_constant(np.array([-8, -8, 7, 0], np.int8), grid, "int4"), None, 256, 10)
    assert found["bins"] == [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert (found["low"], found["high"], found["used"], found["codes"]) == (2, 1, 3, 16)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float8_e4m3fn", "int32", "int64"])
def test_bins_of_wide_and_real_types(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.random.default_rng(1).integers(-200, 200, 5000).astype(kind)
    found = statistics(_constant(values), None, 256, 10)
    real = values.astype(np.float64)
    assert (found["min"], found["max"]) == (real.min(), real.max())
    assert sum(found["bins"]) == 5000
    edges = found["first"] + found["width"] * np.arange(len(found["bins"]) + 1)
    for at, count in enumerate(found["bins"]):  # a value at an edge, but for rounding, may be on either side
        inside = (real > edges[at] + 1e-9) & (real < edges[at + 1] - 1e-9)
        near = (real > edges[at] - 1e-9) & (real < edges[at + 1] + 1e-9)
        assert inside.sum() <= count <= near.sum()


def test_what_is_not_finite_is_left_out() -> None:
    assert statistics(_constant(np.array([0, -np.inf, 0], np.float32)), None, 4, 10)["bins"] == [2]
    found = statistics(_constant(np.array([np.nan, np.inf, 1, 2, -np.inf], np.float32)), None, 4, 10)
    assert (found["min"], found["max"], found["bins"], found["elements"]) == (1, 2, [1, 0, 0, 1], 5)
    assert statistics(_constant(np.array([np.nan], np.float32)), None, 4, 10) == {"elements": 1}
    assert statistics(_constant(np.zeros((0, 3), np.int8)), None, 4, 10) == {"elements": 0}


def test_the_whole_range_of_float64_does_not_overflow() -> None:
    found = statistics(_constant(np.array([-1.7e308, 1.7e308, 0.0])), None, 4, 10)
    assert sum(found["bins"]) == 3
    assert np.isfinite(found["width"])


def test_codes_beyond_int64_are_counted() -> None:
    found = statistics(Tensor.constant("w", np.array([2**64 - 3, 2**64 - 1], np.uint64)), None, 256, 0)
    assert (found["first"], found["width"], found["bins"]) == (2**64 - 3, 1, [1, 0, 1])


def test_the_smallest_numbers_do_not_vanish() -> None:
    found = statistics(Tensor.constant("w", np.array([0, 5e-324])), None, 4, 0)
    assert found["bins"] == [1, 0, 0, 1]


@pytest.mark.parametrize(("scales", "points"), [(3, (0, 0, 0)), (0, ()), (2, (0.5, float("inf")))])
def test_a_page_of_a_quantization_that_breaks_rules(scales: int, points: tuple[float, ...]) -> None:
    grid = Quantization.of(np.full(scales, 0.1), points, -127, 127, 0)
    found = statistics(Tensor.constant("w", np.ones((2, 2), np.int8), grid), 0, 256, 8)
    assert "dead" not in found


def test_a_page_of_a_name_that_is_not_utf_8() -> None:
    found = describe(Model(Graph(("\ud800",), (), (), {"\ud800": Tensor("\ud800", "int8", ())})), "m")
    assert found["content"] == ""
    assert len(found["tensors"]) == 1


def test_a_page_is_strict_json_of_the_model() -> None:
    """Of any model: infinities, large integers, text that is not text."""
    grid = Quantization.of((float("inf"), 0.5), (0, 0), -128, 127, axis=0)
    tensors = {
        "x": Tensor("x", "int8", ("N", None)),
        "y": Tensor("y", "int8", None),
        "w": Tensor.constant("w", np.ones((2, 2), np.int8), grid),
        "big": Tensor.constant("big", np.array([2**62, -3])),
        "nan": Tensor.constant("nan", np.array([np.nan, 1.5], np.float32)),
    }
    node = Node("vendor.X", ("x", "", "w", "big", "nan"), ("y",), {"a": float("nan"), "b": (2**60,), "c": "y" * 9999})
    found = _embedded(Model(Graph(("x",), ("y",), (node,), tensors), metadata={"k": "\ud800"}))
    named = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert named["w"]["grid"]["scale"] == ["inf", 0.5]
    assert named["big"]["values"] == [str(2**62), -3]
    assert named["nan"]["values"] == ["nan", 1.5]
    attributes = dict(found["nodes"][0]["attributes"])
    assert (attributes["a"], attributes["b"]) == ("nan", [str(2**60)])
    assert len(attributes["c"]) < 600
    assert found["faults"]


def _embedded(model: Model, **options: Any) -> Any:
    content = re.search(r'id="model-data">([^<]*)<', page(model, **options).html)
    assert content is not None
    return json.loads(gzip.decompress(base64.b64decode(content[1])), parse_constant=lambda text: pytest.fail(text))


def test_float32_scales_survive() -> None:
    scales = np.random.default_rng(3).uniform(1e-9, 1e9, 4096).astype(np.float32)
    grid = Quantization.of(scales, np.zeros(4096, np.int8), -128, 127, axis=0)
    tensors = {"w": Tensor.constant("w", np.zeros((4096, 1), np.int8), grid)}
    found = _embedded(Model(Graph((), (), (), tensors)))["tensors"][0]["grid"]["scale"]
    assert np.array_equal(np.array(found, np.float32), scales)


def test_an_array_that_was_changed_is_told(tmp_path: Any) -> None:
    path = tmp_path / "m.qfb"
    model = qfmt.convert(DIGITS)
    model.save(path)
    content = bytearray(path.read_bytes())
    weight = bytes(next(tensor.data for tensor in model.graph.constants() if tensor.data.nbytes > 1000).view())
    content[bytes(content).index(weight)] ^= 1
    path.write_bytes(content)
    found = describe(qfmt.load(path), "m.qfb")
    told = [each["stats"]["error"] for each in found["tensors"] if "error" in each.get("stats", {})]
    assert len(told) == 1 and "sha256" in told[0]


def test_every_golden_file_can_be_described() -> None:
    files = sorted(path for path in GOLDEN.rglob("*.qfb") if path.parent.name != "refused")
    for path in files:
        model = qfmt.load(path)
        found = json.loads(json.dumps(describe(model, path.name), allow_nan=False))
        assert len(found["nodes"]) == len(model.nodes)
        assert found["faults"] == []


HOSTILE_FILES = sorted(HOSTILE.glob("*.qfb"))


@pytest.mark.parametrize("path", HOSTILE_FILES, ids=lambda path: path.name)
def test_malicious_files_are_described_or_refused(path: Path) -> None:
    """By an error of qfmt: nothing else comes out of a file."""
    try:
        found = describe(qfmt.load(path), path.name)
        as_svg(qfmt.load(path))
    except QfmtError:
        return
    json.dumps(found, allow_nan=False)


def test_pages_are_reproducible() -> None:
    model = qfmt.convert(DIGITS)
    assert page(model).html == page(model).html


def test_rows_of_two_files_keep_the_order_of_both() -> None:
    """A node that only one has stands where it would be."""
    model = tiny_model()
    nodes = list(model.nodes)
    added = Node("Relu", ("y",), ("y2",), version=14)
    last = Node("Relu", ("y2",), ("z",), version=14)
    tensors = {**model.graph.tensors, "y2": Tensor("y2", "float32", ("N", 2))}
    other = model.replace(graph=Graph(("x",), ("y", "z"), (*nodes[:3], added, last), tensors))
    rows = of_two(model, other, "b")["rows"]
    assert [row[:2] for row in rows] == [(0, 0), (1, 1), (2, 2), (-1, 3), (3, 4)]
    rows = of_two(other, model, "b")["rows"]
    assert [row[:2] for row in rows] == [(0, 0), (1, 1), (2, 2), (3, -1), (4, 3)]


def test_values_of_an_array_without_data_are_no_values() -> None:
    assert StoredArray.of(np.zeros(0, np.int8), None).array.size == 0
    found = _embedded(Model(Graph((), (), (), {"w": Tensor.constant("w", np.zeros(0, np.int32))})))
    assert "values" not in found["tensors"][0]


def test_each_tensor_has_its_own_differences() -> None:
    """By place: names may be shortened alike, and both files may have one for different tensors."""
    long = [f"{'w' * 300}{letter}{'w' * 300}" for letter in "ab"]
    tensors = {name: Tensor.constant(name, np.ones(3, np.int8)) for name in long}
    first = Model(Graph((), (), (), tensors))
    second = first.replace_tensor(long[1], np.zeros(3, np.int8))
    found = of_two(first, second, "b")
    assert (found["tensors"], found["otherTensors"]) == ({1: "3 of 3 values differ by at most 1"}, {})
    found = of_two(first, second.replace(graph=Graph((), (), (), {long[1]: tensors[long[1]]})), "b")
    assert list(found["tensors"]) == [0] and "only in the first" in found["tensors"][0]
    node = Node("vendor.A", (long[0],), ("y",))
    of_a = Graph((), ("y",), (node,), {long[0]: tensors[long[0]], "y": Tensor("y", "int8", None)})
    renamed = {"v": replace(tensors[long[0]], name="v"), long[0]: tensors[long[0]], "y": Tensor("y", "int8", None)}
    of_b = Graph((), ("y",), (replace(node, inputs=("v",)),), renamed)
    found = of_two(Model(of_a), Model(of_b), "b")
    assert list(found["otherTensors"]) == [1] and "only in the second" in found["otherTensors"][1]
    assert list(found["tensors"]) == [0]


def test_pairs_that_are_shortened_alike_are_all_there() -> None:
    found = describe(Model(Graph((), (), (), {}), metadata={f"{'k' * 300}{at}{'k' * 300}": at for at in "12"}), "m")
    assert [value for _, value in found["metadata"]] == ["1", "2"]


def test_a_hazard_is_that_of_its_node() -> None:
    """Not of another one with the same name."""
    model = qfmt.convert(DIGITS)
    nodes = [replace(node, name="n") for node in model.nodes]
    found = describe(model.replace(graph=replace(model.graph, nodes=nodes)), "m")
    kinds = [node["operator"] for node in found["nodes"] if "hazard" in node]
    assert 0 < len(kinds) < len(nodes)
    assert kinds == [node["operator"] for node in describe(model, "m")["nodes"] if "hazard" in node]


@pytest.mark.parametrize(("tensors", "listed"), [(3, 4096), (60, 2)])
def test_numbers_of_channels_that_many_tensors_share_are_given_by_their_extremes(tensors: int, listed: int) -> None:
    grid = Quantization.of(np.arange(1, 4097, dtype=np.float32), 0, -128, 127, axis=0)
    weight = Tensor.constant("w", np.ones((4096, 2), np.int8), grid)
    shared = {f"w{at:02}": replace(weight, name=f"w{at:02}") for at in range(tensors)}
    for found in describe(Model(Graph((), (), (), shared)), "m")["tensors"]:
        assert len(found["grid"]["scale"]) == listed and found["grid"]["count"] == 4096
        assert ("peaks" in found["stats"]) == (listed == 4096) and found["stats"]["dead"] == 0


def test_hazards_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of products may share a large weight."""
    monkeypatch.setattr("qfmt.budget.MODEL_OPERATIONS", (10, 0))
    assert "finding overflows" in str(describe(qfmt.convert(DIGITS), "m")["faults"])
