"""Networks of transformers, built from their configurations, quantized by torchao: verified, run, in torch, in ONNX.

    python -m pytest -m slow tests/frontends/torch/test_exported_transformers.py

prints the table of networks and sources at its end. A cell has the difference of the logits from those of the source
in torch, relative to the largest, and how many argmaxes agree. It needs transformers, which the `test` extra does
not include (CONTRIBUTING.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import qfmt  # noqa: E402
from networks.exported import FORMS, pt2e, x86  # noqa: E402
from networks.pytorch import quiet  # noqa: E402
from qfmt.errors import QfmtError  # noqa: E402
from support.counts import tell  # noqa: E402

transformers: Any = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.slow

IMAGE, SMALL, WORDS = (2, 3, 64, 64), (2, 3, 32, 32), (2, 12)
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}

NETWORKS: Mapping[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "MobileNetV1ForImageClassification": (lambda: config("MobileNetV1", depth_multiplier=0.5, image_size=64), IMAGE),
    "MobileNetV2ForImageClassification": (lambda: config("MobileNetV2", depth_multiplier=0.5, image_size=64), IMAGE),
    "ResNetForImageClassification": (
        lambda: config("ResNet", embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[2] * 4, layer_type="basic"),
        IMAGE,
    ),
    "ConvNextForImageClassification": (
        lambda: config("ConvNext", hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], image_size=64),
        IMAGE,
    ),
    "ViTForImageClassification": (lambda: config("ViT", image_size=32, patch_size=8, **TINY), SMALL),
    "SwinForImageClassification": (
        lambda: config(
            "Swin", image_size=32, patch_size=2, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4
        ),
        SMALL,
    ),
    "BertForSequenceClassification": (lambda: config("Bert", vocab_size=99, **TINY), WORDS),
    "LlamaForCausalLM": (lambda: config("Llama", vocab_size=99, num_key_value_heads=2, use_cache=False, **TINY), WORDS),
}  # fmt: skip

TRANSFORMERS = ("ViTForImageClassification", "BertForSequenceClassification", "LlamaForCausalLM")
"""Networks in which each linear layer is quantized separately."""

LINEARS: Mapping[str, Callable[[Any], Any]] = {
    "Int8WeightOnly": lambda api: api.Int8WeightOnlyConfig(),
    "Int8DynamicActivation": lambda api: api.Int8DynamicActivationInt8WeightConfig(),
    "IntxWeightOnly int4": lambda api: api.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=api.PerGroup(32)),
    "Float8WeightOnly": lambda api: api.Float8WeightOnlyConfig(),
}
"""Configurations of torchao's quantize_."""

COLUMNS = ("verify: outputs", "run", "qdq", "onednn", "reference", "onnx", "bytes")
ROW = "{:<11} {:<33} {:<39}" + " {:<13}" * 5 + " {}"


@pytest.fixture(autouse=True, scope="module")
def head() -> None:
    tell(ROW.format("network", "source", *COLUMNS))


def told(name: str, source: str, *cells: str) -> None:
    tell(ROW.format(name.partition("For")[0], source, *cells, *[""] * (len(COLUMNS) - len(cells))).rstrip())


def config(name: str, **settings: Any) -> Any:
    return getattr(transformers, f"{name}Config")(**settings)


class Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        return self.model(x).logits


def example(name: str, seed: int) -> Any:
    generator, shape = torch.Generator().manual_seed(seed), NETWORKS[name][1]
    return (
        torch.randint(0, 99, shape, generator=generator) if shape is WORDS else torch.randn(shape, generator=generator)
    )


def built(name: str) -> Any:
    """The float network, batch statistics settled."""
    torch.manual_seed(0)
    model = Logits(getattr(transformers, name)(NETWORKS[name][0]())).train()
    with torch.no_grad():
        for seed in range(3):
            model(example(name, seed))
    return model.eval()


@cache
@quiet()
def quantized(name: str, dynamic: bool) -> tuple[Any, Any]:
    """The result of convert_pt2e, and its exported program."""
    settings = x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
    exported = torch.export.export(built(name), (example(name, 3),))
    prepared = pt2e.prepare_pt2e(exported.module(), x86.X86InductorQuantizer().set_global(settings))
    for seed in range(4, 7):
        prepared(example(name, seed))
    module = pt2e.convert_pt2e(prepared)
    return module, torch.export.export(module, (example(name, 3),))


PROGRAMS = [(name, form, False) for name in NETWORKS for form in ("training", "core")]
PROGRAMS += [(name, form, True) for name in TRANSFORMERS for form in ("training", "core")]


@pytest.mark.parametrize("name, form, dynamic", PROGRAMS)
@quiet()
def test_programs(name: str, form: str, dynamic: bool, tmp_path: Path) -> None:
    module, program = quantized(name, dynamic)
    source, kind = FORMS[form](program), "PT2E dynamic" if dynamic else "PT2E"
    path = tmp_path / "m.pt2"
    torch.export.save(source, path)
    model = qfmt.convert(path)
    report = qfmt.verify(path, model, samples=2)
    counts = {what: sum(getattr(node, what) for node in report.nodes) for what in ("outputs", "tie", "wrong")}
    verified = "{outputs} ({tie} ties, {wrong} wrong)".format(**counts)
    x = example(name, 8)
    with torch.no_grad():
        theirs = source.module()(x)
    cells, back = compared(model, x, theirs)
    told(name, f"{kind}, .pt2 {form}", verified, *cells, bytes_of(model, path, tmp_path))
    assert torch.equal(back, theirs)
    assert report.ok
    assert counts["tie"] <= 1e-5 * counts["outputs"]
    same = {"ExportedProgram": qfmt.convert(source)}
    if form == "training":
        same["module in memory"] = qfmt.convert(module, example_inputs=(example(name, 3),))
    for which, other in same.items():
        assert other.content_id() == model.content_id()
        told(name, f"{kind}, {which}", f"gives the model of .pt2 {form}, by its content_id")


@pytest.fixture(scope="module")
def api() -> Any:
    with quiet():
        return pytest.importorskip("torchao.quantization", reason="needs torchao")


@pytest.mark.parametrize("kind", LINEARS)
@pytest.mark.parametrize("name", TRANSFORMERS)
@quiet()
def test_linear_layers(name: str, kind: str, api: Any, tmp_path: Path) -> None:
    net, x = built(name), example(name, 8)
    api.quantize_(net, LINEARS[kind](api))
    model = qfmt.convert(net, example_inputs=(example(name, 3),))
    with torch.no_grad():
        theirs = net(x)
    cells, back = compared(model, x, theirs)
    path = tmp_path / "module.pt"
    torch.save(net.state_dict(), path)
    told(name, f"quantize_, {kind}", "in memory: verify takes files", *cells, bytes_of(model, path, tmp_path))
    # attention is one kernel in torch and its formula here; a step of the quantized inputs may follow from that
    assert (back - theirs).abs().max() <= (2e-2 if "Dynamic" in kind else 1e-5) * theirs.abs().max()
    for source in stored(net.state_dict(), tmp_path):
        tensors = qfmt.convert(source)
        weights = {name for name, tensor in model.tensors.items() if tensor.data is not None and tensor.quantization}
        report = qfmt.verify(source, tensors)
        assert report.ok and weights and weights <= set(tensors.tensors)
        for weight in weights:
            assert tensors.tensors[weight].array.tobytes() == model.tensors[weight].array.tobytes()
        for way in (lambda: tensors.run({}), tensors.to_torch, tensors.to_onnx):  # noqa: B023
            with pytest.raises(QfmtError, match="no graph"):
                way()
        told(name, f"  its {source.name}", f"{len(report.weights)} tensors, all equal", *["no graph"] * 5)


def stored(state: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """The tensors of a state_dict in both file formats."""
    torch.save(state, folder / "state_dict.pt")
    yield folder / "state_dict.pt"
    save = pytest.importorskip("safetensors.torch", reason="needs safetensors").save_file
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    tensors, metadata = flatten_tensor_state_dict(state)
    save(tensors, folder / "model.safetensors", metadata)
    yield folder / "model.safetensors"


def compared(model: qfmt.Model, x: Any, theirs: Any) -> tuple[list[str], Any]:
    """A cell for each way to compute the model, and its outputs in torch."""
    (mine,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    with torch.no_grad():
        back, *others = (model.to_torch(engine)(x) for engine in ("qdq", "onednn", "reference"))
    return [apart(each, theirs) for each in (mine, back, *others, in_onnx(model, x.numpy()))], back


def apart(mine: Any, theirs: Any) -> str:
    a, b = np.asarray(mine), theirs.numpy()
    agree = a.argmax(-1) == b.argmax(-1)
    return f"{np.abs(a - b).max() / np.abs(b).max():.1g} ({agree.sum()}/{agree.size})"


def bytes_of(model: qfmt.Model, source: Path, folder: Path) -> str:
    qfmt.save(model, folder / "m.qfb")
    return f"{source.stat().st_size} → {(folder / 'm.qfb').stat().st_size}"


def in_onnx(model: qfmt.Model, x: np.ndarray) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.to_onnx().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]
