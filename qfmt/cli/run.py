"""`qfmt run`: the reference interpreter on arrays from a file."""

from __future__ import annotations

import zipfile
from dataclasses import asdict
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING, Any

import click

from ..errors import DestinationError, RunError, shortened
from ..notation import NOTHING, number, shape_text
from ..urls import Place
from .arrays import arrays, matched, taken
from .interruption import will_write
from .options import Command, no_progress
from .options import memory as memory_option
from .output import Column, as_json, line, table
from .progress import working
from .source import ARRAYS_FILE, DESTINATION, FILE, distinct, open_model, spare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ..compare import Replay
    from ..model import Model

    Array = NDArray[np.generic]

DIFFERS = 1

SUFFIXES = (".npy", ".npz")

SHOWN = 10
"""The most rows whose argmax is printed; `--json` has all of them."""


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  qfmt run model.qfb --input image.npy                     a single array for a single input
  qfmt run model.qfb --input arrays.npz --output y.npz     arrays for inputs, by name
  qfmt run model.qfb --input image.npy --record tested.qfb a copy, with this run as a test vector
  qfmt run tested.qfb --vectors                            the test vectors in a file

Exit status: 0 success, and all test vectors equal; 1 a test vector differs; 2 an error.""",
)
@click.argument("file", type=FILE)
@click.option("--input", "source", type=ARRAYS_FILE, help="A .npy or .npz.")
@click.option(
    "--output",
    "dest",
    type=DESTINATION,
    help="Write the outputs to this .npz, or a single output to a .npy.",
)
@click.option(
    "--record", type=DESTINATION, help="Copy FILE to this .qfb, with this run and its digests as a test vector."
)
@click.option("--vectors", is_flag=True, help="Run the test vectors in the file, and compare their outputs.")
@memory_option()
@click.option("--json", "json_", is_flag=True, help="Print {output: {dtype, shape, min, max, argmax}}.")
@no_progress()
@click.pass_context
def command(
    ctx: click.Context,
    file: Place,
    source: Place | None,
    dest: Place | None,
    record: Place | None,
    vectors: bool,
    memory: int | None,
    json_: bool,
) -> None:
    """Run FILE, a .qfb or anything that can be converted, exactly, with NumPy only, and summarize its outputs.

    argmax is that of a vector, or of each row of a matrix. An array of another dtype is converted if NumPy's rules
    allow it, and a note says so; quantized inputs are never converted. Arrays of a .npz that are not inputs of the
    model are ignored.
    """
    results = [path for path in (dest, record) if path is not None]
    if vectors == (source is not None) or (vectors and results):
        raise click.UsageError("give either --input, optionally with --output and --record, or --vectors")
    distinct(output=dest, record=record)
    for path in results:
        spare(path, file, source)
    if dest is not None and dest.suffix not in SUFFIXES:
        what = f"qfmt does not write arrays as {dest.suffix or 'a file without a suffix'}"
        raise DestinationError(what, where=str(dest), hint=f"end its name in {' or '.join(SUFFIXES)}")
    if record is not None and record.suffix.lower() != ".qfb":
        raise DestinationError("only a .qfb has test vectors", where=str(record), hint="end its name in .qfb")
    will_write(*results)
    model, _ = open_model(file)
    if model.no_graph:
        raise RunError(model.no_graph, where=str(file))
    if source is None:
        ctx.exit(_replayed(model, file, memory, json_))
    if dest is not None and dest.suffix == ".npy" and len(model.graph.outputs) > 1:
        what = f"a .npy file holds one array, and there are {len(model.graph.outputs)} outputs"
        raise DestinationError(what, where=str(dest), hint="end its name in .npz")
    if dest is not None and dest.suffix == ".npz":
        _check_names(model.graph.outputs, dest)
    inputs = taken(model, matched(model.graph.inputs, arrays(source, model.graph.inputs), source), source)
    with working(f"running {file.name}"):
        name = source.stem.encode(errors="replace").decode()  # of a file whose name is no text
        made = model.with_vectors(inputs, names=(name,), digests=record is not None, memory=memory)
        outputs = {name: value.array for name, value in made.vectors[-1].outputs.items()}
    if record is not None:
        made.save(record)
    if dest is not None:
        _save(outputs, dest)
    summary = {name: _summary(array) for name, array in outputs.items()}
    if json_:
        as_json(summary)
    else:
        columns = [Column("output"), Column("dtype"), Column("shape"), Column("min"), Column("max"), Column("argmax")]
        table(columns, [[name, *_words(facts)] for name, facts in summary.items()])


def _replayed(model: Model, file: Place, memory: int | None, json_: bool) -> int:
    """Every output of every test vector, equal or not; the exit status."""
    from ..compare import replay

    if not model.vectors:
        raise RunError(
            "has no test vectors", where=str(file), hint="`qfmt run FILE --input X --record DEST` adds one to a copy"
        )
    with working(f"running {file.name}"):
        found = list(replay(model, memory))
    if json_:
        as_json([asdict(each) for each in found])
    else:
        counts = [Column(title, right=True) for title in ("elements", "equal", "largest difference")]
        table([Column("vector"), Column("output"), *counts], [_row(each) for each in found])
        line()
        for told in dict.fromkeys(f"{each.vector}: {each.first_difference}" for each in found if each.first_difference):
            line(told)
        line("equal" if all(each.is_equal for each in found) else "different")
    return 0 if all(each.is_equal for each in found) else DIFFERS


def _row(found: Replay) -> list[str]:
    equal = found.elements - found.different
    return [found.vector, found.output, f"{found.elements:,}", f"{equal:,}", number(found.largest)]


def _check_names(outputs: Sequence[str], dest: Place) -> None:
    """A `.npz` is a zip file, which has 16 bits for the length of a name (APPNOTE.TXT, 4.4.10). Some programs write an
    entry whose name is absolute, or has .. in it, outside the folder that they unpack into."""
    for name in outputs:
        if PureWindowsPath(name).anchor or ".." in PureWindowsPath(name).parts:
            what = f"the output {shortened(name, 40)} would be a file in another folder"
            raise DestinationError(what, where=str(dest), hint="rename it in the source")
        if len(f"{name}.npy".encode()) >= 1 << 16:
            what = f"the output {shortened(name, 40)} has a longer name than a .npz can store"
            raise DestinationError(what, where=str(dest), hint="write a single output to a .npy")


def _save(outputs: Mapping[str, Array], dest: Place) -> None:
    """The only output to a `.npy`, else all to a `.npz`; the file appears complete or not at all."""
    import numpy as np

    from ..file.copies import uploaded
    from ..file.replacing import replacing

    if dest.suffix == ".npy":
        (array,) = outputs.values()
        with uploaded(dest) as path, replacing(str(path)) as file:
            np.lib.format.write_array(file, _plain(array), allow_pickle=False)
        return
    with uploaded(dest) as path, replacing(str(path)) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _plain(array), allow_pickle=False)


def _plain(array: Array) -> Array:
    """An array that NumPy can read again: types of ml_dtypes as bytes, also the one that NumPy takes for its own."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"V{array.dtype.itemsize}")


def _summary(array: Array) -> dict[str, Any]:
    argmax = array.argmax(axis=-1).tolist() if array.size and array.ndim in (1, 2) else None
    low, high = (array.min().item(), array.max().item()) if array.size else (None, None)
    return {"dtype": array.dtype.name, "shape": list(array.shape), "min": low, "max": high, "argmax": argmax}


def _words(facts: Mapping[str, Any]) -> list[str]:
    limits = [number(facts["min"]), number(facts["max"])]
    return [facts["dtype"], shape_text(facts["shape"]), *limits, _positions(facts["argmax"])]


def _positions(argmax: int | list[int] | None) -> str:
    if argmax is None:
        return NOTHING
    if isinstance(argmax, int):
        return str(argmax)
    shown = " ".join(map(str, argmax[:SHOWN]))
    return f"{shown} …" if len(argmax) > SHOWN else shown
