"""Kernels that sum pairs of products in 16 bits: recomputed bit by bit, and predicted from the weights."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import qfmt
from qfmt import Graph, Node, Quantization, Tensor
from qfmt.cli import main
from qfmt.compare.classes import classify
from qfmt.interpreter import execute
from qfmt.ops import OPERATORS, Operand
from qfmt.ops.linear import linear_sums
from qfmt.ops.overflow import PairSums, computed_by, farthest
from qfmt.passes.hazards import KERNELS, Hazard, count, hazards
from support.counts import tell
from support.paths import DIGITS, PROGRAMS


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(-128, 127)), min_size=1, max_size=9))
def test_sums_of_pairs_are_clipped(terms: list[tuple[int, int]]) -> None:
    """Compares with Python's integers."""
    x, w = np.array([[a for a, _ in terms]], np.uint8), np.array([[b for _, b in terms]], np.int8)
    products = [a * b for a, b in terms] + [0] * (len(terms) % 2)
    expected = sum(min(max(products[i] + products[i + 1], -32768), 32767) for i in range(0, len(products), 2))
    with computed_by(PairSums()):
        assert linear_sums(Operand(x, None), Operand(w, None)).tolist() == [[expected]]
        assert linear_sums(Operand(x[0], None), Operand(w, None)).tolist() == [expected]
    assert linear_sums(Operand(x, None), Operand(w, None)).tolist() == [[sum(products)]]


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=7), st.integers(-128, 255), st.data())
def test_no_pair_exceeds_the_predicted_sum(weights: list[int], high: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(-128, high))
    w = np.array(weights, np.int8).reshape(1, -1, 1)
    padded = [*weights, 0]
    ends = [
        abs(a * padded[i] + b * padded[i + 1])
        for i in range(0, len(weights), 2)
        for a in (low, high)
        for b in (low, high)
    ]
    assert farthest(PairSums().pairs(w), low, high).tolist() == [max(ends)]


@given(st.integers(1, 9), st.integers(1, 9))
def test_kernels_of_one_order_form_the_same_pairs(channels: int, taps: int) -> None:
    w = np.random.default_rng(channels * taps).integers(1, 128, (3, channels, taps)).astype(np.int8)
    for one, other in itertools.combinations(dict.fromkeys(itertools.chain(*KERNELS.values())), 2):
        pairs = [each.pairs(w)[0] for each in (one, other)]
        same = np.array_equal(*(each[each > 0] for each in pairs))
        assert (one.order(channels, taps) == other.order(channels, taps)) == same


def test_torch_as_on_a_processor_without_vnni() -> None:
    """Every wrong output of torch is explained, and no other one."""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, str(PROGRAMS / "avx2_kernels.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tell(*(f"{name:38}{n[0]:8} outputs{n[1]:8} off{n[2]:8} saturated" for name, n in found.items()))
    for name, (outputs, off, saturated, ties, possible, wrong) in found.items():
        assert outputs and off == saturated + ties and (possible, wrong) == (0, 0), name


def digits() -> tuple[qfmt.Model, dict[str, Hazard]]:
    model = qfmt.convert(DIGITS)
    return model, {each.node: each for each in hazards(model)}


def test_hazards_of_a_file() -> None:
    model, found = digits()
    assert list(found) == [node.outputs[0] for node in model.nodes if len(node.inputs) == 3]
    weight, grid = model.tensors["fc.weight"].array.astype(int), model.tensors["flatten"].quantization
    assert grid is not None
    pairs = [[max_of_pair(pair, grid) for pair in row.reshape(-1, 2).tolist()] for row in weight]
    for overflow in found["fc"].engines.values():
        assert overflow.largest == max(map(max, pairs))
        assert overflow.channels == sum(max(row) > 32767 for row in pairs)
        harmless = replace(grid, quant_max=overflow.harmless), replace(grid, quant_max=overflow.harmless + 1)
        largest = [max(max_of_pair(pair, each) for pair in weight.reshape(-1, 2).tolist()) for each in harmless]
        assert largest[0] <= 32767 < largest[1]


def test_a_weight_without_output_channels_cannot_overflow() -> None:
    x = Tensor("x", "uint8", (1, 3), quantization=Quantization.per_tensor(0.1, 3, "uint8"))
    y = Tensor("y", "uint8", (1, 0), quantization=Quantization.per_tensor(0.1, 3, "uint8"))
    w = Tensor.constant("w", np.zeros((0, 3), np.int8), Quantization.per_tensor(0.1, 0, "int8"))
    node = Node("qfmt.Linear", ("x", "w"), ("y",), rule="float_bias")
    model = qfmt.Model(Graph(("x",), ("y",), (node,), {"w": w, "x": x, "y": y}))
    assert [(each.channels, each.largest_sum, each.can_saturate) for each in hazards(model)] == [(0, 0, False)]


def test_the_count_is_that_of_the_hazards() -> None:
    """Also in a network of which some products cannot overflow, and in each engine by itself."""
    model, _ = digits()
    fc = model.tensors["fc.weight"]
    assert fc.quantization is not None
    mixed = model.replace_tensor("fc.weight", fc.array // 4, fc.quantization)
    for network in (model, mixed):
        found = list(hazards(network))
        assert [each.node for each in found if each.everywhere] == ["depthwise.0"]
        assert count(network) == (sum(each.can_saturate for each in found), 1, len(found))
        for engine in KERNELS:
            clips = [engine in each.engines and each.engines[engine].channels > 0 for each in found]
            assert count(network, engine) == (sum(clips), engine == "fbgemm", len(found))
    assert count(mixed).many < count(model).many


def test_an_overflow_is_possible_only_where_the_kernel_saturates() -> None:
    """On a processor whose kernels are exact, an output that could overflow and differs is wrong."""
    grid = Quantization.per_tensor(4 * 255 * 127 / 200, 0, "uint8")
    operands = [
        Operand(np.full((1, 4), 255, np.uint8), Quantization.per_tensor(1.0, 0, "uint8")),
        Operand(np.full((2, 4), 127, np.int8), Quantization.per_tensor(1.0, 0, "int8")),
    ]
    node = Node("qfmt.Linear", ("x", "w"), ("y",), rule="float_bias", version=OPERATORS["qfmt.Linear"].version)
    output = Tensor("y", "uint8", (1, 2), None, grid)
    (exact,) = execute(node, operands, [output])
    with computed_by(PairSums()):
        (clipped,) = execute(node, operands, [output])
    assert (exact.tolist(), clipped.tolist()) == ([[200, 200]], [[101, 101]])
    counts = classify(node, operands, output, exact, exact - np.uint8([[5, 0]]), "fbgemm")
    assert (counts.equal, counts.saturated, counts.overflow, counts.wrong) == (1, 0, 0, 1)
    counts = classify(node, operands, output, exact, np.uint8([[101, 150]]), "fbgemm")
    assert (counts.equal, counts.saturated, counts.overflow, counts.wrong) == (0, 1, 1, 0)


def test_onnx_runtime_is_exact_in_depthwise_convolutions() -> None:
    model, found = digits()
    groups = {node.label: node.attributes.get("group", 1) for node in model.nodes}
    assert {name for name, group in groups.items() if group != 1} == {
        name for name, each in found.items() if "onnxruntime" not in each.engines
    }
    assert set(groups.values()) != {1}


def max_of_pair(pair: list[int], grid: Quantization) -> int:
    given = itertools.product((grid.quant_min, grid.quant_max), repeat=2)
    return max(abs(pair[0] * a + pair[1] * b) for a, b in given)


def test_the_largest_sum_is_reached() -> None:
    """Only activations that match the signs of the weights reach the largest sum."""
    model, found = digits()
    weight, grid = model.tensors["fc.weight"].array, model.tensors["flatten"].quantization
    assert grid is not None
    best = np.where(np.concatenate([weight > 0, weight < 0]), grid.quant_max, grid.quant_min).astype(np.uint8)
    sums = linear_sums(Operand(best, grid), Operand(weight, None))
    assert found["fc"].largest_sum == np.abs(sums).max()


def test_padding_is_among_what_weights_meet() -> None:
    """Zero is outside the range of x: 10 - 20 … 20 - 10 where there is no padding, 0 - 20 … 20 - 0 beside it."""
    grid, window = Quantization.of((1.0,), (0,), 10, 20), {"kernel_shape": (2,), "pads": (1, 1)}
    tensors = {
        "x": Tensor("x", "uint8", (1, 1, 4), None, grid),
        "w": Tensor.constant("w", np.array([[[1, -1]]], np.int8), Quantization.per_tensor(1.0, 0, "int8")),
        "y": Tensor("y", "uint8", (1, 1, 5), None, Quantization.per_tensor(1.0, 0, "uint8")),
    }
    entry = OPERATORS["Conv"]
    attributes = entry.complete({**window, "strides": (1,), "dilations": (1,), "group": 1})
    node = Node("Conv", ("x", "w"), ("y",), attributes, "", entry.version, "float_bias")
    (found,) = hazards(qfmt.Model(graph=Graph(tensors=tensors, nodes=(node,), inputs=("x",), outputs=("y",))))
    assert (found.largest_sum, found.engines["fbgemm"].largest) == (20, 20)


def test_types_that_no_kernel_clips_have_sums_only() -> None:
    """Products of uint8 and uint8, and of 16 bits, for which the accumulator may be too narrow."""
    grid = Quantization.per_tensor(1.0, 0, "uint16")
    tensors = {
        "x": Tensor("x", "uint16", (1, 70000), None, grid),
        "w": Tensor.constant("w", np.ones((1, 70000), np.int8), quantization=Quantization.per_tensor(1.0, 0, "int8")),
        "y": Tensor("y", "uint16", (1, 1), None, grid),
    }
    version = OPERATORS["qfmt.Linear"].version
    node = Node("qfmt.Linear", ("x", "w"), ("y",), {}, "", version, "float_bias")
    graph = Graph(tensors=tensors, nodes=(node,), inputs=("x",), outputs=("y",))
    (found,) = hazards(qfmt.Model(graph=graph, engine="fbgemm"))
    assert (found.engines, found.can_saturate, found.largest_sum) == ({}, False, 65535 * 70000)


def test_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["inspect", str(DIGITS), "--hazards", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    depthwise = [row["node"] == "depthwise.0" for row in rows]
    assert all({"fbgemm", "x86", "onednn"} <= set(row["engines"]) for row in rows)
    assert ["onnxruntime" not in row["engines"] for row in rows] == depthwise
    assert json.loads(CliRunner().invoke(main, ["inspect", str(DIGITS), "--json"]).stdout)["hazards"] == rows
    text = CliRunner().invoke(main, ["inspect", str(DIGITS), "--hazards"]).stdout
    for row in rows:
        clipped = row["engines"]["x86"]
        assert f"{clipped['channels']} of {row['channels']}, beyond {clipped['harmless']}" in text
    assert [row["everywhere"] for row in rows] == depthwise
    told = f"{sum(row['can_saturate'] for row in rows)} of {len(rows)} products can overflow 16 bits"
    told += " on processors without VNNI, 1 in fbgemm on all processors"
    assert told in text
    file = tmp_path / "digits.qfb"
    converted = CliRunner().invoke(main, ["convert", str(DIGITS), str(file)]).stderr
    assert f"note   {told}: qfmt inspect --hazards {file}\n" in converted


def test_a_network_that_cannot_overflow_has_no_note(tmp_path: Path) -> None:
    model, _ = digits()
    small = {
        name: replace(tensor, data=Tensor.constant(name, tensor.array // 4).data) if tensor.dtype == "int8" else tensor
        for name, tensor in model.graph.tensors.items()
    }
    qfmt.save(model.replace(graph=replace(model.graph, tensors=small)), tmp_path / "small.qfb")
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "small.qfb"), str(tmp_path / "again.qfb")])
    assert done.exit_code == 0 and "note" not in done.stderr
    text = CliRunner().invoke(main, ["inspect", str(tmp_path / "small.qfb"), "--hazards"]).stdout
    assert text.endswith("\nno product can overflow 16 bits, in any engine\n")
