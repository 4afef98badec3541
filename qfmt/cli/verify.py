"""`qfmt verify`: compares a file with its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

import qfmt

from ..engines import RUNTIMES, TORCH_ENGINES
from ..errors import QfmtError, message, some
from ..frontends.json_text import is_shallow
from ..notation import how_many, number
from ..urls import Place, place, text_of
from .arrays import arrays, matched, taken
from .options import Command, Shapes, input_shapes, no_progress
from .output import Column, as_json, line, pairs, table
from .progress import working
from .source import ARCHIVE, ARRAYS_FILE, DESTINATION, FILE, open_model

if TYPE_CHECKING:
    from ..compare import Report, WeightComparison
    from ..model import Model
    from .arrays import Array

DIFFERS, UNKNOWN = 1, 2
ALWAYS = ("outputs", "equal", "wrong")
MEANINGS = {
    "tie": "off by one where the exact value is half-way between two integers, within float32 precision",
    "close": "floats that differ as sums in another order do: by at most 1e-5 of their terms, or of the largest output",
    "stated": "differs from the engine exactly as the file states: in the rule of the node, in `differs`, or for NaN",
}


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  qfmt verify model.pt model.qfb                        on pseudo-random inputs
  qfmt verify model.pt model.qfb --input images.npy     on real inputs, better still on several images
  qfmt verify model.pt model.qfb --engine qnnpack       as another engine of torch computes it
  qfmt verify model.onnx model.qfb --engine onnxruntime:all   as ONNX Runtime does after all its optimizations
  qfmt verify model.pt integers.qfb                     an integer-only file, against what it was made from
  qfmt verify model.pt model.onnx                       an ONNX model, against what it was exported from
  qfmt verify --archive folder                          each file of an archive, against its source

Exit status: 0 equal, or every difference is explained: a rounding tie, an overflow in the engine, or what FILE states;
1 wrong; 2 an error, or of an archive: none is wrong, but a source could not be verified.""",
)
@click.argument("source", type=FILE, required=False)
@click.argument("file", type=FILE, required=False)
@click.option(
    "--archive",
    type=ARCHIVE,
    metavar="FOLDER",
    help="Verify every file of an archive with its source, one line each, instead of FILE with SOURCE.",
)
@click.option(
    "--sources",
    type=DESTINATION,
    metavar="FOLDER",
    help="With --archive: where its sources are, if they have URLs, or were moved.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="With --archive: how many processes verify.  [default: 1]")
@click.option(
    "--input",
    "given",
    type=ARRAYS_FILE,
    help="Inputs: a .npy or .npz, as for `qfmt run`. Several real inputs test more than pseudo-random ones.",
)
@click.option("--samples", type=click.IntRange(min=1), default=4, show_default=True, help="Pseudo-random inputs.")
@input_shapes("Shape of a pseudo-random input whose sizes are not fixed.")
@click.option(
    "--engine",
    type=click.Choice((*TORCH_ENGINES, *RUNTIMES)),
    help="For PyTorch, an engine of torch  [default: the one whose rules FILE states]; for ONNX, ONNX Runtime at an"
    " optimization level, or the reference of the onnx package  [default: onnxruntime, not optimized]."
    " Optimizations fuse and round differently, so that a correct FILE can come out wrong.",
)
@click.option("--json", "json_", is_flag=True, help="Print everything as JSON.")
@no_progress()
@click.pass_context
def command(
    ctx: click.Context,
    source: Place | None,
    file: Place | None,
    archive: Place | None,
    sources: Place | None,
    jobs: int | None,
    given: Place | None,
    samples: int,
    shapes: Shapes,
    engine: str | None,
    json_: bool,
) -> None:
    """Verify that FILE computes what SOURCE, a PyTorch file or an ONNX model, computes.

    FILE is a .qfb, or anything that can be converted, such as an ONNX model that was exported from SOURCE.

    Weights, scales and zero points are compared bit by bit. Then torch or ONNX Runtime, in a separate process, runs
    the operators of SOURCE, and each node of FILE gets the inputs that the same node of SOURCE got. No code of SOURCE
    is executed, only operators that qfmt knows. Without torch, or if SOURCE has no graph, only weights are compared;
    without torch, an integer-only FILE, or ONNX against PyTorch, is an error.

    FILE may state the rules of another engine than the one that runs, as with --engine, or after `convert
    --engine onnx` of a PyTorch file. Outputs that differ only by these rounding rules count as "stated", not as
    wrong. If only one of the two is ONNX, their results are compared; rules that they state differently are listed in a
    note.

    An integer-only FILE has other nodes than SOURCE, which may also be a .qfb. Each node whose output is a tensor of
    SOURCE is compared; a note tells what differs from a fresh lowering of SOURCE, as the inputs may not show it.
    """
    sizes = {name: tuple(_whole(name, size) for size in shape) for name, shape in shapes.items()}
    if archive is not None:
        if source or given:
            raise click.UsageError("--archive takes no SOURCE, no FILE and no --input")
        options = {"engine": engine, "samples": samples, "input_shapes": sizes}
        ctx.exit(_verify_archive(archive, sources, jobs or 1, options, json_))
    if sources or jobs:
        raise click.UsageError("--sources and --jobs are for --archive")
    if source is None or file is None:
        raise click.MissingParameter(ctx=ctx, param=click.Argument(["source" if source is None else "file"]))
    model, _ = open_model(file)
    inputs = None if given is None else _inputs(model, given)
    with working(f"verifying {file.name}"):
        report = qfmt.verify(source, model, inputs, engine=engine, samples=samples, input_shapes=sizes)
    if json_:
        as_json({"file": str(file), **report.to_dict()})
    else:
        _show(report)
    ctx.exit(0 if report.ok else DIFFERS)


def _verify_archive(folder: Place, sources: Place | None, jobs: int, options: Mapping[str, Any], json_: bool) -> int:
    """Verify each source of an archive with its file; the exit status."""
    from ..archive.manifest import Manifest
    from ..archive.workers import accepted, results

    manifest = Manifest(folder)
    found: dict[str, dict[str, Any]] = {}
    tasks: list[dict[str, Any]] = []
    for entry in manifest.entries.values():
        if entry.content_id:
            found[entry.source] = {"facts": {"source": entry.source, "file": entry.file}}
            try:
                places = [text_of(manifest.source(entry, sources)), text_of(manifest.place(entry))]
                tasks.append({"source": entry.source, "places": places, "options": options})
            except QfmtError as error:
                found[entry.source] |= _failed(str(error))
    with working(f"verifying {folder}"), closing(results(tasks, WORK, (), jobs)) as answers:
        for task, answer in answers:
            answer = accepted(answer, _is_answer)
            found[task["source"]] |= _failed(answer["error"]) if "error" in answer else answer
    told = [each["facts"] | each["report"] for each in found.values()]
    rows = [[name, *each["row"]] for name, each in found.items()]
    right = len([facts for facts in told if facts["ok"]])
    unverified = len([facts for facts in told if "error" in facts])
    wrong = len(told) - right - unverified
    status = DIFFERS if wrong or not told else UNKNOWN if unverified else 0
    if json_:
        as_json({"archive": str(folder), "ok": not status, "reports": told})
        return status
    columns = [Column("source", color="cyan"), Column("engine"), Column("outputs", right=True)]
    table([*columns, Column("equal", right=True), Column("verdict")], rows)
    line()
    without = len(manifest.entries) - len(told)
    rest = f"; no file for {without} of {how_many(len(manifest.entries), 'source')}" if without else ""
    if unverified:
        rest = f"; {unverified:,} could not be verified{rest}"
    line(f"{folder}: {right:,} of {len(told):,} are right{rest}")
    return status


def _is_answer(answer: dict[str, Any]) -> bool:
    """Whether it has the form of what `verify_task` returns."""
    report, row = answer.get("report"), answer.get("row")
    is_report = isinstance(report, dict) and type(report.get("ok")) is bool and is_shallow(report, NESTED)
    is_row = isinstance(row, list) and len(row) == 4 and all(type(cell) is str for cell in row)
    return answer.keys() == {"report", "row"} and is_report and is_row


NESTED = 8
"""How deep a report is nested, at most."""

WORK = f"{__name__}:verify_task"


def verify_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker does: verify a file of an archive with its source; its report, and its row in the table."""
    try:
        source, file = map(place, task["places"])
        report = qfmt.verify(source, file, **task["options"])
    except Exception as error:
        return _failed(message(error))
    outputs = [f"{_count(report, name):,}" for name in ("outputs", "equal")]
    return {"report": report.to_dict(), "row": [report.engine, *outputs, _verdict(report)]}


def _failed(why: str) -> dict[str, Any]:
    return {"report": {"ok": False, "error": why}, "row": ["", "", "", f"error: {why}"]}


def _inputs(model: Model, path: Place) -> dict[str, Array]:
    """Arrays by name: inputs of the file, or of its source if the file's own inputs are integers made from them."""
    held = arrays(path, model.graph.inputs)
    if model.engine != "integer":
        return taken(model, matched(model.graph.inputs, held, path), path)
    if len(held) > 1 and not all(name in held for name in model.graph.inputs):
        return held
    return matched(model.graph.inputs, held, path)


def _whole(name: str, size: object) -> int:
    if not isinstance(size, int) or size < 1:
        raise click.UsageError(f"--input-shape {name}: a pseudo-random input needs numbers, not {size}")
    return size


def _show(report: Report) -> None:
    off = [weight for weight in report.weights if not weight.ok]
    pairs(
        [
            ("source", report.source + _origin(report)),
            ("engine", f"{report.engine}, {report.version}" if report.version else "none"),
            *([("inputs", report.inputs)] if report.inputs else []),
            ("constants", _constants(report, off)),
            *(("note", note) for note in report.notes),
        ]
    )
    if _is_unrelated(report):
        line(_verdict(report))
        return
    for weight in off:
        what = f"{weight.different:,} of {weight.elements:,} values differ, by at most {number(weight.largest)}"
        line(f"  {weight.name}: {'; '.join([*([what] if weight.different else []), *weight.differences])}")
    line()
    if report.inputs:
        _node_table(report)
        line()
        if report.outputs:
            _output_table(report)
            line()
    else:
        _stated(report)
        line(f"nodes were not run: {report.skipped}")
    otherwise = report.missing or any(node.differences for node in report.nodes)
    right = all(weight.ok for weight in report.weights) and not otherwise
    differs = not all(node.ok for node in report.nodes)
    if differs and right and report.rules_compared and not (report.integer_only or report.interface):
        line("file and source state the same, so the engine may have a faulty kernel; try another one: --engine")
    line(_verdict(report))


def _origin(report: Report) -> str:
    if report.same_source is None:
        return ""
    return (
        ", from which the file was made"
        if report.same_source
        else "; the file was made from a different one (its sha256 differs)"
    )


def _constants(report: Report, off: list[WeightComparison]) -> str:
    total = len(report.weights)
    others = Counter(name for weight in report.weights for name in weight.witnesses[1:])
    also = "".join(f", {count} of them also to what {name} reads" for name, count in others.items())
    if report.integer_only:
        also += "; those that the lowering made" + (", too" if report.lowered_anew else " show in the nodes only")
    return f"{total - len(off)} of {total} equal, bit by bit, to a fresh conversion{also}"


def _node_table(report: Report) -> None:
    from ..compare.report import COUNTS

    used = [name for name in COUNTS if name in ALWAYS or _count(report, name)]
    columns = [Column("#", right=True), Column("operator"), Column("node", color="cyan")]
    columns += [*(Column(name, right=True) for name in used), Column("largest", right=True)]
    rows = []
    for index, node in enumerate(report.nodes):
        counts = [f"{getattr(node, name):,}" if node.outputs else "" for name in used]
        rows.append([str(index), node.operator, node.name, *counts, number(node.largest) if node.outputs else ""])
    total = [f"{_count(report, name):,}" for name in used]
    largest = max((node.largest for node in report.nodes), default=0.0)
    table(columns, [*rows, ["", "", "all", *total, number(largest)]])
    for name in used:
        if name in MEANINGS:
            line(f"{name}: {MEANINGS[name]}")
    if told := _overflows(report):
        line(told)
    _stated(report)


def _overflows(report: Report) -> str:
    """How many outputs differ because the engine's kernels overflow on this processor, and whose kernels do not."""
    from ..passes.hazards import KERNELS

    recomputed, possible = _count(report, "saturated"), _count(report, "overflow")
    if not recomputed + possible:
        return ""
    who = report.engine.partition(":")[0]
    exact = next(name for name in (TORCH_ENGINES if who in TORCH_ENGINES else RUNTIMES[::-1]) if name not in KERNELS)
    how = f"{recomputed:,} of them recomputed, {possible:,} possibly" if possible else "all recomputed"
    what = f"this processor's {who} kernels clip sums of two products to 16 bits"
    return f"{what}; {recomputed + possible:,} outputs differ because of this, {how}; `--engine {exact}` avoids it"


def _count(report: Report, name: str) -> int:
    return sum(getattr(node, name) for node in report.nodes)


def _stated(report: Report) -> None:
    """Print the different statements of nodes in file and source, and nodes that are missing."""
    for node in report.nodes:
        if node.differences:
            line(f"{node.name} ({node.operator}), source → file: {'; '.join(node.differences)}")
    for name in report.missing:
        line(f"{name} is only in the source")


def _output_table(report: Report) -> None:
    columns = [Column("whole network", color="cyan"), Column("outputs", right=True), Column("equal", right=True)]
    columns += [Column("largest", right=True), Column("argmax")]
    rows = []
    for output in report.outputs:
        argmax = f"agrees in {output.argmax_equal} of {output.argmax_total}" if output.argmax_total else "-"
        rows.append([output.name, f"{output.outputs:,}", f"{output.equal:,}", number(output.largest), argmax])
    table(columns, rows)


def _is_unrelated(report: Report) -> bool:
    """Whether the file names another source and has no constant in common with this one."""
    equal = any(weight.ok for weight in report.weights)
    return report.same_source is False and bool(report.weights) and not equal


def _verdict(report: Report) -> str:
    from ..compare.report import NOTHING

    if _is_unrelated(report):
        return "the file was not made from this source: its sha256 differs, and no constant is equal"
    if not report.ok:
        found = "not verified" if report.first_wrong in (*report.interface, NOTHING) else "first wrong"
        return f"{found}: {report.first_wrong}"
    if report.skipped:
        return "constants equal"
    right = "equal" if report.is_exact else f"nothing wrong; {' and '.join(_allowed(report))}"
    if report.lowered_anew is False:
        right += "; on these inputs: the file is not a fresh lowering of the source"
    if report.other_form:
        owners = {"source": report.uncompared, "file": report.unpaired}
        left = " and ".join(f"{some(names)} of the {owner}" for owner, names in owners.items() if names)
        right += "; on these inputs" + (f": {left} could not be compared" if left else "")
    if report.beyond:
        right += f"; not computed by the file: {', '.join(report.beyond)}"
    return right if report.outputs else f"{right}; the whole network was not run"


def _allowed(report: Report) -> Iterator[str]:
    words = {
        "tie": "off by one at rounding ties",
        "close": "close floats",
        "saturated": "where the engine overflows",
        "overflow": "where it may overflow",
        "stated": "as the file states",
    }
    for name, word in words.items():
        if count := _count(report, name):
            yield f"{count:,} {word}"
