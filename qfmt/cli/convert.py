"""`qfmt convert`: another format → `.qfb`, ONNX or C."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import qfmt

from ..errors import DestinationError, InexpressibleNodesError, SourceError
from ..frontends import ENGINES
from ..notation import size
from .hazards import summary
from .integer import Lowering, integer_options
from .options import Shapes, input_shapes
from .output import line, working
from .report import origin
from .source import FILE, QFB, kind_of, spare

if TYPE_CHECKING:
    from ..model import Model

LATER = (".npz", ".safetensors")
WRITTEN = (".qfb", ".onnx")
_WRITTEN = " or ".join(WRITTEN)
FORMS = ("qdq", "qoperator")
ONLY_ONNX = "--opset, --form and --same-types are for ONNX"
DEFAULT_DTYPE = "uint8"

Quantizations = dict[str, tuple[float, int, str]]


def _quantizations(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> Quantizations:
    return dict(_quantization(value) for value in values)


def _quantization(value: str) -> tuple[str, tuple[float, int, str]]:
    name, _, numbers = value.partition("=")
    words = [word.strip() for word in numbers.split(",")]
    try:
        scale, zero_point, dtype = float(words[0]), int(words[1]), *(words[2:] or [DEFAULT_DTYPE])
    except (ValueError, IndexError):
        raise click.BadParameter(f"{value!r} is not NAME=SCALE,ZERO_POINT[,DTYPE], as in x=0.0078,128,uint8") from None
    return name, (scale, zero_point, dtype)


@click.command(
    short_help="Convert another format to .qfb, ONNX or C, without the framework that wrote it.",
    epilog="""\b
Examples:
  qfmt convert model.pt model.qfb
  qfmt convert model.pt model.qfb --engine qnnpack           as qnnpack computes it
  qfmt convert model.pt model.qfb --input-shape x=N,3,224,224
  qfmt convert model.pt model.onnx --opset 21                for a runtime of 2024
  qfmt convert model.pt model.onnx --same-types              for processors without VNNI
  qfmt convert model.onnx model.qfb                          quantized in any form of ONNX
  qfmt convert model.qfb integers.qfb --integer-only --exact   integer-only, with equal outputs
  qfmt convert integers.qfb folder --to c                    a C program of an integer-only network""",
)
@click.argument("source", type=FILE)
@click.argument("dest", type=click.Path(path_type=Path))
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
    callback=_quantizations,
    metavar="NAME=SCALE,ZERO_POINT[,DTYPE]",
    help=f"Quantization of an input that takes integers (DTYPE: {DEFAULT_DTYPE} if not given).",
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
    type=click.Choice(FORMS),
    help="Float operators between Q and DQ, or operators on integers  [default: that of an ONNX source, else qdq]",
)
@click.option(
    "--same-types",
    is_flag=True,
    help="To ONNX: weights in the type of their inputs, uint8 or int8, on which ONNX Runtime never saturates.",
)
@click.option(
    "--to", "target", type=click.Choice(("c",)), help="c: write a C program of this network into the folder DEST."
)
@click.option("--compact", is_flag=True, help="With --to c: use less memory and more time.")
def command(
    source: Path,
    dest: Path,
    engine: str | None,
    shapes: Shapes,
    quantizations: Quantizations,
    prepared: Path | None,
    opset: int | None,
    form: str | None,
    same_types: bool,
    target: str | None,
    compact: bool,
    **integer: Any,
) -> None:
    """Convert SOURCE, a quantized network of PyTorch or ONNX or a .qfb, to DEST, a .qfb or .onnx file. With --to c,
    DEST is a folder.

    SOURCE is a TorchScript file, a .pt2 program, an ONNX model, a pickled module, a state_dict or safetensors. The
    last three may have tensors only, without a graph. No torch is needed, and no code of SOURCE is executed. DEST is
    replaced if it exists, and left as it was if the conversion fails.
    """
    options = {"opset": opset, "form": form, "same_types": same_types or None}
    for_onnx = {name: value for name, value in options.items() if value is not None}
    _check_destination(source, dest, bool(for_onnx), target)
    if compact and not target:
        raise click.UsageError("--compact requires --to c")
    lowering = Lowering.of(**integer)
    begin = time.monotonic()
    with working(f"converting {source.name}"):
        opened = kind_of(source) == QFB
        if opened:
            if engine or quantizations or prepared or (shapes and not target and lowering is None):
                hint = "give --engine, --prepared and --input-… when you convert the original"
                raise SourceError("is a .qfb: its engine and inputs are fixed", where=str(source), hint=hint)
            model = qfmt.load(source)
        else:
            model = qfmt.convert(
                source,
                engine=engine,
                input_shapes=shapes,
                input_quantization=quantizations,
                prepared=prepared,
            )
    converted = time.monotonic()
    notes: list[str] = list(_notes(model))
    done: list[str] = []
    if lowering is not None:
        with working(f"lowering {source.name} to integers"):
            model, told = lowering.apply(model, str(source), shapes if opened else {})
        done.append(told)
        notes.extend(lowering.notes(model))
    lowered = time.monotonic()
    with working(f"writing {dest.name}"):
        if target is None:
            how = _write(model, dest, for_onnx)
        else:
            how = _write_c(model, dest, shapes if opened and lowering is None else {}, compact)
    written = time.monotonic()
    hazard = "" if same_types else _hazards(model, dest)
    what = f"a .qfb, from {origin(model.source)}" if opened else origin(model.source)
    for text in (
        *(f"note   {note}" for note in notes),
        f"read   {what}, {size(source.stat().st_size)}  {converted - begin:.2f} s",
        *(f"lower  {text}  {lowered - converted:.2f} s" for text in done),
        f"graph  {_graph(model)}",
        f"write  {dest}, {size(_bytes(dest))}, {how}  {written - lowered:.2f} s",
        *([f"note   {hazard}"] if hazard else []),
        "",
        f"next: make -C {shlex.quote(str(dest))}" if target else f"next: qfmt inspect {dest}",
    ):
        line(text, err=True)


def _hazards(model: Model, dest: Path) -> str:
    """Where other machines may compute something else; C programs do not, and integer-only files are made for those."""
    from ..passes.hazards import hazards

    if dest.suffix not in WRITTEN or (dest.suffix == ".qfb" and model.engine == "integer"):
        return ""
    told = summary(list(hazards(model)), "onnxruntime" if dest.suffix == ".onnx" else "")
    way_out = "--same-types avoids it" if dest.suffix == ".onnx" else f"qfmt inspect --hazards {shlex.quote(str(dest))}"
    return told and f"{told}: {way_out}"


def _notes(model: Model) -> Iterator[str]:
    """What may surprise the user of a conversion."""
    from ..ops import OPERATORS

    if not _is_quantized(model):
        yield "nothing is quantized here: no tensor has a scale, and no node rounds to integers"
    if ranks := model.source.get("assumed_ranks"):
        yield f"the number of dimensions is assumed ({ranks}); set it with --input-shape"
    if dropped := model.source.get("dropped_parameters"):
        yield f"{dropped} parameters that nothing in the program reads were left out"
    unknown = Counter(node.operator for node in model.nodes if node.operator not in OPERATORS)
    if unknown:
        listed = ", ".join(f"{name} ({count}×)" for name, count in sorted(unknown.items()))
        yield f"kept as they are, but qfmt cannot run them: {listed}"


def _is_quantized(model: Model) -> bool:
    """Whether it has integers that represent real numbers, or quantizes while it runs."""
    from ..ops import OPERATORS

    stated = any(node.rule for node in model.nodes) or "dynamic_inputs" in model.source
    known = (OPERATORS[node.operator] for node in model.nodes if node.operator in OPERATORS)
    computed = any(operator.family in ("integer_products", "quantization") for operator in known)
    return stated or computed or any(tensor.quantization is not None for tensor in model.tensors.values())


def _write(model: Model, dest: Path, for_onnx: dict[str, Any]) -> str:
    """Write the destination, and describe it."""
    if dest.suffix != ".onnx":
        from ..rules import RULES

        model.save(dest)
        return f"checked against {len(RULES)} rules"
    from ..backends.onnx import write_onnx

    try:
        return f"opset {write_onnx(model, dest, **for_onnx)}"
    except InexpressibleNodesError as error:
        raise error.at(str(dest)) from None


def _write_c(model: Model, dest: Path, shapes: Shapes, compact: bool) -> str:
    """Write a C program, for inputs of these shapes where the conversion left them open."""
    from ..backends.c import write_c

    sizes = {name: tuple(size for size in shape if isinstance(size, int)) for name, shape in shapes.items()}
    if named := [name for name, shape in shapes.items() if len(sizes[name]) != len(shape)]:
        raise DestinationError("C requires fixed sizes", where=f"--input-shape {named[0]}")
    return f"{len(write_c(model, dest, shapes=sizes, compact=compact))} files"


def _bytes(dest: Path) -> int:
    return sum(path.stat().st_size for path in (dest.iterdir() if dest.is_dir() else [dest]))


def _graph(model: Model) -> str:
    tensors = f"{len(model.tensors)} tensors"
    if model.no_graph:
        return f"none, {tensors}: {model.no_graph}"
    how = "integer-only arithmetic" if model.engine == "integer" else f"engine {model.engine}"
    return f"{len(model.nodes)} nodes, {tensors}, {how}"


def _check_destination(source: Path, dest: Path, has_options_of_onnx: bool, target: str | None) -> None:
    suffix, place = dest.suffix, str(dest)
    if target and has_options_of_onnx:
        raise DestinationError(ONLY_ONNX, where=place, hint="drop --to, or drop these")
    if target and suffix in WRITTEN:
        what = f"must be a folder: a C program is multiple files, and {suffix} names another kind of file"
        raise DestinationError(what, where=place, hint="name a folder, or drop --to")
    if target:
        return
    if suffix in (".c", ".h"):
        raise DestinationError("a C program is multiple files", where=place, hint="name a folder, and give `--to c`")
    if suffix in LATER:
        raise DestinationError(f"{suffix} files cannot be written yet", where=place, hint=f"only {_WRITTEN} can")
    if suffix not in WRITTEN:
        raise DestinationError("qfmt does not write files with this suffix", where=place, hint=f"end it in {_WRITTEN}")
    if suffix != ".onnx" and has_options_of_onnx:
        raise DestinationError(ONLY_ONNX, where=place, hint="end it in .onnx")
    spare(dest, source)
