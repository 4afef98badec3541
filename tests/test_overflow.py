"""Kernels that add up pairs of products in 16 bits: recomputed bit by bit, and foretold from the weights."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from counts import tell
from hypothesis import given
from hypothesis import strategies as st

import qfmt
from qfmt.cli import main
from qfmt.ops import Operand
from qfmt.ops.linear import linear_sums
from qfmt.ops.overflow import PairSums, computed_by
from qfmt.passes.hazards import hazards

DIGITS = Path(__file__).resolve().parent.parent / "examples" / "digits" / "digits_int8.pt"


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(-128, 127)), min_size=1, max_size=9))
def test_sums_of_pairs_are_clipped(terms: list[tuple[int, int]]) -> None:
    """Against Python's own integers."""
    x, w = np.array([[a for a, _ in terms]], np.uint8), np.array([[b for _, b in terms]], np.int8)
    products = [a * b for a, b in terms] + [0] * (len(terms) % 2)
    expected = sum(min(max(products[i] + products[i + 1], -32768), 32767) for i in range(0, len(products), 2))
    with computed_by(PairSums()):
        assert linear_sums(Operand(x, None), Operand(w, None)).tolist() == [[expected]]
        assert linear_sums(Operand(x[0], None), Operand(w, None)).tolist() == [expected]
    assert linear_sums(Operand(x, None), Operand(w, None)).tolist() == [[sum(products)]]


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=7), st.integers(0, 255), st.data())
def test_no_pair_reaches_farther_than_foretold(weights: list[int], high: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, high))
    w = np.array(weights, np.int8).reshape(1, -1, 1)
    (reach,) = PairSums().reach(w, low, high).tolist()
    padded = [*weights, 0]
    ends = [
        abs(a * padded[i] + b * padded[i + 1])
        for i in range(0, len(weights), 2)
        for a in (low, high)
        for b in (low, high)
    ]
    assert reach == max(ends)


def test_torch_as_on_a_processor_without_vnni() -> None:
    """What torch computes there is explained output by output, and nothing else is."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("avx2_kernels.py"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tell(*(f"{name:28}{n[0]:8} outputs{n[1]:8} off{n[2]:8} saturated{n[5]:4} ties" for name, n in found.items()))
    for name, (outputs, off, saturated, possible, wrong, ties) in found.items():
        assert outputs and off == saturated + ties and (possible, wrong) == (0, 0), name


def test_hazards_of_a_file() -> None:
    model = qfmt.convert(DIGITS)
    found = [each for each in hazards(model) if each.engine == "fbgemm"]
    assert [each.node for each in found] == [node.outputs[0] for node in model.nodes if len(node.inputs) == 3]
    weight, grid = model.tensors["fc.weight"].array.astype(int), model.tensors["flatten"].quantization
    assert grid is not None
    ends = [
        abs(sum(b * x for b, x in zip(pair, given, strict=True)))
        for row in weight
        for pair in row.reshape(-1, 2).tolist()
        for given in itertools.product((grid.quant_min, grid.quant_max), repeat=2)
    ]
    assert found[-1].largest == max(ends)
    assert found[-1].can_saturate == (max(ends) > 32767)


def test_the_command() -> None:
    done = CliRunner().invoke(main, ["inspect", str(DIGITS), "--hazards", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert {row["engine"] for row in rows} == {"fbgemm", "x86", "onednn", "onnxruntime"}
    text = CliRunner().invoke(main, ["inspect", str(DIGITS), "--hazards"]).stdout
    worst = max(rows, key=lambda row: row["channels"])
    assert f"{worst['channels']} of {worst['total']} channels, beyond {worst['harmless']}" in text
