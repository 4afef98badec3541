"""The matrix of operators and edges (tools/operators.py) is complete and true."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import operators
from qfmt.cli import main
from qfmt.ops import OPERATORS

MATRIX = json.loads(operators.MATRIX.read_text(encoding="utf-8"))
SOME = [name for index, name in enumerate(sorted(OPERATORS)) if index % 8 == 0]
ANEW = "python tools/operators.py writes the matrix anew"


def test_every_operator_has_a_cell_for_every_edge() -> None:
    assert list(MATRIX) == sorted(OPERATORS), ANEW
    assert all(list(row) == list(operators.EDGES) for row in MATRIX.values()), ANEW
    assert all(isinstance(reason, str) for row in MATRIX.values() for reason in row.values())


@pytest.mark.filterwarnings("ignore")
def test_the_matrix_is_current() -> None:
    """Checks every eighth operator; `tools/operators.py --check` checks all."""
    assert operators.matrix(SOME) == {name: MATRIX[name] for name in SOME}, ANEW


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_whole_matrix_is_what_passes() -> None:
    assert operators.matrix(sorted(OPERATORS)) == MATRIX, ANEW


def test_the_command_prints_it() -> None:
    printed = CliRunner().invoke(main, ["ops", "--matrix"]).output.splitlines()
    assert len(printed) == 1 + len(OPERATORS)
    (conv,) = (line.split() for line in printed if line.startswith("Conv "))
    assert conv[1:] == ["-" if reason else "yes" for reason in MATRIX["Conv"].values()]
    reasons = CliRunner().invoke(main, ["ops", "Softmax", "--matrix"]).output
    assert all((reason or "yes") in reasons for reason in MATRIX["Softmax"].values())
