"""README.md is short, and what it states is right; tests/docs/test_docs.py executes its examples."""

from __future__ import annotations

import re

import readme
from support.paths import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 200


def test_both_kinds_of_example_are_there() -> None:
    assert {kind for kind, _ in readme.blocks(TEXT)} == {"console", "python"}


def test_the_network_is_rescued_exactly() -> None:
    """Checks that the results are right, not only that they match the page: all outputs equal, at least 95 %
    correct."""
    (found,) = re.findall(r"torch's outputs: (\d+) of (\d+)", TEXT)
    assert found == ("3600", "3600")
    (correct,) = re.findall(r"held-back images: ([\d.]+)%", TEXT)
    assert float(correct) >= 95


def test_the_c_program_equals_pytorch() -> None:
    page = (ROOT / "docs" / "to-c.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"→ (\d+) of (\d+) equal PyTorch", page)
    assert found == ("3600", "3600")


def test_a_difference_would_be_found() -> None:
    wrong = [("console", "$ echo 1\n2\n"), ("python", "print(1 + 1)  # → 3\n")]
    assert list(readme.executed(wrong)) == ["$ echo 1\n1\n", "print(1 + 1)  # → 2\n"]
