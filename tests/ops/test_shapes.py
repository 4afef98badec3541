"""Shape rules agree with the computed shapes, also with unknown sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases.operators import CASES, Case, compute
from qfmt import QfmtError
from qfmt.errors import RunError
from qfmt.model import Dimension, Shape, Tensor
from qfmt.ops import OPERATORS, Inference, UnknownRank
from qfmt.ops.shapes import tells_sizes
from support.examples import times

BY_VALUE = ("NonZero", "Compress", "Attention")
"""Operators whose output size depends on elements, or on an absent input, which looks like an unknown one."""


def infer(name: str, case: Case, shapes: list[Shape] | None = None, *, constants: bool = True) -> list[Shape]:
    """Apply the shape rule; int64 inputs (and scales) are constants, whose values it may read."""
    operator = OPERATORS[name]
    given_ = [None if each is None else tuple(each.shape) for each in case.inputs] if shapes is None else shapes
    is_value = [
        each is not None and (each.dtype == np.int64 or (name == "Resize" and i > 0) or name == "Range")
        for i, each in enumerate(case.inputs)
    ]
    values = [each if known and constants else None for each, known in zip(case.inputs, is_value, strict=True)]
    missing = [None] * (len([p for p in operator.inputs if not p.variadic]) - len(case.inputs))
    complete = operator.complete(case.attributes)
    return operator.infer(Inference([*given_, *missing], complete, [*values, *missing]))


@pytest.mark.parametrize("name", CASES)
def test_shape_rules_agree_with_results(name: str) -> None:
    for seed in times(20):
        compare(name, np.random.default_rng([seed, *name.encode()]), constants=seed % 2 == 0)


def compare(name: str, rng: np.random.Generator, *, constants: bool) -> None:
    """Then some sizes are names, equal for equal sizes, or unknown; some ranks are unknown, too."""
    case = CASES[name](rng)
    computed = [array.shape for array in compute(name, case)]
    inferred, actual = infer(name, case), computed
    if name in BY_VALUE:
        actual = [tuple(b and a for a, b in zip(*pair, strict=True)) for pair in zip(actual, inferred, strict=True)]
    assert inferred == actual
    if name == "Split" and not constants:
        return  # the number of outputs depends on the value
    shapes = [None if each is None else blurred(rng, each) for each in case.inputs]
    try:
        inferred = infer(name, case, shapes, constants=constants)
    except UnknownRank as error:
        assert shapes[error.index] is None
        return
    for shape, sizes in zip(inferred, computed, strict=True):
        assert shape is None or len(shape) == len(sizes), (shapes, case)
        for size, actual_size in zip(shape or (), sizes, strict=False):
            assert size in (None, actual_size, f"size {actual_size}"), (shapes, case)


def blurred(rng: np.random.Generator, array: np.ndarray) -> Shape:
    if array.dtype == np.int64:
        return array.shape
    if rng.random() < 0.2:
        return None
    return tuple(_blur(rng, size) for size in array.shape)


def _blur(rng: np.random.Generator, size: int) -> Dimension:
    kind = rng.random()
    return size if kind < 0.5 else f"size {size}" if kind < 0.8 else None


CONV = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
POOL = {**{key: value for key, value in CONV.items() if key != "group"}, "ceil_mode": 0}
X = np.zeros((1, 4, 6, 6), np.float32)
W = np.zeros((8, 4, 3, 3), np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "message"),
    [
        ("Conv", [X, W[:, :3], None], CONV, "the input has 4 channels, the weight expects 3"),
        ("Conv", [X[0], W, None], CONV, "a 2-d convolution needs an input of rank 4, not 3"),
        ("Conv", [X, W, None], {**CONV, "kernel_shape": (5, 5)}, "the weight has a kernel of"),
        ("Conv", [X, W[:3, :1], None], {**CONV, "group": 4}, "does not divide into 4 groups"),
        ("Conv", [X, W, None], {**CONV, "group": 0}, "does not divide into 0 groups"),
        ("Conv", [X, W, None], {**CONV, "pads": (0, 0)}, "needs 4 pads, not 2"),
        ("Conv", [X, W[0], None], CONV, "a 1-d window needs 1 kernel_shape, not 2"),
        ("Conv", [X[:, :, :2], W, None], CONV, "a window of 3 does not fit into 2"),
        ("MaxPool", [X[:, :, :1]], {**POOL, "strides": (2, 2)}, "a window of 3 does not fit into 1"),
        (
            "ConvTranspose",
            [X, W, None],
            {**CONV, "output_padding": (0, 0)},
            "the input has 4 channels, the weight expects 8",
        ),
        ("MaxPool", [X], {**POOL, "pads": (0, 0, 9, 0)}, "is entirely in the padding, of 0 before and 9 after"),
        ("MaxPool", [X[:, :, :0]], {**POOL, "pads": (2, 0, 2, 0)}, "is entirely in the padding"),
        ("AveragePool", [X[:, :, :0]], {**POOL, "pads": (2, 0, 2, 0)}, "is entirely in the padding"),
        (
            "MaxPool",
            [X[:, :, :1]],
            {**POOL, "kernel_shape": (2, 3), "pads": (1, 0, 1, 0), "dilations": (2, 1)},
            "is entirely in the padding",
        ),
        ("MaxPool", [X], {**POOL, "kernel_shape": (0, 3)}, "each must be at least 1"),
        ("MaxPool", [X[0]], POOL, "a 2-d window needs an input of rank 4, not 3"),
        ("qfmt.Linear", [X, W[0, 0], None], {}, "the input has 6 features, the weight expects 3"),
        ("Add", [X, X[..., :5]], {}, "sizes 6 and 5 do not broadcast"),
        ("PRelu", [X, np.zeros((2, 4, 1, 1))], {}, "does not broadcast to"),
        ("Softmax", [X], {"axis": 4}, "axis 4 is outside rank 4"),
        ("GroupNormalization", [X, X[0, :, 0, 0], X[0, :, 0, 0]], {"num_groups": 3}, "cannot be split into 3 groups"),
        ("Reshape", [X, ints(5, -1)], {}, "144 elements are not divisible by 5"),
        ("Reshape", [X, ints(7, 2)], {}, "144 elements do not fit into shape"),
        ("Reshape", [X, ints(-1, -1)], {}, "more than one size open"),
        ("Reshape", [X, ints(1, 4, 36, 1, 0)], {}, "copies dimension 4"),
        ("Transpose", [X], {"perm": (0, 1, 1, 2)}, "is not a permutation of 4 axes"),
        ("Squeeze", [X, ints(1)], {}, "axis 1 has size 4 and cannot be squeezed"),
        ("Squeeze", [X[:, :1], ints(1, -3)], {}, "list an axis twice"),
        ("Unsqueeze", [X, ints(0, 0)], {}, "list an axis twice"),
        ("ReduceMean", [X, ints(1, -3)], {}, "list an axis twice"),
        ("Slice", [X, ints(0, 0), ints(1, 1), ints(1, -3), None], {}, "list an axis twice"),
        ("Pad", [X, ints(1, 1, 1, 1), None, ints(1, -3)], {}, "list an axis twice"),
        ("MeanVarianceNormalization", [X], {"axes": (1, -3)}, "list an axis twice"),
        ("Concat", [X, X[0]], {"axis": 0}, "inputs of different rank"),
        ("Concat", [X, X[:, :, :5]], {"axis": 1}, "inputs have sizes 6, 5 in dimension 2"),
        ("Split", [X, ints(1, 2)], {"axis": 1}, "do not add up to 4"),
        ("Split", [X[0, 0, 0], ints(6)[0]], {}, "must be a vector"),
        ("Slice", [X, ints(0, 0), ints(1, 1), ints(0), None], {}, "2 starts, 2 ends, 1 axes and 2 steps"),
        ("Slice", [X, ints(0), ints(1), np.zeros(0, np.int64), None], {}, "1 starts, 1 ends, 0 axes and 1 steps"),
        ("Slice", [X, ints(0)[0], ints(1)[0], None, None], {}, "must be a vector"),
        ("Slice", [X, ints(0), ints(1), ints(0)[0], ints(1)], {}, "must be a vector"),
        ("Pad", [X[0, 0, 0], ints(1, 1), None, ints(0)[0]], {}, "must be a vector"),
        ("Squeeze", [X[:1], ints(0)[0]], {}, "must be a vector"),
        ("Unsqueeze", [X, ints(0).reshape(1, 1)], {}, "must be a vector"),
        ("ReduceSum", [X, ints(0)[0]], {}, "must be a vector"),
        ("Tile", [X[0, 0, 0], ints(2)[0]], {}, "must be a vector"),
        ("Expand", [X[0, 0, 0], ints(6)[0]], {}, "must be a vector"),
        ("TopK", [X, ints(1)[0]], {}, "must be a vector"),
        ("Slice", [X, ints(0), ints(1), ints(0), ints(0)], {}, "a step other than 0"),
        ("Pad", [X, ints(1, 1), None, None], {}, "2 pads do not fit 4 axes"),
        ("Pad", [X[0, 0, 0], ints(-8, 1), None, None], {}, "a dimension of size 6 cannot lose 7 elements"),
        ("DepthToSpace", [X], {"blocksize": 3}, "4 channels are not divisible into blocks of 3 × 3"),
        ("SpaceToDepth", [X], {"blocksize": 4}, "a size of 6 is not divisible into blocks of 4"),
        ("Resize", [X, None, None, ints(2, 2)], {}, "Resize needs 4 scales or sizes"),
        ("Resize", [X, None, np.ones(4, np.float32), ints(2, 4, 6, 6)], {}, "both scales and sizes"),
        ("Gemm", [X[0, 0], X[0, 0, :5], None], {}, "cannot multiply rows of 6 with columns of 5"),
        ("Gemm", [X[0, 0], X[0, 0], X[0, 0, :5]], {}, "sizes 6 and 5 do not broadcast"),
        ("Gemm", [X[0, 0, :1], X[0, 0], X[0, 0]], {}, "does not broadcast to"),
        ("GridSample", [X, X[0]], {}, "does not fit an input of 4"),
        ("Attention", [X[0], X[0], X[0]], {}, "3 and the number of heads"),
        ("Einsum", [X, X], {"equation": "ij,jk"}, "does not fit an input of 4 dimensions"),
        ("Tile", [X, ints(1, 2)], {}, r"repeats \[1, 2\] do not fit 4 dimensions"),
        ("Tile", [X[0, 0, 0], ints(2**63 - 1)], {}, "do not fit 1 dimensions"),
        ("Pad", [X[0, 0, 0], ints(2**60, 0), None, None], {}, "make a size of"),
        ("GatherND", [X, ints(0, 1).reshape(1, 2)], {"batch_dims": -1}, "-1 shared axes"),
        ("GatherND", [X, ints(0, 1, 0).reshape(3, 1)], {"batch_dims": 1}, "sizes 1 and 3 in dimension 0"),
        ("GatherND", [X[0, 0], ints(0, 0, 0).reshape(1, 3)], {}, "indices of 3 axes do not fit 2"),
        ("NonZero", [X[0, 0, 0, 0]], {}, "has no positions"),
        ("Compress", [X, ints(1).astype(bool).reshape(1, 1)], {"axis": 0}, "must be a vector"),
        ("Compress", [X, np.ones(3, bool)], {"axis": 0}, "a condition of 3 elements for 1 slices"),
        ("ReverseSequence", [X, ints(1, 1)], {"batch_axis": 1, "time_axis": 1}, "cannot be that of the sequences"),
        ("ReverseSequence", [X, ints(1, 1)], {"batch_axis": 1, "time_axis": 0}, "2 lengths for 4 sequences"),
        ("GlobalMaxPool", [X[0, 0]], {}, "an input of rank 3, not 2"),
        ("GlobalAveragePool", [X[0, 0]], {}, "an input of rank 3, not 2"),
        ("GlobalLpPool", [X], {"p": 0}, "must be at least 1"),
        ("qfmt.Linear", [X[0, 0], X[0], None], {}, "a matrix of weights"),
        ("DepthToSpace", [X], {"blocksize": 0}, "do not fit each other"),
    ],
)
def test_shape_rules_refuse(name: str, inputs: list[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(QfmtError, match=message):
        infer(name, Case(inputs, attributes))


@pytest.mark.parametrize(("a", "b"), [((2, 3), (2, 3)), ((3,), (4,)), ((3,), (4, 3)), (("N", 3), (5, 4, "K"))])
def test_inner_sizes_of_a_matrix_product_are_equal(a: Shape, b: Shape) -> None:
    with pytest.raises(QfmtError, match=r"MatMul cannot multiply rows of \d with columns of \d"):
        OPERATORS["MatMul"].shape(Inference([a, b], {}, [None, None]))


def test_inner_sizes_of_a_matrix_product_may_be_unknown() -> None:
    assert OPERATORS["MatMul"].shape(Inference([("N", "K"), (3, 4)], {}, [None, None])) == [("N", 4)]


def test_a_gemm_without_a_known_input_has_known_columns() -> None:
    gemm, attributes = OPERATORS["Gemm"], {"transA": 0, "transB": 1}
    assert gemm.shape(Inference([None, (5, 4), (5,)], attributes, [None] * 3)) == [(None, 5)]
    with pytest.raises(QfmtError, match=r"C of shape \[2\] does not broadcast to \[None, 1\]"):
        gemm.shape(Inference([None, (1, 4), (2,)], attributes, [None] * 3))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads_of_arrays_without_axes_and_without_elements(mode: str) -> None:
    def padded(x: np.ndarray, *pads: int) -> Any:
        return compute("Pad", Case([x, ints(*pads), None, None], {"mode": mode}))[0]

    assert padded(np.array(3.0, np.float32)).tolist() == 3
    assert padded(X[:, :0], 0, 0, 1, 2, 0, 0, 3, 4).shape == (1, 0, 10, 12)
    if mode == "constant":
        assert padded(X[:, :0], 0, 1, 0, 0, 0, 1, 0, 0).tolist() == np.zeros((1, 2, 6, 6)).tolist()
    else:
        with pytest.raises(QfmtError, match="an axis without elements has none that could be repeated"):
            padded(X[:, :0], 0, 1, 0, 0, 0, 0, 0, 0)
    assert padded(X[:, :0], 0, -1, 0, 0, 0, 1, 0, 0).shape == (1, 0, 6, 6)


@pytest.mark.parametrize(
    ("mode", "expected"), [("constant", [0, 0]), ("edge", [2, 2]), ("wrap", [2, 1]), ("reflect", [2, 1])]
)
def test_pads_that_cancel_each_other_take_no_memory(mode: str, expected: list[int]) -> None:
    case = Case([np.array([1, 2], np.float32), ints(-1 - 2**60, 1 + 2**60), None, None], {"mode": mode})
    assert infer("Pad", case) == [(2,)]
    assert compute("Pad", case)[0].tolist() == expected


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "message"),
    [
        ("BatchNormalization", [X[:, :1], *[ints(1, 2)] * 4], {}, r"parameters of shape \[2\] do not fit 1 channels"),
        ("InstanceNormalization", [X[:, :1], ints(1, 2), ints(1)], {}, "do not fit 1 channels"),
        ("GroupNormalization", [X[:, :1], ints(1), ints(1, 2)], {"num_groups": 1}, "do not fit 1 channels"),
        ("LayerNormalization", [X[..., :1], ints(1, 2), None], {}, r"does not broadcast to \[1, 4, 6, 1\]"),
        ("RMSNormalization", [X[..., :1], ints(1, 2)], {}, "does not broadcast"),
        ("qfmt.Table", [ints(1), X[0, 0]], {}, r"a table of shape \[6, 6\] for the axis -1"),
    ],
)
def test_parameters_do_not_make_an_output_larger(
    name: str, inputs: list[Any], attributes: dict[str, Any], message: str
) -> None:
    """NumPy would broadcast the input, to a size that the run does not count."""
    with pytest.raises(QfmtError, match=message):
        infer(name, Case(inputs, attributes))


def test_weights_of_recurrent_layers_fit_each_other() -> None:
    x, w, r = (np.zeros(shape, np.float32) for shape in ((2, 3, 1), (1, 400, 1), (1, 400, 1)))
    with pytest.raises(QfmtError, match=r"a weight of shape \[1, 400, 1\] is not \[1, 4, 1\]"):
        infer("LSTM", Case([x, w, r], {}))
    w, r = (np.zeros((1, 24, inputs), np.float32) for inputs in (1, 6))
    infer("LSTM", Case([x, w, r, np.zeros((1, 48), np.float32)], {}))
    for unfit, index in ((1, 2), 3), ((1, 3, 8), 5), ((2, 3, 6), 6), ((1, 6), 7):
        given = [x, w, r, *[None] * 4, np.zeros((1, 18), np.float32)]
        given[index] = np.zeros(unfit, np.float32)
        with pytest.raises(QfmtError, match=r"a (bias|state|peepholes)|peepholes of shape"):
            infer("LSTM", Case(given, {}))
    with pytest.raises(QfmtError, match="a weight of shape"):
        infer("LSTM", Case([np.zeros((2, 3, 5_000_000), bool), w, r], {}))


@pytest.mark.parametrize(
    "name", ["qfmt.LSTM", "qfmt.GRU", "qfmt.LSTMCell", "qfmt.GRUCell", "qfmt.RNNCell", "RNN", "GRU", "LSTM"]
)
def test_a_state_of_another_shape_is_refused_before_it_broadcasts(name: str) -> None:
    names = [each.name for each in OPERATORS[name].inputs]
    case = CASES[name](np.random.default_rng(0))
    given = [*case.inputs, *[None] * (len(names) - len(case.inputs))]
    at = next(index for index, each in enumerate(names) if each in ("initial_h", "H_0"))
    given[at] = np.zeros((1, 1000, 1) if name in ("RNN", "GRU", "LSTM") else (1000, 1), np.float32)
    with pytest.raises(QfmtError, match="a state of shape"):
        infer(name, Case(given, case.attributes))


def test_caches_of_rotary_embeddings_fit_the_heads() -> None:
    attributes = {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0}
    for cache, places in ((X[0, :1, :, :4], None), (X[0, 0], np.zeros((1, 6), np.int64))):
        with pytest.raises(QfmtError, match=r"do(es)? not broadcast"):
            infer("RotaryEmbedding", Case([X, cache, cache, places], attributes))


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "words"),
    [
        ("Einsum", [(5, 1)], {"equation": "ii->i"}, "axes 'i' of an input have the sizes 5 and 1"),
        ("qfmt.EmbeddingBag", [(9, 4), (4,), (2,), (3,)], {}, "per-sample weights of shape"),
        ("Einsum", [(2, 5, 5)], {"equation": "...ij->ij"}, "the output lacks the axes of the ellipsis"),
        ("Trilu", [(4,)], {}, "requires 2 dimensions or more"),
        ("RotaryEmbedding", [(1, 2, 3, 5), (3, 2), (3, 2)], {}, "cannot be rotated in pairs"),
        ("RotaryEmbedding", [(1, 3, 8), (9, 2), (9, 2), (1, 4)], {"num_heads": 2}, "do not broadcast"),
        ("Attention", [(1, 4, 2, 8), (1, 3, 2, 8), (1, 3, 2, 8)], {}, "4 heads of queries do not fit 3"),
        ("Attention", [(1, 4, 2, 8), (1, 4, 2, 6), (1, 4, 2, 6)], {}, "sizes of queries and keys"),
        ("Attention", [(1, 1, 2, 8)] * 3 + [None, (1, 1, 2, 8), (1, 1, 2, 7)], {}, "sizes of values"),
    ],
)  # fmt: skip
def test_known_sizes_that_contradict_each_other(
    name: str, shapes: list[Shape], attributes: dict[str, Any], words: str
) -> None:
    inputs = [None if shape is None else np.zeros(shape, np.float32) for shape in shapes]
    with pytest.raises(QfmtError, match=words):
        infer(name, Case(inputs, attributes))


def test_zeros_that_negative_pads_add_are_counted() -> None:
    case = Case([X, W.swapaxes(0, 1), None], {**CONV, "output_padding": (0, 0), "pads": (0, 4, -(2**40), 4)})
    with pytest.raises(RunError, match="of memory"):
        compute("ConvTranspose", case)


def test_a_transposed_convolution_may_have_no_elements() -> None:
    case = Case([X, W.swapaxes(0, 1), None], {**CONV, "output_padding": (0, 0), "pads": (0, 4, 0, 4)})
    assert infer("ConvTranspose", case) == [array.shape for array in compute("ConvTranspose", case)] == [(1, 8, 8, 0)]


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes"),
    [
        ("Reshape", [(4,), (1 << 40,)], {"allowzero": 0}),
        ("Expand", [(4,), (1 << 40,)], {}),
        ("Unsqueeze", [(4,), (1 << 40,)], {}),
        ("Split", [(4,), None], {"axis": 0, "num_outputs": 1 << 40}),
    ],
)
def test_impossible_counts_are_refused(operator: str, shapes: list[Shape], attributes: dict[str, int]) -> None:
    """A number of dimensions or outputs that no tensor has is refused, before anything of this size is made."""
    with pytest.raises(QfmtError, match="1,099,511,627,776"):
        OPERATORS[operator].infer(Inference(shapes, attributes, [None, None]))


def test_the_rank_of_what_is_expanded() -> None:
    assert OPERATORS["Expand"].infer(Inference([(1, 2), (4,)], {}, [None, None])) == [(None,) * 4]
    assert OPERATORS["Expand"].infer(Inference([(1, 2, 3), (2,)], {}, [None, None])) == [(None,) * 3]
    assert OPERATORS["Expand"].infer(Inference([(1, 2), ("n",)], {}, [None, None])) == [None]


@pytest.mark.parametrize("operator", ["Expand", "Tile", "Pad", "Unsqueeze", "Reshape", "ReduceSum"])
def test_long_vectors_are_refused_before_they_are_read(operator: str) -> None:
    """Thousands of nodes may share one."""
    entry, many = OPERATORS[operator], np.ones(1000, np.int64)
    absent = [None] * (len(entry.inputs) - 2)
    given = Inference([(4,), many.shape, *absent], entry.complete({}), [None, many, *absent])
    with pytest.raises(QfmtError, match="1,000 "):
        entry.infer(given)


def test_a_split_has_as_many_parts_as_the_node_has_outputs() -> None:
    parts = np.ones(1 << 16, np.int64)
    given = Inference([(1 << 16, 2), (1 << 16,)], {"axis": 0, "num_outputs": 0}, [None, parts], 1)
    with pytest.raises(QfmtError, match=r"^65536 parts for 1 outputs$"):
        OPERATORS["Split"].infer(given)
    equal = Inference([(9, 2), None], {"axis": 0, "num_outputs": 1 << 16}, [None, None], 2)
    with pytest.raises(QfmtError, match=r"^65536 parts for 2 outputs$"):
        OPERATORS["Split"].infer(equal)
    assert OPERATORS["Split"].infer(equal._replace(outputs=3, attributes={"axis": 0, "num_outputs": 3})) == [(3, 2)] * 3
    with pytest.raises(QfmtError, match=r"^parts \[2, -1\] do not add up to 1$"):
        OPERATORS["Split"].infer(given._replace(shapes=[(1,), (2,)], values=[None, np.array([2, -1])], outputs=2))


def test_a_constant_that_a_node_reads_many_times_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy for each time would take memory without limit."""
    read: list[str] = []

    def array(self: Tensor) -> Any:
        read.append(self.name)
        return np.array([2, 3])

    sizes = Tensor.constant("sizes", np.array([2, 3]))
    monkeypatch.setattr(Tensor, "array", property(array))
    assert OPERATORS["Concat"].inferred([sizes] * 100, {"axis": 0}, tells_sizes) == [(200,)]
    assert read == ["sizes"]
