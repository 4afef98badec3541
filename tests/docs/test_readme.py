"""Executes the examples of README.md and compares their output with the page (tools/readme.py)."""

from __future__ import annotations

import re

import pytest

import readme
from support.c_program import CAN_COMPILE
from support.paths import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")

EXAMPLES = readme.blocks(TEXT)
COMPILED = {index for index, (_, example) in enumerate(EXAMPLES) if "make -s" in example or "digits/main" in example}


@pytest.fixture(scope="module")
def results() -> list[str]:
    """The output of each example; "" if it needs a compiler and there is none."""
    left_out = set() if CAN_COMPILE else COMPILED
    printed = readme.executed([example for index, example in enumerate(EXAMPLES) if index not in left_out])
    return ["" if index in left_out else next(printed) for index in range(len(EXAMPLES))]


def test_both_kinds_of_example_are_there() -> None:
    assert {kind for kind, _ in EXAMPLES} == {"console", "python"}


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_examples_print_the_output_in_the_readme(index: int, results: list[str]) -> None:
    if index in COMPILED and not CAN_COMPILE:
        pytest.skip("there is no cc, or no make")
    said, printed = EXAMPLES[index][1], results[index]
    assert readme.fixed(said) == readme.fixed(printed), "python tools/readme.py writes it anew"


def test_the_network_is_rescued_exactly(results: list[str]) -> None:
    """Checks that the results are right, not only that they match the README: all outputs equal, at least 95 %
    correct."""
    text = "".join(results)
    equal, total = re.search(r"torch's outputs: (\d+) of (\d+)", text).groups()
    assert (int(equal), int(total)) == (3600, 3600)
    assert float(re.search(r"held-back images: ([\d.]+)%", text).group(1)) >= 95


def test_the_c_program_equals_pytorch(results: list[str]) -> None:
    if not CAN_COMPILE:
        pytest.skip("there is no cc, or no make")
    (found,) = re.findall(r"(\d+) of (\d+) equal PyTorch", "".join(results))
    assert found == ("3600", "3600")


def test_a_difference_would_be_found() -> None:
    wrong = [("console", "$ echo 1\n2\n"), ("python", "print(1 + 1)  # → 3\n")]
    assert list(readme.executed(wrong)) == ["$ echo 1\n1\n", "print(1 + 1)  # → 2\n"]


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT)
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []
