"""[quant_min, quant_max] of an output clamps it: for every operator, in every engine, in ONNX and in C."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cases.onnx_nodes import QUANTIZED, quantized_node
from cases.operators import CASES
from cases.torch_nodes import one_node
from networks.integer import extreme_of_nothing
from qfmt.errors import InexpressibleNodesError, QfmtError
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Quantized, Trait, only_moves
from qfmt.passes.fold import fold_sandwiches
from qfmt.passes.lowering import lower_integer
from qfmt.rules import graph_violations
from support import onnx_witness as witness
from support.c_program import Together, flat
from support.counts import tell

pytestmark = pytest.mark.usefixtures("fbgemm")

Array = np.ndarray[Any, Any]
Outputs = dict[str, Array]

ENGINES = ("reference", "native", "onednn", "qdq")
CLAMPING = [
    name
    for name, operator in sorted(OPERATORS.items())
    if (name in CASES and operator.quantized in (Quantized.ACCUMULATES, Quantized.COMPUTES, Quantized.OWN))
    or OPERATORS[name].traits & Trait.CLAMP
]


def narrowed(model: Model, outputs: Outputs) -> Model | None:
    """The model with ranges that clamp both ends of its outputs; None if no output is quantized."""
    tensors = dict(model.tensors)
    for name, array in outputs.items():
        q = tensors[name].quantization
        if q is not None and array.size:
            low, high = (int(bound) for bound in np.quantile(array.astype(np.int64), (0.3, 0.7), method="nearest"))
            tensors[name] = replace(tensors[name], quantization=replace(q, quant_min=low, quant_max=high))
    if tensors == model.tensors:
        return None
    nodes = tuple(
        replace(node, rule=OPERATORS[node.operator].rules[0])  # a node that only moved integers clamps them now
        if only_moves(node, model.tensors) and not only_moves(node, tensors)
        else node
        for node in model.nodes
    )
    made = model.replace(graph=replace(model.graph, tensors=tensors, nodes=nodes))
    assert not graph_violations(made)
    return made


def clamped(outputs: Outputs, model: Model) -> Outputs:
    grids = {name: model.tensors[name].quantization for name in outputs}
    return {
        name: array if (q := grids[name]) is None else np.clip(array, q.quant_min, q.quant_max)
        for name, array in outputs.items()
    }


def by_torch(model: Model, inputs: Outputs, engine: str) -> Outputs:
    made = model.to_torch(engine)(*(torch.from_numpy(np.array(array)) for array in inputs.values()))
    results = made if isinstance(made, tuple) else (made,)
    return {name: each.numpy() for name, each in zip(model.graph.outputs, results, strict=True)}


def assert_equal(got: Outputs, wanted: Outputs, what: object) -> int:
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype, what
        assert np.array_equal(got[name], array, equal_nan=array.dtype.kind == "f"), what
    return sum(array.size for array in wanted.values())


@pytest.mark.filterwarnings("ignore:All inputs of this cat operator must share the same quantization parameters")
@pytest.mark.parametrize("tries", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["8 bits", "more bits"])
def test_every_operator_clamps_in_every_engine(kind: str, tries: int) -> None:
    """With a narrower range the results are the clamped results of the full range: for `run`, and for each
    engine."""
    counts = dict.fromkeys(("run", *ENGINES), 0)
    ran: Counter[str] = Counter()
    for name in CLAMPING:
        for seed in range(tries + 5):
            if ran[name] == tries:
                break
            full, inputs = one_node(name, kind, np.random.default_rng([seed, *name.encode(), len(kind)]))
            try:
                before = full.run(inputs)
            except QfmtError:
                continue  # the operator does not support the random rule or quantization
            model = narrowed(full, before)
            if model is None:
                continue
            ran[name] += 1
            expected = model.run(inputs)
            counts["run"] += assert_equal(expected, clamped(before, model), (name, seed))
            for engine in ENGINES:
                got = by_torch(model, inputs, engine)
                wanted = expected if engine == "reference" else clamped(by_torch(full, inputs, engine), model)
                counts[engine] += assert_equal(got, wanted, (engine, name, seed, model.nodes[0].rule))
    tell(f"{kind}: outputs of {len(+ran)} operators, all equal: {counts}")
    assert +ran == Counter(dict.fromkeys({*CLAMPING} - {"DequantizeLinear"}, tries))  # which has floats


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_every_operator_clamps_in_onnx(form: str) -> None:
    count, ran = 0, set()
    names = sorted(set(QUANTIZED) & set(CLAMPING) - {"DequantizeLinear"})
    for name in names:
        rng = np.random.default_rng(1)
        case = CASES[name](rng)
        while case.inputs[0] is None or any(each is not None and 0 in each.shape for each in case.inputs):
            case = CASES[name](rng)
        full, inputs = quantized_node(name, case, rng)
        model = narrowed(full, full.run(inputs))
        assert model is not None
        try:
            protos = [each.to_onnx(form=form) for each in (model, full)]
            results = [witness.runtime(each, inputs) for each in protos]
        except (InexpressibleNodesError, *witness.ABSENT):
            continue
        got, before = (dict(zip(model.graph.outputs, each, strict=True)) for each in results)
        count += assert_equal(got, clamped(before, model), (form, name))
        ran.add(name)
    tell(f"ONNX Runtime, {form}: {count} outputs of {len(ran)} operators, all equal")
    assert ran == {*names}


@pytest.mark.parametrize("bounds", [(None, None), (-0.4, None), (None, 0.9), (-0.4, 0.9), (0.9, -0.4)])
@pytest.mark.parametrize("operator", ["Relu", "Clip"])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_relu_and_clip_on_every_integer(operator: str, bounds: tuple[float | None, float | None], dtype: str) -> None:
    model, every = clamp(operator, bounds if operator == "Clip" else (), dtype)
    expected = model.run({"x": every})
    assert -50 <= expected["y"].min() <= expected["y"].max() <= 60
    for engine in ENGINES:
        assert_equal(by_torch(model, {"x": every}, engine), expected, engine)


def clamp(operator: str, bounds: tuple[float | None, ...], dtype: str) -> tuple[Model, Array]:
    """Relu or Clip with these bounds and an output range of -50 … 60, and every integer as input."""
    limits = np.iinfo(dtype)
    x = Quantization.per_tensor(0.02, 3, dtype)
    tensors = {
        "x": Tensor("x", dtype, (None,), quantization=x),
        "y": Tensor("y", dtype, (None,), quantization=replace(x, quant_min=-50, quant_max=60)),
    }
    names = ["" if bound is None else f"bound{i}" for i, bound in enumerate(bounds)]
    for name, bound in zip(names, bounds, strict=True):
        if bound is not None:
            tensors[name] = Tensor.constant(name, np.float32(bound))
    node = Node(operator, ("x", *names), ("y",), version=OPERATORS[operator].version)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    return Model(Graph(("x",), ("y",), (node,), tensors), engine="fbgemm"), every


LOWERED = ("Relu", "Clip", "Add", "Mul", "Conv", "qfmt.Linear", "GlobalAveragePool", "AveragePool", "Sigmoid", "Concat")


@pytest.mark.parametrize("tries", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_lowered_models_clamp_in_c(tries: int, tmp_path: Path) -> None:
    models, given, ran = [], [], set()
    for name in LOWERED:
        for seed in range(tries):
            full, inputs = one_node(name, "8 bits", np.random.default_rng([seed, *name.encode()]))
            try:
                model = narrowed(full, full.run(inputs))
                lowered = None if model is None else lower_integer(fixed(model, inputs))
            except QfmtError:
                continue  # the random rule or inputs cannot be lowered
            if lowered is not None:
                ran.add(name)
                models.append(lowered)
                given.append(inputs)
    together = Together(models, tmp_path / "c")
    count = 0
    for index, (model, inputs) in enumerate(zip(models, given, strict=True)):
        expected = flat(model.run(inputs), model)
        assert together(index, inputs).tolist() == expected.tolist(), model.nodes
        count += expected.size
    tell(f"C: {count} outputs of {len(models)} networks, all equal")
    assert ran == {*LOWERED}


@pytest.mark.parametrize(("operator", "end"), [("ReduceMax", 10), ("ReduceMin", 90)])
def test_the_extreme_of_no_elements_is_an_end_of_the_range(operator: str, end: int, tmp_path: Path) -> None:
    model, given = extreme_of_nothing(operator), {"x": np.zeros((0, 3), np.uint8)}
    assert model.run(given)["y"].tolist() == [end] * 3
    assert Together([model], tmp_path / "c")(0, given).tolist() == [end] * 3
    with pytest.raises(InexpressibleNodesError, match="reduces no elements"):
        model.to_onnx()


def fixed(model: Model, inputs: Outputs) -> Model:
    """The model with the sizes of these inputs."""
    tensors = {**model.tensors, **{name: replace(model.tensors[name], shape=x.shape) for name, x in inputs.items()}}
    for name, array in model.run(inputs).items():
        tensors[name] = replace(tensors[name], shape=array.shape)
    return model.replace(graph=replace(model.graph, tensors=tensors))


@pytest.mark.parametrize("operator", ["Identity", "Pad"])
def test_a_quantizer_that_clamps_is_not_folded_away(operator: str) -> None:
    """A QuantizeLinear with equal parameters before and after still clamps, also after operators that move
    integers."""
    wide = Quantization.per_tensor(0.5, 0, "int8")
    narrow = replace(wide, quant_min=-20, quant_max=20)
    tensors = {
        "x": Tensor("x", "int8", (4,), quantization=wide),
        "real": Tensor("real", "float32", (4,)),
        "moved": Tensor("moved", "float32", (4,)),
        "q": Tensor("q", "int8", (4,), quantization=narrow),
        "q_real": Tensor("q_real", "float32", (4,)),
        "y": Tensor("y", "int8", (4,), quantization=wide),
        "pads": Tensor.constant("pads", np.zeros(2, np.int64)),
    }
    quantize, dequantize = (OPERATORS[name] for name in ("QuantizeLinear", "DequantizeLinear"))
    given = ("real", "pads") if operator == "Pad" else ("real",)
    attributes: dict[str, Any] = {"mode": "edge"} if operator == "Pad" else {}
    nodes = (
        Node("DequantizeLinear", ("x",), ("real",), version=dequantize.version),
        Node(operator, given, ("moved",), attributes, version=OPERATORS[operator].version),
        Node("QuantizeLinear", ("moved",), ("q",), version=quantize.version, rule="divide"),
        Node("DequantizeLinear", ("q",), ("q_real",), version=dequantize.version),
        Node("QuantizeLinear", ("q_real",), ("y",), version=quantize.version, rule="divide"),
    )
    model = Model(Graph(("x",), ("y",), nodes, tensors), engine="onnx")
    folded = model.replace(graph=fold_sandwiches(model.graph))
    assert not graph_violations(folded)
    values = {"x": np.array([-128, -20, 5, 127], np.int8)}
    assert model.run(values)["y"].tolist() == folded.run(values)["y"].tolist() == [-20, -20, 5, 20]
