"""Parts of a network, new names, new weights: the remaining nodes compute the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import qfmt
from qfmt import Model
from qfmt.errors import QfmtError
from qfmt.passes.proofs import proofs
from qfmt.rules import graph_violations, violations
from support.paths import DIGITS

X = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)


@pytest.fixture(scope="module")
def model() -> Model:
    return qfmt.convert(DIGITS)


@pytest.fixture(scope="module")
def values(model: Model) -> dict[str, np.ndarray]:
    """Every tensor that is computed."""
    return model.subgraph(outputs=[name for node in model.nodes for name in node.outputs]).run({"x": X})


def test_every_cut_computes_what_the_whole_does(model: Model, values: dict[str, np.ndarray]) -> None:
    names = [name for node in model.nodes for name in node.outputs]
    equal = total = 0
    for first in range(len(names)):
        for last in range(first + 1, len(names)):
            begin, end = names[first], names[last]
            try:
                part = model.subgraph([begin], [end])
            except QfmtError as error:  # a branch bypasses the tensor
                assert "the outputs need more inputs" in str(error)
                continue
            assert graph_violations(part) == []
            (result,) = part.run({begin: values[begin]}).values()
            equal += int(np.count_nonzero(result == values[end]))
            total += result.size
    print(f"{equal} of {total} outputs of parts are equal")
    assert equal == total > 0


def test_a_part_holds_what_it_needs(model: Model) -> None:
    part = model.subgraph(outputs=["stem.0"])
    assert (part.graph.inputs, part.graph.outputs) == (("x",), ("stem.0",))
    assert set(part.tensors) == {"x", "quant", "stem.0", "stem.0.weight", "stem.0.bias"}


def test_a_part_is_selected_by_names_of_the_source(model: Model) -> None:
    aliased = next(tensor for tensor in model.tensors.values() if tensor.aliases and tensor.is_constant)
    with pytest.raises(QfmtError, match="is a constant: a network cannot begin or end with it"):
        model.subgraph(outputs=[aliased.aliases[0]])
    with pytest.raises(QfmtError, match=r"there is no tensor 'stem\.00'; similar: stem\.0"):
        model.subgraph(outputs=["stem.00"])


def test_renamed_tensors_compute_the_same(model: Model) -> None:
    with_vectors = model.with_vectors({"x": X})
    names = {name: f"layer/{index}" for index, name in enumerate(model.tensors)}
    renamed = with_vectors.rename(names)
    assert graph_violations(renamed) == []
    assert set(renamed.tensors) == set(names.values())
    (ours,), (theirs,) = renamed.run({names["x"]: X}).values(), model.run({"x": X}).values()
    assert np.array_equal(ours, theirs)
    assert [tuple(vector.inputs) for vector in renamed.vectors] == [(names["x"],)]
    assert all(renamed.graph.find(old) == renamed.tensors[new] for old, new in names.items())
    assert renamed.rename({new: old for old, new in names.items()}).content_id() == model.content_id()


def test_a_name_is_an_alias_in_order(model: Model) -> None:
    """Also if the tensor has others, or the name already."""
    name = next(tensor.name for tensor in model.tensors.values() if tensor.aliases and tensor.is_constant)
    later = model.rename({name: "a"}).rename({"a": "b"})
    again = later.rename({"b": "a"}).rename({"a": "b"})
    assert {name, "a"} <= {*later.tensors["b"].aliases} and again.tensors["b"].aliases == later.tensors["b"].aliases
    assert violations(later) == violations(again) == []


def test_names_may_be_exchanged_but_not_taken(model: Model) -> None:
    exchanged = model.rename({"stem.0.weight": "stem.0.bias", "stem.0.bias": "stem.0.weight"})
    assert exchanged.tensors["stem.0.bias"].data == model.tensors["stem.0.weight"].data
    assert np.array_equal(*(each.run({"x": X})["dequant"] for each in (exchanged, model)))
    for names, why in (
        ({"x": "stem.0"}, "the name 'stem.0' is taken"),
        ({"x": "a", "stem.0": "a"}, "the name 'a' is taken"),
        ({"x": ""}, "a tensor needs a name"),
        ({"y0": "z"}, "there is no tensor 'y0'"),
    ):
        with pytest.raises(QfmtError, match=why):
            model.rename(names)


def test_other_weights_are_those_that_run(model: Model) -> None:
    weight = model.tensors["stem.0.weight"]
    zero = model.replace_tensor("stem.0.weight", np.zeros_like(weight.array))
    assert graph_violations(zero) == []
    assert zero.tensors["stem.0.weight"].quantization == weight.quantization
    first, second = (zero.subgraph(outputs=["stem.0"]).run({"x": x})["stem.0"] for x in (X, 1 - X))
    assert np.array_equal(first, second)
    assert np.array_equal(
        zero.replace_tensor("stem.0.weight", weight.array).run({"x": X})["dequant"], model.run({"x": X})["dequant"]
    )


def test_values_that_do_not_fit_are_reported(model: Model) -> None:
    masked = np.ma.masked_array(model.tensors["fc.weight"].array, mask=True)
    with pytest.raises(QfmtError, match=r"fc\.weight: is a masked array; give all elements"):
        model.replace_tensor("fc.weight", masked)
    weight = model.tensors["stem.0.weight"].array
    with pytest.raises(
        QfmtError, match=r"stem\.0\.weight: has the shape \[16, 1, 3, 3\], the new values \[8, 1, 3, 3\]"
    ):
        model.replace_tensor("stem.0.weight", weight[:8])
    with pytest.raises(QfmtError, match=r"stem\.0\.weight: an array of float32 cannot be stored as int8"):
        model.replace_tensor("stem.0.weight", weight.astype(np.float32))
    with pytest.raises(QfmtError, match=r"stem\.0: is computed, not stored"):
        model.replace_tensor("stem.0", weight)


def test_a_walk_sees_every_edge(model: Model) -> None:
    graph = model.graph
    read: Counter[str] = Counter()
    for (node, inputs, outputs), expected in zip(graph.walk(), graph.nodes, strict=True):
        assert node == expected
        assert [tensor.name if tensor else "" for tensor in inputs] == list(node.inputs)
        assert [tensor.name if tensor else "" for tensor in outputs] == list(node.outputs)
        assert all(graph.producers()[name] == node for name in node.outputs)
        read.update(name for name in node.inputs if name)
    assert {name: len(nodes) for name, nodes in graph.readers().items()} == read
    assert graph.uses() == read + Counter(graph.outputs)


def test_a_replaced_constant_leaves_no_proof() -> None:
    """It is about sums with the old weights, as is their range. Integer inputs keep their rule under another name."""
    model = qfmt.convert(DIGITS).to_integers(input_shapes={"x": (1, 1, 8, 8)})
    assert sum(node.proof is not None for node in model.nodes) == 7
    (name, old), *_ = ((each.name, each) for each in model.graph.constants() if each.dtype == "int8")
    changed = model.replace_tensor(name, np.zeros(old.shape or (), np.int8))
    assert not any(node.proof for node in changed.nodes)
    sums = [node.inputs[0] for node in model.nodes if node.proof]
    for part in model.subgraph([sums[0]]), model.subgraph(["pool"]), model.subgraph([], [sums[-1]]):
        assert not proofs(part).violations and sum(node.proof is not None for node in part.nodes) < 7
    sums = changed.graph.readers()[name][0].outputs[0]
    before, after = (each.tensors[sums].quantization for each in (model, changed))
    assert before and after and before.quant_min < after.quant_min <= after.quant_max < before.quant_max
    largest = model.replace_tensor(name, np.full(old.shape or (), 127, np.int8))
    assert not proofs(largest).violations and not proofs(changed).violations
    assert model.rename({"quant": "img"}).source["quantized_inputs"] == "img = reciprocal_fma(x)"
    assert model.subgraph([], ["pool"]).source["quantized_inputs"] == "quant = reciprocal_fma(x)"
    assert "quantized_inputs" not in model.subgraph(["pool"]).source
