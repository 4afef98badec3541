"""Compares the reader in JavaScript with Python: the contents of files, and which damaged files they refuse."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given

import qfmt
from conformance import altered, flatbuffers
from networks.four_bits import INPUT, network
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.errors import FormatError
from qfmt.model import DTYPES, ArrayData, Parameter, StoredArray, Vector, numpy_dtype
from qfmt.ops import OPERATORS
from qfmt.quantization import NO_ZERO_POINT, block_counts, zero_points_of
from support import conformance
from support.counts import tell
from support.crafted import BUFFERS, GRAPHS, GRID, QUANTIZATIONS, SHAPES, TENSORS, crafted, numbers
from support.examples import examples
from support.js_reader import PACKAGE, ROOT, Reader, dump, facts, refusal
from support.large import LAST, beyond_32_bits
from support.mutants import mutants, overwrite, small_file
from support.paths import DIGITS, GOLDEN, HOSTILE
from support.strategies import models

FILES = sorted(path for path in GOLDEN.rglob("*.qfb") if path.parent.name != "refused")
REFUSED = sorted(GOLDEN.rglob("refused/*.qfb"))


def test_its_own_tests(reader: Reader) -> None:
    finished = reader.npm("run", "--silent", "test:built")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    counts = dict(re.findall(r"^# (tests|pass) (\d+)$", finished.stdout, re.MULTILINE))
    assert int(counts["pass"]) == int(counts["tests"]) > 30
    tell(f"JavaScript: {counts['pass']} of {counts['tests']} tests of its own pass")
    tell(*(f"JavaScript: {line}" for line in re.findall(r"^# (conformance: .*)$", finished.stdout, re.MULTILINE)))


def test_what_a_file_refers_to_often_does_not_take_memory(reader: Reader, tmp_path: Path) -> None:
    """A list of a million nodes that are one table, in 4 MB, is refused within the memory that the budget allows."""
    altered.sound().save(tmp_path / "sound.qfb")
    path = tmp_path / "m.qfb"
    path.write_bytes(flatbuffers.references(altered.Base((tmp_path / "sound.qfb").read_bytes()), 1_000_000, 1))
    with pytest.raises(FormatError, match="referred to too often"):
        list(qfmt.load(path).nodes)
    assert "referred to too often" in reader.error(path, "--max-old-space-size=300")


def test_a_long_string_is_not_read_again_and_again(reader: Reader) -> None:
    assert "referred to too often" in reader.error(HOSTILE / "long-names.qfb")


def test_many_test_vectors_of_the_same_arrays(reader: Reader, tmp_path: Path) -> None:
    """They are decoded once, however often the file is verified."""
    tensors = {name: Tensor(name, "int8", ()) for name in "xy"}
    graph = Graph(("x",), ("y",), (Node("Identity", ("x",), ("y",), {}, "", OPERATORS["Identity"].version),), tensors)
    zero = StoredArray("int8", (), ArrayData(np.zeros((), np.int8)))
    Model(graph, vectors=(Vector({"x": zero}, {"y": zero}),) * 20_000).save(tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == []
    program = """import { open } from "qfb-reader"; const model = await open(process.argv[1]);
        for (let i = 0; i < 3; i++) await model.verify();
        console.log(model.vectors.length);"""
    assert reader.script(program, tmp_path / "m.qfb").strip() == "20000"


def test_an_array_of_many_quantizations_is_not_checked_again_and_again(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """100 tensors, each with a quantization of its own, whose scales are the same 20,000 numbers."""
    monkeypatch.setattr("qfmt.file.encode.REFERENCES", 1000)
    scale = numbers("float32", *range(1, 20_001))
    own = [{"scale": scale, "block": [1], "quant_min": -128, "quant_max": 127} for _ in range(100)]
    tensors = [{"name": f"t{at:02}", "dtype": 2, "shape": [20_000], "quantization": own[at]} for at in range(100)]
    path = crafted(tmp_path, graph={"tensors": tensors})
    assert reader.verdicts([path.read_bytes()], tmp_path) == ["F6"] == [refusal(path)]


def test_names_of_shards_are_no_patterns(reader: Reader, tmp_path: Path) -> None:
    """`$&` and others stand for parts of a text that is replaced: the name of the file, the folder that it is in."""
    path = tmp_path / "a\\b" / "c$&d$`e$$f.qfb"
    path.parent.mkdir()
    small_file(tmp_path / "small.qfb")
    qfmt.load(tmp_path / "small.qfb").save(path, shard_size=64)
    assert len(list(path.parent.glob("*.qfs"))) > 1
    assert reader.error(path) == ""


@pytest.mark.parametrize("sharded", [False, True])
def test_offsets_beyond_32_bits(sharded: bool, reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    beyond_32_bits(path, sharded=sharded)
    program = """import { open } from "qfb-reader";
        import * as fs from "node:fs/promises";
        import { dirname, join } from "node:path";
        const path = process.argv[1]; // openAsBlob of Node 20 says a wrong size of more than 4 GiB
        const handle = (name) => fs.open(join(dirname(path), name));
        for (const model of [await open(path), await open(await fs.open(path), { shards: handle })])
            console.log(Array.from(await model.tensors.get("last").array()).join(" "));"""
    assert reader.script(program, path) == 2 * (" ".join(map(str, LAST)) + "\n")


def test_files_of_the_package(reader: Reader) -> None:
    packed = reader.npm("pack", "--dry-run", "--json", "--ignore-scripts")
    names = {entry["path"] for entry in json.loads(packed.stdout)[0]["files"]}
    sources = [path.stem for path in (ROOT / PACKAGE / "src").glob("*.ts")]
    built = {f"dist/{name}{ending}" for name in sources for ending in (".js", ".d.ts", ".js.map", ".d.ts.map")}
    assert names == built | {f"src/{name}.ts" for name in sources} | {"LICENSE", "README.md", "package.json"}
    assert (ROOT / PACKAGE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.slow
def test_types_are_right(reader: Reader) -> None:
    """Those of the package, with the compiler's types of browsers and without; and those of its tests."""
    for script in ("build:tests", "check:types"):
        typed = reader.npm("run", "--silent", script)
        assert typed.returncode == 0, typed.stdout


TYPED = """
import { open, type Model, type Tensor } from "qfb-reader";
const model: Model = await open("model.qfb");
export const weight: Tensor | undefined = model.tensors.find("conv.weight");
"""


def test_the_package_works_where_it_is_installed(reader: Reader, tmp_path: Path) -> None:
    """Runs the example of its README, and checks its types, without those of browsers, in an otherwise empty folder."""
    packed = reader.npm("pack", "--pack-destination", str(tmp_path), "--ignore-scripts")  # it is built
    assert packed.returncode == 0, packed.stderr
    (archive,) = tmp_path.glob("*.tgz")
    installed = reader.npm("install", "--offline", "--no-audit", "--no-fund", "--prefix", str(tmp_path), str(archive))
    assert installed.returncode == 0, installed.stderr
    readme = (tmp_path / "node_modules" / "qfb-reader" / "README.md").read_text(encoding="utf-8")
    example, said = (re.search(rf"```{kind}\n(.*?)```", readme, re.DOTALL)[1] for kind in ("js", "text"))
    (tmp_path / "example.mjs").write_text(example, encoding="utf-8")
    (tmp_path / "typed.mts").write_text(TYPED, encoding="utf-8")
    shutil.copy(GOLDEN / "1.0.qfb", tmp_path / "model.qfb")
    modules = reader.root / PACKAGE / "node_modules"
    compiler = modules / "typescript" / "bin" / "tsc"
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022"]
    options += ["--types", "node", "--typeRoots", modules / "@types"]
    for command in (["example.mjs"], [compiler, *options, "typed.mts"]):
        done = subprocess.run(["node", *command], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert done.stdout == (said if command == ["example.mjs"] else "")


def _compare(reader: Reader, paths: list[Path]) -> tuple[int, int]:
    """Assert that the models are equal; return the numbers of tensors and of compared facts."""
    tensors = equal = 0
    for path, theirs in zip(paths, reader.dump(*paths), strict=True):
        ours = json.loads(json.dumps(dump(qfmt.load(path))))
        for key, value in ours.items():
            assert theirs[key] == value, f"{path}: {key}"
        assert theirs == ours
        tensors += len(ours["tensors"])
        equal += facts(ours)
    return tensors, equal


def test_both_readers_agree_on_golden_files(reader: Reader) -> None:
    tensors, equal = _compare(reader, FILES)
    tell(f"JavaScript: {len(FILES)} golden files, {tensors} tensors, {equal} facts equal those that Python finds")
    forms = Counter(form for path in FILES for tensor in qfmt.load(path).tensors.values() for form in _forms(tensor))
    assert forms.keys() == FORMS
    tell("JavaScript: dequantized constants of them by form, equal to the bit: " + _counted(forms))


FORMS = {
    "per tensor", "per channel", "blocks", "zero points", "float zero points", "quantized floats", "offset", "table",
    "group index", "quantized scale", "quantized offset",
}  # fmt: skip


def _forms(tensor: Tensor) -> Iterator[str]:
    """What is special about the quantization of a constant."""
    grid, data = tensor.quantization, tensor.data
    if grid is None or data is None:
        return
    yield "blocks" if grid.is_blocked else "per channel" if grid.block else "per tensor"
    found = {
        "zero points": len(grid.zero_point) > 1,
        "float zero points": grid.has_float_zero_points,
        "quantized floats": not DTYPES[tensor.dtype].is_integer,
        "offset": grid.offset is not None,
        "table": grid.table is not None,
        "group index": grid.group_index is not None,
        "quantized scale": grid.scale.quantization is not None,
        "quantized offset": grid.offset is not None and grid.offset.quantization is not None,
    }
    yield from (form for form, has in found.items() if has)


def _counted(forms: Counter[str]) -> str:
    return ", ".join(f"{count} {form}" for form, count in forms.items())


def test_a_real_network_is_read_alike(reader: Reader, tmp_path: Path) -> None:
    model = qfmt.convert(DIGITS)
    integers = model.to_integers(input_shapes={"x": ("N", 1, 8, 8)})
    assert "quantized_inputs" in integers.source, "which the content id includes"
    paths = [tmp_path / "digits.qfb", tmp_path / "integers.qfb"]
    model.save(paths[0])
    integers.save(paths[1])
    tensors, equal = _compare(reader, paths)
    assert tensors == len(model.tensors) + len(integers.tensors)
    tell(f"JavaScript: digits, {tensors} tensors, {equal} facts equal those that Python finds")


def test_both_readers_agree_on_a_large_network(reader: Reader, shared_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    qfmt.convert(shared_data / "torchscript" / "ios_mobilenet_quantized.pt").save(path)
    tensors, equal = _compare(reader, [path])
    assert tensors == len(qfmt.load(path).tensors)
    tell(f"JavaScript: MobileNetV2, {tensors} tensors, {equal} facts equal those that Python finds")


def test_numbers_of_every_type_are_the_same(reader: Reader, tmp_path: Path) -> None:
    """Every code of types of up to 16 bits; for wider types random bits, and numbers near the ties of float32."""
    chance = np.random.default_rng(0)
    near = [sign * ((1 << power) + offset) for power in range(24, 63) for offset in range(-3, 4) for sign in (1, -1)]
    half = [(1 << power) + (1 << power - 24) + offset for power in range(26, 63) for offset in (-1, 0, 1)]
    tensors = [Tensor.constant("ties", np.array(near + half, np.int64))]
    for name, entry in DTYPES.items():
        dtype = numpy_dtype(name)
        if entry.bits < 8:
            values = np.arange(1 << entry.bits, dtype=np.uint8)
            values = values.view(dtype) if entry.kind != "i" else (values.astype(np.int8) - (1 << entry.bits - 1))
        elif name == "bool":
            values = np.array([False, True])
        elif entry.bits <= 16:
            values = np.arange(1 << entry.bits, dtype=f"<u{entry.bits // 8}").view(dtype)
        else:
            values = np.frombuffer(chance.bytes(8000), dtype)
        tensors.append(Tensor.constant(name, values, dtype=name))
    tensors += [_quantized(name, chance) for name, entry in DTYPES.items() if entry.is_quantizable]
    path = tmp_path / "m.qfb"
    Model(Graph((), (), (), {tensor.name: tensor for tensor in tensors})).save(path)
    _compare(reader, [path])
    count = sum(tensor.array.size for tensor in tensors)
    tell(f"JavaScript: {count} numbers of {len(DTYPES)} types, and as float32, equal those of NumPy to the bit")


def _quantized(name: str, chance: np.random.Generator) -> Tensor:
    """Random values of a type with random scales along the middle axis; some have float zero points."""
    entry = DTYPES[name]
    shape, scales = (3, 5, 7), tuple(np.exp(chance.normal(0, 30, 5)).astype(np.float32).astype(float).tolist())
    if not entry.is_integer:
        codes = chance.integers(0, 1 << entry.bits, shape).astype(np.uint8)
        grid = Quantization.of(scales, (0,) * 5, entry.minimum, entry.maximum, 1)
        return Tensor.constant(f"quantized {name}", codes.view(getattr(ml_dtypes, name)), grid, dtype=name)
    values = chance.integers(entry.minimum, entry.maximum, shape, endpoint=True).astype(numpy_dtype(name))
    points: tuple[float, ...] = tuple(chance.integers(entry.minimum, min(entry.maximum, 2**31 - 1), 5).tolist())
    if name == "uint8":
        points = tuple(chance.normal(100, 50, 5).astype(np.float32).astype(float).tolist())
    grid = Quantization.of(scales, points, entry.minimum, entry.maximum, 1)
    return Tensor.constant(f"quantized {name}", values, grid, dtype=name)


def test_every_form_of_quantization_with_random_numbers(reader: Reader, tmp_path: Path) -> None:
    """Tests any combination of blocks, zero points, offset, table, groups and a second level; arrays in metadata and
    buffers."""
    chance = np.random.default_rng(1)
    tensors = [_of_a_random_form(f"t{index:03}", chance) for index in range(200)]
    path = tmp_path / "m.qfb"
    Model(Graph((), (), (), {tensor.name: tensor for tensor in tensors})).save(path)
    _compare(reader, [path])
    forms = Counter(form for tensor in tensors for form in _forms(tensor))
    assert forms.keys() == FORMS
    count = sum(tensor.array.size for tensor in tensors)
    tell(f"JavaScript: {count} random numbers dequantized as by Python, to the bit, in tensors with " + _counted(forms))


def _of_a_random_form(name: str, chance: np.random.Generator) -> Tensor:
    dtype = str(chance.choice(["int8", "uint8", "int4", "uint4", "uint2", "int16", "int32", "float8_e4m3fn"]))
    entry = DTYPES[dtype]
    shape = tuple(chance.integers(4, 12, 3).tolist()) if chance.random() < 0.9 else (4, 50, 50)
    grid = _random_grid(dtype, shape, chance)
    if entry.is_integer:
        values = chance.integers(entry.minimum, entry.maximum, shape, endpoint=True).astype(numpy_dtype(dtype))
    else:
        values = chance.integers(0, 0x7F, shape).astype(np.uint8).view(numpy_dtype(dtype))
    return Tensor.constant(name, values, grid, dtype=dtype)


def _random_grid(
    dtype: str, shape: tuple[int, ...], chance: np.random.Generator, *, nested: bool = False
) -> Quantization:
    entry = DTYPES[dtype]
    block = tuple(int(chance.choice([0, 1, 2, 3])) for _ in shape[: chance.integers(0, len(shape) + 1)])
    block = tuple(each if each < size else 1 for each, size in zip(block, shape, strict=False))
    block = block[: max((axis + 1 for axis, each in enumerate(block) if each), default=0)]
    counts = block_counts(shape, block)
    larger = [axis for axis, each in enumerate(block) if each > 1]
    groups = None
    if len(larger) == 1 and not nested and chance.random() < 0.5:
        groups = Parameter.of_values(chance.integers(0, counts[larger[0]], shape[larger[0]]).astype(np.uint8))

    def real(kind: str) -> Parameter:
        numbers = np.exp(chance.normal(0, 2, counts))
        if nested or kind == "float64" or chance.random() < 0.6:
            return Parameter.of_values(numbers.astype(kind))
        codes = Parameter.of_values(chance.integers(1, 127, counts).astype(np.uint8))
        return replace(codes, quantization=_random_grid("uint8", counts, chance, nested=True))

    scale_dtype = str(chance.choice(["float16", "float32", "float64"]))
    scale, zero_point = real(scale_dtype), NO_ZERO_POINT
    drawn = chance.random()
    if entry.is_integer and drawn < 0.4:
        low, high = max(entry.minimum, -(2**31)), min(entry.maximum, 2**31 - 1)
        zero_point = zero_points_of(chance.integers(low, high, counts, endpoint=True), scale)
    elif entry.is_integer and drawn < 0.7 and scale.quantization is None:
        zero_point = zero_points_of(chance.normal(0, 9, counts).astype(scale_dtype), scale)
    table = None
    if entry.is_integer and entry.bits <= 8 and chance.random() < 0.3:
        table = Parameter.of_values(np.sort(chance.normal(0, 1, 1 << entry.bits)).astype(np.float32))
    offset = real("float32") if chance.random() < 0.4 else None
    if offset is not None and offset.quantization is None and len(set(offset)) == 1:
        offset = Parameter.of_values(offset.array.reshape(-1)[0])
    return Quantization(scale, zero_point, entry.minimum, entry.maximum, block, offset, table, groups)


def test_both_readers_agree_on_random_models(reader: Reader, tmp_path: Path) -> None:
    paths: list[Path] = []

    @examples(25, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(models())
    def save(model: Model) -> None:
        paths.append(tmp_path / f"{len(paths)}.qfb")
        model.save(paths[-1])

    save()
    tensors, equal = _compare(reader, paths)
    tell(f"JavaScript: {len(paths)} random models, {tensors} tensors, {equal} facts equal those that Python finds")


# Damaged and malicious files


def _verdicts(files: Iterable[bytes], tmp_path: Path, reader: Reader, *, verify: bool = True) -> Counter[str]:
    """Assert that both readers refuse the same damaged files; return the counts of verdicts."""
    files, path = list(files), tmp_path / "damaged.qfb"
    ours = []
    for data in files:
        overwrite(path, data)
        ours.append(refusal(path, verify=verify))
    theirs = reader.verdicts(files, tmp_path, verify=verify)
    assert len(theirs) == len(ours)
    pairs = list(zip(ours, theirs, strict=True))
    assert [(index, *pair) for index, pair in enumerate(pairs) if (pair[0] == "ok") != (pair[1] == "ok")] == []
    counts = Counter("read" if verdict == "ok" else "refused" for verdict in ours)
    counts["same rule"] = sum(a == b != "ok" for a, b in pairs)
    return counts


def _told(what: str, counts: Counter[str]) -> None:
    total = counts["read"] + counts["refused"]
    tell(
        f"JavaScript: {total} {what}, all decided as Python does: {counts['refused']} refused "
        f"({counts['same rule']} by the same rule), {counts['read']} read"
    )


def test_crafted_files(reader: Reader, tmp_path: Path) -> None:
    """The digests are valid, the contents are not."""
    records: list[dict[str, Any]] = [{}]
    records += [{"tensor": {"shape": shape}} for shape in SHAPES]
    records += [{"tensor": wrong} for wrong in TENSORS]
    records += [{"graph": wrong} for wrong in GRAPHS]
    records += [{"tensor": {"quantization": GRID | wrong}} for wrong in ({}, *QUANTIZATIONS)]
    for offset, size in BUFFERS:
        records.append({"buffers": [{"offset": offset, "size": size, "sha256": bytes(32)}]})
    records += [{"required_features": ["sparse"]}, {"minor_version": 7}, {"metadata": [{"key": "a", "value": ""}] * 2}]
    counts = _verdicts((crafted(tmp_path, **record).read_bytes() for record in records), tmp_path, reader)
    assert counts["read"] == 3
    _told("crafted files", counts)


def test_files_that_are_refused(reader: Reader, tmp_path: Path) -> None:
    """Refused files of the conformance suite; only `check` and `verify` refuse some of them."""
    assert {path.stem for path in REFUSED} == {entry["name"] for entry in conformance.REFUSED}
    _told("files of the conformance suite that are broken", _verdicts(map(Path.read_bytes, REFUSED), tmp_path, reader))


def test_references_are_not_expanded(reader: Reader, tmp_path: Path) -> None:
    """Small files that would be large if every reference were expanded. The content id contains the digest of many
    scales, which is computed once."""
    name, count = "n" * 20_000, 20_000
    long_name = {"tensors": [{"name": name, "dtype": 2}], "nodes": [_node([0] * count)]}
    tensor = {
        "dtype": 2,
        "shape": [count],
        "quantization": GRID | {"block": [1], "scale": numbers("float32", *[0.5] * count)},
    }
    shared = {"tensors": [{"name": f"t{index:04}", **tensor} for index in range(2000)]}
    files = [crafted(tmp_path, graph=graph).read_bytes() for graph in (long_name, shared)]
    first, second = reader.verdicts(files, tmp_path)
    assert (first, second) == ("the text of the content id is too long", "ok")


def test_groups_that_do_not_exist(reader: Reader, tmp_path: Path) -> None:
    """The group indices are in the data segment, which is read on demand."""
    ends = [(0, bytes(5000)), (5056, bytes([2]) * 5000)]
    buffers = [{"offset": at, "size": 5000, "sha256": hashlib.sha256(data).digest()} for at, data in ends]
    index = {"dtype": DTYPES["uint8"].code, "shape": [5000], "buffer": 1}
    grid = GRID | {"block": [2500], "scale": numbers("float32", 1.0, 2.0), "group_index": index}
    data = b"".join(data.ljust(5056, b"\0") for _, data in ends)
    path = crafted(tmp_path, tensor={"shape": [5000], "quantization": grid}, data=data, buffers=buffers)
    assert reader.verdicts([path.read_bytes()], tmp_path) == ["V22"]


def _node(inputs: list[int]) -> dict[str, Any]:
    return {"operator": "a", "inputs": inputs, "outputs": []}


def test_every_truncation(reader: Reader, tmp_path: Path) -> None:
    small = small_file(tmp_path / "small.qfb")
    counts = _verdicts((small[:size] for size in range(len(small))), tmp_path, reader)
    assert counts["refused"] == len(small)
    _told("truncations", counts)


def _changed(data: bytes, places: Iterable[int], masks: tuple[int, ...]) -> Iterable[bytes]:
    for at in places:
        for mask in masks:
            changed = bytearray(data)
            changed[at] ^= mask
            yield bytes(changed)


def test_changed_bytes(reader: Reader, tmp_path: Path) -> None:
    _byte_changes(reader, tmp_path, every=4, masks=(0x80,))


@pytest.mark.slow
def test_every_changed_byte_in_three_ways(reader: Reader, tmp_path: Path) -> None:
    _byte_changes(reader, tmp_path, every=1, masks=(1, 0x80, 0xFF))


def _byte_changes(reader: Reader, tmp_path: Path, *, every: int, masks: tuple[int, ...]) -> None:
    """With digests, which detect all changes except in padding; and without, where only the structure is checked."""
    small = small_file(tmp_path / "small.qfb")
    meta_size = struct.unpack_from("<Q", small, 16)[0]
    counts = _verdicts(_changed(small, range(0, len(small), every), masks), tmp_path, reader)
    assert counts["refused"] > 4096 // every * len(masks)
    _told("changed bytes", counts)
    counts = _verdicts(_changed(small, range(0, meta_size, every), masks), tmp_path, reader, verify=False)
    assert counts["refused"] > meta_size // every * len(masks) // 2
    _told("changed bytes without digests", counts)


def test_mutants_with_a_valid_digest(reader: Reader, tmp_path: Path) -> None:
    _mutants(reader, tmp_path, 1000)


def _mutants(reader: Reader, tmp_path: Path, count: int) -> None:
    vectors = tmp_path / "vectors.qfb"
    network().with_vectors(INPUT, {"q": np.zeros((0, 3), np.int8)}, names=("corners", "")).save(vectors)
    for original in (small_file(tmp_path / "small.qfb"), vectors.read_bytes()):
        counts = _verdicts(mutants(original, count=count // 2, seed=5), tmp_path, reader)
        assert min(counts["read"], counts["refused"]) > count // 100
        _told("mutants with a fitting digest", counts)
