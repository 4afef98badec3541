"""The built page, which is part of the package, is that of the sources."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.notation import json_value
from qfmt.ops import OPERATORS
from qfmt.view.description import describe
from support.counts import tell
from support.page_package import PagePackage
from support.paths import DIGITS, GOLDEN, ROOT

PAGE = ROOT / "qfmt" / "view" / "page.html"


def test_the_page_in_the_package_is_current(package: PagePackage) -> None:
    assert package.build() == PAGE.read_bytes(), "npm ci && npm run build in readers/page writes it anew"


def test_the_policy_names_the_script_and_the_style() -> None:
    """A browser runs nothing else, whatever the names in a file are."""
    page = PAGE.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert rules[kind] == f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
    assert rules["default-src"] == "'none'"


def test_it_carries_the_license_of_what_it_contains() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "Contains @dagrejs/dagre" in page and "Contains fflate" in page
    assert page.count("Permission is hereby granted, free of charge") == 2


def _crafted() -> Model:
    """Weights of all operators that have some, one of which has one channel; and zero points of odd forms."""
    per_tensor, rng = Quantization.per_tensor(0.5, 3, "uint8"), np.random.default_rng(5)
    codes = rng.integers(0, 256, (3, 3, 2), np.uint8)
    codes[1] = codes[:, 1] = codes[..., 1] = 3
    tensors = [Tensor.constant("one", np.full((1, 4), 3, np.uint8), per_tensor)]
    nodes = [Node("qfmt.Linear", ("x", "one"), ("y one",))]
    for operator, entry in OPERATORS.items():
        for at in entry.weights:
            for attributes in ({}, {"transB": 1}) if operator == "Gemm" else ({},):
                name = f"{operator} {at} {attributes}"
                tensors.append(Tensor.constant(name, codes, per_tensor))
                inputs = ("x", *[""] * (at - 1), name)
                nodes.append(Node(operator, inputs, (f"y {name}",), attributes, version=entry.version))
    grid = Quantization.of((0.5, 0.25), (3, 200), 0, 255, axis=1)
    tensors += [
        Tensor.constant("channels", codes[..., :2].swapaxes(1, 2), grid),
        Tensor.constant("bias", np.array([7, 7, -2, 250], np.int32), Quantization.per_tensor(1.0, 0, "int32")),
        Tensor.constant("wide", rng.integers(-(2**30), 2**30, 999, np.int32), Quantization.per_tensor(1.0, 0, "int32")),
        Tensor.constant("real", np.array([np.nan, -np.inf, 1e-300, 7, -2.5])),
        Tensor.constant("mask", np.array([0, -np.inf, np.nan, 0])),
        Tensor.constant("same", np.full(9, 1.5, np.float32)),
        Tensor.constant("none", np.zeros((0, 3), np.int8)),
        Tensor.constant(
            "int4", rng.integers(-8, 8, 99, np.int8), Quantization.per_tensor(1.0, 0, "int4"), dtype="int4"
        ),
        Tensor.constant("bool", np.array([True, False, True])),
        Tensor.constant("far", np.array([2**63 - 9, 2**63 - 1])),
        Tensor.constant("long", np.array([-(2**63), 5, 2**63 - 1])),
    ]
    ends = [Tensor("x", "float32", None), *(Tensor(name, "float32", None) for node in nodes for name in node.outputs)]
    return Model(Graph(("x",), (), nodes, {tensor.name: tensor for tensor in [*tensors, *ends]}))


def test_the_page_counts_as_python_does(package: PagePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of dropped files: equal for crafted weights, an example and the conformance suite."""
    crafted, digits = tmp_path / "crafted.qfb", tmp_path / "digits.qfb"
    with monkeypatch.context() as patch:
        patch.setattr("qfmt.file.writer.violations", lambda model: [])  # its nodes lack attributes
        qfmt.save(_crafted(), crafted)
    qfmt.convert(DIGITS).save(digits)
    left_out = {"refused", "shards"}  # one file is dropped, without its shards
    suite = sorted(path for path in GOLDEN.rglob("*.qfb") if not {path.parent.name, path.stem} & left_out)
    _compare(package, [crafted, digits, *suite])


def test_the_page_counts_a_network_as_python_does(package: PagePackage, shared_data: Path, tmp_path: Path) -> None:
    qfmt.convert(shared_data / "torchscript" / "ios_mobilenet_quantized.pt").save(tmp_path / "network.qfb")
    _compare(package, [tmp_path / "network.qfb"])


def _compare(package: PagePackage, files: list[Path]) -> None:
    count = 0
    for path, found in zip(files, package.described(*files), strict=True):
        model = qfmt.load(path)
        made = describe(model, path.name)
        assert found["noGraph"] == made["noGraph"]
        for ours, theirs in zip(made["tensors"], found["tensors"], strict=True):
            for key in ("name", "dtype", "shape", "aliases", "stats"):
                assert _in_javascript(theirs.get(key)) == _in_javascript(ours.get(key)), (path, ours["name"], key)
            if "float" not in ours["dtype"] or ours["dtype"] == "float64":
                assert _in_javascript(theirs.get("values")) == _in_javascript(ours.get("values")), (path, ours["name"])
            elif "values" in ours:  # Python gives the shortest number that is the same float32
                real, same = (np.array(list(map(float, facts["values"])), np.float32) for facts in (ours, theirs))
                assert np.array_equal(real, same, equal_nan=True), (path, ours["name"])
            count += "stats" in ours
    tell(f"page: statistics of {count:,} constants of {len(files)} files are those of Python")


def _in_javascript(facts: Any) -> Any:
    """JavaScript has no numbers but float64."""
    return json.loads(json.dumps(json_value(facts)), parse_int=float)


def test_the_numbers_of_a_formula(package: PagePackage, tmp_path: Path) -> None:
    """A bias is in units of the sums only with their scale; a constant that is added is no weight."""
    grids = {scale: Quantization.per_tensor(scale, 0, "uint8") for scale in (0.5, 0.125, 2.0)}
    x, y = Tensor("x", "uint8", (1, 2), None, grids[0.5]), Tensor("y", "uint8", (1, 2), None, grids[2.0])
    weight = Tensor.constant("w", np.array([[1, 2], [3, 4]], np.uint8), grids[0.125])
    biases = [
        (Tensor.constant("b", np.array([7, -3], np.int32), Quantization.per_tensor(0.0625, 0, "int32")), ("B", 7)),
        (Tensor.constant("b", np.array([7, -3], np.int8), Quantization.per_tensor(0.25, 1, "int8")), ("b", 1.5)),
        (Tensor.constant("b", np.array([7, -3], np.int32)), ("b", 7)),
    ]
    nodes = [Node("qfmt.Linear", ("x", "w", "b"), ("y",), version=1, rule="integer_bias")] * len(biases)
    added = Node("Add", ("x", "c"), ("y",), version=14, rule="divide")
    constant = Tensor.constant("c", np.array([[5, 6]], np.uint8), grids[0.125])
    sums = Tensor("x", "int32", (1, 2))
    factor, addend = (Tensor.constant(name, np.array(value, np.float32)) for name, value in (("m", 3), ("a", 10)))
    shifted = Node("qfmt.RequantShift", ("x", "m", "a"), ("y",), {"div": 4}, version=1, rule="multiply_add_divide")
    cases = [
        *((node, [x, weight, bias], expected) for node, (bias, expected) in zip(nodes, biases, strict=True)),
        (added, [x, constant], ("sa", 0.5)),
        (shifted, [sums, factor, addend], ("mul / div", 0.75)),
    ]
    for index, (node, tensors, _) in enumerate(cases):
        graph = Graph(("x",), ("y",), [node], {tensor.name: tensor for tensor in (*tensors, y)})
        qfmt.save(Model(graph), tmp_path / f"{index}.qfb")
    files = [tmp_path / f"{index}.qfb" for index in range(len(cases))]
    for (node, _, (name, value)), (found,) in zip(cases, package.symbols(*files), strict=True):
        symbols = dict(found)
        assert symbols[name] == value, (node.operator, symbols)
        assert not {"B", "b"} - {name} & symbols.keys()
        assert ("at" in symbols) == (node.operator == "qfmt.Linear")
