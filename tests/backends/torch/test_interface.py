"""The module that `Model.to_torch` returns: its state, inputs, names and report, and errors."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.ao.nn import quantized as nnq
from torch.nn import functional

import qfmt
from cases.one_node import single
from networks import pytorch
from qfmt.backends.torch.emit import WRITTEN, Row
from qfmt.backends.torch.module import Report
from qfmt.errors import QfmtError, RunError
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from support.paths import DIGITS, ROOT
from support.torch_modules import call, equal, inputs_of, model_of, run

pytestmark = pytest.mark.usefixtures("engine_is_left_alone")


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
                assert tuple(state[f"{tensor.name}_scale"].tolist()) == tensor.quantization.scale.numbers()
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
        ((image[0], vector), "input image: expects 4 dimensions, not 3"),
        ((image, vector.long()), "input vector: expects torch.float32, not torch.int64"),
        ((image[:, :2], vector), "input image: dimension 1 is 2, must be 3"),
        ((image.numpy(), vector), "input image: expects a torch.Tensor, not ndarray"),
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
    tensors["weight"] = Tensor.constant(
        "weight", np.array([1, 2, 3], np.int8), Quantization.of((0.5,), (0,), -128, 127)
    )
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
    """Inputs whose names are not identifiers; a vector of sizes that is also an output."""
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


def test_invalid_models_are_refused() -> None:
    tensors = {"x": Tensor("x", "float32", ("N",)), "y": Tensor("y", "float32", ("N",))}
    model = Model(Graph(("x",), ("y",), (Node("vendor.Fancy", ("x",), ("y",)),), tensors))
    with pytest.raises(RunError, match=r"node y \(vendor.Fancy\): qfmt cannot run this operator"):
        model.to_torch("reference")
    with pytest.raises(RunError, match="no graph"):
        Model(Graph((), (), (), {"w": Tensor.constant("w", np.ones(3, np.float32))})).to_torch()


def test_bits_below_eight_and_foreign_floats() -> None:
    import ml_dtypes

    tensors = {
        "i4": Tensor.constant("i4", np.array([[1, -2, 7]]), Quantization.of((0.5,), (0,), -8, 7), dtype="int4"),
        "u2": Tensor.constant("u2", np.array([[3, 0, 1]]), Quantization.of((0.25,), (1,), 0, 3), dtype="uint2"),
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


def test_a_report_of_untrusted_names_is_safe_to_print() -> None:
    assert "n\\x1b[2J" in str(Report("native", 1, [Row("n\x1b[2J", "Softmax", "reference", "")]))


@pytest.mark.parametrize("word", sorted(WRITTEN))
def test_inputs_may_have_the_names_that_torch_writes(word: str) -> None:
    """An input `inf` was what the code meant by infinity; `getattr` hid the function."""
    bounds = {"least": Tensor.constant("least", np.float32(-np.inf)), "0.w": Tensor.constant("0.w", np.float32(2))}
    values = {name: Tensor(name, "float32", (2,)) for name in (word, "a", "b")}
    nodes = [Node("Clip", (word, "least", ""), ("a",), {}, "", OPERATORS["Clip"].version)]
    nodes += [Node("Add", ("a", "0.w"), ("b",), {}, "", OPERATORS["Add"].version)]
    model = Model(Graph((word,), ("b",), nodes, bounds | values), engine="onnx")
    assert model.to_torch("reference")(torch.tensor([1.0, -3.0])).tolist() == [3.0, -1.0]


@pytest.mark.parametrize("word", sorted({*WRITTEN, "Self", "SELF", "__self__", "T", "real", "grad"}))
@pytest.mark.parametrize("engine", ["auto", "fast", "reference", "qdq"])
def test_constants_may_have_the_names_that_torch_writes(engine: str, word: str) -> None:
    """After a constant `self`, the next one was read from its tensor: `T` was its transpose."""
    real = np.random.default_rng(1).normal(size=(2, 3, 3)).astype(np.float32)
    names = word, "T" if word != "T" else "real"
    constants = {name: Tensor.constant(name, array) for name, array in zip(names, real, strict=True)}
    values = {name: Tensor(name, "float32", (3, 3)) for name in ("x", "a", "b")}
    nodes = [Node("MatMul", ("x", names[0]), ("a",), {}, "", OPERATORS["MatMul"].version)]
    nodes += [Node("MatMul", ("a", names[1]), ("b",), {}, "", OPERATORS["MatMul"].version)]
    module = Model(Graph(("x",), ("b",), nodes, constants | values), engine="onnx").to_torch(engine)
    for _ in range(2):
        torch.testing.assert_close(module(torch.eye(3)).numpy(), real[0] @ real[1])
        module.recompile()  # so that the generated code runs


@pytest.mark.parametrize("engine", ["auto", "reference", "qdq"])
def test_integers_are_clipped_as_integers(engine: str) -> None:
    """They became float32, which does not have 2**24 + 1."""
    most = Tensor.constant("most", np.int64(2**40))
    values = {name: Tensor(name, "int64", (2,)) for name in ("x", "y")}
    node = Node("Clip", ("x", "", "most"), ("y",), {}, "", OPERATORS["Clip"].version)
    model = Model(Graph(("x",), ("y",), [node], {"most": most, **values}), engine="onnx")
    result = model.to_torch(engine)(torch.tensor([2**24 + 1, 2**50]))
    assert result.dtype == torch.int64
    assert result.tolist() == [2**24 + 1, 2**40]


def test_engines_that_are_not_there() -> None:
    model = model_of("two_inputs")
    for engine in ("cuda", "native:avx", "onednn:x86", ""):
        with pytest.raises(QfmtError):
            model.to_torch(engine)


def test_torch_may_be_absent() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport qfmt\nqfmt.convert(sys.argv[1]).to_torch()"
    command = [sys.executable, "-c", code, str(DIGITS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (
        "MissingPackageError: a PyTorch module needs PyTorch; run `pip install '.[torch]'` in a checkout" in done.stderr
    )


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


def test_uneven_padding_of_convolutions() -> None:
    """Uneven pads, which torch's convolutions do not support, in the engines that work around this."""
    grid, out = Quantization.per_tensor(0.05, 7, "uint8"), Quantization.per_tensor(0.4, 120, "uint8")
    weight = np.random.default_rng(0).integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)
    tensors = {
        "x": Tensor("x", "uint8", ("N", 2, "H", "W"), quantization=grid),
        "w": Tensor.constant("w", weight, Quantization.of((0.01, 0.02, 0.03), (0, 0, 0), -128, 127, axis=0)),
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
def test_auto_does_not_use_wrong_kernels(inputs: int, outputs: int) -> None:
    """torch's transposed convolutions of oneDNN and fbgemm are wrong for some shapes, by up to 200 steps."""
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


def test_names_that_clash_stay_short() -> None:
    """2 ** 9 names that are the same without the characters that a module cannot have."""
    names = ["".join(each) for each in itertools.product('"\\\\', repeat=9)]
    tensors = {name: Tensor.constant(name, np.float32([index])) for index, name in enumerate(names)}
    out = Tensor("out", "float32", (len(names),))
    model = Model(
        Graph((), ("out",), (Node("Concat", tuple(names), ("out",), {"axis": 0}, version=13),), {**tensors, "out": out})
    )
    module = model.to_torch()
    assert max(map(len, module.state_dict())) < 15
    assert qfmt.convert(module).content_id() == model.content_id()


def test_integers_of_uint16_are_counted_by_thresholds() -> None:
    """`torch.searchsorted` does not compare them."""
    grids = Quantization.per_tensor(0.001, 30000, "uint16"), Quantization.per_tensor(0.3, 100, "uint8")
    tensors = {
        name: Tensor(name, dtype, (2, 3, 50), quantization=grid)
        for name, dtype, grid in zip("xy", ("uint16", "uint8"), grids, strict=True)
    }
    node = Node("QuantizeLinear", ("x",), ("y",), version=OPERATORS["QuantizeLinear"].version, rule="divide")
    model = Model(Graph(("x",), ("y",), (node,), tensors), engine="onnx").to_integers(exact=True)
    assert [each.rule for each in model.nodes] == ["thresholds"]
    x = np.random.default_rng(0).integers(0, 1 << 16, (2, 3, 50)).astype(np.uint16)
    for engine in ("auto", "reference"):
        got = model.to_torch(engine)(torch.from_numpy(x))
        np.testing.assert_array_equal(got.numpy(), model.run({model.graph.inputs[0]: x})[model.graph.outputs[0]])


@pytest.mark.parametrize("rule", ["dynamic_divide", "dynamic_reciprocal"])
@pytest.mark.parametrize("engine", ["auto", "fast", "native", "onednn", "qdq", "reference"])
def test_small_inputs_of_dynamic_layers_have_the_integers_of_the_rule(engine: str, rule: str) -> None:
    """Torch's own kernels have a least scale of 6.1e-5: they would have 5 integers here."""
    x = np.random.default_rng(5).random((4, 6)).astype(np.float32) * np.float32(3e-4)
    w = Tensor.constant("w", np.eye(6, dtype=np.int8), Quantization.per_tensor(1.0, 0, "int8"))
    model = single("qfmt.DynamicLinear", rule, [Tensor("x", "float32", x.shape), w], Tensor("y", "float32", None), {})
    found = model.to_torch(engine)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, model.run({"x": x})["y"], rtol=1e-6)
