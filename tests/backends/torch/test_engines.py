"""Back to PyTorch: every engine of `Model.to_torch` against what it promises, output by output."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch.ao import quantization as tq
from torch.ao.nn import quantized as nnq
from torch.nn import functional

import qfmt
from networks import pytorch
from qfmt import arithmetic
from qfmt.backends.torch import arithmetic as rules
from qfmt.backends.torch.onednn import ONEDNN_EMITTERS
from qfmt.backends.torch.reference import REFERENCE_EMITTERS
from qfmt.errors import QfmtError, RunError
from qfmt.model import DTYPES, Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from support.paths import DIGITS, HELD_BACK, ROOT

KERNELS = [
    name for name in ("fbgemm", "qnnpack", "onednn", "x86") if name in torch.backends.quantized.supported_engines
]
NAMES = list(pytorch.NETWORKS)


@pytest.fixture(autouse=True)
def engine_is_left_alone() -> Iterator[None]:
    """Whatever a module computes with, torch's global setting is the caller's."""
    torch.backends.quantized.engine = "fbgemm"
    yield
    assert torch.backends.quantized.engine == "fbgemm"


@cache
def archive(name: str) -> bytes:
    """A network as torch.jit.save writes it."""
    model, inputs = pytorch.quantized(name, pytorch.NETWORKS[name].modes[-1])
    with TemporaryDirectory() as folder:
        return pytorch.save_as(model, inputs, "trace", Path(folder) / "m.pt").read_bytes()


@cache
def model_of(name: str, engine: str = "fbgemm") -> Model:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.pt"
        path.write_bytes(archive(name))
        qfmt.save(qfmt.convert(path, engine=engine), Path(folder) / "m.qfb")
        return qfmt.load(Path(folder) / "m.qfb")


def inputs_of(name: str) -> pytorch.Inputs:
    return pytorch.quantized(name, pytorch.NETWORKS[name].modes[-1])[1]


def run(model: Model, inputs: pytorch.Inputs) -> list[np.ndarray]:
    results = model.run(dict(zip(model.graph.inputs, (tensor.numpy() for tensor in inputs), strict=True)))
    return [results[name] for name in model.graph.outputs]


def call(module: torch.nn.Module, inputs: pytorch.Inputs) -> list[np.ndarray]:
    """The outputs, quantized ones as integers."""
    with torch.no_grad():
        outputs = pytorch.flat(module(*inputs))
    return [(tensor.int_repr() if tensor.is_quantized else tensor).numpy() for tensor in outputs]


def equal(got: list[np.ndarray], expected: list[np.ndarray]) -> tuple[int, int]:
    """How many outputs are equal, of how many; dtypes and shapes must be."""
    assert [(array.dtype, array.shape) for array in got] == [(array.dtype, array.shape) for array in expected]
    pairs = list(zip(got, expected, strict=True))
    return sum(int((a == b).sum()) for a, b in pairs), sum(b.size for _, b in pairs)


# Rules


def grids() -> Iterator[tuple[Quantization, str]]:
    generator = np.random.default_rng(3)
    for dtype in ("uint8", "int8", "int16", "int32"):
        limits = DTYPES[dtype]
        for zero_point in (limits.minimum, 0, 1, 61, min(limits.maximum, 1000)):
            scale = float(np.float32(generator.uniform(0.001, 0.2)))
            yield Quantization.per_tensor(scale, zero_point, dtype), dtype
            yield Quantization.per_tensor(0.125, zero_point, dtype, quant_min=zero_point), dtype
    yield Quantization((0.5, 0.03), (3, 4), 0, 255, axis=1), "uint8"


def test_both_know_the_same_rules() -> None:
    for mine, theirs in (
        (rules.QUANTIZE, arithmetic.QUANTIZE),
        (rules.REQUANTIZE, arithmetic.REQUANTIZE),
        (rules.MEAN, arithmetic.MEAN),
    ):
        assert mine.keys() == theirs.keys()


@pytest.mark.parametrize("rule", arithmetic.QUANTIZE)
def test_quantize_rules_agree(rule: str) -> None:
    generator = np.random.default_rng(1)
    count = 0
    for quantization, dtype in grids():
        ties = np.arange(-300, 300).astype(np.float32) * np.float32(quantization.scale[0]) / 2
        reals = [ties, generator.normal(0, 10, 2000), [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45]]
        x = np.concatenate(reals).astype(np.float32).reshape(-1, 2)
        expected = arithmetic.quantize(x, quantization, np.dtype(dtype), rule)
        grid = rules.Grid.of(quantization, getattr(torch, dtype))
        got = rules.quantize(torch.from_numpy(x), grid, rule)
        np.testing.assert_array_equal(got.numpy(), expected)
        back = rules.dequantize(got, grid, rule).numpy()
        np.testing.assert_array_equal(back, arithmetic.dequantize(expected, quantization, rule))
        count += x.size
    print(f"{rule}: {count} of {count} integers equal")


@pytest.mark.parametrize("rule", arithmetic.REQUANTIZE)
@pytest.mark.parametrize("per_channel", [False, True])
def test_requantize_rules_agree(rule: str, per_channel: bool) -> None:
    generator = np.random.default_rng(2)
    for quantization, dtype in grids():
        if quantization.is_per_channel:
            continue
        acc = generator.integers(-(2**22), 2**22, (500, 6)).astype(np.float64)
        weights = np.array(2.0**-9) if not per_channel else generator.uniform(1e-4, 0.1, (1, 6)).astype(np.float32)
        for bias in (None, generator.normal(0, 5, (1, 6)).astype(np.float32), np.full((1, 6), 0.0625, np.float32)):
            arguments = (0.25, weights, quantization, np.dtype(dtype), rule)
            expected = arithmetic.requantize(acc, bias, *arguments)
            grid = rules.Grid.of(quantization, getattr(torch, dtype))
            addend = None if bias is None else torch.from_numpy(bias)
            got = rules.requantize(torch.from_numpy(acc), addend, 0.25, torch.from_numpy(weights), grid, rule)
            np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("rule", arithmetic.MEAN)
def test_mean_rules_agree(rule: str) -> None:
    total = np.concatenate([np.arange(-2000, 2000), np.random.default_rng(4).integers(-(2**26), 2**26, 2000)])
    for count in (1, 2, 3, 4, 9, 49, 1000):
        for quantization, dtype in grids():
            if quantization.is_per_channel or dtype.endswith("32"):
                continue
            zero_point = np.float32(quantization.zero_point[0])
            rounded = arithmetic.MEAN[rule](total, np.float32(count), zero_point)
            expected = arithmetic.clamp(rounded, quantization, np.dtype(dtype))
            grid = rules.Grid.of(quantization, getattr(torch, dtype))
            got = rules.mean(torch.from_numpy(total), torch.tensor(count), grid, rule)
            np.testing.assert_array_equal(got.numpy(), expected)


def test_tables_name_operators() -> None:
    assert REFERENCE_EMITTERS.keys() <= OPERATORS.keys()
    assert ONEDNN_EMITTERS.keys() <= OPERATORS.keys()


# Engines


@pytest.mark.parametrize("name", NAMES)
def test_reference_is_run(name: str) -> None:
    model, inputs = model_of(name), inputs_of(name)
    module = model.to_torch("reference")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = call(module, inputs)
    same, total = equal(got, run(model, inputs))
    print(f"{name}: {same} of {total} outputs equal; {len(module.report())} nodes by NumPy")
    assert same == total
    assert not any(value.is_quantized for value in module.state_dict().values())


REFERENCE_WITHOUT_DEPRECATED_DTYPES = """
import sys, warnings
warnings.simplefilter("error")
import torch
def refuse(*args, **kwargs):
    raise AssertionError("a deprecated dtype was made")
for name in ("quantize_per_tensor", "quantize_per_channel", "_make_per_tensor_quantized_tensor",
             "_make_per_channel_quantized_tensor", "_empty_affine_quantized"):
    setattr(torch, name, refuse)
import qfmt
model = qfmt.convert(sys.argv[1])
for engine in ("reference", "onednn", "qdq"):
    module = model.to_torch(engine)
    assert "quint8" not in module.code and "qint8" not in module.code
    module(torch.zeros(1, 1, 8, 8))
"""


def test_plain_engines_make_no_deprecated_tensor() -> None:
    command = [sys.executable, "-c", REFERENCE_WITHOUT_DEPRECATED_DTYPES, str(DIGITS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:All inputs of this cat operator must share the same quantization parameters")
@pytest.mark.filterwarnings("ignore:Quantized Adaptive Average Pool 3D is not implemented for QNNPACK")
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_native_is_the_source(name: str, kernels: str) -> None:
    inputs = inputs_of(name)
    try:
        expected = [call(Source(name, kernels), inputs) for _ in range(2)]
    except RuntimeError as error:
        pytest.skip(f"torch itself does not run it with {kernels}: {str(error).strip().splitlines()[-1]}")
    module = model_of(name).to_torch(f"native:{kernels}")
    assert module.engine == f"native:{kernels}"
    got = call(module, inputs)
    same, total = equal(got, expected[0])
    steady = [(name, kernels) not in UNSTEADY and np.array_equal(a, b) for a, b in zip(*expected, strict=True)]
    print(f"{name} {kernels}: {same} of {total} outputs equal, {len(module.report())} nodes fell back")
    for mine, theirs, is_steady in zip(got, expected[0], steady, strict=True):
        if is_steady:
            np.testing.assert_array_equal(mine, theirs)
        else:
            print(f"an output of {theirs.size} is not compared: torch gives others each time")
    assert any(steady) or (name, kernels) in UNSTEADY


UNSTEADY = {("conv3d", "qnnpack")}
"""torch 2.13 does not reproduce what it computed a moment ago."""


class Source:
    """The source in torch, packed for these kernels and run with them."""

    def __init__(self, name: str, kernels: str) -> None:
        self.kernels = kernels
        self.module = self._with_kernels(lambda: torch.jit.load(io.BytesIO(archive(name))))

    def __call__(self, *inputs: torch.Tensor) -> object:
        return self._with_kernels(lambda: self.module(*inputs))

    def _with_kernels(self, function: Callable[[], Any]) -> Any:
        torch.backends.quantized.engine = self.kernels
        try:
            return function()
        finally:
            torch.backends.quantized.engine = "fbgemm"


@pytest.mark.parametrize("name", NAMES)
def test_onednn_is_the_affine_rule(name: str) -> None:
    """oneDNN computes the rule `affine` but for its own roundings: a step up or down in few integers."""
    model, inputs = model_of(name, "onednn"), inputs_of(name)
    module = model.to_torch("onednn")
    got, expected = call(module, inputs), run(model, inputs)
    same, total = equal(got, expected)
    print(f"{name}: {same} of {total} outputs equal; {len(module.report())} of {len(model.nodes)} nodes fell back")
    assert same >= 0.999 * total


@pytest.mark.parametrize("name", NAMES)
def test_qdq_can_be_exported(name: str) -> None:
    model, inputs = model_of(name), inputs_of(name)
    module = model.to_torch("qdq")
    got = call(module, inputs)
    exported = torch.export.export(module, inputs, strict=False)
    same, total = equal(call(exported.module(), inputs), got)
    assert same == total
    near = sum(int(np.isclose(a, b, atol=0.1, rtol=0.02).sum()) for a, b in zip(got, run(model, inputs), strict=True))
    print(f"{name}: {same} of {total} equal after export; {near} of {total} near those of the integers")
    assert near >= 0.9 * total


def test_qdq_is_exported_strictly_with_a_free_batch() -> None:
    model, (image,) = model_of("resnet18"), inputs_of("resnet18")
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model.to_torch("qdq"), (image,), dynamic_shapes=({0: batch},), strict=True)
    larger = torch.cat([image, image + 0.1, image - 0.1])
    same, total = equal(call(exported.module(), (larger,)), call(model.to_torch("qdq"), (larger,)))
    print(f"batch of {len(larger)}: {same} of {total} equal")
    assert same == total
    targets = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert "quantized_decomposed.dequantize_per_channel.default" in targets


@pytest.mark.filterwarnings("ignore")  # what Inductor warns of is about its own code
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_qdq_compiles_to_integer_kernels() -> None:
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    model, inputs = model_of("mobilenet_v2"), inputs_of("mobilenet_v2")
    module = model.to_torch("qdq")
    with torch.no_grad(), config.patch(freezing=True):
        compiled = torch.compile(module)
        result, sources = run_and_get_code(compiled, *inputs)
    integer = sum(source.count("onednn.qconv") + source.count("onednn.qlinear") for source in sources)
    near = float((result - module(*inputs)).abs().max())
    print(f"{integer} calls of integer kernels; largest difference to the module itself {near:.3g}")
    assert integer >= 50
    assert near < 0.2


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "qdq", "auto"])
def test_batch_size_is_free(engine: str) -> None:
    model, (image,) = model_of("shufflenet_v2"), inputs_of("shufflenet_v2")
    module = model.to_torch(engine)
    whole = call(module, (torch.cat([image, image]),))[0]
    parts = [call(module, (image[index : index + 1],))[0] for index in range(len(image))]
    assert whole.shape[0] == 2 * len(image)
    near = np.isclose(whole, np.concatenate(parts + parts), atol=0.05)
    assert near.all(), f"{near.sum()} of {near.size}"


def test_auto_says_what_it_took() -> None:
    module = model_of("resnet18").to_torch()
    assert module.engine in {*(f"native:{kernels}" for kernels in KERNELS), "onednn", "reference"}
    assert len(module.report()) == 0
    assert module.engine in str(module.report())
    assert module.engine in repr(module)


def test_digits_by_every_engine() -> None:
    """360 held-back images; their outputs as torch gave them with fbgemm are stored beside them."""
    model, stored = qfmt.convert(DIGITS), np.load(HELD_BACK)
    x = torch.from_numpy(stored["x"])
    for engine in ("reference", "native:fbgemm", "native:x86", "onednn", "qdq", "auto"):
        got = call(model.to_torch(engine), (x,))
        same, total = equal(got, [stored["outputs"]])
        right = int((got[0].argmax(1) == stored["labels"]).sum())
        print(f"{engine}: {same} of {total} outputs equal, {right} of {len(x)} digits right")
        assert same == total or engine not in ("reference", "native:fbgemm")
        assert right >= 0.95 * len(x)


def test_published_mobilenet(shared_data: Path) -> None:
    path = shared_data / "torchscript" / "ios_mobilenet_quantized.pt"
    model = qfmt.convert(path)
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(5))
    expected = run(model, (image,))
    same, total = equal(call(model.to_torch("reference"), (image,)), expected)
    print(f"reference: {same} of {total} outputs equal to run")
    assert same == total
    for kernels in KERNELS:
        torch.backends.quantized.engine = kernels
        theirs = call(torch.jit.load(path), (image,))
        torch.backends.quantized.engine = "fbgemm"
        same, total = equal(call(model.to_torch(f"native:{kernels}"), (image,)), theirs)
        print(f"native:{kernels}: {same} of {total} outputs equal to torch's")
        assert same == total
    assert qfmt.convert(model.to_torch("native")).content_id() == model.content_id()


# Dynamic quantization, embeddings


class Recurrent(torch.nn.Module):
    """Layers in both directions, batch first and not, with linear layers around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(12, 16)
        self.lstm = torch.nn.LSTM(16, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(20, 9, bidirectional=True)
        self.last = torch.nn.Linear(18, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, (hidden, _) = self.lstm(torch.relu(self.first(x)))
        z, _ = self.gru(y)
        return self.last(z), hidden


class Tables(torch.nn.Module):
    """Embeddings of 8 bits, bags of 8 and of 4."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        weight = torch.randn(30, 16)
        kinds = {"eight": torch.quint8, "four": torch.quint4x2}
        for name, kind in kinds.items():
            observer = tq.PerChannelMinMaxObserver(
                dtype=kind, qscheme=torch.per_channel_affine_float_qparams, ch_axis=0
            )
            observer(weight)
            scales, points = observer.calculate_qparams()
            packed = torch.quantize_per_channel(weight, scales, points, 0, kind)
            bag = nnq.EmbeddingBag(30, 16, mode="sum", include_last_offset=True, dtype=kind)
            bag.set_weight(packed)
            self.add_module(name, bag)
            if kind == torch.quint8:
                self.rows = nnq.Embedding(30, 16)
                self.rows.set_weight(packed)

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.rows(indices), self.eight(indices, offsets), self.four(indices, offsets)


@cache
def dynamic(name: str, kernels: str) -> tuple[Model, pytorch.Inputs, list[np.ndarray]]:
    """The model, inputs, and what the source gives with these kernels."""
    torch.manual_seed(1)
    torch.backends.quantized.engine = kernels
    try:
        if name == "tables":
            source: torch.nn.Module = Tables()
            inputs: pytorch.Inputs = (torch.randint(0, 30, (11,)), torch.tensor([0, 2, 2, 7, 11]))
        else:
            kind = torch.qint8 if name == "int8" else torch.float16
            source = tq.quantize_dynamic(Recurrent().eval(), {torch.nn.LSTM, torch.nn.GRU, torch.nn.Linear}, dtype=kind)
            inputs = (torch.randn(3, 7, 12),)
        with TemporaryDirectory() as folder:
            path = pytorch.save_as(source, inputs, "trace", Path(folder) / "m.pt")
            model = qfmt.convert(path, engine=kernels)
        return model, inputs, call(source, inputs)
    finally:
        torch.backends.quantized.engine = "fbgemm"


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["int8", "float16", "tables"])
def test_dynamic_networks(name: str, kernels: str) -> None:
    try:
        model, inputs, expected = dynamic(name, kernels)
    except RuntimeError as error:
        pytest.skip(f"torch itself does not run it with {kernels}: {str(error).strip().splitlines()[-1]}")
    module = model.to_torch(f"native:{kernels}")
    same, total = equal(call(module, inputs), expected)
    print(f"{name} {kernels}: {same} of {total} outputs equal to torch's; {module.report()}")
    assert same == total
    assert len(module.report()) == 0
    assert qfmt.convert(module).content_id() == model.content_id()
    same, total = equal(call(model.to_torch("reference"), inputs), run(model, inputs))
    assert same == total
    near = [np.abs(a - b).max() for a, b in zip(call(model.to_torch("onednn"), inputs), expected, strict=True)]
    assert max(near) < 0.05


# The module as a module


def test_names_and_dtypes_of_the_state() -> None:
    model = model_of("mobilenet_v2")
    for engine in ("reference", "native", "onednn", "qdq"):
        module = model.to_torch(engine)
        state = module.state_dict()
        assert {tensor.name for tensor in model.graph.constants()} <= state.keys()
        for tensor in model.graph.constants():
            assert state[tensor.name].dtype == getattr(torch, tensor.dtype)
            np.testing.assert_array_equal(state[tensor.name].numpy(), tensor.array)
            if tensor.quantization is not None:
                assert tuple(state[f"{tensor.name}_scale"].tolist()) == tensor.quantization.scale
        assert not list(module.parameters())
        assert not module.training
        assert "scale=" in repr(module.get_submodule("features.0.0"))
        assert "zero_point=" in repr(module)


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "qdq"])
@pytest.mark.parametrize("name", ["mobilenet_v2", "two_inputs", "layout", "islands", "activations"])
def test_round_trip(name: str, engine: str) -> None:
    model = model_of(name)
    assert qfmt.convert(model.to_torch(engine)).content_id() == model.content_id()


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "qdq"])
def test_a_changed_weight_counts(engine: str) -> None:
    model, inputs = model_of("two_inputs"), inputs_of("two_inputs")
    module = model.to_torch(engine)
    before = call(module, inputs)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    state["stem.0.weight"] += 1
    state["stem.0.weight_scale"] *= 2
    module.load_state_dict(state)
    changed = qfmt.convert(module)
    assert changed.content_id() != model.content_id()
    after = call(module, inputs)
    assert any((a != b).any() for a, b in zip(after, before, strict=True))
    fresh = call(changed.to_torch(engine), inputs)
    assert all((a == b).all() for a, b in zip(after, fresh, strict=True))
    if engine == "reference":
        assert all((a == b).all() for a, b in zip(after, run(changed, inputs), strict=True))
    assert qfmt.convert(model_of("two_inputs").to_torch(engine)).content_id() == model.content_id()


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "qdq"])
def test_copies(engine: str) -> None:
    model, inputs = model_of("two_inputs"), inputs_of("two_inputs")
    module = model.to_torch(engine)
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(stored, weights_only=False)]
    expected = call(module, inputs)
    for each in copies:
        assert each.engine == module.engine
        assert all((a == b).all() for a, b in zip(call(each, inputs), expected, strict=True))
    dict(copies[0].named_buffers())["stem.0.weight"].zero_()
    copies[0].repack()
    assert all((a == b).all() for a, b in zip(call(module, inputs), expected, strict=True))
    assert any((a != b).any() for a, b in zip(call(copies[0], inputs), expected, strict=True))


def test_inputs_by_keyword() -> None:
    module, (image, vector) = model_of("two_inputs").to_torch("native"), inputs_of("two_inputs")
    for one, other in zip(module(image, vector), module(vector=vector, image=image), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "qdq"])
def test_bad_inputs_are_named(engine: str) -> None:
    module, (image, vector) = model_of("two_inputs").to_torch(engine), inputs_of("two_inputs")
    for arguments, message in (
        ((image,), "input vector: is missing"),
        ((image[0], vector), "input image: takes 4 dimensions, not 3"),
        ((image, vector.long()), "input vector: takes torch.float32, not torch.int64"),
        ((image[:, :2], vector), "input image: dimension 1 is 2, must be 3"),
        ((image.numpy(), vector), "input image: takes a torch.Tensor, not ndarray"),
    ):
        with pytest.raises(RunError, match=message):
            module(*arguments)


def test_quantized_inputs_and_outputs_are_integers() -> None:
    grid = Quantization.per_tensor(0.1, 3, "uint8")
    tensors = {
        "x": Tensor("x", "uint8", ("N", 4), quantization=grid),
        "y": Tensor("y", "uint8", ("N", 4), quantization=grid),
    }
    model = Model(Graph(("x",), ("y",), (Node("Relu", ("x",), ("y",), version=14),), tensors), engine="fbgemm")
    x = torch.arange(8, dtype=torch.uint8).reshape(2, 4)
    for engine in ("reference", "native", "onednn"):
        module = model.to_torch(engine)
        assert module(x).tolist() == [[3, 3, 3, 3], [4, 5, 6, 7]]
        assert module(torch._make_per_tensor_quantized_tensor(x, 0.1, 3)).tolist() == module(x).tolist()


NAMES_OF_ALL_KINDS = (
    "weight",
    "a.b",
    "a",
    "a.b.c",
    "",
    "..",
    "forward",
    "training",
    "x y/z:0",
    "graph",
    "code",
    "0.1",
    "weight_scale",
)


def test_names_that_are_no_attributes() -> None:
    names = [name or "_" for name in NAMES_OF_ALL_KINDS]
    values = np.random.default_rng(0).normal(size=(len(names), 3)).astype(np.float32)
    tensors = {name: Tensor.constant(name, value) for name, value in zip(names, values, strict=True)}
    tensors["weight"] = Tensor.constant("weight", np.array([1, 2, 3], np.int8), Quantization((0.5,), (0,), -128, 127))
    nodes = [Node("DequantizeLinear", ("weight",), ("sum0",), version=23)]
    for index, name in enumerate(names[1:]):
        nodes.append(Node("Add", (f"sum{index}", name), (f"sum{index + 1}",), version=14))
    tensors |= {f"sum{index}": Tensor(f"sum{index}", "float32", (3,)) for index in range(len(names))}
    model = Model(Graph((), (f"sum{len(names) - 1}",), tuple(nodes), tensors))
    for engine in ("reference", "native", "onednn", "qdq"):
        module = model.to_torch(engine)
        assert (module().numpy() == run(model, ())[0]).all()
        assert qfmt.convert(module).content_id() == model.content_id()
        module.load_state_dict(module.state_dict())


def test_names_of_inputs_and_sizes_that_are_used_twice() -> None:
    """Inputs whose names are no identifiers; a vector of sizes that is also an output."""
    named = {
        "class": Tensor("class", "float32", ("N", 6)),
        "a.b": Tensor("a.b", "float32", ("N", 2, 3)),
        "a_b": Tensor("a_b", "int64", (2,)),
        "1": Tensor("1", "int64", (2,)),
        "r": Tensor("r", "float32", None),
        "t": Tensor("t", "float32", None),
    }
    nodes = (
        Node("Shape", ("class",), ("1",), {"start": 0, "end": 2**63 - 1}, version=23),
        Node("Reshape", ("a.b", "1"), ("r",), {"allowzero": 0}, version=23),
        Node("Reshape", ("class", "a_b"), ("t",), {"allowzero": 0}, version=23),
    )
    model = Model(Graph(("class", "a.b", "a_b"), ("r", "1", "t", "a_b"), nodes, named))
    inputs = (torch.rand(2, 6), torch.rand(2, 2, 3), torch.tensor([3, 4]))
    for engine in ("reference", "native", "onednn", "qdq"):
        same, total = equal(call(model.to_torch(engine), inputs), run(model, inputs))
        assert same == total


def test_what_cannot_be_run_cannot_be_made() -> None:
    tensors = {"x": Tensor("x", "float32", ("N",)), "y": Tensor("y", "float32", ("N",))}
    model = Model(Graph(("x",), ("y",), (Node("vendor.Fancy", ("x",), ("y",)),), tensors))
    with pytest.raises(RunError, match=r"node y \(vendor.Fancy\): qfmt cannot run this operator"):
        model.to_torch("reference")
    with pytest.raises(RunError, match="no graph"):
        Model(Graph((), (), (), {"w": Tensor.constant("w", np.ones(3, np.float32))})).to_torch()


def test_bits_below_eight_and_foreign_floats() -> None:
    import ml_dtypes

    tensors = {
        "i4": Tensor.constant("i4", np.array([[1, -2, 7]]), Quantization((0.5,), (0,), -8, 7), dtype="int4"),
        "u2": Tensor.constant("u2", np.array([[3, 0, 1]]), Quantization((0.25,), (1,), 0, 3), dtype="uint2"),
        "bf": Tensor.constant("bf", np.array([1.5, -2.0], ml_dtypes.bfloat16)),
        "a": Tensor("a", "float32", (1, 3)),
        "b": Tensor("b", "float32", (1, 3)),
    }
    nodes = tuple(Node("DequantizeLinear", (name,), (out,), version=23) for name, out in (("i4", "a"), ("u2", "b")))
    model = Model(Graph((), ("a", "b", "bf"), nodes, tensors))
    module = model.to_torch("reference")
    a, b, bf = module()
    assert a.tolist() == [[0.5, -1.0, 3.5]]
    assert b.tolist() == [[0.5, -0.25, 0.0]]
    assert bf.dtype == torch.bfloat16
    assert module.i4.dtype == torch.int8
    assert qfmt.convert(module).content_id() == model.content_id()


def test_a_report_names_the_nodes_that_fell_back() -> None:
    module = model_of("unet").to_torch("onednn")
    rows = module.report()
    assert {row.operator for row in rows} >= {"ConvTranspose"}
    assert all(row.reason for row in rows)
    assert "ConvTranspose" in str(rows)


def test_engines_that_are_not_there() -> None:
    model = model_of("two_inputs")
    for engine in ("cuda", "native:avx", "onednn:x86", ""):
        with pytest.raises(QfmtError):
            model.to_torch(engine)


def test_torch_may_be_absent() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport qfmt\nqfmt.convert(sys.argv[1]).to_torch()"
    command = [sys.executable, "-c", code, str(DIGITS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "MissingPackageError: a PyTorch module needs PyTorch; `pip install '.[torch]'`" in done.stderr


def test_importing_the_backend_does_not_import_torch() -> None:
    code = "import sys, qfmt.backends.torch; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


def test_float32_products_of_reduced_precision_are_not_used() -> None:
    """Sums stay exact although torch may compute float32 products in bfloat16."""
    model, inputs = model_of("linears"), inputs_of("linears")
    module = model.to_torch("reference")
    for setting in ("matmul", "conv"):
        torch.set_float32_matmul_precision("medium") if setting == "matmul" else None
        if setting == "conv" and hasattr(torch.backends.mkldnn, "conv"):
            torch.backends.mkldnn.conv.fp32_precision = "bf16"
        try:
            same, total = equal(call(module, inputs), run(model, inputs))
        finally:
            torch.set_float32_matmul_precision("highest")
            if hasattr(torch.backends.mkldnn, "conv"):
                torch.backends.mkldnn.conv.fp32_precision = "none"
        assert same == total


def test_padding_of_convolutions_like_torch() -> None:
    """Uneven pads, which torch's convolutions do not have, in the engines that have to help themselves."""
    grid, out = Quantization.per_tensor(0.05, 7, "uint8"), Quantization.per_tensor(0.4, 120, "uint8")
    weight = np.random.default_rng(0).integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)
    tensors = {
        "x": Tensor("x", "uint8", ("N", 2, "H", "W"), quantization=grid),
        "w": Tensor.constant("w", weight, Quantization((0.01, 0.02, 0.03), (0, 0, 0), -128, 127, axis=0)),
        "y": Tensor("y", "uint8", ("N", 3, None, None), quantization=out),
    }
    attributes = {"dilations": (1, 1), "group": 1, "kernel_shape": (3, 3), "pads": (0, 1, 2, 0), "strides": (1, 1)}
    node = Node("Conv", ("x", "w"), ("y",), attributes, version=22, rule="affine")
    model = Model(Graph(("x",), ("y",), (node,), tensors), engine="onednn")
    x = torch.randint(0, 256, (2, 2, 6, 5), dtype=torch.uint8)
    expected = run(model, (x,))
    assert expected[0].shape == (2, 3, 6, 4)
    padded = functional.pad(x.double() - 7, [1, 0, 0, 2])
    scales = torch.tensor([0.01, 0.02, 0.03]).reshape(-1, 1, 1) * 0.05
    real = functional.conv2d(padded, torch.from_numpy(weight).double()) * scales
    assert np.abs(expected[0] - (real / 0.4 + 120).round().clamp(0, 255).numpy()).max() <= 1
    for engine in ("reference", "native:fbgemm", "onednn"):
        assert (call(model.to_torch(engine), (x,))[0] == expected[0]).all(), engine


@pytest.mark.parametrize(("inputs", "outputs"), [(8, 4), (4, 8), (8, 8), (16, 8)])
def test_auto_takes_no_kernels_that_err(inputs: int, outputs: int) -> None:
    """torch's transposed convolutions by oneDNN and fbgemm are wrong for some shapes, by up to 200 steps."""
    generator = torch.Generator().manual_seed(inputs + outputs)
    with pytorch.quiet():
        layer = nnq.ConvTranspose2d(inputs, outputs, 2, 2)
        weight = torch.randn(inputs, outputs, 2, 2, generator=generator) * 0.1
        layer.set_weight_bias(torch.quantize_per_tensor(weight, 0.005, 0, torch.qint8), None)
        layer.scale, layer.zero_point = 0.03, 100
        network = torch.nn.Sequential(nnq.Quantize(0.05, 64, torch.quint8), layer, nnq.DeQuantize())
        x = torch.randn(2, inputs, 5, 5, generator=generator)
        model = qfmt.convert(network, example_inputs=(x,))
    (exact,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    module = model.to_torch()
    steps = np.abs(module(x).numpy() - exact) / 0.03
    print(f"{inputs} → {outputs}, {module.engine}: {(steps < 0.5).sum()} of {steps.size} equal")
    assert steps.max() < 1.5
