"""Every operator alone, by every engine of `Model.to_torch`, against `Model.run`: odd shapes, grids and types."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from operator_cases import CASES, compute

from qfmt.backends.torch.spelled import Kernel
from qfmt.errors import QfmtError
from qfmt.model import DTYPES, Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from qfmt.ops.spelling import parsed

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

TRIES = 5
"""Random cases of each operator and kind."""

KINDS = {"float": (), "8 bits": ("uint8", "int8"), "more bits": ("int16", "uint16", "int32")}

REAL_INPUTS = {
    "Clip": 1, "Pad": 1, "Resize": 1, "BatchNormalization": 1, "LayerNormalization": 1, "GroupNormalization": 1,
    "InstanceNormalization": 1,
}  # fmt: skip
"""How many of its inputs come quantized; the others are floats. All, where nothing is said."""

WEIGHTS = {"Conv": 0, "ConvTranspose": 1, "qfmt.Linear": 0}
"""The axis along which the second input may have its scales; the third is a bias."""


@pytest.fixture(autouse=True)
def kernels():
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    yield
    torch.backends.quantized.engine = before


def grid(rng: Rng, values: Array, dtype: str, axis: int | None = None) -> Quantization:
    """Scales that hold about the range of the values; zero points, and clamped ranges, anywhere."""
    limits = DTYPES[dtype]
    parts = [values] if axis is None else [np.take(values, i, axis) for i in range(values.shape[axis])]
    reach = [float(np.abs(part[np.isfinite(part)]).max(initial=0.1)) for part in parts]
    scales = [float(np.float32(r * rng.uniform(1, 3) / (limits.maximum - limits.minimum))) for r in reach]
    middle = (limits.minimum + limits.maximum + 1) // 2
    if axis is not None:
        points = [int(rng.integers(limits.minimum, limits.maximum + 1)) if rng.random() < 0.2 else 0 for _ in parts]
        return Quantization(tuple(scales), tuple(points), limits.minimum, limits.maximum, axis=axis)
    point = int(rng.integers(limits.minimum, limits.maximum + 1)) if rng.random() < 0.5 else middle
    low = point if rng.random() < 0.2 else limits.minimum
    return Quantization((scales[0],), (point,), low, limits.maximum)


def stored(values: Array, q: Quantization, dtype: str) -> Array:
    steps = np.rint(np.nan_to_num(values) / q.scales(values.ndim) + q.zero_points(values.ndim))
    return np.clip(steps, q.quant_min, q.quant_max).astype(dtype)


def one_node(name: str, kind: str, rng: Rng) -> tuple[Model, dict[str, Array]]:
    """A model of a random case; some inputs are constants, some sizes have a name."""
    operator, case = OPERATORS[name], CASES[name](rng)
    dtype = str(rng.choice(KINDS[kind])) if kind != "float" else ""
    rule = str(rng.choice(operator.rules or ("",))) if dtype else ""
    tensors: dict[str, Tensor] = {}
    inputs: dict[str, Array] = {}
    first: Quantization | None = None
    for i, array in enumerate(case.inputs):
        if array is None:
            continue
        at, own, q = f"x{i}", dtype, None
        constant = i > 0 and (array.dtype == np.int64 or name == "Resize" or rng.random() < 0.7)
        if dtype and array.dtype == np.float32 and i < REAL_INPUTS.get(name, 9):
            if name in WEIGHTS and i == 1:
                own = "int8" if kind == "8 bits" and rng.random() < 0.7 else dtype
                q = grid(rng, array, own, WEIGHTS[name] if rng.random() < 0.6 else None)
            elif name in WEIGHTS and i == 2:
                own, q = _bias(rng, tensors, name, case.attributes)
                constant = True
            else:
                q = first if first and operator.moves else grid(rng, array, own)
                first = first or q
        array = array if q is None else stored(array, q, own)
        if constant:
            tensors[at] = Tensor.constant(at, array, q)
        else:
            shape = tuple(f"{at}.{axis}" if rng.random() < 0.3 else size for axis, size in enumerate(array.shape))
            tensors[at], inputs[at] = Tensor(at, str(array.dtype), shape, quantization=q), array
    results = compute(name, case)
    for i, array in enumerate(results):
        at, own, q = f"y{i}", array.dtype.name, None
        if dtype and array.dtype == np.float32 and name != "DequantizeLinear":
            keeps = operator.moves or rule.startswith(("mean", "interpolate"))
            own, q = dtype, first if keeps and first else grid(rng, array, dtype)
        tensors[at] = Tensor(at, own, array.shape if rng.random() < 0.5 else (None,) * array.ndim, quantization=q)
    names = tuple("" if each is None else f"x{i}" for i, each in enumerate(case.inputs))
    outputs = tuple(f"y{i}" for i in range(len(results)))
    node = Node(name, names, outputs, operator.complete(case.attributes), "node", operator.version, rule)
    return Model(Graph(tuple(inputs), outputs, (node,), tensors), engine="fbgemm"), inputs


def _bias(rng: Rng, tensors: dict[str, Tensor], name: str, attributes: Any) -> tuple[str, Quantization | None]:
    """Floats as PyTorch has them, or int32 in units of the sums, as ONNX has."""
    x, w = tensors["x0"].quantization, tensors["x1"].quantization
    if x is None or w is None or rng.random() < 0.6:
        return "float32", None
    groups = int(attributes["group"]) if name == "ConvTranspose" and w.is_per_channel else 1
    scales = tuple(float(np.float32(x.scale[0] * scale)) for scale in w.scale * groups)
    axis = 0 if w.is_per_channel else None
    return "int32", Quantization(scales, (0,) * len(scales), -(2**31), 2**31 - 1, axis=axis)


def allowed(engine: str, kind: str, got: Array, expected: Array, quantized: bool) -> bool:
    """`reference`: bit for bit. The others round elsewhere, or sum floats in another order."""
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return False
    if engine == "reference" or not (quantized or got.dtype.kind == "f"):
        return np.array_equal(got, expected, equal_nan=got.dtype.kind == "f")
    if quantized:
        return int(np.abs(got.astype(np.int64) - expected.astype(np.int64)).max(initial=0)) <= 1
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=1))
    return np.allclose(got, expected, rtol=1e-4, atol=1e-4 * largest, equal_nan=True)


EXCUSED = {
    ("qdq", "Div", "8 bits"): "what 0 / 0 gives on integers is torch's",
}
"""Where an engine is torch's own, and torch is off."""


@pytest.mark.filterwarnings("ignore:All inputs of this cat operator must share the same quantization parameters")
@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_by_every_engine(kind: str) -> None:
    counts = dict.fromkeys(("reference", "native", "onednn", "qdq"), (0, 0))
    failures, ran = [], set()
    for name in sorted(set(OPERATORS) & set(CASES)):
        for seed in range(TRIES):
            model, inputs = one_node(name, kind, np.random.default_rng([seed, *name.encode(), len(kind)]))
            try:
                expected = model.run(inputs)
            except QfmtError:
                continue  # a random rule or grid that this operator does not have
            ran.add(name)
            for engine in counts:
                made = model.to_torch(engine)(*(torch.from_numpy(np.array(array)) for array in inputs.values()))
                results = made if isinstance(made, tuple) else (made,)
                for got, (at, wanted) in zip(results, expected.items(), strict=True):
                    is_quantized = model.tensors[at].quantization is not None
                    if not allowed(engine, kind, got.numpy(), wanted, is_quantized):
                        if (engine, name, kind) not in EXCUSED:
                            failures.append((engine, name, seed, model.nodes[0].rule))
                        continue
                    same = np.isclose(got.numpy(), wanted, rtol=0, atol=0, equal_nan=True)
                    counts[engine] = (counts[engine][0] + int(same.sum()), counts[engine][1] + wanted.size)
    for engine, (same, total) in counts.items():
        print(f"{kind}, {engine}: {same} of {total} outputs of {len(ran)} operators equal")
    assert not failures
    assert len(ran) >= 60
    assert counts["reference"][0] == counts["reference"][1] > 10_000


def test_what_follows_a_default_is_given_by_name() -> None:
    call = "aten::embedding(weight:data, indices, padding_idx:_=-1, scale_grad_by_freq:axis, sparse:_=False)"
    parameters = {each.torch_name: each for each in parsed(call)[1]}
    kernel = Kernel(torch.ops.aten.embedding.default, OPERATORS["Gather"], parameters)
    site: Any = SimpleNamespace(attribute={"axis": 1}.__getitem__)
    assert kernel.arguments(site, ["x", "i"]) == (["x", "i"], {"scale_grad_by_freq": 1})


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "qdq"])
def test_a_slope_that_does_not_reach_one(engine: str) -> None:
    """torch multiplies the positive half of PReLU by 1 on the grid of the slope, which ends at 0.25 here."""
    x, q, w = np.arange(256, dtype=np.uint8), (0.02, 128), float(np.float32(0.25 / 255))
    kind = torch.quint8
    theirs = torch.ops.quantized.prelu(
        torch._make_per_tensor_quantized_tensor(torch.from_numpy(x).reshape(1, 1, 16, 16), *q),
        torch.quantize_per_tensor(torch.tensor([0.25]), w, 0, kind),
        0.01,
        100,
    )
    tensors = {
        "x": Tensor("x", "uint8", (1, 1, 16, 16), quantization=Quantization.per_tensor(*q, "uint8")),
        "w": Tensor.constant("w", np.full((1, 1, 1), 255, np.uint8), Quantization.per_tensor(w, 0, "uint8")),
        "y": Tensor("y", "uint8", (1, 1, 16, 16), quantization=Quantization.per_tensor(0.01, 100, "uint8")),
    }
    node = Node("PRelu", ("x", "w"), ("y",), version=16, rule="product")
    model = Model(Graph(("x",), ("y",), (node,), tensors), engine="fbgemm")
    got = model.to_torch(engine)(torch.from_numpy(x).reshape(1, 1, 16, 16)).numpy()
    off = np.abs(got.astype(int) - theirs.int_repr().numpy().astype(int))
    print(f"{engine}: {int((off == 0).sum())} of {off.size} outputs equal")
    assert off.max() <= (1 if engine == "qdq" else 0)


def test_biases_of_onnx_need_no_help() -> None:
    """int32 in units of the sums: the reference adds them to the sums, kernels get the real numbers they stand for."""
    rng = np.random.default_rng(0)
    x, out = Quantization.per_tensor(0.5, 3, "uint8"), Quantization.per_tensor(2.0, 100, "uint8")
    w = Quantization((0.25, 0.125), (0, 0), -128, 127, axis=0)
    b = Quantization((0.125, 0.0625), (0, 0), -(2**31), 2**31 - 1, axis=0)
    tensors = {
        "x": Tensor("x", "uint8", ("N", 5), quantization=x),
        "w": Tensor.constant("w", rng.integers(-128, 128, (2, 5)).astype(np.int8), w),
        "b": Tensor.constant("b", np.array([2500, -777], np.int32), b),
        "y": Tensor("y", "uint8", ("N", 2), quantization=out),
    }
    for rule in ("integer_bias", "float_bias", "affine", "integer_bias_reciprocal"):
        node = Node("qfmt.Linear", ("x", "w", "b"), ("y",), version=1, rule=rule)
        model = Model(Graph(("x",), ("y",), (node,), tensors))
        values = rng.integers(0, 256, (50, 5)).astype(np.uint8)
        expected = model.run({"x": values})["y"].astype(int)
        for engine in ("reference", "native", "onednn"):
            module = model.to_torch(engine)
            assert all("overflow" in row.reason for row in module.report())
            off = np.abs(module(torch.from_numpy(values)).numpy() - expected)
            print(f"{rule}, {engine}: {int((off == 0).sum())} of {off.size} outputs equal")
            assert off.max() <= (0 if engine == "reference" else 1)


CONSTANTS = [(), (1,), (5,), (3, 5), (2, 1, 1), (3, 1), (1, 1, 1, 1)]
"""Shapes that meet one of [2, 3, 5]."""


@pytest.mark.parametrize("own", ["uint8", "int8", ""])
@pytest.mark.parametrize(("name", "rule"), [("Add", "reciprocal_fma"), ("Mul", "product"), ("PRelu", "product")])
@pytest.mark.filterwarnings("ignore:All inputs of this cat operator must share the same quantization parameters")
def test_constants_of_any_size_on_either_side(name: str, rule: str, own: str) -> None:
    """torch's kernels take constants of the type of x, and numbers; whatever they lack is computed by others."""
    rng = np.random.default_rng(0)
    x, q = Quantization.per_tensor(0.05, 120, "uint8"), Quantization.per_tensor(0.03, 7, own or "uint8")
    rule = rule if own else "reciprocal_fma"
    values = rng.integers(0, 256, (2, 3, 5)).astype(np.uint8)
    same = total = 0
    for shape in CONSTANTS:
        raw = rng.integers(0, 128, shape).astype(own or "float32")
        constant = Tensor.constant("c", raw, q if own else None)
        for names in (("x", "c"), ("c", "x")) if name != "PRelu" else (("x", "c"),):
            known = (2, 3, 5) if len(shape) % 2 else None
            out = Quantization.per_tensor(0.2, 100, "uint8", quant_min=100 if len(shape) == 1 else None)
            tensors = {
                "x": Tensor("x", "uint8", known, quantization=x),
                "c": constant,
                "y": Tensor("y", "uint8", None, quantization=out),
            }
            node = Node(name, names, ("y",), version=OPERATORS[name].version, rule=rule)
            model = Model(Graph(("x",), ("y",), (node,), tensors), engine="fbgemm")
            try:
                expected = model.run({"x": values})["y"]
            except QfmtError:
                assert name == "PRelu", shape  # whose slope adds no dimensions
                continue
            for engine in ("auto", "native", "onednn"):
                got = model.to_torch(engine)(torch.from_numpy(values)).numpy()
                assert got.shape == expected.shape, (engine, names, shape)
                off = np.abs(got.astype(int) - expected)
                assert off.max() <= 1, (engine, names, shape)
                same, total = same + int((off == 0).sum()), total + off.size
    print(f"{name} with {own or 'real'} constants: {same} of {total} outputs equal")
    assert total
