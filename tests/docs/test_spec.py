"""spec.md and docs/spec are true and sufficient: generated parts are current, examples are true, and a reader
written only from them agrees with the library."""

from __future__ import annotations

import ast
import hashlib
import random
import re
import struct
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import generate_spec
import hexdump
from fbs import read_schema
from qfmt import QfmtError, arithmetic, convert, load, save
from qfmt.file.checker import CONTAINER_RULES
from qfmt.file.schema import ENUMS, TABLES
from qfmt.model import DTYPES, Graph, Model, Node, Observed, Quantization, StoredArray, Tensor, Vector
from qfmt.ops import OPERATORS
from qfmt.quantization import NO_ZERO_POINT, PARAMETERS, Parameter
from qfmt.rules import RULES
from support import spec_reader
from support.paths import DIGITS, ROOT, SUITE

PAGES = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in generate_spec.PAGES}
ARITHMETIC = PAGES["docs/spec/running.md"] + PAGES["docs/spec/integer-only.md"]


def section(title: str) -> str:
    """The text under a heading of any page, up to the next heading of the same or a higher level."""
    for text in PAGES.values():
        if found := re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE):
            end = re.compile(rf"^#{{1,{len(found[1])}}} ", re.MULTILINE).search(text, found.end())
            return text[found.end() : end.start() if end else len(text)]
    raise AssertionError(f"no page has a section {title!r}")


def code(title: str) -> str:
    """The first code block of a section."""
    return re.findall(r"```\w*\n(.*?)```", section(title), re.DOTALL)[0]


# Is it true?


def test_the_generated_parts_are_current() -> None:
    assert generate_spec.stale(PAGES.values()) == [], "run tools/generate_spec.py"


@pytest.mark.parametrize("name", TABLES)
def test_every_field_of_the_schema_is_in_its_table(name: str) -> None:
    """The tables in spec.md come from the text of the schema; this compares them with the compiled schema."""
    text = section(name)
    for field in TABLES[name]:
        assert f"| {field.id} | `{field.name}` |" in text
    assert len(re.findall(r"^\| \d+ \|", text, re.MULTILINE)) == len(TABLES[name])


def test_every_field_of_the_schema_has_a_comment() -> None:
    tables = read_schema().tables.values()
    assert [f"{table.name}.{field.name}" for table in tables for field in table.fields if not field.meaning] == []


def test_every_code_of_the_schema_is_listed() -> None:
    types = section("Element types")
    for name, number in ENUMS["DType"].items():
        assert number == 0 or f"| {number} | {name} |" in types
    for name, number in ENUMS["AttributeType"].items():
        assert f"{number} {name}" in section("AttributeType")


def test_every_rounding_rule_is_documented_with_its_formula() -> None:
    rules = arithmetic.QUANTIZE | arithmetic.REQUANTIZE | arithmetic.MEAN | arithmetic.FIXED_POINT
    rows = {row[0]: row[1] for row in re.findall(r"^\| `(\w+)` \| (.*?) \|", ARITHMETIC, re.MULTILINE)}
    for name, function in rules.items():
        rounded, _, offset = re.findall(r"`(.*?)`", function.__doc__ or "")[0].partition(" + z")
        forms = (f"clamp({rounded} + z)", f"clamp({rounded})", f"clamp(({rounded}) + z)")
        assert any(form in rows[name] for form in forms), (name, rounded, offset)


def test_every_rule_with_real_results_is_documented_with_its_formula() -> None:
    formulas = {name: rule.real for name, rule in arithmetic.DYNAMIC.items()} | arithmetic.LOOKUP
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", ARITHMETIC, re.MULTILINE))
    for name, function in formulas.items():
        assert f"`{re.findall('`(.*?)`', function.__doc__ or '')[0]}`" in rows[name], name
    for name, rule in arithmetic.DYNAMIC.items():
        assert f"`{rule.quantize}`" in rows[name]


def test_every_rule_that_an_operator_or_engine_uses_is_explained() -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", ARITHMETIC, re.MULTILINE))
    for operator in OPERATORS.values():
        rules = {*operator.rules, *operator.sum_rules, *operator.engines.values()}
        assert known >= rules, operator.name


def test_every_operator_and_attribute_is_described() -> None:
    for operator in OPERATORS.values():
        text = section(operator.name)
        assert operator.meaning in text
        assert f"version {operator.version} " in text
        for name in operator.attributes:
            assert f"| `{name}` |" in text


def test_the_rules_that_are_cited_exist() -> None:
    known = {number for number, *_ in (*RULES, *CONTAINER_RULES)}
    texts = [*PAGES.values(), (ROOT / "schema" / "qfb.fbs").read_text(encoding="utf-8")]
    cited = {number for text in texts for number in re.findall(r"[Rr]ules? ([VF]\d+)", text)}
    assert cited
    assert cited <= known


def test_the_page_for_readers_is_short() -> None:
    assert len(PAGES["spec.md"].splitlines()) <= 1100


# Are its examples true?


def test_the_hex_dump_shows_the_bytes_of_a_real_file() -> None:
    shown = hexdump.parse(code("The smallest file"))
    assert shown == generate_spec.smallest_file()
    network = spec_reader.Network(shown)
    assert network.tensors["w"].values() == [1, -2, 7]


def test_the_hex_dump_explains_every_byte_once() -> None:
    at = 0
    for line in code("The smallest file").splitlines():
        assert int(line[:6], 16) == at
        at += len(hexdump.parse(line))
        if line[8 : 8 + 3 * hexdump.WIDTH].strip("0 ") and "padding" in line:
            assert "×" in line, "padding that is not zero"


def test_the_content_id_is_that_of_its_lines() -> None:
    text = section("Content id")
    stated = re.findall(r"SHA-256: `([0-9a-f]{64})`", text)[0]
    assert hashlib.sha256(code("Content id").encode()).hexdigest() == stated
    assert generate_spec.smallest_model().content_id().hex() == stated


@pytest.mark.parametrize("part", ["zero_point", "offset"])
def test_the_content_id_says_which_level_a_number_belongs_to(part: str, tmp_path: Path) -> None:
    """Two networks that differ in nothing else, and compute other values."""
    number = Parameter.of_values(np.uint8(3) if part == "zero_point" else np.float32(3))
    ids, outputs = [], []
    for inner in (True, False):
        level = Quantization(Parameter.of_values(np.float32(0.5)), NO_ZERO_POINT, -128, 127)
        codes = Parameter.of_values(np.array([[1, 2], [3, 4]], np.int8))
        scale = replace(codes, quantization=replace(level, **{part: number}) if inner else level)
        grid = Quantization(scale, NO_ZERO_POINT, -8, 7, block=(1, 2))
        grid = grid if inner else replace(grid, **{part: number})
        w = Tensor.constant("w", np.arange(8, dtype=np.int8).reshape(2, 4) - 4, grid, dtype="int4")
        node = Node("DequantizeLinear", ("w",), ("y",), version=23)
        model = Model(Graph((), ("y",), (node,), {"w": w, "y": Tensor("y", "float32", (2, 4))}))
        model.save(tmp_path / "m.qfb")
        ids.append(model.content_id())
        outputs.append(model.run({})["y"].tolist())
        assert spec_reader.Network((tmp_path / "m.qfb").read_bytes()).content_id() == model.content_id().hex()
    assert outputs[0] != outputs[1]
    assert ids[0] != ids[1]


def test_the_content_id_of_a_long_line_needs_no_memory_for_it() -> None:
    """A name of 100 kB that occurs 200 times in a line: 20 MB."""
    name = "n" * 100_000
    tensors = {each: Tensor(each, "float32", (1,)) for each in (name, "y")}
    model = Model(Graph((name,), ("y",), (Node("Concat", (name,) * 200, ("y",), {"axis": 0}, "", 13),), tensors))
    tracemalloc.start()
    found = model.content_id()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    word = f"{len(name)}:{name}"
    lines = ["qfb content 1", f"6:inputs {word}", "7:outputs 1:y"]
    lines += [f"6:tensor {each} 7:float32 1:1 1:1" for each in (word, "1:y")]
    lines += ["4:node 6:Concat 2:13 0:", "2:in" + f" {word}" * 200, "3:out 1:y", "9:attribute 4:axis 2:si 1:0", ""]
    assert found == hashlib.sha256("\n".join(lines).encode()).digest()
    assert most < 2_000_000
    graph = replace(model.graph, nodes=(replace(model.nodes[0], inputs=(name,) * 3000),))
    what = "the text of the content id is too long; the file has too many references to long names"
    with pytest.raises(QfmtError, match=what):
        model.replace(graph=graph).content_id()


def test_the_flatbuffers_page_reads_the_smallest_file() -> None:
    """Runs the code of the page: root → graph → name of the first tensor."""
    data = generate_spec.smallest_file()

    def number(letter: str):  # type: ignore[no-untyped-def]
        return lambda at: struct.unpack_from("<" + letter, data, at)[0]

    names = {"u32": number("I"), "i32": number("i"), "u16": number("H"), "bytes": data, "utf8": bytes.decode}
    exec(code("FlatBuffers in one page"), names)
    field, follow, string, elements = (names[name] for name in ("field", "follow", "string", "elements"))
    graph = follow(field(follow(0), 2))
    tensors = [follow(at) for at in elements(follow(field(graph, 0)), 4)]
    assert [string(follow(field(tensor, 0))) for tensor in tensors] == ["w", "y"]
    assert field(tensors[1], 4) is None


def test_the_tie_of_the_quantize_rules() -> None:
    one = np.array([1], np.float32)
    half = {name: rule(one, 2 * one, one).item() for name, rule in arithmetic.QUANTIZE.items()}
    assert {name: value for name, value in half.items() if value == 2} == {"reciprocal_offset": 2, "reciprocal_fma": 2}
    assert set(half.values()) == {1, 2}


def test_the_packing_of_four_bits() -> None:
    packed = Tensor.constant("x", np.array([1, -2, 7]), dtype="int4").data
    assert packed is not None
    assert f"`{bytes(packed.view()).hex(' ')}`" in section("Element types")


# Is it sufficient? A reader written only from it


def test_the_reader_knows_nothing_of_qfmt() -> None:
    text = Path(spec_reader.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 368
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names | {"__future__"}


def everything() -> Model:
    """A model with every element type, and every kind of shape, quantization, attribute and absence."""
    tensors = [Tensor("x", "uint8", ("N", None, 3), None, Quantization.of((0.1,), (7,), 7, 255, None, "float64"))]
    tensors += [Tensor("unknown rank", "float32", None), Tensor("y", "int8", (), aliases=("a", "b.ü"))]
    generator = np.random.default_rng(1)
    for entry in DTYPES.values():
        shape = (3, 5) if entry.bits < 8 else (2, 3)
        raw = generator.integers(0, 2, size=shape) if entry.minimum == 0 else generator.integers(-2, 2, size=shape)
        array = raw if entry.bits < 8 and entry.is_integer else raw.astype(_numpy_dtype(entry.name))
        grid = None
        if entry.is_quantizable:
            scales = tuple(0.25 * (i + 1) for i in range(shape[0]))
            low, high = max(entry.minimum, -2), min(entry.maximum, 1)
            observed = Observed("MinMaxObserver", (-1.5,), (2.0,))
            grid = Quantization.of(scales, (0,) * shape[0], low, high, 0, "bfloat16", observed=observed)
        tensors.append(Tensor.constant(f"constant {entry.name}", array, grid, dtype=entry.name))
    rows = Quantization.of((0.5, 0.25, 1.0), (7.5, -0.0, 3.0), 0, 15, 0)
    tensors.append(Tensor.constant("embedding", np.arange(15).reshape(3, 5), rows, dtype="uint4"))
    tensors += [by_blocks("blocks", 7), by_blocks("blocks with zero points", np.arange(6).reshape(3, 2))]
    tensors.append(Tensor.constant("scalar", np.float32(0.1)))
    tensors.append(Tensor.constant("empty", np.zeros((0, 4), np.float64)))
    tensors.append(Tensor.constant("the same again", tensors[4].array, dtype=tensors[4].dtype))
    tensors.append(Tensor("日本", "float32", (2,)))
    attributes = {"i": -(1 << 63), "f": -0.0, "s": "ü\n", "ii": (1, -2), "ff": (0.1, float("inf")), "ss": ("", "a b")}
    attributes |= {"none": (), "empty": "", "zero": 0, "3": 0.0}
    nodes = (
        Node("com.example.Strange", ("x", "", "scalar"), ("unknown rank", "日本"), attributes, "n", 7, "own rule"),
        Node("com.example.End", (), ("y",), scope="features.0", source_operator="aten::relu"),
    )
    named = {tensor.name: tensor for tensor in tensors}
    graph = Graph(("x",), ("y", "empty", "x"), nodes, named, "main")
    x = StoredArray.of(np.full((2, 1, 3), 7, np.uint8))
    values = {"y": StoredArray.of(np.int8(-1)), "empty": StoredArray.of(np.zeros((0, 4))), "x": x}
    vectors = (Vector({"x": x}, values, "größe"), Vector({"x": x}, values))
    return Model(graph, "test", "fbgemm", {"format": "test"}, {"key": "value", "empty": "", "a": "ü"}, vectors)


def by_blocks(name: str, zero_points: Any) -> Tensor:
    """Two scales per row; the second block has one element less."""
    scales = np.linspace(-1, 1, 6).astype(np.float16).reshape(3, 2)
    grid = Quantization.of_blocks("uint4", (3, 5), (1, 3), scales, zero_points)
    return Tensor.constant(name, np.arange(15).reshape(3, 5), grid, dtype="uint4")


def _numpy_dtype(name: str) -> object:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name)) if name.startswith(("bfloat", "float8", "float4")) else np.dtype(name)


def assert_read_alike(path: Path) -> int:
    """Assert that qfmt and the specification's reader agree; return the number of compared values."""
    model, network = load(path), spec_reader.Network(path.read_bytes())
    assert list(network.tensors) == list(model.tensors)
    count = 0
    for name, tensor in model.tensors.items():
        seen = network.tensors[name]
        assert seen.dtype == tensor.dtype
        assert (None if seen.shape is None else tuple(seen.shape)) == tensor.shape
        assert (seen.quantization is None) == (tensor.quantization is None)
        if tensor.quantization is not None:
            for key in ("quant_min", "quant_max"):
                assert seen.quantization[key] == getattr(tensor.quantization, key)
            count += assert_level_read_alike(tensor.quantization, seen)
        assert (seen.data is None) == (tensor.data is None)
        if tensor.data is not None:
            assert seen.data == bytes(tensor.data.view())
            assert seen.digest == tensor.data.sha256().hex()
            if seen.letter or seen.bits < 8:
                mine = tensor.array.view(np.uint8) if tensor.dtype == "float4_e2m1fn" else tensor.array
                assert seen.values() == mine.reshape(-1).tolist()
                count += tensor.array.size
    assert [node["operator"] for node in network.graph["nodes"]] == [node.operator for node in model.nodes]
    assert network.names(network.graph["inputs"]) == list(model.graph.inputs)
    assert network.names(network.graph["outputs"]) == list(model.graph.outputs)
    assert network.content_id() == model.content_id().hex()
    return count + assert_vectors_read_alike(model, network)


def assert_vectors_read_alike(model: Model, network: spec_reader.Network) -> int:
    count = 0
    for mine, (name, inputs, outputs, digests) in zip(model.vectors, network.vectors, strict=True):
        assert (name, digests) == (mine.name, mine.digests)
        for (*_, value), seen in zip(mine.stored(model.graph), [*inputs, *outputs], strict=True):
            assert (seen.dtype, tuple(seen.shape)) == (value.dtype, value.shape)
            assert seen.data == bytes(value.data.view())
            count += seen.count
    return count


def assert_level_read_alike(quantization: Quantization, seen: spec_reader.Array) -> int:
    assert tuple(seen.quantization["block"] or ()) == quantization.block
    mine = {name: stored for name in PARAMETERS if (stored := getattr(quantization, name)) not in (None, NO_ZERO_POINT)}
    assert [each.name for each in seen.numbers] == list(mine)
    count = 0
    for theirs in seen.numbers:
        stored = mine[theirs.name]
        assert (theirs.dtype, tuple(theirs.shape or ())) == (stored.dtype, stored.shape)
        assert theirs.data == bytes(stored.data.view())
        assert (theirs.quantization is None) == (stored.quantization is None)
        if stored.quantization is not None:
            count += assert_level_read_alike(stored.quantization, theirs)
        count += len(stored)
    return count


def test_both_readers_agree_on_every_feature(tmp_path: Path) -> None:
    path = tmp_path / "everything.qfb"
    model = everything()
    save(model, path)
    print(f"{assert_read_alike(path)} stored values equal")
    assert spec_reader.Network(path.read_bytes()).content_id() == model.content_id().hex()


def test_the_content_id_includes_how_inputs_are_quantized(tmp_path: Path) -> None:
    model, ids = load(SUITE / "float" / "add-sum.qfb").replace(vectors=()), set()
    for source in ({}, {"dynamic_inputs": "é: w"}, {"quantized_inputs": "é: w"}, {"other": "é: w"}):
        said = model.replace(source=source)
        said.save(tmp_path / "m.qfb")
        assert spec_reader.Network((tmp_path / "m.qfb").read_bytes()).content_id() == said.content_id().hex()
        ids.add(said.content_id())
    assert len(ids) == 3


def test_both_readers_agree_on_a_converted_network(tmp_path: Path) -> None:
    path = tmp_path / "digits.qfb"
    save(convert(DIGITS), path)
    print(f"{assert_read_alike(path)} stored values equal")


def test_both_readers_agree_on_a_real_network(shared_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "mobilenet.qfb"
    save(convert(shared_data / "torchscript" / "ios_mobilenet_quantized.pt"), path)
    print(f"{assert_read_alike(path)} stored values equal")


def test_the_reader_detects_flipped_bits_and_truncation(tmp_path: Path) -> None:
    """Tests the promise of the section "Digests" with a reader written only from the specification."""
    path = tmp_path / "everything.qfb"
    save(everything(), path)
    file = path.read_bytes()
    choose = random.Random(1)
    places = [*range(256), *choose.sample(range(256, len(file)), 600), *range(len(file) - 64, len(file))]
    for at in places:
        flipped = bytearray(file)
        flipped[at] ^= 1 << choose.randrange(8)
        with pytest.raises(spec_reader.Broken):
            spec_reader.Network(bytes(flipped))
    for size in [0, 7, 127, 128, 4095, 4096, len(file) - 1]:
        with pytest.raises(spec_reader.Broken):
            spec_reader.Network(file[:size])
    with pytest.raises(spec_reader.Broken):
        spec_reader.Network(file + b"\0")
    print(f"{len(places)} flipped bits refused")


# The rules in docs/spec/running.md


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
@pytest.mark.parametrize("rule", arithmetic.QUANTIZE)
def test_infinities_are_clamped_and_nan_becomes_quant_min(dtype: str, rule: str) -> None:
    limits = DTYPES[dtype]
    grid = Quantization.per_tensor(0.5, 3, dtype, quant_min=limits.minimum + 1)
    x = np.array([np.inf, 3e38, -np.inf, -3e38, np.nan], np.float32)
    result = arithmetic.quantize(x, grid, np.dtype(dtype), rule)
    assert result.tolist() == [limits.maximum, limits.maximum, *[limits.minimum + 1] * 3]


def test_a_quantize_rule_replaces_the_operators_formula() -> None:
    """With `divide` an average is dequantized, computed and quantized: (1 + 2) / 2 · 0.5 / 0.25 is an integer."""
    tensors = {
        "x": Tensor("x", "uint8", (1, 1, 2), None, Quantization.per_tensor(0.5, 0, "uint8")),
        "y": Tensor("y", "uint8", (1, 1, 1), None, Quantization.per_tensor(0.25, 1, "uint8")),
    }
    node = Node("GlobalAveragePool", ("x",), ("y",), version=22, rule="divide")
    model = Model(Graph(("x",), ("y",), (node,), tensors))
    assert model.run({"x": np.array([[[1, 2]]], np.uint8)})["y"].tolist() == [[[4]]]


def test_a_node_of_an_unknown_version_is_not_run() -> None:
    tensors = {name: Tensor(name, "float32", (1,)) for name in "xy"}
    node = Node("Relu", ("x",), ("y",), version=OPERATORS["Relu"].version + 1)
    with pytest.raises(QfmtError, match="version 15 of this operator is not supported"):
        Model(Graph(("x",), ("y",), (node,), tensors)).run({"x": np.zeros(1, np.float32)})
