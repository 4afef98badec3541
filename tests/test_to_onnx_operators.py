"""Every operator alone: a model of one node, written in ONNX and run by others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_witness as witness
import pytest
from operator_cases import CASES, ON_INTEGERS, Case, compute

from qfmt.errors import InexpressibleNodesError
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS

TRIES = 6
"""Random cases of each operator."""

REAL_INPUTS = {
    "Clip": 1, "Pad": 1, "Resize": 1, "BatchNormalization": 1, "LayerNormalization": 1, "GroupNormalization": 1,
    "InstanceNormalization": 1, "Conv": 2, "ConvTranspose": 2, "qfmt.Linear": 2,
}  # fmt: skip
"""How many of its inputs come quantized; the others are floats. All, where nothing is said."""

WEIGHTS = {"Conv": 0, "ConvTranspose": 1, "qfmt.Linear": 0}
"""The axis of the scales of the second input."""


def one_node(name: str, case: Case, rng: np.random.Generator) -> tuple[Model, dict[str, np.ndarray]]:
    """A model without quantization; integers, and some of the other inputs, are constants."""
    tensors: dict[str, Tensor] = {}
    inputs = {}
    for i, array in enumerate(case.inputs):
        if array is None:
            continue
        if i and (array.dtype == np.int64 or name == "Resize" or rng.random() < 0.5):
            tensors[f"x{i}"] = Tensor.constant(f"x{i}", array)
        else:
            tensors[f"x{i}"] = Tensor(f"x{i}", array.dtype.name, array.shape)
            inputs[f"x{i}"] = np.asarray(array)
    results = compute(name, case)
    outputs = [Tensor(f"y{i}", each.dtype.name, each.shape) for i, each in enumerate(results)]
    return _model(name, case, tensors, inputs, outputs, ""), inputs


def _model(
    name: str, case: Case, tensors: dict[str, Tensor], inputs: dict[str, Any], outputs: list[Tensor], rule: str
) -> Model:
    operator = OPERATORS[name]
    names = tuple("" if each is None else f"x{i}" for i, each in enumerate(case.inputs))
    made = tuple(tensor.name for tensor in outputs)
    node = Node(name, names, made, operator.complete(case.attributes), "node", operator.version, rule)
    tensors |= {tensor.name: tensor for tensor in outputs}
    return Model(Graph(tuple(inputs), made, (node,), tensors), engine="onnx")


DISPUTED = {
    "LSTM": "ONNX Runtime clips in other places; the evaluator knows one activation and one direction",
    "GRU": "of a layout that ONNX Runtime does not take; the evaluator knows one activation and one direction",
}
"""Where witnesses may all say something else, and why."""


def check(name: str, model: Model, inputs: witness.Arrays, tallies: dict[str, witness.Tally], **how: Any) -> None:
    """Let the witnesses run it, and count. One of them has to agree: each has operators, or cases, that it gets wrong.

    (The evaluator takes one image only in ConvTranspose, knows no negative pads, and so on; ONNX Runtime with its
    fusions wraps a Softmax around, and does not know the dilations of an AveragePool.)
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
        check(name, *one_node(name, CASES[name](rng), rng), tallies)
    report(name, tallies)


@pytest.mark.parametrize("opset", (13, 14, 16, 18, 19, 21, 23, 25))
def test_other_opsets(opset: int) -> None:
    """An operator is written so that others get the same, or refused with the reason."""
    tally, refused = witness.Tally(), {}
    for name in OF_ONNX:
        rng = np.random.default_rng(opset)
        try:
            check(name, *one_node(name, CASES[name](rng), rng), {"plain": tally}, opset=opset)
        except InexpressibleNodesError as error:
            refused[name] = str(error)
    print(f"\nopset {opset}: {tally}; refused: {len(refused)}", *refused.values(), sep="\n  ")
    assert tally.total


def quantized_node(name: str, case: Case, rng: np.random.Generator) -> tuple[Model, dict[str, np.ndarray]]:
    """The same with quantized tensors, by the rule of ONNX."""
    operator = OPERATORS[name]
    moves = operator.moves
    dtype = str(rng.choice(["uint8", "int8"]))
    tensors: dict[str, Tensor] = {}
    inputs = {}
    for i, array in enumerate(case.inputs):
        if array is None:
            continue
        if array.dtype != np.float32 or i >= REAL_INPUTS.get(name, 99) or (moves and i and name != "Concat"):
            tensors[f"x{i}"] = Tensor.constant(f"x{i}", array)
        elif i == 1 and name in WEIGHTS:
            grid = weight_grid(array, WEIGHTS[name])
            tensors[f"x{i}"] = Tensor.constant(f"x{i}", on_grid(array, grid, "int8"), grid)
        else:
            grid = grid_of(array, dtype, rng)
            tensors[f"x{i}"] = Tensor(f"x{i}", dtype, array.shape, quantization=grid)
            inputs[f"x{i}"] = np.asarray(on_grid(array, grid, dtype))
    results = compute(name, case)
    outputs = []
    for i, each in enumerate(results):
        grid = tensors["x0"].quantization if moves else grid_of(each, dtype, rng)
        outputs.append(Tensor(f"y{i}", dtype, each.shape, quantization=grid))
    rule = operator.engines.get("onnx", "")
    if rule not in ("divide", "integer_bias", "") or {case.attributes.get(key, 1) for key in ("alpha", "beta")} != {1}:
        rule = "divide" if rule else rule
    return _model(name, case, tensors, inputs, outputs, rule), inputs


def grid_of(array: np.ndarray, dtype: str, rng: np.random.Generator) -> Quantization:
    limits = np.iinfo(dtype)
    low, high = float(array.min(initial=0)), float(array.max(initial=0))
    scale = float(np.float32(max(1e-3, (high - low) / 255)))
    return Quantization.per_tensor(scale, int(np.clip(limits.min - round(low / scale), limits.min, limits.max)), dtype)


def weight_grid(array: np.ndarray, axis: int) -> Quantization:
    others = tuple(i for i in range(array.ndim) if i != axis)
    scales = np.abs(array).max(others, initial=0.1) / np.float32(127)
    return Quantization(tuple(scales.astype(np.float32).tolist()), (0,) * scales.size, -128, 127, axis)


def on_grid(array: np.ndarray, grid: Quantization, dtype: str) -> np.ndarray:
    values = np.rint(array / grid.scales(array.ndim)) + grid.zero_points(array.ndim)
    return np.asarray(np.clip(values, grid.quant_min, grid.quant_max)).astype(dtype)


QUANTIZED = [name for name in CASES if OPERATORS[name].quantized.name not in ("FLOAT_ONLY", "WEIGHTS", "INTEGERS")]


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
    assert tallies["plain"].one <= 0.01 * tallies["plain"].total


@pytest.mark.parametrize(
    ("opset", "form"), [*((opset, "qdq") for opset in (13, 15, 17, 18, 20, 23)), (13, "qoperator"), (21, "qoperator")]
)
def test_integers_in_older_opsets(opset: int, form: str) -> None:
    """One case of each operator; what cannot be said is refused, with the reason."""
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
    assert tally.equal >= 0.999 * tally.total
    assert refused.keys() <= ({"AveragePool", "LpPool", "MaxPool", "Trilu"} if opset < 22 else set())
