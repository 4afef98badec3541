"""Types and numbers in TorchScript are those of torch, which runs the same code as the witness.

No `from __future__ import annotations` here: torch.jit.script reads the annotations.
"""
# ruff: noqa: UP006 (torch.jit.script knows these spellings)

import math
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any, List, Tuple  # noqa: UP035

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import qfmt
from qfmt.errors import SourceError
from qfmt.frontends.torch.torchscript.archive import Archive
from qfmt.frontends.torch.torchscript.evaluator import evaluate
from qfmt.frontends.torch.torchscript.folding import fold, on_containers, on_values
from support.replay import Notes, Unknown
from support.torch_modules import saved


class Types(nn.Module):
    """Operands of multiple types, and results in place, which have the type of what they change."""

    def forward(self, x: torch.Tensor):
        i, h, d = x.int(), x.half(), x.double()
        in_place = [x.half().add_(x), x.half().mul_(0.5), x.int().add_(x.long()), x.clone().mul_(d)]
        joined = [torch.cat([i, x]), torch.cat([h, x]), torch.cat([i, h]), torch.stack([h, d])]
        compared = [
            torch.maximum(i, x),
            torch.minimum(i, i.long()),
            i.clamp(min=0.5),
            i.clamp(0, 1),
            x.half().clamp(0.5),
        ]
        real = [torch.exp(i), torch.sigmoid(i), torch.tanh(i), i.abs().sqrt(), torch.reciprocal(x > 0), i.sin()]
        whole = [torch.sign(i), torch.round(i), torch.trunc(i), F.relu6(i), F.hardtanh(i, -1.0, 2.0), (i > 0).square()]
        flags = [torch.any(i.to(torch.uint8)), torch.all(i.to(torch.uint8), dim=1), h.dequantize()]
        placed = [torch.slice_scatter(i, x[:1], 0, 1, 2), torch.select_scatter(h, x[0], 0, 1)]
        scaled = [
            torch.add(d, 7, alpha=0.3),
            torch.sub(h.sum(), 1, alpha=-0.5),
            torch.add(i, i > 0, alpha=3),
            torch.addcmul(x, h, h),
        ]
        counted = [
            torch.arange(0.5, 3.6, dtype=torch.int32),
            torch.arange(0.5, 3.6, dtype=torch.int64),
            torch.arange(0, 0.3, 0.1),
            torch.scalar_tensor(2),
        ]
        quotients = [
            torch.floor_divide(torch.ones_like(x), 0.1),
            torch.floor_divide(x, -0.3),
            torch.div(x + 0.55, torch.relu(x.sign()) * 0.1, rounding_mode="floor"),
        ]
        faked = torch.fake_quantize_per_tensor_affine(h, 0.125, 3, -8, 7)
        return in_place + joined + compared + real + whole + flags + placed + scaled + counted + quotients + [faked]


def test_the_types_of_results_are_those_of_torch(tmp_path: Path) -> None:
    x, module = torch.tensor([[-2.3, 0.45, 1.75], [0.5, -1.0, 3.2]]), Types()
    torch.jit.save(torch.jit.script(module), tmp_path / "m.pt")
    results = [*qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (2, 3)}).run({"x": x.numpy()}).values()]
    for mine, theirs in zip(results, module(x), strict=True):
        assert mine.dtype == theirs.numpy().dtype
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-6)


class IntegerQuotients(torch.nn.Module):
    """Of integers and numbers that may not fit their type."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.tensor(40_000)

    def forward(self, x: torch.Tensor):
        exact = [x / 3, x / 256, x / 300, x / 32768, x / -1, 1000 / (x | 1), x / (x | 1), x / True, x / self.large]
        floor, trunc = torch.div(x, 100, rounding_mode="floor"), torch.div(x, 7, rounding_mode="trunc")
        rounded = [x // 3, x // -3, x // 7, floor, trunc]
        return exact + rounded


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_quotients_of_integers(dtype: torch.dtype, tmp_path: Path) -> None:
    limits, beside = torch.iinfo(dtype), 300 if dtype is torch.int64 else 0  # there, no type has x - remainder
    least, most = limits.min + beside, limits.max - beside
    x = torch.tensor([[least, least + 1, 0, 1, 2, 3, 7, most - 1, most]], dtype=dtype)
    torch.jit.save(torch.jit.script(IntegerQuotients()), tmp_path / "m.pt")
    name = str(dtype).removeprefix("torch.")
    model = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (1, 9)}, input_dtypes={"x": name})
    results = [*model.run({"x": x.numpy()}).values()]
    for mine, theirs in zip(results, IntegerQuotients()(x), strict=True):
        assert mine.dtype == theirs.numpy().dtype
        np.testing.assert_array_equal(mine, theirs.numpy())


class Half(torch.nn.Module):
    """A product or quotient keeps a number that 16 bits do not have, a whole quotient too; a sum rounds it."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.tensor(1e5)

    def computed(self, half: torch.Tensor):
        products = [half * 1e5, half * 0.1, half / 1e5, 1e-8 / (half + 1), half * self.large, (1 - half) * -1e9]
        products += [self.large * half, half * torch.tensor([70000]), half / torch.tensor([[100000]])]
        largest, count = half.float().amax(), (half > 0).sum() * 9999
        products += [half * largest, half / largest, half * count, half.amax() * self.large, self.large * half.amax()]
        sums = [half + 0.1, half - 0.3, 0.1 - half, half * 2, half / 3]
        sums += [half // 0.1, torch.div(half, 0.3, rounding_mode="floor"), torch.div(half, 1e-3, rounding_mode="trunc")]
        return [each.float() for each in products + sums]

    def forward(self, x: torch.Tensor):
        return self.computed(x.half()) + self.computed(x.to(torch.bfloat16))


def test_numbers_beside_floats_of_16_bits(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 41)[None]
    torch.jit.save(torch.jit.script(Half()), tmp_path / "m.pt")
    results = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (1, 41)}).run({"x": x.numpy()}).values()
    for mine, theirs in zip(results, Half()(x), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


class InBfloat16(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        half, kind = x.to(torch.bfloat16), torch.bfloat16
        made = [torch.full_like(half, 0.7), torch.zeros([2], dtype=kind), torch.scalar_tensor(3.0, dtype=kind)]
        others = [torch.arange(0.0, 3.0, 0.5, dtype=kind), F.pad(half, [1, 1], value=0.7), half.clamp(0.1, 0.7)]
        return [each.float() for each in made + others]


def test_bfloat16_in_a_new_process(tmp_path: Path) -> None:
    """NumPy knows the type only after ml_dtypes was imported."""
    torch.jit.save(torch.jit.script(InBfloat16()), tmp_path / "m.pt")
    command = [sys.executable, "-m", "qfmt", "convert", "m.pt", "m.qfb", "--input-shape", "x=1,5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    x = torch.tensor([[-1.0, 0.3, 0.6, 2.0, 5.0]])
    for mine, theirs in zip(qfmt.load(tmp_path / "m.qfb").run({"x": x.numpy()}).values(), InBfloat16()(x), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


class TensorsOfNumbers(torch.nn.Module):
    """Tensors of numbers, and code about their place in memory, which is always the same."""

    def forward(self, x: torch.Tensor):
        if not x.is_contiguous():
            x = x.contiguous()
        count = x.size(0)
        single = [torch.tensor(2.5), torch.tensor(count), torch.tensor(True), torch.tensor(3, dtype=torch.int8)]
        several = [torch.tensor([count, 7]), torch.tensor([[1.0], [2.0]]), torch.tensor([1, 2], dtype=torch.float16)]
        return single + several + [x * torch.tensor([0.5, 2.0, 4.0])]


def test_tensors_of_numbers(tmp_path: Path) -> None:
    path, x, module = tmp_path / "m.pt", torch.tensor([[-2.5, 0.5, 1.75]]), TensorsOfNumbers()
    torch.jit.save(torch.jit.script(module), path)
    model = qfmt.convert(path, input_shapes={"x": ("N", 3)})
    results = [*model.run({"x": x.numpy()}).values()]
    for mine, theirs in zip(results, module(x), strict=True):
        assert mine.dtype == theirs.numpy().dtype and np.array_equal(mine, theirs.numpy())
    assert qfmt.verify(path, model).ok


class Signs(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        return x.sign(), x.double().sign(), x.half().sign()


def test_the_sign_of_nan_is_zero(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(Signs()), tmp_path / "m.pt")
    x = np.array([[np.nan, -2, 0, 3]], np.float32)
    signs = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (1, 4)}).run({"x": x}).values()
    assert [each.tolist() for each in signs] == [[[0, -1, 0, 1]]] * 3


class Edges(nn.Module):
    """Reductions of nothing, or of no dimension; indices, sizes and masks that torch treats in a way of its own."""

    def forward(self, x: torch.Tensor):
        empty, index = x[:0], torch.arange(3)[1]
        image, scores = x.reshape(1, 1, 2, 3), x.reshape(1, 2, 3)
        mask = torch.zeros([2, 2]).masked_fill(scores @ scores.transpose(1, 2) > -1e9, float("-inf"))
        reduced = [torch.any(empty), torch.all(empty), torch.any(empty, 0), torch.any(x, []), torch.all(x, [], True)]
        small = [torch.any(empty.to(torch.uint8)), torch.all(empty.to(torch.uint8)), torch.all(x.to(torch.uint8), [])]
        moments = [torch.var(x, [0], correction=3), torch.std(empty, None, True), torch.var_mean(x, False)[0]]
        resized = [
            torch.ops.aten.upsample_nearest2d(image, [3, 5], 1.7, 1.7),
            torch.ops.aten.upsample_bilinear2d(image, [3, 5], False, 1.7, 1.7),
            torch.ops.aten.upsample_bilinear2d(image, [3, 5], True, 1.7, 1.7),
            torch.ops.aten.upsample_nearest2d(image, [4, 6], 2.0, 2.0),
        ]
        hidden = [F.scaled_dot_product_attention(scores, scores, scores, mask)]
        others = [torch.index_select(x, 1, index), torch.diff(x, 0, 0, x), torch.rms_norm(x.double() * 1e-6, [3])]
        return reduced + small + moments + resized + hidden + others


def test_edges(tmp_path: Path) -> None:
    x, path = torch.tensor([[-2.3, 0.45, 1.75], [0.5, 0.0, 3.2]]), saved(Edges(), tmp_path / "m.pt")
    results = [*qfmt.convert(path, input_shapes={"x": (2, 3)}).run({"x": x.numpy()}).values()]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(std|var)\\(\\): degrees of freedom is <= 0")
        expected = Edges()(x)
    for mine, theirs in zip(results, expected, strict=True):
        assert mine.dtype == theirs.numpy().dtype
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-6)


class MoreThanTorch(nn.Module):
    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor):
        if self.call == "sizes":
            return torch.ops.aten.upsample_nearest2d(x, [9, 9], 2.0, 2.0)
        return F.pad(x, [-1, 1], mode="circular")


@pytest.mark.parametrize("call, message", [("sizes", "which give other sizes"), ("pad", "crops a tensor")])
def test_calls_without_an_equivalent_are_refused(tmp_path: Path, call: str, message: str) -> None:
    path = saved(MoreThanTorch(call), tmp_path / "m.pt")
    with pytest.raises(SourceError, match=message):
        qfmt.convert(path, input_shapes={"x": (1, 1, 4, 4)})


def test_constants_of_traces_are_numbers(tmp_path: Path) -> None:
    """`CONSTANTS.c0` of `i * 2.5` is a float64 tensor, and torch's result is float32."""
    limit = torch.tensor(2.5, dtype=torch.float64)

    def forward(x: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        i, h, small, flag = x.long(), x.half().sum(), x.to(torch.int8).sum(dtype=torch.int8), (x > 0).any()
        numbers = i * 2.5, i + 2.5, i - 2.5, h * 2.5, h + 2.5, flag * 2.5, small * 3, small - 3
        return *numbers, torch.maximum(i, limit), i / 3

    x = torch.tensor([[-2.0, 0.0, 1.0], [5.0, -1.0, 3.0]])
    path = str(tmp_path / "m.pt")
    torch.jit.save(torch.jit.trace(forward, x), path)
    results = [*qfmt.convert(path).run({"x": x.numpy()}).values()]
    for mine, theirs in zip(results, torch.jit.load(path)(x), strict=True):
        assert mine.dtype == theirs.numpy().dtype
        np.testing.assert_array_equal(mine, theirs.numpy())


class Bounded(nn.Module):
    """Clamps by a bound for each column, by a computed one, and by a number in a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor([0.0, 1.0, -1.0]))

    def forward(self, x: torch.Tensor) -> List[torch.Tensor]:
        low = self.low * 2
        return [x.clamp(min=low), x.clamp(self.low, x.mean()), x.clamp(max=low[:1]), x.clamp_min(low)]


def test_bounds_may_be_tensors(tmp_path: Path) -> None:
    x = torch.tensor([[-2.25, 0.5, 1.75], [0.5, -1.0, 3.5]])  # the mean is exact
    torch.jit.save(torch.jit.script(Bounded()), tmp_path / "m.pt")
    results = [*qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (2, 3)}).run({"x": x.numpy()}).values()]
    for mine, theirs in zip(results, Bounded()(x), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


class Divided(nn.Module):
    def forward(self, x):
        n = x.size(0)
        return x[: -(-n // 2)], x[: (n - 8) // -2], x[: int(n / 2)], x[(3 - n) // 2 :], x[: math.floor(n / 2)]


@pytest.mark.parametrize("rows", [4, 5])
def test_sizes_are_divided_as_in_torch(tmp_path: Path, rows: int) -> None:
    path, x = saved(Divided(), tmp_path / "m.pt"), torch.rand(rows, 3)
    results = qfmt.convert(path, input_shapes={"x": ("N", 3)}).run({"x": x.numpy()})
    for mine, theirs in zip(results.values(), Divided()(x), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


class Selects(nn.Module):
    def forward(self, x, y):
        q = torch.quantize_per_tensor(x, 0.1, 60, torch.quint8)
        return torch.topk(q, 2)[0], q.masked_fill(x > 0, 0.333), q.masked_fill(x > 0, y)


def test_quantized_tensors_stay_quantized_where_elements_are_selected(tmp_path: Path) -> None:
    path, x, y = saved(Selects(), tmp_path / "m.pt"), torch.randn(3, 8), torch.tensor(0.47)
    model = qfmt.convert(path, input_shapes={"x": (3, 8), "y": ()})
    for mine, theirs in zip(model.run({"x": x.numpy(), "y": y.numpy()}).values(), Selects()(x, y), strict=True):
        np.testing.assert_array_equal(mine, theirs.int_repr().numpy())


class BeyondFloat32(nn.Module):
    def forward(self, x):
        return x * 1e300, torch.clamp(x, -1e300, 1e300), x.half() * 1e300, x > 1e300


def test_numbers_beyond_a_type_are_infinite(tmp_path: Path) -> None:
    x = np.float32([[-1, 2]])
    product, clamped, half, greater = (
        array.tolist() for array in qfmt.convert(saved(BeyondFloat32(), tmp_path / "m.pt")).run({"x": x}).values()
    )
    assert product == half == [[-np.inf, np.inf]] and clamped == [[-1, 2]] and greater == [[False, False]]


def test_literals_keep_every_digit(tmp_path: Path) -> None:
    class Literals(nn.Module):
        def forward(self, x: torch.Tensor):
            return x * 0.1234567890123456789 + 5e-324 - 1.7976931348623157e308

    notes = Notes()
    evaluate(Archive(saved(Literals(), tmp_path / "m.pt")), notes, [Unknown()])
    assert [call.args[1] for call in notes.calls] == [0.1234567890123456789, 5e-324, 1.7976931348623157e308]


class Numbers(nn.Module):
    def forward(self, a: float, b: float, i: int, j: int):
        divided = [a // b, i // b, i / j, float(i // j), float(i % j)]
        powers = [a**2, 2.0**b, float(int(j**2)), a**-2, i**2, 2**j]
        chosen = [min(i, a), max(i, a), min(a, j), max(j, b), min(a, b), max(a, b)]
        return divided + powers + chosen, [a == i, i != a, a < i, i <= a, a > j, j >= a], math.floor(i)


@pytest.mark.parametrize(
    "numbers",
    [(1.0, 0.1, 3, -2), (-7.5, 2.0, -7, 2), (0.5, -0.1, 2**53 + 1, 3), (5.0, -0.5, 5, 4), (2.0**53, 3.0, 2**53 + 1, 7)],
)
def test_numbers_are_computed_as_in_torch(tmp_path: Path, numbers: Tuple[float, float, int, int]) -> None:
    path = tmp_path / "m.pt"
    torch.jit.save(torch.jit.script(Numbers()), path)
    assert repr(evaluate(Archive(path), Notes(0), numbers)) == repr(torch.jit.load(path)(*numbers))


@pytest.mark.parametrize(
    "target, args, message",
    [
        ("aten::remainder", (0.1, 1.0), "rounds it in another way"),  # 0.10000000000000009 of numbers
        ("aten::remainder", (1, (1 << 63) - 1), "beyond 64 bits"),  # -1 in PyTorch
        ("aten::pow", (-1.0, 0.5), "math domain error"),  # Python computes a complex number
        ("aten::Int", ("1_0",), "reads it in another way"),
        ("aten::mul", ([1], -1), "a negative length"),
    ],
)
def test_numbers_that_python_computes_in_another_way(target: str, args: Tuple[Any, ...], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        fold(on_values, target, args, {})
    assert fold(on_values, "aten::remainder", (7.5, 2), {}) == 1.5
    assert fold(on_containers, "aten::__contains__", ([math.nan], math.nan), {}) is False
    assert fold(on_values, "aten::div", (-7, 2), {"rounding_mode": "trunc"}) == -3
    assert fold(on_values, "aten::div", ((1 << 62) + 1, 1), {"rounding_mode": "trunc"}) == (1 << 62) + 1


def test_sizes_that_traced_code_holds_as_tensors(tmp_path: Path) -> None:
    """A quotient is a tensor of float32: 297 / 15 * 25 is 494.99997, in float64 495. A power of integers is one."""

    def forward(x: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        size = x.shape[1]
        return x[:, size - (size / 15 * 25).int() :], x.long() * 2 ** (size % 5), x * (size / 3 / 7)

    x, path = torch.rand(2, 297), str(tmp_path / "m.pt")
    torch.jit.save(torch.jit.trace(forward, x, check_trace=False), path)
    results = qfmt.convert(path, input_shapes={"x": x.shape}).run({"x": x.numpy()})
    for mine, theirs in zip(results.values(), torch.jit.load(path)(x), strict=True):
        assert mine.dtype == theirs.numpy().dtype
        np.testing.assert_array_equal(mine, theirs.numpy())


class Quotients(nn.Module):
    """Of integers, which torch 1.5 rounded towards zero; of numbers it did not."""

    def forward(self, x: torch.Tensor):
        i = x.to(torch.int64)
        known = torch.div(torch.tensor(7), torch.tensor(-2))
        filled = torch.div(torch.full([2], 5), 2)
        return i / 2, torch.div(i, i.abs() + 2), x / 2, i / 2.0, x + known, x + 7 / 2, x[:2] + filled


@pytest.mark.parametrize("version", ["2", "3", "4", "5", "10"])
def test_quotients_of_integers_are_those_of_the_version_of_the_archive(version: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Quotients()).save(tmp_path / "new.pt")
        with zipfile.ZipFile(tmp_path / "new.pt") as new, zipfile.ZipFile(tmp_path / "m.pt", "w") as old:
            for name in new.namelist():
                old.writestr(name, f"{version}\n" if name.endswith("/version") else new.read(name))
        x = torch.tensor([-7.0, -3.0, 0.0, 3.0, 7.5, 9.0])
        wanted = torch.jit.load(tmp_path / "m.pt")(x)
    found = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (6,)}).run({"x": x.numpy()})
    for mine, theirs in zip(found.values(), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())
        assert mine.dtype == theirs.numpy().dtype


class ToAMultiple(torch.nn.Module):
    """Pads the last two dimensions, as networks do that halve them several times."""

    def __init__(self, *, negative: bool) -> None:
        super().__init__()
        self.negative = negative

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing = [-size % 4 if self.negative else (4 - size % 4) % 4 for size in (x.shape[3], x.shape[2])]
        return torch.nn.functional.pad(x, [0, missing[0], 0, missing[1]])


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("shape", [None, (1, 2, 7, 5), ("N", 2, "H", "W")])
def test_sizes_that_are_padded_to_a_multiple(negative: bool, shape: Any, tmp_path: Path) -> None:
    network = ToAMultiple(negative=negative)
    torch.jit.save(torch.jit.trace(network, torch.ones(1, 2, 7, 5), check_trace=False), tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_shapes=shape and {"x": shape})
    for size in ((1, 2, 7, 5),) if shape == (1, 2, 7, 5) else ((1, 2, 7, 5), (3, 2, 8, 10), (1, 2, 1, 4)):
        x = torch.arange(np.prod(size)).reshape(size).float()
        (mine,) = model.run({"x": x.numpy()}).values()
        np.testing.assert_array_equal(mine, network(x).numpy())


class SumsOfNumbers(torch.nn.Module):
    """As the shifted windows of torchvision's Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.shifts = [1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if sum(self.shifts) > 2:
            x = torch.roll(x, (1,), (2,))
        return x * float(sum([0.5, 1.0])) if sum([x.shape[2] - 7, 0]) > 0 else x


def test_sums_of_lists_of_numbers(tmp_path: Path) -> None:
    network = SumsOfNumbers()
    torch.jit.script(network).save(tmp_path / "m.pt")
    for size in 7, 9:
        x = torch.rand(1, 2, size, 3)
        model = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": tuple(x.shape)})
        (mine,) = model.run({"x": x.numpy()}).values()
        np.testing.assert_array_equal(mine, network(x).numpy())
