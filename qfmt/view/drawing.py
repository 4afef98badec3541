"""The graph as a picture, without a browser: SVG, and PNG of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..backstop import SECONDS, paused
from ..errors import BudgetError, MissingPackageError, QfmtError, printable
from ..frontends.isolation.parent import import_path
from ..notation import number, shape_text, size
from ..ops import known
from ..ops.registry import Quantized
from .layout import layout

if TYPE_CHECKING:
    from ..model import Model, Node

WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 190, 44, 206, 68, 14
MEMORY = 500_000_000
"""The most bytes that drawing a PNG may take: resvg needs PER_PIXEL bytes for a pixel, and PER_BYTE for one of the SVG,
whose texts become outlines. Measured with resvg-py 0.3."""
PER_PIXEL, PER_BYTE = 8, 120

_OTHERS = "use --svg, or the page"
_DRAW = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
zoom, memory, seconds = float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
from resvg_py import svg_to_bytes
from qfmt.backstop import limit_process
limit_process(memory)
if sys.platform != "win32":
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
sys.stdout.buffer.write(bytes(svg_to_bytes(svg_string=sys.stdin.buffer.read().decode(), zoom=zoom)))
"""

COLOURS = {
    Quantized.ACCUMULATES: "#2b6fd6",
    Quantized.WEIGHTS: "#2b6fd6",
    Quantized.COMPUTES: "#c2670c",
    Quantized.OWN: "#0e8494",
    Quantized.INTEGERS: "#7c4bc4",
}
OTHER = "#75808d"
STYLE = (
    "text{font:11px system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:#1b2027}.o{font-weight:600}"
    ".d{fill:#5b6673;font-size:9.5px}.e{text-anchor:end}"
    "path{fill:none;stroke:#97a1ad;stroke-width:1.2}rect{fill:#fff;stroke:#d5dae1}"
)


def as_svg(model: Model) -> str:
    """A box for each node: operator, name, shape and scale of its first output. Raises QfmtError without a graph."""
    if not model.nodes:
        raise QfmtError(model.no_graph or "there are no nodes to draw")
    graph, makers = model.graph, dict[str, int]()
    edges = []
    for index, node in enumerate(graph.nodes):
        edges += [(makers[name], index) for name in node.inputs if name in makers]
        makers.update((name, index) for name in node.outputs if name)
    placed = layout(len(graph.nodes), edges)
    lines = [_edge([placed.nodes[a], *way, placed.nodes[b]]) for (a, b), way in placed.edges.items()]
    boxes = [_box(node, model, *_place(*at)) for node, at in zip(graph.nodes, placed.nodes, strict=True)]
    points = [*placed.nodes, *(point for way in placed.edges.values() for point in way)]
    width = round(max(x for x, _ in points) * ACROSS) + WIDTH + 2 * MARGIN
    height = max(y for _, y in points) * DOWN + HEIGHT + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        f'<style>{STYLE}</style>\n<rect width="100%" height="100%" style="stroke:none"/>\n'
        + "\n".join([*lines, *boxes])
        + "\n</svg>\n"
    )


def as_png(svg: str) -> bytes:
    """A picture that `as_svg` drew. Raises MissingPackageError without resvg-py, QfmtError if it is too large, or takes
    too long. A process of its own draws it: no signal ends a call of resvg."""
    if not _has_resvg():
        hint = "run `pip install '.[view]'` in a checkout of qfmt, or use --svg"
        raise MissingPackageError("PNG needs resvg-py", hint=hint)
    found = re.match(r'<svg [^>]*width="(\d+)" height="(\d+)"', svg)
    width, height = map(int, found.groups()) if found else (0, 0)
    zoom = 2.0
    fixed, pixels = PER_BYTE * len(svg), width * height * PER_PIXEL
    while zoom > 0.25 and fixed + pixels * zoom * zoom > MEMORY:
        zoom /= 2
    if (needed := fixed + pixels * zoom * zoom) > MEMORY:
        what = f"a PNG of {width} × {height} would take {size(int(needed))} of memory, more than {size(MEMORY)}"
        raise QfmtError(what, hint=_OTHERS)
    command = [sys.executable, "-I", "-c", _DRAW, json.dumps(import_path()), str(zoom), str(2 * MEMORY), str(SECONDS)]
    with paused():  # it has its own limits, and would inherit these
        drawn = subprocess.run(command, input=svg.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if drawn.returncode or not drawn.stdout:
        what = f"drawing a PNG takes more than {SECONDS} s of processor time or {size(2 * MEMORY)} of memory"
        raise BudgetError(what, hint=_OTHERS)
    return drawn.stdout


def _has_resvg() -> bool:
    try:
        return find_spec("resvg_py") is not None
    except ValueError:  # of a module that was set to None
        return False


def _place(column: float, row: int) -> tuple[float, float]:
    return round(MARGIN + column * ACROSS, 1), MARGIN + row * DOWN


def _box(node: Node, model: Model, x: float, y: float) -> str:
    entry = known(node)
    colour = COLOURS.get(entry.quantized, OTHER) if entry else OTHER
    made = model.graph.tensors.get(node.outputs[0]) if node.outputs else None
    shape, scale = "", ""
    if made is not None:
        shape = f"{made.dtype} {shape_text(made.shape)}"
        if (grid := made.quantization) is not None and not grid.block:
            scale = f"{number(grid.scale[0])} · {number(grid.zero_point[0])}"
    return (
        f'<g transform="translate({x},{y})"><rect width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<rect width="4" height="{HEIGHT}" rx="2" style="fill:{colour};stroke:none"/>'
        f'<text class="o" x="12" y="15">{_text(node.operator.removeprefix("qfmt."), 18)}</text>'
        f'<text class="d e" x="{WIDTH - 8}" y="15">{_text(scale, 20)}</text>'
        f'<text class="d" x="12" y="27">{_text(node.label, 32)}</text>'
        f'<text class="d" x="12" y="38">{_text(shape, 32)}</text></g>'
    )


def _edge(points: list[tuple[float, int]]) -> str:
    (first, *_), last = points, points[-1]
    x, y = _place(*first)
    drawn = [f"M{x + WIDTH / 2} {y + HEIGHT}"]
    at = (x + WIDTH / 2, y + HEIGHT)
    for index, point in enumerate(points[1:], 1):
        x, y = _place(*point)
        to = (x + WIDTH / 2, y)
        bend = (to[1] - at[1]) / 2
        drawn.append(f"C{at[0]} {at[1] + bend} {to[0]} {to[1] - bend} {to[0]} {to[1]}")
        at = to
        if index < len(points) - 1 and point is not last:
            drawn.append(f"v{HEIGHT}")
            at = (to[0], to[1] + HEIGHT)
    return f'<path d="{"".join(drawn)}"/>'


def _text(text: str, most: int) -> str:
    """Text of a file, short and safe in XML: without control characters."""
    text = printable(text)
    return escape(text if len(text) <= most else f"{text[: most // 3]}…{text[-(most - most // 3 - 1) :]}")
