"""The container: files are read back byte for byte, lazily, and are never written partially."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import qfmt
from golden.model import blocks_model, golden_model
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.errors import (
    DestinationError,
    DigestError,
    FormatError,
    MissingFileError,
    QfmtError,
    ValidityError,
    VersionError,
)
from qfmt.file import header
from qfmt.file.encode import encode
from qfmt.file.reader import Container
from qfmt.model import ArrayData, Data, Proof
from support.command_line import invoke
from support.examples import examples
from support.paths import DIGITS, GOLDEN, TESTS
from support.strategies import models

PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")

per_example = examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(model: Model, folder: Path, name: str = "m.qfb") -> bytes:
    model.save(folder / name)
    return (folder / name).read_bytes()


# Round trips


@per_example
@given(models())
def test_round_trips_keep_the_bytes(tmp_path: Path, model: Model) -> None:
    first = written(model, tmp_path)
    loaded = qfmt.load(tmp_path / "m.qfb")
    assert loaded == model
    assert loaded.content_id() == model.content_id()
    assert qfmt.check(tmp_path / "m.qfb") == []
    assert written(loaded, tmp_path, "again.qfb") == first


@per_example
@given(models(), st.randoms(use_true_random=False))
def test_the_order_of_maps_does_not_matter(tmp_path: Path, model: Model, random: object) -> None:
    graph = model.graph
    shuffled = Model(
        Graph(
            graph.inputs,
            graph.outputs,
            [
                Node(
                    node.operator,
                    node.inputs,
                    node.outputs,
                    _shuffled(node.attributes, random),
                    node.name,
                    node.version,
                    node.rule,
                    node.scope,
                    node.source_operator,
                )
                for node in graph.nodes
            ],
            _shuffled(graph.tensors, random),
            graph.name,
        ),
        model.producer,
        model.engine,
        _shuffled(model.source, random),
        _shuffled(model.metadata, random),
        model.vectors,
    )
    assert written(shuffled, tmp_path) == written(model, tmp_path)


def _shuffled(mapping, random):
    keys = list(mapping)
    random.shuffle(keys)
    return {key: mapping[key] for key in keys}


GOLDEN_FILES = {"1.0.qfb": golden_model, "1.0-blocks.qfb": blocks_model}


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_the_golden_files_are_readable(name: str, tmp_path: Path) -> None:
    path = GOLDEN / name
    loaded = qfmt.load(path)
    assert loaded == GOLDEN_FILES[name]()
    assert qfmt.check(path) == []
    assert written(loaded, tmp_path) == path.read_bytes()


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_the_golden_models_yield_the_golden_bytes(name: str, tmp_path: Path) -> None:
    assert written(GOLDEN_FILES[name](), tmp_path) == (GOLDEN / name).read_bytes()


def test_threads_share_a_model(tmp_path: Path) -> None:
    """Each may decode the same tables at the same time."""
    grids = [Quantization.per_tensor(0.5 + index, index % 100, "int8") for index in range(2000)]
    tensors = {
        f"t{at}": Tensor.constant(f"t{at}", np.full(1, at % 128, np.int8), grid) for at, grid in enumerate(grids)
    }
    Model(Graph((), (), (), tensors)).save(tmp_path / "m.qfb")
    expected = (tmp_path / "m.qfb").read_bytes()

    def again(model: Model, number: int) -> bool:
        model.save(tmp_path / f"{number}.qfb")
        return (tmp_path / f"{number}.qfb").read_bytes() == expected

    with ThreadPoolExecutor(4) as threads:
        for _ in range(2):
            with qfmt.load(tmp_path / "m.qfb") as model:
                assert all(threads.map(partial(again, model), range(4)))


@pytest.mark.parametrize("python", PYTHONS)
def test_other_pythons_write_the_same_bytes(python: str, tmp_path: Path) -> None:
    if shutil.which(python) is None:
        pytest.skip(f"{python} is not on the path")
    paths = os.pathsep.join([str(Path(qfmt.__file__).parents[1]), str(TESTS)])
    environment = os.environ | {"PYTHONPATH": paths}
    if subprocess.run([python, "-c", "import numpy, ml_dtypes"], capture_output=True).returncode:
        pytest.skip(f"{python} has no numpy and ml_dtypes")
    subprocess.run([python, str(GOLDEN / "model.py"), str(tmp_path)], env=environment, check=True)
    assert {
        name: (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes() for name in GOLDEN_FILES
    } == dict.fromkeys(GOLDEN_FILES, True)


def test_signs_of_zero_and_infinities_survive(tmp_path: Path) -> None:
    attributes = {"a": -0.0, "b": 0.0, "c": float("inf"), "d": (-0.0, 1.0), "e": -(2**63), "f": ()}
    node = Node("vendor.X", (), ("y",), attributes)
    written(Model(Graph((), (), [node], {"y": Tensor("y", "float32", None)})), tmp_path)
    assert repr(qfmt.load(tmp_path / "m.qfb").nodes[0].attributes) == repr(attributes)


def test_equal_arrays_are_stored_once(tmp_path: Path) -> None:
    array = np.arange(1 << 16, dtype=np.int32)
    one = written(_constants(a=array), tmp_path)
    two = written(_constants(a=array, b=array.copy(), c=array.view(np.uint32)), tmp_path)
    assert len(two) == len(one)
    loaded = qfmt.load(tmp_path / "m.qfb")
    assert loaded.tensors["c"].array.dtype == np.uint32
    assert (loaded.tensors["b"].array == array).all()


@pytest.mark.skipif(sys.byteorder == "big", reason="numbers are little-endian in a file")
def test_arrays_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    written(_constants(a=np.arange(5.0), b=np.arange(7, dtype=np.int8)), tmp_path)
    tensors = qfmt.load(tmp_path / "m.qfb").tensors
    for name in ("a", "b"):
        first, second = tensors[name].array, tensors[name].array
        assert first.ctypes.data == second.ctypes.data
        assert first.ctypes.data % 64 == 0
        assert not first.flags.writeable


def _constants(**arrays: np.ndarray) -> Model:
    return Model(Graph((), (), (), {name: Tensor.constant(name, array) for name, array in arrays.items()}))


# Laziness


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not list mappings")
def test_mappings_are_private(tmp_path: Path) -> None:
    """Some file systems, as those of FUSE without a cache, share none."""
    source, path = tmp_path / "m.pt", tmp_path / "m.qfb"
    shutil.copy(DIGITS, source)
    qfmt.convert(source).save(path, shard_size=4000)
    model = qfmt.load(path)
    arrays = [tensor.array for tensor in model.graph.constants()]
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert len({line[-1] for line in lines}) > 2 and {line[1] for line in lines} == {"r--p"} and arrays


def test_opening_and_listing_imports_neither_numpy_nor_flatbuffers() -> None:
    script = (
        "import sys, qfmt\n"
        "model = qfmt.load(sys.argv[1])\n"
        "[tensor.quantization for tensor in model.tensors.values()], list(model.nodes)\n"
        "assert not {'numpy', 'flatbuffers'} & set(sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(qfmt.__file__).parents[1])}
    for name in GOLDEN_FILES:
        subprocess.run([sys.executable, "-c", script, str(GOLDEN / name)], env=environment, check=True)


def test_opening_decodes_no_tensor_and_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(_constants(**{f"t{index}": np.array(index) for index in range(100)}), tmp_path)
    decoded = []
    real = Container.decode
    monkeypatch.setattr(Container, "decode", lambda *given: decoded.append(given) or real(*given))
    model = qfmt.load(tmp_path / "m.qfb")
    assert list(model.tensors) == sorted(f"t{index}" for index in range(100))
    assert not decoded
    assert model.tensors["t42"].array == 42
    assert model.tensors["t42"] is model.tensors["t42"]
    assert len(decoded) == 1


def test_scales_of_blocks_are_read_when_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = np.linspace(0.5, 1, 1 << 12, dtype=np.float16).reshape(64, 64)
    grid = Quantization.of_blocks("int8", (64, 2048), (1, 32), scale)
    weight = Tensor.constant("w", np.full((64, 2048), 3, np.int8), grid)
    data = bytearray(written(Model(Graph((), (), (), {"w": weight})), tmp_path))
    data[-1] ^= 1  # the last scale
    (tmp_path / "m.qfb").write_bytes(data)
    tensor = qfmt.load(tmp_path / "m.qfb").tensors["w"]
    assert (tensor.array == 3).all()
    with pytest.raises(DigestError, match="tensor 'w': the data is damaged"):
        tensor.dequantize()
    assert [broken.rule for broken in qfmt.check(tmp_path / "m.qfb")] == ["F9"]
    data[-1] ^= 1
    (tmp_path / "m.qfb").write_bytes(data)
    quantization = qfmt.load(tmp_path / "m.qfb").tensors["w"].quantization
    assert quantization is not None
    stored = quantization.scale.array
    assert stored.ctypes.data == quantization.scale.array.ctypes.data and stored.ctypes.data % 64 == 0
    assert len(data) - header.PAGE == 64 * 2048 + 2 * scale.size  # the metadata contains none of it
    assert np.array_equal(tensor.quantization and stored, scale)
    tensor = qfmt.load(tmp_path / "m.qfb").tensors["w"]
    assert np.array_equal(tensor.dequantize(), np.repeat(scale, 32, 1).astype(np.float32) * 3)


def test_real_numbers_beyond_float32_are_infinite() -> None:
    """Without a warning, which would be an error here, and in a command a line on stderr."""
    tensor = Tensor.constant("w", np.array([-2, 0, 2], np.int8), Quantization.per_tensor(3e38, 0, "int8"))
    assert tensor.dequantize().tolist() == [-np.inf, 0, np.inf]


def test_equal_blocks_are_stored_once(tmp_path: Path) -> None:
    def weight(name: str) -> Tensor:
        scale = np.linspace(0.5, 1, 4096, dtype=np.float16).reshape(64, 64)
        grid = Quantization.of_blocks("int8", (64, 2048), (1, 32), scale)
        return Tensor.constant(name, np.zeros((64, 2048), np.int8), grid)

    written(Model(Graph((), (), (), {name: weight(name) for name in "abc"})), tmp_path)
    container = Container(tmp_path / "m.qfb", verify=True)
    assert len(container.buffers) == 2
    records = [container.root["graph"]["tensors"][index]["quantization"] for index in range(3)]
    assert records[0] is records[1] is records[2]


def test_looking_up_missing_names() -> None:
    model = qfmt.load(GOLDEN / "1.0.qfb")
    assert "nothing" not in model.tensors
    assert model.tensors.get("nothing") is None
    assert 7 not in model.tensors
    with pytest.raises(KeyError):
        model.tensors["nothing"]
    with pytest.raises(IndexError):
        model.nodes[len(model.nodes)]
    assert model.nodes[-1] == model.nodes[len(model.nodes) - 1]
    assert model.nodes[:2] == (model.nodes[0], model.nodes[1])


def test_a_model_outlives_the_replacement_of_its_file(tmp_path: Path) -> None:
    written(_constants(a=np.arange(10_000)), tmp_path)
    model = qfmt.load(tmp_path / "m.qfb")
    written(_constants(a=np.zeros(3)), tmp_path)
    assert (model.tensors["a"].array == np.arange(10_000)).all()
    model.save(tmp_path / "m.qfb")
    assert qfmt.load(tmp_path / "m.qfb") == model


def test_a_file_is_written_for_readers_of_a_version(tmp_path: Path) -> None:
    """It states the lowest version that can express it, so that it is the same for later readers."""
    model = _constants(a=np.arange(3))
    first = written(model, tmp_path)
    for target in ("1.0", "1.1", "1.12"):
        model.save(tmp_path / "m.qfb", target=target)
        assert (tmp_path / "m.qfb").read_bytes() == first
    for target in ("0.9", "2.0", "1", "1.0.0", "1.x", ""):
        with pytest.raises(VersionError, match=r"is not supported; this qfmt writes 1\.0"):
            model.save(tmp_path / "other.qfb", target=target)
        assert not (tmp_path / "other.qfb").exists()


# Damage and versions (test_hostile.py has the systematic part)


def test_damaged_data_is_detected_at_its_first_use_by_default(tmp_path: Path) -> None:
    data = bytearray(written(_constants(a=np.arange(64), b=np.arange(3)), tmp_path))
    data[header.PAGE + 8] ^= 1
    (tmp_path / "m.qfb").write_bytes(data)
    model = qfmt.load(tmp_path / "m.qfb")
    assert (model.tensors["b"].array == np.arange(3)).all()
    with pytest.raises(DigestError, match="tensor 'a': the data is damaged"):
        _ = model.tensors["a"].array
    assert qfmt.load(tmp_path / "m.qfb", verify=False).tensors["a"].array[1] == 0
    assert [broken.rule for broken in qfmt.check(tmp_path / "m.qfb")] == ["F9"]
    with pytest.raises(DigestError):
        model.save(tmp_path / "copy.qfb")
    assert [path.name for path in tmp_path.iterdir()] == ["m.qfb"]


def test_a_newer_minor_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.qfb").write_bytes(_crafted(minor_version=7))
    said = invoke("check", tmp_path / "m.qfb").stdout
    assert "valid; its format is 1.7, but only the rules of 1.0 were checked" in said
    note = "its format is 1.7, but only the rules of 1.0 were checked"
    assert json.loads(invoke("check", tmp_path / "m.qfb", "--json").stdout)["note"] == note
    model = qfmt.load(tmp_path / "m.qfb")
    assert model.producer == "crafted"
    with pytest.raises(VersionError, match=r"its source has format 1\.7, .*; copy the file as it is"):
        model.save(tmp_path / "copy.qfb")
    assert [path.name for path in tmp_path.iterdir()] == ["m.qfb"]


def test_an_unknown_required_feature_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.qfb").write_bytes(_crafted(required_features=["qfmt.sparse"]))
    for read in (qfmt.load, qfmt.check):
        with pytest.raises(VersionError, match=r"m\.qfb.*qfmt\.sparse.*newer qfmt"):
            read(tmp_path / "m.qfb")


def _crafted(**fields: object) -> bytes:
    graph = {"tensors": [], "nodes": [], "inputs": [], "outputs": []}
    metadata = header.seal(*encode("Model", {"graph": graph, "buffers": [], "producer": "crafted", **fields}), 0)
    return metadata + bytes(header.PAGE - len(metadata))


NO_QFB = {
    b"": "it is an empty file",
    b"PK\x03\x04" + bytes(60): "zip archive",
    b"\x80\x02}q\x00.": "pickle",
    b"\x08\x09\x12\x07pytorch\x3a\x00": "an ONNX model; try `qfmt convert`",
    b"\x10\x00\x00\x00TFL3" + bytes(9): "TensorFlow Lite",
    b'\x08\x00\x00\x00\x00\x00\x00\x00{"a":{}}': "safetensors",
    b"GGUF\x03\x00\x00\x00": "GGUF",
    b"hello": "qfmt convert",
}


@pytest.mark.parametrize("start", NO_QFB, ids=NO_QFB.values())
def test_other_kinds_of_files_are_named(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.qfb").write_bytes(start)
    for read in (qfmt.load, qfmt.check):
        with pytest.raises(FormatError, match=r"is not a \.qfb file") as caught:
            read(tmp_path / "m.qfb")
        assert NO_QFB[start] in str(caught.value)
        assert str(caught.value).startswith(f"{tmp_path / 'm.qfb'}: ")
        assert "\n" not in str(caught.value)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for path, finding in (
        (tmp_path, "is a directory"),
        (Path("/dev/null"), "not a regular file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(QfmtError, match=finding):
            qfmt.load(path)


def test_a_missing_file_is_not_a_format_error(tmp_path: Path) -> None:
    """The error is the same wherever a path is read, and is also the standard library's exception."""
    missing, model = str(tmp_path / "missing"), golden_model()
    reads: dict[str, Callable[[], object]] = {
        "load": lambda: qfmt.load(missing),
        "check": lambda: qfmt.check(missing),
        "convert": lambda: qfmt.convert(missing),
        "diff": lambda: qfmt.diff(model, missing),
        "prepared": lambda: qfmt.convert(DIGITS, prepared=missing),
        "verify": lambda: qfmt.verify(missing, model),
        "verify a file": lambda: qfmt.verify("x.pt", missing),
    }
    for name, read in reads.items():
        with pytest.raises(MissingFileError) as caught:
            read()
        assert str(caught.value) == f"{missing}: there is no such file; check the path", name
    assert issubclass(MissingFileError, FileNotFoundError) and not issubclass(MissingFileError, FormatError)


def test_another_major_version_is_named(tmp_path: Path) -> None:
    data = bytearray(_crafted())
    data[7:8] = b"2"
    (tmp_path / "m.qfb").write_bytes(data)
    with pytest.raises(VersionError, match="major version '2'"):
        qfmt.load(tmp_path / "m.qfb")


# Atomic writing


class Failing(Data):
    """Bytes that can be hashed, but not read a second time."""

    __slots__ = ("_error", "_views")

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._views = 0
        self.nbytes = 8

    def view(self) -> memoryview:
        self._views += 1
        if self._views > 1:
            raise self._error
        return memoryview(bytes(8))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), QfmtError("no"), OSError(28, "No space left")], ids=repr)
def test_a_failure_while_writing_leaves_everything_as_it_was(error: BaseException, tmp_path: Path) -> None:
    before = written(_constants(a=np.arange(3)), tmp_path)
    tensors = {"a": Tensor.constant("a", np.arange(9)), "b": Tensor("b", "int64", (1,), Failing(error))}
    expected = DestinationError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        Model(Graph((), (), (), tensors)).save(tmp_path / "m.qfb")
    assert [path.name for path in tmp_path.iterdir()] == ["m.qfb"]
    assert (tmp_path / "m.qfb").read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_full_disk(tmp_path: Path) -> None:
    import resource

    before = written(_constants(a=np.arange(3)), tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(DestinationError, match=r"m\.qfb: cannot be written: File too large"):
            _constants(a=np.arange(1 << 20)).save(tmp_path / "m.qfb")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["m.qfb"]
    assert (tmp_path / "m.qfb").read_bytes() == before


def test_invalid_destinations(tmp_path: Path) -> None:
    model = _constants(a=np.arange(3))
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    for path, finding in (
        (tmp_path / "folder", "it is a directory"),
        (tmp_path / "missing" / "m.qfb", "there is no directory"),
        (tmp_path / "file" / "m.qfb", "there is no directory"),
        (Path("/dev/null"), "read-only or not a regular file"),
        (tmp_path / "a\0b", "null"),
        (tmp_path / "loop", "loop|symbolic links"),
    ):
        with pytest.raises(DestinationError, match=finding):
            model.save(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "loop"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_files_are_not_replaced(tmp_path: Path) -> None:
    written(_constants(a=np.arange(3)), tmp_path)
    (tmp_path / "m.qfb").chmod(0o444)
    with pytest.raises(DestinationError):
        _constants(a=np.arange(4)).save(tmp_path / "m.qfb")
    tmp_path.chmod(0o555)
    with pytest.raises(DestinationError):
        _constants(a=np.arange(4)).save(tmp_path / "new.qfb")
    tmp_path.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="modes and links are POSIX")
def test_modes_and_links(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        written(_constants(a=np.arange(3)), tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "m.qfb").stat().st_mode & 0o777 == 0o640
    (tmp_path / "m.qfb").chmod(0o604)
    (tmp_path / "link.qfb").symlink_to("m.qfb")
    _constants(a=np.arange(4)).save(str(tmp_path / "link.qfb"))
    assert (tmp_path / "link.qfb").is_symlink()
    assert (tmp_path / "m.qfb").stat().st_mode & 0o777 == 0o604
    assert len(qfmt.load(tmp_path / "m.qfb").tensors["a"].array) == 4


def test_a_mount_that_sets_the_modes_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only their owner may set them there, which is another user."""

    def refused(*_: object, **_options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / "m.qfb"
    golden_model().save(path)
    monkeypatch.setattr(os, "chmod", refused)
    monkeypatch.setattr(os, "supports_fd", {*os.supports_fd, refused})
    golden_model().replace(metadata={"a": "b"}).save(path)
    assert qfmt.load(path).metadata == {"a": "b"}


def test_an_invalid_model_is_not_written(tmp_path: Path) -> None:
    for wrong, rule in ((Quantization.of(0.0, 300, 0, 2), "V22"), (Quantization.of(1.0, 0, 5, 2), "V23")):
        tensors = {"a": Tensor("a", "uint8", (2,), ArrayData(np.zeros(2, np.uint8)), wrong)}
        with pytest.raises(ValidityError) as caught:
            Model(Graph(("a",), (), (), tensors)).save(tmp_path / "m.qfb")
        assert {broken.rule for broken in caught.value.violations} == {rule, "V30"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([8]), "int4"),
        (np.array([-1]), "uint2"),
        (np.array([1.5]), "uint4"),
        (np.array([200], np.uint8), "int8"),
        (np.array([1.0]), "float32"),
    ],
)
def test_a_constant_is_not_stored_as_other_values(values: np.ndarray, dtype: str) -> None:
    with pytest.raises(QfmtError, match=f"^w: .* {dtype}$"):
        Tensor.constant("w", values, dtype=dtype)


def test_native_4_bit_integers_are_accepted() -> None:
    assert Tensor.constant("w", np.array([-8, 7], ml_dtypes.int4)).array.tolist() == [-8, 7]


def test_progress_counts_up_to_its_end(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    model = _constants(a=np.zeros(5_000_000), b=np.zeros(5_000_000), c=np.ones(3))
    qfmt.save(model, tmp_path / "m.qfb", progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert {total for _, total in calls} == {2 * (80_000_000 + 24)}
    assert calls[-1][0] == calls[-1][1]
    assert len(calls) > 5


def test_the_layout_of_a_file_follows_the_specification(tmp_path: Path) -> None:
    data = written(_constants(a=np.arange(5, dtype=np.int8), b=np.arange(9.0)), tmp_path)
    parsed = header.parse(data[:128], len(data))
    assert data[4:12] == b"QFB1qh01"
    assert parsed.data_offset == 4096
    assert parsed.data_size == 64 + 72
    assert data[4096:4101] == bytes(range(5))
    assert not any(data[4101 : 4096 + 64])
    digest = hashlib.sha256(data[:64] + bytes(32) + data[96 : parsed.meta_size]).digest()
    assert parsed.sha256 == digest


def test_a_number_that_a_file_cannot_hold_is_named(tmp_path: Path) -> None:
    proof = Proof((0,), (1,), "nearest", (1,), largest=-1)
    tensors = {name: Tensor(name, "int8", (1,)) for name in "xy"}
    node = Node("qfmt.Requantize", ("x",), ("y",), version=1000, proof=proof)
    with pytest.raises(QfmtError, match=r"Proof\.largest does not fit into a file"):
        Model(Graph(("x",), ("y",), (node,), tensors)).save(tmp_path / "m.qfb")
    assert list(tmp_path.iterdir()) == []
