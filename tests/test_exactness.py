"""Every operator against torch's own quantized kernels, engine by engine, on the same integers.

An output is equal, one step off at a rounding tie, or wrong. A tie is verified: the exact real value (float64, by the
operator's meaning) lies within a few float32 roundings of the middle between the two integers. Nothing may be wrong,
and where the specification names the kernel's arithmetic exactly, nothing may differ at all. The counts are printed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional

from qfmt.interpreter import execute
from qfmt.model import DTYPES, Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand

ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")
quantized = torch.ops.quantized
f32 = np.float32

ROUNDINGS = 8
"""How many float32 roundings, of half a unit in the last place each, may stand between a value and a tie."""

EXACT = ("fbgemm", "qnnpack")
"""Engines whose requantization is known to the bit; onednn's is, but for a few ties in a million."""

MILLION = 1_000_000


class Comparison(NamedTuple):
    """Ours and torch's integers, the exact value in steps of the output, and the largest term that it came from."""

    ours: np.ndarray
    theirs: np.ndarray
    exact: np.ndarray
    magnitude: np.ndarray


class Tally:
    """Counts of outputs: equal, at a tie, wrong."""

    def __init__(self) -> None:
        self.equal = self.tie = self.wrong = 0

    def add(self, found: Comparison) -> None:
        ours, theirs = found.ours.astype(np.int64), found.theirs.astype(np.int64)
        assert ours.shape == theirs.shape
        middle = np.minimum(ours, theirs) + 0.5
        near = np.abs(found.exact - middle) <= ROUNDINGS * 2.0**-24 * found.magnitude
        tie = (np.abs(ours - theirs) == 1) & near
        self.equal += int((ours == theirs).sum())
        self.tie += int(tie.sum())
        self.wrong += int(((ours != theirs) & ~tie).sum())


LEDGER: dict[tuple[str, str], Tally] = defaultdict(Tally)


@pytest.fixture(scope="module", autouse=True)
def _print_the_ledger(request: pytest.FixtureRequest) -> Iterator[None]:
    threads, engine = torch.get_num_threads(), torch.backends.quantized.engine
    torch.set_num_threads(1)  # more threads cut a tensor into runs with ends of their own
    yield
    torch.set_num_threads(threads)
    torch.backends.quantized.engine = engine
    rows = [f"{'operator':34}{'engine':9}{'equal':>10}{'tie':>7}{'wrong':>7}"]
    rows += [f"{name:34}{engine:9}{t.equal:10}{t.tie:7}{t.wrong:7}" for (name, engine), t in sorted(LEDGER.items())]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(rows))


# How integers get to both sides


def grid(scale: float, zero_point: int, dtype: str, *, relu: bool = False) -> Quantization:
    return Quantization.per_tensor(float(f32(scale)), zero_point, dtype, quant_min=zero_point if relu else None)


def any_grid(rng: np.random.Generator, dtype: str, low: float = -3, high: float = -0.5) -> Quantization:
    """A scale between 10**low and 10**high, or a round one, with which ties are frequent; any zero point."""
    scale = 10 ** rng.uniform(low, high) if rng.random() < 0.5 else rng.choice([0.02, 0.03, 0.05, 0.06, 0.1, 1 / 64])
    limits = DTYPES[dtype]
    return grid(scale, int(rng.integers(limits.minimum, limits.maximum + 1)), dtype)


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(DTYPES[dtype].minimum, DTYPES[dtype].maximum + 1, shape).astype(dtype)


def to_torch(array: np.ndarray, q: Quantization) -> torch.Tensor:
    values = torch.from_numpy(np.ascontiguousarray(array))
    if q.axis is None:
        return torch._make_per_tensor_quantized_tensor(values, q.scale[0], q.zero_point[0])
    scales, zero_points = torch.tensor(q.scale, dtype=torch.float64), torch.tensor(q.zero_point)
    return torch._make_per_channel_quantized_tensor(values, scales, zero_points, q.axis)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def compare(
    operator: str,
    operands: list[tuple[np.ndarray, Quantization | None] | None],
    theirs: torch.Tensor,
    rule: str,
    *,
    relu: bool = False,
    **attributes: Any,
) -> Comparison:
    """Our node on the operands, with the quantization that torch gave its result."""
    entry = OPERATORS[operator]
    dtype = theirs.int_repr().numpy().dtype.name
    output = grid(theirs.q_scale(), theirs.q_zero_point(), dtype, relu=relu)
    assert rule in entry.rules or (not rule and not entry.rules)
    names = tuple("" if each is None else f"x{i}" for i, each in enumerate(operands))
    node = Node(operator, names, ("y",), entry.complete(attributes), version=entry.version, arithmetic=rule)
    given = [None if each is None else Operand(np.asarray(each[0]), each[1]) for each in operands]
    (ours,) = execute(node, given, [Tensor("y", dtype, None, None, output)])

    real = [None if each is None else _float64(*each) for each in operands]
    real += [None] * (len([p for p in entry.inputs if not p.variadic]) - len(real))
    with np.errstate(all="ignore"):
        value = np.asarray(entry.reference(*real, **node.attributes), np.float64)
    scale = float(f32(output.scale[0]))
    terms = sum(np.abs(x) for x in real) / scale if operator == "Add" else 0.0  # that may cancel
    exact = value / scale + output.zero_point[0]
    return Comparison(ours, theirs.int_repr().numpy(), exact, 256 + np.abs(exact) + terms)


def _float64(array: np.ndarray, q: Quantization | None) -> np.ndarray:
    if q is None:
        return array.astype(np.float64) if array.dtype.kind == "f" else array
    rank = array.ndim
    return (array.astype(np.float64) - q.zero_points(rank)) * q.scales(rank).astype(f32).astype(np.float64)


def rule_of(operator: str, engine: str) -> str:
    return OPERATORS[operator].engines[engine]


def check(name: str, engine: str, found: Iterator[Comparison], *, strict: bool = False, at_least: int = 0) -> None:
    tally = LEDGER[name, engine]
    for comparison in found:
        tally.add(comparison)
    assert tally.wrong == 0
    assert not strict or tally.tie == 0
    assert tally.equal + tally.tie >= at_least


# Convolutions and matrix products. Activations go up to 127: beyond, fbgemm's depthwise kernel saturates.


class Weights(NamedTuple):
    shape: tuple[int, ...]
    group: int
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    output_padding: int = 0


CONVOLUTIONS = {
    "conv1d": ("conv1d", (2, 16, 1024), [Weights((32, 16, 3), 1, pad=1), Weights((32, 4, 5), 4, 2, 2, 2)]),
    "conv1d depthwise": ("conv1d", (4, 32, 1024), [Weights((32, 1, 3), 32, pad=1)]),
    "conv2d": (
        "conv2d",
        (2, 16, 30, 31),
        [Weights((48, 16, 3, 3), 1, pad=1), Weights((64, 16, 1, 1), 1), Weights((32, 4, 3, 3), 4, 2, 1, 2)],
    ),
    "conv2d depthwise": ("conv2d", (2, 64, 30, 33), [Weights((64, 1, 3, 3), 64, pad=1), Weights((64, 1, 5, 5), 64)]),
    "conv3d": ("conv3d", (2, 8, 9, 20, 20), [Weights((16, 8, 3, 3, 3), 1, pad=1), Weights((16, 4, 1, 3, 3), 2)]),
    "conv_transpose1d": ("conv_transpose1d", (8, 16, 700), [Weights((16, 8, 3), 2, 2, 1)]),
    "conv_transpose2d": ("conv_transpose2d", (4, 16, 27, 28), [Weights((16, 16, 3, 3), 1, 2, 1)]),
    "conv_transpose2d outpad": ("conv_transpose2d", (4, 16, 26, 27), [Weights((16, 8, 3, 3), 2, 2, 1, 1, 1)]),
    "conv_transpose3d": ("conv_transpose3d", (2, 8, 7, 14, 14), [Weights((8, 8, 2, 3, 3), 1, 2)]),
}

UNABLE = {
    ("conv3d", "qnnpack"): "does not have it",
    ("conv_transpose3d", "qnnpack"): "gives numbers without meaning",
    ("conv_transpose2d outpad", "onednn"): "refuses output padding",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, engine: str) -> None:
    if (name, engine) in UNABLE:
        pytest.skip(f"{engine} {UNABLE[name, engine]}")
    rounds = 3 if engine == "fbgemm" else 1
    found = (each for seed in range(rounds) for each in convolutions(name, engine, np.random.default_rng(seed)))
    check(name, engine, found, strict=engine in EXACT, at_least=MILLION if engine == "fbgemm" else 0)


def convolutions(name: str, engine: str, rng: np.random.Generator) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    call, shape, kinds = CONVOLUTIONS[name]
    for kind in kinds:
        for per_channel in (False, True) if "transpose" not in call else (False,):
            for bias, relu in ((True, False), (False, True)):
                yield convolution(call, shape, kind, engine, rng, per_channel, bias, relu and "transpose" not in call)


def weight_grid(rng: np.random.Generator, channels: int, per_channel: bool, engine: str) -> Quantization:
    """Per tensor with a zero point other than 0, where the engine takes it: onednn does not."""
    if per_channel:
        scales = rng.uniform(0.001, 0.02, channels).astype(f32)
        return Quantization(tuple(map(float, scales)), (0,) * channels, -128, 127, 0)
    return grid(rng.uniform(0.001, 0.02), int(rng.integers(-3, 4)) if engine in ("fbgemm", "qnnpack") else 0, "int8")


def output_grid(rng: np.random.Generator, unit: float, products: int) -> tuple[float, int]:
    """A scale with which sums of so many products mostly stay within the range; half of them round."""
    scale = unit * np.sqrt(products) * 74 * 60 / 100
    return float(f32(scale)), int(rng.integers(1, 255))


def convolution(
    call: str,
    shape: tuple[int, ...],
    kind: Weights,
    engine: str,
    rng: np.random.Generator,
    per_channel: bool,
    bias: bool,
    relu: bool,
) -> Comparison:
    rank, transposed = len(shape) - 2, "transpose" in call
    channels = kind.shape[1] * kind.group if transposed else kind.shape[0]
    xq = grid(rng.uniform(0.005, 0.05), int(rng.integers(0, 64)) * 2 + 1, "uint8")
    wq = weight_grid(rng, channels, per_channel, engine)
    x, w = rng.integers(0, 128, shape).astype(np.uint8), integers(rng, kind.shape, "int8")
    b = rng.normal(0, 2, channels).astype(f32) if bias else None
    products = int(np.prod(kind.shape[1:])) if not transposed else kind.shape[0] // kind.group * 4
    scale, zero_point = output_grid(rng, xq.scale[0] * float(np.mean(wq.scale)), products)
    lists = [[value] * rank for value in (kind.stride, kind.pad, kind.output_padding, kind.dilation)]
    if not transposed:
        del lists[2]
    packed = getattr(quantized, f"{call}_prepack")(to_torch(w, wq), _tensor(b), *lists, kind.group)
    theirs = getattr(quantized, f"{call}_relu" if relu else call)(to_torch(x, xq), packed, scale, zero_point)
    attributes: dict[str, Any] = {
        "kernel_shape": kind.shape[2:],
        "strides": (kind.stride,) * rank,
        "pads": (kind.pad,) * (2 * rank),
        "dilations": (kind.dilation,) * rank,
        "group": kind.group,
    }
    operator = "ConvTranspose" if transposed else "Conv"
    if transposed:
        attributes["output_padding"] = (kind.output_padding,) * rank
    # The engine x86 hands what onednn cannot do, such as output padding, to fbgemm.
    rule = rule_of(operator, "fbgemm" if engine == "x86" and kind.output_padding else engine)
    operands = [(x, xq), (w, wq), None if b is None else (b, None)]
    return compare(operator, operands, theirs, rule, relu=relu, **attributes)


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)


@pytest.mark.parametrize("engine", ENGINES)
def test_linear(engine: str) -> None:
    check("linear", engine, linears(engine), strict=engine in (*EXACT, "x86"), at_least=MILLION)


def linears(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(1)
    for rows, inner, out in ((1024, 64, 256), (256, 301, 129), (1, 512, 1000), (4000, 40, 1)):
        for per_channel in (False, True):
            for bias, relu in ((True, False), (False, True)):
                xq = grid(rng.uniform(0.005, 0.05), int(rng.integers(0, 64)) * 2 + 1, "uint8")
                wq = weight_grid(rng, out, per_channel, engine)
                x, w = rng.integers(0, 128, (rows, inner)).astype(np.uint8), integers(rng, (out, inner), "int8")
                b = rng.normal(0, 2, out).astype(f32) if bias else None
                scale, zero_point = output_grid(rng, xq.scale[0] * float(np.mean(wq.scale)), inner)
                packed = quantized.linear_prepack(to_torch(w, wq), _tensor(b))
                call = quantized.linear_relu if relu else quantized.linear
                theirs = call(to_torch(x, xq), packed, scale, zero_point)
                operands = [(x, xq), (w, wq), None if b is None else (b, None)]
                yield compare("qfmt.Linear", operands, theirs, rule_of("qfmt.Linear", engine), relu=relu)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("channels", [1, 5, 64])
def test_fbgemm_brings_the_bias_to_the_accumulator_by_the_granularity_of_the_weight(
    channels: int, per_channel: bool
) -> None:
    """Accumulators of 0, and biases for which b / at and b · (1 / at) round to different outputs."""
    torch.backends.quantized.engine = "fbgemm"
    rng = np.random.default_rng(channels)
    xq, scale = grid(0.02, 5, "uint8"), 0.0371
    at = f32(0.02) * f32(0.0043)
    halves = (np.arange(-100, 100) + 0.5) * scale
    biases = (halves[:, None] * (1 + np.arange(-6, 7) * 2.0**-24)).astype(f32).reshape(-1)
    multiplier = at / f32(scale)
    split = biases[np.rint(biases / at * multiplier) != np.rint(biases * (f32(1) / at) * multiplier)]
    assert split.size
    b = rng.choice(split, channels)
    sw = float(f32(0.0043))
    wq = Quantization((sw,) * channels, (0,) * channels, -128, 127, 0) if per_channel else grid(sw, 0, "int8")
    x, w = np.full((3, 8), 5, np.uint8), integers(rng, (channels, 8), "int8")
    packed = quantized.linear_prepack(to_torch(w, wq), torch.from_numpy(b))
    theirs = quantized.linear(to_torch(x, xq), packed, scale, 128)
    found = compare("qfmt.Linear", [(x, xq), (w, wq), (b, None)], theirs, "float_bias")
    assert (found.ours == found.theirs).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_matmul(engine: str) -> None:
    """Torch multiplies dequantized floats here, so that its sums are not exact: ties only, but ties there are."""
    check("matmul", engine, matmuls(engine))


def matmuls(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(2)
    for dtype in ("uint8", "int8"):
        for _ in range(5):
            a, b = integers(rng, (3, 33, 65), dtype), integers(rng, (3, 65, 40), dtype)
            qa, qb = any_grid(rng, dtype), any_grid(rng, dtype)
            theirs = quantized.matmul(to_torch(a, qa), to_torch(b, qb), qa.scale[0] * qb.scale[0] * 1300, 17)
            yield compare("MatMul", [(a, qa), (b, qb)], theirs, rule_of("MatMul", engine))


# Element by element


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("operator", ["Add", "Mul"])
def test_two_tensors(operator: str, engine: str) -> None:
    """Whole blocks of 64. In the last elements of a tensor, add rounds otherwise; qnnpack adds in fixed point."""
    strict = operator == "Mul" or engine != "qnnpack"
    check(operator, engine, pairs(operator, engine), strict=strict, at_least=MILLION if engine == "fbgemm" else 0)


def pairs(operator: str, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(3)
    for dtype in ("uint8", "int8"):
        for relu in (False, True):
            for _ in range(9 if engine == "fbgemm" else 2):
                a, b = integers(rng, (256 * 128,), dtype), integers(rng, (256 * 128,), dtype)
                qa, qb, qc = (any_grid(rng, dtype, -1.5, -1) for _ in range(3))
                scale = qc.scale[0] if operator == "Add" else qa.scale[0] * qb.scale[0] * rng.choice([50.0, 61.7])
                call = getattr(quantized, operator.lower() + "_relu" * relu)
                theirs = call(to_torch(a, qa), to_torch(b, qb), float(f32(scale)), qc.zero_point[0])
                yield compare(operator, [(a, qa), (b, qb)], theirs, rule_of(operator, engine), relu=relu)


def test_the_last_elements_of_a_tensor_are_added_by_another_rule() -> None:
    torch.backends.quantized.engine = "fbgemm"
    found = list(tails(np.random.default_rng(4)))
    check("Add, last elements", "fbgemm", iter(found), strict=True)


def tails(rng: np.random.Generator) -> Iterator[Comparison]:
    for _ in range(200):
        a, b = integers(rng, (63,), "uint8"), integers(rng, (63,), "uint8")
        qa, qb, qc = (any_grid(rng, "uint8", -1.5, -1) for _ in range(3))
        theirs = quantized.add(to_torch(a, qa), to_torch(b, qb), qc.scale[0], qc.zero_point[0])
        yield compare("Add", [(a, qa), (b, qb)], theirs, "reciprocal_offset")


class Activation(NamedTuple):
    """An element-wise function: the operator, the call, its attributes, and whether no library function is in it."""

    operator: str
    call: Callable[[torch.Tensor, float, int], torch.Tensor]
    attributes: Mapping[str, Any] = MappingProxyType({})
    strict: bool = False


ACTIVATIONS = {
    "hardswish": Activation("HardSwish", quantized.hardswish, strict=True),
    "leaky_relu": Activation(
        "LeakyRelu", lambda x, s, z: quantized.leaky_relu(x, 0.1, False, s, z), {"alpha": 0.1}, strict=True
    ),
    "aten leaky_relu": Activation(
        "LeakyRelu", lambda x, s, z: functional.leaky_relu(x, 0.02), {"alpha": 0.02}, strict=True
    ),
    "elu": Activation("Elu", lambda x, s, z: quantized.elu(x, s, z, 1.3), {"alpha": 1.3}),
    "celu": Activation("Celu", lambda x, s, z: quantized.celu(x, s, z, 1.3), {"alpha": 1.3}),
    "sigmoid": Activation("Sigmoid", lambda x, s, z: torch.sigmoid(x)),
    "quantized sigmoid": Activation("Sigmoid", quantized.sigmoid),
    "tanh": Activation("Tanh", lambda x, s, z: torch.tanh(x)),
    "hardsigmoid": Activation(  # torch computes (x + 3) / 6, ONNX x / 6 + 1 / 2
        "HardSigmoid", lambda x, s, z: functional.hardsigmoid(x), {"alpha": 1 / 6, "beta": 0.5}
    ),
    "gelu": Activation("Gelu", lambda x, s, z: functional.gelu(x), {"approximate": "none"}),
    "gelu tanh": Activation("Gelu", lambda x, s, z: functional.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    "relu": Activation("Relu", lambda x, s, z: torch.relu(x), strict=True),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_on_every_input(name: str, engine: str) -> None:
    if name == "quantized sigmoid" and engine == "qnnpack":
        pytest.skip("qnnpack takes one output scale only, the one of aten::sigmoid")
    activation = ACTIVATIONS[name]
    check(name, engine, activations(activation, engine), strict=activation.strict and engine != "qnnpack")


def activations(activation: Activation, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(5)
    rule = OPERATORS[activation.operator].engines.get(engine, "")
    for dtype in ("uint8", "int8"):
        x = np.arange(DTYPES[dtype].minimum, DTYPES[dtype].maximum + 1).astype(dtype)
        for _ in range(100):
            xq, yq = any_grid(rng, dtype), any_grid(rng, dtype)
            theirs = activation.call(to_torch(x, xq), yq.scale[0], yq.zero_point[0])
            yield compare(activation.operator, [(x, xq)], theirs, rule, **activation.attributes)


CLAMPS = {
    "relu6": (functional.relu6, 0.0, 6.0),
    "quantized relu6": (quantized.relu6, 0.0, 6.0),
    "hardtanh": (functional.hardtanh, -1.0, 1.0),
    "clamp": (lambda x: torch.clamp(x, -0.275, 1.325), -0.275, 1.325),
    "clamp at ties": (lambda x: torch.clamp(x, -0.15, 0.75), -0.15, 0.75),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CLAMPS)
def test_clamps(name: str, engine: str) -> None:
    check(name, engine, clamps(*CLAMPS[name], engine), strict=True)


def clamps(call: Callable[[torch.Tensor], torch.Tensor], low: float, high: float, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(6)
    for dtype in ("uint8", "int8"):
        x = np.arange(DTYPES[dtype].minimum, DTYPES[dtype].maximum + 1).astype(dtype)
        for _ in range(50):
            xq = any_grid(rng, dtype)
            bounds = [(np.array(bound, f32), None) for bound in (low, high)]
            yield compare("Clip", [(x, xq), *bounds], call(to_torch(x, xq)), "")


@pytest.mark.parametrize("engine", ENGINES)
def test_prelu(engine: str) -> None:
    check("prelu", engine, prelus(engine), strict=True)


def prelus(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(7)
    for dtype in ("uint8", "int8"):
        for _ in range(20):
            x, w = integers(rng, (2, 8, 16, 16), dtype), integers(rng, (8,), dtype)
            xq, wq, yq = any_grid(rng, dtype), grid(rng.choice([0.003, 0.01, 0.02]), 3, dtype), any_grid(rng, dtype)
            theirs = quantized.prelu(to_torch(x, xq), to_torch(w, wq), yq.scale[0], yq.zero_point[0])
            yield compare("PRelu", [(x, xq), (w.reshape(8, 1, 1), wq)], theirs, rule_of("PRelu", engine))


@pytest.mark.parametrize("engine", ENGINES)
def test_mul_scalar_is_a_product_with_a_constant(engine: str) -> None:
    """Output quantization (s · |c|, z), for negative c (s · |c|, quant_min + quant_max - z), for 0 (1, 0)."""
    check("mul_scalar", engine, scaled(engine), strict=True)


def scaled(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(8)
    for dtype in ("uint8", "int8"):
        for factor in (2.5, -1.3, 0.01, 1.0, -1.0, 3 / 7, 0.0, *rng.normal(0, 2, 20)):
            x, xq = integers(rng, (4096,), dtype), any_grid(rng, dtype)
            theirs = quantized.mul_scalar(to_torch(x, xq), float(factor))
            flipped = xq.quant_min + xq.quant_max - xq.zero_point[0]
            expected = (xq.scale[0] * abs(factor), xq.zero_point[0] if factor > 0 else flipped)
            assert (theirs.q_scale(), theirs.q_zero_point()) == (expected if factor else (1.0, 0))
            for rule in ("product", "premultiplied"):
                yield compare("Mul", [(x, xq), (np.array(factor, f32), None)], theirs, rule)


@pytest.mark.parametrize("engine", ENGINES)
def test_add_scalar_is_a_sum_with_a_constant_of_the_same_scale(engine: str) -> None:
    """n = rint(c / s), zero point z - n; the scale grows where that leaves the range. `sum` rounds as torch does."""
    check("add_scalar", engine, moved(engine), strict=True)


def moved(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(9)
    for dtype in ("uint8", "int8"):
        for _ in range(60):
            x, xq = integers(rng, (1024,), dtype), any_grid(rng, dtype)
            scale, low, high = xq.scale[0], xq.quant_min, xq.quant_max
            addend = float(rng.normal() * scale * 150)
            theirs = quantized.add_scalar(to_torch(x, xq), addend)
            steps = int(np.rint(addend / scale))
            zero_point = xq.zero_point[0] - steps
            if zero_point < low:
                expected = ((high - zero_point) / (high - low) * scale, low)
            elif zero_point > high:
                expected = ((zero_point - low) / (high - low) * scale, high)
            else:
                expected = (scale, zero_point)
            assert (theirs.q_scale(), theirs.q_zero_point()) == (pytest.approx(expected[0], rel=1e-12), expected[1])
            constant = (np.array(steps, np.int32), Quantization((scale,), (0,), -(2**31), 2**31 - 1))
            yield compare("Add", [(x, xq), constant], theirs, "sum")


# Into and out of integers


@pytest.mark.parametrize("engine", ENGINES)
def test_quantize_per_tensor(engine: str) -> None:
    check("quantize_per_tensor", engine, quantizations(engine, None), strict=True)


@pytest.mark.parametrize("axis", [0, 1])
def test_quantize_per_channel(axis: int) -> None:
    check("quantize_per_channel", "fbgemm", quantizations("fbgemm", axis), strict=True)


def quantizations(engine: str, axis: int | None) -> Iterator[Comparison]:
    """Random values, multiples of half a step, and their neighbours."""
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(10)
    for dtype, kind in (("uint8", torch.quint8), ("int8", torch.qint8)):
        for _ in range(20):
            q = any_grid(rng, dtype)
            halves = (np.arange(-300, 300) * 0.5 * q.scale[0]).astype(f32)
            near = [np.nextafter(halves, f32(side)) for side in (-1e9, 1e9)]
            x = np.concatenate([rng.normal(0, 100 * q.scale[0], 2600).astype(f32), halves, *near])
            if axis is None:
                theirs = torch.quantize_per_tensor(torch.from_numpy(x), q.scale[0], q.zero_point[0], kind)
                yield compare("QuantizeLinear", [(x, None)], theirs, rule_of("QuantizeLinear", engine))
                continue
            x = x.reshape(4, -1) if axis == 0 else x.reshape(-1, 4)
            scales = tuple(float(f32(q.scale[0] * factor)) for factor in (1, 2, 0.7, 1.5))
            points = tuple(int(point) for point in rng.integers(q.quant_min, q.quant_max + 1, 4))
            along = Quantization(scales, points, q.quant_min, q.quant_max, axis)
            theirs = torch.quantize_per_channel(
                torch.from_numpy(x), torch.tensor(scales, dtype=torch.float64), torch.tensor(points), axis, kind
            )
            node = Node("QuantizeLinear", ("x",), ("y",), arithmetic="reciprocal_offset")
            (ours,) = execute(node, [Operand(x, None)], [Tensor("y", dtype, None, None, along)])
            exact = x / along.scales(2) + along.zero_points(2)
            yield Comparison(ours, theirs.int_repr().numpy(), exact, 256 + np.abs(exact))


def test_dequantize_gives_the_same_floats() -> None:
    rng = np.random.default_rng(11)
    for dtype in ("uint8", "int8"):
        for _ in range(50):
            x, q = integers(rng, (256,), dtype), any_grid(rng, dtype)
            (ours,) = execute(Node("DequantizeLinear", ("x",), ("y",)), [Operand(x, q)], [Tensor("y", "float32", None)])
            assert ours.tobytes() == to_torch(x, q).dequantize().numpy().tobytes()


# What moves integers, or joins them


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "rule"), [("cat, NCHW", "reciprocal_fma"), ("cat, NHWC", "premultiplied"), ("aten cat", "reciprocal_fma")]
)
@pytest.mark.filterwarnings("ignore:All inputs of this cat operator must share the same quantization parameters")
def test_cat(name: str, rule: str, engine: str) -> None:
    check(name, engine, joins(name, rule, engine), strict=True)


def joins(name: str, rule: str, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(12)
    for dtype in ("uint8", "int8"):
        for _ in range(5):
            parts = [(integers(rng, (2, channels, 9, 8), dtype), any_grid(rng, dtype)) for channels in (64, 128)]
            tensors = [to_torch(*part) for part in parts]
            if name == "cat, NHWC":
                tensors = [channels_last(tensor) for tensor in tensors]
            q = any_grid(rng, dtype)
            theirs = (
                torch.cat(tensors, 1) if name == "aten cat" else quantized.cat(tensors, 1, q.scale[0], q.zero_point[0])
            )
            yield compare("Concat", list(parts), theirs, rule, axis=1)


LAYOUTS = {"NCHW": lambda x: x, "NHWC": channels_last}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("pad", "dilation", "ceil"), [(1, 1, False), (1, 1, True), (0, 2, False)])
def test_max_pool(pad: int, dilation: int, ceil: bool, layout: str, engine: str) -> None:
    if engine == "qnnpack" and dilation > 1:
        pytest.skip("qnnpack ignores the dilation of uint8 inputs")
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(13)
    for dtype in ("uint8", "int8"):
        x, q = integers(rng, (2, 20, 13, 12), dtype), any_grid(rng, dtype)
        theirs = functional.max_pool2d(LAYOUTS[layout](to_torch(x, q)), 3, 2, pad, dilation, ceil)
        window = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (pad,) * 4, "dilations": (dilation,) * 2}
        found = compare("MaxPool", [(x, q)], theirs, "", **window, ceil_mode=int(ceil))
        check("max_pool2d", engine, iter([found]), strict=True)


# Means


AVERAGES = {
    "avg_pool2d, NCHW": (2, LAYOUTS["NCHW"], "mean_divide_offset", "mean_reciprocal"),
    "avg_pool2d, NHWC": (2, channels_last, "mean_reciprocal", "mean_reciprocal"),
    "avg_pool3d": (3, LAYOUTS["NCHW"], "mean_reciprocal", ""),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", AVERAGES)
def test_average_pools(name: str, engine: str) -> None:
    rank, layout, rule, qnnpack = AVERAGES[name]
    if engine == "qnnpack" and not qnnpack:
        pytest.skip("qnnpack has no such pool")
    found = average_pools(rank, layout, rule if engine != "qnnpack" else qnnpack, engine)
    check(name, engine, found, strict=engine != "qnnpack")


def average_pools(rank: int, layout: Callable[[torch.Tensor], torch.Tensor], rule: str, engine: str) -> Iterator[Any]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(14)
    pool = {2: functional.avg_pool2d, 3: functional.avg_pool3d}[rank]
    for dtype in ("uint8", "int8"):
        for kernel, stride, pad, ceil, count in (
            (2, 2, 0, False, True),
            (3, 2, 1, True, True),
            (3, 1, 1, False, False),
        ):
            if engine == "qnnpack" and not count:
                continue  # it counts the padding all the same
            x, q = integers(rng, (2, 64, 11, 12, 9)[: rank + 2], dtype), any_grid(rng, dtype)
            theirs = pool(layout(to_torch(x, q)), kernel, stride, pad, ceil, count)
            window = {"kernel_shape": (kernel,) * rank, "strides": (stride,) * rank, "pads": (pad,) * (2 * rank)}
            options = {"dilations": (1,) * rank, "ceil_mode": int(ceil), "count_include_pad": int(count)}
            yield compare("AveragePool", [(x, q)], theirs, rule, **window, **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (6, 6)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_adaptive_average_pool(layout: str, size: tuple[int, int], engine: str) -> None:
    """Networks pool in NHWC, which is what quantized convolutions give; qnnpack does it in its own fixed point."""
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(15)
    for dtype in ("uint8", "int8"):
        for _ in range(10):
            x, q = integers(rng, (4, 64, 12, 10), dtype), any_grid(rng, dtype)
            theirs = functional.adaptive_avg_pool2d(LAYOUTS[layout](to_torch(x, q)), size)
            operator = "GlobalAveragePool" if size == (1, 1) else "qfmt.AdaptiveAveragePool"
            attributes = {} if size == (1, 1) else {"output_size": size}
            rule = rule_of(operator, engine) if layout == "NHWC" or engine == "qnnpack" else "mean_stored"
            found = compare(operator, [(x, q)], theirs, rule, **attributes)
            check(f"adaptive_avg_pool2d, {layout}", engine, iter([found]), strict=engine != "qnnpack")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("axes", [(2, 3), (3,), (1, 2, 3), (1,)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_mean(layout: str, axes: tuple[int, ...], engine: str) -> None:
    """Over the innermost axes torch sums up integers; otherwise dequantized floats, which may miss a tie."""
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(16)
    inner = axes != (1,) and layout == "NCHW" and engine != "qnnpack"
    for dtype in ("uint8", "int8"):
        for _ in range(10):
            x, q = integers(rng, (4, 64, 8, 7), dtype), any_grid(rng, dtype)
            theirs = torch.mean(LAYOUTS[layout](to_torch(x, q)), list(axes), True)
            operands = [(x, q), (np.array(axes), None)]
            found = compare("ReduceMean", operands, theirs, rule_of("ReduceMean", engine), keepdims=1)
            check(f"mean, {'innermost' if inner else 'other'} axes", engine, iter([found]), strict=inner)


# Normalizations. Inputs within few steps, far from 0, show how the variance is computed.


def narrow(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    centre = int(rng.integers(-100, 100)) + (128 if dtype == "uint8" else 0)
    return (centre + rng.integers(-4, 5, shape)).astype(dtype)


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "instance_norm"])
def test_normalizations(name: str, engine: str) -> None:
    check(name, engine, normalizations(name, engine), strict=True)


def normalizations(name: str, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(17)
    for dtype in ("uint8", "int8"):
        for values in (integers, narrow):
            for _ in range(5):
                x, xq, yq = values(rng, (2, 32, 8, 16), dtype), any_grid(rng, dtype), any_grid(rng, dtype, -2, -1)
                size = 16 if name == "layer_norm" else 32
                w, b = rng.normal(1, 0.3, size).astype(f32), rng.normal(0, 0.3, size).astype(f32)
                tail = (torch.from_numpy(w), torch.from_numpy(b), 1e-5, yq.scale[0], yq.zero_point[0])
                if name == "layer_norm":
                    theirs, operator, extra = quantized.layer_norm(to_torch(x, xq), [16], *tail), "Layer", {"axis": -1}
                elif name == "group_norm":
                    theirs, operator = quantized.group_norm(to_torch(x, xq), 4, *tail), "Group"
                    extra = {"num_groups": 4}
                else:
                    theirs, operator, extra = quantized.instance_norm(to_torch(x, xq), *tail), "Instance", {}
                operator += "Normalization"
                operands = [(x, xq), (w, None), (b, None)]
                yield compare(operator, operands, theirs, rule_of(operator, engine), epsilon=1e-5, **extra)


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_batch_norm(rank: int, engine: str) -> None:
    check(f"batch_norm{rank}d", engine, batch_norms(rank, engine), strict=True)


def batch_norms(rank: int, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(18)
    for dtype in ("uint8", "int8"):
        for relu in (False, True):
            x, xq, yq = integers(rng, (2, 64, 9, 8, 5)[: rank + 2], dtype), any_grid(rng, dtype), any_grid(rng, dtype)
            w, b, mean = (rng.normal(centre, 0.5, 64).astype(f32) for centre in (1, 0, 0))
            constants = [w, b, mean, rng.uniform(0.3, 2, 64).astype(f32)]
            call = getattr(quantized, f"batch_norm{rank}d" + "_relu" * relu)
            theirs = call(to_torch(x, xq), *map(torch.from_numpy, constants), 1e-5, yq.scale[0], yq.zero_point[0])
            operands = [(x, xq), *((each, None) for each in constants)]
            rule = rule_of("BatchNormalization", engine)
            yield compare("BatchNormalization", operands, theirs, rule, relu=relu, epsilon=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_softmax(engine: str) -> None:
    check("softmax", engine, softmaxes(engine))


def softmaxes(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(19)
    for dtype, zero_point in (("uint8", 0), ("int8", -128)):
        for _ in range(5):
            x, q = integers(rng, (64, 40), dtype), any_grid(rng, dtype)
            theirs = quantized.softmax(to_torch(x, q), 1, 1 / 256, zero_point)
            yield compare("Softmax", [(x, q)], theirs, rule_of("Softmax", engine), axis=1)


# Resizing


NEAREST = {
    "nearest": {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "nearest-exact": {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"},
}


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(20, 11), (5, 3), 2.0, 1.7, 0.6])
@pytest.mark.parametrize("mode", [*NEAREST, "align_corners", "half_pixel"])
def test_resize(mode: str, size: tuple[int, int] | float, layout: str, engine: str) -> None:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(20)
    for dtype in ("uint8", "int8"):
        x, q = integers(rng, (2, 64, 9, 7), dtype), any_grid(rng, dtype)
        options: dict[str, Any] = {"mode": mode if mode in NEAREST else "bilinear"}
        if mode not in NEAREST:
            options["align_corners"] = mode == "align_corners"
        if isinstance(size, tuple):
            theirs = functional.interpolate(LAYOUTS[layout](to_torch(x, q)), size=size, **options)
            how = [None, None, (np.array([2, 64, *size]), None)]
        else:
            theirs = functional.interpolate(LAYOUTS[layout](to_torch(x, q)), scale_factor=size, **options)
            how = [None, (np.array([1, 1, size, size], np.float64), None)]
        attributes = NEAREST.get(mode, {"coordinate_transformation_mode": mode})
        rule = "interpolate_fma" if layout == "NHWC" else "interpolate"
        kind = "nearest" if mode in NEAREST else "linear"
        found = compare("Resize", [(x, q), *how], theirs, rule, mode=kind, **attributes)
        check(f"upsample {mode}, {layout}", engine, iter([found]), strict=True)
