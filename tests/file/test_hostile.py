"""Damaged and malicious files cause a qfmt error, or yield a model equal to the original, in a short time."""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import qfmt
from golden.model import golden_model
from qfmt import Graph, Model
from qfmt.errors import FormatError, QfmtError
from qfmt.file import header
from qfmt.file.decode import Record
from qfmt.file.reader import Container
from support.counts import tell
from support.crafted import BUFFERS, GRAPHS, GRID, QUANTIZATIONS, SHAPES, TENSORS, crafted
from support.mutants import mutants, overwrite, sealed, small_file, survives, touch


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    return small_file(tmp_path / "original.qfb")


def test_every_truncation_is_refused(small: bytes, tmp_path: Path) -> None:
    for size in range(len(small)):
        assert not survives(small[:size], tmp_path / "m.qfb")
    assert survives(small, tmp_path / "m.qfb")


def test_appended_bytes_are_refused(small: bytes, tmp_path: Path) -> None:
    assert not survives(small + b"\0", tmp_path / "m.qfb")
    assert not survives(small + bytes(4096), tmp_path / "m.qfb")


@pytest.mark.parametrize("turns", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_every_changed_byte_is_noticed_or_does_not_matter(turns: int, small: bytes, tmp_path: Path) -> None:
    """Each byte is changed in `turns` of three ways, in the header in all 255. Only zero padding in the data segment
    may change."""
    original = qfmt.load(tmp_path / "original.qfb")
    path, data = tmp_path / "m.qfb", bytearray(small)
    changed = unnoticed = 0
    for at, byte in enumerate(small):
        some = [byte ^ (1, 0x80, 0xFF)[(at + turn) % 3] for turn in range(turns)]
        for value in range(256) if at < header.SIZE else some:
            if value != byte:
                data[at] = value
                changed += 1
                if survives(bytes(data), path):
                    unnoticed += 1
                    assert qfmt.load(path) == original
                    assert [broken.rule for broken in qfmt.check(path)] == ["F8"]
        data[at] = byte
    print(f"{changed} changes, {changed - unnoticed} noticed by reading, the others by check")
    container = Container(tmp_path / "original.qfb", verify=True)
    padding = container.header.data_size - sum(buffer["size"] for buffer in container.buffers)
    assert unnoticed == turns * padding


def change_every_byte(folder: Path, shard_size: int | None, bits: int) -> None:
    """Flip `bits` bits of every byte of a file and of its shards, one after another; `check` must find each."""
    small_file(folder / "small.qfb")
    qfmt.load(folder / "small.qfb").save(folder / "m.qfb", shard_size=shard_size)
    (folder / "small.qfb").unlink()
    files = sorted(folder.iterdir())
    total = noticed = 0
    for path in files:
        data = path.read_bytes()
        with path.open("r+b", buffering=0) as file:
            for at, byte in enumerate(data):
                for bit in range(at, at + bits):
                    os.pwrite(file.fileno(), bytes([byte ^ 1 << bit % 8]), at)
                    total += 1
                    try:
                        noticed += bool(qfmt.check(folder / "m.qfb"))
                    except FormatError:
                        noticed += 1
                os.pwrite(file.fileno(), data[at : at + 1], at)
    assert qfmt.check(folder / "m.qfb") == []
    tell(f"check: {noticed:,} of {total:,} changed bits noticed, one after another, in {len(files)} files")
    assert noticed == total == bits * sum(path.stat().st_size for path in files)
    assert len(files) == (3 if shard_size else 1)


@pytest.mark.skipif(sys.platform == "win32", reason="os.pwrite is of POSIX")
@pytest.mark.parametrize("shard_size", [pytest.param(None, marks=pytest.mark.slow), 128])
def test_check_notices_every_changed_byte(shard_size: int | None, tmp_path: Path) -> None:
    change_every_byte(tmp_path, shard_size, bits=1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="os.pwrite is of POSIX")
@pytest.mark.parametrize("shard_size", [None, 128])
def test_check_notices_every_changed_bit(shard_size: int | None, tmp_path: Path) -> None:
    change_every_byte(tmp_path, shard_size, bits=8)


@pytest.mark.parametrize("turns", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_changed_bytes_without_digests_raise_nothing_else(turns: int, small: bytes, tmp_path: Path) -> None:
    """Each byte is changed in `turns` of three ways."""
    path, data = tmp_path / "m.qfb", bytearray(small)
    meta_size = struct.unpack_from("<Q", small, 16)[0]
    refused = 0
    for at in [*range(meta_size), *range(meta_size, len(small), 64)]:
        byte = data[at]
        for turn in range(turns):
            data[at] = byte ^ (1, 0x80, 0xFF)[(at + turn) % 3]
            refused += not survives(bytes(data), path, verify=False)
        data[at] = byte
    print(f"{refused} of {turns * meta_size} changes refused by structure alone")
    assert refused > turns * meta_size // 3


@pytest.mark.parametrize("count", [1500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutants_with_a_valid_digest(count: int, small: bytes, tmp_path: Path) -> None:
    """Attacks the decoder itself; `check` reports every file that reading refuses."""
    path = tmp_path / "m.qfb"
    refused, checked = 0, 0
    for index, data in enumerate(mutants(small, count=count, seed=1)):
        survived = survives(data, path)
        refused += not survived
        if index % 10 == 0:
            checked += 1
            try:
                assert survived or qfmt.check(path)
            except QfmtError:
                assert not survived
    print(f"{count} mutants: {refused} refused, {count - refused} read completely; {checked} checked")
    assert count // 5 < refused < count


@pytest.mark.parametrize("count", [700, pytest.param(5000, marks=pytest.mark.slow)])
def test_running_a_readable_mutant_raises_only_qfmt_errors(count: int, tmp_path: Path) -> None:
    """Mutants of a quantized convolution: a graph that breaks rules stops before the first node."""
    model = golden_model()
    tensors = {name: tensor for name, tensor in model.tensors.items() if name != "größe"}
    network = Graph(("x",), ("y",), model.nodes[:3], tensors)
    path, original = tmp_path / "m.qfb", tmp_path / "original.qfb"
    Model(network).save(original)
    x = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    finished = 0
    for data in mutants(original.read_bytes(), count=count, seed=3):
        overwrite(path, data)
        with suppress(QfmtError), np.errstate(all="ignore"):
            loaded = qfmt.load(path)
            loaded.run(dict.fromkeys(loaded.graph.inputs, x))
            finished += 1
    print(f"{count} mutants: {finished} ran to the end")
    assert 0 < finished < count // 2


# Crafted files


def refusal(path: Path) -> str:
    """The rule and message with which a file is refused. Both reading and `check` must refuse it."""
    with pytest.raises(FormatError) as caught:
        touch(qfmt.load(path))
    with suppress(FormatError):
        assert qfmt.check(path)
    return str(caught.value)


def test_the_unchanged_crafted_file_is_valid(tmp_path: Path) -> None:
    path = crafted(tmp_path)
    assert qfmt.check(path) == []
    assert qfmt.load(path).tensors["t"].array.shape == (64,)


@pytest.mark.parametrize(("offset", "size"), BUFFERS)
def test_buffers_outside_the_data(offset: int, size: int, tmp_path: Path) -> None:
    for shape in ([64], [size]):
        if max(shape) < 2**63:
            path = crafted(
                tmp_path, tensor={"shape": shape}, buffers=[{"offset": offset, "size": size, "sha256": bytes(32)}]
            )
            assert "buffer 0" in refusal(path) or "too large" in refusal(path) or "bytes stored" in refusal(path)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_invalid_shapes(shape: list[int] | None, tmp_path: Path) -> None:
    assert "tensor 't'" in refusal(crafted(tmp_path, tensor={"shape": shape}))


@pytest.mark.parametrize("wrong", QUANTIZATIONS, ids=str)
def test_invalid_quantizations(wrong: Record, tmp_path: Path) -> None:
    assert qfmt.check(crafted(tmp_path, tensor={"quantization": GRID})) == []
    refusal(crafted(tmp_path, tensor={"quantization": GRID | wrong}))


@pytest.mark.parametrize("wrong", TENSORS, ids=str)
def test_invalid_tensors(wrong: Record, tmp_path: Path) -> None:
    refusal(crafted(tmp_path, tensor=wrong))


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_invalid_graphs(graph: Record, tmp_path: Path) -> None:
    refusal(crafted(tmp_path, graph=graph))


def test_a_test_vector_for_an_input_that_is_absent(tmp_path: Path) -> None:
    vector = {"inputs": [{"shape": [64], "buffer": 0}], "outputs": []}
    assert "there is no tensor -1" in refusal(crafted(tmp_path, graph={"inputs": [-1]}, vectors=[vector]))


def test_tensors_of_one_name(tmp_path: Path) -> None:
    tensor = {"name": "t", "dtype": 2, "shape": [64], "buffer": 0}
    assert "two tensors have the name 't'" in refusal(crafted(tmp_path, graph={"tensors": [tensor, tensor]}))


def test_unsorted_tensors_never_escape_as_key_errors(tmp_path: Path) -> None:
    tensors = [{"name": name, "dtype": 2, "shape": [64], "buffer": 0} for name in "gfedcba"]
    nodes = [{"operator": "vendor.a", "inputs": list(range(7)), "outputs": []}]
    path = crafted(tmp_path, graph={"tensors": tensors, "nodes": nodes})
    model = qfmt.load(path)
    touch(model)
    assert [model.tensors[name].name for name in model.nodes[0].inputs] == list("gfedcba")
    assert {broken.rule for broken in qfmt.check(path)} == {"F11", "V41"}


def test_enormous_vectors_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    data = bytearray(crafted(tmp_path).read_bytes())
    meta_size = struct.unpack_from("<Q", data, 16)[0]
    tracemalloc.start()
    refused = 0
    for at in range(header.SIZE, meta_size - 3, 4):
        for count in (0x00FFFFFF, 0x3FFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF):
            changed = bytearray(data)
            changed[at : at + 4] = struct.pack("<I", count)
            refused += not survives(sealed(changed), tmp_path / "m.qfb")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 100
    assert peak < 1 << 22  # the vectors would take 64 MB at least


def test_shared_vectors_do_not_multiply(tmp_path: Path) -> None:
    """One vector of 100,000 indices that 4,000 nodes refer to: half a megabyte that would become 3 GB."""
    shared = {"operator": "a", "inputs": [0] * 100_000, "outputs": []}
    nodes = [shared, *({"operator": "a", "inputs": [7], "outputs": []} for _ in range(4000))]
    data = bytearray(crafted(tmp_path, graph={"nodes": nodes}).read_bytes())
    meta_size = struct.unpack_from("<Q", data, 16)[0]
    big = data.find(struct.pack("<I", 100_000), header.SIZE)
    redirected = 0
    for at in range(header.SIZE, meta_size - 7, 4):
        target = at + struct.unpack_from("<I", data, at)[0]
        if data[target : target + 8] == struct.pack("<II", 1, 7):  # a reference to [7]
            data[at : at + 4] = struct.pack("<I", big - at)
            redirected += 1
    assert redirected == 4000
    (tmp_path / "m.qfb").write_bytes(sealed(data))
    tracemalloc.start()
    with pytest.raises(FormatError, match="too often"):
        touch(qfmt.load(tmp_path / "m.qfb"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(data)


def test_a_shared_quantization_is_one_object(tmp_path: Path) -> None:
    tensors = [{"name": n, "dtype": 2, "shape": [64], "buffer": 0, "quantization": GRID} for n in "ab"]
    tensors_of = qfmt.load(crafted(tmp_path, graph={"tensors": tensors})).tensors
    assert tensors_of["a"].quantization is tensors_of["b"].quantization


def test_a_file_with_a_wrong_root_offset(tmp_path: Path) -> None:
    data = crafted(tmp_path).read_bytes()
    for root in (0, 4, 64, 100, 127, 2**31, 2**32 - 4):
        assert not survives(sealed(struct.pack("<I", root) + data[4:]), tmp_path / "m.qfb")


def test_values_are_what_the_bytes_say(tmp_path: Path) -> None:
    data = bytes(range(64))
    assert (qfmt.load(crafted(tmp_path, data=data)).tensors["t"].array == np.frombuffer(data, np.int8)).all()
