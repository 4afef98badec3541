"""The graph as a picture: where nodes are, well-formed SVG, PNG of it."""

from __future__ import annotations

import struct
import sys
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest

import qfmt
from qfmt.errors import BudgetError, QfmtError
from qfmt.model import Graph, Model, Node, Tensor
from qfmt.view.drawing import as_png, as_svg
from qfmt.view.layout import LONG, PLACES, layout
from support.paths import DIGITS

SVG = "{http://www.w3.org/2000/svg}"


def test_a_chain_is_a_column() -> None:
    found = layout(4, [(0, 1), (1, 2), (2, 3)])
    assert found.nodes == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert all(way == [] for way in found.edges.values())


def test_branches_lie_side_by_side() -> None:
    (_, *branches, end) = layout(4, [(0, 1), (0, 2), (1, 3), (2, 3)]).nodes
    assert [row for _, row in branches] == [1, 1]
    assert abs(branches[0][0] - branches[1][0]) == 1
    assert end == (pytest.approx(0.5), 2)


def test_an_edge_around_nodes_does_not_cross_them() -> None:
    found = layout(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    way = found.edges[0, 3]
    assert [row for _, row in way] == [1, 2]
    for column, row in way:
        assert all(abs(column - x) > 0.5 for x, y in found.nodes if y == row)


def test_no_two_nodes_overlap_and_edges_lead_down(shared_data: Path) -> None:
    model = qfmt.convert(shared_data / "torchscript" / "ios_mobilenet_quantized.pt")
    makers = {name: index for index, node in enumerate(model.nodes) for name in node.outputs}
    edges = [(makers[name], index) for index, node in enumerate(model.nodes) for name in node.inputs if name in makers]
    found = layout(len(model.nodes), edges)
    for (x, row), (other, second) in combinations(found.nodes, 2):
        assert row != second or abs(x - other) >= 1 - 1e-9
    for a, b in edges:
        assert found.nodes[a][1] < found.nodes[b][1]
    assert min(x for x, _ in found.nodes) >= -0.5


def test_a_long_edge_takes_no_memory() -> None:
    count = 3000
    chain = [(at, at + 1) for at in range(count - 1)]
    found = layout(count, [*chain, *((0, at) for at in range(2, count))])
    assert all(len(way) < LONG for way in found.edges.values())


def test_many_edges_take_no_more_places_than_few() -> None:
    edges = [(max(0, node - span), node) for node in range(1, 8000) for span in range(1, LONG)]
    found = layout(8000, edges)
    assert sum(map(len, found.edges.values())) <= PLACES
    assert len(found.edges) == len(set(edges))


def test_a_box_for_each_node_and_a_line_for_each_edge() -> None:
    model = qfmt.convert(DIGITS)
    drawn = ET.fromstring(as_svg(model))
    boxes = drawn.findall(f"{SVG}g")
    names = [box.findall(f"{SVG}text")[2].text for box in boxes]
    assert names == [node.label for node in model.nodes]
    constants = {tensor.name for tensor in model.graph.constants()}
    links = {(name, node.label) for node in model.nodes for name in node.inputs if name not in {*constants, "x"}}
    assert len(drawn.findall(f"{SVG}path")) == len(links)
    for box in boxes:
        x, y = map(float, box.attrib["transform"].removeprefix("translate(").removesuffix(")").split(","))
        assert 0 <= x <= float(drawn.attrib["width"]) and 0 <= y <= float(drawn.attrib["height"])


def test_names_cannot_become_markup() -> None:
    name = '<script>\x00\x1b]]>&\ud800"'
    tensors = {"x": Tensor("x", "float32", None), name: Tensor(name, "float32", ("<b>",))}
    drawn = as_svg(Model(Graph(("x",), (name,), (Node("<i>", ("x",), (name,)),), tensors)))
    assert {each.tag for each in ET.fromstring(drawn).iter()} == {
        SVG + tag for tag in ("svg", "style", "g", "rect", "text")
    }


def test_without_nodes_there_is_nothing_to_draw() -> None:
    with pytest.raises(QfmtError, match="only tensors"):
        as_svg(Model(Graph((), (), (), {})))


def test_png() -> None:
    pytest.importorskip("resvg_py", reason="resvg-py is in the test extra")
    svg = as_svg(qfmt.convert(DIGITS))
    png = as_png(svg)
    width, height = struct.unpack(">II", png[16:24])
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert f'width="{width // 2}" height="{height // 2}"' in svg
    with pytest.raises(QfmtError, match=r"would take 5.0 GB of memory, more than 500.0 MB.*--svg"):
        as_png('<svg xmlns="http://www.w3.org/2000/svg" width="100000" height="100000"></svg>')


def test_a_png_of_many_nodes_is_refused_before_it_is_drawn() -> None:
    pytest.importorskip("resvg_py", reason="resvg-py is in the test extra")
    nodes = tuple(Node("Relu", (f"t{i}",), (f"t{i + 1}",), {}, f"a.long.name.{i}", 14) for i in range(20_000))
    svg = as_svg(Model(Graph((), (), nodes, {})))
    with pytest.raises(QfmtError, match=r"would take .* of memory, more than 500.0 MB; use --svg"):
        as_png(svg)


@pytest.mark.skipif(sys.platform == "win32", reason="the system limits no processor time")
def test_a_png_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lines, which overlap, take resvg minutes."""
    pytest.importorskip("resvg_py", reason="resvg-py is in the test extra")
    many = range(2000)
    nodes = (
        *(Node("Relu", ("x",), (f"t{i}",), {}, f"{i}", 14) for i in many),
        Node("Concat", tuple(f"t{i}" for i in many), ("y",), {"axis": 0}, "y", 13),
    )
    monkeypatch.setattr("qfmt.view.drawing.SECONDS", 1)
    with pytest.raises(BudgetError, match="drawing a PNG takes more than 1 s of processor time"):
        as_png(as_svg(Model(Graph(("x",), ("y",), nodes, {}))))
