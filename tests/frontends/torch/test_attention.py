"""nn.MultiheadAttention and nn.TransformerEncoderLayer, which torch computes by fused kernels without gradients."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.quantization import default_dynamic_qconfig, quantize_dynamic
from torch.nn import functional as F  # noqa: N812

import qfmt
from qfmt.errors import SourceError

LATER = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
END = torch.tensor([[False, False, False, False, True], [False, False, False, True, True]])


class Attention(nn.Module):
    """Self-attention with a mask, and a layer that is quantized."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.layer = nn.Linear(16, 4)
        self.options = options

    def forward(self, x: torch.Tensor) -> Any:
        y, weights = self.attend(x, x, x, **self.options)
        return (self.layer(y), weights) if self.options.get("need_weights", True) else self.layer(y)


class Encoder(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.encode = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)
        self.layer = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(self.encode(x))


class Plain(nn.Module):
    """Without options, as torch.jit.script needs it."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2, batch_first=batch_first)
        self.layer = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.attend(x, x, x)[0])


NETWORKS = {
    "weights": lambda: Attention(),
    "no weights": lambda: Attention(need_weights=False),
    "weights of heads": lambda: Attention(average_attn_weights=False),
    "mask of places": lambda: Attention(attn_mask=LATER),
    "mask of keys": lambda: Attention(key_padding_mask=END),
    "both masks": lambda: Attention(attn_mask=LATER, key_padding_mask=END),
    "encoder": lambda: Encoder(),
    "norm first": lambda: Encoder(norm_first=True),
    "gelu": lambda: Encoder(activation="gelu"),
}


def quantized(network: nn.Module) -> nn.Module:
    return quantize_dynamic(network.eval(), {"layer": default_dynamic_qconfig}, dtype=torch.qint8)


@pytest.mark.parametrize("name", NETWORKS)
def test_fused_kernels(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    network, x = quantized(NETWORKS[name]()), torch.randn(2, 5, 16)
    with torch.no_grad():
        traced: Any = torch.jit.trace(network, x, check_trace=False)
        expected = network(x)
    assert "aten::_native_multi" in str(traced.inlined_graph) or "aten::_transformer" in str(traced.inlined_graph)
    traced.save(tmp_path / "net.pt")
    model = qfmt.convert(tmp_path / "net.pt")
    assert qfmt.verify(tmp_path / "net.pt", model).ok
    found = model.run({"x": x.numpy()}).values()
    for mine, theirs in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["weights", "both masks", "encoder"])
def test_modules_in_memory_are_traced_without_fused_kernels(name: str) -> None:
    """They read weights that quantized layers may not have."""
    torch.manual_seed(3)
    network, x = quantized(NETWORKS[name]()), torch.randn(2, 5, 16)
    before = torch.backends.mha.get_fastpath_enabled()
    model = qfmt.convert(network, example_inputs=(x,), input_shapes={"x": (2, 5, 16)})
    assert torch.backends.mha.get_fastpath_enabled() == before
    with torch.no_grad():
        expected = network(x)
    found = model.run({"x": x.numpy()}).values()
    for mine, theirs in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_script_asks_for_identities_and_devices(batch_first: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    network, x = quantized(Plain(batch_first)), torch.randn(2, 5, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(network).save(tmp_path / "net.pt")
    model = qfmt.convert(tmp_path / "net.pt", input_shapes={"x": (2, 5, 16)})
    (found,) = model.run({"x": x.numpy()}).values()
    with torch.no_grad():
        np.testing.assert_allclose(found, network(x).numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_large_scores_of_16_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    """Torch's kernel has them in float32: rounded to 16 bits, the largest would be off by 0.1."""
    q, k, v = (torch.randn((1, 4, 64, 64), generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    given = [each.to(dtype) for each in (q * 3, k * 3, v)]
    torch.jit.save(torch.jit.trace(F.scaled_dot_product_attention, tuple(given)), str(path := tmp_path / "m.pt"))
    names, kind = ("argument_1", "argument_2", "argument_3"), str(dtype).removeprefix("torch.")
    sizes, kinds = dict.fromkeys(names, tuple(q.shape)), dict.fromkeys(names, kind)
    model = qfmt.convert(path, input_shapes=sizes, input_dtypes=kinds)
    own = ml_dtypes.bfloat16 if kind == "bfloat16" else np.float16
    arrays = [each.view(torch.int16).numpy().view(own) for each in given]
    (ours,) = model.run(dict(zip(names, arrays, strict=True))).values()
    theirs = F.scaled_dot_product_attention(*given).float().numpy()
    assert np.abs(ours.astype(np.float32) - theirs).max() <= 2 * torch.finfo(dtype).eps * np.abs(theirs).max()


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.attend(x, x, x, need_weights=False)[0]
        return result


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_network_in_training_mode_says_so(tmp_path: Path) -> None:
    network, x = Dropping(), torch.randn(2, 5, 16)
    torch.jit.save(torch.jit.trace(network, x, check_trace=False), str(path := tmp_path / "m.pt"))
    with pytest.raises(SourceError, match=r"was saved in training mode; call model\.eval\(\) before saving"):
        qfmt.convert(path)
    ours = qfmt.convert(path, eval_mode=True, input_shapes={"x": (2, 5, 16)}).run({"x": x.numpy()})
    np.testing.assert_allclose(next(iter(ours.values())), network.eval()(x).detach().numpy(), atol=1e-6)
