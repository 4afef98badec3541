"""`qfmt view`: a model as a page, as a picture, and in other viewers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import qfmt

from ..backstop import paused
from ..errors import DestinationError
from ..notation import size
from ..urls import Place
from .interruption import will_write
from .options import Command, no_progress
from .output import line
from .progress import working
from .source import ARRAYS, DESTINATION, FILE, MODELS, distinct, limited, open_model, spare

if TYPE_CHECKING:
    from ..compare import Report
    from ..model import Model
    from ..view import Page

DIFFERS = 1

LOST = {*MODELS, *ARRAYS, ".qfs", ".data", ".jsonl", ".sig"}
"""Suffixes of files that would be lost if an option were mistaken for a flag."""


def _result(name: str, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(f"--{name}", type=DESTINATION, metavar="PATH", help=help)


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  qfmt view model.qfb                              in the browser
  qfmt view model.qfb --html model.html            as a page to keep or to send
  qfmt view old.qfb new.qfb                        what differs
  qfmt view model.qfb --verify model.pt            where a file differs from its source
  qfmt view model.qfb --svg graph.svg              the graph as a picture, without a browser
  qfmt view model.qfb --node-data hazards.json     for model-explorer model.qfb --extensions=qfmt.view.model_explorer

Exit status: 0 shown; 1 shown, and what is compared differs; 2 an error.""",
)
@click.argument("file", type=FILE)
@click.argument("other", type=FILE, required=False)
@_result("html", "Write the page here, and open no browser.")
@click.option("--verify", "source", type=FILE, metavar="SOURCE", help="Compare with SOURCE, as `qfmt verify` does.")
@click.option("--arrays", is_flag=True, help="Embed the arrays: the page shows values, and is as large as the file.")
@_result("svg", "Draw the graph here, without a browser.")
@_result("png", "The same as PNG; needs resvg-py, the extra `view`.")
@_result("node-data", "Write node data for Model Explorer: of --verify, or the products that can overflow.")
@click.option("--netron", is_flag=True, help="Open the network in Netron, by way of ONNX; needs netron.")
@no_progress()
@click.pass_context
def command(
    ctx: click.Context,
    file: Place,
    other: Place | None,
    html: Place | None,
    source: Place | None,
    arrays: bool,
    svg: Place | None,
    png: Place | None,
    node_data: Place | None,
    netron: bool,
) -> None:
    """Show FILE (.qfb, or anything that can be converted) as one HTML page; with OTHER, what differs.

    The page has a row for each node, with the scales and zero points of input, weight and output. It needs no network
    and no server. Names, scales and statistics are in it; arrays are not, without --arrays.
    """
    if other is not None and source is not None:
        raise click.UsageError("OTHER and --verify exclude each other")
    results = [path for path in (html, svg, png, node_data) if path is not None]
    shows_page = html is not None or not (results or netron)
    if other is not None and not shows_page:
        raise click.UsageError("the page shows what differs from OTHER: add --html PATH")
    distinct(html=html, svg=svg, png=png, node_data=node_data)
    for path in results:
        spare(path, file, other, source)
        if path.suffix.lower() in LOST:
            what = f"qfmt view does not write {path.suffix}"
            raise DestinationError(what, where=str(path), hint="end the name in .html, .svg, .png or .json")
    will_write(*results)
    from ..view import page

    with limited(file) if other is None else limited(file, other):
        model, _ = open_model(file)
        second = None if other is None else open_model(other)[0]
        report = None if source is None else _verified(source, model)
        if svg or png:
            _draw(model, svg, png)
        if node_data is not None:
            _node_data(model, report, node_data)
        if shows_page:
            with working(f"describing {file.name}"):
                other_name = "" if other is None else other.name
                made = page(model, second, report, name=file.name, other_name=other_name, arrays=arrays)
    if shows_page:  # a browser must not inherit the limits
        _show(made, file, html)
    if netron:
        from ..view.netron import show

        show(model)
    differs = made.differs if shows_page else report is not None and not report.ok
    ctx.exit(DIFFERS if differs else 0)


def _verified(source: Place, model: Model) -> Report:
    with working("verifying"), paused():
        return qfmt.verify(source, model)


def _show(made: Page, file: Place, html: Place | None) -> None:
    """Write the page; without a name into a temporary folder, and open it."""
    page = made.html.encode()
    if html is not None:
        _write(html, page, size(len(page)))
        return
    import webbrowser

    from ..file.replacing import no_temporary

    stem = file.stem.encode("utf-8", "replace")[:200].decode(errors="ignore")  # a suffix of five bytes may not fit
    try:
        path = Path(tempfile.mkdtemp(prefix="qfmt-view-")) / f"{stem}.html"
    except OSError as error:
        raise no_temporary(error) from None
    try:
        _write(path, page, size(len(page)))
    except BaseException:  # also an interruption
        path.parent.rmdir()
        raise
    try:
        is_open = webbrowser.open(path.resolve().as_uri())
    except ValueError:  # quotes in BROWSER that do not end
        is_open = False
    if not is_open:
        line("no browser was found: open this file in one", err=True)


def _write(dest: Place, content: bytes, what: str) -> None:
    """Write a result, and say what it is."""
    from ..file.copies import uploaded
    from ..file.replacing import replacing

    with uploaded(dest) as path, replacing(str(path)) as file:
        file.write(content)
    line(f"{dest}  {what}")


def _draw(model: Model, svg: Place | None, png: Place | None) -> None:
    from ..view.drawing import as_png, as_svg

    drawn = as_svg(model)
    pictures = [(svg, drawn.encode()), (png, as_png(drawn) if png else b"")]
    for path, content in pictures:
        if path is not None:
            _write(path, content, size(len(content)))


def _node_data(model: Model, report: Report | None, path: Place) -> None:
    import json

    from ..view.node_data import of_hazards, of_report

    found = of_hazards(model) if report is None else of_report(model, report)
    _write(path, json.dumps(found, allow_nan=False).encode(), f"{len(found['results']):,} nodes")
