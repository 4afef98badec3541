"""Builds the C reader once per run, with a sanitizer on request."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt.errors import QfmtError
from qfmt.model import Tensor, numpy_dtype

from .paths import ROOT
from .shared import made_once

FOLDER = ROOT / "readers" / "c"
INTERPRETER = sorted((FOLDER / "run").glob("*.c"))
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow")
SANITIZED = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILERS = ("gcc", "clang")


def compiler(name: str = "cc") -> str:
    """The path of a compiler; skips the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs the C compiler {name}")
    return found


@cache
def build(main: str, *flags: str, cc: str = "cc") -> Path:
    """Compile the program whose `main` is in this file of readers/c, without a warning."""
    command = (Path(compiler(cc)).resolve(), *STRICT, *(flags or ("-O2",)))  # cc is a link to another compiler
    sources = [FOLDER / main]
    if "qfb_run.h" in sources[0].read_text("utf-8"):
        sources += INTERPRETER
    objects = [_made(f"{source.stem}.o", *command, "-c", source) for source in sources]
    return _made(sources[0].stem, *command, *objects)


def _made(name: str, *command: str | Path) -> Path:
    """The file of this name that a compiler writes."""

    def compiled(folder: Path) -> None:
        done = subprocess.run([*command, "-o", folder / name], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return made_once(f"{name}-{sha256(repr(command).encode()).hexdigest()[:16]}", compiled) / name


def verdicts(program: Path, files: Iterable[bytes], *arguments: str) -> list[tuple[int, str]]:
    """The output of `test/verdicts.c` for each file: code and rule. A report of a sanitizer is a failure."""
    stream = b"".join(struct.pack("<I", len(data)) + data for data in files)
    done = subprocess.run([program, *arguments], input=stream, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    lines = done.stdout.decode().splitlines()
    return [(int(line.split(" ")[0]), line.split(" ")[1]) for line in lines]


ZERO_INSIDE = "V36"
"""The rule by which C refuses any string with a zero byte, which would end it. Python ignores strings of fields that
it does not read."""


def read_disagreement(path: Path, code: int, rule: str, *, read: bool) -> str:
    """The error in C's verdict about a file; `read` is whether Python could read it; "" if there is no error.

    C must refuse a file that Python cannot read. Any other file that C refuses must break a rule that `check`
    reports.
    """
    if not read:
        return "" if code else "C reads what Python refuses"
    if not code or rule == ZERO_INSIDE or _breaks_a_rule(path):
        return ""
    return f"C refuses by rule {rule} what `check` finds valid"


def _breaks_a_rule(path: Path) -> bool:
    try:
        return bool(qfmt.check(path))
    except QfmtError:
        return True


# Runs


OPENED, UNSUPPORTED, MEMORY, WORK, INPUT = (3, 4, 5), 7, 8, 9, 10
"""Codes of qfb.h: refused when opened, and errors of a run."""


def run_disagreement(wanted: str | None, code: int, digest: str) -> str:
    """The error in C's run of a file, given `wanted` from `expected_hash`; "" if there is no error.

    If both compute, the integers must be equal. C must compute what the reference computes, unless it reports that
    it needs too much, or the file is broken in a part that a run does not read.
    """
    if not wanted:
        return ""
    if code == 0:
        return "" if digest == wanted else "C computes other integers than the reference"
    return "" if code in (*OPENED, UNSUPPORTED, MEMORY, WORK, INPUT) else f"C refuses with code {code} what is computed"


def expected_hash(path: Path) -> str | None:
    """The same hash from the reference; "" if it refuses the file, None if that would take long."""
    try:
        model = qfmt.load(path)
        if "" in model.graph.inputs:  # breaks V30
            return ""
        feed = {name: _counting(model.tensors[name]) for name in model.graph.inputs}
        if any(array is None for array in feed.values()) or any(map(_is_large, model.tensors.values())):
            return None
        with np.errstate(all="ignore"):
            outputs = model.run(feed)
    except QfmtError:
        return ""
    value = 14695981039346656037
    for name in model.graph.outputs:
        for byte in _elements(outputs[name]).astype(np.int64).tobytes():
            value = (value ^ byte) * 1099511628211 % (1 << 64)
    return f"{value:016x}"


def _elements(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array as `qfb_element` returns it: floats as their bits, with one bit pattern for NaN."""
    array = np.ascontiguousarray(array)
    if array.dtype != np.float32:
        return array
    return np.where(np.isnan(array), np.float32(np.nan), array).view(np.uint32)


def _is_large(tensor: Tensor) -> bool:
    return prod(size for size in tensor.shape or () if isinstance(size, int)) > 1 << 20


def _counting(tensor: Tensor) -> Any:
    """The input that runs.c generates; None for a large one."""
    shape = [size if isinstance(size, int) else 1 for size in tensor.shape or ()]
    count = int(np.prod(shape, dtype=object))
    if count > 1 << 16:
        return None
    q = tensor.quantization
    low, span = (0, 100) if q is None else (q.quant_min, q.quant_max - q.quant_min + 1)
    numbers = np.array([low + 7 * i % span for i in range(count)], object)
    return numbers.reshape(shape).astype(numpy_dtype(tensor.dtype))
