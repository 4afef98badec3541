"""Published files, and files of old PyTorch versions (../shared/data; skipped if absent)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qfmt
from qfmt.model import Model
from support import processor, torch_witness

IOS = "torchscript/ios_mobilenet_quantized.pt"


@pytest.fixture(autouse=True, scope="module")
def engine() -> Iterator[None]:
    """Set fbgemm before a file is loaded: loading packs the weights for the current engine."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    yield
    torch.backends.quantized.engine = before


@pytest.fixture(scope="module")
def mobilenet(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model, torch.nn.Module]:
    """The MobileNetV2 of PyTorch's iOS demo of 2019: the archive, converted, and in torch."""
    archive = shared_data / IOS
    stored = tmp_path_factory.mktemp("ios") / "m.qfb"
    qfmt.save(qfmt.convert(archive), stored)
    return stored, qfmt.load(stored), torch.jit.load(archive)


def images() -> dict[str, torch.Tensor]:
    """Images of noise, and others: flat, extreme, smooth, with edges."""
    generator = torch.Generator().manual_seed(7)
    ramp = torch.linspace(-2.1, 2.6, 224)
    checks = ((torch.arange(224)[:, None] // 16 + torch.arange(224) // 16) % 2).float() * 4 - 2
    return {
        "noise": torch.randn(1, 3, 224, 224, generator=generator),
        "zeros": torch.zeros(1, 3, 224, 224),
        "bright": torch.full((1, 3, 224, 224), 2.6),
        "ramp": (ramp[:, None] + ramp.flip(0) / 2).expand(1, 3, 224, 224).contiguous(),
        "checks": checks.expand(1, 3, 224, 224).contiguous(),
    }


def test_published_mobilenet_has_no_violations(mobilenet: tuple[Path, Model, torch.nn.Module]) -> None:
    stored, model, _ = mobilenet
    assert qfmt.check(stored) == []
    operators = [node.source_operator for node in model.nodes]
    expected = {"quantized::conv2d_relu": 35, "quantized::conv2d": 17, "quantized::add": 10, "quantized::linear": 1}
    assert {name: operators.count(name) for name in expected} == expected


SHORT = ("noise", "ramp")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in SHORT else pytest.mark.slow) for kind in images()]
)
def test_published_mobilenet_computes_what_torch_computes(
    kind: str, mobilenet: tuple[Path, Model, torch.nn.Module]
) -> None:
    """Compares outputs of the whole network; node by node for one image, and for images whose outputs differ."""
    _, model, theirs = mobilenet
    image = images()[kind]
    (expected,), seen = torch_witness.observe(theirs, (image,))
    (got,) = processor.run(model, {model.graph.inputs[0]: image.numpy()}).values()
    equal = int((got == expected).sum())
    print(f"{kind}: {equal} of {expected.size} outputs equal")
    assert got.shape == expected.shape
    if kind == "noise" or equal < expected.size:
        tally = torch_witness.compare(model, {model.graph.inputs[0]: image.numpy()}, seen, torch_witness.Tally())
        print(tally)
        assert tally.is_good, str(tally)
        assert equal == expected.size or not tally.is_exact


def test_published_mobilenet_has_the_weights_that_torch_unpacks(mobilenet: tuple[Path, Model, torch.nn.Module]) -> None:
    _, model, theirs = mobilenet
    found = 0
    for path, packed in _packed_parameters(theirs):
        weight = model.graph.find(path)
        assert weight is not None, path
        unpacked, bias = packed.unpack()
        assert weight.array.tobytes() == unpacked.int_repr().contiguous().numpy().tobytes(), path
        node = next(node for node in model.nodes if weight.name in node.inputs)
        assert model.tensors[node.inputs[2]].array.tobytes() == bias.detach().numpy().tobytes(), path
        found += 1
    assert found == 53


def _packed_parameters(module: torch.jit.ScriptModule) -> Iterator[tuple[str, Any]]:
    """(path, packed object) of every packed parameter that a loaded module reads."""
    graph = module.inlined_graph
    for node in graph.findAllNodes("prim::GetAttr"):
        if "classes.quantized" in str(node.output().type()):
            path = [node.s("name")]
            while (node := node.input().node()).kind() == "prim::GetAttr":
                path.insert(0, node.s("name"))
            packed: Any = module._c
            for name in path:
                packed = packed.getattr(name)
            yield ".".join(path), packed


@pytest.mark.parametrize("kind", ["scripted", "traced"])
@pytest.mark.parametrize("name", ["conv2d", "conv3d_relu", "linear"])
def test_compatibility_fixtures_with_a_quantized_input(shared_data: Path, name: str, kind: str) -> None:
    archive, given, expected = _fixture(shared_data, name, kind)
    entry = torch.jit.load(archive).forward.schema.arguments[1].name
    model = qfmt.convert(archive, input_quantization={entry: (given.q_scale(), given.q_zero_point(), "uint8")})
    (result,) = model.run({entry: given.int_repr().numpy()}).values()
    quantization = model.tensors[model.graph.outputs[0]].quantization
    assert quantization is not None
    assert (quantization.scale[0], quantization.zero_point[0]) == (expected.q_scale(), expected.q_zero_point())
    assert_all_equal(f"{name} {kind}", result, expected.int_repr().numpy())


@pytest.mark.parametrize("kind", ["scripted", "traced"])
@pytest.mark.parametrize("name", ["conv2d_graph", "conv2d_graph_v2", "conv2d_graph_v3"])
def test_compatibility_fixtures_of_every_packed_state(shared_data: Path, name: str, kind: str) -> None:
    archive, given, expected = _fixture(shared_data, name, kind)
    model = qfmt.convert(archive)
    (result,) = model.run({model.graph.inputs[0]: given.numpy()}).values()
    assert_all_equal(f"{name} {kind}", result, expected.numpy())


def _fixture(shared_data: Path, name: str, kind: str) -> tuple[Path, torch.Tensor, torch.Tensor]:
    folder = shared_data / "torchscript_bc"
    tensors = [
        torch.load(folder / f"TestSerialization.test_{name}.{part}.pt", weights_only=True)
        for part in ("input", "expected")
    ]
    return folder / f"TestSerialization.test_{name}.{kind}.pt", tensors[0], tensors[1]


def assert_all_equal(what: str, result: np.ndarray, expected: np.ndarray) -> None:
    print(f"{what}: {(result == expected).sum()} of {expected.size} outputs equal")
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("kind", ["trace", "script"])
@pytest.mark.parametrize("name", ["mbv2_eager", "rn_fx", "zoo_eager"])
def test_networks_of_torch_1_13_compute_their_stored_outputs(shared_data: Path, name: str, kind: str) -> None:
    """Also zoo_eager.script, which torch itself cannot run (its batch norm's scale has a dimension)."""
    folder = shared_data / "torch_legacy" / "t1131"
    inputs, expected = torch.load(folder / f"{name}.io.pt", weights_only=True)
    model = qfmt.convert(folder / f"{name}.{kind}.pt")
    named = dict(zip(model.graph.inputs, (tensor.numpy() for tensor in inputs), strict=True))
    (result,) = model.run(named).values()
    assert_all_equal(f"{name} {kind}", result, expected.numpy())


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # any import of it raises
import numpy as np
import qfmt

source, stored, answers = sys.argv[1:]
qfmt.save(qfmt.convert(source), stored)
model = qfmt.load(stored)
known = np.load(answers)
(result,) = model.run({model.graph.inputs[0]: known["image"]}).values()
assert (result == known["result"]).all()
assert not [name for name, module in sys.modules.items() if name.startswith("torch") and module is not None]
print("equal:", result.size)
"""


def test_published_mobilenet_needs_no_torch(
    shared_data: Path, mobilenet: tuple[Path, Model, torch.nn.Module], tmp_path: Path
) -> None:
    image = images()["noise"].numpy()
    (result,) = mobilenet[1].run({mobilenet[1].graph.inputs[0]: image}).values()
    np.savez(tmp_path / "answers.npz", image=image, result=result)
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, shared_data / IOS, tmp_path / "m.qfb", tmp_path / "answers.npz"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == f"equal: {result.size}"
    assert (tmp_path / "m.qfb").read_bytes() == mobilenet[0].read_bytes(), "two conversions, two files"
