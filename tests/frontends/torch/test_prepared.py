"""`prepared` from a file or a state_dict: tensors get the ranges of their observers, as from the module in
memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import qfmt
from networks import pytorch
from networks.prepared import WATCHED, converted, grid, images, prepared, seen_by
from qfmt.cli import main
from qfmt.errors import SourceError
from qfmt.frontends.torch.observations import Seen
from qfmt.model import Quantization


def saved(mode: str, qat: bool, folder: Path) -> tuple[Any, Path, Path]:
    """The prepared module; the converted network as TorchScript, and the state_dict of the prepared one, as files."""
    observed = prepared(mode, qat)
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(converted(observed), images(9)), folder / "m.pt")
    torch.save(observed.state_dict(), folder / "prepared.pt")
    return observed, folder / "m.pt", folder / "prepared.pt"


@pytest.mark.parametrize("qat", [False, True], ids=["static", "qat"])
def test_a_state_dict_of_eager_mode_equals_the_module(qat: bool, tmp_path: Path) -> None:
    observed, source, state = saved("eager", qat, tmp_path)
    model = qfmt.convert(source, prepared=state)
    for module, name in WATCHED.items():
        seen, kept = seen_by(observed.get_submodule(module).activation_post_process), grid(model, name).observed
        assert kept is not None, name
        assert (kept.minimum, kept.maximum) == (seen.minimum, seen.maximum), name
        assert (kept.quant_min, kept.quant_max, kept.qscheme) in (
            (seen.quant_min, seen.quant_max, seen.qscheme),
            (None, None, ""),
        )
        assert (kept.observer == seen.observer) or qat
    assert grid(model, "mean").observed is None, "nobody watched it"
    if not qat:
        for name in ("conv2", "fc"):
            low = observed.get_submodule(name).weight.detach().flatten(1)
            kept = grid(model, f"{name}.weight").observed
            assert kept is not None
            assert kept.minimum == tuple(low.min(dim=1).values.tolist())
    with pytorch.quiet():
        in_memory = qfmt.convert(converted(observed), example_inputs=(images(9),), prepared=observed.state_dict())
    assert {name: tensor.quantization for name, tensor in in_memory.tensors.items()} == {
        name: tensor.quantization for name, tensor in model.tensors.items()
    }


@pytest.mark.parametrize("qat", [False, True], ids=["static", "qat"])
def test_a_state_dict_of_fx_mode_has_no_wrong_ranges(qat: bool, tmp_path: Path) -> None:
    observed, source, state = saved("fx", qat, tmp_path)
    model = qfmt.convert(source, prepared=state)
    watched = {}
    for node in observed.graph.nodes:
        if node.op == "call_module" and node.target.startswith("activation_post_process"):
            watched[node.args[0].name] = seen_by(observed.get_submodule(node.target))
    names = {"x": "quantize_per_tensor", "conv1": "conv1", "conv2": "conv2", "add": "add", "fc": "fc"}
    kept = 0
    for node, name in names.items():
        seen = grid(model, name).observed
        if seen is not None:
            kept += 1
            assert (seen.minimum, seen.maximum) == (watched[node].minimum, watched[node].maximum), name
    print(f"fx, qat {qat}: {kept} of {len(names)} kept")
    assert kept >= 3


def test_the_command_line_accepts_a_file(tmp_path: Path) -> None:
    observed, source, state = saved("eager", False, tmp_path)
    for dest, options in (("m.qfb", []), ("whole.qfb", ["--prepared", str(state)])):
        done = CliRunner().invoke(main, ["convert", str(source), str(tmp_path / dest), *options])
        assert done.exit_code == 0, done.output
    assert "discarded" in CliRunner().invoke(main, ["inspect", str(tmp_path / "m.qfb"), "--tensor", "conv1"]).output
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "whole.qfb"), "--tensor", "conv1"]).output
    assert "HistogramObserver saw 0.." in shown and "chose the scale for 0..127 (per_tensor_affine)" in shown
    assert qfmt.load(tmp_path / "whole.qfb").content_id() == qfmt.load(tmp_path / "m.qfb").content_id()
    assert observed.conv1.activation_post_process.quant_max == 127


def test_a_state_dict_that_was_converted_gets_its_observers(tmp_path: Path) -> None:
    observed, _, state = saved("eager", False, tmp_path)
    with pytorch.quiet():
        torch.save(converted(observed).state_dict(), tmp_path / "converted.pt")
    model = qfmt.convert(tmp_path / "converted.pt", prepared=state)
    for name in ("conv2", "fc"):
        seen = seen_by(observed.get_submodule(name).activation_post_process)
        assert grid(model, name).observed == seen, name


def test_files_without_a_prepared_model_are_refused(tmp_path: Path) -> None:
    _, source, _ = saved("eager", False, tmp_path)
    torch.save({"a": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(SourceError, match=r"other\.pt: the prepared model has no observers; pass the model"):
        qfmt.convert(source, prepared=tmp_path / "other.pt")
    with pytest.raises(SourceError, match=r"m\.pt: is a TorchScript archive, not a prepared model"):
        qfmt.convert(source, prepared=source)
    torch.save({"fc.activation_post_process.min_val": torch.zeros(()),
                "fc.activation_post_process.max_val": torch.ones(())}, tmp_path / "stranger.pt")  # fmt: skip
    with pytest.raises(SourceError, match="no observer of the prepared model has the scales of the model"):
        qfmt.convert(source, prepared=tmp_path / "stranger.pt")
    with pytest.raises(SourceError, match="give prepared as a path"):
        qfmt.convert(source, prepared={"a": torch.zeros(3)})


@pytest.mark.parametrize("mode", ["eager", "fx"])
def test_a_traced_network_that_still_observes_is_refused_with_the_next_step(mode: str, tmp_path: Path) -> None:
    with pytorch.quiet():
        torch.jit.trace(prepared(mode, qat=True), images(0)).save(tmp_path / "m.pt")
    with pytest.raises(SourceError, match=r"fused_moving_avg_obs_fake_quant .* still observes ranges: call convert"):
        qfmt.convert(tmp_path / "m.pt")


@pytest.mark.parametrize("bins", [0, 2048])
@pytest.mark.parametrize(("low", "high"), [(-3e38, 3e38), (0, 1e-45), (1e-45, 1e-45), (-1e-45, 3e38)])
def test_ranges_at_the_ends_of_float32(low: float, high: float, bins: int) -> None:
    """They are numbers in a file, and no observer of PyTorch has them with such a scale."""
    seen = Seen(np.array([low], np.float32), np.array([high], np.float32), bins)
    for scale in (0.5, 1e-45, 3e38):
        assert seen.observed(Quantization.per_tensor(scale, 3, "uint8"), "uint8") is None
