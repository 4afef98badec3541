"""Pickled modules and FX graphs: their code is interpreted, never executed."""

from __future__ import annotations

import inspect
import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao import quantization as tq
from torch.ao.nn import quantized as nnq
from torch.ao.nn.intrinsic import quantized as nniq
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.nn import functional as F  # noqa: N812

import qfmt
from networks import pytorch
from qfmt.errors import BudgetError, QfmtError, SourceError
from qfmt.frontends.torch.fx import walker
from qfmt.frontends.torch.fx.functional import FUNCTIONS
from qfmt.frontends.torch.fx.modules import OVERRIDES
from qfmt.frontends.torch.lifter import is_known
from qfmt.frontends.torch.torchscript.code import syntax_tree
from support.matrix import FX
from support.saved import FORMS, chain, saved

SHAPES = {"linears": {"x": ("N", None, "F")}}
"""Networks whose code does not determine the rank of the input; rank 4 is tried first."""

OWN_NAMES = {"linears", "islands", "two_inputs"}
"""Networks whose traces have names of sizes and constants that FX code lacks; they are equal otherwise."""

pytestmark = pytest.mark.usefixtures("fbgemm")


@pytest.mark.parametrize("name", FX)
def test_fx_modules_have_the_graph_of_their_trace(name: str, tmp_path: Path) -> None:
    network, inputs = pytorch.quantized(name, "fx")
    path = saved(network, tmp_path / "m.pt")
    model = qfmt.convert(path, input_shapes=SHAPES.get(name))
    assert not model.no_graph
    trace = qfmt.convert(pytorch.save_as(network, inputs, "trace", tmp_path / "t.pt"))
    assert model.content_id() == trace.content_id() or name in OWN_NAMES
    if name in OWN_NAMES:
        arrays = {key: tensor.numpy() for key, tensor in zip(model.graph.inputs, inputs, strict=True)}
        for mine, theirs in zip(model.run(arrays).values(), trace.run(arrays).values(), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@FORMS
@pytest.mark.parametrize("wrapped", [False, True], ids=["sequential", "wrapper"])
def test_chains_of_known_modules_have_a_graph(wrapped: bool, form: dict[str, bool], tmp_path: Path) -> None:
    with pytorch.quiet():
        network = chain(wrapped).eval()
        network.qconfig = tq.get_default_qconfig("fbgemm")
        for module in network.modules():
            if isinstance(module, nn.ConvTranspose2d):
                module.qconfig = tq.QConfig(network.qconfig.activation, tq.default_weight_observer)
        observed = tq.prepare(network)
        observed(torch.randn(4, 3, 10, 10, generator=torch.Generator().manual_seed(1)))
        network = tq.convert(observed)
        x = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(2))
        expected = network(x).numpy()
    model = qfmt.convert(saved(network, tmp_path / "m.pt", **form))
    assert not model.no_graph
    (result,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    np.testing.assert_array_equal(result, expected)
    memory = qfmt.convert(network, example_inputs=(x,))
    assert model.content_id() == memory.content_id()


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(4, 5, **options)
        self.fc = nn.Linear(self.rnn.hidden_size * (2 if self.rnn.bidirectional else 1), 3)

    def forward(self, x):  # type: ignore[no-untyped-def] # torch.fx cannot save annotations that are strings
        return self.fc(self.rnn(x)[0])


@pytest.mark.parametrize("options", [{"batch_first": True}, {"num_layers": 2, "bidirectional": True}], ids=["1", "2x2"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_fx_modules_with_recurrent_layers(kind: type[nn.RNNBase], options: dict[str, Any], tmp_path: Path) -> None:
    x = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(4))
    with pytorch.quiet():
        torch.manual_seed(4)
        dynamic = tq.QConfigMapping().set_global(tq.default_dynamic_qconfig)
        network = convert_fx(prepare_fx(Recurrent(kind, **options).eval(), dynamic, (x,)))
        expected = network(x).detach().numpy()
    model = qfmt.convert(saved(network, tmp_path / "m.pt"))
    assert not model.no_graph
    assert model.content_id() == qfmt.convert(network, example_inputs=(x,)).content_id()
    (result,) = model.run({"x": x.numpy()}).values()
    print(f"{(result == expected).sum()} of {result.size} outputs equal")
    np.testing.assert_allclose(result, expected, atol=1e-5)


class Twice(nn.Sequential):
    """A Sequential with another `forward`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x))


def test_subclasses_of_known_modules_are_not_known(tmp_path: Path) -> None:
    model = qfmt.convert(saved(nn.Sequential(Twice(nn.Linear(2, 2))), tmp_path / "m.pt"))
    assert "0: the code of " in model.no_graph and "Twice is not in the file" in model.no_graph
    assert sorted(model.tensors) == ["0.0.bias", "0.0.weight"]


def test_input_options_without_a_graph_report_the_reason(tmp_path: Path) -> None:
    path = saved(nn.Sequential(Twice(nn.Linear(2, 2))), tmp_path / "m.pt")
    with pytest.raises(SourceError, match="Twice is not in the file"):
        qfmt.convert(path, input_shapes={"input": (1, 2)})
    with pytest.raises(SourceError, match="no input 'x'"):
        qfmt.convert(saved({"w": torch.ones(2)}, path), input_shapes={"x": (1, 2)})


HOSTILE_CODE = [
    "return __import__('os').system('touch {marker}')",
    "return os.system('touch {marker}')",
    "return getattr(os, 'system')('touch {marker}')",
    "return x.__class__.__base__.__subclasses__()",
    "return (lambda: os.system('touch {marker}'))()",
    "return [os.system('touch {marker}') for _ in [1]][0]",
    "return eval('1')",
    "return torch.ops.load_library('touch {marker}')",
    "return torch.load('touch {marker}')",
    "import os; os.system('touch {marker}'); return x",
    "while True: pass",
    "return 9 ** 9 ** 9",
    "return " + "(" * 4000 + "x" + ")" * 4000,
    "return " + "-" * 5000 + "x",
    "return x[" + "0][" * 3000 + "0]",
    "\x00",
    "return self.nothing(x)",
    "yield x",
]


@pytest.mark.parametrize("body", HOSTILE_CODE, ids=range(len(HOSTILE_CODE)))
def test_fx_code_is_never_executed(body: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    source = "def forward(self, x):\n    " + body.replace("{marker}", str(marker))
    path = fx_file(tmp_path / "m.pt", source, "import os\nimport torch\nfrom os import system\n")
    model = qfmt.convert(path)
    assert model.no_graph and list(model.tensors) == ["weight"]
    assert model.no_graph.isprintable() and len(model.no_graph) < 1000
    assert not marker.exists()


OTHER_CODE = {
    "two definitions": ("def forward(self, x):\n    return x\ndef forward(self, x):\n    return x + 1\n", ""),
    "a decorator": ("@torch.jit.ignore\ndef forward(self, x):\n    return x\n", "is not only a `forward`"),
    "an import": ("from torch import neg as abs\ndef forward(self, x):\n    return torch.abs(x)\n", ""),
    "positional arguments": ("def forward(self, /, x, y):\n    return y\n", "a variable number of arguments"),
}


@pytest.mark.parametrize("what", OTHER_CODE)
def test_code_that_is_not_only_forward_is_refused(what: str, tmp_path: Path) -> None:
    code, message = OTHER_CODE[what]
    model = qfmt.convert(fx_file(tmp_path / "m.pt", code))
    assert (message or "is not only a `forward`") in model.no_graph


def test_imports_that_are_other_code_are_refused(tmp_path: Path) -> None:
    code = "def forward(self, x):\n    return torch.abs(x)\n"
    assert not qfmt.convert(fx_file(tmp_path / "m.pt", code, "NoneType = type(None)\nimport torch\n")).no_graph
    model = qfmt.convert(fx_file(tmp_path / "m.pt", code, "import torch\ntorch.abs = torch.neg\n"))
    assert "by other code than `import`" in model.no_graph


def test_a_method_is_called_after_its_tensor_is_computed(tmp_path: Path) -> None:
    code = "def forward(self, x):\n    y = x + 1\n    return y.add_(1).mul(y.mul_(2))\n"
    x = np.array([[1.0, 2.0]], np.float32)
    model = qfmt.convert(fx_file(tmp_path / "m.pt", code), input_shapes={"x": (1, 2)})
    (result,) = model.run({"x": x}).values()
    assert result.tolist() == [[36.0, 64.0]]


def changed(module: nn.Module, **attributes: Any) -> nn.Module:
    vars(module).update(attributes)
    return module


class Pickled(nn.Module):
    """A module that is pickled with arguments, or a graph with a state."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


def test_attributes_that_replace_the_code_of_a_module_are_refused(tmp_path: Path) -> None:
    path = saved(nn.Sequential(changed(nn.ReLU(), forward=nn.Sigmoid())), tmp_path / "m.pt")
    with pytest.raises(SourceError, match="0: runs hooks"):
        qfmt.convert(path)
    norm = changed(nn.InstanceNorm2d(4), _apply_instance_norm=nn.functional.relu)
    assert "runs hooks" in qfmt.convert(saved(nn.Sequential(norm, nn.PReLU()), tmp_path / "m.pt")).no_graph


def called(cls: type[nn.Module]) -> set[str]:
    """The methods that `forward` of a class calls, and those that they call."""
    found: set[str] = set()
    waiting = ["forward", "_call_impl", "_wrapped_call_impl"]
    while waiting:
        if (name := waiting.pop()) in found:
            continue
        found.add(name)
        for base in cls.__mro__:
            method = base.__dict__.get(name)
            method = getattr(method, "__func__", method)
            if inspect.isfunction(method):
                parts = re.findall(r"(?:self|cls|super\(\))\.(\w+)", inspect.getsource(method))
                waiting += [each for each in parts if inspect.isroutine(inspect.getattr_static(cls, each, None))]
    return found


def test_all_methods_that_a_forward_calls_are_known() -> None:
    packages = nn, nnq, nnq.dynamic, nnq.reference, nniq, nniq.dynamic
    classes = {each for package in packages for each in vars(package).values() if inspect.isclass(each)}
    methods = set[str]().union(*(called(each) for each in classes if issubclass(each, nn.Module)))
    assert len(methods) > 30 and methods <= {*OVERRIDES, "bias"}


def test_parts_that_are_no_modules(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    network._modules["2"] = nn.functional.hardswish  # type: ignore[assignment]
    with pytest.raises(SourceError, match="2: is not a module"):
        qfmt.convert(saved(network, tmp_path / "m.pt"))
    network._modules["2"] = None
    network.append(nn.ReLU())
    assert len(qfmt.convert(saved(nn.Sequential(nn.ReLU()), tmp_path / "n.pt")).nodes) == 1


def test_layouts_and_separate_sizes(tmp_path: Path) -> None:
    code = """def forward(self, x):
    a = x.contiguous(memory_format = torch.channels_last)
    b = torch.clone(a, memory_format = torch.preserve_format).contiguous(torch.contiguous_format)
    c = b + x.new_zeros(1, 4, 2) + x.new_ones(2)
    return c + torch.zeros(4, 2, device = x.device) + torch.ones(2) + torch.ones((4, 2))
"""
    model = qfmt.convert(fx_file(tmp_path / "m.pt", code), input_shapes={"x": (1, 3, 4, 2)})
    x = np.arange(24, dtype=np.float32).reshape(1, 3, 4, 2)
    assert np.array_equal(*model.run({"x": x}).values(), x + 3)


SPELLED = [
    "torch.cat((x, x), axis=1)", "x.sum(axis=1)", "x.mean(axis=(2, 3), keepdims=True)", "torch.max(x, axis=1)[0]",
    "torch.sum(input=x, dim=1)", "torch.relu(input=x)", "torch.add(input=x, other=x)",
    "torch.nn.functional.pad(input=x, pad=(1, 1))", "torch.conv2d(input=x, weight=torch.ones(2, 3, 1, 1))",
    "(x > 0) & (x < 1)", "(x > 1) | (x < 0)", "(x > 0) ^ (x < 1)", "~(x > 0)", "abs(x)", "x.int() & 3", "~x.int()",
    "torch.where(x > 0, input=x, other=x * 2)", "torch.eq(input=x, other=x * 2)", "torch.swapaxes(x, axis0=0, axis1=1)",
    "x.mT", "x[0, 0].T", "torch.ops.aten.relu.default(x)", "torch.ops.aten.max.dim(x, 1)[0]", "torch.ops.aten.relu(x)",
]  # fmt: skip
"""Names of arguments that are NumPy's, or those of Python's functions; and more of Python's operators."""


@pytest.mark.parametrize("expression", SPELLED)
def test_spellings_of_one_call(expression: str, tmp_path: Path) -> None:
    network = Called(eval(f"lambda module, x: {expression}", {"torch": torch}), nn.Identity())
    traced = torch.fx.symbolic_trace(network)
    x = torch.linspace(-2, 2, 24).reshape(1, 3, 4, 2)
    model = qfmt.convert(saved(traced, tmp_path / "m.pt"))
    (found,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    expected = traced(x).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 8, 6), (2, 4, 8, 6), (2, 3, 4, 8, 6)])
def test_pixels_become_channels(shape: tuple[int, ...], tmp_path: Path) -> None:
    network, x = nn.Sequential(nn.Unflatten(0, shape), nn.PixelUnshuffle(2)), torch.arange(0.0, prod(shape))
    model = qfmt.convert(saved(network.eval(), tmp_path / "m.pt"), input_shapes={"input": x.shape})
    (found,) = model.run({"input": x.numpy()}).values()
    assert np.array_equal(found, network(x).numpy())


def test_a_graph_that_torch_traces_with_constants_is_refused(tmp_path: Path) -> None:
    graph = GraphLike("def forward(self, x, y):\n    return x + y\n")
    graph.body["_tracer_extras"] = {"concrete_args": {"y": torch.ones(1)}}
    assert "has constants in place of arguments" in qfmt.convert(saved(graph, tmp_path / "m.pt")).no_graph


def test_the_code_of_a_graph_is_not_a_buffer(tmp_path: Path) -> None:
    """torch reads it from the attributes of the module itself."""
    graph = GraphLike("def forward(self, x):\n    return torch.relu(x)\n", "import torch\n")
    graph.body["_buffers"] = {"_code": "def forward(self, x):\n    return torch.neg(x)\n"}  # type: ignore[assignment]
    graph.body["code"] = graph.body.pop("_code")
    (node,) = qfmt.convert(saved(graph, tmp_path / "m.pt")).nodes
    assert node.operator == "Relu"


def test_modules_with_two_states_are_refused(tmp_path: Path) -> None:
    twice = changed(nn.Sequential(nn.ReLU()), **{"0": nn.Sigmoid()})
    with pytest.raises(SourceError, match="two attributes of one name"):
        qfmt.convert(saved(twice, tmp_path / "twice.pt"))
    relu = nn.Sequential(Pickled(nn.ReLU, (True,), vars(nn.ReLU())))
    with pytest.raises(SourceError, match="a state that modules do not have"):
        qfmt.convert(saved(relu, tmp_path / "relu.pt"))
    function, given = GraphLike("def forward(self, x):\n    return x\n", "import torch\n").__reduce__()
    with pytest.raises(SourceError, match="a state that modules do not have"):
        qfmt.convert(saved(Pickled(function, given, {"weight": torch.zeros(2)}), tmp_path / "graph.pt"))


def test_an_upsample_of_an_older_version_computes_its_factors_again(tmp_path: Path) -> None:
    """torch.nn.Upsample.__setstate__"""
    network = nn.Sequential(nn.Upsample(scale_factor=1.7))
    del network[0].recompute_scale_factor
    path = saved(network, tmp_path / "m.pt")
    assert torch.load(path, weights_only=False)[0].recompute_scale_factor is True
    with pytest.raises(SourceError, match="interpolates with the mode 'nearest'"):
        qfmt.convert(path)


def test_attributes_that_are_no_numbers_or_words(tmp_path: Path) -> None:
    """No message writes a dict out: dicts may share dicts. A text is no size, although a shape may have names."""
    network = nn.Sequential(nn.Upsample(scale_factor=2.0))
    network[0].mode = {0: ()}  # type: ignore[assignment]
    with pytest.raises(SourceError, match="interpolates with the mode 'dict'"):
        qfmt.convert(saved(network, tmp_path / "m.pt"))
    for size in (("H", "W"), ({0: ()}, 2)):
        network = nn.Sequential(nn.AdaptiveAvgPool2d(size))  # type: ignore[arg-type]
        with pytest.raises(SourceError, match="aten::adaptive_avg_pool2d has a number argument that is known only at"):
            qfmt.convert(saved(network, tmp_path / "m.pt"))


class GraphLike:
    """Pickled as torch.fx pickles a GraphModule."""

    def __init__(self, code: str, imports: str = "import torch\n", **modules: GraphLike) -> None:
        self.body = {"_code": code, "_parameters": {"weight": torch.ones(2)}, "_buffers": {}, "_modules": modules}
        self.imports = imports

    def __reduce__(self) -> tuple[Any, ...]:
        from torch.fx.graph_module import reduce_graph_module

        return reduce_graph_module, (self.body, self.imports)


def fx_file(path: Path, code: str, imports: str = "import torch\n") -> Path:
    return saved(GraphLike(code, imports), path)


def test_fx_code_is_interpreted(tmp_path: Path) -> None:
    code = """def forward(self, x : torch.Tensor, y = None):
    a = x.view(2, -1);  b = None
    c, d = torch.chunk(a, 2, dim = 1)
    e = (c + d * 2 - 1) / 2 ** 1
    f = torch.cat((e, -d), dim = 1)[(slice(None, None, None), slice(1, None, 2))]
    g = operator_getitem([f, 3], 0)[:, None, 2 ** 2 - 4]
    return {'out': g, 'list': (self.weight, [e])}
"""
    path = fx_file(tmp_path / "m.pt", code, "import torch\nfrom _operator import getitem as operator_getitem\n")
    model = qfmt.convert(path, input_shapes={"x": (8,)})
    assert not model.no_graph, model.no_graph
    x = np.arange(8, dtype=np.float32)
    a = x.reshape(2, -1)
    c, d = a[:, :2], a[:, 2:]
    e = (c + d * 2 - 1) / 2
    g = np.concatenate([e, -d], 1)[:, 1::2][:, None, 0]
    results = model.run({"x": x})
    for mine, theirs in zip(
        (results[name] for name in model.graph.outputs), (g, np.ones(2, np.float32), e), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_imported_names_are_charged(tmp_path: Path) -> None:
    """Each has the name of its module."""
    code, names = "def forward(self, x):\n    return torch.relu(x)\n", ", ".join(f"a{index}" for index in range(90))
    path = fx_file(tmp_path / "m.pt", code, f"import torch\nfrom {'m' * 1_000_000} import {names}\n")
    with pytest.raises(BudgetError, match="would take more than"):
        qfmt.convert(path)


def calling(child: GraphLike, name: str = "child", times: int = 1) -> GraphLike:
    """A module that calls another one."""
    calls = f"    x = self.{name}(x)\n" * times
    return GraphLike(f"def forward(self, x):\n{calls}    return torch.relu(x)\n", **{name: child})


def forward(*statements: str, more: str = "") -> GraphLike:
    return GraphLike("\n    ".join([f"def forward(self, x{more}):", *statements, "return x"]))


LONG = "a" * 1_000_000

COSTLY = {
    "parameters": calling(forward(more="".join(f", a{index}" for index in range(5000))), times=1500),
    "indices": forward("s = slice(None, None, None)", f"t = ({'s,' * 5000})", *["x[t]"] * 1500),
    "inputs that are lifted again": forward(
        *(f"y = torch.transpose(a{index}, 0, 1)" for index in range(31)),
        more="".join(f", a{index}" for index in range(5000)),
    ),
    "names that are looked up": forward(f's = "{LONG}"', f"self.{LONG}", *["getattr(self, s)"] * 8000),
    "names of constants": calling(forward(f"x = torch.cat([{'1.0,' * 300}x])"), LONG),
    "places of unsupported calls": calling(forward(*["torch.unknown(x)"] * 3000), LONG),
}
COSTLY["names that are looked up"].body[LONG] = 1


@pytest.mark.parametrize("name", COSTLY)
def test_code_that_costs_more_than_its_length(tmp_path: Path, name: str) -> None:
    with pytest.raises(BudgetError, match=r"would take more than|a module has a path of 1,000,000 characters"):
        qfmt.convert(saved(COSTLY[name], tmp_path / "m.pt"))


def test_code_of_a_module_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    monkeypatch.setattr(walker, "syntax_tree", lambda text: parsed.append(text) or syntax_tree(text))
    model = qfmt.convert(saved(calling(forward("x = torch.relu(x)"), times=20), tmp_path / "m.pt"))
    assert len(model.nodes) == 21 and len(parsed) == 4  # `forward` and the imports of two modules


@pytest.mark.parametrize(
    ("call", "operators"),
    [
        ("feature_alpha_dropout(x, 0.5, False, True)", []),
        ("alpha_dropout(x, inplace = True)", []),
        ("dropout3d(x, 0.5, False, True)", []),
        ("elu(x, 2.0, True)", ["Elu"]),
        ("leaky_relu(input = x, inplace = True)", ["LeakyRelu"]),
        ("gelu(x, approximate = 'tanh')", ["Gelu"]),
        ("mish(x, True)", ["Mish"]),
        ("linear(x, self.weight.view(1, 2))", ["qfmt.Linear"]),
    ],
)
def test_functions_of_fx_accept_inplace_as_in_torch(call: str, operators: list[str], tmp_path: Path) -> None:
    code = f"def forward(self, x):\n    y = torch.nn.functional.{call}\n    return (y + 1,)\n"
    model = qfmt.convert(fx_file(tmp_path / "m.pt", code), input_shapes={"x": (1, 2)})
    assert [node.operator for node in model.nodes] == [*operators, "Add"]


class Options(nn.Module):
    """Modules and functions that change their input, and an average with its own divisor."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.leaky, self.threshold = nn.ReLU(True), nn.LeakyReLU(0.5, True), nn.Threshold(0.25, 2.0, True)
        self.mean = nn.AvgPool2d(2, divisor_override=4)

    def forward(self, x):  # type: ignore[no-untyped-def]  # FX writes annotations into the file
        a, b, c, d, e = (x * factor for factor in range(1, 6))
        results = self.relu(a), self.leaky(b), self.threshold(c), nn.functional.hardtanh(d, -1.0, 1.0, True)
        e = nn.functional.dropout(e, 0.5, False, True)
        return *results, a, b, c, d, self.mean(x), e


def test_modules_and_functions_that_change_their_input(tmp_path: Path) -> None:
    x, network = torch.linspace(-2, 2, 32).reshape(1, 2, 4, 4), torch.fx.symbolic_trace(Options().eval())
    results = qfmt.convert(saved(network, tmp_path / "m.pt"), input_shapes={"x": x.shape}).run({"x": x.numpy()})
    for mine, theirs in zip(results.values(), network(x), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


def test_operators_of_python_in_place(tmp_path: Path) -> None:
    """torch traces the code again when it loads it, and its proxies add anew."""
    code = "def forward(self, x):\n    y = x * 2\n    z = _operator.iadd(y, 1)\n    return (y, z)\n"
    path = fx_file(tmp_path / "m.pt", code, "import torch\nimport _operator\n")
    results = qfmt.convert(path, input_shapes={"x": (1, 2)}).run({"x": np.float32([[1, 2]])})
    expected = torch.load(path, weights_only=False)(torch.tensor([[1.0, 2.0]]))
    assert [array.tolist() for array in results.values()] == [each.tolist() for each in expected]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.AvgPool2d(2, divisor_override=3), "aten::avg_pool2d"),
        (
            nn.AdaptiveMaxPool2d(3),
            r"aten::adaptive_max_pool2d .* lists what is supported; with other arguments: aten::adaptive_max_pool2d$",
        ),
        (nn.Embedding(4, 2, max_norm=1.0), "changes rows of its table while it runs"),
    ],
)
def test_options_of_modules_that_are_not_supported(module: nn.Module, message: str, tmp_path: Path) -> None:
    network = torch.fx.symbolic_trace(nn.Sequential(module).eval())
    with pytest.raises(QfmtError, match=message):
        qfmt.convert(saved(network, tmp_path / "m.pt"), input_shapes={"input": (1, 2, 4, 4)})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("linear(x, self.weight, None, True)", "linear is called with arguments that are not supported"),
        ("elu(x, 2.0, True, 3)", "elu is called with arguments that are not supported"),
        ("feature_alpha_dropout(x, 0.5, True)", "is in training mode"),
        ("gelu(x, 'tanh')", "gelu is called with arguments that are not supported"),
        ("gelu(x, approximate = True)", "gets a bool where another type is required"),
    ],
)
def test_functions_of_fx_with_other_arguments_are_refused_where_they_are(
    call: str, message: str, tmp_path: Path
) -> None:
    code = f"def forward(self, x):\n    y = torch.nn.functional.{call}\n    return (y + 1,)\n"
    with pytest.raises(SourceError, match=message) as raised:
        qfmt.convert(fx_file(tmp_path / "m.pt", code), input_shapes={"x": (1, 2)})
    assert raised.value.where.endswith("forward:2"), raised.value.where


def positional(network: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph, with arguments by position where torch.fx writes them by keyword."""
    for node in network.graph.nodes:
        if node.op == "call_function" and node.kwargs and inspect.isfunction(node.target):
            node.args, node.kwargs = inspect.signature(node.target).bind(*node.args, **node.kwargs).args, {}
    network.recompile()
    return network


class Called(nn.Module):
    def __init__(self, function: Any, module: nn.Module) -> None:
        super().__init__()
        self.function, self.module = function, module
        self.register_buffer("rows", torch.tensor([1, 0]))

    def forward(self, x):  # without types, which torch.fx cannot pickle as strings
        return self.function(self, x)


CALLS: dict[str, tuple[nn.Module, Any]] = {
    "instance_norm": (
        nn.BatchNorm2d(4),
        lambda s, x: F.instance_norm(x, s.module.running_mean, s.module.running_var, s.module.weight, s.module.bias),
    ),
    "instance_norm of statistics": (
        nn.BatchNorm2d(4),
        lambda s, x: F.instance_norm(
            x, s.module.running_mean, s.module.running_var, s.module.weight, s.module.bias, False
        ),
    ),
    "embedding": (nn.Linear(3, 2), lambda s, x: F.embedding(s.rows, s.module.weight) + x[0, 0, 0, 0]),
    "where": (nn.Identity(), lambda s, x: x.where(x > 0, -1.0)),
    "pooled with indices": (nn.MaxPool2d(2, return_indices=True), lambda s, x: s.module(x)[0]),
    "pooled to 1 with indices": (nn.AdaptiveMaxPool2d(1, return_indices=True), lambda s, x: s.module(x)[0]),
    "function with indices": (nn.Identity(), lambda s, x: F.max_pool2d(x, 2, return_indices=True)[0]),
    "instance norm without a batch": (nn.InstanceNorm2d(4, affine=True), lambda s, x: s.module(x[1])),
    "flip": (nn.Identity(), lambda s, x: x.flip(1) + x.flip(2, 3) + torch.flip(x, dims=(0,))),
    "roll": (nn.Identity(), lambda s, x: x.roll(2, 3) + x.roll((1, 2), (0, 1))),
    "std": (nn.Identity(), lambda s, x: x.std(1) + x.std(dim=2).mean() + x.std() + x.std(0, False).mean()),
    "var": (nn.Identity(), lambda s, x: torch.var_mean(x, 1)[0] + x.var(1, correction=0) + torch.var(x, True)),
    "largest": (
        nn.Identity(),
        lambda s, x: torch.max(x, 1)[0] + x.max(dim=1).values * torch.min(x, 1, keepdim=True)[1][:, 0] - x.min(),
    ),
    "norm": (
        nn.Identity(),
        lambda s, x: torch.norm(x, dim=1) + x.norm(1, 1) * x.norm() + torch.linalg.vector_norm(x, dim=(0, 1)),
    ),
    "normalize": (nn.Identity(), lambda s, x: F.normalize(x) + F.normalize(x, 1, dim=2)),
    "einsum": (nn.Identity(), lambda s, x: torch.einsum("bchw,bcuw->bhu", x, x) + torch.einsum("bchw->bhw", [x])),
    "training without dropout": (nn.Dropout(0.0).train(), lambda s, x: s.module(x)),
    "training instance norm": (nn.InstanceNorm2d(4, track_running_stats=True).train(), lambda s, x: s.module(x)),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_fx_are_those_of_torch(name: str, tmp_path: Path) -> None:
    module, function = CALLS[name]
    for number, tensor in enumerate([*module.parameters(), *module.buffers()]):
        tensor.data = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(number)).to(tensor.dtype)
    network = torch.fx.symbolic_trace(Called(function, module))
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(9))
    for path in (saved(network, tmp_path / "k.pt"), saved(positional(network), tmp_path / "p.pt")):
        model = qfmt.convert(path, input_shapes={"x": x.shape})
        (result,) = model.run({"x": x.numpy()}).values()
        np.testing.assert_allclose(result, network(x).detach().numpy(), rtol=1e-5, atol=1e-5)
        assert qfmt.verify(path, model).ok


def doubled(module: nn.Module, given: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def change_of_shape(s: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y[:]
    y.transpose_(2, 3)
    return z * y


REFUSED = {
    "hooks": (torch.nn.utils.spectral_norm(nn.Linear(6, 6)), lambda s, x: s.module(x), "runs hooks"),
    "batch norm": (nn.BatchNorm2d(4).train(), lambda s, x: s.module(x), "statistics of the batch"),
    "instance norm whose statistics are read": (
        nn.InstanceNorm2d(4, track_running_stats=True).train(),
        lambda s, x: s.module(x) + s.module.running_mean[:, None, None],
        "changes the tensor .* from one run to the next",
    ),
    "change of shape after a slice": (nn.Identity(), change_of_shape, "changes the shape of a tensor that has other"),
    "dropout": (nn.Dropout().train(), lambda s, x: s.module(x), "is in training mode"),
    "bytes": (nn.Identity(), lambda s, x: x.view(torch.int32), "the bytes of a tensor"),
    "complex": (nn.Identity(), lambda s, x: x.to(torch.complex64), "torch.complex64, which is not supported"),
    "float8": (nn.Identity(), lambda s, x: x.to(torch.float8_e4m3fnuz), "torch.float8_e4m3fnuz, which is not"),
    "bags": (nn.Linear(3, 2), lambda s, x: F.embedding_bag(s.rows[None], s.module.weight) + x, "embedding_bag"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_calls_of_fx_that_would_give_other_numbers_are_refused(name: str, tmp_path: Path) -> None:
    module, function, message = REFUSED[name]
    network = torch.fx.symbolic_trace(Called(function, module))
    with pytest.raises(QfmtError, match=message):
        qfmt.convert(saved(network, tmp_path / "m.pt"), input_shapes={"x": (2, 4, 6, 6)})


def test_hooks_of_the_root_are_refused(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(2, 2)).eval()
    network.register_forward_hook(doubled)
    assert "runs hooks" in qfmt.convert(saved(network, tmp_path / "m.pt")).source["no_graph"]


class Scaled(nn.Module):
    def forward(self, x, factor=2.0):
        return x * factor


@pytest.mark.parametrize("given", [(), (3.0,)])
def test_graphs_within_graphs_get_their_arguments(given: tuple[float, ...], tmp_path: Path) -> None:
    root = nn.Module()
    root.inner = torch.fx.symbolic_trace(Scaled())
    graph = torch.fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"), *given)))
    network = torch.fx.GraphModule(root, graph)
    x = torch.ones(1, 2)
    (result,) = (
        qfmt.convert(saved(network, tmp_path / "m.pt"), input_shapes={"x": (1, 2)}).run({"x": x.numpy()}).values()
    )
    np.testing.assert_array_equal(result, network(x).numpy())


def test_other_functions_have_the_parameters_of_the_operator_of_their_name() -> None:
    others = {
        name: [*inspect.signature(function).parameters]
        for name, function in vars(F).items()
        if inspect.isfunction(function) and name not in FUNCTIONS and is_known(f"aten::{name}")
    }
    assert others
    for name, parameters in others.items():
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        known = [[argument.name for argument in schema.arguments] for schema in schemas]
        assert any(each[1 : len(parameters)] == parameters[1:] for each in known), name


def test_only_where_has_its_tensor_in_another_place_as_a_method() -> None:
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        names, (space, _, name) = [argument.name for argument in schema.arguments], schema.name.partition("::")
        if space == "aten" and "self" in names[1:] and hasattr(torch.Tensor, name) and is_known(schema.name):
            tensors = str(schema.arguments[names.index("self")].type) == "Tensor"
            found |= {name} if tensors else set()
    assert found == {"where"}
