"""`qfmt diff`: exactly the differences between two files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given

import qfmt
from qfmt.cli import main
from qfmt.model import Graph, Model, Node, Observed, Proof, Quantization, Tensor
from qfmt.quantization import NO_ZERO_POINT, Parameter
from support.changed import with_node, with_tensor
from support.examples import examples
from support.paths import DIGITS
from support.strategies import models


@pytest.fixture(scope="module")
def digits() -> Model:
    return qfmt.convert(DIGITS)


@examples(25)
@given(models())
def test_a_model_is_equal_to_itself(model: Model) -> None:
    assert qfmt.diff(model, model).is_equal


@examples(25)
@given(models(), models())
def test_models_without_a_difference_have_one_content_id(a: Model, b: Model) -> None:
    assert not qfmt.diff(a, b).is_equal or a.content_id() == b.content_id()


def test_a_file_is_equal_to_the_model_that_was_saved(digits: Model, tmp_path: Path) -> None:
    digits.save(tmp_path / "m.qfb")
    found = qfmt.diff(tmp_path / "m.qfb", digits)
    assert found.is_equal and found.to_dict() == {"equal": True, "nodes": [], "tensors": [], "words": []}


def test_blocks() -> None:
    def model(scales: list[float], points: Any = 8, block: int = 2) -> Model:
        array = np.array(scales, np.float32).reshape(2, -1)
        grid = Quantization.of_blocks("uint4", (2, 4), (1, block), array, points)
        return qfmt.Model(
            qfmt.Graph((), (), (), {"w": Tensor.constant("w", np.ones((2, 4), np.uint8), grid, dtype="uint4")})
        )

    first = model([1, 2, 3, 4])
    assert qfmt.diff(first, model([1, 2, 3, 4])).is_equal
    for other, words in (
        (model([1, 2, 3.5, 4.25]), "2 of 4 scales of blocks differ by at most 0.5"),
        (model([1, 2, 3, 4], [[8, 8], [8, 9]]), "zero points uint8[] → uint8[2,2]"),
        (model([1, 2, 3, 4], 7), "zero point 8 → 7"),
        (model([1, 2, 3, 4], block=3), "blocks [1,2] → [1,3]"),
        (model([1, 1, 2, 2, 3, 3, 4, 4], block=1), "blocks [1,2] → [1,1]; scales float32[2,2] → float32[2,4]"),
        (model([1, 2], block=4), "axis nothing → 0; blocks [1,2] → [1]"),
    ):
        (found,) = qfmt.diff(first, other).tensors
        assert words in str(found)


def test_values(digits: Model) -> None:
    tensor = digits.tensors["fc.weight"]
    array = tensor.array.copy()
    array[0, :7] ^= 2
    (found,) = qfmt.diff(digits, with_tensor(digits, "fc.weight", data=Tensor.constant("", array).data)).tensors
    assert (found.name, found.elements, found.different, found.largest) == ("fc.weight", tensor.array.size, 7, 2)
    assert found.words == ()


def test_floats_are_compared_bit_by_bit(digits: Model) -> None:
    array = digits.tensors["fc.bias"].array.copy()
    array[2:5] = 0.0, np.nan, 1.0
    first = with_tensor(digits, "fc.bias", data=Tensor.constant("", array).data)
    array = array.copy()
    array[2:5] = -0.0, np.nan, np.nextafter(np.float32(1), np.float32(2))
    (found,) = qfmt.diff(first, with_tensor(digits, "fc.bias", data=Tensor.constant("", array).data)).tensors
    assert (found.different, found.largest) == (2, 2.0**-23)


def test_quantization(digits: Model) -> None:
    quantization = digits.tensors["fc.weight"].quantization
    assert quantization is not None
    scale = (*quantization.scale[:3], 2.0, *quantization.scale[4:8], 3.0, *quantization.scale[9:])
    changed = with_tensor(digits, "fc.weight", quantization=replace(quantization.with_values(scale), quant_min=-127))
    (found,) = qfmt.diff(digits, changed).tensors
    old = f"{quantization.scale[3]:.9g}"
    assert found.words == ("quant_min -128 → -127", f"scale[3] {old} → 2 and 1 more")
    other = with_tensor(digits, "fc.weight", quantization=Quantization.per_tensor(0.5, 0, "int8"))
    assert "10 → 1 scales" in qfmt.diff(digits, other).tensors[0].words
    alone = Model(qfmt.Graph((), (), (), {"fc.weight": digits.tensors["fc.weight"]}))
    assert qfmt.diff(alone, with_tensor(alone, "fc.weight", quantization=None)).tensors[0].words == (
        "with quantization → without quantization",
    )


def test_nodes(digits: Model) -> None:
    changed = with_node(digits, "residual", operator="Mul", rule="divide")
    (found,) = qfmt.diff(digits, changed).nodes
    rule = next(node.rule for node in digits.nodes if node.outputs == ("residual",))
    assert (found.name, found.operator) == ("residual", "Mul")
    assert found.words == ("operator Add → Mul", f"rule {rule} → divide")
    first, second = next(node.inputs for node in digits.nodes if node.outputs == ("residual",))
    (found,) = qfmt.diff(digits, with_node(digits, "residual", inputs=(second, first))).nodes
    assert found.words == (f"reads {first} → {second}", f"reads {second} → {first}")


def test_long_names_are_shortened_in_words() -> None:
    """Thousands of nodes may read a tensor whose name has a megabyte."""
    names = tuple(letter * 100_000 for letter in "ab")
    tensors = {name: Tensor(name, "float32", (4,)) for name in (*names, "y")}
    first, second = (
        Model(Graph(names, (name, "y"), [Node("Relu", (name,), ("y",), version=14)], tensors)) for name in names
    )
    found = qfmt.diff(first, second)
    assert "reads aaa" in str(found.nodes) and "the graph's outputs aaa" in str(found.words)
    assert len(str(found)) < 5000


def test_a_node_of_only_one_model(digits: Model) -> None:
    graph = digits.graph
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name != "dequant"}
    shorter = digits.replace(graph=replace(graph, nodes=list(graph.nodes)[:-1], outputs=("fc",), tensors=tensors))
    found = qfmt.diff(digits, shorter)
    assert [(node.name, node.words) for node in found.nodes] == [("dequant", ("only in the first",))]
    assert found.words == ("the graph's outputs dequant → fc",)
    assert qfmt.diff(shorter, digits).nodes[0].words == ("only in the second",)


def test_nodes_in_another_order() -> None:
    tensors = {name: Tensor(name, "float32", (2,)) for name in "xab"}
    nodes = [Node("Relu", ("x",), ("a",), version=14), Node("Neg", ("x",), ("b",), version=13)]
    models = [Model(Graph(("x",), ("a", "b"), order, tensors)) for order in (nodes, nodes[::-1])]
    found = qfmt.diff(*models)
    assert (found.nodes, found.words) == ((), ("the nodes are in another order",))
    assert models[0].content_id() != models[1].content_id()


def test_a_renamed_network_is_matched_in_order(digits: Model) -> None:
    def new(name: str) -> str:
        return f"n.{name}" if name else ""

    graph = digits.graph
    renamed = replace(
        graph,
        inputs=tuple(map(new, graph.inputs)),
        outputs=tuple(map(new, graph.outputs)),
        nodes=[
            replace(node, inputs=tuple(map(new, node.inputs)), outputs=tuple(map(new, node.outputs)))
            for node in graph.nodes
        ],
        tensors={new(name): replace(tensor, name=new(name)) for name, tensor in graph.tensors.items()},
    )
    found = qfmt.diff(digits, digits.replace(graph=renamed))
    words = {word for node in found.nodes for word in node.words} | {w for t in found.tensors for w in t.words}
    assert words and all(word.startswith("name ") for word in words)
    assert not any(tensor.different for tensor in found.tensors)


def test_a_network_and_its_lowered_form(digits: Model) -> None:
    """Weights are matched by name. Tensors that the lowering made are new; no values are compared with unrelated
    ones."""
    narrow = digits.to_integers(input_shapes={"x": ("N", 1, 8, 8)})
    found = qfmt.diff(digits, narrow)
    only = {"only in the first", "only in the second"}
    assert all(set(tensor.words) <= only and not tensor.different for tensor in found.tensors)
    named = {tensor.name for tensor in found.tensors}
    assert not any(name.endswith(".weight") for name in named)
    assert {"x", "fc.bias", "fc.bias.folded", "fc.multiplier"} <= named
    words = {node.name: node.words for node in found.nodes}
    assert words["fc"][:2] == ("operator qfmt.Linear → qfmt.Requantize", "rule float_bias → multiply_shift")
    assert words["fc.sums"] == ("only in the second",) and words["quant"] == ("only in the first",)
    assert "reads quant → quant" not in str(found) and "inf" not in json.dumps(found.to_dict())


def test_a_proof_in_few_words(digits: Model) -> None:
    lowered = digits.to_integers(input_shapes={"x": ("N", 1, 8, 8)})

    def words(mine: Proof | None, theirs: Proof | None) -> tuple[str, ...]:
        (node,) = qfmt.diff(with_node(lowered, "fc", proof=mine), with_node(lowered, "fc", proof=theirs)).nodes
        return node.words

    proof = Proof((-5, *[-7000] * 9), (*[3] * 9, 9), "float_bias", (1, *[0] * 8, 2), 1)
    assert words(None, proof) == ("proof nothing → sums -7,000..9, 3 differ from float_bias",)
    assert words(proof, replace(proof, low=proof.low[::-1])) == ("proofs of single channels differ",)


def test_values_of_another_shape_are_not_compared() -> None:
    short, long = (archive_of("w", np.zeros(size, np.float32)) for size in (10, 3))
    (found,) = qfmt.diff(short, long).tensors
    assert str(found) == "shape [10] → [3]" and found.different == 0


def archive_of(name: str, array: np.ndarray) -> Model:
    """Tensors without a graph."""
    return Model(Graph((), (), (), {name: Tensor.constant(name, array)}))


def test_descriptions(digits: Model) -> None:
    changed = digits.replace(metadata={"trained_on": "digits"}, producer="someone", engine="")
    found = qfmt.diff(digits, changed)
    assert found.words == (
        "engine fbgemm → ''",
        f"producer {digits.producer} → someone",
        "metadata.trained_on nothing → digits",
    )
    assert not found.nodes and not found.tensors


def test_the_command(digits: Model, tmp_path: Path) -> None:
    a, b, c = (tmp_path / f"{name}.qfb" for name in "abc")
    digits.save(a)
    digits.replace(metadata={"by": "me"}).save(b)
    with_node(digits, "fc", rule="affine").save(c)

    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["diff", *map(str, arguments)])
        return result.exit_code, result.stdout

    assert run(a, DIGITS) == (0, "equal\n")
    status, text = run(a, b)
    assert status == 1 and "the same network" in text and "metadata.by nothing → me" in text
    status, text = run(a, c)
    assert status == 1 and "fc (qfmt.Linear)  rule float_bias → affine" in text
    status, text = run(a, c, "--json")
    assert status == 1
    found = json.loads(text)
    assert [node["name"] for node in found["nodes"]] == ["fc"] and found["same_content"] is False
    assert run(a, tmp_path / "missing.qfb")[0] == 2


def small(nodes: Any = (), grid: Quantization | None = None, **attributes: Any) -> Model:
    weight = Tensor.constant("w", np.ones((4, 8), np.int8), grid)
    nodes = nodes or (Node("vendor.A", ("x", "w"), ("y",), attributes),)
    named = [name for node in nodes for name in node.outputs]
    tensors = [Tensor("x", "float32", (1, 4)), weight, *(Tensor(name, "float32", None) for name in named)]
    return Model(Graph(("x",), ("y",), nodes, {tensor.name: tensor for tensor in tensors}))


def of_form(**parts: Any) -> Model:
    numbers = {name: Parameter.of_values(np.asarray(values)) for name, values in parts.items()}
    scales = Parameter.of_values(np.full(4, 0.5, np.float32))
    return small(grid=Quantization(scales, numbers.pop("zero_point", NO_ZERO_POINT), -128, 127, (1,), **numbers))


A = Node("vendor.A", ("x", "w"), ("y",))


def ending(*outputs: str) -> Model:
    """A network with a name that looks like two."""
    graph = small((A, replace(A, outputs=("y, x",)))).graph
    return Model(replace(graph, outputs=outputs))


def seen(low: float) -> Model:
    grid = Quantization.per_tensor(0.5, 0, "int8")
    return small(grid=replace(grid, observed=Observed("MinMaxObserver", (low,), (1.0,))))


def with_names(*names: str) -> Model:
    return small(grid=replace(Quantization.per_tensor(0.5, 0, "int8"), names=names))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (small(k=1), small(k=1.0), "k 1 → 1.0"),
        (small(k=(1,)), small(k=(1.0,)), "k (1,) → (1.0,)"),
        (small(k=0.0), small(k=-0.0), "k 0 → -0"),
        (small(k=0), small(), "k 0 → nothing"),
        (of_form(offset=np.float32(1)), of_form(offset=np.float64(1)), "offset dtype float32 → float64"),
        (of_form(zero_point=np.float32(0)), of_form(zero_point=np.float32(-0.0)), "zero point stored in another form"),
        (of_form(zero_point=np.uint8(3)), of_form(zero_point=np.full(4, 3, np.uint8)), "stored in another form"),
        (small().replace(metadata={"k": "nothing"}), small(), "metadata.k 'nothing' → None"),
        (small(), small().replace(graph=replace(small().graph, name="g")), "the graph's name '' → g"),
        (small((A,)), small((replace(A, inputs=("x", "w", "")),)), "has 2 → 3 inputs"),
        (small((A,)), small((replace(A, name="y"),)), "name '' → y"),
        (ending("y", "x", "y, x"), ending("y, x", "y", "x"), "the graph's outputs ['y', 'x', 'y, x'] → "),
        (seen(0.0), seen(-0.0), "observed "),
        (with_names("s", "z"), with_names("s", "zp"), "names of scale and zero point s, z → s, zp"),
        (with_tensor(small(), "w", aliases=("a", "b")), with_tensor(small(), "w", aliases=("a, b",)), "aliases"),
    ],
)
def test_equal_numbers_are_not_equal_bytes(a: Model, b: Model, words: str) -> None:
    found = qfmt.diff(a, b)
    told = [*found.words, *(word for node in found.nodes for word in node.words), *map(str, found.tensors)]
    assert len(told) == 1 and words in told[0]


def test_nan_is_equal_to_itself() -> None:
    assert qfmt.diff(small(k=(float("nan"),)), small(k=(float("nan"),))).is_equal


def test_nodes_of_one_name_are_all_compared() -> None:
    """Names need not be unique; that of the first node is its output's."""
    two = (Node("Relu", ("x",), ("y",), name="n", version=14), Node("Relu", ("x",), ("z",), name="n", version=14))
    for a, b, words in ((small(two[::-1]), small(two[:1]), "first"), (small(two[:1]), small(two[::-1]), "second")):
        assert f"only in the {words}" in [word for node in qfmt.diff(a, b).nodes for word in node.words]


def test_a_size_is_not_its_name(digits: Model) -> None:
    found = qfmt.diff(digits, with_tensor(digits, "x", shape=("1", 1, 8, 8)))
    assert not found.is_equal, found
