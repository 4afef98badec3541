"""README.md and docs/: examples print what the pages say, tables of engines are true, and links and citations have a
target."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import qfmt
import readme
from engine_kernels import x86_takes
from qfmt.passes.lowering import lower_integer
from support.c_program import CAN_COMPILE
from support.counts import tell
from support.paths import EXAMPLES, ROOT

PAGES = [page for page in readme.PAGES if readme.blocks(page.read_text(encoding="utf-8"))]
TO_C = (ROOT / "docs" / "to-c.md").read_text(encoding="utf-8")
INTEGERS = (ROOT / "docs" / "integers.md").read_text(encoding="utf-8")

EVERY_PAGE = sorted(
    page
    for folder in (".", "docs", "docs/questions", "docs/spec", "examples", "readers", "schema", "tests/golden")
    for page in (ROOT / folder).glob("*.md" if folder in (".", "docs") else "**/*.md")
    if "node_modules" not in page.parts
)

PARTS = ("bias.folded", "multiplier", "shift", "add")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_examples_of_a_page_print_what_it_says(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.quantized, "engine", torch.backends.quantized.engine)  # a page may change it
    text = page.read_text(encoding="utf-8")
    if "make -s" in text and not CAN_COMPILE:
        pytest.skip("there is no cc, or no make")
    for path in readme.needed(text):
        if not path.is_file():
            pytest.skip(f"there is no {path.name} in {path.parent}")
    examples = readme.blocks(text)
    for (_, said), printed in zip(examples, readme.executed(examples, readme.needed(text)), strict=True):
        assert readme.fixed(said) == readme.fixed(printed), "python tools/readme.py writes it anew"


def headings(page: Path) -> set[str]:
    return set(re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes from the headings."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            there = page.parent / target if target else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def test_citations_have_a_target() -> None:
    """`spec.md, "Rules"` in a text or comment refers to a heading of that page, and `docs/spec/…` to a page."""
    suffixes = {".py", ".md", ".c", ".h", ".ts", ".fbs"}
    folders = [ROOT / name for name in ("docs", "qfmt", "readers", "schema", "tests", "tools")]
    paths = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.*"))]
    cited = 0
    for path in paths:
        if path.suffix not in suffixes or {"released", "node_modules"} & set(path.parts):
            continue
        text = re.sub(r"\n\s*(?:///?|\*|#)?\s*", " ", path.read_text(encoding="utf-8"))
        for name, title in re.findall(r"((?:docs/)?[\w/-]*\.md)`?(?:\]\([^)]*\))?,? \(?\"([A-Z][^\"]*)\"", text):
            page = next((place / name for place in (ROOT, path.parent) if (place / name).is_file()), None)
            assert page is not None, f"{path}: {name}"
            assert title in headings(page), f"{path}: {name}, {title!r}"
            cited += 1
        for name in re.findall(r"\bdocs/spec/[\w-]+\.md", text):
            assert (ROOT / name).is_file(), f"{path}: {name}"
    tell(f"{cited} sections are cited by page and title")
    assert cited > 20


def test_numbers_in_the_text_match_the_network() -> None:
    """Checks the numbers that only a table has: M, b in units, Σw, B, m, shift, add."""
    model = qfmt.convert(EXAMPLES / "two_layers" / "two_layers_int8.pt")
    t, ints = model.tensors, lower_integer(model, exact=True).tensors
    cells: list[str] = []
    for layer, before in (("conv1", "quant"), ("conv2", "conv1")):
        bias, m, shift, add = (ints[f"{layer}.{part}"].array.tolist() for part in PARTS)
        sums = t[f"{layer}.weight"].array.sum((1, 2, 3), dtype=int)
        for channel, scale in enumerate(t[f"{layer}.weight"].quantization.scale):
            unit = t[before].quantization.scale[0] * scale
            cells += [f"{unit / t[layer].quantization.scale[0]:.9f}", f"{t[f'{layer}.bias'].array[channel] / unit:.3f}"]
            cells += [f"{sums[channel]}", f"= {bias[channel]}", f"{m[channel]}, {shift[channel]}"]
            cells += [f"{m[channel] / 2 ** shift[channel]:.9f}", f"{add[channel]}", f"{1 << (shift[channel] - 1)}"]
    assert [cell for cell in cells if f" {cell} |" not in INTEGERS] == []


@pytest.mark.slow
def test_a_real_network_in_c_computes_pytorchs_logits(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the statements of docs/to-c.md on MobileNetV2: all commands, then torch on the same images."""
    if not CAN_COMPILE:
        pytest.skip("there is no cc, or no make")
    source = shared_data / "torchscript" / "ios_mobilenet_quantized.pt"
    shutil.copy(source, tmp_path / "net.pt")
    commands = (
        "qfmt convert net.pt net.qfb",
        "qfmt convert net.qfb net_int.qfb --integer-only --exact",
        "qfmt convert net_int.qfb net",
        "make -s -j2 -C net",
    )
    output = "".join(readme.shell(command, str(tmp_path)) for command in commands)
    lowered = re.search(r"lower  ([\d,]+) channels: .*; equal on all ([\d,]+) reachable sums", output)
    assert lowered is not None, output
    assert f"{lowered[1]} channels are proven equal on all of {lowered[2]} sums" in TO_C
    model = qfmt.load(tmp_path / "net_int.qfb")
    assert not any(node.proof is not None and any(node.proof.differs) for node in model.nodes)
    (given,), (result,) = model.graph.inputs, model.graph.outputs
    into, out = model.tensors[given].quantization, model.tensors[result].quantization
    monkeypatch.setattr(torch.backends.quantized, "engine", "fbgemm")
    network, rng, equal = torch.jit.load(source), np.random.default_rng(0), 0
    for _ in range(8):
        q = rng.integers(0, 256, (1, 3, 224, 224)).astype(np.uint8)
        real = (q.astype(np.float32) - into.zero_point[0]) * np.float32(into.scale[0])
        with torch.no_grad():
            theirs = network(torch.from_numpy(real)).numpy()
        printed = subprocess.run([tmp_path / "net" / "main"], input=q.tobytes(), capture_output=True, check=True).stdout
        ours = (np.array(printed.split(), np.float32) - out.zero_point[0]) * np.float32(out.scale[0])
        equal += int((ours == theirs.ravel()).sum())
    tell(f"MobileNetV2 of 2019 in C, without floats: {equal} of 8000 logits are PyTorch's")
    assert equal == 8000


# The tables of engines


@pytest.fixture(scope="module")
def engines() -> ModuleType:
    return importlib.import_module("engines")


@pytest.fixture(scope="module")
def measured(engines: ModuleType) -> dict[str, dict[str, list[str]]]:
    """The measured tables, without TFLite, which needs a separate environment."""
    return engines.tables(engines.engines(None))


def said(name: str) -> dict[str, list[str]]:
    (block,) = re.findall(rf"<!-- {name}: tools/engines.py -->\n(.*?)<!-- end -->", INTEGERS, re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
    return {first: cells for first, *cells in rows}


@pytest.mark.parametrize("name", ["engines", "ties", "saturation", "forms"])
def test_tables_match_measurements(name: str, measured: dict[str, dict[str, list[str]]]) -> None:
    """Counts of formulas, exact fractions and qfmt are equal on every machine; for other engines, zeros must stay
    zero."""
    page, found = said(name), measured[name]
    if name != "forms":
        page["PyTorch, x86"] = page[f"PyTorch, {x86_takes()}"]
    equal = sum(page[row] == cells for row, cells in found.items())
    tell(f"docs/integers.md, table {name}: {equal} of {len(found)} rows are equal")
    assert [row for row in page if not row.startswith("TFLite")] == list(found)
    for row, cells in found.items():
        if not row.startswith(("PyTorch", "ONNX")):
            assert cells == page[row], row
        else:
            assert [cell == "0" for cell in cells] == [cell == "0" for cell in page[row]], row


@pytest.mark.slow
def test_tflite_matches_the_tables(engines: ModuleType) -> None:
    """TFLITE_PYTHON is a Python with ai-edge-litert."""
    python = os.environ.get("TFLITE_PYTHON")
    if python is None:
        pytest.skip("TFLITE_PYTHON names no Python with ai-edge-litert")
    found = [engine for engine in engines.engines(python) if engine.name.startswith("TFLite")]
    for name, table in (("engines", engines.table_of_engines(found)), ("ties", engines.table_of_ties(found))):
        assert table == {row: cells for row, cells in said(name).items() if row.startswith("TFLite")}


def test_each_engine_has_a_rule_with_its_integers(measured: dict[str, dict[str, list[str]]]) -> None:
    """Checks that the results are right, not only that they match the page."""
    for name, column in (("engines", 1), ("ties", 0)):
        for row, cells in said(name).items():
            if not row.startswith(("rational", "ONNX Runtime, Q and DQ, not optimized")):
                assert cells[column] == "0", (name, row)
