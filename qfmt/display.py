"""How models look at a prompt and in a notebook: one line as text, a compact table as HTML.

Names come from files of strangers: control characters are escaped, long names cut, markup quoted. A part of a file
that is damaged is shown as such, because a `repr` must not raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from .errors import QfmtError, printable, shortened
from .notation import granularity, how_many, quantization_cells, shape_text, span

if TYPE_CHECKING:
    from .graph import Graph, Node, Shape, Tensor
    from .model import Model
    from .quantization import Quantization

ROWS = 200
"""Nodes that the table of a graph shows."""

LENGTH = 80
"""Characters of a name that are shown."""

Shown = TypeVar("Shown")


def _shown(
    of_error: Callable[[str], str], frame: str = "{}"
) -> Callable[[Callable[[Shown], str]], Callable[[Shown], str]]:
    """Show an object. If its file is damaged, `of_error` shows the message, which may quote names of the file."""

    def decorated(show: Callable[[Shown], str]) -> Callable[[Shown], str]:
        @wraps(show)
        def shown(value: Shown) -> str:
            try:
                text = printable(show(value))
            except QfmtError as error:
                text = of_error(f"<{type(value).__name__}: {shortened(str(error), 3 * LENGTH)}>")
            return frame.format(text)

        return shown

    return decorated


_as_text = _shown(str)
_as_html = _shown(
    lambda message: f"<p><code>{escape(message)}</code></p>",
    '<div class="tex2jax_ignore mathjax_ignore">{}</div>',  # notebooks typeset formulas between dollar signs
)


def _name(name: str) -> str:
    return shortened(name, LENGTH)


def _shape(shape: Shape) -> str:
    return _name(shape_text(shape))


def _listed(names: Sequence[str], limit: int = 6) -> str:
    more = f", … ({len(names)})" if len(names) > limit else ""
    return ", ".join(_name(name) or "-" for name in names[:limit]) + more


@_as_text
def quantization_text(quantization: Quantization) -> str:
    """`Quantization(scale=0.0235, zero_point=128, range=0..255)`, and per what, unless per tensor."""
    scale, zero_point, limits, unit = quantization_cells(quantization)
    per = "" if unit == "tensor" else f", {unit}"
    return f"Quantization(scale={scale}, zero_point={zero_point}, range={limits}{per})"


@_as_text
def tensor_text(tensor: Tensor) -> str:
    """`<Tensor conv1.weight: int8 [64,3,7,7], constant, scale 0.01, zero_point 0, -128..127>`"""
    parts = [f"{tensor.dtype} {_shape(tensor.shape)}"]
    if tensor.is_constant:
        parts.append("constant")
    if tensor.quantization is not None:
        scale, zero_point, limits, unit = quantization_cells(tensor.quantization)
        parts += [f"scale {scale}", f"zero_point {zero_point}", limits]
        parts += [] if unit == "tensor" else [unit]
    return f"<Tensor {_name(tensor.name)}: {', '.join(parts)}>"


@_as_text
def node_text(node: Node) -> str:
    """`<Node conv1: Conv(x, conv1.weight) → conv1.out, group=1, rule affine>`"""
    told = [f"{name}={shortened(str(value), LENGTH)}" for name, value in sorted(node.attributes.items())]
    told += [f"rule {node.rule}"] if node.rule else []
    call = f"{node.operator}({_listed(node.inputs)}) → {_listed(node.outputs)}"
    return f"<Node {_name(node.label)}: {', '.join([call, *told])}>"


@_as_text
def graph_text(graph: Graph) -> str:
    """`<Graph main: 53 nodes, 180 tensors, x [N,3,224,224] → logits [N,1000]>`"""
    head = f"Graph {_name(graph.name)}" if graph.name else "Graph"
    return f"<{head}: {_contents(graph)}>"


@_as_text
def model_text(model: Model) -> str:
    """`<Model torchscript, engine fbgemm: 53 nodes, 180 tensors, x [N,3,224,224] → logits [N,1000]>`"""
    made = [_name(model.source.get("format", "")), f"engine {_name(model.engine)}" if model.engine else ""]
    head = " ".join(["Model", ", ".join(filter(None, made))]).strip()
    return f"<{head}: {_contents(model.graph)}>"


def _contents(graph: Graph) -> str:
    counts = f"{how_many(len(graph.nodes), 'node')}, {how_many(len(graph.tensors), 'tensor')}"
    return counts if graph.is_archive else f"{counts}, {_ends(graph, graph.inputs)} → {_ends(graph, graph.outputs)}"


def _ends(graph: Graph, names: Sequence[str]) -> str:
    shown = [f"{_name(name)} {_shape(graph.tensors[name].shape)}" for name in names[:3] if name in graph.tensors]
    return ", ".join(shown) + (", …" if len(names) > 3 else "")


HEAD = ("node", "operator", "output", "input scale", "weight scale", "output scale", "zero point", "range")


@_as_html
def graph_html(graph: Graph) -> str:
    """A row for each node: operator, shape of the output, scales of input, weight and output."""
    return f"<p><code>{escape(graph_text(graph))}</code></p>{_rows(graph)}"


@_as_html
def model_html(model: Model) -> str:
    return f"<p><code>{escape(model_text(model))}</code></p>{_rows(model.graph)}"


def _rows(graph: Graph) -> str:
    rows = (_row(node, graph) for node in islice(graph.nodes, ROWS))
    more = f"<p>… {len(graph.nodes) - ROWS:,} more nodes</p>" if len(graph.nodes) > ROWS else ""
    return f"{_table(HEAD, rows)}{more}"


@_as_html
def tensor_html(tensor: Tensor) -> str:
    cells = [tensor.dtype, _shape(tensor.shape), *quantization_cells(tensor.quantization)]
    head = ("tensor", "dtype", "shape", "scale", "zero point", "range", "granularity")
    return _table(head, [[_name(tensor.name), *cells]])


def _row(node: Node, graph: Graph) -> list[str]:
    known = [graph.tensors.get(name) for name in (*node.inputs, *node.outputs[:1])]
    *read, made = known if node.outputs else [*known, None]
    data = next((each for each in read if each is not None and not each.is_constant), None)
    weight = next((each for each in read if each is not None and each.is_constant and each.quantization), None)
    stated = None if made is None else made.quantization
    _, zero_point, limits, _ = quantization_cells(stated)
    shape = "" if made is None else _shape(made.shape)
    return [_name(node.label), _name(node.operator), shape, *map(_scale, (data, weight, made)), zero_point, limits]


def _scale(tensor: Tensor | None) -> str:
    if tensor is None or tensor.quantization is None:
        return ""
    quantization = tensor.quantization
    unit = granularity(quantization)
    scale = unit if quantization.is_blocked else span(quantization.scale)
    return scale if quantization.is_blocked or unit == "tensor" else f"{scale} {unit}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"
