"""Actions on a mutant. Each may raise only errors of qfmt, and returns how far it got."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import qfmt
from qfmt.errors import FormatError, QfmtError
from qfmt.model import Model, Tensor, numpy_dtype

Consume = Callable[[Path, Random], str]

LARGEST_INPUT = 1 << 14
"""The maximum number of elements of a generated input."""

LARGEST_RESULT = 1 << 20
"""The maximum number of elements of any tensor of a network that is run: the memory of a run depends on the network,
not on the size of its file."""

LARGE = "is large"
"""The outcome of a mutant whose network has a larger tensor."""


class Disagreement(Exception):
    """A file is valid for one part of qfmt and not for another, or a result is wrong."""


def read(path: Path, chance: Random) -> str:
    """Load, read every array, compute the content id; `check` must find something if reading fails."""
    try:
        model = qfmt.load(path)
        load_everything(model)
    except FormatError as error:
        if not _finds_something(path):
            raise Disagreement(f"check finds nothing in a file that cannot be read: {error}") from error
        raise
    return "broken" if qfmt.check(path) else "valid"


def _finds_something(path: Path) -> bool:
    try:
        return bool(qfmt.check(path))
    except FormatError:
        return True


def load_everything(model: Model) -> None:
    """Use everything in a model."""
    graph = model.graph
    _ = model.producer, model.source, model.metadata, graph.inputs, graph.outputs
    for tensor in graph.tensors.values():
        if tensor.data is not None:
            with np.errstate(all="ignore"):
                tensor.dequantize()
            if tensor.array.shape != tensor.shape:
                raise Disagreement("an array has another shape than its tensor")
    for node in graph.nodes:
        _ = node.attributes
    for vector in model.vectors:
        _ = [value.array for *_, value in vector.stored(graph)]
    model.content_id()


def view(path: Path, chance: Random) -> str:
    """Make the page of a file, alone or compared with itself, its picture and its node data."""
    from qfmt.view import page
    from qfmt.view.drawing import as_svg
    from qfmt.view.node_data import of_hazards

    model = qfmt.load(path)
    made = page(model, model if chance.random() < 0.3 else None, name=path.name, arrays=chance.random() < 0.3)
    blocks = re.findall(r'-data">(.*?)</script>', made.html, re.DOTALL)
    assert blocks and all(re.fullmatch("[A-Za-z0-9+/=]*", block) for block in blocks)
    if model.nodes:
        as_svg(model)
    json.dumps(of_hazards(model), allow_nan=False)
    return "viewed"


def inspect(path: Path, chance: Random) -> str:
    """Run every form of `qfmt inspect`, and `qfmt check --proofs`; JSON must be valid."""
    from qfmt.cli.check import command as check
    from qfmt.cli.inspect import command

    views = ([], ["--integer"], ["--floats"], ["--tree"], ["--stats"], ["--hazards"])
    forms = [[*view, *more] for view in views for more in ([], ["--json"])] + [["--nodes"], ["--tensors"]]
    try:
        names = list(qfmt.load(path).tensors)
    except QfmtError:
        names = []
    if names:
        name = chance.choice(names)
        forms += [[f"--tensor={name}"], [f"--tensor={name}", "--json"], [f"--tensor={name}", "--integer"]]
    shown = 0
    for form in forms:
        shown += _printed(command, [str(path), *form])
    shown += _printed(check, [str(path), "--proofs", *chance.choice(([], ["--json"]))])
    return f"{'something' if shown else 'nothing'} shown"


def _printed(command: Any, arguments: list[str]) -> bool:
    """Whether a command succeeded, rather than print an error."""
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
        try:
            command.main(arguments, "qfmt", standalone_mode=False)
        except QfmtError as error:
            one_line(error)
            return False
    if "--json" in arguments and printed.getvalue():
        json.loads(printed.getvalue(), parse_constant=_no_json)
    return True


def _no_json(word: str) -> None:
    raise Disagreement(f"{word} in JSON")


def one_line(error: QfmtError) -> None:
    """Raise Disagreement unless an error has a message of one line without control characters."""
    if not str(error).strip() or not str(error).isprintable():
        raise Disagreement(f"a message that is not one line: {str(error)!r}") from error


def run(path: Path, chance: Random) -> str:
    return run_model(qfmt.load(path))


def run_model(model: Model) -> str:
    feed = inputs_of(model)
    if feed is None or is_large(model):
        return LARGE
    with np.errstate(all="ignore"):
        model.run(feed)
    return "computed"


def is_large(model: Model) -> bool:
    """Whether a tensor of the network is known to be large."""
    shapes = ([size for size in tensor.shape or () if isinstance(size, int)] for tensor in model.tensors.values())
    return any(prod(shape) > LARGEST_RESULT for shape in shapes)


def inputs_of(model: Model) -> dict[str, Any] | None:
    """Consecutive numbers for each input; None if one is large."""
    feed = {}
    for name in model.graph.inputs:
        if name and (array := _counting(model.tensors[name])) is None:
            return None
        feed[name] = array if name else np.zeros(1)
    return feed


def _counting(tensor: Tensor) -> Any:
    shape = [size if isinstance(size, int) else 1 for size in tensor.shape or ()]
    count = 1
    for size in shape:
        count *= size
    if not 0 <= count <= LARGEST_INPUT or min(shape, default=0) < 0:
        return None
    q = tensor.quantization
    low, span = (0, 100) if q is None else (q.quant_min, q.quant_max - q.quant_min + 1)
    if tensor.dtype == "bool":
        low, span = 0, 2
    numbers = np.array([low + 7 * i % max(span, 1) for i in range(count)], object).reshape(shape)
    try:
        return numbers.astype(numpy_dtype(tensor.dtype))
    except (OverflowError, TypeError, ValueError):
        return np.zeros(shape, numpy_dtype(tensor.dtype))


def to_onnx(path: Path, chance: Random) -> str:
    return to_onnx_model(qfmt.load(path), chance)


def to_onnx_model(model: Model, chance: Random) -> str:
    model.to_onnx(form=chance.choice(("qdq", "qdq", "qoperator")), opset=chance.choice((None, None, 13, 17)))
    return "written"


def to_torch(path: Path, chance: Random) -> str:
    model = qfmt.load(path)
    model.to_torch(engine=chance.choice(("reference", "reference", "qdq")))
    return "made"


def lower(path: Path, chance: Random) -> str:
    """`convert --integer-only`, then show and prove the result."""
    return lower_model(qfmt.load(path), chance)


def lower_model(model: Model, chance: Random) -> str:
    from qfmt.passes.lowering import lower_integer
    from qfmt.passes.lowering.facts import requantizations, totals

    form = chance.choice(("multiply_shift", "multiply_shift", "fixed_point_double", "power_of_two", "thresholds"))
    lowered = lower_integer(model, form=form, exact=chance.random() < 0.5)
    totals(lowered)
    list(requantizations(lowered))
    from qfmt.rules import graph_violations

    if found := graph_violations(lowered):
        raise Disagreement(f"lowering made what breaks {found[0]}")
    return "lowered"


def to_c(path: Path, chance: Random) -> str:
    """Write a C program, in a folder next to the mutant."""
    from qfmt.backends.c import write_c

    model = qfmt.load(path)
    if is_large(model):  # the order of elements is computed element by element
        return LARGE
    named = [name for name in model.graph.inputs if name]
    shapes = {name: [s if isinstance(s, int) else 1 for s in model.tensors[name].shape or ()] for name in named}
    write_c(model, path.parent / "program", name="m", shapes=shapes, compact=chance.random() < 0.5)
    return "written"


def compile_c(path: Path, chance: Random) -> str:
    """Write a C program, and compile it without a warning."""
    if to_c(path, chance) == LARGE:
        return LARGE
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    folder = path.parent / "program"
    headers = b"".join(header.read_bytes() for header in sorted(folder.glob("*.h")))
    sources = {headers + source.read_bytes(): source for source in folder.glob("*.c")}
    if new := sources.keys() - _compiled:
        done = subprocess.run([*command, *(sources[text] for text in new)], capture_output=True, text=True)
        if done.returncode:
            raise Disagreement(f"the compiler refuses what was written: {done.stderr.splitlines()[0][-200:]}")
        _compiled.update(new)
    return "compiled"


_compiled: set[bytes] = set()
"""Texts that compiled: most files are the same for many mutants, and compiling takes the most time."""


def convert(path: Path, chance: Random) -> str:
    """Convert, save, open and check; one of the other consumers may follow."""
    model = qfmt.convert(path)
    made = path.parent / "converted.qfb"
    try:
        qfmt.save(model, made)
        before, after = path.stat().st_size, made.stat().st_size
        if after > 10 * before + (64 << 20):
            raise Disagreement(f"a file of {before} bytes became one of {after}")
        if found := qfmt.check(made):
            raise Disagreement(f"convert wrote what breaks {found[0]}")
        loaded = qfmt.load(made)
        if loaded.content_id() != model.content_id():
            raise Disagreement("the file has another content id than what was saved")
        if chance.random() < 0.3 and not loaded.no_graph:
            _further(loaded, chance)
    finally:
        made.unlink(missing_ok=True)
    return "converted"


def verify(path: Path, chance: Random) -> str:
    """Compare a mutant of a source with the `.qfb` of the unchanged source."""
    report = qfmt.verify(path, path.with_suffix(".qfb"), samples=1)
    str(report)
    computed = max((node.outputs for node in report.nodes), default=0)
    return LARGE if computed > LARGEST_RESULT or is_large(qfmt.convert(path)) else "compared"


def _further(model: Model, chance: Random) -> None:
    try:
        way = chance.randrange(4)
        if way == 0:
            lower_model(model, chance)
        elif way == 1:
            to_onnx_model(model, chance)
        elif is_large(model):
            return
        elif way == 2:
            model.to_torch(engine="reference")  # this folds constants
        else:
            run_model(model)
    except QfmtError as error:
        one_line(error)
