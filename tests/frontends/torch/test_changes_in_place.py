"""Random programs that change tensors through views of them: a conversion computes what torch does, or is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators of quantized_decomposed
from torch.nn import functional as F  # noqa: N812

import qfmt
from qfmt.errors import QfmtError

VIEWS = """{t}[0] | {t}[:, 1:] | {t}[:] | {t}.t() | {t}.view(-1) | {t}.view_as({t}) | {t}.unsqueeze(0) | {t}.squeeze(0)
 | {t}.expand(2, 3) | {t}.transpose(0, 1) | {t}.detach() | {t}.data | {t}.contiguous() | {t}.float() | {t}.cpu()
 | {t}.type_as(x) | {t}.flatten(0) | {t}.chunk(1)[0] | {t}.split(1, 0)[1] | {t}.split(5)[0] | {t}.unbind(0)[1]
 | {t}.unsafe_chunk(1)[0] | {t}.unsafe_split(1, 0)[1] | {t}.unsafe_split_with_sizes([1, 1], 0)[0]
 | F.dropout({t}, 0.5, False) | torch.feature_dropout({t}, 0.5, False) | torch.alpha_dropout({t}, 0.5, False)
 | {t}.dequantize() | torch.einsum("ij->ji", [{t}])
 | torch.meshgrid({t}[0], x[0], indexing="ij")[0] | torch.flip({t}, []) | torch.roll({t}, 0, 0) | torch.cat([{t}])
 | {t}.mT | {t}.adjoint() | {t}.ravel() | {t}.movedim(0, 1) | {t}.positive() | {t}.conj() | {t}.resolve_neg()
 | {t}.clone() | {t} + 0 | torch.round({t}) | {t}.half() | {t}.sum(0) | torch.slice_scatter({t}, {t})"""
CHANGES = """{t}.add_({t}) | {t}.mul_(2.0) | {t}.sub_({t}, alpha=2) | {t}.copy_({t}) | {t}.clamp_(-1.0, 1.0)
 | {t}.relu_() | F.relu({t}, True) | F.hardtanh({t}, -1.0, 1.0, True) | F.dropout({t}, 0.5, False, True)
 | {t}.masked_fill_(x > 0, 1.5) | {t}.t_() | {t}.unsqueeze_(0) | {t}.squeeze_() | {t}.neg_() | {t}.addcmul_({t}, x)
 | {t}.detach_() | {t}.round_() | {t}.lt_({t}) | torch.full([2, 3], 3.0, out={t}) | {t}.squeeze_().add_(1.0)
 | torch.add({t}, 1.0, out={t}) | torch.aminmax({t}, dim=0, out=({t}, {t}[0]))[0] | torch.cat([{t}], out={t})
 | torch.sort({t}, out=({t}, {t}.long()))[0] | added({t}) | each({t}) | both({t}, {t})
 | gates({t}.split(1)) | gates({t}.unsafe_chunk(2)) | gates({t}.unbind(0)) | gates({t}.expand(2, 3).split(1))
 | gates({t}.split(1) + {t}.split(1)) | gates({t}.split(1)[1].split(2, 1)) | gates({t}.unfold(0, 1, 1).chunk(2))
 | put({t}) | put({t}[:, 1:]) | {t}[0].mul_({t}[0]) | {t}[-1:].fill_(3.0) | {t}[1:, 0].zero_()
 | {t}[:, -1].copy_({t}[:, 0]) | {t}[:, :2].clamp_(0.0, 1.0) | {t}.expand(2, 3)[0].add_(1.0) | {t}.t()[0].neg_()"""
HELPERS = """
def added(a):
    with torch.no_grad():
        return torch.add(a, 1.0, out=a)

def each(a):
    torch._foreach_add_([a], 1.0)
    return a

def gates(parts):
    first, second = parts[0].add_(1.0), parts[-1].mul_(2.0)
    return first + second.sum()

def put(a):
    a[0] = 2.0
    a[..., 1:] += a[..., :1]
    return a

def both(a, b):
    c = a > 0
    c &= b > 0
    c ^= True
    d = c[0]
    d |= a[0] > 1
    return c * 1.0
"""
CALLS = {"view": VIEWS.split(" | "), "change": CHANGES.split(" | ")}


def _names() -> dict[str, Any]:
    values = {"torch": torch, "F": F, "__name__": __name__}
    exec(HELPERS, values)
    return values


def _program(seed: int, x: torch.Tensor) -> str:
    """Statements that torch runs: two views and two changes, and the results."""
    rng, lines, names = random.Random(seed), ["a = x * 2"], ["a"]
    values = _names() | {"x": x.clone(), "a": x * 2}
    for kind in ("view", "change", rng.choice(["view", "change"]), "change"):
        for _ in range(20):
            call = re.sub(r"\{t\}", lambda match: rng.choice(names), rng.choice(CALLS[kind]).strip())
            new = f"v{len(lines)}"
            try:
                exec(f"{new} = {call}", values)
            except (RuntimeError, IndexError, UserWarning):  # of a result that does not fit
                continue
            lines.append(f"{new} = {call}")
            names.append(new)
            break
    results = ", ".join(f"{name} * 1" for name in rng.sample(names, min(3, len(names))))
    return "\n    ".join([*lines, f"return {results},"])


def _traced(forward: Callable[..., Any], x: torch.Tensor, folder: Path) -> tuple[Path, Callable[..., Any]]:
    path = folder / "m.pt"
    torch.jit.save(torch.jit.trace(forward, x.clone(), check_trace=False), str(path))
    return path, torch.jit.load(str(path))


def _exported(forward: Callable[..., Any], x: torch.Tensor, folder: Path) -> tuple[Path, Callable[..., Any]]:
    class Quantized(torch.nn.Module):  # qfmt converts programs in which something is quantized
        def forward(self, x: torch.Tensor) -> Any:
            x = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.25, 0, -128, 127, torch.int8)
            return forward(torch.ops.quantized_decomposed.dequantize_per_tensor(x, 0.25, 0, -128, 127, torch.int8))

    path = folder / "m.pt2"
    torch.export.save(torch.export.export(Quantized(), (x.clone(),), strict=False), str(path))
    return path, torch.export.load(str(path)).module()


def _pickled(forward: Callable[..., Any], x: torch.Tensor, folder: Path) -> tuple[Path, Callable[..., Any]]:
    path = folder / "m.pt"
    torch.save(torch.fx.symbolic_trace(forward), path)
    return path, torch.load(path, weights_only=False)


@pytest.mark.parametrize(
    ("written", "seeds"),
    [
        (_traced, range(90)),
        (_exported, range(110)),
        (_pickled, range(200)),
        pytest.param(_traced, range(90, 3000), marks=pytest.mark.slow),
        pytest.param(_exported, range(110, 1000), marks=pytest.mark.slow),
        pytest.param(_pickled, range(200, 3000), marks=pytest.mark.slow),
    ],
)
def test_no_change_is_lost(written: Callable[..., Any], seeds: range, tmp_path: Path) -> None:
    x, outcomes = torch.tensor([[-1.5, 0.25, 2.5], [0.75, -3.0, 1.0]]), {"equal": 0, "refused": 0, "torch fails": 0}
    for seed in seeds:
        body, values = _program(seed, x), _names()
        exec(f"def forward(x):\n    {body}", values)
        try:
            path, loaded = written(values["forward"], x, tmp_path)
            expected = loaded(x.clone())
        except Exception:  # of any class: torch does not write or run this program
            outcomes["torch fails"] += 1
            continue
        try:
            sizes = x.shape if written is _exported or seed % 2 else (None, None)
            model = qfmt.convert(path, input_shapes={"x": sizes})
            results = model.run({"x": x.numpy()})
        except QfmtError:
            outcomes["refused"] += 1
            continue
        for mine, theirs in zip(results.values(), expected, strict=True):
            assert mine.dtype == theirs.numpy().dtype, body
            np.testing.assert_array_equal(mine, theirs.numpy(), err_msg=body)
        assert qfmt.verify(path, model, {"x": x.numpy()}).ok, body
        outcomes["equal"] += 1
    print(outcomes)
    assert outcomes["equal"] > 10, outcomes


BOUNDS = None, -4, -2, -1, 0, 1, 2, 4


@pytest.mark.parametrize("start", BOUNDS)
def test_slices_of_open_sizes(start: int | None, tmp_path: Path) -> None:
    """What is written is a slice of any length: none, if the size of the run is small. Bounds that are counted from
    both ends are refused."""
    refused = 0
    for end in BOUNDS:

        def forward(x: torch.Tensor, end: int | None = end) -> torch.Tensor:
            y = x * 2
            y[start:end] += 1
            y[:, start:end] = 7
            return y

        path, loaded = _traced(forward, torch.zeros(5, 6), tmp_path)
        try:
            model = qfmt.convert(path, input_shapes={"x": (None, None)})
        except QfmtError:
            assert (start or 0) * (end or 0) < 0 or 0 in (start, end)
            refused += 1
            continue
        for shape in ((1, 1), (2, 3), (3, 2), (4, 5), (7, 8)):
            x = torch.arange(float(np.prod(shape))).reshape(shape)
            (mine,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
            np.testing.assert_array_equal(mine, loaded(x).numpy(), err_msg=f"{start}:{end} of {shape}")
    assert refused <= 4


REFUSED = "reads a tensor that .* changed through another view"


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ("b, c = a.chunk(2); b.add_(1); c.mul_(b)", True),
        ("b, c = a.chunk(2); b.add_(1); b.mul_(2); b, e = b.chunk(2, 1); e.add_(b[:, :1])", True),
        ("b, c = a.chunk(2); b.add_(1); c.mul_(a[:1])", False),
        ("b, c = a[:1], a[1:]; b.add_(1); c = a[1:] * b", True),
        ("b = a[0]; b[1:] = 3; b[0] += b[2]; c = a * 2", True),
        ("b = a[-1:, 1:]; b.mul_(2); b.add_(a[:1, :2]); c = a + b[:, :1]", True),
        ("b = a[0]; d = a[0]; b.add_(1); d.mul_(2); c = a", False),
        ("c = a; b = a[0]; a.mul_(2)", False),
        ("b = a[:1].expand(2, 3); b[0].add_(1) if False else a[0].add_(1); c = a", False),
        ("b = a.t(); b[0].add_(1); c = a", False),
        ("c = a.t().contiguous(); b = c[0]; b.add_(1)", True),
        ("b, c = a.chunk(2); b2 = b[:]; b.add_(1); c.mul_(b2)", False),
        ("b, c = a.chunk(2); a.add_(1); c.mul_(2)", False),
        ("b, c = a.chunk(2); d, e = b.chunk(2, 1); b.add_(1); c.mul_(d[:, :1])", False),
        ("b, c = a.chunk(2); d, e, f = a.split(1, 1); b.add_(1); c.mul_(d[:1])", False),
        ("b, c = a.chunk(2); b, d = b.chunk(2, 1); d.add_(1); c.mul_(2); b.add_(c[:, :1])", True),
        ("b, c = a.chunk(2); d, e = b.chunk(2, 1); d.add_(1); c.mul_(b)", False),
        ("b, c = a[:1].expand(2, 3).chunk(2); b.add_(1); c.mul_(2)", False),
    ],
)
def test_parts_of_a_tensor(body: str, fits: bool, tmp_path: Path) -> None:
    """Parts of one division do not overlap; all else that shares their memory does."""
    x, values = torch.tensor([[-1.5, 0.25, 2.5], [0.75, -3.0, 1.0]]), _names()
    exec(f"def forward(x):\n    a = x * 2; {body}\n    return b + 1, c + 1", values)
    path, loaded = _traced(values["forward"], x, tmp_path)
    if not fits:
        with pytest.raises(QfmtError, match=REFUSED):
            qfmt.convert(path, input_shapes={"x": x.shape})
        return
    results = qfmt.convert(path, input_shapes={"x": x.shape}).run({"x": x.numpy()})
    for mine, theirs in zip(results.values(), loaded(x.clone()), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())
