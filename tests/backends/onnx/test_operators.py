"""Every operator alone: a model of one node, exported to ONNX and run by other programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from cases.onnx_nodes import QUANTIZED, one_node, quantized_node
from cases.operators import CASES, ON_INTEGERS
from qfmt.errors import InexpressibleNodesError
from qfmt.model import Graph, Model, Node, Tensor
from support import onnx_witness as witness

TRIES = 6
"""Random cases of each operator."""


DISPUTED = {
    "GRU": "of kinds of which ONNX Runtime has none; the evaluator knows one activation and one direction",
}
"""Cases in which all witnesses may differ, and the reason."""


def check(name: str, model: Model, inputs: witness.Arrays, tallies: dict[str, witness.Tally], **how: Any) -> None:
    """Run the model in the witnesses, and count. At least one must agree: each computes some operators or cases
    incorrectly.

    (The evaluator supports only one image in ConvTranspose, no negative pads, and so on. ONNX Runtime with its
    fusions wraps the integers of a Softmax around, and ignores the dilations of an AveragePool.)
    """
    proto = model.to_onnx(**how)
    onnx.checker.check_model(proto, full_check=True)
    faults: dict[str, list[str]] = {}
    for who, tally in tallies.items():
        alone = witness.Tally()
        try:
            theirs = witness.evaluator(proto, inputs) if who == "reference" else witness.runtime(proto, inputs, who)
            witness.compare(model, theirs, inputs, alone)
        except witness.ABSENT as error:
            print(f"{name} {who}: {str(error)[:100]}")
            continue
        faults[who] = alone.faults
        if not alone.faults:
            tally.count(alone)
    disagree = {who: found for who, found in faults.items() if found}
    if disagree:
        print(f"{name}: {disagree}")
    assert not faults or len(disagree) < len(faults) or name in DISPUTED, disagree


def report(what: str, tallies: dict[str, witness.Tally]) -> None:
    for who, tally in tallies.items():
        print(f"\n{what} {who}: {tally}", *tally.faults[:3], sep="\n  ")


OF_ONNX = [name for name in CASES if name not in ON_INTEGERS]


@pytest.mark.parametrize("name", OF_ONNX)
def test_floats(name: str) -> None:
    tallies = {who: witness.Tally() for who in ("plain", "reference")}
    for seed in range(TRIES):
        rng = np.random.default_rng(seed)
        model, inputs = one_node(name, CASES[name](rng), rng)
        if name == "LSTM" and model.nodes[0].attributes["clip"]:
            with pytest.raises(InexpressibleNodesError, match="has a clip, which ONNX Runtime applies"):
                model.to_onnx()
            continue
        check(name, model, inputs, tallies)
    report(name, tallies)


@pytest.mark.parametrize("opset", (13, 14, 16, 18, 19, 21, 23, 25))
def test_other_opsets(opset: int) -> None:
    """An operator is exported so that other programs compute the same, or refused with the reason."""
    tally, refused = witness.Tally(), {}
    for name in OF_ONNX:
        rng = np.random.default_rng(opset)
        try:
            check(name, *one_node(name, CASES[name](rng), rng), {"plain": tally}, opset=opset)
        except InexpressibleNodesError as error:
            refused[name] = str(error)
    print(f"\nopset {opset}: {tally}; refused: {len(refused)}", *refused.values(), sep="\n  ")
    assert tally.equal + tally.close == tally.total > 0  # floats are close: libraries add them up in other orders


@pytest.mark.parametrize("name", [name for name in QUANTIZED if name != "DequantizeLinear"])
def test_integers(name: str) -> None:
    tallies = {who: witness.Tally() for who in ("plain", "fused", "reference")}
    for seed in range(TRIES):
        rng = np.random.default_rng(seed)
        case = CASES[name](rng)
        if case.inputs[0] is None or any(each is not None and 0 in each.shape for each in case.inputs):
            continue
        check(name, *quantized_node(name, case, rng), tallies)
    report(name, tallies)
    if name == "Softmax":
        del tallies["fused"]  # QLinearSoftmax looks up exponentials in a table
    assert all(tally.equal == tally.total for tally in tallies.values())


@pytest.mark.parametrize(
    ("opset", "form"), [*((opset, "qdq") for opset in (13, 15, 17, 18, 20, 23)), (13, "qoperator"), (21, "qoperator")]
)
def test_integers_in_older_opsets(opset: int, form: str) -> None:
    """One case of each operator; one that the opset cannot express is refused with the reason."""
    tally, refused = witness.Tally(), {}
    for name in QUANTIZED:
        rng = np.random.default_rng(opset)
        case = CASES[name](rng)
        if name == "DequantizeLinear" or any(each is not None and 0 in each.shape for each in case.inputs):
            continue
        try:
            check(name, *quantized_node(name, case, rng), {"plain": tally}, opset=opset, form=form)
        except InexpressibleNodesError as error:
            refused[name] = str(error)
    print(f"\nopset {opset} {form}: {tally}; refused: {len(refused)}", *refused.values(), sep="\n  ")
    assert tally.equal == tally.total > 0
    assert refused.keys() <= ({"AveragePool", "LpPool", "MaxPool", "Trilu"} if opset < 22 else set())


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(("own", "other", "number"), [("int32", "float32", 0.5), ("int8", "int32", 300)])
def test_types_that_onnx_does_not_mix_are_refused(own: str, other: str, number: float, stored: bool) -> None:
    """0.5 as an integer is 0, and 300 as int8 is 44."""
    array = np.array([number], other)
    factor = Tensor.constant("c", array) if stored else Tensor("c", other, (1,))
    inputs = ("x",) if stored else ("x", "c")
    node = Node("Mul", ("x", "c"), ("y",), {}, version=14)
    tensors = {"x": Tensor("x", own, (1,)), "c": factor, "y": Tensor("y", own, None)}
    model = Model(Graph(inputs, ("y",), (node,), tensors))
    with pytest.raises(InexpressibleNodesError, match=f"Mul computes with {own} and {other}, which ONNX does not mix"):
        model.to_onnx()
