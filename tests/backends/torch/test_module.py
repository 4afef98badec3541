"""Usual operations on the module of `Model.to_torch`: moved, converted, shared by threads; and names from a file."""

from __future__ import annotations

import inspect
import threading
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

import qfmt
from networks.pytorch import quiet
from qfmt.backends.torch.engines import NATIVE_ENGINES
from qfmt.engines import RUNTIMES, TORCH_ENGINES
from qfmt.errors import RunError, ValidityError
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from qfmt.passes.hazards import KERNELS
from support.paths import DIGITS, SUITE

ENGINES = ("reference", "native", "onednn", "qdq")


@pytest.fixture(autouse=True)
def own_kernels():
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    yield
    assert torch.backends.quantized.engine == "fbgemm"
    torch.backends.quantized.engine = before


def test_lists_of_kernels_name_the_engines_that_there_are() -> None:
    assert sorted(NATIVE_ENGINES) == sorted(TORCH_ENGINES)
    assert KERNELS.keys() < {*TORCH_ENGINES, *RUNTIMES}


def named(*names: str) -> Model:
    """y = x + the sum of constants of these names; each is 1, 2, 4, …"""
    tensors = {name: Tensor.constant(name, np.full(3, 2.0**index, np.float32)) for index, name in enumerate(names)}
    tensors["in"] = Tensor("in", "float32", ("N", 3))
    nodes = []
    for index, name in enumerate(names):
        out = f"out{index}"
        tensors[out] = Tensor(out, "float32", ("N", 3))
        before = nodes[-1].outputs[0] if nodes else "in"
        nodes.append(Node("Add", (before, name), (out,), version=14, scope=name.rpartition(".")[0]))
    return Model(Graph(("in",), (nodes[-1].outputs[0],), tuple(nodes), tensors), engine="fbgemm")


def convolution() -> tuple[Model, torch.Tensor]:
    """Quantize, Conv (depthwise, with a bias), Dequantize."""
    rng = np.random.default_rng(5)
    grid, out = (Quantization.per_tensor(float(np.float32(s)), z, "uint8") for s, z in ((0.05, 7), (0.4, 120)))
    scales = tuple(float(scale) for scale in rng.uniform(0.001, 0.1, 8).astype(np.float32))
    weight = rng.integers(-128, 128, (8, 1, 3, 3)).astype(np.int8)
    tensors = {
        "x": Tensor("x", "float32", ("N", 8, "H", "W")),
        "q": Tensor("q", "uint8", ("N", 8, "H", "W"), quantization=grid),
        "conv.weight": Tensor.constant("conv.weight", weight, Quantization.of(scales, (0,) * 8, -128, 127, axis=0)),
        "conv.bias": Tensor.constant("conv.bias", rng.normal(size=8).astype(np.float32)),
        "c": Tensor("c", "uint8", ("N", 8, None, None), quantization=out),
        "y": Tensor("y", "float32", ("N", 8, None, None)),
    }
    geometry = {"dilations": (1, 1), "group": 8, "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1)}
    nodes = (
        Node("QuantizeLinear", ("x",), ("q",), version=23, rule="reciprocal_fma"),
        Node("Conv", ("q", "conv.weight", "conv.bias"), ("c",), geometry, version=22, rule="float_bias"),
        Node("DequantizeLinear", ("c",), ("y",), version=23),
    )
    return Model(Graph(("x",), ("y",), nodes, tensors), engine="fbgemm"), torch.randn(2, 8, 9, 11)


# Names


NAMES = (
    "model.0.weight",
    "engine",
    "requested",
    "lines",
    "a.lines.b",
    "_made",
    "_paths",
    "_lines",
    "class.None",
    "w_scale",
    "w",
    "ﬁ",
    "fi",
    "…",
    ".".join("a" * 2000),
    "é\n\t\\",
)


@pytest.mark.parametrize("engine", ENGINES)
def test_any_constant_name_works_as_a_buffer(engine: str) -> None:
    model = named(*NAMES)
    module = model.to_torch(engine)
    assert module(torch.zeros(1, 3)).tolist() == [[2.0 ** len(NAMES) - 1] * 3]
    assert {"model.0.weight", "requested", "lines", "a.lines.b", "w"} <= module.state_dict().keys()
    assert qfmt.convert(module).content_id() == model.content_id()
    module.load_state_dict(module.state_dict())
    assert module(torch.zeros(1, 3)).tolist() == [[2.0 ** len(NAMES) - 1] * 3]


def test_scales_are_next_to_a_constant_even_if_names_collide() -> None:
    grid = Quantization.per_tensor(0.5, 0, "int8")
    tensors = {
        "w_scale": Tensor.constant("w_scale", np.full(3, 9, np.float32)),
        "w": Tensor.constant("w", np.array([1, 2, 3], np.int8), grid),
        "real": Tensor("real", "float32", (3,)),
        "y": Tensor("y", "float32", (3,)),
    }
    nodes = (
        Node("DequantizeLinear", ("w",), ("real",), version=23),
        Node("Add", ("real", "w_scale"), ("y",), version=14),
    )
    model = Model(Graph((), ("y",), nodes, tensors))
    for engine in ENGINES:
        module = model.to_torch(engine)
        assert module().tolist() == [9.5, 10.0, 10.5]
        assert qfmt.convert(module).content_id() == model.content_id()


def test_scales_that_a_node_cannot_have_are_refused() -> None:
    """The rule `sum` adds integers of one scale."""
    module = qfmt.load(SUITE / "float" / "add-sum.qfb").to_torch()
    state = module.state_dict()
    (name,) = (each for each in state if each.endswith("_scale"))
    with pytest.raises(ValidityError, match="V69"):
        module.load_state_dict({**state, name: state[name] * 4})


def pooled(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.adaptive_avg_pool2d(
        torch.quantize_per_tensor(x, 0.01, 3, torch.quint8), (3, 2)
    ).dequantize()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("engine", ("auto", "fast", *ENGINES))
def test_the_default_dtype_of_torch_is_no_matter(engine: str, dtype: torch.dtype, tmp_path: Path) -> None:
    with quiet():
        torch.jit.trace(pooled, torch.rand(1, 2, 43, 37)).save(str(tmp_path / "pool.pt"))
    for path, shape in ((DIGITS, (2, 1, 8, 8)), (tmp_path / "pool.pt", (1, 2, 43, 37))):
        model, x = qfmt.convert(path), torch.linspace(1, 2, prod(shape)).reshape(shape)
        expected = model.to_torch(engine=engine)(x)
        torch.set_default_dtype(dtype)
        try:
            assert torch.equal(model.to_torch(engine=engine)(x), expected)
            assert torch.get_default_dtype() == dtype
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ["form-nvfp4", "form-double", "form-levels"])
def test_scales_that_are_quantized_stay_so(name: str) -> None:
    model = qfmt.load(SUITE / "float" / f"{name}.qfb")
    (vector,) = model.vectors
    module = model.to_torch()
    module.load_state_dict(module.state_dict())
    assert qfmt.convert(module).content_id() == model.content_id()
    outputs = module(*(torch.from_numpy(each.array) for each in vector.inputs.values()))
    assert [outputs.numpy().tobytes()] == [each.array.tobytes() for each in vector.outputs.values()]


@pytest.mark.parametrize("engine", ENGINES)
def test_names_are_not_executed(engine: str, tmp_path: Path) -> None:
    """fx writes names of buffers into the code of `forward`; names from a file must not be executed."""
    marker = tmp_path / "marker"
    path = str(marker).replace(".", "_")
    call = f'getattr(__import__("pathlib"), "Path")("{path}")'
    hostile = f'__class__") and getattr({call}, "touch")() or getattr(self, "w'
    model = named(hostile, "w")
    qfmt.save(model, tmp_path / "m.qfb")
    module = qfmt.load(tmp_path / "m.qfb").to_torch(engine)
    assert module(torch.zeros(1, 3)).tolist() == [[3.0] * 3]
    type(module).forward(module, torch.zeros(1, 3))
    module.recompile()  # so that the generated code runs
    assert module(torch.zeros(1, 3)).tolist() == [[3.0] * 3]
    assert not marker.exists()
    assert compile(module.code.strip(), "code", "exec").co_names == ("forward",)
    assert '__import__("' not in module.code


@pytest.mark.parametrize("name", ["torch", "self", "inf", "input", "x\n'", '") or print(1) #', "__import__", "…"])
def test_any_input_name_works_as_an_argument(name: str) -> None:
    tensors = {name: Tensor(name, "float32", (name, 3)), f"out {name}": Tensor(f"out {name}", "float32", (None, 3))}
    model = Model(Graph((name,), (f"out {name}",), (Node("Neg", (name,), (f"out {name}",), version=13),), tensors))
    for engine in ENGINES:
        module = model.to_torch(engine)
        assert module(torch.ones(1, 3)).tolist() == [[-1.0] * 3]
        module.recompile()
        assert module(torch.ones(1, 3)).tolist() == [[-1.0] * 3]


# Types and memory


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_keep_their_types(engine: str, kind: torch.dtype) -> None:
    model, x = convolution()
    module = model.to_torch(engine)
    before = module(x)
    for around in (module, torch.nn.Sequential(module)):
        with pytest.raises(RunError, match="cannot be converted to another floating type"):
            around.to(kind)
    assert torch.equal(module(x), before)
    assert qfmt.convert(module).content_id() == model.content_id()


@pytest.mark.parametrize("engine", ENGINES)
def test_moves_that_keep_types(engine: str) -> None:
    model, x = convolution()
    module = model.to_torch(engine)
    before = module(x)
    module.train().eval().requires_grad_(True).float().cpu().share_memory().to(memory_format=torch.channels_last)
    assert torch.equal(module(x), before)
    assert torch.equal(torch.nn.Sequential(module).to("cpu")(x), before)
    assert qfmt.convert(module).content_id() == model.content_id()


@pytest.mark.parametrize("engine", ENGINES)
def test_autocast_changes_nothing(engine: str) -> None:
    model, x = convolution()
    module = model.to_torch(engine)
    before = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = module(x)
        assert torch.is_autocast_enabled("cpu")
    print(f"{engine}: {int((again == before).sum())} of {before.numel()} outputs equal")
    assert torch.equal(again, before)
    if engine == "reference":
        assert (again.numpy() == model.run({"x": x.numpy()})["y"]).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_modes_of_torch_that_change_nothing(engine: str) -> None:
    model, x = convolution()
    before = model.to_torch(engine)(x)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(model.to_torch(engine)(x), before)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        inside = model.to_torch(engine)
        assert torch.equal(inside(x), before)
    assert torch.equal(inside(x), before)
    for _ in range(3):  # TorchScript optimizes the graph after some runs
        assert torch.equal(model.to_torch(engine)(x.clone().requires_grad_(True)), before)
    assert model.to_torch(engine)(x[:0]).shape == (0, 8, 9, 11)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["averagepool", "adaptiveaveragepool"])
def test_means_can_be_traced(name: str) -> None:
    """torch computes the counts of windows: in a trace, sizes are tensors."""
    model = qfmt.load(SUITE / "float" / f"{name}-mean-reciprocal.qfb")
    (given,) = model.vectors[0].inputs.values()
    x = torch.from_numpy(np.array(given.array))
    module = model.to_torch("reference")
    assert torch.equal(torch.jit.trace(module, (x,))(x), module(x))


def test_scripting_is_refused_and_tracing_is_not() -> None:
    model, x = convolution()
    for engine in ENGINES:
        with pytest.raises(RunError, match=r"torch\.jit\.script cannot read"):
            torch.jit.script(model.to_torch(engine))
    module = model.to_torch("native")
    assert torch.equal(torch.jit.trace(module, (x,))(x), module(x))


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_that_make_no_model_leave_the_module_as_it_was(engine: str) -> None:
    model, x = convolution()
    module = model.to_torch(engine)
    before, state = module(x), {name: value.clone() for name, value in module.state_dict().items()}
    broken = state | {"conv.weight_scale": state["conv.weight_scale"] * float("nan")}
    with pytest.raises(qfmt.QfmtError):
        module.load_state_dict(broken)
    module.load_state_dict(state)
    names = {name for name, _ in module.named_buffers()}
    module.repack()
    assert {name for name, _ in module.named_buffers()} == names
    assert torch.equal(module(x), before)


def test_threads_with_other_kernels_leave_the_setting_of_the_process() -> None:
    kernels = [name for name in ("fbgemm", "qnnpack", "onednn") if name in torch.backends.quantized.supported_engines]
    model, x = convolution()
    modules = [model.to_torch(f"native:{name}") for name in kernels]
    expected = [module(x) for module in modules]
    wrong: list[str] = []

    def work(module: torch.nn.Module, wanted: torch.Tensor) -> None:
        wrong.extend(module.engine for _ in range(100) if not torch.equal(module(x), wanted))

    torch.backends.quantized.engine = "x86"
    threads = [threading.Thread(target=work, args=pair) for pair in zip(modules * 2, expected * 2, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    assert (left, wrong) == ("x86", [])


@pytest.mark.parametrize("engine", ["reference", "native", "onednn"])
def test_quantized_tensors_of_another_grid_are_refused(engine: str) -> None:
    q = Quantization.per_tensor(0.5, 3, "uint8")
    tensors = {name: Tensor(name, "uint8", ("N", 4), quantization=q) for name in ("x", "y")}
    model = Model(Graph(("x",), ("y",), (Node("Relu", ("x",), ("y",), version=14),), tensors), engine="fbgemm")
    module, integers = model.to_torch(engine), torch.arange(8, dtype=torch.uint8).reshape(2, 4)
    make = torch._make_per_tensor_quantized_tensor
    assert torch.equal(module(make(integers, 0.5, 3)), module(integers))
    for scale, zero_point in ((0.25, 3), (0.5, 4)):
        with pytest.raises(RunError, match=r"input x: expects integers with scale 0\.5 and zero point 3"):
            module(make(integers, scale, zero_point))
    model, x = convolution()
    with pytest.raises(RunError, match="input x: expects floats, not a quantized tensor; dequantize it"):
        model.to_torch(engine)(torch.quantize_per_tensor(x, 0.1, 0, torch.quint8))


def test_inputs_with_colliding_identifiers() -> None:
    """One more character per name would make names of quadratic length, found in cubic time."""
    names = tuple("é" * (1 + i) for i in range(300))
    tensors = {name: Tensor(name, "float32", (1,)) for name in names} | {"y": Tensor("y", "float32", (300,))}
    node = Node("Concat", names, ("y",), {"axis": 0}, version=OPERATORS["Concat"].version)
    module = Model(Graph(names, ("y",), [node], tensors)).to_torch("reference")
    arguments = list(inspect.signature(module.forward).parameters)
    assert len(set(arguments)) == 300 and sum(map(len, arguments)) < 300 * 310
    assert torch.equal(module(*(torch.full((1,), float(i)) for i in range(300))), torch.arange(300.0))
