"""`qfmt inspect`: the contents of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from ..errors import QfmtError, shortened, some
from ..model import DIGEST_SIZE, DTYPES, Model, Tensor
from ..notation import NOTHING, in_shell, quantization_cells, shape_text, size
from ..urls import Place
from .facts import Users, counts, describe, file_facts, origin, tensor_facts, why_float
from .options import Command, completed, no_progress, pager
from .output import WIDEST, Column, as_json, line, pairs, table
from .progress import working
from .source import FILE_OR_ARCHIVE, QFB, is_archive, limited, open_model

SCALE = [Column("scale", right=True), Column("zp", right=True), Column("range", right=True, detail=True)]
SCALE += [Column("per", detail=True)]
SHOWN = 5
"""The most test vectors that are listed; `--json` has all of them."""
NO_TENSOR = "no tensor: run `qfmt check` to see what is wrong"
VALUE = [Column("shape"), Column("dtype", detail=True), *SCALE]


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  qfmt inspect model.qfb                        nodes and tensors
  qfmt inspect model.pt                         the same, converted in memory
  qfmt inspect model.qfb --tensor conv1.weight  one tensor, by any of its names in the source
  qfmt inspect model.qfb --tree                 the modules of the original network, and what is in each
  qfmt inspect model.qfb --stats                used ranges, saturation, unused codes, dead channels, histograms
  qfmt inspect model.qfb --floats               every floating-point tensor, and why it is one
  qfmt inspect model_int.qfb --integer          multipliers, shifts, thresholds, and the proof of each
  qfmt inspect model.qfb --hazards              which products overflow 16 bits on processors without VNNI
  qfmt inspect model_int.qfb --integer --tensor conv1    the integers of each channel
  qfmt inspect model.qfb --json                 everything, for programs
  qfmt inspect archive --filter resnet          an archive: one line per model""",
)
@click.argument("file", type=FILE_OR_ARCHIVE)
@click.option("--json", "json_", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--tensor",
    "name",
    metavar="NAME",
    shell_complete=completed("tensors"),
    help="One tensor: its quantization, and the range of its values.",
)
@click.option("--tree", is_flag=True, help="The modules of the original network: nodes, parameters, bytes, operators.")
@click.option("--depth", type=click.IntRange(min=0), help="With --tree: how many levels of modules.")
@click.option("--stats", is_flag=True, help="How constants, or the one of --tensor, use their integers and scales.")
@click.option("--floats", is_flag=True, help="Every floating-point tensor, and why it is one.")
@click.option("--integer", is_flag=True, help="How sums are requantized, and what the file states of it.")
@click.option("--hazards", is_flag=True, help="Which products overflow 16 bits on processors without VNNI.")
@click.option("--nodes", is_flag=True, help="Only the table of nodes.")
@click.option("--tensors", is_flag=True, help="Only a table of all tensors.")
@click.option("--filter", "wanted", metavar="TEXT", help="Of an archive: only the lines that contain this text.")
@no_progress()
@pager
def command(
    file: Place,
    json_: bool,
    name: str | None,
    tree: bool,
    depth: int | None,
    stats: bool,
    floats: bool,
    integer: bool,
    hazards: bool,
    nodes: bool,
    tensors: bool,
    wanted: str | None,
) -> None:
    """Show FILE (.qfb, or anything that can be converted): nodes, tensors, quantization.

    Each node is listed with its outputs; then come the inputs and constants. "zp" is the zero point,
    "range" quant_min..quant_max, "per" tensor, channel(axis, number of scales) or block(sizes, number of scales).

    FILE may also be an archive, the folder of `qfmt convert --out`: each of its models is one line.
    """
    if is_archive(file):
        if any((name is not None, tree, depth is not None, stats, floats, integer, hazards, nodes, tensors)):
            raise click.UsageError("an archive is shown with --filter and --json only; name one of its files")
        from .inspect_archive import inspect_archive

        inspect_archive(file, wanted or "", json_)
        return
    if wanted is not None:
        raise click.UsageError("--filter is for archives, the folders of `qfmt convert --out`")
    one = name is not None and not (integer or stats)
    if sum((one, tree, stats, floats, integer, hazards, nodes, tensors)) > 1:
        views = "--tensor, --tree, --stats, --floats, --integer, --hazards, --nodes and --tensors"
        raise click.UsageError(f"{views} exclude each other")
    if depth is not None and not tree:
        raise click.UsageError("--depth is for --tree")
    with limited(file):
        model, kind = open_model(file)
        if integer:
            from .integer import show_channels, show_integers

            if name is not None:
                show_channels(model, _named(model, name), json_)
            else:
                show_integers(model, json_)
        elif stats:
            from .statistics import show_statistics

            listed = sorted(model.graph.constants(), key=_natural) if name is None else [_constant(model, name)]
            show_statistics(model, listed, file.name, json_)
        elif tree:
            from .tree import show_tree

            show_tree(model, depth, json_)
        elif name is not None:
            _one_tensor(model, name, json_)
        elif floats:
            _floats(model, json_)
        elif hazards:
            from .hazards import show_hazards

            show_hazards(model, json_)
        elif json_:
            with working(f"reading {file.name}"):
                facts = describe(model, file, kind)
            as_json(facts)
        elif nodes:
            _node_table(model)
        elif tensors:
            _tensor_table(model.tensors.values())
        else:
            computed = {output for node in model.nodes for output in node.outputs}
            _header(model, file, kind)
            line()
            if not model.no_graph:
                _node_table(model)
                line()
            _tensor_table(tensor for tensor in model.tensors.values() if tensor.name not in computed)


def _header(model: Model, path: Place, kind: str) -> None:
    total, file = counts(model.graph), file_facts(model, path, kind)
    dynamic = model.source.get("dynamic_inputs", "")
    format_ = f"qfb {file['format']}" if kind == QFB else "converted in memory"
    pairs(
        [
            ("file", f"{path}, {size(file['bytes'])}, {format_}"),
            *([("digest", file["sha256"])] if kind == QFB else []),
            ("from", origin(model.source)),
            *([("graph", f"none: {model.no_graph}")] if model.no_graph else _graph(model)),
            *([("inputs", f"quantized at run time: {dynamic}")] if dynamic else []),
            ("parameters", _parameters(total)),
            *([("vectors", _vectors(model))] if model.vectors else []),
        ]
    )


def _digests(model: Model) -> str:
    count = sum(len(vector.digests) for vector in model.vectors) // DIGEST_SIZE
    return f", with {count:,} digests of outputs of nodes" if count else ""


def _vectors(model: Model) -> str:
    names = [vector.name for vector in model.vectors if vector.name]
    named = f": {some(names, SHOWN)}" if names else ""
    return f"{len(model.vectors)}{named}{_digests(model)}; `qfmt run FILE --vectors` replays them"


def _graph(model: Model) -> Iterable[tuple[str, str]]:
    graph, total = model.graph, counts(model.graph)
    yield "rounding", _rounding(model.engine)
    for word, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            yield word, _value(graph.tensors[name]) if name else NO_TENSOR
    yield "nodes", _shares(total["nodes"], total["operators"])


def _rounding(engine: str) -> str:
    if engine == "integer":
        return "integer-only: `--integer` shows how"
    return f"as in {engine}" if engine else "unknown"


def _value(tensor: Tensor) -> str:
    return f"{shortened(tensor.name, WIDEST)}  {tensor.dtype} {shape_text(tensor.shape)}"


def _shares(total: int, operators: Mapping[str, int]) -> str:
    return f"{total}: " + ", ".join(f"{count} {operator}" for operator, count in operators.items())


def _parameters(total: Mapping[str, Any]) -> str:
    parameters = total["parameters"]
    shares = (f"{count / parameters:.1%} {dtype}" for dtype, count in total["parameter_dtypes"].items())
    return f"{parameters:,}: {', '.join(shares)}" if parameters else "none"


def _node_table(model: Model) -> None:
    columns = [Column("#", right=True), Column("operator"), Column("output", color="cyan"), *VALUE]
    rows = []
    for index, node in enumerate(model.nodes):
        for position, output in enumerate(node.outputs):
            head = [str(index), node.operator] if position == 0 else ["", ""]
            cells = _value_cells(model.tensors[output]) if output else [NOTHING] * len(VALUE)
            rows.append([*head, output or NO_TENSOR, *cells])
    table(columns, rows)


def _tensor_table(tensors: Iterable[Tensor]) -> None:
    listed = sorted(tensors, key=_natural)
    table([Column("tensor", color="cyan"), *VALUE], [[tensor.name, *_value_cells(tensor)] for tensor in listed])


def _natural(tensor: Tensor) -> list[tuple[int, str]]:
    """Natural order of names: `features.10` after `features.9`."""
    parts = re.split("([0-9]+)", tensor.name[:SORTED])
    return [(len(part.lstrip("0")), part) if index % 2 else (0, part) for index, part in enumerate(parts)]


SORTED = 1000
"""The number of characters of a name that determine its order."""


def _value_cells(tensor: Tensor) -> list[str]:
    return [shape_text(tensor.shape), tensor.dtype, *quantization_cells(tensor.quantization)]


def _floats(model: Model, json_: bool) -> None:
    users = Users(model.graph)
    reasons = [
        (tensor, why_float(model, tensor, users))
        for tensor in model.tensors.values()
        if DTYPES[tensor.dtype].kind == "f"
    ]
    if json_:
        as_json([{"name": tensor.name, "dtype": tensor.dtype, "why": why} for tensor, why in reasons])
        return
    columns = [Column("tensor", color="cyan"), Column("dtype"), Column("shape"), Column("why it is a float")]
    table(columns, [[tensor.name, tensor.dtype, shape_text(tensor.shape), why] for tensor, why in reasons])


def _named(model: Model, name: str) -> Tensor:
    """The tensor with that name or alias; QfmtError with similar names."""
    tensor = model.graph.find(name)
    if tensor is None:
        near = model.graph.near(name)
        hint = f"similar: {', '.join(near)}" if near else "`qfmt inspect FILE --tensors` lists them"
        raise QfmtError(f"no tensor {name!r}", hint=hint)
    return tensor


def _constant(model: Model, name: str) -> Tensor:
    tensor = _named(model, name)
    if not tensor.is_constant:
        what = f"{tensor.name} is not a constant: the file has no values to count"
        hint = f"`qfmt inspect FILE {in_shell('--tensor', tensor.name)}` shows its quantization"
        raise QfmtError(what, hint=hint)
    return tensor


def _one_tensor(model: Model, name: str, json_: bool) -> None:
    from ..passes.statistics import stored_range

    tensor = _named(model, name)
    users = Users(model.graph)
    facts = tensor_facts(tensor, users) | (stored_range(tensor) if tensor.is_constant else {})
    if json_:
        as_json(facts)
    else:
        from .tensor import show_tensor

        show_tensor(model, tensor, facts, asked=name)
