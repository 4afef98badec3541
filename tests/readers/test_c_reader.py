"""The C reader of files, readers/c/qfb.h: it reads what Python reads, and refuses what Python refuses."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.file.decode import Record
from qfmt.file.reader import Container, Stored
from qfmt.file.records import ATTRIBUTE_TYPES
from qfmt.file.schema import ENUMS, TABLES
from qfmt.model import DTYPES, Parameter, StoredArray, Vector, attribute_kind, digested
from qfmt.quantization import PARAMETERS
from support.c_reader import COMPILERS, FOLDER, SANITIZED, STRICT, build, compiler, read_disagreement, verdicts
from support.counts import tell
from support.crafted import crafted, numbers
from support.large import LAST, beyond_32_bits
from support.mutants import mutants, small_file, survives
from support.paths import GOLDEN, HOSTILE, SUITE
from support.spec_reader import Network

FILES = sorted(path for path in GOLDEN.rglob("*.qfb") if path.parent.name != "refused")


@pytest.mark.parametrize("cc", COMPILERS)
@pytest.mark.parametrize("main", ["qfb_dump.c", "test/verdicts.c"])
def test_it_is_c99_without_a_warning(main: str, cc: str) -> None:
    build(main, "-O2", cc=cc)


@pytest.mark.parametrize("header", ["qfb.h", "qfb_run.h"])
def test_the_examples_of_the_readme_compile(header: str, tmp_path: Path) -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    example = next(code for code in re.findall(r"```c\n(.*?)```", text, re.DOTALL) if f'"{header}"' in code)
    (tmp_path / "example.c").write_text(example, "utf-8")
    command = [compiler(), *STRICT, "-O1", f"-I{FOLDER}", "-c", "-o", tmp_path / "example.o", tmp_path / "example.c"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_its_schema_is_the_schema() -> None:
    """Compares the tables in the header with those generated from qfb.fbs, field by field."""
    text = (FOLDER / "qfb.h").read_text("utf-8")
    names = {"pair": "KeyValue", "value": "TestValue", "vector": "TestVector", "level": "SecondLevel"}
    kinds = {"SCALAR": "", "STRUCT": "struct", "STRING": "string", "TABLE": "table", "STRINGS": "[string]"}
    found = {}
    for name, body in re.findall(r"static const qfb_field_ (\w+)\[\] = \{(.*?)\};", text, re.DOTALL):
        fields = re.findall(r"\{QFB_(\w+)_, (\d+), (\w+), (\d)\}", body)
        found[names.get(name, name.capitalize())] = fields
    assert found.keys() == TABLES.keys()
    codes = re.search(r"enum \{\s+(QFB_T_ARRAY_.*?)\};", text, re.DOTALL)
    assert codes is not None
    ordered = [code.removeprefix("QFB_T_").removesuffix("_") for code in re.findall(r"\w+", codes[1])]
    tables = dict(zip(ordered, sorted(TABLES, key=lambda name: ordered.index(_code(name))), strict=True))
    for name, fields in TABLES.items():
        assert len(fields) == len(found[name])
        for field, (kind, width, of, required) in zip(fields, found[name], strict=True):
            element = field.kind.strip("[]")
            size = {"long": 8, "double": 8, "ulong": 8, "int": 4, "uint": 4, "ubyte": 1}.get(element, field.size)
            assert (int(width), bool(int(required))) == (size if element != "string" else 4, field.required)
            if kind in ("TABLE", "TABLES"):
                assert tables[of.removeprefix("QFB_T_").removesuffix("_")] == field.of
                assert field.kind == ("table" if kind == "TABLE" else "[table]")
            elif kind == "SCALARS":
                assert field.kind == f"[{element}]"
            else:
                assert field.kind == (kinds[kind] or element)


def _code(name: str) -> str:
    codes = {"KeyValue": "PAIR", "TestValue": "VALUE", "TestVector": "VECTOR", "SecondLevel": "LEVEL"}
    return codes.get(name, name.upper())


# What it reads


def test_files_read_as_python_reads_them() -> None:
    """Every file of the suite, as JSON: each name, number, digest."""
    done = subprocess.run([build("qfb_dump.c", *SANITIZED), *FILES], capture_output=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert len(lines) == len(FILES)
    for path, line in zip(FILES, lines, strict=True):
        assert json.loads(line) == _described(path), path.name
    tell(f"C reader: {len(FILES)} of {len(FILES)} files read as Python reads them")


def test_a_file_without_any_of_the_optional_things(tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    Model(Graph((), (), (), {})).save(path)
    done = subprocess.run([build("qfb_dump.c", *SANITIZED), path], capture_output=True)
    assert json.loads(done.stdout) == _described(path)


def test_names_do_not_control_a_terminal(tmp_path: Path) -> None:
    path, name = tmp_path / "m.qfb", 'a\x1b[31m\x7f\x9b31m\u202e\u2028"\\é'
    Model(Graph((), (), (), {name: Tensor.constant(name, np.zeros(1, np.int8))})).save(path)
    done = subprocess.run([build("qfb_dump.c", *SANITIZED), path], capture_output=True)
    assert json.loads(done.stdout) == _described(path)
    assert all(letter.isprintable() for letter in done.stdout.decode().rstrip("\n"))


def test_a_quantization_of_no_channels(tmp_path: Path) -> None:
    path, q = tmp_path / "m.qfb", Quantization.of(np.zeros(0, np.float32), np.zeros(0, np.int64), -127, 127, axis=0)
    Model(Graph((), (), (), {"w": Tensor.constant("w", np.zeros((0, 2), np.int8), q)})).save(path)
    done = subprocess.run([build("qfb_dump.c", *SANITIZED), path], capture_output=True)
    assert json.loads(done.stdout) == _described(path)
    assert qfmt.load(path).tensors["w"].quantization == q


def _described(path: Path) -> dict[str, Any]:
    """A file in the form of qfb_dump, from the library."""
    container = Container(path, verify=True)
    model = qfmt.load(path)
    names = list(model.tensors)
    index = {name: at for at, name in enumerate(names)} | {"": -1}
    return {
        "minor_version": container.root["minor_version"],
        "producer": model.producer,
        "engine": model.engine,
        "graph": model.graph.name,
        "source": [[key, value] for key, value in model.source.items()],
        "metadata": [[key, value] for key, value in model.metadata.items()],
        "buffers": [[each["offset"], each["size"], each["sha256"].hex()] for each in container.buffers],
        "inputs": [index[name] for name in model.graph.inputs],
        "outputs": [index[name] for name in model.graph.outputs],
        "tensors": [_tensor(tensor) for tensor in model.tensors.values()],
        "nodes": [_node(node, index) for node in model.nodes],
        "vectors": [
            [
                vector.name,
                *([list(value.shape), _buffer(value.data)] for *_, value in vector.stored(model.graph)),
                vector.digests.hex(),
            ]
            for vector in model.vectors
        ],
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "aliases": list(tensor.aliases)}
    sizes = tensor.shape or ()
    described["dims"] = [size if isinstance(size, str) else "" for size in sizes]
    if not any(described["dims"]):
        described["dims"] = []
    if tensor.shape is not None:
        described["shape"] = [size if isinstance(size, int) else -1 for size in sizes]
    if tensor.data is not None:
        described["buffer"] = _buffer(tensor.data)
    if tensor.quantization is not None:
        described["quantization"] = _quantization(tensor.quantization)
    return described


def _quantization(q: Quantization) -> dict[str, Any]:
    described: dict[str, Any] = {
        **_level(q),
        "quant_min": q.quant_min,
        "quant_max": q.quant_max,
        "scale_name": q.names[0],
        "zero_point_name": q.names[1],
    }
    if (seen := q.observed) is not None:
        described |= {"observer": seen.observer, "qscheme": seen.qscheme}
        described |= {"minimum": _bits(seen.minimum), "maximum": _bits(seen.maximum)}
        if seen.quant_min is not None:
            described |= {"observed_min": seen.quant_min, "observed_max": seen.quant_max}
    return described


def _level(q: Quantization) -> dict[str, Any]:
    parameters = {name: _numbers(each) for name in PARAMETERS if (each := getattr(q, name)) is not None}
    return {"block": list(q.block), **parameters}


def _numbers(parameter: Parameter) -> dict[str, Any]:
    values = parameter.stored_numbers()
    described: dict[str, Any] = {
        "dtype": parameter.dtype,
        "shape": list(parameter.shape),
        "values": list(values) if DTYPES[parameter.dtype].is_integer else _bits(values),
    }
    if isinstance(parameter.data, Stored):
        described["buffer"] = parameter.data.index
    if parameter.quantization is not None:
        described["quantization"] = _level(parameter.quantization)
    return described


def _node(node: Node, index: dict[str, int]) -> dict[str, Any]:
    attributes = []
    for name, value in node.attributes.items():
        several = isinstance(value, tuple)
        kind = attribute_kind(value)
        values = [_bits([each])[0] if kind == "f" else each for each in (value if several else (value,))]
        code = ENUMS["AttributeType"][ATTRIBUTE_TYPES[kind * (2 if several else 1)][0]]
        attributes.append([name, code, values if several else values[0]])
    return {
        "operator": node.operator,
        "version": node.version,
        "rule": node.rule,
        "name": node.name,
        "scope": node.scope,
        "source_operator": node.source_operator,
        "inputs": [index[name] for name in node.inputs],
        "outputs": [index[name] for name in node.outputs],
        "attributes": attributes,
    }


def _buffer(data: object) -> int:
    assert isinstance(data, Stored)
    return data.index


def _bits(values: Iterable[float]) -> list[str]:
    return [struct.pack(">d", value).hex() for value in values]


# What it refuses


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    return small_file(tmp_path / "original.qfb")


def test_every_truncation_is_refused(small: bytes) -> None:
    found = verdicts(build("test/verdicts.c", *SANITIZED), [small[:size] for size in range(len(small) + 1)])
    assert [code != 0 for code, _ in found] == [True] * len(small) + [False]


def test_every_changed_byte_is_refused(small: bytes) -> None:
    """Also for padding inside the data, which Python ignores and only `check` reports."""
    changed = [_with(small, at, small[at] ^ mask) for at in range(len(small)) for mask in (1, 0x80, 0xFF)]
    found = verdicts(build("test/verdicts.c", *SANITIZED), changed)
    assert len(found) == 3 * len(small)
    assert all(code for code, _ in found)
    tell(f"C reader: {len(found)} of {len(found)} changes of one byte refused")


def test_changed_bytes_without_digests_do_no_harm(small: bytes, tmp_path: Path) -> None:
    """The verdict is Python's, or `check` reports the rule."""
    at = [*range(struct.unpack_from("<Q", small, 16)[0])]
    changed = [_with(small, place, small[place] ^ 0xFF) for place in at]
    found = verdicts(build("test/verdicts.c", *SANITIZED), changed, "--no-digests")
    _compare(changed, found, tmp_path / "m.qfb", "changes of one byte, digests not checked", verify=False)


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutants_get_the_verdict_of_python(count: int, small: bytes, tmp_path: Path) -> None:
    files = [_with_vectors(tmp_path / "v.qfb"), small, *(path.read_bytes() for path in sorted(GOLDEN.glob("*.qfb")))]
    _try_mutants(files, count, 1, tmp_path)


def _try_mutants(files: list[bytes], count: int, seed: int, folder: Path) -> None:
    program = build("test/verdicts.c", *SANITIZED)
    for data in files:
        changed = list(mutants(data, count=count, seed=seed))
        _compare(changed, verdicts(program, changed), folder / "m.qfb", "mutants with fitting digests", verify=True)


def _compare(files: list[bytes], found: list[tuple[int, str]], path: Path, what: str, *, verify: bool) -> None:
    """Compare verdicts. C must refuse a file that Python cannot read. Any other file that C refuses must break a
    rule that `check` reports."""
    assert len(files) == len(found)
    counted: Counter[str] = Counter()
    for data, (code, rule) in zip(files, found, strict=True):
        read = survives(data, path, verify=verify)
        assert not read_disagreement(path, code, rule, read=read)
        counted["read by both" if not code else "refused by both" if not read else "refused by C and `check`"] += 1
    tell(f"C reader, {len(files)} {what}: {', '.join(f'{count} {each}' for each, count in sorted(counted.items()))}")
    assert counted["refused by both"] > len(files) // 4


def _with(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def _with_vectors(path: Path) -> bytes:
    """A file with two test vectors: sizes with names, packed values, an output that is an input."""
    channels = Quantization.of((0.5, 0.25), (3, 4), 0, 200, axis=1)
    tensors = [
        Tensor("x", "uint8", ("N", 2), None, channels),
        Tensor("z", "int4", ("N",), None, Quantization.of((1.0,), (0,), -8, 7)),
        Tensor("y", "int32", ("M", "N")),
    ]
    nodes = (Node("vendor.A", ("x", "z"), ("y",)),)
    graph = Graph(("x", "z"), ("y", "x"), nodes, {each.name: each for each in tensors})
    x = StoredArray.of(np.array([[1, 2], [3, 4]], np.uint8))
    y = StoredArray.of(np.arange(6, dtype=np.int32).reshape(3, 2))
    vectors = (
        Vector({"x": x, "z": StoredArray.of([1, -8], "int4")}, {"y": y, "x": x}, "first", bytes(range(16))),
        Vector({"x": x, "z": StoredArray.of([1, -7], "int4")}, {"y": y, "x": x}),
    )
    Model(graph, vectors=vectors).save(path)
    return path.read_bytes()


def sharing(tmp_path: Path, dtype: str, *grids: Quantization, count: int = 130) -> bytes:
    """Tensors of a million zeros, in a file of one megabyte, which have these quantizations in turn."""
    shared = StoredArray.of(np.zeros(1 << 20, np.uint8)).data
    tensors = [
        Tensor(f"t{at}", dtype, (1 << 10, 1 << 10), shared, grids[at % len(grids)] if grids else None)
        for at in range(count)
    ]
    Model(Graph((), (), (), {each.name: each for each in tensors})).save(tmp_path / "m.qfb")
    return (tmp_path / "m.qfb").read_bytes()


def test_shared_data_is_read_once(tmp_path: Path) -> None:
    """Otherwise a file of a megabyte would take long, or networks whose weights are all zero would be refused."""
    ranges = [Quantization.of((1.0,), (0,), -low, 127) for low in range(128)]
    channels = [Quantization.of(np.arange(first, first + 1024.0), (0,) * 1024, -128, 127, 0) for first in range(1, 9)]
    files = [sharing(tmp_path, "bool"), *(sharing(tmp_path, "int8", *each) for each in ((), ranges[126:]))]
    files.append(sharing(tmp_path, "int8", *channels, count=3000))
    files.append(sharing(tmp_path, "int8", *ranges))
    assert verdicts(build("test/verdicts.c", "-O2"), files) == [(0, "")] * len(files)


def test_shared_data_is_checked_for_each_range(tmp_path: Path) -> None:
    """Another range, or an element more in the last byte, means other values."""
    data = bytes([0xFF] * 63 + [0x0F])  # as int4: -1, and 0 at the end
    grid: Record = {"scale": numbers("float32", 1.0), "quant_min": -8, "quant_max": -1}
    for sizes, most, wanted in (([127, 127], -1, (0, "")), ([127, 128], -1, (5, "V23")), ([127, 127], -2, (5, "V23"))):
        tensors = [
            {"name": name, "dtype": DTYPES["int4"].code, "shape": [size], "buffer": 0, "quantization": each}
            for name, size, each in zip("ab", sizes, (grid, grid | {"quant_max": most}), strict=True)
        ]
        path = crafted(tmp_path, data=data, graph={"tensors": tensors})
        assert verdicts(build("test/verdicts.c", *SANITIZED), [path.read_bytes()]) == [wanted]
        assert bool(qfmt.check(path)) == bool(wanted[0])


def test_a_vector_with_many_values(tmp_path: Path) -> None:
    """To compare each with all others would exhaust the budget, which a network may not do."""
    names = [f"x{index:05}" for index in range(4000)]
    tensors = {name: Tensor(name, "int8", (1, "N") if name < "x00100" else (1, 2)) for name in names}
    value = StoredArray.of(np.zeros((1, 2), np.int8))
    vector = Vector(dict.fromkeys(names, value), dict.fromkeys(names[:2], value))
    Model(Graph(tuple(names), (*names[:2], names[0]), (), tensors), vectors=(vector,)).save(tmp_path / "m.qfb")
    assert verdicts(build("test/verdicts.c", *SANITIZED), [(tmp_path / "m.qfb").read_bytes()]) == [(0, "")]


def test_floats_may_state_a_zero_point_of_0(tmp_path: Path) -> None:
    """Rule V20: it is the same as none, for the reader of the specification, too."""
    grid = {"scale": numbers("float32", 0.5), "zero_point": numbers("uint8", 0), "quant_min": -448, "quant_max": 448}
    path = crafted(tmp_path, tensor={"dtype": DTYPES["float8_e4m3fn"].code, "quantization": grid})
    assert qfmt.check(path) == []
    assert Network(path.read_bytes()).content_id() == qfmt.load(path).content_id().hex()
    assert verdicts(build("test/verdicts.c", *SANITIZED), [path.read_bytes()]) == [(0, "")]


@pytest.mark.parametrize("sizes", [[-5, 0], [0, -5]])
def test_scales_of_a_negative_size_are_none(sizes: list[int], tmp_path: Path) -> None:
    """Rule V20, also if another size is 0: no product of sizes shows it."""
    grid = {"block": [1, 1], "scale": numbers("float32", shape=sizes, bytes=b""), "quant_min": -128, "quant_max": 127}
    path = crafted(tmp_path, tensor={"shape": [-1, 0], "buffer": None, "quantization": grid}, buffers=[], data=b"")
    assert [each.rule for each in qfmt.check(path)] == ["V20"]
    assert verdicts(build("test/verdicts.c", *SANITIZED), [path.read_bytes()]) == [(5, "V20")]


def many_vectors(folder: Path, nodes: int, vectors: int) -> bytes:
    """A file with nodes of which all but one compute nothing, and vectors with the digest of what that one computes."""
    node, value = {"operator": "a", "inputs": [], "outputs": []}, {"shape": [64], "buffer": 0}
    tensors = [{"name": name, "dtype": DTYPES["int8"].code, "shape": [64]} for name in "xy"]
    graph = {"tensors": tensors, "nodes": [*[node] * nodes, node | {"outputs": [1]}], "inputs": [0], "outputs": [1]}
    vector = {"inputs": [value], "outputs": [value], "digests": bytes(16)}
    return crafted(folder, graph=graph, vectors=[vector] * vectors).read_bytes()


def test_outputs_of_nodes_are_counted_once_for_all_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In C, to count them for each vector would exhaust the budget."""
    assert verdicts(build("test/verdicts.c", "-O2"), [many_vectors(tmp_path, 8000, 8000)]) == [(0, "")]
    counted: list[Graph] = []
    monkeypatch.setattr("qfmt.rules.vectors.digested", lambda graph: counted.append(graph) or digested(graph))
    many_vectors(tmp_path, 5, 3)
    assert len(list(qfmt.load(tmp_path / "crafted.qfb").vectors)) == 3
    assert len(counted) == 1


def test_a_long_string_is_not_read_again_and_again() -> None:
    files = [(HOSTILE / "long-names.qfb").read_bytes()]
    assert verdicts(build("test/verdicts.c", "-O2"), files) == [(3, "F6")]


def test_observed_ranges_are_not_read_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read those of a shared quantization for each tensor takes time that grows with the square of the file."""
    monkeypatch.setattr("qfmt.file.encode.SMALL", 1 << 62)  # one copy, however many tensors refer to it
    scales = numbers("float32", *[0.5] * 1000)
    observed = {"observer": "a", "minimum": [0.0] * 1000, "maximum": [1.0] * 1000}
    grid = {"block": [1], "scale": scales, "quant_min": -128, "quant_max": 127, "observed": observed}
    shared = {"dtype": DTYPES["int8"].code, "shape": [1000], "quantization": grid}
    tensors = [{"name": f"t{index:04}", **shared} for index in range(1000)]
    data = crafted(tmp_path, graph={"tensors": tensors}, data=b"", buffers=[])
    assert verdicts(build("test/verdicts.c", "-O2"), [data.read_bytes()]) == [(3, "F6")]


def test_refused_files_of_the_suite_are_refused() -> None:
    """Those that break a rule of the container, but for two of F13, or one about a single tensor or vector."""
    folder = SUITE / "refused"
    if not folder.is_dir():
        pytest.skip("the suite has no refused files yet")
    listed = json.loads((SUITE / "index.json").read_text("utf-8"))["files"]
    rules = {folder / f"{each['name']}.qfb": each["rule"] for each in listed if each["level"] == "refused"}
    of_graphs = {f"V{number}" for number in (*range(30, 50), *range(52, 70), 71, 72, 73)}
    read = [
        path
        for path, rule in rules.items()
        if rule not in of_graphs and path.stem not in ("equal-buffers", "small-buffer")
    ]
    found = verdicts(build("test/verdicts.c", *SANITIZED), [path.read_bytes() for path in read])
    assert [path.name for path, (code, _) in zip(read, found, strict=True) if not code] == []
    tell(f"C reader: {len(read)} of {len(read)} files of the suite refused")


def test_types_are_those_of_the_format() -> None:
    text = (FOLDER / "qfb.h").read_text("utf-8")
    found = re.findall(r'\{"(\w+)", (\d+), \'(\w)\', ([^,]+), ([^}]+)\}', text)
    special = {"-2147483647 - 1": -(2**31), "-INT64_MAX - 1": -(2**63), "INT64_MAX": 2**63 - 1}
    for (name, bits, kind, low, high), dtype in zip(found, DTYPES.values(), strict=True):
        assert (name, int(bits), kind) == (dtype.name, dtype.bits, dtype.kind)
        limits = [special[each] if each in special else int(each) for each in (low, high)]
        assert limits == [dtype.minimum, min(dtype.maximum, 2**63 - 1)]


EVERY_TEXT = """
#include "qfb.h"
#include <stdio.h>

int main(void)
{
    static uint64_t bytes[1 << 13];
    size_t size = fread(bytes, 1, sizeof bytes, stdin);
    qfb_file file;
    qfb_tensor tensor;
    uint32_t i, all = 0;
    if (qfb_open(&file, bytes, size, 0))
        return 1;
    for (i = 0; i < qfb_tensor_count(&file) && !qfb_get_tensor(&file, i, &tensor); i++) {
        const qfb_quantization *q = &tensor.quantization;
        all += tensor.name.text && q->observer.text && q->qscheme.text && q->scale_name.text && q->zero_point_name.text;
    }
    return printf("%u of %u\\n", (unsigned)all, (unsigned)i) < 0;
}
"""


def test_a_missing_text_is_empty(tmp_path: Path) -> None:
    """As qfb.h specifies, for tensors with and without a quantization, and without an observer."""
    (tmp_path / "main.c").write_text(EVERY_TEXT)
    command = [compiler(), *STRICT, "-I", str(FOLDER), "-o", str(tmp_path / "main"), str(tmp_path / "main.c")]
    subprocess.run(command, check=True)
    path = GOLDEN / "1.0.qfb"
    done = subprocess.run([tmp_path / "main"], input=path.read_bytes(), capture_output=True, check=True)
    count = len(qfmt.load(path).tensors)
    assert done.stdout.decode() == f"{count} of {count}\n"


@pytest.mark.parametrize("sharded", [False, True])
def test_offsets_beyond_32_bits(sharded: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    beyond_32_bits(path, sharded=sharded)
    done = subprocess.run([build("test/far.c"), path, tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [str(each) for each in LAST], "")
