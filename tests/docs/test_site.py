"""The site of the documentation builds without a warning, needs no network, and its search finds what people ask."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import plot
import qfmt
from support.counts import tell
from support.paths import ROOT

pytest.importorskip("furo", reason="the packages of the extra `docs` need Python 3.11")

sys.path.insert(0, str(ROOT / "docs"))

import messages

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", DOCS, "-d", folder / "doctrees"]
    done = subprocess.run([*command, ROOT, folder / "html"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_a_browser_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]*src=\"(?:https?:)?//|<link rel=\"(?:stylesheet|preload)\"[^>]*href=\"http"
    )
    assert len(pages) > 40
    assert [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert "@import url(http" not in styles and "url(http" not in styles


def test_every_page_is_on_it(site: Path) -> None:
    pages = {path.relative_to(ROOT).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()


QUESTIONS = {
    "state_dict jit.trace _packed_params torch.Size": "packed-params",
    "extract weights scale zero point conv2d_unpack": "packed-params",
    "quant_min quant_max min_val max_val QuantizedConv2d": "quant-min-quant-max",
    "observer min_val after convert": "quant-min-quant-max",
    "relay params float32 names lost": "float32-tensors",
    "params float32 tensor names p1": "float32-tensors",
    "custom compute unit integer only": "integer-only",
    "two consecutive layers integer arithmetic": "integer-only",
    "fc1.scale fc1.zero_point": "scale-and-zero-point",
    "activation input quantization QuantStub qat": "scale-and-zero-point",
    "int8 different results another machine": "other-machines",
    "VNNI saturation": "other-machines",
    "NoQEngine": "from-torchscript",
    "ConvReLU2d has no attribute _backward_hooks": "from-tensors",
    "is truncated or damaged; download it again": "messages",
}
"""What people type, and the page that answers it."""


@pytest.fixture(scope="module")
def index(site: Path) -> dict[str, Any]:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    return found


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_search_finds_the_answer(question: str, index: dict[str, Any]) -> None:
    """As Sphinx's search: pages with every word, by stem, a part of a word, or in the title."""
    from sphinx.search.en import SearchEnglish

    language = SearchEnglish({})
    results = set(range(len(index["docnames"])))
    for word in re.findall(r"\w+", question):
        stem = language.stem(word.lower())
        if word.lower() in language.stopwords or len(word) < 2:
            continue
        results &= {
            number
            for terms in (index["terms"], index["titleterms"])
            for term, numbers in terms.items()
            if term == stem or stem in term
            for number in (numbers if isinstance(numbers, list) else [numbers])
        }
    pages = [index["docnames"][number].rpartition("/")[2] for number in sorted(results)]
    tell(f"{question}: {len(pages)} pages")
    assert QUESTIONS[question] in pages
    assert len(pages) <= 12


def test_the_public_names_are_documented() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\.\. auto\w+:: qfmt\.(\w+)$", page, re.MULTILINE)) == set(qfmt.__all__)


def test_the_overview_of_formats_matches_its_evidence() -> None:
    page = (DOCS / "comparison.md").read_text(encoding="utf-8")
    overview = {
        title: cells.split(" | ")
        for title, cells in re.findall(r"^\| \[(.*?)\]\(#.*?\) \| (.*) \|$", page, re.MULTILINE)
    }
    sections = re.split(r"^## (.*)$", page, flags=re.MULTILINE)[1:]
    stated = {
        title: re.findall(r"^\| \S+ \| (yes|partly|no) \|", text, re.MULTILINE)
        for title, text in zip(sections[::2], sections[1::2], strict=True)
        if "| evidence |" in text
    }
    assert overview == stated
    assert all(len(cells) == 7 for cells in overview.values())


def test_the_plot_and_the_tables_show_what_was_measured() -> None:
    record = plot.recorded()
    page = plot.PAGE.read_text(encoding="utf-8")
    assert plot.filled(page, record) == page, "python tools/plot.py writes it anew"
    assert plot.PLOT.read_text(encoding="utf-8") == plot.drawing(record), "python tools/plot.py draws it anew"
    assert set(plot.MARKS.findall(page)) and {name for _, name, _ in plot.MARKS.findall(page)} == set(record)


# Messages

PAGE = (DOCS / "messages.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_every_class_of_errors_has_a_section_with_its_messages() -> None:
    classes = set(messages.tree_of_classes())
    assert SECTIONS.keys() == classes | {"Arguments"}
    shown = {re.search(r"^```\{messages\} (\S+)$", text, re.MULTILINE)[1]: name for name, text in SECTIONS.items()}
    assert shown == {name: name for name in classes} | {messages.ARGUMENTS: "Arguments"}
    found = messages.messages()
    tell(f"{len(found)} messages of {len(classes)} classes")
    assert {message.error for message in found} == classes | {messages.ARGUMENTS}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_example_shows_a_message_of_its_class(name: str) -> None:
    """tests/docs/test_docs.py executes the examples."""
    error = messages.ARGUMENTS if name == "Arguments" else name
    found = [message.text for message in messages.messages() if message.error == error]
    assert any(messages.pattern(text).search(SECTIONS[name]) for text in found)


def test_a_message_is_read_with_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
AGAIN = "get it again"
def f(x, name):
    what = f"{x.size} bytes" if x else "nothing"
    raise SourceError(what, where=f"tensor {name}", hint=AGAIN)
def _damaged(what) -> SourceError:
    return SourceError(what, hint="the file is damaged")
def g():
    raise _damaged("has no end")
"""
    path = tmp_path / "qfmt" / "m.py"
    path.parent.mkdir()
    path.write_text(source)
    monkeypatch.setattr(messages, "ROOT", tmp_path)
    assert sorted(message.text for message in messages.Module(path).messages()) == [
        "has no end; the file is damaged",
        "tensor {name}: nothing; get it again",
        "tensor {name}: {size} bytes; get it again",
    ]
