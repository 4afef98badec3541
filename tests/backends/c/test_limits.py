"""C programs at the limits of their integers: the largest sum that fits is computed, the next is refused; empty
tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import qfmt
from networks import onnx_runtime
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.backends.c import program as texts_of
from qfmt.backends.c import write_c
from qfmt.backends.c.names import EXAMINED, Names, comment, identifier
from qfmt.backends.c.plan import place
from qfmt.backends.c.static import fixed
from qfmt.backends.c.views import Buffer
from qfmt.budget import MODEL_OPERATIONS, Budget
from qfmt.errors import BudgetError, DestinationError, InexpressibleNodesError, ValidityError
from qfmt.model import DTYPES
from qfmt.ops import OPERATORS, Inference
from qfmt.passes.lowering import lower_integer
from qfmt.rules import violations
from support.c_program import Together, flat, program, random_inputs, run_main
from support.counts import tell

GRID = Quantization.of((0.5,), (0,), 0, 255)
ONES = Quantization.per_tensor(1.0, 0, "int8")
WIDE = Quantization.of((1.0,), (0,), -(1 << 31), (1 << 31) - 1)
LARGEST = (1 << 31) - 1


def constant(name: str, array: Any, q: Quantization | None = None) -> Tensor:
    return Tensor.constant(name, np.asarray(array), q)


def net(
    operator: str, tensors: Sequence[Tensor], y: tuple[str, Quantization | None], rule: str = "", **attributes: Any
) -> Model:
    """A network of one node; its inputs that are not constants are inputs of the network."""
    entry = OPERATORS[operator]
    complete = entry.complete(attributes)
    values = [tensor.array if tensor.is_constant else None for tensor in tensors]
    absent = [None] * (len(entry.inputs) - len(tensors))
    (shape, *_) = entry.infer(Inference([*(tensor.shape for tensor in tensors), *absent], complete, [*values, *absent]))
    node = Node(operator, tuple(tensor.name for tensor in tensors), ("y",), complete, "", entry.version, rule)
    named = {tensor.name: tensor for tensor in tensors}
    inputs = tuple(name for name, tensor in named.items() if not tensor.is_constant)
    model = Model(Graph(inputs, ("y",), (node,), named | {"y": Tensor("y", y[0], shape, None, y[1])}))
    assert not violations(model)
    return model


def of_bias(kind: str, bias: int) -> Model:
    """4,000 products of 255 and 127, whose sum is 129,540,000, plus a bias."""
    weights = Quantization.of((0.25,), (0,), -128, 127)
    sums: tuple[str, Quantization | None] = ("int32", None)
    if kind == "depthwise":
        x = Tensor("x", "uint8", (1, 2, 40, 100), None, GRID)
        w = constant("w", np.full((2, 1, 40, 100), 127, np.int8), weights)
        window = {"kernel_shape": (40, 100), "strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4}
        return net("Conv", [x, w, constant("b", np.full(2, bias, np.int32))], sums, "folded", group=2, **window)
    x = Tensor("x", "uint8", (2, 4000), None, GRID)
    if kind == "Gemm":
        rows = constant("b", np.array([[bias], [5]], np.int32))
        return net("Gemm", [x, constant("w", np.full((4000, 1), 127, np.int8), weights), rows], sums, "folded")
    w = constant("w", np.full((1, 4000), 127, np.int8), weights)
    return net("qfmt.Linear", [x, w, constant("b", np.array([bias], np.int32))], sums, "folded")


def equal(model: Model, inputs: Mapping[str, np.ndarray], folder: Path) -> None:
    """Assert that the program, which stops at undefined behaviour, computes the same as the interpreter."""
    assert run_main(program(model, folder), model, inputs).tolist() == flat(model.run(inputs), model).tolist()


@pytest.mark.parametrize("kind", ["Linear", "Gemm", "depthwise"])
def test_a_bias_counts_among_what_int32_must_hold(kind: str, tmp_path: Path) -> None:
    most = LARGEST - 4000 * 255 * 127
    model = of_bias(kind, most)
    largest = {name: np.full(model.tensors[name].shape, 255, np.uint8) for name in model.graph.inputs}
    assert LARGEST in flat(model.run(largest), model)
    equal(model, largest, tmp_path / "net")
    with pytest.raises(InexpressibleNodesError, match="may exceed int32"):
        write_c(of_bias(kind, most + 1), tmp_path / "beyond")


@pytest.mark.parametrize(("low", "high"), [(-(1 << 30) + 1, (1 << 30) - 1), (-5, 7)])
def test_a_weighted_sum_of_wide_integers_within_int32(low: int, high: int, tmp_path: Path) -> None:
    grid = Quantization.of((1.0,), (0,), low, high)
    pair = [Tensor(name, "int32", (2,), None, grid) for name in ("a", "b")]
    model = net("qfmt.WeightedSum", pair, ("int32", None), weights=(1, -1))
    equal(model, {"a": np.array([low, high], np.int32), "b": np.array([high, low], np.int32)}, tmp_path / "net")


def test_a_weighted_sum_that_leaves_int32_is_refused(tmp_path: Path) -> None:
    wide = [Tensor(name, "int32", (2,), None, WIDE) for name in ("a", "b")]
    none = [Tensor(name, "int32", (2,), None, None) for name in ("a", "b")]
    for tensors, weights in ((wide, (1, 1)), (none, (1, -1)), (wide[:1], (2,)), (none[:1], (-1,))):
        with pytest.raises(InexpressibleNodesError, match="may exceed int32"):
            write_c(net("qfmt.WeightedSum", tensors, ("int32", None), weights=weights), tmp_path / "net")
    known = [wide[0], constant("c", np.zeros(2, np.int32), WIDE)]  # its type is wide, its integers are small
    equal(
        net("qfmt.WeightedSum", known, ("int32", None), weights=(1, 3)),
        {"a": np.array([-(1 << 31), LARGEST], np.int32)},
        tmp_path / "net",
    )


def test_sums_that_exceed_their_stated_range_are_refused(tmp_path: Path) -> None:
    """Readers of the sums may be correct only for the stated range."""
    x = Tensor("x", "int32", (2,), None, Quantization.of((1.0,), (0,), -(1 << 30), 1 << 30))
    for high, refused in ((1 << 30, False), (5, True)):
        stated = Quantization.of((1.0,), (0,), -(1 << 30), high)
        s, y = Tensor("s", "int32", (2,), None, stated), Tensor("y", "int32", (2,))
        nodes = [
            Node("qfmt.WeightedSum", (a,), (b,), {"weights": (weight,)}, "", 1)
            for a, b, weight in (("x", "s", 1), ("s", "y", -1))
        ]
        model = Model(Graph(("x",), ("y",), nodes, {"x": x, "s": s, "y": y}))
        assert not violations(model)
        if refused:
            with pytest.raises(ValidityError, match=r"P2.*'s' states"):
                write_c(model, tmp_path / "beyond")
        else:
            equal(model, {"x": np.array([1 << 30, -(1 << 30)], np.int32)}, tmp_path / "net")


def requant_shift(zero: int, add: int, dtype: str = "int32") -> Model:
    limits = DTYPES[dtype]
    grid = Quantization.of((1.0,), (zero,), int(limits.minimum or 0), int(limits.maximum or 0))
    given = [
        Tensor("x", dtype, (1, 3), None, grid),
        constant("mul", np.array([LARGEST], np.int32)),
        constant("add", np.array([add], np.int64)),
    ]
    return net(
        "qfmt.RequantShift", given, ("int8", Quantization.of((1.0,), (0,), -128, 127)), "multiply_add_divide", div=3
    )


def test_products_of_a_rescaling_stay_within_int64(tmp_path: Path) -> None:
    x = np.array([[LARGEST, -(1 << 31), 7]], np.int32)
    for index, (zero, add) in enumerate(((0, 1 << 60), (0, -(1 << 60)), (1 << 29, 0), (LARGEST, 0))):
        main = program(requant_shift(zero, add), tmp_path / f"net{index}")
        got = run_main(main, requant_shift(zero, add), {"x": x}).tolist()
        assert got == [max(-128, min(127, ((int(q) - zero) * LARGEST + add + 1) // 3)) for q in x[0]]
    for zero, add in ((-(1 << 31), 1 << 60), (LARGEST, -(1 << 60))):
        with pytest.raises(InexpressibleNodesError, match="may exceed int64"):
            write_c(requant_shift(zero, add), tmp_path / "beyond")


# Sizes of 0


def empty(operator: str) -> Model:
    x = Tensor("x", "uint8", (0, 3), None, GRID)
    other = Tensor("b", "uint8", (1, 3), None, GRID)
    table, pairs = np.zeros(256, np.uint8), np.zeros((256, 256), np.uint8)
    weights = Quantization.of((0.25,), (0,), -128, 127)
    one = Quantization.of((1.0,), (0,), -128, 127)
    numbers = [constant(f"c{i}", np.ones(1, kind)) for i, kind in enumerate((np.int32, np.uint8, np.int64))]
    sums = Tensor("x", "int32", (0, 3), None, None)
    made = {
        "qfmt.Table": lambda: net(operator, [x, constant("t", table)], ("uint8", GRID)),
        "qfmt.PairTable": lambda: net(operator, [x, other, constant("t", pairs)], ("uint8", GRID)),
        "qfmt.WeightedSum": lambda: net(operator, [x, other], ("int32", None), weights=(1, 2)),
        "Mul": lambda: net(operator, [x, other], ("int32", None), "exact"),
        "Relu": lambda: net(operator, [x], ("uint8", GRID)),
        "Transpose": lambda: net(operator, [x], ("uint8", GRID), perm=(1, 0)),
        "qfmt.Linear": lambda: net(
            operator, [x, constant("w", np.ones((2, 3), np.int8), weights)], ("int32", None), "folded"
        ),
        "qfmt.Requantize": lambda: net(operator, [sums, *numbers], ("int8", one), "multiply_shift", axis=1),
    }
    return made[operator]()


EMPTY = ("qfmt.Table", "qfmt.PairTable", "qfmt.WeightedSum", "Mul", "Relu", "Transpose", "qfmt.Linear",
         "qfmt.Requantize")  # fmt: skip


def test_tensors_without_elements(tmp_path: Path) -> None:
    models = [empty(operator) for operator in EMPTY]
    programs = Together(models, tmp_path / "nets")
    rng = np.random.default_rng(1)
    for index, model in enumerate(models):
        inputs = random_inputs(model, rng)
        assert flat(model.run(inputs), model).size == programs(index, inputs).size == 0, EMPTY[index]
    equal(models[0], random_inputs(models[0], rng), tmp_path / "alone")


@pytest.mark.parametrize("operator", ["GlobalMaxPool", "ReduceMax", "ReduceMin"])
def test_extremes_of_no_elements(operator: str, tmp_path: Path) -> None:
    """The ends of the range of the output, as in Python."""
    narrow = Quantization.of((0.5,), (20,), 10, 90)
    axes = [] if operator == "GlobalMaxPool" else [constant("axes", np.array([2, 3]))]
    model = net(operator, [Tensor("x", "uint8", (1, 2, 0, 3), None, narrow), *axes], ("uint8", narrow))
    given = {"x": np.zeros((1, 2, 0, 3), np.uint8)}
    assert set(model.run(given)["y"].ravel()) == {90 if operator == "ReduceMin" else 10}
    equal(model, given, tmp_path)


# The text


def test_the_header_states_the_range_of_inputs(tmp_path: Path) -> None:
    write_c(of_bias("Linear", 0), tmp_path / "net")
    text = (tmp_path / "net" / "net.h").read_text(encoding="ascii")
    assert "No integer of an input may be outside its stated range" in text and "0 to 255" in text


def test_offsets_of_similar_buffers_are_deterministic() -> None:
    """A tensor has the name and size of scratch memory: only the order of steps distinguishes them."""
    numbers = [constant(f"c{i}", np.ones(1, kind)) for i, kind in enumerate((np.int32, np.uint8, np.int64))]
    rescaled = {"axis": 1}
    tensors = [
        Tensor("x", "uint8", (1, 8), None, GRID),
        Tensor("added", "int32", (1, 8)),
        Tensor("sums", "int32", (1, 8), None, WIDE),
        Tensor("y", "uint8", (1, 8), None, GRID),
    ]
    nodes = [
        Node("qfmt.WeightedSum", ("x",), ("added",), {"weights": (8,)}, "", 1),
        Node("qfmt.Requantize", ("added", "c0", "c1", "c2"), ("sums",), rescaled, "", 1, "multiply_shift"),
        Node("qfmt.Requantize", ("sums", "c0", "c1", "c2"), ("y",), rescaled, "", 1, "multiply_shift"),
    ]
    model = Model(Graph(("x",), ("y",), nodes, {tensor.name: tensor for tensor in (*tensors, *numbers)}))
    assert not violations(model)
    texts = [texts_of(model, "net") for _ in range(32)]
    assert "arena32 + " in texts[0]["net.c"]
    assert sum(text == texts[0] for text in texts) == len(texts)
    tell(f"C: {len(texts)} of {len(texts)} texts of one network are equal")


def test_memory_of_many_tensors_at_once() -> None:
    """Each has its own place; those of other times share one."""
    made = [Buffer("uint8", 3, f"b{index}", first=index % 2, last=index % 2) for index in range(12_000)]
    given = [SimpleNamespace(view=SimpleNamespace(buffer=buffer)) for buffer in made]
    steps = [SimpleNamespace(operands=given, scratch=())]
    plan = SimpleNamespace(
        steps=steps, alignment=4, network=SimpleNamespace(budget=Budget(0, operations=MODEL_OPERATIONS))
    )
    assert place(cast(Any, plan)) == {1: 6000 * 4 - 1}
    assert sorted(buffer.offset for buffer in made) == [4 * (index // 2) for index in range(12_000)]


@pytest.mark.parametrize(
    ("name", "outputs", "form"),
    [
        ("cnn", ("relu1", "conv4"), {}),
        ("mlp", ("gemm2",), {"form": "fixed_point_double"}),  # without a search, which takes seconds for 16 bits
        ("generator", ("convtranspose0",), {}),
    ],
)
def test_layers_of_uint16(name: str, outputs: tuple[str, ...], form: dict[str, str], tmp_path: Path) -> None:
    """Convolutions (plain, depthwise, transposed) and linear layers, padded with nonzero zero points."""
    source = onnx_runtime.static(name, "qdq u16u8", tmp_path)
    model = lower_integer(qfmt.convert(source), outputs=outputs, **form)
    main = program(model, tmp_path / "c")
    rng = np.random.default_rng(0)
    for _ in range(5):
        inputs = random_inputs(model, rng)
        assert run_main(main, model, inputs).tolist() == flat(model.run(inputs), model).tolist()


def test_names_that_come_down_to_one_identifier_cost_one_step_each() -> None:
    names, asked = Names("net"), 0

    class Counted(dict[str, int]):
        def __contains__(self, name: object) -> bool:
            nonlocal asked
            asked += 1
            return super().__contains__(name)

    names._taken = Counted()
    assert len({names.constant("é" * (1 + i)) for i in range(500)}) == 500
    assert asked <= 2 * 500


def pooled(size: int, kernel: int) -> Model:
    """A pool that keeps the size of a square image."""
    image = {name: Tensor(name, "int8", (1, 1, size, size), quantization=ONES) for name in "xy"}
    window = {"ceil_mode": 0, "dilations": (1, 1), "kernel_shape": (kernel, kernel), "pads": (kernel // 2,) * 4}
    node = Node("MaxPool", ("x",), ("y",), {**window, "strides": (1, 1)}, version=OPERATORS["MaxPool"].version)
    return Model(Graph(("x",), ("y",), [node], image))


def test_shapes_are_known_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of 64 million elements with 16 million taps each."""

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("qfmt.backends.c.static.computed", never)
    found = fixed(pooled(8191, 4095), {})
    assert found.value("y").shape == (1, 1, 8191, 8191) and len(found.nodes) == 1


def repeated(count: int) -> Model:
    """A constant that is repeated `count` times before it is added."""
    tensors = {
        "c": Tensor.constant("c", np.ones((1,), np.int8), ONES),
        "n": Tensor.constant("n", np.array([count])),
        "many": Tensor("many", "int8", (None,), quantization=ONES),
        "x": Tensor("x", "int8", (count,), quantization=ONES),
        "y": Tensor("y", "int32", (count,)),
    }
    add = Node("qfmt.WeightedSum", ("x", "many"), ("y",), {"weights": (1, 1)}, version=1)
    nodes = [Node("Tile", ("c", "n"), ("many",), version=OPERATORS["Tile"].version), add]
    return Model(Graph(("x",), ("y",), nodes, tensors))


def test_constants_that_are_computed_are_charged_before() -> None:
    assert fixed(repeated(1000), {}).value("many").array is not None
    with pytest.raises(BudgetError, match=r"writing C for a network of \d+ bytes would take more than"):
        fixed(repeated(1 << 25), {})


def test_sizes_that_depend_on_values_are_named() -> None:
    tensors = {
        "x": Tensor("x", "int8", (4,), quantization=ONES),
        "n": Tensor("n", "int64", (1,)),
        "y": Tensor("y", "int8", (None,), quantization=ONES),
    }
    node = Node("Tile", ("x", "n"), ("y",), name="more", version=OPERATORS["Tile"].version)
    with pytest.raises(DestinationError, match=r"node more \(Tile\): has an output whose sizes depend on"):
        fixed(Model(Graph(("x", "n"), ("y",), [node], tensors)), {})


# What is not a function of one element


def unary(operator: str, rule: str, *more: Tensor, dtype: str = "int8", **attributes: Any) -> Model:
    limits = DTYPES[dtype]
    q = Quantization.of((4 / (limits.maximum + 1),), (0,), limits.minimum, limits.maximum)
    return net(operator, [Tensor("x", dtype, (1, 3, 4), None, q), *more], (dtype, q), rule, **attributes)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (unary("Trilu", "divide"), "Trilu has no form in C"),
        (
            unary("BatchNormalization", "fused", *(constant(n, np.ones(3, np.float32)) for n in "sbmv"), epsilon=1e-5),
            "parameters for each channel",
        ),
        (
            unary("InstanceNormalization", "divide", *(constant(n, np.ones(3, np.float32)) for n in "sb"), epsilon=0.1),
            "InstanceNormalization has no form in C",
        ),
        (unary("Tanh", "divide", dtype="int16"), "neither a clamp nor a table"),
    ],
)
def test_only_functions_of_one_element_become_tables(model: Model, why: str, tmp_path: Path) -> None:
    with pytest.raises(InexpressibleNodesError, match=why):
        write_c(model, tmp_path / "net")


@pytest.mark.parametrize(("factor", "fits"), [(1, True), (2, True), (3, False)])
def test_a_rescaling_that_wraps_around_is_refused(factor: int, fits: bool, tmp_path: Path) -> None:
    """Without a quantization of the output, integers beyond its type wrap around."""
    given = [
        Tensor("x", "int32", (1, 2), None),
        constant("mul", np.array(factor, np.int32)),
        constant("add", np.array(-1, np.int64)),
    ]
    model = net("qfmt.RequantShift", given, ("int32", None), div=2)
    if fits:
        equal(model, {"x": np.array([[LARGEST, -LARGEST - 1]], np.int32)}, tmp_path / "net")
    else:
        with pytest.raises(InexpressibleNodesError, match="wrap around"):
            write_c(model, tmp_path / "net")


# What a file may describe, but C cannot compute


def window(**numbers: Any) -> dict[str, Any]:
    return {"kernel_shape": (2,), "strides": (1,), "dilations": (1,), "pads": (0, 0), **numbers}


WEIGHTS = Quantization.of((0.25,), (0,), -128, 127)
NONE: tuple[str, Quantization | None] = ("int32", None)
FAR = {"dilations": ((1 << 30) - 1,), "pads": (1 << 30, 0)}


def image(*shape: int) -> Tensor:
    return Tensor("x", "int8", shape, None, ONES)


def weight(*shape: int) -> Tensor:
    return constant("w", np.ones(shape, np.int8), WEIGHTS)


@pytest.mark.parametrize(
    ("operator", "tensors", "attributes", "why"),
    [
        ("Conv", [image(1, 0, 5), weight(3, 0, 2)], window(group=1), "sums of no products"),
        ("ConvTranspose", [image(1, 0, 5), weight(0, 3, 2)], window(group=1, output_padding=(0,)), "no products"),
        ("qfmt.Linear", [image(2, 0), weight(3, 0)], {}, "sums of no products"),
        ("MatMul", [image(2, 0), replace(image(0, 3), name="b")], {}, "sums of no products"),
        ("ReduceMean", [image(2, 0), constant("a", np.array([1]))], {}, "averages no elements"),
        ("GlobalAveragePool", [image(1, 2, 0)], {}, "averages no elements"),
        ("Conv", [image(1, 1, 5), weight(1, 1, 2)], window(group=1, **FAR), "too large for int32"),
        ("Conv", [image(1, 2, 5), weight(2, 1, 2)], window(group=2, **FAR), "too large for int32"),
    ],
)
def test_sums_of_nothing_and_windows_beyond_int32_are_refused(
    operator: str, tensors: list[Tensor], attributes: dict[str, Any], why: str
) -> None:
    with pytest.raises(InexpressibleNodesError, match=why):
        texts_of(net(operator, tensors, NONE, "exact", **attributes), "net")


def test_sizes_of_the_caller_keep_the_rules(tmp_path: Path) -> None:
    """Three multipliers, for as many channels as the caller says."""
    numbers = [constant(f"c{i}", np.ones(3, kind)) for i, kind in enumerate((np.int32, np.uint8, np.int64))]
    sums = Tensor("x", "int32", ("N", "C"))
    model = net("qfmt.Requantize", [sums, *numbers], ("int8", ONES), "multiply_shift", axis=1)
    equal(with_input_shapes(model, (2, 3)), {"x": np.array([[7, 8, 9], [-7, 0, 90]], np.int32)}, tmp_path / "net")
    for channels in (1, 5):
        with pytest.raises(DestinationError, match=f"3 multiplier for {channels} channels, with these sizes"):
            write_c(model, tmp_path / "other", shapes={"x": (2, channels)})


def with_input_shapes(model: Model, shape: tuple[int, ...]) -> Model:
    tensors = {name: replace(model.tensors[name], shape=shape) for name in ("x", "y")}
    return replace(model, graph=replace(model.graph, tensors={**model.tensors, **tensors}))


def clipped(kind: str, low: int, high: int) -> Model:
    ends = [constant(name, np.array(each, kind)) for name, each in (("low", low), ("high", high))]
    return net("Clip", [Tensor("x", kind, (6,)), *ends], (kind, None))


def test_clamps_to_any_integer(tmp_path: Path) -> None:
    """C has no literal for the least integers; those of 64 bits need a suffix."""
    models = []
    for kind in ("int8", "uint16", "int32", "uint32", "int64", "uint64"):
        least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        pairs = (least, least), (least + 1, most - 1), (most, most), (most // 2, most), (most // 2, least + 3)
        models += [clipped(kind, *pair) for pair in pairs]
    programs = Together(models, tmp_path / "nets")
    for index, model in enumerate(models):
        limits = np.iinfo(model.tensors["x"].dtype)
        x = np.array([limits.min, limits.min + 1, 0, 3, limits.max - 1, limits.max], limits.dtype)
        assert programs(index, {"x": x}).tolist() == flat(model.run({"x": x}), model).tolist()


def test_a_function_of_bools(tmp_path: Path) -> None:
    model = net("Not", [Tensor("x", "bool", (2,))], ("bool", None))
    equal(model, {"x": np.array([False, True])}, tmp_path / "net")


def test_integers_of_64_bits_are_not_requantized(tmp_path: Path) -> None:
    numbers = [constant(name, np.array(1)) for name in ("mul", "add")]
    model = net("qfmt.RequantShift", [Tensor("x", "int64", (3,)), *numbers], ("int64", None), div=2)
    with pytest.raises(InexpressibleNodesError, match="outputs int64"):
        write_c(model, tmp_path / "net")


# Work, and memory


def moves() -> Model:
    """Operators that move elements in a way that their shapes state, of 64 million elements."""
    shape = (1 << 13, 1 << 13)
    x = Tensor("x", "uint8", shape, None, GRID)
    flat_size = constant("size", np.array([1, -1]))
    row = Tensor("row", "uint8", (1, shape[1]), None, GRID)
    sizes = {
        "t": shape,
        "f": (1, shape[0] ** 2),
        "e": shape,
        "c": (shape[0], 3 * shape[1]),
        "y": (shape[0], 3 * shape[1]),
    }
    tensors = {name: replace(x, name=name, shape=size) for name, size in sizes.items()}
    tensors |= {each.name: each for each in (x, row, flat_size, constant("whole", np.array(shape)))}
    tensors["y"] = Tensor("y", "int32", sizes["y"])
    versions = {name: OPERATORS[name].version for name in OPERATORS}
    nodes = [
        Node("Transpose", ("x",), ("t",), {"perm": (1, 0)}, "", versions["Transpose"]),
        Node("Reshape", ("t", "size"), ("f",), {"allowzero": 0}, "", versions["Reshape"]),
        Node("Expand", ("row", "whole"), ("e",), {}, "", versions["Expand"]),
        Node("Concat", ("t", "e", "t"), ("c",), {"axis": 1}, "", versions["Concat"]),
        Node("qfmt.WeightedSum", ("c", "c"), ("y",), {"weights": (1, 2)}, "", 1),
    ]
    return Model(Graph(("x", "row"), ("y", "f"), nodes, tensors))


def test_positions_of_elements_are_listed_only_where_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("qfmt.backends.c.views.View.positions", never)
    assert not violations(moves())
    assert "Concat" in texts_of(moves(), "net")["net.c"]


def sliced(size: int, count: int) -> Model:
    """Rows in reverse order, again and again."""
    ends = [
        constant(name, np.array([each]))
        for name, each in (("begin", -1), ("end", -(1 << 60)), ("axes", 0), ("steps", -1))
    ]
    names = tuple(f"x{i}" for i in range(count + 1))
    tensors = {name: Tensor(name, "uint8", (size, 1 << 10), None, GRID) for name in names}
    nodes = [
        Node("Slice", (a, *(each.name for each in ends)), (b,), {}, "", OPERATORS["Slice"].version)
        for a, b in pairwise(names)
    ]
    return Model(Graph(names[:1], names[-1:], nodes, tensors | {each.name: each for each in ends}))


def test_positions_are_charged_before_they_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert texts_of(sliced(4, 3), "net")
    for size, count in ((1 << 16, 1), (1 << 10, 20)):
        with pytest.raises(BudgetError, match=r"writing C for a network of \d+ bytes would take more than"):
            texts_of(sliced(size, count), "net")
    monkeypatch.setattr("qfmt.memory.available", lambda: 1 << 25)
    with pytest.raises(InexpressibleNodesError, match=r"needs 41\.9 MB of memory, more than the limit of 16\.8 MB"):
        texts_of(sliced(1 << 9, 1), "net")


@pytest.mark.parametrize(
    ("operator", "tensors", "attributes"),
    [
        ("MatMul", [image(1 << 22, 1, 1), replace(image(1, 1), name="b")], {}),
        ("MatMul", [image(1, 1), replace(image(1, 1 << 24), name="b")], {}),
        ("AveragePool", [image(1, 1, 1 << 24)], window(ceil_mode=0, count_include_pad=0)),
    ],
)
def test_constants_that_shapes_ask_for_are_charged(
    operator: str, tensors: list[Tensor], attributes: dict[str, Any]
) -> None:
    """The place of each matrix, a zero for each column, the divisor of each window."""
    with pytest.raises(BudgetError, match=r"writing C for a network of \d+ bytes would take more than"):
        texts_of(net(operator, tensors, NONE, "exact", **attributes), "net")


def test_a_vector_times_a_matrix(tmp_path: Path) -> None:
    w = constant("w", np.arange(-6, 6, dtype=np.int8).reshape(4, 3), WEIGHTS)
    equal(net("MatMul", [image(4), w], NONE, "folded"), {"x": np.array([-128, 5, 127, 9], np.int8)}, tmp_path / "net")


def test_only_the_beginning_of_a_name_is_examined() -> None:
    """Thousands of nodes may read a tensor whose name is a megabyte."""

    class Long(str):
        def __getitem__(self, part: Any) -> str:
            assert part == slice(EXAMINED)
            return "long" * 100

    assert identifier(Long()).startswith("longlong") and comment(Long()) == "long" * 50
