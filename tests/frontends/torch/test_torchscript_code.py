"""Tests the evaluator on TorchScript as a language; torch runs the same code as the witness.

No `from __future__ import annotations` here: torch.jit.script reads the annotations.
"""
# ruff: noqa: UP006, UP007, UP045 (torch.jit.script knows these spellings)

import enum
import math
import tracemalloc
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Final, List, NamedTuple, Optional, Tuple, Union  # noqa: UP035

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.nn.quantized import dynamic as nnqd
from torch.nn import functional as F  # noqa: N812

import qfmt
from qfmt.errors import ControlFlowError, SourceError
from qfmt.frontends.torch.torchscript.archive import Archive
from qfmt.frontends.torch.torchscript.code import Function, check_chains, syntax_tree
from qfmt.frontends.torch.torchscript.evaluator import evaluate
from support.onnx_witness import runtime
from support.replay import Notes, Real, Replay, Unknown, assert_equal, to_torch
from support.torch_modules import saved


class Pair(NamedTuple):
    values: torch.Tensor
    count: int


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@torch.jit.script
class Collector:
    def __init__(self, start: int):
        self.count = start
        self.items: List[torch.Tensor] = []

    def add(self, x: torch.Tensor) -> int:
        self.items.append(x)
        self.count += 1
        return self.count


class Scaled(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) * self.factor


class Containers(nn.Module):
    """Module lists and dicts, lists, dicts, named tuples, objects, enumerations, constants."""

    scale: Final[float]

    def __init__(self):
        super().__init__()
        self.scale = 0.1234567891234567
        self.blocks = nn.ModuleList([Scaled(i / 3) for i in range(3)])
        self.named = nn.ModuleDict({"a": Scaled(5), "b-c": Scaled(6)})
        self.color = Color.RED
        self.numbers = {"x": 1, "y": 2}
        self.text = "h\u00e9llo"
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, y: Optional[torch.Tensor] = None, n: int = 3):
        assert x.dim() == 2, f"bad {x.shape}"
        for block in self.blocks:
            x = block(x)
        for block in self.named.values():
            x = block(x) + self.numbers["x"]
        if y is not None:
            x = x + y
        found: Dict[str, torch.Tensor] = {}
        for i in range(n + 5):
            if i == 1:
                continue
            if i > 3:
                break
            found[str(i)] = x * i
            found[f"k{i}"] = x * float("inf")
        i = 0
        while i < 30:
            i += 1
            if i == 7:
                break
        collector = Collector(2)
        collector.add(x)
        pair = Pair(x, i)
        doubled = [a * 2 for a in sorted([3, 1, 2])]
        if self.color == Color.RED:
            x = x + 1
        with torch.no_grad():
            x = x * 2
        x = self.dropout(x)
        first, second = x.split(2)
        x = x[:, 1:3]
        x = x[0]
        rest = [1, 2, 3][1:]
        rest.extend([4])
        rest.pop()
        size = rest[-1] // 2 + rest[0] % 2
        number = max(rest[0], 2) + min(1, 2) + abs(-3) + round(2.5) + int(2.7) + 2**3 + 7 / 2
        letters = ["a", "b", "a"]
        letters.remove("a")
        quotient, remainder = divmod(-7, 3)
        number += letters.index("a") + 10 * letters.count("b") + quotient + 100 * remainder + math.gcd(12, 8)
        for a, b in zip([1, 2], [3, 4]):  # noqa: B905
            x = x + a * b
        for i, text in enumerate(["a", "b"]):
            x = x * i + len(text)
        chosen = x if self.scale > 0.1 else x + 1
        if len(found) > 2 and n > 1 and not self.training:
            x = x + 2
        return (
            pair, found, chosen, collector.items, collector.count, doubled, size, number, first, second, self.text,
            "a" + "b", ["a", "b"], x * self.scale,
        )  # fmt: skip


@torch.jit.interface
class Block(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class Indexed(nn.Module):
    """Modules that are found by an index or a key that the code computes."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Scaled(i / 3) for i in range(3)])
        self.named = nn.ModuleDict({"a": Scaled(5), "b-c": Scaled(6)})

    def forward(self, x: torch.Tensor):
        for i in range(2):
            block: Block = self.blocks[2 - i]
            x = block.forward(x)
        for key in ["b-c", "a"]:
            named: Block = self.named[key]
            x = named.forward(x)
        return x


class Resized(nn.Module):
    """`F.interpolate` decides on the rank of its input, some thirty levels deep."""

    def forward(self, x: torch.Tensor):
        up = F.interpolate(x, scale_factor=2.0, mode="nearest")
        wide = F.interpolate(x, size=[5, 7], mode="bilinear", align_corners=False)
        pooled = F.adaptive_avg_pool2d(F.max_pool2d(up, 2), (1, 1))
        padded = F.pad(x, [1, 2, 0, 1])
        return up, wide, torch.flatten(pooled, 1), padded, F.hardtanh(x, -0.5, 0.7)


class Sizes(nn.Module):
    """Shapes computed by numbers and by tensors."""

    def forward(self, x: torch.Tensor):
        n, c, h, w = x.shape
        grouped = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, -1, h, w)
        means = torch.cat([x, grouped], 1).mean([2, 3])
        return grouped, x.reshape(x.size(0), -1), means, x.unsqueeze(0).permute(0, 2, 1, 3, 4)


class Disabled(nn.Module):
    def forward(self, x: torch.Tensor):
        with torch.autocast("cpu", torch.bfloat16, False):
            y = x @ x
        with torch.autocast("cpu", enabled=False):
            return x @ y


class Elsewhere(nn.Module):
    def forward(self, x: torch.Tensor):
        with torch.autocast("cuda"):
            y = x @ x
        return y + x


class Rolled(nn.Module):
    def forward(self, x: torch.Tensor):
        return torch.roll(x, 5, 2), torch.roll(x, (-7, 1, 0), (3, 2, 1)), torch.roll(x, -3, 3)


CASES = {
    "containers": (Containers, (torch.rand(3, 4),), False),
    "containers with an optional input": (Containers, (torch.rand(3, 4), torch.rand(3, 4)), False),
    "modules by an index": (Indexed, (torch.rand(3, 4),), False),
    "resized": (Resized, (torch.rand(2, 3, 8, 6),), False),
    "resized, traced": (Resized, (torch.rand(2, 3, 8, 6),), True),
    "sizes": (Sizes, (torch.rand(2, 4, 3, 5),), False),
    "sizes, traced": (Sizes, (torch.rand(2, 4, 3, 5),), True),
    "autocast that is not enabled": (Disabled, (torch.rand(3, 3),), False),
    "autocast of another device": (Elsewhere, (torch.rand(3, 3),), False),
}


@pytest.mark.filterwarnings("ignore:.*converted to a Python:torch.jit.TracerWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_language_has_the_semantics_of_torch(tmp_path: Path, name: str) -> None:
    make, inputs, traced = CASES[name]
    torch.manual_seed(3)
    path = saved(make(), tmp_path / "m.pt", inputs if traced else None)
    expected = torch.jit.load(path)(*inputs)
    ours = to_torch(evaluate(Archive(path), Replay(), [Real(x) for x in inputs]))
    count = assert_equal(ours, _plain(expected))
    print(f"{count} values equal")


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else tuple(map(_plain, value))
    return value


# -- decisions that depend on data ---------------------------------------------------------------------


class OnData(nn.Module):
    def forward(self, x: torch.Tensor):
        if bool(x.sum() > 0):
            return torch.relu(x)
        return torch.tanh(x)


class WhileOnData(nn.Module):
    def forward(self, x: torch.Tensor):
        while bool(x.sum() > 1):
            x = x / 2
        return x


class RangeOnData(nn.Module):
    def forward(self, x: torch.Tensor):
        for i in range(int(x.sum())):
            x = x + i
        return x


class AssertOnData(nn.Module):
    """If all other branches raise an exception, one path remains."""

    def forward(self, x: torch.Tensor):
        if x.size(0) == 3 or x.size(1) < 2:
            raise ValueError("no")
        assert x.size(0) > 0 and x.size(1) > 0, f"bad {x.size()}"
        height = x.size(2)
        if height != 3:  # noqa: SIM102 (nested on purpose)
            if height != 5:
                raise ValueError(f"bad {height}")
        return torch.relu(x)


class UsesADecision(nn.Module):
    def forward(self, x: torch.Tensor):
        large = x.size(0) > 3 and x.size(1) > 3
        return torch.add(x, 1) if large else torch.sub(x, 1)


class NumberByDecision(nn.Module):
    def forward(self, x: torch.Tensor):
        step = 2 if x.size(0) > 3 else 1
        return x[::step]


@pytest.mark.parametrize("module", [OnData, WhileOnData, RangeOnData, UsesADecision, NumberByDecision])
def test_a_decision_on_data_is_refused_with_its_line(tmp_path: Path, module: type[nn.Module]) -> None:
    archive = Archive(saved(module(), tmp_path / "m.pt"))
    with pytest.raises(ControlFlowError, match="depends on the data") as caught:
        evaluate(archive, Notes(), [Unknown()])
    file, _, line = caught.value.where.partition(":")
    source = archive.zip.read(f"{archive.root}{file}", 1 << 20).decode().splitlines()[int(line) - 1].strip()
    assert source in str(caught.value), "the message shows the line it points at"
    assert "\n" not in str(caught.value)


def test_branches_that_only_raise_are_left_out(tmp_path: Path) -> None:
    notes = Notes()
    evaluate(Archive(saved(AssertOnData(), tmp_path / "m.pt")), notes, [Unknown()])
    asking = {"aten::size", "aten::eq", "aten::ne", "aten::lt", "aten::gt"}
    assert [call.target for call in notes.calls if call.target not in asking] == ["aten::relu"]


class Forked(nn.Module):
    def forward(self, x: torch.Tensor):
        return torch.jit.wait(torch.jit.fork(torch.relu, x))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor):
        self.count += 1
        return x * self.count


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = [1]

    def forward(self, x: torch.Tensor):
        self.seen.append(2)
        return x * len(self.seen)


class Scratch(nn.Module):
    """Writes an attribute before it reads it, so it keeps no state between runs."""

    def __init__(self):
        super().__init__()
        self.last = 0

    def forward(self, x: torch.Tensor):
        self.last = x.dim()
        return x * self.last


class Autocast(nn.Module):
    def forward(self, x: torch.Tensor):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
        return y + x


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (Forked, "in parallel"),
        (Counter, "changes `count` from one run"),
        (Cache, "changes a list or dict"),
        (Autocast, r"computes with torch\.autocast"),
    ],
)
def test_code_without_a_single_graph_is_refused(tmp_path: Path, module: type[nn.Module], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence) as caught:
        evaluate(Archive(saved(module(), tmp_path / "m.pt")), Notes(2), [Unknown()])
    assert caught.value.where.startswith("code/__torch__")


class Written(nn.Module):
    """Changes its buffer, or a view of it, in place; what it returns depends on that or not."""

    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.arange(6.0).reshape(2, 3))

    def forward(self, x: torch.Tensor):
        self.w.add_(1)
        return x + self.w


class WrittenView(Written):
    def forward(self, x: torch.Tensor):
        self.w.view(-1)[0].mul_(3)
        return x + self.w


class WrittenAfterwards(Written):
    def forward(self, x: torch.Tensor):
        y = x + self.w
        turned = self.w.detach().t()
        turned += 1
        return y


class Turned(Written):
    def forward(self, x: torch.Tensor):
        self.w.t_()
        return x.t() + self.w


class WrittenCopy(Written):
    def forward(self, x: torch.Tensor):
        copy = self.w.clone()
        copy.add_(1)
        return x + copy + self.w


@pytest.mark.parametrize("module", [Written, WrittenView, WrittenAfterwards, Turned])
@pytest.mark.parametrize("traced", [False, True])
def test_a_network_that_changes_its_tensors_is_refused(tmp_path: Path, module: type[nn.Module], traced: bool) -> None:
    x, made = torch.ones(2, 3), module().eval()
    code = torch.jit.trace(made, x, check_trace=False) if traced else torch.jit.script(made)
    torch.jit.save(code, tmp_path / "m.pt")
    with pytest.raises(SourceError, match="changes a tensor of the module from one run to the next"):
        qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (2, 3)})


class WithStatistics(torch.nn.Module):
    """A norm that updates them: `read` says how they are read again."""

    read: Final[int]

    def __init__(self, read: int) -> None:
        super().__init__()
        self.read = read
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("deviation", torch.ones(2))
        self.register_buffer("second", self.mean[1:])

    def forward(self, x: torch.Tensor):
        mean = self.mean[:] if self.read == 4 else self.mean
        y = F.instance_norm(x[None], mean, self.deviation, None, None, True, 0.5)
        if self.read == 1:
            y = y + self.mean.view(2, 1)
        if self.read == 2:
            y = y * float(self.mean[0])
        if self.read == 3:
            y = y + self.second * 2
        if self.read == 5:
            y = y * self.mean.numel()
        return y


@pytest.mark.parametrize("read", range(6))
def test_statistics_that_change_are_not_read(read: int, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(WithStatistics(read)), tmp_path / "m.pt")
    given = {"input_shapes": {"x": (2, 3)}}
    if read in (0, 5):
        x = torch.arange(6.0).reshape(2, 3)
        (mine,) = qfmt.convert(tmp_path / "m.pt", **given).run({"x": x.numpy()}).values()
        np.testing.assert_allclose(mine, WithStatistics(read)(x).numpy(), atol=1e-6)
    else:
        with pytest.raises(SourceError, match="from one run to the next"):
            qfmt.convert(tmp_path / "m.pt", **given)


@pytest.mark.parametrize("whole", [True, False])
def test_real_numbers_in_a_quantized_tensor_are_refused(whole: bool, tmp_path: Path) -> None:
    """torch quantizes them; they were cast."""

    def function(x: torch.Tensor) -> torch.Tensor:
        q = torch.quantize_per_tensor(x, 0.1, 128, torch.quint8)
        (q if whole else q[0]).copy_(x * 3 if whole else x[1])
        return q.dequantize()

    torch.jit.save(torch.jit.trace(function, torch.ones(2, 3), check_trace=False), str(tmp_path / "m.pt"))
    with pytest.raises(SourceError, match="aten::copy_ writes real numbers into a quantized tensor"):
        qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (2, 3)})


def test_a_copy_of_a_tensor_of_the_module_may_be_changed(tmp_path: Path) -> None:
    x, module = torch.ones(2, 3), WrittenCopy()
    torch.jit.save(torch.jit.script(module), tmp_path / "m.pt")
    (mine,) = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (2, 3)}).run({"x": x.numpy()}).values()
    assert np.array_equal(mine, module(x).numpy())


class AskingForTheBatch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nnqd.Linear(4, 4)

    def forward(self, x: torch.Tensor):
        x = self.fc(x)
        if x.size(0) == 1:
            x = x + 1
        return x


@pytest.mark.parametrize("size", [(1, 2), (3, 3), (6, 9), (0, 4)])
def test_open_sizes_may_be_smaller_than_what_rolls(size: tuple[int, int], tmp_path: Path) -> None:
    x = torch.rand(2, 4, 8, 8)
    torch.jit.trace(Rolled(), x).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    x = torch.rand(2, 4, *size)
    want = [each.numpy() for each in Rolled()(x)]
    given = {model.graph.inputs[0]: x.numpy()}
    for mine, theirs in zip(model.run(given).values(), want, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(runtime(model.to_onnx(), given), want, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(model.to_torch()(x), want, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)


def test_a_batch_is_no_vector(tmp_path: Path) -> None:
    """If the input were one, its number of features would decide."""
    torch.jit.save(torch.jit.script(AskingForTheBatch()), tmp_path / "m.pt")
    assert "depends on the data" in qfmt.convert(tmp_path / "m.pt").no_graph
    model = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (1, 4)})
    assert [node.operator for node in model.nodes] == ["qfmt.DynamicLinear", "Add"]


def test_attributes_written_by_forward_are_not_kept(tmp_path: Path) -> None:
    archive = Archive(saved(Scratch(), tmp_path / "m.pt"))
    for rank in (2, 3):
        notes = Notes(rank)
        evaluate(archive, notes, [Unknown()])
        assert notes.calls[-1].args[1] == rank


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Dropout(0.5), "is in training mode; call model.eval"),
        (nn.BatchNorm2d(3), "from one run to the next; .* call model.eval"),
        (nn.InstanceNorm2d(3, track_running_stats=True, affine=True), None),
        (nn.Dropout(0.0), None),
    ],
)
def test_a_network_in_training_mode(tmp_path: Path, module: nn.Module, message: Optional[str]) -> None:
    path = tmp_path / "m.pt"
    archive = torch.jit.script(nn.Sequential(module).train())
    torch.jit.save(archive, path)
    if message:
        with pytest.raises(SourceError, match=message):
            qfmt.convert(path, input_shapes={"input": (2, 3, 4, 4)})
        return
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    (result,) = qfmt.convert(path, input_shapes={"input": x.shape}).run({"input": x.numpy()}).values()
    np.testing.assert_allclose(result, archive(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def doubled(self, input: Tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    return output * 2


def test_hooks_of_the_root_are_refused(tmp_path: Path) -> None:
    network = Scaled(2.0)
    network.register_forward_hook(doubled)
    path = saved(network, tmp_path / "m.pt")
    with pytest.raises(SourceError, match="has hooks"):
        qfmt.convert(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(b"__forward_hooks__ =", b"(__forward_hooks__)  ="))
    with pytest.raises(SourceError, match="has hooks"):
        qfmt.convert(path)


class Fractional(nn.Module):
    def forward(self, x):
        return torch.arange(x.size(0) / 2)


class AsksForLayout(nn.Module):
    def forward(self, x):
        return x + 1 if x.is_contiguous() else x - 1


class AsksForType(nn.Module):
    def forward(self, x):
        return self.doubled(x)

    def doubled(self, x: Union[torch.Tensor, List[torch.Tensor]]) -> torch.Tensor:
        return x * 2 if isinstance(x, torch.Tensor) else x[0]


@pytest.mark.parametrize(
    "module, words",
    [
        (Fractional, "known only at run time"),
        (AsksForLayout, "torch.is_contiguous"),
        (AsksForType, "which is not supported: `.*isinstance"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, module: type, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        qfmt.convert(saved(module(), tmp_path / "m.pt"), input_shapes={"x": ("N", 3)})


class ReadAsNumber(nn.Module):
    """TorchScript reads the tensor as an int, so the product has 64 bits."""

    def forward(self, x):
        return True * x.to(torch.int32)


def test_a_tensor_is_not_a_number(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="aten::mul is called with a number that is known only at run time"):
        qfmt.convert(saved(ReadAsNumber(), tmp_path / "m.pt"), input_shapes={"x": ()})


class PoolsAll(nn.Module):
    def forward(self, x):
        return F.avg_pool2d(x, [x.size(2), x.size(3)])


class ScalesSizes(nn.Module):
    """Torch before 1.6 traced each interpolation by factors in this way."""

    def forward(self, x):
        return F.interpolate(x, scale_factor=1.7, mode="nearest", recompute_scale_factor=True)


class Spreads(torch.nn.Module):
    def forward(self, x):
        return x.std(dim=1) + F.scaled_dot_product_attention(x, x, x).sum(dim=1)


@pytest.mark.parametrize("module", [PoolsAll, ScalesSizes, Spreads])
def test_a_size_that_is_not_known_can_be_stated(tmp_path: Path, module: type) -> None:
    x, path = torch.rand(2, 3, 5, 7), tmp_path / "m.pt"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.tensor results are registered as constants")
        torch.jit.save(torch.jit.trace(module(), x), str(path))
    with pytest.raises(SourceError, match=r"known only at run time.*; state the sizes of the inputs"):
        qfmt.convert(path)
    (result,) = qfmt.convert(path, input_shapes={"x": ("N", 3, 5, 7)}).run({"x": x.numpy()}).values()
    np.testing.assert_allclose(result, module()(x).numpy(), rtol=1e-6 if module is not Spreads else 1e-5)


def test_dropout_of_everything_is_not_training_mode(tmp_path: Path) -> None:
    path = saved(nn.Sequential(nn.Dropout(1.0), nn.ReLU()).eval(), tmp_path / "m.pt")
    (result,) = qfmt.convert(path).run({"input": np.float32([-1, 2])}).values()
    assert result.tolist() == [0, 2]


class Arguments(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 2.5, y: Optional[torch.Tensor] = None):
        return x * scale if y is None else x + y


def test_inputs_and_their_defaults(tmp_path: Path) -> None:
    archive = Archive(saved(Arguments(), tmp_path / "m.pt"))
    assert [tuple(argument) for argument in archive.inputs] == [
        ("x", "Tensor", False), ("scale", "float", True), ("y", "Optional[Tensor]", True),
    ]  # fmt: skip
    by_default, given = Notes(), Notes()
    evaluate(archive, by_default, {"x": Unknown()})
    assert (by_default.calls[0].target, by_default.calls[0].args[1]) == ("aten::mul", 2.5)
    evaluate(archive, given, [Unknown(), 1.0, Unknown()])
    assert given.calls[0].target == "aten::add"
    with pytest.raises(SourceError, match="needs x"):
        evaluate(archive, Notes(), [])


class NoForward(nn.Module):
    @torch.jit.export
    def encode(self, x: torch.Tensor):
        return x


def test_a_module_without_forward_lists_its_methods(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no `forward`.*encode"):
        evaluate(Archive(saved(NoForward(), tmp_path / "m.pt")), Notes(), [Unknown()])


def test_places_state_module_and_line(tmp_path: Path) -> None:
    archive = Archive(saved(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU())), tmp_path / "m.pt"))
    notes = Notes()
    evaluate(archive, notes, [Unknown()])
    linear, relu = notes.calls
    assert [(call.target, call.place.scope) for call in (linear, relu)] == [
        ("aten::linear", "0"),
        ("aten::relu", "1.0"),
    ]
    assert linear.args[1].path == "0.weight" and linear.args[2].path == "0.bias"
    for call in notes.calls:
        lines = archive.zip.read(f"{archive.root}{call.place.file}", 1 << 20).decode().splitlines()
        assert f"torch.{call.target.removeprefix('aten::')}" in lines[call.place.line - 1]


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.ones(0, 60_000, 1))
        self.register_buffer("b", torch.ones(0, 1, 60_000))

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        return x, torch.matmul(self.a, self.b)


def test_constants_take_no_more_than_the_budget_of_their_source(tmp_path: Path) -> None:
    """0 products of 3.6 billion elements."""
    with pytest.raises(SourceError, match=r"needs 129\.6 GB of memory, more than the limit of 67\.2 MB"):
        qfmt.convert(saved(Outer(), tmp_path / "m.pt"), input_shapes={"x": (1, 4)})


def test_escapes_take_no_memory() -> None:
    tracemalloc.start()
    check_chains('    x = "' + "\\\\" * 1_000_000 + '"\n', "")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_a_message_copies_only_the_beginning_of_a_line() -> None:
    """A loop may show a line of megabytes thousands of times."""

    class Long(str):
        def strip(self, *_: Any) -> str:
            raise AssertionError("the whole line is copied")

    lines: Any = SimpleNamespace(file="code.py", text=[Long("  if x:  # " + "a" * 5000)])
    anything: Any = None
    assert Function(anything, lines, "forward").text_of(1) == "if x:  # " + "a" * 191


def test_code_is_parsed_by_threads() -> None:
    """Python 3.11 fails if two of them parse at the same time."""

    def parse(number: int) -> int:
        text = "\n".join(f"x{number} = [a + (b * ({each} - c)) for a in range({each})]" for each in range(400))
        return sum(len(syntax_tree(text).body) for _ in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(parse, range(8))] == [4000] * 8


class Normalized(nn.Module):
    """torch.norm asks for the layout of its input; other code for more that all tensors of a file have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_cpu or x.is_cuda or x.is_meta or x.is_sparse or x.is_complex() or x.layout != torch.strided:
            x = x * 0
        return x / torch.norm(x, p=2, dim=1, keepdim=True) + torch.norm(x) + torch.norm(x, dim=0, p=1)


def test_what_all_tensors_have_decides_no_branch(tmp_path: Path) -> None:
    network, x = Normalized(), torch.randn(2, 3)
    model = qfmt.convert(saved(torch.jit.script(network), tmp_path / "m.pt"))
    (ours,) = model.run({"x": x.numpy()}).values()
    np.testing.assert_allclose(ours, network(x).numpy(), rtol=1e-6)
