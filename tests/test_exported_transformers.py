"""Networks of transformers, built from their configurations, quantized by PT2E: run, verified, back in torch, in ONNX.

    python -m pytest -m slow -s tests/test_exported_transformers.py

prints one line for each. They need transformers, which the `test` extra does not bring (CONTRIBUTING.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from exported_networks import pt2e, x86  # noqa: E402
from networks import quiet  # noqa: E402

import qfmt  # noqa: E402

transformers: Any = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.slow

IMAGE, SMALL, WORDS = (2, 3, 64, 64), (2, 3, 32, 32), (2, 12)
TINY = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}

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


@cache
@quiet()
def program(name: str) -> Any:
    torch.manual_seed(0)
    model = Logits(getattr(transformers, name)(NETWORKS[name][0]())).train()
    with torch.no_grad():
        for seed in range(3):
            model(example(name, seed))
    config_ = x86.get_default_x86_inductor_quantization_config()
    exported = torch.export.export(model.eval(), (example(name, 3),))
    prepared = pt2e.prepare_pt2e(exported.module(), x86.X86InductorQuantizer().set_global(config_))
    for seed in range(4, 7):
        prepared(example(name, seed))
    return torch.export.export(pt2e.convert_pt2e(prepared), (example(name, 3),))


@pytest.mark.parametrize("form", ["training", "core"])
@pytest.mark.parametrize("name", NETWORKS)
@quiet()
def test_transformer(name: str, form: str, tmp_path: Path) -> None:
    source = program(name) if form == "training" else program(name).run_decompositions()
    path = tmp_path / "m.pt2"
    torch.export.save(source, path)
    model = qfmt.convert(path)
    qfmt.save(model, tmp_path / "m.qfb")
    weights = sum(tensor.data.nbytes for tensor in model.graph.constants() if tensor.data is not None)
    report = qfmt.verify(path, tmp_path / "m.qfb", samples=2)
    counts = {what: sum(getattr(node, what) for node in report.nodes) for what in ("outputs", "tie", "wrong")}
    x = example(name, 8)
    with torch.no_grad():
        theirs, back = source.module()(x), model.to_torch("qdq")(x)
        integers = model.to_torch("onednn")(x)
    (mine,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    (onnx,) = in_onnx(model, x.numpy())
    columns = {"run": mine, "qdq": back, "onednn": integers, "onnx": onnx}
    columns = {column: apart(result, theirs) for column, result in columns.items()}
    size = (tmp_path / "m.qfb").stat().st_size
    print(f"{name} {form}: {counts} {columns} .pt2 {path.stat().st_size} .qfb {size}, of that arrays {weights}")
    assert report.ok and torch.equal(back, theirs)
    assert counts["tie"] <= 1e-5 * counts["outputs"]


def apart(mine: Any, theirs: Any) -> str:
    a, b = np.asarray(mine), theirs.numpy()
    agree = np.mean(a.argmax(-1) == b.argmax(-1))
    return f"{np.abs(a - b).max() / np.abs(b).max():.1g} ({agree:.0%})"


def in_onnx(model: Any, x: np.ndarray) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.to_onnx().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})
