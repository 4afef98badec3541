"""Limits that are checked before the work: decoded bytes, violations, windows, elements, parts of arrays."""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

import qfmt
import qfmt.arrays
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.cli.facts import describe
from qfmt.errors import BudgetError, FormatError, QfmtError, RunError, Violation
from qfmt.file import header, records
from qfmt.file.checker import MOST
from qfmt.file.reader import Stored
from qfmt.model import DTYPES, Attribute, numpy_dtype
from qfmt.ops import OPERATORS
from qfmt.ops.geometry import Window
from qfmt.passes.statistics import stored_range
from qfmt.quantization import NO_ZERO_POINT, Observed, Parameter
from support.crafted import GRID, crafted, numbers
from support.mutants import sealed
from support.paths import FLOAT_SUITE, HOSTILE


def shared_table(tmp_path: Path, count: int, inputs: int) -> Path:
    """A file with `count` nodes that all are the same table, with this many inputs."""
    first = {"operator": "vendor.a", "inputs": [0] * inputs, "outputs": [0]}
    nodes = [first, *({"operator": "vendor.b", "inputs": [], "outputs": [0]} for _ in range(count - 1))]
    data = bytearray(crafted(tmp_path, graph={"nodes": nodes}).read_bytes())
    size = struct.unpack_from("<Q", data, 16)[0]
    (at,) = (at for at in range(header.SIZE, size - 3, 4) if data[at : at + 4] == struct.pack("<I", count))
    target = at + 4 + struct.unpack_from("<I", data, at + 4)[0]
    for place in range(at + 8, at + 4 + 4 * count, 4):
        data[place : place + 4] = struct.pack("<I", target - place)
    (tmp_path / "shared.qfb").write_bytes(sealed(data))
    return tmp_path / "shared.qfb"


@pytest.mark.parametrize(("count", "inputs"), [(3000, 300), (2000, 3000)])
def test_a_table_that_is_shared_is_decoded_a_few_times(count: int, inputs: int, tmp_path: Path) -> None:
    path = shared_table(tmp_path, count, inputs)
    nodes = qfmt.load(path).nodes
    assert len(nodes) == count
    with pytest.raises(FormatError, match="too often"):
        list(nodes)
    found = qfmt.check(path)
    assert len(found) == MOST
    assert {broken.rule for broken in found} == {"F6"}


def test_a_long_string_that_is_shared_is_read_a_few_times() -> None:
    """600 nodes with an operator of 8,000 characters, in 45 kB: whoever checks them reads 5 MB."""
    with pytest.raises(FormatError, match="too often"):
        list(qfmt.load(HOSTILE / "long-names.qfb").nodes)


def test_what_is_written_is_never_refused_for_long_strings(tmp_path: Path) -> None:
    """Operators of strangers may have long names, and all nodes the same one."""
    operator = "vendor." + "a" * 8000
    nodes = [Node(operator, ("x",), (f"y{at}",), {}, "", 1) for at in range(600)]
    tensors = {name: Tensor(name, "float32", (4,)) for name in ("x", *(node.outputs[0] for node in nodes))}
    Model(Graph(("x",), tuple(tensors)[1:], nodes, tensors)).save(tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == []
    assert (tmp_path / "m.qfb").stat().st_size < 8000 * 600 / 7
    assert [node.operator for node in qfmt.load(tmp_path / "m.qfb").nodes] == [operator] * 600


@pytest.mark.parametrize(
    ("count", "attributes"),
    [(1, {"a": ("s" * 127,) * 250_000}), (2500, {f"{at:02}{'a' * 125}": "s" * 127 for at in range(30)})],
    ids=["list", "attributes"],
)
def test_what_is_written_is_never_refused_for_short_strings(
    count: int, attributes: dict[str, Attribute], tmp_path: Path
) -> None:
    """What refers to them is shorter than they are."""
    nodes = [Node("vendor.a", ("x",), (f"y{at}",), attributes, "", 1) for at in range(count)]
    tensors = {name: Tensor(name, "float32", (4,)) for name in ("x", *(node.outputs[0] for node in nodes))}
    Model(Graph(("x",), tuple(tensors)[1:], nodes, tensors)).save(tmp_path / "m.qfb")
    assert list(qfmt.load(tmp_path / "m.qfb").nodes) == nodes


def test_a_long_name_in_a_shared_quantization_is_read_a_few_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """200 tensors with one quantization, which has a name of 20 kB: whoever checks them reads 4 MB."""
    monkeypatch.setattr("qfmt.file.encode.REFERENCES", 1000)
    grid = GRID | {"scale_name": "s" * 20_000}
    tensors = [{"name": f"t{at:03}", "dtype": 2, "shape": [64], "buffer": 0, "quantization": grid} for at in range(200)]
    with pytest.raises(FormatError, match="too often"):
        qfmt.load(crafted(tmp_path, graph={"tensors": tensors})).content_id()


@pytest.mark.parametrize("characters", [1, 20_000])
def test_what_is_written_is_never_refused_for_a_shared_quantization(characters: int, tmp_path: Path) -> None:
    """A large one is written again after 8 references."""
    observed = Observed("Observer" * characters, (0.0,) * 100, (1.0,) * 100)
    grid = Quantization.of(np.arange(1, 101, dtype=np.float32), 0, -128, 127, axis=0, observed=observed)
    tensors = {f"t{at:03}": Tensor.constant(f"t{at:03}", np.zeros(100, np.int8), grid) for at in range(200)}
    Model(Graph((), (), (), tensors)).save(tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == []
    read = qfmt.load(tmp_path / "m.qfb").tensors
    assert dict(read) == tensors
    assert len({id(tensor.quantization) for tensor in read.values()}) == 200 / 8


def test_scales_with_many_dimensions(tmp_path: Path) -> None:
    """Their product would take a time that grows with the square of their number."""
    scale = numbers("float32", 0.5) | {"shape": [2**62] * 100_000}
    (broken,) = qfmt.check(crafted(tmp_path, tensor={"quantization": GRID | {"scale": scale}}))
    assert (broken.rule, broken.where, broken.what) == ("V21", "tensor 0", "scale has 100000 dimensions")


def test_threads_that_begin_with_the_same_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is nearly all of the file, and each of them hashes it."""
    count = 20
    Model(Graph((), (), (), {"t": Tensor.constant("t", np.ones(1000))})).save(tmp_path / "m.qfb")
    (tensor,) = qfmt.load(tmp_path / "m.qfb").tensors.values()
    all_there, is_intact = Barrier(count, timeout=60), Stored.is_intact

    def waiting(stored: Stored) -> bool:
        all_there.wait()
        return is_intact(stored)

    monkeypatch.setattr(Stored, "is_intact", waiting)
    with ThreadPoolExecutor(count) as threads:
        assert sum(threads.map(lambda _: int(tensor.array.sum()), range(count))) == 1000 * count


def test_nothing_is_found_by_the_hash_of_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can choose thousands of tuples of integers with one hash, which makes a set of them quadratic."""

    class Unhashable(tuple[int, ...]):
        __hash__ = None  # type: ignore[assignment]

    monkeypatch.setattr("qfmt.file.reader.shape", lambda record: Unhashable(records.shape(record)))
    path = FLOAT_SUITE[0]
    assert qfmt.check(path) == []
    assert all(isinstance(tensor.shape, Unhashable) for tensor in qfmt.load(path).tensors.values())


def test_buffers_that_overlap_are_hashed_a_few_times(tmp_path: Path) -> None:
    import hashlib

    data, count = bytes(64), 100
    buffers = [{"offset": 0, "size": 64, "sha256": hashlib.sha256(data).digest()}] * count
    tensors = [{"name": f"t{index:03}", "dtype": 2, "shape": [64], "buffer": index} for index in range(count)]
    model = qfmt.load(crafted(tmp_path, data=data, buffers=buffers, graph={"tensors": tensors}))
    with pytest.raises(FormatError, match="buffers overlap"):
        for tensor in model.tensors.values():
            assert not tensor.array.any()


def test_messages_are_truncated_and_escaped() -> None:
    violation = Violation("V1", "tensor '" + "A" * 100_000 + "\x1b[31m'", "\n" * 100_000)
    assert len(violation.where) < 600 and len(violation.what) < 600
    assert str(violation).isprintable()
    error = QfmtError("B" * 100_000 + "\u202e", where="x\ny", hint="\x07")
    assert len(str(error)) < 11_000
    assert str(error).isprintable()
    assert str(error).startswith("x\\ny: BBB") and str(error).endswith("B\\u202e; \\x07")


def test_windows_inside_the_padding() -> None:
    """Compares the closed formula with the taps of every window."""
    ranges = (range(6), range(1, 5), range(1, 8), range(6), range(4), range(1, 5), (False, True))
    count = 0
    for size, kernel, dilation, head, tail, stride, ceil_mode in itertools.product(*ranges):
        window = Window(kernel, stride, dilation, head, tail, bool(ceil_mode))
        try:
            out = window.positions(size)
        except QfmtError:
            continue
        met = np.arange(out)[:, None] * stride - head + np.arange(kernel) * dilation
        inside, padded = (met >= 0) & (met < size), (met >= -head) & (met < size + tail)
        first, taps = window.met(size)
        assert np.array_equal(taps, inside.sum(1)) and np.array_equal(taps, window.counts(size, 0))
        assert np.array_equal(first, np.where(taps > 0, np.where(inside, met, size).min(1, initial=size), 0))
        assert np.array_equal(window.counts(size, 1), padded.sum(1))
        apart = not ((met >= 0) & (met < size)).any(1).all() or max(head, tail) > dilation * (kernel - 1)
        expected = bool(head + tail) and apart
        try:
            window.check(size)
            found = False
        except QfmtError:
            found = True
        assert found == expected, (size, kernel, dilation, head, tail, stride, ceil_mode)
        count += 1
    print(f"{count} windows")


def pooled(size: int, kernel: int, pad: int, dilation: int = 1) -> Model:
    window = {"ceil_mode": 0, "dilations": (dilation,), "kernel_shape": (kernel,), "pads": (pad, pad), "strides": (1,)}
    tensors = {name: Tensor(name, "float32", (1, None, None)) for name in "xy"}
    return Model(Graph(("x",), ("y",), [Node("MaxPool", ("x",), ("y",), window, version=22)], tensors))


def test_padding_beyond_memory() -> None:
    with pytest.raises(RunError, match=r"node y \(MaxPool\): needs .* GB of memory .* more than the limit"):
        pooled(2, (1 << 29) + 1, 1 << 29).run({"x": np.zeros((1, 1000, 2), np.float32)})


def test_outputs_beyond_memory() -> None:
    shape = Tensor.constant("shape", np.array([1 << 40, 1 << 18]))
    tensors = {"shape": shape, "x": Tensor("x", "float32", (1, 1)), "y": Tensor("y", "float32", (None, None))}
    model = Model(Graph(("x",), ("y",), [Node("Expand", ("x", "shape"), ("y",), version=13)], tensors))
    with pytest.raises(RunError, match=r"node y \(Expand\): needs 1729382256.9 GB of memory"):
        model.run({"x": np.zeros((1, 1), np.float32)})


SHAPES = ((), (7,), (5, 30), (3, 4, 5, 6), (1, 200))


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int4", "uint2", "int32", "float32", "float16", "bool", "bfloat16", "float8_e4m3fn"]
)
def test_ranges_are_computed_in_parts(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares with the minimum and maximum of all values, for every granularity of scales."""
    monkeypatch.setattr(qfmt.arrays, "PART", 64)
    rng, kind, count = np.random.default_rng(0), DTYPES[dtype], 0
    for shape in SHAPES:
        low, high = (kind.minimum, kind.maximum + 1) if kind.is_integer else (-100, 100)
        values = rng.normal(size=shape) if kind.kind == "f" else rng.integers(low, high, shape)
        grids: list[Quantization | None] = [None]
        if kind.is_quantizable:
            grids.append(Quantization.per_tensor(0.3, 0, dtype))
            grids += [along(shape, axis, dtype, rng) for axis in range(len(shape))]
            grids += [in_blocks(shape, dtype, rng)] if shape else []
            grids += [in_groups(shape, axis, dtype, rng) for axis, size in enumerate(shape) if size > 2]
        for grid in grids:
            tensor = Tensor.constant("t", np.asarray(values).astype(numpy_dtype(dtype)), grid, dtype=dtype)
            stored = tensor.array.astype(float) if kind.kind == "f" else tensor.array
            real = stored if grid is None else tensor.dequantize()
            assert stored_range(tensor) == {
                "stored_min": stored.min().item(),
                "stored_max": stored.max().item(),
                "real_min": real.min().item(),
                "real_max": real.max().item(),
            }
            count += 1
    print(f"{count} tensors")


def in_groups(shape: tuple[int, ...], axis: int, dtype: str, rng: np.random.Generator) -> Quantization:
    """Blocks of 2 along an axis, to which positions belong in any order; there are more than are used."""
    limits = int(DTYPES[dtype].minimum), int(DTYPES[dtype].maximum)
    scale = Parameter.of_values(rng.uniform(0.1, 2, shape[: axis + 1]).astype(np.float32))
    index = Parameter.of_values(rng.integers(0, shape[axis] - 1, shape[axis]).astype(np.uint8))
    return Quantization(scale, NO_ZERO_POINT, *limits, (*(1 for _ in shape[:axis]), 2), group_index=index)


def along(shape: tuple[int, ...], axis: int, dtype: str, rng: np.random.Generator) -> Quantization:
    limits = int(DTYPES[dtype].minimum), int(DTYPES[dtype].maximum)
    return Quantization.of(tuple(rng.uniform(0.1, 2, shape[axis])), (0,) * shape[axis], *limits, axis)


def in_blocks(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Quantization:
    sizes = tuple(max(1, size // 2) for size in shape)
    counts = tuple(-(-size // block) for size, block in zip(shape, sizes, strict=True))
    points = rng.integers(0, 2, counts).astype(numpy_dtype(dtype)) if DTYPES[dtype].is_integer else 0
    return Quantization.of_blocks(dtype, shape, sizes, rng.normal(size=counts).astype(np.float32), points)


@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_the_exit_status_does_not_depend_on_the_reader(reader: str) -> None:
    """`check FILE | head -1` has the right exit status, though the rest of the output is not read."""
    file = HOSTILE / "B.qfb"
    script = f'"{sys.executable}" -m qfmt check "{file}" 2>/dev/null | {reader} >/dev/null; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "1\n", done.stderr


def test_json_has_no_infinities(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    file = HOSTILE / "json-infinity.qfb"
    done = subprocess.run(
        [sys.executable, "-m", "qfmt", "inspect", str(file), "--json"], capture_output=True, text=True
    )
    facts = json.loads(done.stdout, parse_constant=refuse)
    numbers = [value for node in facts["nodes"] for value in node["attributes"].values()]
    assert any(
        number in ("inf", "-inf", "nan") or "inf" in number for number in numbers if isinstance(number, str | list)
    )


def named_at_length(count: int) -> Model:
    """Nodes that read a tensor with a name of 100 kB, which a `.qfb` has once."""
    x, version = "x" * 100_000, OPERATORS["Add"].version
    nodes = [Node("Add", (x, x), (f"y{at}",), {}, "", version) for at in range(count)]
    tensors = {name: Tensor(name, "float32", (4,)) for name in (x, *(node.outputs[0] for node in nodes))}
    return Model(Graph((x,), tuple(node.outputs[0] for node in nodes), nodes, tensors), engine="onnx")


def test_a_long_name_that_many_nodes_read(tmp_path: Path) -> None:
    """Of 200 kB, ONNX and JSON made 200 MB."""
    model = named_at_length(200)
    model.save(tmp_path / "m.qfb")
    writers: list[Callable[[], object]] = [model.to_onnx, lambda: describe(model, tmp_path / "m.qfb", "qfb")]
    for write in writers:
        with pytest.raises(BudgetError, match="bytes of memory"):
            write()
    pytest.importorskip("torch")
    assert len(model.to_torch("reference").code) < 1_000_000
