"""Measure what the project promises, as ratios within one run: the machine may be slow or busy, ratios stay.

    python tools/bench.py              # every section
    python tools/bench.py arrays write   # some
    python tools/bench.py --list

A section is a function that yields Rows. Ours and theirs run alternately in the same process, and medians are
compared; imports and the making of test data are not measured.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


class Row(NamedTuple):
    """One measurement: what, ours, the reference, both in `unit`, and the greatest ratio (or value) that is fine."""

    what: str
    ours: float
    reference: float | None
    unit: str
    limit: float | None = None

    @property
    def figure(self) -> float:
        """What the limit is about: the ratio, or the value where there is no reference."""
        return self.ours if self.reference is None else self.ours / self.reference


Section = Callable[[Path], Iterator[Row]]
SECTIONS: dict[str, Section] = {}
"""Every section by its name."""


def section(function: Section) -> Section:
    """Register a section; it gets an empty directory to work in."""
    SECTIONS[function.__name__] = function
    return function


def compare(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int = 15) -> tuple[float, float]:
    """Median seconds of both, run alternately, after one run each that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for function, taken in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            function()
            if repeat:
                taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def timed(what: str, ours: Callable[[], Any], theirs: Callable[[], Any], limit: float | None, repeats: int = 15) -> Row:
    a, b = compare(ours, theirs, repeats)
    return Row(what, 1000 * a, 1000 * b, "ms", limit)


def grown_memory(code: str) -> float:
    """Megabytes of anonymous memory (Linux) by which `code` makes a process grow; it may set it up before `#`."""
    before, after = code.split("#\n")
    probe = (
        "def anonymous():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(line.split()[1]) for line in lines if line.startswith('RssAnon'))\n"
    )
    script = f"{probe}{before}\nstart = anonymous()\n{after}\nprint((anonymous() - start) / 1024)\n"
    return float(_python(script))


def peak_memory(before: str, measured: str) -> float:
    """Megabytes by which the resident memory of a process peaks (Linux) while it runs `measured`."""
    probe = (
        "def status(key):\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(line.split()[1]) for line in lines if line.startswith(key))\n"
    )
    reset = "open('/proc/self/clear_refs', 'w').write('5')\nstart = status('VmRSS')\n"
    script = f"{probe}{before}\n{reset}{measured}\nprint((status('VmHWM') - start) / 1024)\n"
    return float(_python(script))


def _python(script: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


# Opening and reading files


def make_model(count: int, shape: tuple[int, ...]) -> Any:
    """A model of `count` int8 constants, quantized per channel, with different random values."""
    import numpy as np

    from qfmt import Graph, Model, Quantization, Tensor

    random = np.random.default_rng(0)
    scale = tuple(float(value) for value in random.uniform(0.001, 0.1, shape[0]).astype(np.float32))
    quantization = Quantization(scale, (0,) * shape[0], -128, 127, axis=0)
    names = [f"layer{index}.weight" for index in range(count)]
    arrays = (random.integers(-128, 128, shape, dtype=np.int8) for _ in names)
    tensors = {name: Tensor.constant(name, array, quantization) for name, array in zip(names, arrays, strict=True)}
    return Model(Graph((), (), (), tensors))


def make_pair(folder: Path, count: int, shape: tuple[int, ...]) -> tuple[Path, Path]:
    """The same tensors as a .qfb and as a .safetensors file."""
    from safetensors.numpy import save_file

    model, ours, theirs = make_model(count, shape), folder / "m.qfb", folder / "m.safetensors"
    model.save(ours)
    save_file({name: tensor.array for name, tensor in model.tensors.items()}, theirs)
    return ours, theirs


@section
def arrays(folder: Path) -> Iterator[Row]:
    """400 tensors of 512 × 512 int8: open, and get every array; safetensors.safe_open(framework="np")."""
    from safetensors import safe_open

    import qfmt

    path, safe = make_pair(folder, 400, (512, 512))

    def ours(verify: bool) -> list[Any]:
        return [tensor.array for tensor in qfmt.load(path, verify=verify).tensors.values()]

    def theirs() -> list[Any]:
        with safe_open(safe, framework="np") as file:
            return [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118

    yield timed("open 400 × (512, 512)", lambda: qfmt.load(path), lambda: safe_open(safe, framework="np"), None)
    yield timed("open, all arrays, verify=False", lambda: ours(False), theirs, 1)
    yield timed("open, all arrays, sha256 of all", lambda: ours(True), theirs, None)
    if sys.platform == "linux":
        code = "import qfmt, numpy, hashlib\n#\nm = qfmt.load({!r})\narrays = [t.array for t in m.tensors.values()]\n"
        yield Row("anonymous memory, all arrays", grown_memory(code.format(str(path))), None, "MB", 1)


@section
def many(folder: Path) -> Iterator[Row]:
    """10,000 tensors of 32 × 32 int8, each with 32 scales."""
    from safetensors import safe_open

    import qfmt

    path, safe = make_pair(folder, 10_000, (32, 32))

    def names() -> list[str]:
        return list(qfmt.load(path).tensors)

    def their_names() -> list[str]:
        with safe_open(safe, framework="np") as file:
            return list(file.keys())

    def values() -> list[Any]:
        return [tensor.array for tensor in qfmt.load(path).tensors.values()]

    def their_arrays() -> list[Any]:
        with safe_open(safe, framework="np") as file:
            return [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118

    yield timed("open 10,000 tensors", lambda: qfmt.load(path), lambda: safe_open(safe, framework="np"), 1)
    yield timed("open, all names", names, their_names, None, 5)
    yield timed("open, all tensors with scales, all arrays", values, their_arrays, None, 5)


@section
def write(folder: Path) -> Iterator[Row]:
    """1 GB in 400 tensors: save, and os.write of the same bytes with fsync, plus their sha256."""
    model = make_model(400, (1600, 1600))
    parts = [tensor.data.view() for tensor in model.tensors.values()]

    def ours() -> None:
        (folder / "m.qfb").unlink(missing_ok=True)  # both write a new file: a kept one lends its pages to the next
        model.save(folder / "m.qfb")

    def theirs() -> None:
        (folder / "raw").unlink(missing_ok=True)
        for part in parts:
            hashlib.sha256(part).digest()
        descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        for part in parts:
            os.write(descriptor, part)
        os.fsync(descriptor)
        os.close(descriptor)

    yield timed("save 1 GB", ours, theirs, 1.3, 5)
    if sys.platform == "linux":
        before = f"import sys\nsys.path.insert(0, {str(ROOT / 'tools')!r})\nimport bench, flatbuffers\nfrom qfmt import file, rules, ops\n"
        before += "model = bench.make_model(400, (1600, 1600))"
        yield Row(
            "extra memory at the peak", peak_memory(before, f"model.save({str(folder / 'p.qfb')!r})"), None, "MB", 20
        )


def show(rows: Iterator[Row]) -> bool:
    """Print rows as they come; whether all are within their limits."""
    fine = True
    for row in rows:
        reference = "" if row.reference is None else f"{row.reference:10.2f} {row.unit}"
        ratio = "" if row.reference is None else f"{row.figure:8.2f} ×"
        goal = "" if row.limit is None else f"≤ {row.limit:g}"
        verdict = "" if row.limit is None else "ok" if row.figure <= row.limit else "MISSED"
        print(f"  {row.what:44} {row.ours:10.2f} {row.unit} {reference:14} {ratio:10} {goal:6} {verdict}", flush=True)
        fine = fine and verdict != "MISSED"
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="which to run; all without")
    parser.add_argument("--list", action="store_true", help="name the sections and stop")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"there is no section {unknown[0]}; there are {', '.join(SECTIONS)}")
    fine = True
    for name in arguments.sections or SECTIONS:
        print(f"{name}: {SECTIONS[name].__doc__}")
        if not arguments.list:
            with tempfile.TemporaryDirectory(prefix="qfmt-bench-") as folder:
                fine = show(SECTIONS[name](Path(folder))) and fine
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
