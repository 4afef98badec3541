"""`qfmt convert`: another format → `.qfb`, ONNX or C."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import click

from ..engines import ENGINES
from ..errors import BudgetError, DestinationError
from ..forms import ONNX_FORMS
from ..notation import in_shell, size, unchecked_positions
from ..urls import Place, size_of
from .conversion import Conversion, fixed_sizes
from .destination import Destination
from .facts import origin
from .hazards import summary
from .integer import Lowering, integer_options
from .interruption import will_write
from .options import Command, Shapes, input_shapes, named, no_progress, seconds
from .options import size as size_option
from .output import as_json, line
from .progress import working
from .source import DESTINATION, FILE, limited, spare

if TYPE_CHECKING:
    from ..model import Model

DEFAULT_DTYPE = "uint8"


def _quantization(words: list[str]) -> tuple[float, int, str]:
    scale, zero_point, dtype = words if len(words) == 3 else (*words, DEFAULT_DTYPE)
    if not 0 < float(scale) < inf:  # no scale, and no JSON
        raise ValueError(scale)
    return float(scale), int(zero_point), dtype


def _dtype(words: list[str]) -> str:
    (dtype,) = filter(None, words)
    return dtype


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  qfmt convert model.pt model.qfb
  qfmt convert model.pt model.qfb --engine qnnpack           with the rounding of qnnpack
  qfmt convert model.pt model.qfb --input-shape x=N,3,224,224
  qfmt convert model.pt model.onnx --opset 21                for a runtime of 2024
  qfmt convert model.pt model.onnx --same-types              for processors without VNNI
  qfmt convert model.onnx model.qfb                          any form of quantized ONNX
  qfmt convert model.qfb integers.qfb --integer-only --exact   integer-only, with equal outputs
  qfmt convert model.pt model.qfb --vectors 4                with test vectors: qfmt check --replay
  qfmt convert integers.qfb folder                           a C program of an integer-only network
  qfmt convert models '*.onnx' --out archive --jobs 4        everything in a folder, and more, into an archive""",
)
@click.argument(
    "paths",
    nargs=-1,
    metavar="SOURCE DEST | SOURCES… --out FOLDER",
    shell_complete=FILE.shell_complete,
)
@click.option(
    "--out",
    type=DESTINATION,
    metavar="FOLDER",
    help="Convert all arguments (files, folders, globs) into an archive; what is in it already is not repeated.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="With --out: how many processes convert  [default: one per processor]"
)
@click.option(
    "--dask", metavar="ADDRESS|local", help="With --out: convert on a Dask cluster, or on one of --jobs processes here."
)
@size_option(
    "--memory",
    "With --out: the most memory that a process may take, as in 4G  [default: that of the machine, divided by --jobs]",
)
@seconds("--timeout", "With --out: the most seconds for one source.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=None,
    help="The engine whose rounding the nodes state  [default: onnx for ONNX, pt2e for .pt2, else fbgemm]",
)
@input_shapes("Shape of an input.")
@click.option(
    "--input-quantization",
    "quantizations",
    multiple=True,
    callback=named("NAME=SCALE,ZERO_POINT[,DTYPE], as in x=0.0078,128,uint8", _quantization),
    metavar="NAME=SCALE,ZERO_POINT[,DTYPE]",
    help=f"Quantization of an integer input (DTYPE: {DEFAULT_DTYPE} if not given).",
)
@click.option(
    "--input-dtype",
    "dtypes",
    multiple=True,
    callback=named("NAME=DTYPE, as in tokens=int64", _dtype),
    metavar="NAME=DTYPE",
    help="Element type of an input that the source does not state  [default: float32, or int64 for indices]",
)
@click.option(
    "--eval-mode",
    is_flag=True,
    help="Convert what PyTorch saved in training mode as it is after eval(): without dropout, with stored statistics.",
)
@click.option(
    "--prepared",
    type=FILE,
    help="The calibrated model before torch's `convert`, or its state_dict: keep the ranges that it observed.",
)
@integer_options
@click.option("--opset", type=int, help="ONNX opset to write  [default: the newest of the installed ONNX Runtime]")
@click.option(
    "--form",
    type=click.Choice(ONNX_FORMS),
    help="Float operators between Q and DQ, or operators on integers  [default: that of an ONNX source, else qdq]",
)
@click.option(
    "--same-types",
    is_flag=True,
    help="To ONNX: weights in the type of their inputs, uint8 or int8, on which ONNX Runtime never saturates.",
)
@click.option("--compact", is_flag=True, help="To C: use less memory and more time.")
@click.option(
    "--vectors",
    type=click.IntRange(min=1),
    help="To .qfb: store this many test vectors, pseudo-random inputs with the outputs that qfmt computes, and digests "
    "of what each node computes.",
)
@size_option("--shard-size", "To .qfb: put more data than this into other files, of at most this size, as in 2G.")
@no_progress("Print errors only.", expose_value=True)
@click.option(
    "--json",
    "json_",
    is_flag=True,
    help="Print {source, dest, bytes, written, nodes, tensors, notes, …}; with --out {archive, left_out, entries}.",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    out: Place | None,
    jobs: int | None,
    dask: str | None,
    memory: int | None,
    timeout: float | None,
    engine: str | None,
    shapes: Shapes,
    quantizations: dict[str, tuple[float, int, str]],
    dtypes: dict[str, str],
    eval_mode: bool,
    prepared: Place | None,
    opset: int | None,
    form: str | None,
    same_types: bool,
    compact: bool,
    vectors: int | None,
    shard_size: int | None,
    quiet: bool,
    json_: bool,
    **integer: Any,
) -> None:
    """Convert SOURCE, a quantized network of PyTorch or ONNX or a .qfb, to DEST. The name of DEST
    selects the format: a .qfb or .onnx file, a folder for a C program, or FOLDER/NAME.c to name the C program.

    SOURCE and DEST are paths or URLs (memory://, file://, http://, https://, s3://).

    SOURCE is a TorchScript file, a .pt2 program, an ONNX model, a pickled module, a state_dict or safetensors. The
    last three may contain only tensors, without a graph. No torch is needed, and no code of SOURCE is executed. DEST is
    replaced if it exists, and unchanged if the conversion fails.

    With --out, all arguments are SOURCES, and FOLDER gets a .qfb for each, equal models once, and a manifest,
    archive.jsonl. What fails stops nothing. Run an interrupted command again to continue.
    Exit status: 1 if a source failed.
    """
    conversion = Conversion(engine, shapes, quantizations, dtypes, eval_mode, prepared, Lowering.of(**integer))
    if out is not None:
        single = {"prepared": prepared, "opset": opset, "form": form, "same-types": same_types, "compact": compact}
        if given := [name for name, value in single.items() if value]:
            raise click.UsageError(f"--{given[0]} is for one source and one DEST, not for --out")
        from ..file.reader import processors
        from .convert_many import How, convert_many

        options = {"engine": engine, "input_shapes": shapes, "input_quantization": quantizations, **integer}
        options |= {"input_dtypes": dtypes, "eval_mode": eval_mode, "vectors": vectors, "shard_size": shard_size}
        stated = {name: value for name, value in options.items() if value}
        if dask == "":  # a variable without a value
            raise click.UsageError("--dask is empty: give the address of a scheduler, or local")
        if dask and (memory or timeout):
            raise click.UsageError("--memory and --timeout are not for --dask: limit the workers of the cluster")
        workers = How(jobs or processors(), dask or "", memory, timeout)
        ctx.exit(convert_many(paths, out, workers, stated, quiet=quiet, json_=json_))
    source, dest = _pair(ctx, paths)
    many = {"jobs": jobs, "dask": dask, "memory": memory, "timeout": timeout}
    if given := [name for name, value in many.items() if value is not None]:
        raise click.UsageError(f"--{given[0]} is for many sources: it requires --out FOLDER")
    target = Destination.named(dest)
    options = {"opset": opset, "form": form, "same_types": same_types or None}
    for_onnx = {name: value for name, value in options.items() if value is not None}
    if for_onnx and target.kind != "onnx":
        what = "--opset, --form and --same-types are for ONNX"
        raise DestinationError(what, where=dest, hint="end the name in .onnx")
    if compact and target.kind != "c":
        raise click.UsageError("--compact is for C programs: name a folder")
    for name, value in (("vectors", vectors), ("shard-size", shard_size)):
        if value is not None and target.kind != "qfb":
            raise click.UsageError(f"--{name} is for .qfb files: end the name in .qfb")
    spare(target.place, source, prepared)
    will_write(target.place)
    lowering = conversion.lowering
    times = [time.monotonic()]
    with limited(source):
        with working(f"converting {source.name}"):
            needs_shapes = target.kind == "c" or vectors is not None
            model, opened = conversion.read(source, needs_shapes=needs_shapes)
        times.append(time.monotonic())
        notes, lowered = list(_notes(model)), ""
        if lowering is not None:
            with working(f"lowering {source.name} to integers"):
                model, lowered = conversion.lower(model, source, opened)
            notes.extend(lowering.notes(model))
        times.append(time.monotonic())
        fixed = fixed_sizes(shapes) if opened and lowering is None else {}
        if vectors:
            from ..compare import with_random_vectors

            with working(f"running {source.name}"):
                model = with_random_vectors(model, vectors, fixed)
        with working(f"writing {target.place.name}"):
            how = target.write(model, shard_size=shard_size, for_onnx=for_onnx, sizes=fixed, compact=compact)
        times.append(time.monotonic())
        hazard = "" if same_types or (quiet and not json_) else _hazards(model, target)
        what = f"a .qfb, from {origin(model.source)}" if opened else origin(model.source)
    if json_:
        facts: dict[str, Any] = {"source": str(source), "format": what, "dest": str(target.place)}
        facts |= {"kind": target.kind, "bytes": target.bytes, "written": how, "lowered": lowered}
        facts |= {"nodes": len(model.nodes), "tensors": len(model.tensors), "no_graph": model.no_graph}
        as_json(facts | {"notes": [*notes, *filter(None, [hazard])]})
    if json_ or quiet:
        return
    read, lower, write = (f"{end - begin:.2f} s" for begin, end in pairwise(times))
    for text in (
        *(f"note   {note}" for note in notes),
        f"read   {what}, {size(size_of(source))}  {read}",
        *([f"lower  {lowered}  {lower}"] if lowered else []),
        f"graph  {_graph(model)}",
        f"write  {target.place}, {size(target.bytes)}, {how}  {write}",
        *([f"note   {hazard}"] if hazard else []),
        "",
        f"next: {target.next}",
    ):
        line(text, err=True)


def _pair(ctx: click.Context, paths: Sequence[str]) -> tuple[Place, str]:
    """SOURCE and DEST."""
    params = click.Argument(["source"]), click.Argument(["dest"])
    for missing in params[len(paths) :]:
        raise click.MissingParameter(ctx=ctx, param=missing)
    source, dest, *others = paths
    if others:
        raise click.UsageError(f"unexpected argument {others[0]}; to convert many sources, add --out FOLDER")
    if os.path.isdir(source):  # noqa: PTH112 - False for a name that is too long
        raise click.UsageError(f"{source} is a folder; to convert all that is in it, use --out FOLDER instead of DEST")
    return FILE.convert(source, params[0], ctx), dest


def _hazards(model: Model, dest: Destination) -> str:
    """Products that other machines may compute differently. C programs, and files made for them, do not."""
    from ..passes.hazards import count

    if dest.kind == "c" or (dest.kind == "qfb" and model.engine == "integer"):
        return ""
    engine = "onnxruntime" if dest.kind == "onnx" else ""
    try:
        told = summary(count(model, engine), engine)
    except BudgetError:
        return ""
    elsewhere = in_shell("qfmt inspect --hazards", str(dest.place))
    return told and f"{told}: {'--same-types avoids it' if dest.kind == 'onnx' else elsewhere}"


def _notes(model: Model) -> Iterator[str]:
    """Notes on what the user of a conversion may not expect."""
    from ..ops import OPERATORS

    if not _is_quantized(model):
        yield "no quantization was found: no tensor has a scale that qfmt reads, and no node rounds to integers"
    if ranks := model.source.get("assumed_ranks"):
        yield f"the number of dimensions is assumed ({ranks}); set it with --input-shape"
    if positions := model.source.get("unchecked_positions"):
        yield f"{unchecked_positions(positions)}; state the sizes with --input-shape"
    if dropped := model.source.get("dropped_parameters"):
        yield f"{dropped} parameters that the program does not use were omitted"
    unknown = Counter(node.operator for node in model.nodes if node.operator not in OPERATORS)
    if unknown:
        listed = ", ".join(f"{name} ({count}×)" for name, count in sorted(unknown.items()))
        yield f"kept unchanged, but qfmt cannot run them: {listed}"


def _is_quantized(model: Model) -> bool:
    """Whether it has quantized tensors, or quantizes at run time."""
    from ..ops import OPERATORS

    stated = any(node.rule for node in model.nodes) or "dynamic_inputs" in model.source
    known = (OPERATORS[node.operator] for node in model.nodes if node.operator in OPERATORS)
    computed = any(operator.family in ("integer_products", "quantization") for operator in known)
    return stated or computed or any(tensor.quantization is not None for tensor in model.tensors.values())


def _graph(model: Model) -> str:
    tensors = f"{len(model.tensors)} tensors"
    if model.no_graph:
        return f"none, {tensors}: {model.no_graph}"
    how = "integer-only arithmetic" if model.engine == "integer" else f"engine {model.engine or 'not stated'}"
    return f"{len(model.nodes)} nodes, {tensors}, {how}"
