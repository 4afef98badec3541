"""The C interpreter of integer-only networks, readers/c/run: every integer equals the reference's, and a malicious
file causes an error."""

from __future__ import annotations

import itertools
import platform
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from cases.integer_graphs import kinds
from cases.one_node import single
from fuzzing.altered import altered, written
from networks.integer import BROKEN, changed, extreme_of_nothing, network
from qfmt import Graph, Model, Node, QfmtError, Quantization, Tensor
from qfmt.model import DTYPES, Parameter, StoredArray, numpy_dtype
from qfmt.ops import OPERATORS
from qfmt.passes.lowering import lower_integer
from qfmt.quantization import NO_ZERO_POINT, block_counts, zero_points_of
from support.c_reader import INTERPRETER, SANITIZED, STRICT, build, compiler, expected_hash, run_disagreement
from support.conformance import outputs_of
from support.counts import tell
from support.crafted import GRID, crafted
from support.mutants import mutants, overwrite
from support.paths import DIGITS, EXAMPLES, HOSTILE, INTEGER_SUITE, SUITE


def run(*arguments: Any, program: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([program or build("qfb_run.c", *SANITIZED), *map(str, arguments)], capture_output=True)


def counted(done: subprocess.CompletedProcess[bytes]) -> tuple[int, int, int]:
    """Equal integers, all integers and files, from the output of `--vectors`."""
    lines = [line.rpartition(": ")[2].split() for line in done.stdout.decode().splitlines()]
    return sum(int(words[0]) for words in lines), sum(int(words[2]) for words in lines), len(lines)


# Equal to the reference


def test_it_is_c99_without_a_warning() -> None:
    build("qfb_run.c", "-O2", cc="gcc")


def test_the_suite_under_sanitizers() -> None:
    done = run("--vectors", *INTEGER_SUITE)
    assert (done.returncode, done.stderr) == (0, b"")
    equal, total, files = counted(done)
    assert equal == total == outputs_of(INTEGER_SUITE)
    assert files == len(INTEGER_SUITE)


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_every_operator_and_rule_on_random_integers(count: int, tmp_path: Path) -> None:
    for name, make in kinds():
        for seed in range(count):
            model, feed = make(np.random.default_rng([seed, count, len(name)]))
            model.with_vectors(feed).save(tmp_path / f"{name.replace(' ', '-')}-{seed}.qfb")
    done = run("--vectors", *sorted(tmp_path.iterdir()))
    assert (done.returncode, done.stderr) == (0, b"")
    equal, total, files = counted(done)
    assert equal == total == outputs_of(tmp_path.iterdir())
    assert files == count * len([*kinds()])
    tell(f"C interpreter: {equal:,} of {total:,} integers of {files:,} random networks equal to the reference")


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_an_extreme_of_no_elements(operator: str, tmp_path: Path) -> None:
    """The end of the range of the quantization."""
    model = extreme_of_nothing(operator).with_vectors({"x": np.zeros((0, 3), np.uint8)})
    model.save(tmp_path / "m.qfb")
    done = run("--vectors", tmp_path / "m.qfb")
    assert (done.returncode, done.stderr) == (0, b"")
    assert counted(done) == (3, 3, 1)


def test_places_of_infinite_numbers_are_not_found(tmp_path: Path) -> None:
    """Integers have the order of the real numbers that they are, unless some are infinite."""
    for scale, codes in ((2.0**110, [0, 5, 255]), (3e36, [0, 200, 255])):
        x = Tensor("x", "uint8", (1, 3), None, Quantization.of(np.float32(scale), 0, 0, 255))
        attributes = {"axis": 1, "keepdims": 0, "select_last_index": 0}
        model = single("ArgMax", "", [x], Tensor("y", "int64", (1,)), attributes)
        model = model.with_vectors({"x": np.array([codes], np.uint8)}, digests=True)
        model.save(tmp_path / "m.qfb")
        done = run("--vectors", tmp_path / "m.qfb")
        assert (done.returncode == 0) == (scale < 1e36), done.stderr
    assert b"a scale of 2^111 or more" in done.stderr


def test_an_added_integer_is_that_of_its_real_number(tmp_path: Path) -> None:
    """Which may be infinite; C computes no other than the integer itself."""
    for scale, fill, exact in ((0.1, 3, True), (1.5e-45, 255, True), (3e36, 255, False), (3e36, 20, True)):
        grid = Quantization.of(np.float32(scale), 128, 0, 255)
        x, y = (Tensor(name, "uint8", None, None, grid) for name in ("x", "y"))
        tensors = [replace(x, shape=(2,)), Tensor.constant("pads", np.array([1, 2])), None]
        tensors[2] = Tensor.constant("v", np.array(fill, np.uint8), grid)
        model = single("Pad", "", tensors, y, {}).with_vectors({"x": np.array([1, 200], np.uint8)})
        model.save(tmp_path / "m.qfb")
        done = run("--vectors", tmp_path / "m.qfb")
        assert (done.returncode == 0) == exact, (scale, fill, done.stderr)
        assert exact or b"a fill value whose real number is not exact in float32" in done.stderr


def test_a_rule_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """A newer version may define rules for operators that round nothing in this one."""
    tensors = [{"name": name, "dtype": DTYPES["int8"].code, "shape": [4], "quantization": GRID} for name in "xy"]
    node = {"operator": "Relu", "version": 14, "inputs": [0], "outputs": [1]}
    (tmp_path / "x.bin").write_bytes(bytes([1, 2, 3, 4]))
    for rule in ("", "newer"):
        graph = {"tensors": tensors, "nodes": [node | {"rule": rule or None}], "inputs": [0], "outputs": [1]}
        done = run(crafted(tmp_path, graph=graph, buffers=[], data=b""), tmp_path / "x.bin")
        assert done.returncode == (2 if rule else 0), done.stderr
    assert b"node 0 (Relu 14, rule newer): the operator states no rule that is known" in done.stderr


TRUTHS = {
    "allowzero", "antialias", "ceil_mode", "count_include_pad", "exclude_outside", "keepdims", "noop_with_empty_axes",
    "select_last_index", "transA", "transB",
}  # fmt: skip


def test_values_that_an_attribute_may_not_have(tmp_path: Path) -> None:
    """V42: truth values and modes. A mode of Resize that is not known may be one that C does not compute."""
    places = single("ArgMax", "", [Tensor("x", "uint8", (2, 3))], Tensor("y", "int64", (1, 3)), {})
    names, files = [], []
    for model in [*map(qfmt.load, INTEGER_SUITE), places]:
        for at, node in enumerate(model.nodes):
            modes = {"mode"} if node.operator != "Resize" else set()
            for name in node.attributes.keys() & (TRUTHS | modes):
                for value in ("xyz", "") if name == "mode" else (2, -1, 2**40):
                    wrong = replace(node, attributes={**node.attributes, name: value})
                    graph = replace(model.graph, nodes=(*model.nodes[:at], wrong, *model.nodes[at + 1 :]))
                    names.append(name)
                    files.append(written(replace(model, graph=graph, vectors=()), tmp_path / "m.qfb"))
    assert set(names) == TRUTHS | {"mode"}
    assert {rule for _, rule, _ in hashes(files)} == {"V42"}
    tell(f"C interpreter: {len(files)} of {len(files)} networks with such a value refused")


def test_a_pool_of_no_elements(tmp_path: Path) -> None:
    grid = Quantization.of([0.5], [2], 10, 90)
    x = Tensor("x", "uint8", (2, 3, 0), quantization=grid)
    model = single("GlobalMaxPool", "", [x], Tensor("y", "uint8", (2, 3, 1), quantization=grid), {})
    model = model.with_vectors({"x": np.zeros((2, 3, 0), np.uint8)})
    assert model.vectors[0].outputs["y"].array.tolist() == [[[10]] * 3] * 2
    model.save(tmp_path / "m.qfb")
    done = run("--vectors", tmp_path / "m.qfb")
    assert (done.returncode, done.stderr) == (0, b"")
    assert counted(done) == (6, 6, 1)


@pytest.mark.parametrize("size", range(1, 5))
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_a_window_beyond_the_end_of_the_input(operator: str, size: int, tmp_path: Path) -> None:
    """With ceil_mode, one may be larger than the whole input."""
    grid = Quantization.of([0.5], [2], 0, 255)
    found, random = [], np.random.default_rng(size)
    for number, (kernel, stride, dilation, head) in enumerate(
        itertools.product((2, 3, 5), (1, 2, 3, 7), (1, 2), (0, 1))
    ):
        sizes = {"kernel_shape": (kernel,), "strides": (stride,), "dilations": (dilation,), "pads": (head, 0)}
        x = Tensor("x", "uint8", (1, 1, size), quantization=grid)
        y, rule = (
            (Tensor("y", "int32", None), "exact")
            if operator == "AveragePool"
            else (replace(x, name="y", shape=None), "")
        )
        model = single(operator, rule, [x], y, {**sizes, "ceil_mode": 1})
        try:
            model = model.with_vectors({"x": random.integers(0, 256, (1, 1, size), np.uint8)})
        except QfmtError:
            continue
        model.save(tmp_path / f"{number}.qfb")
        found.append(tmp_path / f"{number}.qfb")
    done = run("--vectors", *found)
    assert (done.returncode, done.stderr) == (0, b"")
    equal, total, files = counted(done)
    assert equal == total > 0 and files == len(found) > 3


FORMS = sorted((SUITE / "float").glob("form-*.qfb"))


@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_constants_of_every_form(count: int, tmp_path: Path) -> None:
    """Constants of the suite, and random ones: element types, blocks, levels, scales up to the limits of float32."""
    rng = np.random.default_rng(count)
    for at in range(count):
        constant_of_random_form(rng).with_vectors({}).save(tmp_path / f"{at}.qfb")
    files = [*FORMS, *tmp_path.iterdir()]
    done = run("--vectors", *files)
    assert (done.returncode, done.stderr) == (0, b"")
    equal, total, found = counted(done)
    assert (equal, found) == (total, len(files))
    tell(f"C interpreter: {equal:,} of {total:,} elements of {found} quantized constants equal to the reference")


def constant_of_random_form(rng: np.random.Generator) -> Model:
    """A network that dequantizes a constant."""
    dtype = str(rng.choice([name for name, each in DTYPES.items() if each.is_quantizable]))
    shape = tuple(int(size) for size in rng.integers(4, 9, rng.integers(1, 4)))
    codes = np.frombuffer(rng.bytes(8 * prod(shape)), np.int64).reshape(shape)
    q = random_form(dtype, shape, rng, 1)
    if not DTYPES[dtype].is_integer:
        values = (codes % 256 if DTYPES[dtype].bits == 8 else codes % 16).astype(np.uint8).view(numpy_dtype(dtype))
    else:
        low, high = DTYPES[dtype].minimum, DTYPES[dtype].maximum
        values = (codes % (high - low + 1) + low).astype(numpy_dtype(dtype))
    constant = Tensor.constant("x", values, q, dtype=dtype)
    y = Tensor("y", "float32", shape)
    return Model(Graph((), ("y",), (Node("DequantizeLinear", ("x",), ("y",), {}, "", 23),), {"x": constant, "y": y}))


def random_form(dtype: str, shape: tuple[int, ...], rng: np.random.Generator, level: int) -> Quantization:
    """A quantization of an array with this type and shape, with a valid form and extreme numbers."""
    kind = DTYPES[dtype]
    block = tuple(int(rng.choice([0, 1, max(0, size // 2)])) for size in shape[: rng.integers(0, len(shape) + 1)])
    block = block[: max((axis + 1 for axis, each in enumerate(block) if each), default=0)]
    counts = block_counts(shape, block)
    large = [axis for axis, each in enumerate(block) if each > 1]
    groups = None
    if level == 1 and len(large) == 1 and rng.random() < 0.5:
        groups = Parameter.of_values(rng.integers(0, counts[large[0]], shape[large[0]]).astype(np.uint16))
    scale_dtype = str(rng.choice(["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e8m0fnu"]))
    scale, offset, table = random_reals(scale_dtype, counts, rng), None, None
    if rng.random() < 0.5:
        offset = random_reals("float64", counts if rng.random() < 0.5 else (), rng)
    if level == 1 and rng.random() < 0.4:
        scale = random_codes(counts, rng)
    if level == 1 and offset is not None and rng.random() < 0.4:
        offset = random_codes(offset.shape, rng)
    zero_point = NO_ZERO_POINT
    if kind.is_integer and rng.random() < 0.3 and scale.quantization is None:
        zero_point = replace(random_reals(scale.dtype, (), rng), shape=())
    elif kind.is_integer:
        points = rng.integers(max(kind.minimum, -(2**31)), min(kind.maximum, 2**31 - 1), counts, endpoint=True)
        zero_point = zero_points_of(points, scale)
    if kind.is_integer and kind.bits <= 8 and rng.random() < 0.3:
        table = random_reals("float16", (1 << kind.bits,), rng)
    return Quantization(scale, zero_point, kind.minimum, kind.maximum, block, offset, table, groups)


def random_codes(shape: tuple[int, ...], rng: np.random.Generator) -> Parameter:
    """Quantized scales or offsets."""
    codes = random_reals("float8_e4m3fn", shape, rng)
    if rng.random() < 0.6:
        codes = Parameter.of_values(rng.integers(-128, 128, shape).astype(np.int8))
    return replace(codes, quantization=random_form(codes.dtype, shape, rng, 2))


def random_reals(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Parameter:
    """Positive numbers of every magnitude that both float32 and the type represent."""
    with np.errstate(over="ignore"):
        numbers = np.exp2(rng.uniform(-148, 127, shape) * rng.choice([1, 0.1, 0.03])).astype(numpy_dtype(dtype))
        finite = np.isfinite(numbers.astype(np.float32)) & (numbers.astype(np.float32) > 0)
    return Parameter.of_values(np.where(finite, numbers, numpy_dtype(dtype).type(1)))


def compare(model: Model, feeds: Iterable[Mapping[str, Any]], folder: Path) -> tuple[int, int]:
    """The numbers of equal bytes and of all bytes of a network's outputs, in C at -O2 and in the reference."""
    program, path, equal, total = build("qfb_run.c"), folder / "network.qfb", 0, 0
    model.save(path)
    for feed in feeds:
        inputs = []
        for name in model.graph.inputs:
            inputs.append(folder / f"{len(inputs)}.bin")
            inputs[-1].write_bytes(feed[name].tobytes())
        shapes = [("--shape", f"{name}={','.join(map(str, feed[name].shape))}") for name in model.graph.inputs]
        done = run(path, *inputs, "--raw", *(part for shape in shapes for part in shape), program=program)
        assert (done.returncode, done.stderr) == (0, b"")
        wanted = model.run(feed)
        stated = b"".join(wanted[name].tobytes() for name in model.graph.outputs)
        assert len(done.stdout) == len(stated)
        equal += int((np.frombuffer(done.stdout, np.uint8) == np.frombuffer(stated, np.uint8)).sum())
        total += len(stated)
    return equal, total


def random_feed(model: Model, rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    feed = {}
    for name in model.graph.inputs:
        tensor = model.tensors[name]
        assert tensor.quantization is not None
        low, high = tensor.quantization.quant_min, tensor.quantization.quant_max
        feed[name] = rng.integers(low, high + 1, shapes[name]).astype(numpy_dtype(tensor.dtype))
    return feed


def test_integer_only_digits(tmp_path: Path) -> None:
    folder = EXAMPLES / "digits"
    model = lower_integer(qfmt.convert(folder / "digits_int8.pt", input_shapes={"x": ("N", 1, 8, 8)}), exact=True)
    (name,) = model.graph.inputs
    feeds = [random_feed(model, np.random.default_rng(seed), {name: (50, 1, 8, 8)}) for seed in range(2)]
    equal, total = compare(model, feeds, tmp_path)
    assert equal == total == 2 * 50 * 10
    tell(f"C interpreter, digits: {equal:,} of {total:,} outputs equal to the reference")


@pytest.mark.slow
def test_integer_only_mobilenet(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "torchscript" / "ios_mobilenet_quantized.pt"
    float_rules = qfmt.convert(source, input_shapes={"X": (1, 3, 224, 224)})
    model = lower_integer(float_rules, exact=True)
    (name,) = model.graph.inputs
    rng = np.random.default_rng(8)
    feeds = [random_feed(model, rng, {name: (1, 3, 224, 224)}) for _ in range(4)]
    blocks = [np.kron(rng.integers(0, 256, (1, 3, 14, 14)), np.ones((16, 16))).astype(np.uint8) for _ in range(4)]
    equal, total = compare(model, [*feeds, *({name: block} for block in blocks)], tmp_path)
    assert equal == total == 8000
    tell(f"C interpreter, MobileNetV2: {equal:,} of {total:,} outputs equal to the reference")


LOWERED = (
    "mobilenet_v2", "resnet18", "mobilenet_v3", "shufflenet_v2", "conv1d", "conv3d", "convolutions", "activations",
    "two_inputs", "dictionary",
)  # fmt: skip
"""Networks of tests/networks/pytorch.py that can be lowered."""


@pytest.mark.slow
def test_integer_only_networks_of_torch(tmp_path: Path) -> None:
    from networks import pytorch

    for name in LOWERED:
        for mode in ("eager", "fx"):
            module, examples = pytorch.quantize(name, mode)
            archive = pytorch.save_as(module, examples, "trace", tmp_path / "m.pt")
            ends = qfmt.convert(archive).graph.inputs
            shapes = {end: tuple(each.shape) for end, each in zip(ends, examples, strict=True)}
            model = lower_integer(qfmt.convert(archive, input_shapes=shapes), exact=True)
            own = dict(zip(model.graph.inputs, shapes.values(), strict=True))
            feeds = [random_feed(model, np.random.default_rng(seed), own) for seed in range(2)]
            model.with_vectors(*feeds).save(tmp_path / f"{name}-{mode}.qfb")
    done = run("--vectors", *sorted(tmp_path.glob("*.qfb")), program=build("qfb_run.c"))
    assert (done.returncode, done.stderr) == (0, b"")
    equal, total, files = counted(done)
    assert (equal, files) == (total, 2 * len(LOWERED))
    tell(f"C interpreter: {equal:,} of {total:,} outputs of {files} networks of torch equal to the reference")


# Machines


HEADER = """#include <stddef.h>
void *memcpy(void *, const void *, size_t), *memmove(void *, const void *, size_t), *memset(void *, int, size_t);
void *memchr(const void *, int, size_t);
int memcmp(const void *, const void *, size_t), strncmp(const char *, const char *, size_t);
size_t strlen(const char *);
"""
"""The only functions of the C library that are needed."""


@pytest.mark.parametrize("target", ["thumbv6m-none-eabi", "thumbv7m-none-eabi", "riscv32-none-elf", "powerpc-none-elf"])
def test_it_compiles_for_machines_without_a_system(target: str, tmp_path: Path) -> None:
    """32-bit machines, one big-endian: only seven functions of the C library are needed, on bytes."""
    (tmp_path / "string.h").write_text(HEADER, "utf-8")
    options = [f"--target={target}", "-ffreestanding", f"-I{tmp_path}", "-fsyntax-only"]
    done = subprocess.run([compiler("clang"), *STRICT, *options, *INTERPRETER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="-mgeneral-regs-only is an option of x86")
def test_it_computes_without_registers_for_floats(tmp_path: Path) -> None:
    for source in INTERPRETER:
        command = [compiler("gcc"), "-std=c99", "-O0", "-mgeneral-regs-only", "-c", "-o", tmp_path / "o", source]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


# Hostile files


def hashes(files: Iterable[bytes]) -> list[tuple[int, str, str]]:
    """The output of `test/runs.c` for each file: code, rule, hash of the outputs. A report of a sanitizer is a
    failure."""
    stream = b"".join(struct.pack("<I", len(data)) + data for data in files)
    done = subprocess.run([build("test/runs.c", *SANITIZED)], input=stream, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    rows = [line.split(" ") for line in done.stdout.decode().splitlines()]
    return [(int(code), rule, digest) for code, rule, digest in rows]


def compare_runs(files: list[bytes], path: Path, what: str) -> Counter[str]:
    """Compare runs. If both compute, the integers must be equal. C must compute what the reference computes, unless
    it reports that it needs too much, or the file is broken in a part that a run does not read."""
    found: Counter[str] = Counter()
    for data, (code, rule, digest) in zip(files, hashes(files), strict=True):
        overwrite(path, data)
        wanted = expected_hash(path)
        assert not run_disagreement(wanted, code, digest), (code, rule)
        found[_outcome(wanted, code)] += 1
    tell(f"C interpreter, {len(files):,} {what}: {', '.join(f'{n:,} {each}' for each, n in sorted(found.items()))}")
    return found


def _outcome(wanted: str | None, code: int) -> str:
    if wanted is None:
        return "too large for the reference"
    if code == 0:
        return "equal" if wanted else "computed in C, refused by the reference"
    return "computed by the reference, refused in C" if wanted else "refused by both"


@pytest.mark.parametrize("count", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_mutants_of_the_suite(count: int, tmp_path: Path) -> None:
    files = [data for path in INTEGER_SUITE for data in mutants(path.read_bytes(), count=count, seed=1)]
    assert compare_runs(files, tmp_path / "m.qfb", "mutants of bytes")["equal"]


def test_mutants_of_quantized_constants(tmp_path: Path) -> None:
    models = enumerate(map(qfmt.load, FORMS))
    files = [data for path in FORMS for data in mutants(path.read_bytes(), count=20, seed=1)]
    files += [data for index, model in models for data in altered(model, 20, index, tmp_path / "a.qfb")]
    assert compare_runs(files, tmp_path / "m.qfb", "mutants of quantized constants")["equal"]


@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_networks_with_something_altered(count: int, tmp_path: Path) -> None:
    """Well-formed files of networks with a changed number, size, edge or type."""
    files = _altered(count, 1, tmp_path / "a.qfb")
    assert compare_runs(files, tmp_path / "m.qfb", "altered networks")["equal"]


def _altered(count: int, seed: int, path: Path) -> list[bytes]:
    """`count` altered versions of each file of the suite."""
    models = enumerate(map(qfmt.load, INTEGER_SUITE))
    return [data for index, model in models for data in altered(model, count, 1000 * seed + index, path)]


def test_broken_networks_are_refused(tmp_path: Path) -> None:
    """All are refused, except those with a broken proof, which a run does not need, or open sizes, which it knows."""
    needed = [(rule, model) for rule, model in BROKEN if rule not in ("V62", "V68")]
    found = hashes(written(model, tmp_path / "m.qfb") for _, model in needed)
    assert [rule for (rule, _), (code, *_) in zip(needed, found, strict=True) if code == 0] == []
    assert hashes([written(network(), tmp_path / "m.qfb")])[0][0] == 0


def linear(count: int, weight: int = 127, rows: int = 1) -> Model:
    """x · w, with one weight for all."""
    tensors = [
        Tensor("x", "uint8", ("N", count), None, Quantization.of((1.0,), (0,), 0, 255)),
        Tensor.constant("w", np.full((rows, count), weight, np.int8)),
        Tensor("y", "int32", ("N", rows)),
    ]
    nodes = (Node("qfmt.Linear", ("x", "w"), ("y",), {}, "", 1, "folded"),)
    return Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}))


def test_a_sum_that_leaves_int32_is_an_error(tmp_path: Path) -> None:
    """The largest sum in int32 is computed; with one more product it overflows."""
    fitting = (2**31 - 1) // (255 * 127)
    (tmp_path / "x.bin").write_bytes(b"\xff" * fitting)
    linear(fitting).save(tmp_path / "m.qfb")
    assert run(tmp_path / "m.qfb", tmp_path / "x.bin").stdout == b"%d\n" % (fitting * 255 * 127)
    (tmp_path / "x.bin").write_bytes(b"\xff" * (fitting + 1))
    linear(fitting + 1).save(tmp_path / "m.qfb")
    done = run(tmp_path / "m.qfb", tmp_path / "x.bin")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"node 0 (qfmt.Linear 1, rule folded): a sum exceeds int32" in done.stderr


def test_an_input_of_few_bits_keeps_to_its_type(tmp_path: Path) -> None:
    """The input has one byte per integer, which may have any value, and is the index of a table."""
    values = Tensor.constant("values", np.arange(16)[::-1].astype(np.uint8))
    ends = [Tensor("x", "int4", (3,)), Tensor("y", "uint8", (3,))]
    nodes = (Node("qfmt.Table", ("x", "values"), ("y",), {"axis": -1}),)
    Model(Graph(("x",), ("y",), nodes, {each.name: each for each in (*ends, values)})).save(tmp_path / "m.qfb")
    (tmp_path / "x.bin").write_bytes(bytes([0xF8, 0, 7]))
    assert run(tmp_path / "m.qfb", tmp_path / "x.bin").stdout.split() == [b"15", b"7", b"0"]
    (tmp_path / "x.bin").write_bytes(bytes([0xF8, 0, 8]))
    assert b"out of its range" in run(tmp_path / "m.qfb", tmp_path / "x.bin").stderr


def test_work_and_memory_are_limited(tmp_path: Path) -> None:
    linear(1000, rows=1000).save(tmp_path / "m.qfb")
    (tmp_path / "x.bin").write_bytes(bytes(1000))
    assert run(tmp_path / "m.qfb", tmp_path / "x.bin", "--work", 1_100_000).returncode == 2
    assert run(tmp_path / "m.qfb", tmp_path / "x.bin", "--memory", 5000).returncode == 2
    assert run(tmp_path / "m.qfb", tmp_path / "x.bin").returncode == 0
    for text in ("-1", "1G", "1e6", "", " 1", str(1 << 64)):
        done = run(tmp_path / "m.qfb", tmp_path / "x.bin", "--memory", text)
        assert (done.returncode, done.stderr) == (2, f"{text}: is not a whole number from 0 to 2^64 - 1\n".encode())
    done = run("--list", tmp_path / "m.qfb", "--shape", "x=2000000000,1000")
    assert b"more steps than allowed" in done.stderr


# The program


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [("m.qfb", "x.bin", "--shape", "x=3,4"), ("--list", "m.qfb"), ("--vectors", "m.qfb")]
)
def test_what_cannot_be_printed_is_an_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    linear(4).with_vectors({"x": np.zeros((3, 4), np.uint8)}).save(tmp_path / "m.qfb")
    (tmp_path / "x.bin").write_bytes(bytes(12))
    command = [build("qfb_run.c", *SANITIZED), *arguments]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, b"stdout: cannot be written\n")


def test_names_do_not_turn_a_line(tmp_path: Path) -> None:
    """Characters that change the direction of what follows, and a line separator."""
    name = "a\u202e\u2066\u2028\u200fb\u2030"
    grid = Quantization.of([0.5], [2], 10, 90)
    x = Tensor(name, "uint8", (2, 3, 4), quantization=grid)
    single("GlobalMaxPool", "", [x], Tensor("y", "uint8", (2, 3, 1), quantization=grid), {}).save(tmp_path / "m.qfb")
    done = run("--list", tmp_path / "m.qfb")
    assert "a\\u202e\\u2066\\u2028\\u200fb\u2030".encode() in done.stdout


def test_names_are_listed_without_control_characters() -> None:
    done = run("--list", HOSTILE / "c-escape.qfb")
    assert done.returncode == 0
    assert rb"input \x1b]0;pwned\x07\x1b[31mRED\x0a#define x 1" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        b"input", b"output", b"nodes", b"vectors", b"arena", b"work"
    ]  # fmt: skip
    assert all(byte >= 0x20 or byte == 0x0A for byte in done.stdout)


def test_shapes_come_from_the_command_line(tmp_path: Path) -> None:
    linear(4).save(tmp_path / "m.qfb")
    (tmp_path / "x.bin").write_bytes(bytes(range(12)))
    done = run(tmp_path / "m.qfb", tmp_path / "x.bin", "--shape", "x=3,4")
    assert done.stdout.split() == [b"%d" % (127 * sum(range(at, at + 4))) for at in (0, 4, 8)]
    raw = run(tmp_path / "m.qfb", tmp_path / "x.bin", "--shape", "x=3,4", "--raw").stdout
    assert np.frombuffer(raw, "<i4").tolist() == [int(line) for line in done.stdout.split()]
    listed = run("--list", tmp_path / "m.qfb", "--shape", "x=3,4").stdout.decode()
    assert "input x uint8 [3,4] scale 1 zero point 0 range 0..255 12 bytes" in listed
    assert "output y int32 [3,1] 12 bytes" in listed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("m.qfb", "x.bin", "--shape", "x=3,5"), "tensor 1 (x): does not have the given size"),
        (("m.qfb", "x.bin", "--shape", "x=3"), "does not have one size for each dimension"),
        (("m.qfb", "--shape", "x=3", "4"), "does not have one size for each dimension"),
        (("m.qfb", "x.bin", "--shape", "z=3,4"), "is not NAME=SIZE"),
        (("m.qfb", "x.bin"), "does not have the size of the input"),
        (("m.qfb",), "takes a different number of inputs"),
        (("m.qfb", "absent.bin"), "No such file"),
        (("absent.qfb", "x.bin"), "No such file"),
        (("x.bin", "x.bin"), "is not a .qfb file (rule F1)"),
        (("--vectors", "m.qfb"), "has no test vectors"),
        (("--vectors", "float.qfb"), "a test vector has real numbers"),
        (("float.qfb", "x.bin"), "node 0 (QuantizeLinear 23, rule divide): the operator"),
        (("range.qfb", "x.bin"), "tensor 0 (x): an integer of the input is out of its range"),
        ((), "usage"),
        (("--unknown", "m.qfb"), "usage"),
    ],
)
def test_unsupported_networks_are_reported(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    bytes_, grid = Quantization.of((1.0,), (0,), 0, 255), Quantization.of((1.0,), (0,), 0, 10)
    narrow = [Tensor("x", "uint8", (12,), None, grid), Tensor("y", "uint8", (12,), None, grid)]
    wide = [Tensor("x", "float32", (12,)), Tensor("y", "uint8", (12,), None, bytes_)]
    linear(4).save(tmp_path / "m.qfb")
    one_node("Identity", narrow).save(tmp_path / "range.qfb")
    feed = {"x": np.zeros(12, np.float32)}
    one_node("QuantizeLinear", wide, "divide").with_vectors(feed).save(tmp_path / "float.qfb")
    (tmp_path / "x.bin").write_bytes(bytes(range(12)))
    done = run(*(tmp_path / each if each.endswith((".qfb", ".bin")) else each for each in arguments))
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()


def one_node(operator: str, tensors: list[Tensor], rule: str = "") -> Model:
    """y, computed from x."""
    nodes = (Node(operator, ("x",), ("y",), {}, "", OPERATORS[operator].version, rule),)
    return Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}))


def test_vectors_that_differ_are_counted(tmp_path: Path) -> None:
    model = changed("total", weights=(5, -2)).with_vectors({"x": np.full((1, 2, 5, 5), 9, np.uint8)})
    other = changed("total", weights=(5, 60)).replace(vectors=model.vectors)
    model.save(tmp_path / "a.qfb")
    other.save(tmp_path / "b.qfb")
    done = run("--vectors", tmp_path / "a.qfb", tmp_path / "b.qfb")
    assert done.returncode == 1
    first, second = done.stdout.decode().splitlines()
    assert "150 of 150 integers of 1 test vectors are equal" in first
    assert "150 of 150" not in second


def test_an_output_of_another_shape_differs_also_if_it_has_no_elements(tmp_path: Path) -> None:
    model = qfmt.convert(DIGITS).to_integers(input_shapes={"x": (1, 1, 8, 8)})
    (name,) = model.graph.outputs
    unsized = replace(model.tensors[name], shape=(None, 10))
    model = model.replace(graph=replace(model.graph, tensors={**model.graph.tensors, name: unsized}))
    right = model.with_vectors({model.graph.inputs[0]: np.full((1, 1, 8, 8), 99, np.uint8)})
    nothing = StoredArray.of(right.vectors[0].outputs[name].array[:0], unsized.dtype)
    right.replace(vectors=(replace(right.vectors[0], outputs={name: nothing}),)).save(tmp_path / "m.qfb")
    done = run("--vectors", tmp_path / "m.qfb")
    assert done.returncode == 1
    assert b" 0 of 1 integers of 1 test vectors are equal" in done.stdout


def test_digests_name_the_first_node_that_differs(tmp_path: Path) -> None:
    """The integer-only digits with another weight in the third layer: torn between its inputs and its outputs."""
    model = qfmt.convert(DIGITS).to_integers(input_shapes={"x": (1, 1, 8, 8)})
    right = model.with_vectors({model.graph.inputs[0]: np.full((1, 1, 8, 8), 99, np.uint8)}, digests=True)
    name = next(name for name in model.tensors if name.startswith("pointwise") and name.endswith("weight"))
    weight = model.tensors[name].array.copy()
    weight[:, :, 0, 0] = 1
    wrong = right.replace_tensor(name, weight).replace(vectors=right.vectors)
    right.save(tmp_path / "a.qfb")
    wrong.save(tmp_path / "b.qfb")
    done = run("--vectors", tmp_path / "a.qfb", tmp_path / "b.qfb")
    node = next(index for index, node in enumerate(model.nodes) if name in node.inputs)
    told = done.stdout.decode().splitlines()
    assert done.returncode == 1 and len(told) == 3
    assert f"test vector 0: the first node that differs is {node}, output " in told[1]
    assert model.nodes[node].outputs[0] in told[1]
