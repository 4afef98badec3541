"""docs/: examples print what the pages say, links lead somewhere, and engines do what the tables say of them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from counts import tell
from test_readme import load_tool

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
INTEGERS = (ROOT / "docs" / "integers.md").read_text(encoding="utf-8")

readme = load_tool()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_print_what_it_says(page: Path) -> None:
    examples = readme.blocks(page.read_text(encoding="utf-8"))
    assert examples
    for (_, said), printed in zip(examples, readme.executed(examples), strict=True):
        assert readme.fixed(said) == readme.fixed(printed), "python tools/readme.py writes it anew"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


# The tables of engines


@pytest.fixture(scope="module")
def engines() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import engines
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return engines


@pytest.fixture(scope="module")
def measured(engines: ModuleType) -> dict[str, dict[str, list[str]]]:
    """Without TFLite, which lives in an environment of its own."""
    return engines.tables(engines.engines(None))


def said(name: str) -> dict[str, list[str]]:
    (block,) = re.findall(rf"<!-- {name}: tools/engines.py -->\n(.*?)<!-- end -->", INTEGERS, re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
    return {first: cells for first, *cells in rows}


def kernels_saturate() -> bool:
    """Processors without VNNI add products of bytes up in 16 bits."""
    information = Path("/proc/cpuinfo")
    return not information.exists() or "vnni" not in information.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["engines", "ties", "saturation", "forms"])
def test_a_table_is_what_is_measured_here(name: str, measured: dict[str, dict[str, list[str]]]) -> None:
    """Formulas, rational numbers and qfmt count the same everywhere; other engines must keep what is zero at zero."""
    page, found = said(name), measured[name]
    equal = sum(page[row] == cells for row, cells in found.items())
    tell(f"docs/integers.md, table {name}: {equal} of {len(found)} rows are equal")
    assert [row for row in page if not row.startswith("TFLite")] == list(found)
    for row, cells in found.items():
        if not row.startswith(("PyTorch", "ONNX")):
            assert cells == page[row], row
        elif not kernels_saturate():
            assert [cell == "0" for cell in cells] == [cell == "0" for cell in page[row]], row


@pytest.mark.slow
def test_tflite_does_what_the_tables_say(engines: ModuleType) -> None:
    """TFLITE_PYTHON is a Python that has ai-edge-litert."""
    python = os.environ.get("TFLITE_PYTHON")
    if python is None:
        pytest.skip("TFLITE_PYTHON names no Python with ai-edge-litert")
    found = [engine for engine in engines.engines(python) if engine.name.startswith("TFLite")]
    for name, table in (("engines", engines.table_of_engines(found)), ("ties", engines.table_of_ties(found))):
        assert table == {row: cells for row, cells in said(name).items() if row.startswith("TFLite")}


def test_each_engine_has_a_rule_that_gives_its_integers(measured: dict[str, dict[str, list[str]]]) -> None:
    """Not only as the page says, but as it should be, ties or no ties."""
    for name, column in (("engines", 1), ("ties", 0)):
        for row, cells in said(name).items():
            if not row.startswith(("rational", "ONNX Runtime, Q and DQ as they stand")):
                assert cells[column] == "0", (name, row)
