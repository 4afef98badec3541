"""The conformance suite, tests/golden/1.0: it is up to date, and every reader here agrees with it.

tools/make_conformance.py computed the expected numbers twice. Here other readers check the files: one written only
from spec.md, the readers in C and JavaScript, and the interpreter.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import struct
import subprocess
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt.compare import replay
from qfmt.errors import FormatError
from qfmt.file.checker import CONTAINER_RULES
from qfmt.rules import RULES
from support import c_reader, spec_reader
from support.conformance import BY_EVERYONE, INDEX, READABLE, REFUSED, outputs_of, path_of, said_of, shards_of
from support.counts import tell
from support.mutants import touch
from support.paths import DIGITS, HELD_BACK, SUITE

RELEASED: dict[str, str] = {}
"""Version of the format → sha256 of its index.json, which has the digests of all its files: pinned at the release."""


# The suite itself


def test_the_suite_is_current() -> None:
    import make_conformance

    assert make_conformance.differences() == [], "run tools/make_conformance.py, and read what it changes"


def test_files_match_the_index() -> None:
    for entry in INDEX["files"]:
        for key, path in (("sha256", path_of(entry)), ("json_sha256", path_of(entry).with_suffix(".json"))):
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
            assert digest == entry.get(key), path.name
        for name, data in shards_of(entry).items():
            assert hashlib.sha256(data).hexdigest() == entry["shards"][name]
    there = {path.relative_to(SUITE).as_posix() for path in SUITE.rglob("*.qf*")}
    names = (
        (entry["level"], name)
        for entry in INDEX["files"]
        for name in (f"{entry['name']}.qfb", *entry.get("shards", ()))
    )
    assert there == {posixpath.normpath(f"{level}/{name}") for level, name in names}


def test_every_rule_has_a_file_that_breaks_it_alone() -> None:
    """But V31, which holds in files that obey F7: only a model in memory breaks it."""
    from make_conformance import rules_broken

    broken = [rules_broken(path_of(entry)) for entry in REFUSED]
    alone = {next(iter(rules)) for rules in broken if len(rules) == 1}
    assert alone == {number for number, _ in CONTAINER_RULES} | {rule.number for rule in RULES} - {"V31"}


def test_no_released_suite_has_changed() -> None:
    """A draft may change; to release it, add its version and the digest of its index to RELEASED."""
    for folder in sorted(SUITE.parent.glob("*/index.json")):
        version = folder.parent.name
        digest = hashlib.sha256(folder.read_bytes()).hexdigest()
        is_draft = json.loads(folder.read_text(encoding="utf-8"))["draft"]
        assert RELEASED.get(version, digest if is_draft else "") == digest, f"suite {version} was changed"


def test_its_page_names_all_that_is_in_the_json() -> None:
    page = (SUITE / "README.md").read_text(encoding="utf-8")
    for entry in READABLE:
        said = said_of(entry)
        records = (said, *said["tensors"].values(), *said["nodes"])
        assert {key for record in records for key in record if f"`{key}`" not in page} == set()
    assert {entry["refused_by"] for entry in REFUSED if f"“{entry['refused_by']}”" not in page} == set()


def test_it_stays_small() -> None:
    sizes = {path.name: path.stat().st_size for path in SUITE.rglob("*.qfb")}
    assert {name: size for name, size in sizes.items() if size > 16_000} == {}
    assert sum(path.stat().st_size for path in SUITE.rglob("*.*")) < 5_400_000


# Readers


def bits_of(value: float) -> str:
    return struct.pack(">d", value).hex()


def items(array: spec_reader.Array) -> list[Any]:
    """Values of the specification's reader, in the form of the JSON."""
    values = array.values()
    if "float" not in array.dtype:
        return [str(item) if array.bits == 64 else int(item) for item in values]
    letter = {8: "B", 16: "H", 32: "I", 64: "Q"}.get(array.bits)
    codes = struct.unpack(f"<{array.count}{letter}", array.data) if letter else values
    return [f"{code:0{-(-array.bits // 4)}x}" for code in codes]


def tensor_facts(tensor: spec_reader.Array, record: dict[str, Any]) -> dict[str, Any]:
    found = {
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "aliases": record["aliases"] or [],
        "quantization": tensor.quantization and quantization_facts(tensor),
        "values": None if tensor.data is None else items(tensor),
    }
    return stated(found)


def stated(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the fields that the JSON leaves out: those that are null or an empty text."""
    return {name: value for name, value in record.items() if value is not None and value != ""}


def quantization_facts(array: spec_reader.Array) -> dict[str, Any]:
    q, seen = array.quantization, array.quantization["observed"]
    found = {
        **level_facts(array),
        "quant_min": q["quant_min"],
        "quant_max": q["quant_max"],
        "scale_name": q["scale_name"],
        "zero_point_name": q["zero_point_name"],
        "observed": seen
        and stated(
            {
                "observer": seen["observer"],
                "minimum": [bits_of(value) for value in seen["minimum"]],
                "maximum": [bits_of(value) for value in seen["maximum"]],
                "quant_min": None if seen["quant_min"] is None else str(seen["quant_min"]),
                "quant_max": None if seen["quant_max"] is None else str(seen["quant_max"]),
                "qscheme": seen["qscheme"],
            }
        ),
    }
    return stated(found)


def level_facts(array: spec_reader.Array) -> dict[str, Any]:
    """The facts that a quantization and a second level have in common."""
    numbers = {each.name: array_facts(each) for each in array.numbers}
    zero = {"zero_point": {"dtype": "uint8", "shape": [], "values": [0]}}
    return {"block": array.quantization["block"] or []} | zero | numbers


def array_facts(array: spec_reader.Array) -> dict[str, Any]:
    nested = None if array.quantization is None else level_facts(array)
    return stated({"dtype": array.dtype, "shape": array.shape, "values": items(array), "quantization": nested})


def attribute_facts(record: dict[str, Any]) -> dict[str, Any]:
    code = record["type"]
    value = record[("int_value", "float_value", "string_value", "ints", "floats", "strings")[code - 1]]
    kind = "ifs"[(code - 1) % 3]
    form = {"i": str, "f": bits_of, "s": str}[kind]
    if code <= 3:
        return {"type": kind, "value": form(value)}
    return {"type": 2 * (kind if value else "i"), "value": [form(item) for item in value]}


def facts(network: spec_reader.Network) -> dict[str, Any]:
    """Everything that the specification's reader finds, in the form of the JSON."""
    model, graph = network.model, network.graph
    inputs, outputs = (network.names(graph[end]) for end in ("inputs", "outputs"))
    found = {
        "digest": network.digest.hex(),
        "content_id": network.content_id(),
        "producer": model["producer"],
        "engine": model["engine"],
        "source": {pair["key"]: pair["value"] for pair in model["source"] or ()},
        "metadata": {pair["key"]: pair["value"] for pair in model["metadata"] or ()},
        "graph": graph["name"],
        "inputs": inputs,
        "outputs": outputs,
        "tensors": {
            tensor.name: tensor_facts(tensor, record)
            for tensor, record in zip(network.order, graph["tensors"], strict=True)
        },
        "nodes": [
            stated(
                {
                    "operator": node["operator"],
                    "version": node["version"],
                    "name": node["name"],
                    "inputs": network.names(node["inputs"]),
                    "outputs": network.names(node["outputs"]),
                    "attributes": {each["name"]: attribute_facts(each) for each in node["attributes"] or ()},
                    "rule": node["rule"],
                    "scope": node["scope"],
                    "source_operator": node["source_operator"],
                }
            )
            for node in graph["nodes"]
        ],
        "vectors": [
            stated(
                {
                    "name": name,
                    "inputs": {key: value_facts(value) for key, value in zip(inputs, given, strict=True)},
                    "outputs": {key: value_facts(value) for key, value in zip(outputs, made, strict=True)},
                    **({"digests": re.findall(".{32}", digests.hex())} if digests else {}),
                }
            )
            for name, given, made, digests in network.vectors
        ],
    }
    return stated(found)


def value_facts(value: spec_reader.Array) -> dict[str, Any]:
    return {"shape": value.shape, "values": items(value)}


def count_facts(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(count_facts, value.values()))
    return sum(map(count_facts, value)) if isinstance(value, list) else 1


def test_the_specifications_reader_agrees_with_the_json() -> None:
    count = 0
    for entry in READABLE:
        said = said_of(entry)
        found = facts(spec_reader.Network(path_of(entry).read_bytes(), shards_of(entry)))
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


def test_refused_files_are_refused() -> None:
    """`check` reports the rule. The library and the specification's reader refuse the files that every reader must
    refuse."""
    for entry in REFUSED:
        try:
            found = {broken.rule for broken in qfmt.check(path_of(entry))}
        except FormatError as error:
            found = {error.rule}
        assert entry["rule"] in found, entry["name"]
    # What opening a file lazily does not look at:
    noticed_by_check = {"hole", "hole-64", "shard-hole", "first-buffer", "data-end", "order", "tensor-order"}
    for entry in BY_EVERYONE:
        if entry["name"] not in noticed_by_check:
            with pytest.raises(FormatError):
                touch(qfmt.load(path_of(entry)))
    tell(f"conformance suite: {len(REFUSED)} of {len(REFUSED)} broken files refused, each by its rule")


def test_the_reader_of_the_specification_refuses_files_by_their_rules() -> None:
    """Those of the container, and those that a decoder of arrays needs (spec.md, "Validity rules")."""
    needed = [
        entry
        for entry in REFUSED
        if entry["rule"] in ("F13", "F15") or entry["refused_by"] != "readers that check validity"
    ]
    for entry in needed:
        with pytest.raises(spec_reader.Broken, match=f"^{entry['rule']}: "):
            spec_reader.Network(path_of(entry).read_bytes(), shards_of(entry))
    tell(f"conformance suite: {len(needed)} files refused by the reader of the specification, each by its rule")


def test_every_rule_of_the_container_is_broken() -> None:
    from qfmt.file.checker import CONTAINER_RULES

    assert {entry["rule"] for entry in REFUSED} >= {number for number, _ in CONTAINER_RULES}


# The reader in C


def test_the_c_reader_finds_every_file_sound_or_broken() -> None:
    program = c_reader.build("test/verdicts.c")
    readable, broken = ([entry for entry in entries if "shards" not in entry] for entries in (READABLE, BY_EVERYONE))
    found = c_reader.verdicts(program, [path_of(entry).read_bytes() for entry in (*readable, *broken)])
    read, refused = found[: len(readable)], found[len(readable) :]
    assert [entry["name"] for entry, (code, _) in zip(readable, read, strict=True) if code] == []
    assert [entry["name"] for entry, (code, _) in zip(broken, refused, strict=True) if not code] == []
    same = sum(rule == entry["rule"] for entry, (_, rule) in zip(broken, refused, strict=True))
    tell(
        f"conformance suite in C: {len(read)} of {len(readable)} files read, {len(refused)} of {len(broken)} that "
        f"every reader refuses are refused, {same} by the same rule"
    )


def test_the_c_reader_finds_shards() -> None:
    """`qfb_dump` opens them, and checks everything: also what other readers check on demand only."""
    program = c_reader.build("qfb_dump.c")
    count = 0
    for entry in INDEX["files"]:
        if "shards" in entry:
            done = subprocess.run([program, path_of(entry)], capture_output=True, text=True)
            rule = entry.get("rule")
            assert (done.returncode, f"(rule {rule})" in done.stderr) == ((2, True) if rule else (0, False)), entry[
                "name"
            ]
            count += 1
    tell(f"conformance suite in C: {count} files with shards read, or refused by their rules")


def test_vectors_come_out_equal_in_c() -> None:
    program = c_reader.build("qfb_run.c")
    paths = [path_of(entry) for entry in READABLE if entry["level"] == "integer"]
    done = subprocess.run([program, "--vectors", *paths], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    counts = [line.rpartition(": ")[2].split()[:3:2] for line in done.stdout.splitlines()]
    equal, total = (sum(int(pair[index]) for pair in counts) for index in (0, 1))
    assert len(counts) == len(paths)
    assert equal == total == outputs_of(paths)
    tell(f"conformance suite, integer: {equal:,} of {total:,} outputs equal in C")


def test_broken_networks_are_not_run_in_c() -> None:
    """By the rules of graphs and nodes, but for V68: a proof is not needed to run a network."""
    program = c_reader.build("test/runs.c")
    broken = [entry for entry in REFUSED if entry["rule"][0] == "V" and entry["rule"] not in ("V50", "V51", "V68")]
    found = c_reader.verdicts(program, [path_of(entry).read_bytes() for entry in broken])
    assert [entry["name"] for entry, (code, _) in zip(broken, found, strict=True) if not code] == []
    same = sum(rule == entry["rule"] for entry, (_, rule) in zip(broken, found, strict=True))
    tell(f"conformance suite in C: {len(broken)} broken networks are not run, {same} by the same rule")


# What the suite distinguishes


FAMILIES = (
    ("divide", "reciprocal", "reciprocal_offset", "reciprocal_fma"),
    ("float_bias", "integer_bias", "integer_bias_reciprocal", "affine"),
    ("mean_divide_offset", "mean_reciprocal", "mean_reciprocal_fma", "mean_stored"),
    ("multiply_shift", "fixed_point_single", "fixed_point_double", "power_of_two"),
    ("dynamic_fma", "dynamic_add", "dynamic_inverse", "dynamic_divide", "dynamic_reciprocal", "dynamic_symmetric"),
    ("lookup_float32", "lookup_float16"),
    ("exact", "folded"),
    ("interpolate", "interpolate_fma"),
)


def outputs_by(rule: str, said: dict[str, Any]) -> list[Any]:
    """The outputs of a file's networks if its nodes with rules of this family are computed by another rule of the
    family."""
    from conformance import evaluate

    family = next((family for family in FAMILIES if rule in family), ())
    nodes = [node | {"rule": rule} if node.get("rule") in family else node for node in said["nodes"]]
    return [evaluate.outputs(said | {"nodes": nodes}, vector) for vector in said["vectors"]]


def test_the_suite_distinguishes_every_two_rules() -> None:
    """A reader that uses a similar rule fails: for each rule a file shows the difference."""
    told = set()
    for entry in READABLE:
        if entry["level"] != "read":
            said = said_of(entry)
            rules = {node.get("rule") for node in said["nodes"]}
            for family in FAMILIES:
                for mine in rules.intersection(family):
                    stated = [vector["outputs"] for vector in said["vectors"]]
                    others = (rule for rule in family if rule != mine and (mine, rule) not in told)
                    told |= {(mine, rule) for rule in others if differs(rule, said, stated)}
    pairs = {(mine, other) for family in FAMILIES for mine in family for other in family if mine != other}
    assert pairs - told == set()
    tell(f"conformance suite: {len(told)} of {len(pairs)} pairs of neighbouring rules are told apart")


def differs(rule: str, said: dict[str, Any], stated: list[Any]) -> bool:
    """Also true if the other rule cannot be computed from the node's inputs."""
    try:
        return outputs_by(rule, said) != stated
    except (AssertionError, OverflowError, ZeroDivisionError):
        return True


# The second evaluation on a real network


def digits() -> qfmt.Model:
    return qfmt.convert(DIGITS)


def test_the_second_evaluation_agrees_with_torch() -> None:
    """The example contains the outputs of torch's own kernels for the held-back images."""
    from conformance import evaluate
    from conformance.twin import items, twin
    from qfmt.model import StoredArray, Vector

    held = np.load(HELD_BACK)
    image, theirs = StoredArray.of(held["x"][:1]), StoredArray.of(held["outputs"][:1])
    model = digits().replace(vectors=(Vector({"x": image}, {"dequant": theirs}),))
    said = twin(model, {})
    computed = evaluate.outputs(said, said["vectors"][0])["dequant"]
    assert computed == {"shape": [1, 10], "values": items(theirs)}
    tell("the evaluation in plain Python: 10 of 10 outputs of the digits network are torch's, to the bit")


@pytest.mark.parametrize("how", [{}, {"form": "fixed_point_double"}], ids=str)
def test_the_second_evaluation_agrees_on_a_lowered_network(how: dict[str, Any]) -> None:
    from conformance import evaluate
    from conformance.networks import numbers
    from conformance.twin import twin
    from qfmt.passes.lowering import lower_integer
    from qfmt.passes.sizes import with_input_shapes

    model = digits()
    model = model.replace(graph=with_input_shapes(model.graph, {"x": (1, 1, 8, 8)}))
    lowered = lower_integer(model, **how)
    image = numbers(1, (1, 1, 8, 8), 0, 255).astype(np.uint8)
    said = twin(lowered.with_vectors({lowered.graph.inputs[0]: image}), {})
    assert evaluate.outputs(said, said["vectors"][0]) == said["vectors"][0]["outputs"]


def test_the_suite_has_every_integer_operator_and_most_rules() -> None:
    from qfmt.ops import OPERATORS

    nodes = [node for entry in READABLE for node in said_of(entry)["nodes"]]
    integers = {
        (name, rule)
        for name, operator in OPERATORS.items()
        for rule in (operator.rules if operator.takes_integers else operator.sum_rules) or ("",)
        if operator.takes_integers or rule
    }
    assert integers - {(node["operator"], node.get("rule", "")) for node in nodes} == set()
    rules = {rule for operator in OPERATORS.values() for rule in operator.rules}
    left_out = {"moments", "fused"}  # float sums in another order
    assert rules - {node.get("rule") for node in nodes} == left_out
