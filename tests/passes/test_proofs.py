"""Bounds of sums, computed from a file: compared with sums that occur, and with the statements of the lowering."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner

import qfmt
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.cli import main as cli
from qfmt.errors import QfmtError, RunError, ValidityError
from qfmt.model import Proof, static_shape
from qfmt.ops import OPERATORS
from qfmt.passes.lowering import lower_integer
from qfmt.passes.proofs import proofs
from qfmt.rules import violations
from support.counts import tell
from support.paths import DIGITS, SUITE

WINDOW = {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}


def grid(zero: int, low: int = 0, high: int = 255) -> Quantization:
    return Quantization.of((0.5,), (zero,), low, high)


def with_reach(node: Node, low: tuple[int, ...], high: tuple[int, ...]) -> Node:
    return replace(node, proof=Proof(low, high))


def net(nodes: list[Node], tensors: list[Tensor], sums: tuple[int, ...], stated: Quantization | None = None) -> Model:
    """A network of nodes, the last of which sums, and a requantization of its sums `s` with the shape `sums`."""
    numbers = [
        Tensor.constant("m", np.ones(1, np.int32)),
        Tensor.constant("shift", np.zeros(1, np.uint8)),
        Tensor.constant("add", np.zeros(1, np.int64)),
    ]
    axis = {"axis": 1 if len(sums) > 1 else 0}
    last = Node("qfmt.Requantize", ("s", "m", "shift", "add"), ("y",), axis, "", 1, "multiply_shift")
    last = with_reach(last, (-(1 << 31),), ((1 << 31) - 1,))
    outputs = [Tensor("s", "int32", sums, None, stated), Tensor("y", "int8", sums, None, grid(0, -128, 127))]
    named = {tensor.name: tensor for tensor in (*tensors, *numbers, *outputs)}
    inputs = tuple(tensor.name for tensor in tensors if not tensor.is_constant)
    model = Model(Graph(inputs, ("s", "y"), (*nodes, last), named))
    assert not violations(model)
    return model


def adder(operator: str, inputs: tuple[str, ...], rule: str = "", **attributes: Any) -> Node:
    entry = OPERATORS[operator]
    return Node(operator, inputs, ("s",), entry.complete(attributes), "", entry.version, rule)


def random(rng: np.random.Generator, shape: tuple[int, ...], low: int = -128, high: int = 127) -> np.ndarray:
    return rng.integers(low, high + 1, shape)


def linear(rng: np.random.Generator, rule: str) -> Model:
    zero = 0 if rule == "folded" else int(rng.integers(-50, 50))
    w = Tensor.constant("w", random(rng, (3, 7)).astype(np.int8), Quantization.of((0.5,), (zero,), -128, 127))
    b = Tensor.constant("b", random(rng, (3,), -1000, 1000).astype(np.int32))
    x = Tensor("x", "uint8", (1, 7), None, grid(int(rng.integers(256)), 10, 200))
    return net([adder("qfmt.Linear", ("x", "w", "b"), rule)], [x, w, b], (1, 3))


def conv(rng: np.random.Generator, rule: str, size: int = 2, pads: tuple[int, ...] = (0, 0, 0, 0)) -> Model:
    w = Tensor.constant("w", random(rng, (4, 1, 2, 2)).astype(np.int8), Quantization.of((0.5,), (0,), -128, 127))
    x = Tensor("x", "uint8", (1, 2, size, size), None, grid(5, 10, 200))
    across = size - 1 + sum(pads) // 2
    attributes = {**WINDOW, "pads": pads, "group": 2}
    return net([adder("Conv", ("x", "w"), rule, **attributes)], [x, w], (1, 4, across, across))


def gemm(rng: np.random.Generator) -> Model:
    w = Tensor.constant("w", random(rng, (7, 3)).astype(np.int8), Quantization.of((0.5,), (0,), -128, 127))
    c = Tensor.constant("c", random(rng, (2, 3), -1000, 1000).astype(np.int32))
    return net(
        [adder("Gemm", ("x", "w", "c"), "folded")], [Tensor("x", "int8", (2, 7), None, grid(3, -5, 90)), w, c], (2, 3)
    )


def matmul(rng: np.random.Generator) -> Model:
    a = Tensor("a", "uint8", (1, 7), None, grid(9, 3, 200))
    b = Tensor("b", "int8", (7, 1), None, grid(-5, -100, 100))
    return net([adder("MatMul", ("a", "b"), "exact")], [a, b], (1, 1))


def matrices(rng: np.random.Generator, rule: str) -> Model:
    """The sums of one matrix are positive, those of the other negative, and 0 is between none of them."""
    w = random(rng, (1, 7, 1), 1, 100).astype(np.int8)
    w = Tensor.constant("w", np.concatenate([w, -w]), Quantization.of((0.5,), (0,), -128, 127))
    return net(
        [adder("MatMul", ("x", "w"), rule)], [Tensor("x", "uint8", (2, 1, 7), None, grid(3, 10, 90)), w], (2, 1, 1)
    )


def products(rng: np.random.Generator) -> Model:
    a, b = (Tensor(name, "uint8", (1, 1), None, grid(zero, 3, 200)) for name, zero in (("a", 40), ("b", 220)))
    return net([adder("Mul", ("a", "b"), "exact")], [a, b], (1, 1))


def weighted(rng: np.random.Generator) -> Model:
    a, b = (Tensor(name, "uint8", (1, 1), None, grid(0, low, 200)) for name, low in (("a", 4), ("b", 7)))
    return net([adder("qfmt.WeightedSum", ("a", "b", "a"), weights=(3, -5, -1))], [a, b], (1, 1))


def mean(rng: np.random.Generator) -> Model:
    x = Tensor("x", "uint8", (1, 1, 5), None, grid(150, 100, 200))
    return net([adder("qfmt.AdaptiveAveragePool", ("x",), "exact", output_size=(2,))], [x], (1, 1, 2))


KINDS: Mapping[str, Callable[[np.random.Generator], Model]] = {
    "Linear, exact": lambda rng: linear(rng, "exact"),
    "Linear, folded": lambda rng: linear(rng, "folded"),
    "Conv, exact": lambda rng: conv(rng, "exact"),
    "Conv, folded": lambda rng: conv(rng, "folded"),
    "Gemm": gemm,
    "MatMul": matmul,
    "matrices, exact": lambda rng: matrices(rng, "exact"),
    "matrices, folded": lambda rng: matrices(rng, "folded"),
    "Mul": products,
    "WeightedSum": weighted,
    "AdaptiveAveragePool": mean,
}


def climbed(model: Model, sign: int) -> int:
    """The largest sum (smallest for -1) found by hill climbing: start with all elements at an end of their range,
    and move one at a time to the other end if the sum does not get worse."""
    grids = {name: cast(Quantization, model.tensors[name].quantization) for name in model.graph.inputs}
    best = -(1 << 40)
    for starts in product(*((grid.quant_min, grid.quant_max) for grid in grids.values())):
        inputs = {
            name: np.full(static_shape(model.tensors[name]), start, model.tensors[name].dtype)
            for name, start in zip(grids, starts, strict=True)
        }
        for target in np.ndindex(model.run(inputs)["s"].shape):
            value = sign * int(model.run(inputs)["s"][target])
            for name, array in inputs.items():
                for index in np.ndindex(array.shape):
                    before = array[index]
                    array[index] = grids[name].quant_min + grids[name].quant_max - int(before)
                    other = sign * int(model.run(inputs)["s"][target])
                    if other >= value:
                        value = other
                    else:
                        array[index] = before
            best = max(best, value)
    return sign * best


@pytest.mark.parametrize("kind", KINDS)
def test_reach_equals_the_sums_of_extreme_inputs(kind: str) -> None:
    """The stated reach is true, and a reach that is smaller by one on either side is not: a sum that exceeds it
    occurs."""
    rng = np.random.default_rng(len(kind))
    model = KINDS[kind](rng)
    low, high = climbed(model, -1), climbed(model, 1)
    last = model.nodes[-1]
    found = []
    for least, most in ((low, high), (low + 1, high), (low, high - 1)):
        stated = replace(model.graph, nodes=(*model.nodes[:-1], with_reach(last, (least,), (most,))))
        found.append([each.rule for each in proofs(model.replace(graph=stated)).violations])
    assert found == [[], ["P3"], ["P3"]], (low, high)
    tell(f"proofs: {kind}: [{low}, {high}] is met")


def test_reach_of_each_channel() -> None:
    rng = np.random.default_rng(3)
    model = conv(rng, "folded", 4, (1, 0, 0, 1))
    w = model.tensors["w"].array.reshape(4, -1).astype(int)
    low = np.where(w > 0, w * 5, w * 200).sum(1)  # padding is the zero point, 5, and beyond the range
    high = np.where(w > 0, w * 200, w * 5).sum(1)
    for place, channels in ((None, []), (2, [2])):
        least = [each + (index == place) for index, each in enumerate(low.tolist())]
        last = with_reach(model.nodes[-1], tuple(least), tuple(high.tolist()))
        found = proofs(model.replace(graph=replace(model.graph, nodes=(*model.nodes[:-1], last))))
        assert len(found.violations) == len(channels)
        assert all(f"channel {channel} " in str(each) for channel, each in zip(channels, found.violations, strict=True))
        assert (found.sums, found.reaches) == (1, 0 if channels else 1)
    sums = model.run({"x": rng.choice([10, 200], (1, 2, 4, 4)).astype(np.uint8)})["s"]
    assert (sums.min((0, 2, 3)) >= low).all() and (sums.max((0, 2, 3)) <= high).all()


def test_sums_that_leave_int32_are_found_before_they_do() -> None:
    def wide(bias: int) -> Model:
        w = Tensor.constant("w", np.full((1, 100), 32767, np.int16), Quantization.of((1.0,), (0,), -32768, 32767))
        b = Tensor.constant("b", np.array([bias], np.int32))
        x = Tensor("x", "uint8", (1, 100), None, grid(0))
        return net([adder("qfmt.Linear", ("x", "w", "b"), "folded")], [x, w, b], (1, 1))

    most = (1 << 31) - 1 - 100 * 255 * 32767
    assert not proofs(wide(most)).violations
    model = wide(most + 1)
    (broken,) = [each for each in proofs(model).violations if each.rule == "P1"]
    assert broken.rule == "P1" and "2,147,483,648" in broken.what
    with pytest.raises(RunError, match="exceed int32; with"):
        model.run({"x": np.full((1, 100), 255, np.uint8)})


def test_the_range_that_sums_state_holds_them() -> None:
    x = Tensor("x", "uint8", (1, 2), None, grid(0, 10))
    for low, high, rules in ((20, 510, []), (20, 509, ["P2"]), (21, 510, ["P2"])):
        stated = Quantization.of((1.0,), (0,), low, high)
        model = net([adder("qfmt.WeightedSum", ("x",), weights=(2,))], [x], (1, 2), stated)
        assert [each.rule for each in proofs(model).violations] == rules


@pytest.mark.parametrize(("rule", "weight", "high"), [("P1", 1 << 23, None), ("P2", 2, 1999)])
def test_other_engines_take_no_sums_that_are_not_proven(rule: str, weight: int, high: int | None) -> None:
    """torch and ONNX would wrap around where `run` reports an error, or give a node more than the stated range."""
    x = Tensor("x", "int16", (1, 2), None, grid(0, 10, 1000))
    stated = None if high is None else Quantization.of((1.0,), (0,), 20, high)
    model = net([adder("qfmt.WeightedSum", ("x",), weights=(weight,))], [x], (1, 2), stated)
    for engine in (model.to_torch, model.to_onnx):
        with pytest.raises(ValidityError, match=rf"{rule} node 0 \(qfmt.WeightedSum → s\): sums"):
            engine()


def test_constants_without_elements_are_within_their_range() -> None:
    tensors = [
        Tensor("x", "uint8", (1, 0), None, grid(3)),
        Tensor.constant("c", np.empty((1, 0), np.uint8), grid(0, 50)),
    ]
    nodes = [adder("qfmt.WeightedSum", ("x", "c"), weights=(1, 1))]
    model = net(nodes, tensors, (1, 0))
    last = with_reach(model.nodes[-1], (50,), (510,))
    found = proofs(replace(model, graph=replace(model.graph, nodes=(*model.nodes[:-1], last))))
    assert not found.violations and not found.unknown


def test_a_unit_of_thousands_of_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least common multiple of 1 to 20,000 has 8,676 digits, and Python prints no integer of more than 4,300."""
    size = 20_000
    pads = {**WINDOW, "kernel_shape": (size,), "strides": (1,), "dilations": (1,), "pads": (size - 1, size - 1)}
    node = adder("AveragePool", ("x",), "exact", **pads, count_include_pad=0)
    tensors = [Tensor("x", "int8", (1, 1, size), None, grid(0, -128, 127)), Tensor("s", "int32", (1, 1, None))]
    exact = Model(Graph(("x",), ("s",), (node,), {tensor.name: tensor for tensor in tensors}))
    one = grid(0, 5, 5)  # lists few sums
    mean = [replace(tensor, dtype="int8", quantization=one) for tensor in tensors]
    real = Model(Graph(("x",), ("s",), (replace(node, rule="divide"),), {tensor.name: tensor for tensor in mean}))
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((1, 1, size), np.int8))
    for model, arguments, what in (
        (exact, ["check", "--proofs"], "P1 node 0 (AveragePool → s): sums may reach"),
        (exact, ["convert", "out.onnx"], "breaks rule P1"),
        (exact, ["convert", "out/out.c"], "sums elements to a result that may exceed int32"),
        (exact, ["run", "--input", "x.npy"], "windows of 20000 sizes exceeds int32"),
        (real, ["convert", "out.qfb", "--integer-only"], "outside int32"),
    ):
        model.save("m.qfb")
        told = CliRunner().invoke(cli, [arguments[0], "m.qfb", *arguments[1:]])
        assert told.exit_code in (1, 2) and what in told.output and "bug" not in told.output, (arguments, told.output)
    with pytest.raises(ValidityError, match="P1"):
        exact.to_torch()


def test_a_window_has_no_more_dimensions_than_a_tensor() -> None:
    """Its number of elements would have thousands of digits."""
    sizes = {"kernel_shape": (1 << 30,) * 400, "strides": (1,) * 400, "dilations": (1,) * 400, "pads": (0,) * 800}
    tensors = [Tensor("x", "int8", None, None, grid(0, -128, 127)), Tensor("s", "int32", None)]
    node = adder("AveragePool", ("x",), "exact", **sizes)
    (broken,) = violations(Model(Graph(("x",), ("s",), (node,), {tensor.name: tensor for tensor in tensors})))
    assert broken.rule == "V43" and "a window of 400 dimensions" in broken.what


@pytest.mark.parametrize("name", ["Conv", "MatMul", "Mul", "AveragePool", "qfmt.WeightedSum", "qfmt.Requantize"])
def test_nothing_is_known_of_an_operator_of_a_newer_version(name: str, tmp_path: Path) -> None:
    """Such a node may have any inputs and attributes: no command takes it for one of the version that it knows."""
    operator = OPERATORS[name]
    tensors = {
        "x": Tensor("x", "int8", (1, 4), None, grid(0, -128, 127)),
        "y": Tensor("y", "int32", (1, 4), None, grid(0)),
        "w": Tensor.constant("w", np.ones((4, 4), np.int8)),
    }
    rule = next(iter(operator.sum_rules or operator.rules), "")
    for inputs in ((), ("x",), ("", "w"), ("x", "w", "w", "w", "w", "w", "w")):
        node = Node(name, inputs, ("y",), {}, "", operator.version + 1, rule, proof=Proof((0,), (1,)))
        model = Model(Graph(("x",), ("y",), (node,), tensors), engine="integer")
        assert not violations(model) and not proofs(model).sums
        model.save(tmp_path / "m.qfb")
        for arguments in (["check", "--proofs"], ["inspect", "--json"], ["inspect", "--hazards"]):
            assert CliRunner().invoke(cli, [*arguments, str(tmp_path / "m.qfb")]).exit_code == 0
        refused = CliRunner().invoke(
            cli, ["convert", str(tmp_path / "m.qfb"), str(tmp_path / "v.qfb"), "--vectors", "1"]
        )
        assert refused.exit_code == 2 and "a newer qfmt is needed" in refused.output


def test_statements_of_the_lowering_are_true_and_tight() -> None:
    sums = holds = narrowed = 0
    networks = [qfmt.load(path) for path in sorted((SUITE / "float").glob("*.qfb"))]
    networks.append(qfmt.convert(DIGITS, input_shapes={"x": ("N", 1, 8, 8)}))
    for source in networks:
        try:
            model = lower_integer(source, exact=True)
        except QfmtError:
            continue
        found = proofs(model)
        assert not found.violations and not found.unknown
        assert found.reaches == sum(node.proof is not None for node in model.nodes)
        sums, holds = sums + found.sums, holds + found.reaches
        for place, node in enumerate(model.nodes):
            if node.proof is None or node.proof.low == node.proof.high:
                continue
            low, high = node.proof.low, node.proof.high
            for smaller in ((tuple(int(v) + 1 for v in low), high), (low, tuple(int(v) - 1 for v in high))):
                nodes = (*model.nodes[:place], with_reach(node, *smaller), *model.nodes[place + 1 :])  # type: ignore[arg-type]
                broken = proofs(model.replace(graph=replace(model.graph, nodes=nodes))).violations
                assert [each.rule for each in broken] == ["P3"], node.outputs
                narrowed += 1
    assert narrowed
    tell(f"proofs: {sums} nodes that add up, reach of {holds} requantizations holds; {narrowed} narrowed, all found")


def test_the_command(tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(cli, ["check", *map(str, arguments)])

    model = linear(np.random.default_rng(1), "folded")
    right, wrong, open_ = (tmp_path / f"{name}.qfb" for name in ("right", "wrong", "open"))
    qfmt.save(model, right)
    narrow = replace(model.graph, nodes=(*model.nodes[:-1], with_reach(model.nodes[-1], (0,), (1,))))
    qfmt.save(model.replace(graph=narrow), wrong)
    found = run(right, "--proofs")
    assert found.exit_code == 0 and found.stdout == (
        f"{right}: valid; the sums of 1 node fit in int32, and the stated ranges of 1 requantization hold\n"
    )
    assert run(wrong).exit_code == 0
    found = run(wrong, "--proofs")
    assert found.exit_code == 1 and found.stdout.startswith("P3 node 1 (qfmt.Requantize → y): sums of channel 0")
    told = json.loads(run(wrong, "--proofs", "--json").stdout)
    assert not told["valid"] and told["proofs"] == {"sums": 1, "reaches": 0, "unknown": {}}
    given = replace(narrow, inputs=("s",), outputs=("y",), nodes=narrow.nodes[-1:])
    kept = {name: given.tensors[name] for name in ("s", "y", "m", "shift", "add")}
    qfmt.save(model.replace(graph=replace(given, tensors=kept)), open_)
    found = run(open_, "--proofs")
    assert found.exit_code == 0 and "1 could not be bounded" in found.stdout
    assert "unknown node 0 (qfmt.Requantize → y): the range of 's' is not stated" in found.stdout
    real = tmp_path / "real.qfb"
    qfmt.save(qfmt.convert(DIGITS), real)
    assert run(real, "--proofs").stdout == f"{real}: valid; there are no integer sums\n"


def test_a_computed_matrix_with_a_zero_point_for_each_column() -> None:
    """4 products of -128 and 127 + 128: the second column exceeds what the first zero point allows."""
    a = Tensor("a", "int8", (1, 4), None, grid(0, -128, 127))
    b = Tensor("b", "int8", (4, 2), None, Quantization.of((0.5, 0.5), (0, -128), -128, 127, 1))
    narrow, wide = (Quantization.of((0.25,), (0,), low, high) for low, high in ((-65536, 65536), (-130560, 129540)))
    made = adder("MatMul", ("a", "b"), "exact")
    given = {"a": np.full((1, 4), -128, np.int8), "b": np.full((4, 2), 127, np.int8)}
    model = net([made], [a, b], (1, 2), wide)
    assert model.run(given)["s"].tolist() == [[-65024, -130560]]
    assert not proofs(model).violations
    assert [broken.rule for broken in proofs(net([made], [a, b], (1, 2), narrow)).violations] == ["P2"]


@pytest.mark.parametrize(("shape", "holds"), [((3, 1, 1), True), ((3,), False), ((1, 1, 3), False)])
def test_a_multiplier_along_another_dimension_than_the_sums(shape: tuple[int, ...], holds: bool) -> None:
    """The reach of each of three channels is no proof for three columns, each of which has all channels."""
    w = np.array([1, 2, 100], np.int8).reshape(3, 1, 1, 1)
    sums = Quantization.of((1.0,), (0,), -12800, 12700)
    tensors = [
        Tensor("x", "int8", (1, 1, 1, 3), None, grid(0, -128, 127)),
        Tensor.constant("w", w, grid(0, -128, 127)),
        Tensor("s", "int32", (1, 3, 1, 3), None, sums),
        Tensor.constant("mul", np.ones(shape, np.int32)),
        Tensor.constant("add", np.zeros(shape, np.int32)),
        Tensor("y", "int8", (1, 3, 1, 3), None, grid(0, -128, 127)),
    ]
    conv = adder("Conv", ("x", "w"), "exact", **{**WINDOW, "kernel_shape": (1, 1)}, group=1)
    shift = Node("qfmt.RequantShift", ("s", "mul", "add"), ("y",), {"div": 1}, "", 1, "multiply_add_divide")
    nodes = [conv, with_reach(shift, (-128, -256, -12800), (127, 254, 12700))]
    model = Model(Graph(("x",), ("y",), nodes, {tensor.name: tensor for tensor in tensors}))
    assert not violations(model)
    assert [broken.rule for broken in proofs(model).violations] == ([] if holds else ["P3"])
    newer = [replace(conv, version=conv.version + 1), nodes[1]]  # of which only the range of all channels is known
    found = proofs(model.replace(graph=replace(model.graph, nodes=newer)))
    assert not found.violations and any("the range of 's' is not stated" in why for why in found.unknown.values())
