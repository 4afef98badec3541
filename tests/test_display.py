"""Models at a prompt and in a notebook: short, safe, never an exception."""

from __future__ import annotations

import copy
import gc
import pickle
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import qfmt
from golden.model import blocks_model, golden_model
from qfmt import Graph, Model, Node, Tensor
from qfmt.errors import QfmtError

MODELS = {"golden": golden_model, "blocks": blocks_model}


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> Model:
    made: Model = MODELS[request.param]()
    return made


@pytest.fixture
def path(model: Model, tmp_path: Path) -> Path:
    model.save(tmp_path / "m.qfb")
    return tmp_path / "m.qfb"


class Tags(HTMLParser):
    """The start tags and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_each_object_is_shown_in_one_short_line(path: Path) -> None:
    model = qfmt.load(path)
    shown = [repr(model), repr(model.graph), *map(repr, model.nodes)]
    for tensor in model.tensors.values():
        shown += [repr(tensor), repr(tensor.quantization)]
        assert tensor.name in repr(tensor)
    assert all(len(line) < 400 and "\n" not in line for line in shown)


def test_the_table_of_a_graph_has_a_row_for_each_node(model: Model) -> None:
    found = Tags(model._repr_html_())
    assert found.tags.count("tr") == len(model.nodes) + 1
    assert {node.operator for node in model.nodes} <= set(found.texts)


def test_a_long_graph_is_truncated_with_a_note() -> None:
    tensors = {f"t{i}": Tensor(f"t{i}", "float32", (1,)) for i in range(1001)}
    nodes = [Node("Relu", (f"t{i}",), (f"t{i + 1}",), name=f"n{i}") for i in range(1000)]
    page = Graph(("t0",), ("t1000",), nodes, tensors)._repr_html_()
    assert len(page) < 50_000
    assert "… 800 more nodes" in page


def test_untrusted_names_are_escaped() -> None:
    evil = "<script>alert(1)</script>\x1b[31m" + "x" * 1_000_000
    graph = Graph(
        (evil,), (evil,), [Node("Relu", (evil,), ("y",), name=evil)], {evil: Tensor(evil, "float32", (evil,))}, evil
    )
    model = Model(graph, engine=evil, source={"format": evil})
    texts = [repr(model), repr(graph), repr(graph.nodes[0]), repr(graph.tensors[evil])]
    pages = [model._repr_html_(), graph._repr_html_(), graph.tensors[evil]._repr_html_()]
    assert all("\x1b" not in shown and len(shown) < 5000 for shown in texts + pages)
    assert all("script" not in Tags(page).tags for page in pages)


def test_errors_about_untrusted_names_are_escaped(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook runs what an object returns as HTML."""

    def fail(_: object) -> None:
        raise QfmtError("</p><img src=x onerror=alert(1)><script>alert(1)</script>")

    monkeypatch.setattr("qfmt.display.quantization_cells", fail)
    for shown in model, model.graph, next(model.graph.constants()):
        page = shown._repr_html_()
        assert Tags(page).tags == ["div", "p", "code"] and "&lt;img src=x" in page


def test_a_notebook_typesets_no_names(model: Model) -> None:
    """Between dollar signs it would find formulas: links, and text without a colour."""
    for shown in model, model.graph, next(model.graph.constants()):
        assert shown._repr_html_().startswith('<div class="tex2jax_ignore mathjax_ignore">')


def test_a_damaged_part_is_shown_without_an_error(path: Path) -> None:
    sound, opened = path.read_bytes(), 0
    for position in range(len(sound) // 16 * 16 - 8, 0, -16):
        data = bytearray(sound)
        data[position : position + 4] = b"\xff\xff\xff\x7f"
        path.write_bytes(data)
        try:
            model = qfmt.load(path, verify=False)
        except QfmtError:
            continue
        opened += 1
        assert repr(model).startswith("<")
        assert model._repr_html_().startswith("<")
    print(f"{opened} of {len(sound) // 16} damaged files opened")
    assert opened


def test_a_copy_and_a_pickle_do_not_need_the_file(path: Path, model: Model) -> None:
    loaded = qfmt.load(path)
    again = [copy.copy(loaded), copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))]
    digest = model.content_id()
    assert [each == model for each in again] == [True, True, True]
    loaded.close()
    path.unlink()
    assert [each.content_id() == digest for each in again[1:]] == [True, True]


def test_a_closed_model_keeps_the_arrays_that_were_taken(path: Path) -> None:
    with qfmt.load(path) as model:
        constants = [tensor for tensor in model.graph.constants() if tensor.data and tensor.data.nbytes]
        array = constants[0].array
        expected = array.copy()
    gc.collect()
    assert np.array_equal(array, expected)
    with pytest.raises(QfmtError, match="the file was closed before this was read"):
        _ = constants[0].array


def test_a_closed_file_is_no_longer_mapped(path: Path) -> None:
    with qfmt.load(path) as model:
        assert str(path) in Path("/proc/self/maps").read_text()
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()
    model.close()


def test_dir_lists_contents() -> None:
    assert set(qfmt.__all__) <= set(dir(qfmt))


def test_an_array_is_not_data() -> None:
    with pytest.raises(QfmtError, match=r"w: data of a ndarray cannot be stored; use Tensor\.constant"):
        Tensor("w", "float32", (2,), np.zeros(2, np.float32))  # type: ignore[arg-type]
