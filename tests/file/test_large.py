"""Files of gigabytes: offsets of more than 32 bits, and memory that does not grow with the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qfmt
from qfmt.errors import DigestError
from support.counts import tell
from support.large import BEYOND, LAST, beyond_32_bits, network, safetensors
from support.paths import ROOT

LIMIT = 200
"""MB of memory that a conversion or check may take, however large the file is."""

COMMAND = """
    sys.argv[0] = "qfmt"
    from qfmt.__main__ import run
    run()
"""

TO_ONNX = """
    import qfmt
    from qfmt.backends.onnx import write_onnx
    write_onnx(qfmt.load(sys.argv[1]), sys.argv[2], external=1 << 20)
"""

MEASURED = """
import sys
try:{}
finally:
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    print("PEAK", peak // 1000, file=sys.stderr)
"""
"""Statements, and the most memory that was resident at once, in MB: mapped pages of files, too."""


@pytest.mark.parametrize("sharded", [False, True])
def test_offsets_beyond_32_bits(sharded: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    beyond_32_bits(path, sharded=sharded)
    if sum(each.stat().st_blocks for each in tmp_path.iterdir()) > 2000:
        pytest.skip("the file system has no holes in files")
    model = qfmt.load(path)
    assert model.tensors["last"].array.tolist() == LAST
    assert model.tensors["first"].shape == (BEYOND,)
    if sharded:
        (tmp_path / "m.qfb").replace(tmp_path / "other.qfb")
        assert qfmt.load(tmp_path / "other.qfb").tensors["last"].array.tolist() == LAST


def peak(*arguments: object, code: str = COMMAND) -> int:
    """The most memory, in MB, that a command took."""
    command = [sys.executable, "-c", MEASURED.format(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return int(done.stderr.rpartition("PEAK ")[2])


ON_LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is told by Linux")


@ON_LINUX
@pytest.mark.parametrize(
    ("tensors", "size"),
    [
        (6, 50 << 20),
        pytest.param(20, 256 << 20, marks=pytest.mark.slow),
        pytest.param(1, 5 << 30, marks=pytest.mark.slow),
    ],
)
def test_memory_does_not_grow_with_the_file(tensors: int, size: int, tmp_path: Path) -> None:
    source, whole, sharded = (tmp_path / name for name in ("source.safetensors", "whole.qfb", "sharded.qfb"))
    safetensors(source, tensors, size)
    peaks = {
        "convert": peak("convert", source, whole, "--quiet"),
        "check": peak("check", whole),
        "to shards": peak(
            "convert", whole, sharded, "--quiet", "--shard-size", "2G" if size > 1 << 30 else tensors * size // 3
        ),
        "check shards": peak("check", sharded),
        "inspect": peak("inspect", sharded),
    }
    source.unlink()
    whole.unlink()
    peaks["join"] = peak("convert", sharded, whole, "--quiet")
    tell(f"{tensors * size / 1e9:.1f} GB: at most {max(peaks.values())} MB of memory: {peaks}")
    assert {name: each for name, each in peaks.items() if each >= LIMIT} == {}
    assert whole.stat().st_size > tensors * size
    assert (len(list(tmp_path.glob("*.qfs"))) > 1) == (tensors > 1)
    model = qfmt.load(whole)
    assert [bytes(tensor.array[:2]) for tensor in model.tensors.values()] == [
        bytes([n, 0]) for n in range(1, tensors + 1)
    ]


def test_a_damaged_byte_far_behind_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    beyond_32_bits(path)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\1")
    with pytest.raises(DigestError, match="'last'"):
        _ = qfmt.load(path).tensors["last"].array


@ON_LINUX
@pytest.mark.parametrize(
    ("layers", "size"),
    [
        (4, 64 << 20),
        pytest.param(20, 256 << 20, marks=pytest.mark.slow),
        pytest.param(2, 5 << 29, marks=pytest.mark.slow),
    ],
)
def test_memory_does_not_grow_with_an_onnx_model(layers: int, size: int, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    source, target = tmp_path / "m.qfb", tmp_path / "m.onnx"
    network(source, layers, size)
    found = (
        peak("convert", source, target, "--quiet") if layers * size > 1 << 31 else peak(source, target, code=TO_ONNX)
    )
    tell(f"{layers * size / 1e9:.1f} GB to ONNX: at most {found} MB of memory")
    assert found < LIMIT
    written = {}
    for each in onnx.load(target, load_external_data=False).graph.initializer:
        if len(each.dims) == 2:
            place = {entry.key: entry.value for entry in each.external_data}
            written[each.name] = np.memmap(
                tmp_path / place["location"], np.int8, "r", int(place["offset"]), tuple(each.dims)
            )
    assert len(written) == layers
    every = slice(None) if size < 1 << 28 else slice(None, None, 4999)
    for tensor in qfmt.load(source, verify=False).graph.constants():
        name = tensor.name.removesuffix(".T")  # MatMulInteger takes the transpose
        expected = tensor.array if name == tensor.name else tensor.array.T
        assert np.array_equal(written[name][every], expected[every]), name
