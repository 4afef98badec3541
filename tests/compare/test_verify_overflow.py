"""`qfmt verify` where the engine's own kernels overflow: it explains this in one line, and still finds faults.

Each test runs as on this processor, and as on one without VNNI. torch reads the environment variables only once, so
each run is a new process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.ao import quantization as tq

import qfmt
from networks import pytorch
from qfmt.cli import main
from qfmt.compare import Report
from qfmt.compare.random_inputs import draw
from qfmt.frontends.isolation import parent
from qfmt.model import Model, Tensor
from qfmt.passes.lowering import lower_integer
from support.counts import tell
from support.paths import ROOT

DIGITS = Path("examples", "digits", "digits_int8.pt")

WITHOUT_VNNI = {"FBGEMM_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}

PROBE = """
import torch
torch.backends.quantized.engine = "fbgemm"
x = torch._make_per_tensor_quantized_tensor(torch.full((1, 64, 1, 1), 255, dtype=torch.uint8), 1.0, 0)
w = torch._make_per_tensor_quantized_tensor(torch.full((1, 64, 1, 1), 127, dtype=torch.int8), 1.0, 0)
packed = torch.ops.quantized.conv2d_prepack(w, None, [1, 1], [0, 0], [1, 1], 1)
print(int(torch.ops.quantized.conv2d(x, packed, 64 * 255.0, 0).int_repr()))
"""
"""127 if the convolution is exact."""


@pytest.fixture(scope="module", params=[{}, WITHOUT_VNNI], ids=["this processor", "without VNNI"])
def variables(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Environment variables of the process in which torch runs for `verify`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parent, "_WORKERS", {})
        for name, value in request.param.items():
            patch.setenv(name, value)
        yield request.param
        parent._stop_all()


@cache
def is_exact(*variables: tuple[str, str]) -> bool:
    environment = {**os.environ, **dict(variables)}
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip() == "127"


def total(report: Report, name: str) -> int:
    return sum(getattr(node, name) for node in report.nodes)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions, calibrated on inputs that are too small: many activations are clamped at 255."""
    torch.manual_seed(0)
    net = nn.Sequential(tq.QuantStub(), nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 1), tq.DeQuantStub()).eval()
    net.qconfig = tq.QConfig(tq.MinMaxObserver.with_args(dtype=torch.quint8), tq.default_weight_observer)
    x = torch.rand(2, 3, 16, 16)
    with pytorch.quiet():
        prepared = tq.prepare(tq.fuse_modules(net, [["1", "2"]]))
        prepared(x / 4)
        prepared[0].activation_post_process(x)
        return pytorch.save_as(tq.convert(prepared), (x,), "trace", tmp_path_factory.mktemp("clamped") / "net.pt")


def test_overflows_are_explained_in_one_line(variables: dict[str, str], source: Path) -> None:
    exact = is_exact(*variables.items())
    done = CliRunner().invoke(main, ["verify", str(source), str(source)], catch_exceptions=False)
    lines = done.stdout.splitlines()
    (titles,) = (line.split() for line in lines if line.endswith("largest") and "node" in line)
    (counts,) = (line.split()[1:] for line in lines if line.split()[:1] == ["all"])
    found = dict(zip(titles[3:], (int(each.replace(",", "")) for each in counts), strict=True))
    tell(f"clamped activations, convolutions {'exact' if exact else 'saturate'}: {found}")
    assert done.exit_code == 0
    assert found["wrong"] == 0 and "overflow" not in found and ("saturated" not in found) == exact
    told = [line for line in lines if "clip sums of two products to 16 bits" in line]
    assert len(told) == (not exact)
    if told:
        why = "outputs differ because of this, all recomputed; `--engine qnnpack` avoids it"
        assert f"{found['saturated']:,} {why}" in told[0]
        assert lines[-1].startswith("nothing wrong; ")
        assert lines[-1].endswith(f"{found['saturated']:,} where the engine overflows")


@pytest.mark.usefixtures("variables")
def test_the_engine_that_it_names_does_not_overflow(source: Path) -> None:
    report = qfmt.verify(source, qfmt.convert(source), engine="qnnpack")
    assert report.ok and report.engine == "qnnpack"
    assert (total(report, "saturated"), total(report, "overflow"), total(report, "wrong")) == (0, 0, 0)


def changed(model: Model, name: str) -> Model:
    array = model.tensors[name].array.copy()
    array.flat[array.size // 2] += 1 if array.flat[array.size // 2] < 127 else -1
    tensors = {**model.tensors, name: replace(model.tensors[name], data=Tensor.constant(name, array).data)}
    return model.replace(graph=replace(model.graph, tensors=tensors))


@pytest.mark.usefixtures("variables")
def test_a_changed_weight_is_found(source: Path) -> None:
    """The change is found in the constants, and in the outputs of the layer, some of which overflow."""
    report = qfmt.verify(source, changed(qfmt.convert(source), "3.weight"))
    assert not report.ok and report.first_wrong == "3 (Conv)"
    assert [weight.name for weight in report.weights if weight.different] == ["3.weight"]
    assert [node.name for node in report.nodes if node.wrong] == ["3"]


@pytest.mark.usefixtures("variables")
def test_a_changed_weight_of_an_integer_only_file_is_found(source: Path) -> None:
    """Only the outputs show the change."""
    whole = lower_integer(qfmt.convert(source), exact=True)
    assert qfmt.verify(source, whole).ok
    report = qfmt.verify(source, changed(whole, "3.weight"))
    assert not report.ok and report.first_wrong == "3.sums (Conv)"


def test_pseudo_random_inputs_are_not_clamped(source: Path) -> None:
    """All values are inside the range of the input's quantizer."""
    model = qfmt.convert(source)
    (grid,) = (model.tensors[node.outputs[0]].quantization for node in model.nodes if node.operator == "QuantizeLinear")
    assert grid is not None
    low, high = ((end - grid.zero_point[0]) * grid.scale[0] for end in (grid.quant_min, grid.quant_max))
    for engine in ("fbgemm", "qnnpack", "onnxruntime"):
        for sample in draw(model, {"input": (4, 3, 64, 64)}, 2, engine):
            assert low - 1e-6 <= sample["input"].min() < sample["input"].max() <= high + 1e-6


def test_the_page_matches_verify_without_vnni(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests docs/other-machines.md; test_docs.py executes its other examples on every processor."""
    if not variables or is_exact(*variables.items()):
        pytest.skip("is for a processor whose kernels overflow")
    monkeypatch.chdir(ROOT)
    qfmt.save(qfmt.convert(DIGITS), tmp_path / "digits.qfb")
    np.save(tmp_path / "bright.npy", 2 * np.load("examples/digits/heldback.npz")["x"])
    arguments = [str(DIGITS), str(tmp_path / "digits.qfb"), "--input", str(tmp_path / "bright.npy")]
    done = CliRunner().invoke(main, ["verify", *arguments], catch_exceptions=False)
    page = (ROOT / "docs" / "other-machines.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"^```text\n\$ qfmt verify [^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert (done.exit_code, done.stdout) == (0, said)
