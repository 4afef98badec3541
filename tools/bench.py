"""Measure what the project promises, as ratios within one run, which do not depend on the speed or load of the
machine.

    python tools/bench.py              # every section
    python tools/bench.py arrays write   # some
    python tools/bench.py --list
    python tools/bench.py --record     # and write docs/performance.json, from which tools/plot.py draws

A section is a function that yields Rows. Ours and theirs run alternately in the same process, and medians are
compared. Imports and the creation of test data are not measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "performance.json"
DIGITS = ROOT / "examples/digits/digits_int8.pt"
sys.path.insert(0, str(ROOT))


class Row(NamedTuple):
    """One measurement: what, ours, the reference, both in `unit`, and the largest acceptable ratio (or value)."""

    what: str
    ours: float
    reference: float | None
    unit: str
    limit: float | None = None

    @property
    def figure(self) -> float:
        """The figure that the limit applies to: the ratio, or the value if there is no reference."""
        return self.ours if self.reference is None else self.ours / self.reference


Section = Callable[[Path], Iterator[Row]]
SECTIONS: dict[str, Section] = {}
"""Every section by its name."""


def section(function: Section) -> Section:
    """Register a section; it gets an empty directory to work in."""
    SECTIONS[function.__name__] = function
    return function


def compare(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int = 15) -> tuple[float, float]:
    """Median seconds of both, run alternately, after one warm-up run each."""
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


def memory(setup: str, measured: str) -> tuple[float, float]:
    """Megabytes that a process gains (Linux) by running `measured`: anonymous memory kept, resident memory at the
    peak."""
    script = f"""
def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))
{setup}
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")  # forget the peak so far
anonymous, resident = status("RssAnon"), status("VmRSS")
{measured}
print(status("RssAnon") - anonymous, status("VmHWM") - resident)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    kept, peak = map(float, done.stdout.split())
    return kept, peak


# Opening and reading files


def make_model(count: int, shape: tuple[int, ...], *, per_channel: bool = False) -> Any:
    """A model of `count` int8 constants with different random values and scales."""
    import numpy as np

    from qfmt import Graph, Model, Quantization, Tensor

    random = np.random.default_rng(0)
    channels = shape[0] if per_channel else 1
    tensors = {}
    for index in range(count):
        scale = tuple(random.uniform(0.001, 0.1, channels).astype(np.float32).astype(float).tolist())
        quantization = Quantization.of(scale, (0,) * channels, -128, 127, axis=0 if per_channel else None)
        name = f"layer{index}.weight"
        tensors[name] = Tensor.constant(name, random.integers(-128, 128, shape, dtype=np.int8), quantization)
    return Model(Graph((), (), (), tensors))


def make_files(folder: Path, count: int, shape: tuple[int, ...]) -> tuple[Path, Path, Path]:
    """The same tensors as .qfb with one scale each, as .qfb with a scale per channel, and as .safetensors."""
    from safetensors.numpy import save_file

    paths = folder / "m.qfb", folder / "channels.qfb", folder / "m.safetensors"
    model = make_model(count, shape)
    model.save(paths[0])
    save_file({name: tensor.array for name, tensor in model.tensors.items()}, paths[2])
    make_model(count, shape, per_channel=True).save(paths[1])
    return paths


def all_arrays(path: Path, verify: bool = False) -> list[Any]:
    import qfmt

    return [tensor.array for tensor in qfmt.load(path, verify=verify).tensors.values()]


def all_safetensors(path: Path) -> list[Any]:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118


def hash_all(path: Path) -> None:
    """The sha256 of each 256 KB of a mapped file, by as many threads as this process may use processors."""
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    parts = [mapped[start : start + (1 << 18)] for start in range(0, len(mapped), 1 << 18)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(lambda part: hashlib.sha256(part).digest(), parts))


@section
def arrays(folder: Path) -> Iterator[Row]:
    """400 tensors of 512 × 512 int8: open, and get every array; safetensors.safe_open(framework="np")."""
    from safetensors import safe_open

    import qfmt

    path, channels, safe = make_files(folder, 400, (512, 512))
    theirs = partial(all_safetensors, safe)
    yield timed("open", lambda: qfmt.load(path), lambda: safe_open(safe, framework="np"), None)
    yield timed("open, all arrays", lambda: all_arrays(path), theirs, 0.4)
    yield timed("open, all arrays, 512 scales each", lambda: all_arrays(channels), theirs, 0.4)
    yield timed("open, all arrays, sha256 of all", lambda: all_arrays(path, True), theirs, None)
    yield timed("open, all verified; hashlib", lambda: qfmt.load(path, verify="all"), partial(hash_all, path), 1.1)
    if sys.platform == "linux":
        small = str(folder / "small.qfb")
        make_model(40, (1,)).save(small)  # a small file first: what reading imports is not counted
        code = "model = qfmt.load({!r})\narrays = [tensor.array for tensor in model.tensors.values()]"
        setup = f"import numpy, qfmt\n{code.format(small)}"
        yield Row("anonymous memory, all arrays", memory(setup, code.format(str(path)))[0], None, "MB", 1)
        yield Row("the same with 512 scales each", memory(setup, code.format(str(channels)))[0], None, "MB", 1)


@section
def many(folder: Path) -> Iterator[Row]:
    """10,000 tensors of 32 × 32 int8: open, and walk; safetensors.safe_open(framework="np")."""
    from safetensors import safe_open

    import qfmt

    path, channels, safe = make_files(folder, 10_000, (32, 32))

    def their_names() -> list[str]:
        with safe_open(safe, framework="np") as file:
            return list(file.keys())

    def open_theirs() -> Any:
        return safe_open(safe, framework="np")

    theirs = partial(all_safetensors, safe)
    yield timed("open", lambda: qfmt.load(path), open_theirs, 1)
    yield timed("open, 32 scales each", lambda: qfmt.load(channels), open_theirs, 1)
    yield timed("open, all names", lambda: list(qfmt.load(path).tensors), their_names, 1)
    yield timed("open, all arrays", lambda: all_arrays(path), theirs, 1)
    yield timed("open, all arrays, 32 scales each", lambda: all_arrays(channels), theirs, 1)


@section
def write(folder: Path) -> Iterator[Row]:
    """1 GB in 400 tensors: save, and os.write of the same bytes with fsync, plus their sha256."""
    model = make_model(400, (1600, 1600))
    parts = [tensor.data.view() for tensor in model.tensors.values()]

    def ours() -> None:
        (folder / "m.qfb").unlink(missing_ok=True)  # so that both write a new file, without pages of an old one
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

    yield timed("save 1 GB", ours, theirs, 1.1, 5)
    if sys.platform == "linux":
        path = str(folder / "peak.qfb")
        setup = (  # a small file first, so that imports are not measured
            f"import bench\nbench.make_model(1, (1,)).save({path!r})\nmodel = bench.make_model(400, (1600, 1600))"
        )
        yield Row("extra memory at the peak", memory(setup, f"model.save({path!r})")[1], None, "MB", 20)


@section
def onnx(folder: Path) -> Iterator[Row]:
    """A quantized ONNX model with 105 MB of external data: convert and save, and copy its bytes, hashed, with fsync."""
    source = folder / "model.onnx"
    make_onnx(source, 100)
    import qfmt

    def ours() -> None:
        (folder / "m.qfb").unlink(missing_ok=True)
        qfmt.save(qfmt.convert(source), folder / "m.qfb")

    def theirs() -> None:
        (folder / "raw").unlink(missing_ok=True)
        digest = hashlib.sha256()
        with (folder / "model.bin").open("rb") as data, (folder / "raw").open("wb") as copy:
            while part := data.read(1 << 20):
                digest.update(part)
                copy.write(part)
            os.fsync(copy.fileno())

    yield timed("convert and save 105 MB", ours, theirs, 1.3, 5)
    if sys.platform == "linux":
        small, large = str(folder / "small.onnx"), str(source)
        make_onnx(Path(small), 1)  # so that imports are not measured
        setup = f"import qfmt\nqfmt.save(qfmt.convert({small!r}), {small + '.qfb'!r})"
        measured = f"qfmt.save(qfmt.convert({large!r}), {large + '.qfb'!r})"
        yield Row("extra memory at the peak", memory(setup, measured)[1], None, "MB", 100)


def make_onnx(path: Path, layers: int) -> None:
    """Convolutions of 341 channels between Q and DQ, per-channel int8; weights and biases are external data."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    grid = {"s": np.float32(0.05), "z": np.uint8(117), "ws": np.full(341, 0.001, np.float32)}
    arrays = {**grid, "bs": grid["ws"] * grid["s"]}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q0"])]
    for i in range(layers):
        arrays[f"w{i}"] = rng.integers(-127, 128, (341, 341, 3, 3)).astype(np.int8)
        arrays[f"b{i}"] = rng.integers(-99, 99, 341).astype(np.int32)
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"x{i}"]),
            helper.make_node("DequantizeLinear", [f"w{i}", "ws"], [f"w{i}d"], axis=0),
            helper.make_node("DequantizeLinear", [f"b{i}", "bs"], [f"b{i}d"], axis=0),
            helper.make_node("Conv", [f"x{i}", f"w{i}d", f"b{i}d"], [f"y{i}"], pads=[1, 1, 1, 1]),
            helper.make_node("QuantizeLinear", [f"y{i}", "s", "z"], [f"q{i + 1}"]),
        ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 341, 8, 8])
    y = helper.make_tensor_value_info(f"q{layers}", TensorProto.UINT8, [1, 341, 8, 8])
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants))
    onnx.save(model, path, save_as_external_data=True, location=path.with_suffix(".bin").name)


@section
def programs(folder: Path) -> Iterator[Row]:
    """A program of PT2E with 111 MB of int8 and dead float weights: convert it, and torch.export.load."""
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    import qfmt

    path, inputs = folder / "model.pt2", (torch.randn(4, 1024),)
    layers = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(21)]
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(torch.nn.Sequential(*layers).eval(), inputs).module(), quantizer)
    prepared(*inputs)
    torch.export.save(torch.export.export(convert_pt2e(prepared), inputs), path)
    load = partial(torch.export.load, path)
    yield timed("convert, load", lambda: qfmt.convert(path), load, 1, 5)
    yield timed("convert and save, load", lambda: qfmt.save(qfmt.convert(path), folder / "m.qfb"), load, 1, 5)


@section
def processes(folder: Path) -> Iterator[Row]:
    """Whole processes: convert a real MobileNetV2, against importing torch; `qfmt inspect` of a small file."""
    qfmt = [sys.executable, "-m", "qfmt"]
    network = ROOT.parent / "shared/data/torchscript/ios_mobilenet_quantized.pt"
    if not network.exists():
        print("  the real MobileNetV2 is not here; the digits take its place")
        network = DIGITS
    converting = partial(_process, [*qfmt, "convert", str(network), str(folder / "m.qfb")])
    importing = partial(_process, [sys.executable, "-c", "import torch"])
    yield timed("convert, import torch", converting, importing, 1, 5)
    _process([*qfmt, "convert", str(DIGITS), str(folder / "digits.qfb")])
    inspecting = partial(_process, [*qfmt, "inspect", str(folder / "digits.qfb")])
    nothing = partial(_process, [sys.executable, "-c", "pass"])
    yield timed("inspect a small file, python -c pass", inspecting, nothing, None, 9)
    helping = partial(_process, [*qfmt, "--help"])
    for what, command, limit in (("inspect a small file", inspecting, 100), ("qfmt --help", helping, 80)):
        fastest = min(_seconds(command) for _ in range(15))
        yield Row(f"{what}, the fastest of 15", fastest * 1e3, None, "ms", limit)


def _process(command: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}  # compiled, as if installed
    subprocess.run(command, env=environment, check=True, capture_output=True)


def _seconds(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


@section
def archive(folder: Path) -> Iterator[Row]:
    """1,000 small models into an archive: two jobs against one, also on a Dask cluster here; again, when everything is
    there, against one job."""
    sources, repeats = folder / "sources", iter(range(100))
    make_digits(sources, 1000)
    qfmt = [sys.executable, "-m", "qfmt", "convert", str(sources), "--out"]

    def converting(jobs: int, dask: str = "") -> None:
        cluster = ["--dask", dask] if dask else []
        _process([*qfmt, str(folder / f"{jobs}-{next(repeats)}"), "--jobs", str(jobs), *cluster])

    one, two = partial(converting, 1), partial(converting, 2)
    yield timed("two jobs, one job", two, one, 1 / 1.8, 3)
    yield timed(
        "Dask: two workers, one worker", partial(converting, 2, "local"), partial(converting, 1, "local"), 1 / 1.6, 3
    )
    again = partial(_process, [*qfmt, str(folder / "1-1"), "--jobs", "1"])
    yield timed("nothing to do, one job", again, one, None, 1)


def make_digits(folder: Path, count: int) -> None:
    """The network of examples/digits with other weights in its last layer."""
    folder.mkdir()
    with zipfile.ZipFile(DIGITS) as source:
        members = {name: source.read(name) for name in source.namelist()}
    (weights,) = (name for name in members if len(members[name]) == 1280)
    for number in range(count):
        with zipfile.ZipFile(folder / f"{number:04}.pt", "w") as target:
            for name, content in members.items():
                changed = number.to_bytes(2, "little") + content[2:]
                target.writestr(name, changed if name == weights else content)


# Modules of PyTorch


def race(runners: dict[str, Callable[[], Any]], rounds: int = 20, runs: int = 5) -> dict[str, float]:
    """Milliseconds of each: the lowest tenth of all runs, because on a busy machine most of these short runs are
    interrupted. Runners take turns; the first runs of a turn do not count, because threads of the previous one still
    spin."""
    taken: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(rounds):
        for name, function in runners.items():
            seconds = [_seconds(function) for _ in range(runs)]
            if turn >= 2:
                taken[name] += seconds[2:]
    return {name: 1000 * statistics.quantiles(times, n=10)[0] for name, times in taken.items()}


@section
def modules(folder: Path) -> Iterator[Row]:
    """to_torch at 224 × 224, batch 1: against the eager source, its TorchScript, ONNX Runtime, torch.jit.load."""
    import warnings

    sys.path.insert(0, str(ROOT / "tests"))
    warnings.simplefilter("ignore")
    for network in ("resnet18_224", "mobilenet_v2_224"):
        for kernels in ("x86", "fbgemm"):
            yield from _modules(folder, network, kernels)


def _modules(folder: Path, network: str, kernels: str) -> Iterator[Row]:
    import torch

    import qfmt
    from networks import pytorch

    eager, inputs = pytorch.quantize(network, "fx", kernels)
    archive = pytorch.save_as(eager, inputs, "trace", folder / f"{network}.pt")
    qfmt.save(qfmt.convert(archive), folder / f"{network}.qfb")
    model = qfmt.load(folder / f"{network}.qfb")
    script = torch.jit.load(archive)
    chosen = [f"native:{kernels}", *(["onednn", "fast"] if kernels == "x86" else ["auto", "fast"])]
    ours = {engine: model.to_torch(engine) for engine in chosen}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        runners: dict[str, Any] = {"eager": partial(eager, *inputs), "TorchScript": partial(script, *inputs)}
        runners |= {engine: partial(module, *inputs) for engine, module in ours.items()}
        if network == "resnet18_224" and kernels == "x86":
            runners["ONNX Runtime"] = _onnx_runtime(folder / f"{network}.onnx", eager, inputs, threads)
        with torch.no_grad():
            median = race(runners)
        for engine, reference, limit in (
            (f"native:{kernels}", "eager", 1),
            (f"native:{kernels}", "TorchScript", 1.02),  # the same kernels: equal except for noise
            ("onednn", "eager", 1.15),
            ("fast", "ONNX Runtime", 1.1),
            ("auto", "fast", None),  # exact; `fast` rounds in another way
        ):
            if engine in median and reference in median:
                on = f"{network.removesuffix('_224')} {threads} thread{'s' * (threads > 1)}"
                what = f"{on}: {engine}, {reference} {kernels}"
                yield Row(what, median[engine], median[reference], "ms", limit)
    for engine in chosen:
        making, loading = partial(model.to_torch, engine), partial(torch.jit.load, archive)
        yield timed(f"{network.removesuffix('_224')}: to_torch {engine}, jit.load", making, loading, 1, 5)


def _onnx_runtime(path: Path, eager: Any, inputs: Any, threads: int) -> Callable[[], Any]:
    import onnxruntime
    import torch

    if not path.exists():
        torch.onnx.export(eager, inputs, path, opset_version=17, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: inputs[0].numpy()}
    return partial(session.run, None, given)


# Programs in C


@section
def c(folder: Path) -> Iterator[Row]:
    """C programs by gcc -O3 -march=native, one thread; ONNX Runtime, the same networks as QDQ, one thread."""
    sys.path.insert(0, str(ROOT / "tests"))
    import qfmt
    from networks import pytorch

    for name in ("resnet18_224", "mobilenet_v2_224"):
        path = pytorch.save_as(*pytorch.quantize(name, "fx"), "trace", folder / f"{name}.pt")
        model = qfmt.convert(path, input_shapes={"x": (1, 3, 224, 224)})
        for exact in (False, True):
            yield from _c_program(model, name, exact, folder / f"{name}{'_exact' if exact else ''}")


def _c_program(model: Any, name: str, exact: bool, folder: Path) -> Iterator[Row]:
    import ctypes

    import numpy as np

    from qfmt.backends.c import write_c
    from qfmt.passes.lowering import lower_integer

    integers = lower_integer(model, exact=exact)
    write_c(integers, folder, name="net")
    sources = sorted(path for path in folder.glob("*.c") if path.name != "main.c")
    what = f"{name}{', exact' if exact else ''}"

    def compile_all() -> None:
        flags = ["-std=c99", "-O3", "-march=native", "-fPIC", "-shared"]
        subprocess.run(["gcc", *flags, "-o", folder / "net.so", *sources], check=True)

    yield Row(f"{what}: compile", _seconds(compile_all), None, "s", 60)
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (1, 3, 224, 224), dtype=np.uint8), np.empty(1000, np.uint8)
    pointers = [each.ctypes.data_as(ctypes.c_void_p) for each in (x, y)]
    ours = partial(ctypes.CDLL(str(folder / "net.so")).net_run, *pointers)
    theirs = _single_threaded(model, random.standard_normal(x.shape, dtype=np.float32))
    times = race({"ours": ours, "theirs": theirs})
    yield Row(f"{what}: run, ONNX Runtime", times["ours"], times["theirs"], "ms", 2.5 if _has_vnni() else 4)


def _has_vnni() -> bool:
    """Whether this processor has VNNI, which multiplies bytes into 32 bits, and which ONNX Runtime uses."""
    information = Path("/proc/cpuinfo")
    return information.exists() and "vnni" in information.read_text(encoding="utf-8")


def _single_threaded(model: Any, x: Any) -> Callable[[], Any]:
    """ONNX Runtime on a model as QDQ, in one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    serialized = model.to_onnx().SerializeToString()
    session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    return partial(session.run, None, {session.get_inputs()[0].name: x})


def show(rows: Iterator[Row]) -> list[Row]:
    """Print rows as they come, and return them."""
    shown = []
    for row in rows:
        shown.append(row)
        reference = "" if row.reference is None else f"{row.reference:10.2f} {row.unit}"
        ratio = "" if row.reference is None else f"{row.figure:8.2f} ×"
        goal = "" if row.limit is None else f"≤ {row.limit:g}"
        verdict = "" if row.limit is None else "ok" if row.figure <= row.limit else "MISSED"
        print(f"  {row.what:44} {row.ours:10.2f} {row.unit} {reference:14} {ratio:10} {goal:6} {verdict}", flush=True)
    return shown


def record(name: str, rows: list[Row]) -> None:
    """Replace the ratios of a section in docs/performance.json, and say on what they were measured."""
    kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    ratios = [
        {"what": row.what, "ratio": round(row.figure, 2), "limit": row.limit}
        for row in rows
        if row.reference is not None
    ]
    kept[name] = {"about": " ".join((SECTIONS[name].__doc__ or "").split()), "machine": machine(), "rows": ratios}
    text = json.dumps({key: kept[key] for key in SECTIONS if key in kept}, indent=1, ensure_ascii=False)
    RECORD.write_text(text + "\n", encoding="utf-8")


def machine() -> str:
    """The processor, and versions of what is compared."""
    import platform
    from importlib.metadata import version

    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    packages = ", ".join(f"{package} {version(package)}" for package in ("torch", "onnxruntime", "safetensors"))
    vnni = "with" if _has_vnni() else "without"
    return f"{name}, {os.cpu_count()} processors, {vnni} VNNI; Python {platform.python_version()}, {packages}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="which to run  [default: all]")
    parser.add_argument("--list", action="store_true", help="name the sections and stop")
    parser.add_argument("--record", action="store_true", help="write the ratios into docs/performance.json, too")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"there is no section {unknown[0]}; there are {', '.join(SECTIONS)}")
    fine = True
    for name in arguments.sections or SECTIONS:
        print(f"{name}: {SECTIONS[name].__doc__}")
        if not arguments.list:
            with tempfile.TemporaryDirectory(prefix="qfmt-bench-") as folder:
                rows = show(SECTIONS[name](Path(folder)))
            fine = fine and all(row.limit is None or row.figure <= row.limit for row in rows)
            if arguments.record:
                record(name, rows)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
