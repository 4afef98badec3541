"""The conformance suite, tests/golden/1.0: it is what would be made today, and every reader here agrees with it.

Expected numbers were computed twice when it was made (tools/make_conformance.py). Here they meet the files through
other eyes: a reader written from spec.md alone, the readers in C and JavaScript, the interpreter.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import spec_reader
from counts import tell

import qfmt
from qfmt.compare import replay

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "tests" / "golden" / "1.0"
INDEX = json.loads((SUITE / "index.json").read_text(encoding="utf-8"))
READABLE = [entry for entry in INDEX["files"] if entry["level"] != "refused"]

RELEASED: dict[str, str] = {}
"""Version of the format → sha256 of its index.json, which has the digests of all its files: pinned at the release."""

sys.path.insert(0, str(ROOT / "tools"))


def path_of(entry: dict[str, Any]) -> Path:
    return SUITE / entry["level"] / f"{entry['name']}.qfb"


def said_of(entry: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(path_of(entry).with_suffix(".json").read_text(encoding="utf-8"))
    return said


# The suite itself


def test_the_suite_is_what_would_be_made_today() -> None:
    import make_conformance

    assert make_conformance.differences() == [], "run tools/make_conformance.py, and read what it changes"


def test_no_file_is_another_than_the_index_says() -> None:
    for entry in INDEX["files"]:
        for key, path in (("sha256", path_of(entry)), ("json_sha256", path_of(entry).with_suffix(".json"))):
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
            assert digest == entry.get(key), path.name
    there = {path.relative_to(SUITE).as_posix() for path in SUITE.rglob("*.qfb")}
    assert there == {f"{entry['level']}/{entry['name']}.qfb" for entry in INDEX["files"]}


def test_no_released_suite_has_changed() -> None:
    """A draft may change; to release it, put its version and the digest of its index into RELEASED."""
    for folder in sorted(SUITE.parent.glob("*/index.json")):
        version = folder.parent.name
        digest = hashlib.sha256(folder.read_bytes()).hexdigest()
        is_draft = json.loads(folder.read_text(encoding="utf-8"))["draft"]
        assert RELEASED.get(version, digest if is_draft else "") == digest, f"suite {version} was changed"


def test_it_stays_small() -> None:
    sizes = {path.name: path.stat().st_size for path in SUITE.rglob("*.qfb")}
    assert {name: size for name, size in sizes.items() if size > 16_000} == {}
    assert sum(path.stat().st_size for path in SUITE.rglob("*.*")) < 4_000_000


# Readers


def bits_of(value: float) -> str:
    return struct.pack(">d", value).hex()


def items(array: spec_reader.Array) -> list[Any]:
    """What the reader of the specification has, as the JSON writes it."""
    values = array.values()
    if "float" not in array.dtype:
        return [str(item) if array.bits == 64 else int(item) for item in values]
    letter = {8: "B", 16: "H", 32: "I", 64: "Q"}.get(array.bits)
    codes = struct.unpack(f"<{array.count}{letter}", array.data) if letter else values
    return [f"{code:0{-(-array.bits // 4)}x}" for code in codes]


def tensor_facts(tensor: spec_reader.Tensor, record: dict[str, Any]) -> dict[str, Any]:
    return {
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "aliases": record["aliases"] or [],
        "quantization": tensor.quantization and quantization_facts(tensor),
        "values": None if tensor.data is None else items(tensor),
    }


def quantization_facts(tensor: spec_reader.Tensor) -> dict[str, Any]:
    q, points = tensor.quantization, tensor.zero_points
    floats, seen, blocks = q["zero_point_float"], q["observed"], q["blocks"]
    return {
        "scale": [bits_of(scale) for scale in q["scale"]],
        "zero_point": q["zero_point"],
        "zero_point_float": None if floats is None else [bits_of(point) for point in floats],
        "quant_min": q["quant_min"],
        "quant_max": q["quant_max"],
        "axis": q["axis"],
        "scale_dtype": spec_reader.DTYPES[q["scale_dtype"]][0],
        "scale_name": q["scale_name"] or "",
        "zero_point_name": q["zero_point_name"] or "",
        "observed": seen
        and {
            "observer": seen["observer"],
            "minimum": [bits_of(value) for value in seen["minimum"]],
            "maximum": [bits_of(value) for value in seen["maximum"]],
            "quant_min": None if seen["quant_min"] is None else str(seen["quant_min"]),
            "quant_max": None if seen["quant_max"] is None else str(seen["quant_max"]),
            "qscheme": seen["qscheme"] or "",
        },
        "blocks": blocks
        and {
            "shape": blocks["shape"],
            "scale": items(tensor.scales),
            "zero_point": None if points is None else items(points),
            "zero_point_dtype": None if points is None else points.dtype,
        },
    }


def attribute_facts(record: dict[str, Any]) -> dict[str, Any]:
    code = record["type"]
    value = record[("int_value", "float_value", "string_value", "ints", "floats", "strings")[code - 1]]
    kind = "ifs"[(code - 1) % 3]
    form = {"i": str, "f": bits_of, "s": str}[kind]
    if code <= 3:
        return {"type": kind, "value": form(value)}
    return {"type": 2 * (kind if value else "i"), "value": [form(item) for item in value]}


def facts(network: spec_reader.Network) -> dict[str, Any]:
    """All that the reader of the specification finds, in the form of the JSON."""
    model, graph = network.model, network.graph
    inputs, outputs = (network.names(graph[end]) for end in ("inputs", "outputs"))
    return {
        "digest": network.digest.hex(),
        "content_id": network.content_id(),
        "producer": model["producer"] or "",
        "arithmetic": model["arithmetic"] or "",
        "source": {pair["key"]: pair["value"] for pair in model["source"] or ()},
        "metadata": {pair["key"]: pair["value"] for pair in model["metadata"] or ()},
        "graph": graph["name"] or "",
        "inputs": inputs,
        "outputs": outputs,
        "tensors": {
            tensor.name: tensor_facts(tensor, record)
            for tensor, record in zip(network.order, graph["tensors"], strict=True)
        },
        "nodes": [
            {
                "operator": node["operator"],
                "version": node["version"],
                "name": node["name"] or "",
                "inputs": network.names(node["inputs"]),
                "outputs": network.names(node["outputs"]),
                "attributes": {each["name"]: attribute_facts(each) for each in node["attributes"] or ()},
                "arithmetic": node["arithmetic"] or "",
                "scope": node["scope"] or "",
                "source_operator": node["source_operator"] or "",
            }
            for node in graph["nodes"]
        ],
        "vectors": [
            {
                "name": name,
                "inputs": {key: value_facts(value) for key, value in zip(inputs, given, strict=True)},
                "outputs": {key: value_facts(value) for key, value in zip(outputs, made, strict=True)},
            }
            for name, given, made in network.vectors
        ],
    }


def value_facts(value: spec_reader.Array) -> dict[str, Any]:
    return {"shape": value.shape, "values": items(value)}


def count_facts(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(count_facts, value.values()))
    return sum(map(count_facts, value)) if isinstance(value, list) else 1


def test_the_reader_of_the_specification_finds_what_the_json_says() -> None:
    count = 0
    for entry in READABLE:
        said = said_of(entry)
        found = facts(spec_reader.Network(path_of(entry).read_bytes()))
        for key, value in found.items():
            assert said[key] == value, (entry["name"], key)
        assert set(said) == {*found, "name", "level", "about"}
        count += count_facts(found)
    tell(f"conformance suite {INDEX['format']}: {len(READABLE)} files, {count:,} facts in them are those of the JSON")


def test_vectors_come_out_equal_in_the_interpreter() -> None:
    counts: dict[str, list[int]] = {}
    for entry in READABLE:
        if entry["level"] == "read":
            continue
        model = qfmt.load(path_of(entry))
        assert model.vectors, entry["name"]
        for output in replay(model):
            assert output.is_equal, (entry["name"], output)
            found = counts.setdefault(entry["level"], [0, 0])
            found[0] += output.elements - output.different
            found[1] += output.elements
    for level, (equal, total) in counts.items():
        tell(f"conformance suite, {level}: {equal:,} of {total:,} outputs equal in the interpreter")
