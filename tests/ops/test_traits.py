"""Traits of operators and nodes, and typed access to attributes."""

from __future__ import annotations

import pytest

from qfmt.errors import QfmtError
from qfmt.model import DTYPES, Node, first_holding
from qfmt.ops import OPERATORS, Quantized, Trait, has


def test_traits_follow_from_the_entries() -> None:
    for entry in OPERATORS.values():
        assert bool(entry.traits & Trait.ANY_MOVE) == (entry.quantized is Quantized.MOVES), entry.name
        assert (Trait.PRODUCT in entry.traits) == (entry.quantized is Quantized.ACCUMULATES), entry.name
        if entry.traits & (Trait.PRODUCT | Trait.MEAN):
            assert entry.sums is not None, entry.name
        if entry.traits & Trait.PRODUCT:
            assert entry.weights == (1,), entry.name
        assert all(0 < place < len(entry.inputs) for place in entry.weights), entry.name
    for trait in Trait:
        assert any(trait in entry.traits for entry in OPERATORS.values()), trait


def test_no_trait_of_an_unknown_operator() -> None:
    assert not has(Node("vendor.Conv", (), ()), Trait.PRODUCT)
    known = OPERATORS["Conv"].version
    for version in (known - 1, known, known + 1):
        assert has(Node("Conv", (), (), version=version), Trait.PRODUCT | Trait.MEAN) == (version == known)


def test_attributes_by_their_types() -> None:
    node = Node("Conv", ("x",), ("y",), {"group": 2, "pads": (1, 1), "mode": "edge"}, name="first")
    assert (node.int("group"), node.ints("pads"), node.text("mode")) == (2, (1, 1), "edge")
    assert (node.int("axis", 3), node.ints("axes", ()), node.text("rule", "")) == (3, (), "")
    for read, name in ((node.ints, "group"), (node.int, "pads"), (node.text, "group"), (node.int, "none")):
        with pytest.raises(QfmtError, match=f"first: its attribute {name} is "):
            read(name)
    odd = Node("Conv", ("x",), ("y",), {"pads": (1, 1.0), "strides": (1, True), "group": True})
    for read, name in ((odd.ints, "pads"), (odd.ints, "strides"), (odd.int, "group")):
        with pytest.raises(QfmtError, match=f"y: its attribute {name} is "):
            read(name)


def test_types_that_hold_a_range() -> None:
    assert first_holding(("int8", "uint8", "int16"), 0, 200) == "uint8"
    assert first_holding(("int8", "uint8"), -1, 200) is None
    for name in ("int8", "uint8", "int4", "uint2", "int16"):
        every = DTYPES[name].every()
        assert (int(every[0]), int(every[-1]), every.size) == (DTYPES[name].minimum, DTYPES[name].maximum,
                                                              1 << DTYPES[name].bits)  # fmt: skip
