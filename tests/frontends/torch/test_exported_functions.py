"""Compares float operators of exported programs with torch, for each set of operators that programs are exported
in."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import qfmt  # noqa: E402
from networks.decomposed import Function, activation, randn, whole  # noqa: E402
from networks.pytorch import flat, quiet  # noqa: E402
from qfmt import Model  # noqa: E402
from qfmt.errors import SourceError  # noqa: E402
from qfmt.frontends.options import Options  # noqa: E402
from qfmt.frontends.torch.exported.archive import Archive  # noqa: E402
from qfmt.frontends.torch.exported.source import network  # noqa: E402

F = torch.nn.functional


X, POSITIVE, IDS = randn(2, 3, 8), randn(2, 3, 8).abs() + 0.1, whole(8, 2, 3, 5)
SPECIAL = torch.tensor([-math.inf, -2.0, -0.0, 0.0, 4.0, math.inf, math.nan])
Q, K, V = (randn(2, 4, 6, 8, seed=seed) for seed in range(3))
MASK = whole(2, 6, 6).bool()

FUNCTIONS: Mapping[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "trigonometry": (lambda x: (x.sin(), x.cos(), x.tan(), x.sinh(), x.cosh(), x.atan(), x.erf()), [X]),
    "arcs": (lambda x: (x.clamp(-0.9, 0.9).acos(), x.clamp(-0.9, 0.9).asin(), x.round(), x.sign(), x.trunc()), [X]),
    "rounded": (lambda x, n: (x.floor(), x.ceil(), n.floor(), n.ceil(), n.round()), [X, whole(8, 5, 6)]),
    "roots": (lambda x: (x.rsqrt(), x.square(), x.log2(), x.reciprocal(), x.sqrt()), [POSITIVE]),
    "powers": (lambda x: (x**0.5, x**-0.5, x**torch.tensor(0.5), x**2, x**-1.5), [SPECIAL]),
    "comparisons": (lambda x, y: (x < y, x <= 0, x > 0.5, x >= y, x == y, x != x.round()), [X, randn(2, 3, 8, seed=1)]),
    "logic": (lambda x, y: (x & y, x | y, x ^ y, ~x, torch.logical_and(x, y), torch.logical_not(x)), [MASK, MASK.T]),
    "integer_logic": (lambda x: (x & 3, x | 4, x ^ 1, torch.logical_or(x, x > 3)), [whole(8, 5, 6)]),
    "any_all": (lambda x: (x.any(), x.all(), x.any(1), x.all(0, keepdim=True), (x * 2.0).any(-1)), [MASK]),
    "where": (lambda x: (torch.where(x > 0, x, 0.0), torch.where(x > 0, 1.0, -1.0), x.masked_fill(x < 0, 7)), [X]),
    "promotion": (
        lambda x, n: (n * 0.5, x + n, n > 2.5, x * (n > 2), n / 2, (n > 2) + 1),
        [randn(5, 6), whole(8, 5, 6)],
    ),
    "quotients": (
        lambda x, n: ((n - 4) // 3, torch.div(n - 4, 3, rounding_mode="trunc"), x // 0.3, torch.fmod(x, 0.5)),
        [randn(5, 6), whole(8, 5, 6)],
    ),
    "extremes": (lambda x: (x.amax(1), x.amin((0, 2)), x.argmax(-1), x.argmin(1, keepdim=True), x.prod(2)), [X]),
    "extremes_of_all": (lambda x: (x.argmax(), x.argmin(keepdim=True), x.max(), x.min()), [X]),
    "extremes_and_places": (
        lambda x, n: (*x.max(1), *torch.min(x, -1, keepdim=True), torch.max(x, x.flip(0)), *n.max(0)),
        [X, whole(4, 5, 6)],
    ),
    "vector_norms": (
        lambda x: (
            x.norm(), x.norm(1, dim=1), torch.linalg.vector_norm(x, dim=(0, 2), keepdim=True), F.normalize(x, dim=1),
            torch.linalg.vector_norm(x, float("inf"), 1), torch.linalg.vector_norm(x, -float("inf")),
        ),
        [X],
    ),
    "vectors": (lambda a, b: (torch.outer(a, b), torch.dot(a, a), torch.logsumexp(a * 9, 0)), [randn(5), randn(6)]),
    "types_asked_for": (
        lambda x, n: (
            x.cumsum(0, dtype=torch.float64), n.cumsum(0, dtype=torch.float32), x.sum(1, dtype=torch.float64),
            n.mean(dtype=torch.float32), n.prod(1, dtype=torch.float32), F.softmax(x, -1, dtype=torch.float64),
        ),
        [X, whole(4, 5, 6)],
    ),
    "integers_add_up_wide": (lambda n: (n.sum(), n.prod(1), n.cumsum(1), (n > 2).sum(0)), [whole(4, 5, 6).int()]),
    "bytes_beside_numbers": (lambda n: (n == -1, n > 300, n + 250), [whole(256, 5, 6).to(torch.uint8)]),
    "moments": (lambda x: (x.var(-1), x.std(1, unbiased=False), *torch.var_mean(x, (1, 2), keepdim=True)), [X]),
    "cumsum": (lambda x, m: (x.cumsum(1), m.cumsum(-1), m.long().cumsum(0)), [X, MASK]),
    "triangles": (lambda x: (x.tril(), x.triu(1), torch.ones(6, 6).tril(-1)), [X]),
    "diff": (lambda x, m: (x.diff(), x.diff(dim=1, prepend=x[:, :1]), m.diff(dim=0)), [X, MASK]),
    "gather": (lambda x, i: x.gather(2, i), [X, IDS]),
    "index_one": (lambda x, i: (x[i], x[:, i], x[..., i.flatten()]), [randn(8, 9, 10), whole(8, 2, 3)]),
    "index_several": (
        lambda x, i, j: (x[i, j], x[:, i, j], x[:, i, j - 3]),
        [randn(8, 9, 10), whole(8, 2, 1), whole(8, 3)],
    ),
    "rolled": (lambda x: (x.roll((1, -2), (1, 2)), x.roll(3, 0), x.flip(1, 2), x.movedim(0, 2)), [X]),
    "repeated": (lambda x: (x.repeat_interleave(2, 1), x.broadcast_to(4, 2, 3, 8), x.unflatten(2, (2, 4))), [X]),
    "grids": (
        lambda x: [
            grid
            for order in ("ij", "xy")
            for grid in torch.meshgrid(x[0, 0], x[0, :, 0], x[:, 0, 0], x[0, 0, 0], indexing=order)
        ],
        [X],
    ),
    "topk": (lambda x: x.topk(3, -1)[0], [X]),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), [X, randn(2, 5, 8)]),
    "baddbmm": (lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2), [randn(2, 3, 5), X, randn(2, 8, 5)]),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y, value=0.5), [X, randn(2, 3, 8, seed=2)]),
    "activations": (lambda x: (F.glu(x), F.logsigmoid(x), F.gelu(x, approximate="tanh"), F.silu(x)), [X]),
    "shrinkage": (lambda x: (F.hardshrink(x), F.hardshrink(x, 1), F.softshrink(x), F.softshrink(x, 1)), [X]),
    "logarithms": (lambda x: (F.softplus(x), x.abs().log1p(), x.expm1(), F.log_softmax(x, -1)), [X]),
    "norms": (
        lambda x, w: (F.rms_norm(x, (8,), w, 1e-5), F.rms_norm(x, (3, 8)), F.layer_norm(x, (8,), w)),
        [X, randn(8)],
    ),
    "group_norm": (lambda x: (F.group_norm(x, 2), F.instance_norm(x)), [randn(2, 4, 5, 5)]),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [Q, K, V]),
    "attention_causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [Q, K, V]),
    "attention_masked": (
        lambda q, k, v, m: (
            F.scaled_dot_product_attention(q, k, v, m, scale=0.3),
            F.scaled_dot_product_attention(q, k, v, m * 0.5),
        ),
        [Q, K, V, MASK],
    ),
    "attention_nothing_left": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), [Q, K, V, MASK & (torch.arange(6) > 1)[:, None]]
    ),
    "attention_groups": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), [Q, K[:, :2], V[:, :2]]
    ),
    "rotary": (
        lambda x, p: torch.cat((-x[..., 4:], x[..., :4]), -1) * p[:, None].float().cos() + x * p[:, None].float().sin(),
        [Q, whole(9, 2, 6, 8)],
    ),
    "mask_of_positions": (
        lambda x: torch.arange(x.shape[1])[None, :] <= torch.arange(x.shape[1])[:, None], [X]
    ),
    "matrices": (lambda a, m: (m.mv(a), a @ torch.eye(5, 4), torch.eye(5)[1] * a), [randn(5), randn(3, 5)]),
    "parts": (lambda x: (*x.tensor_split(3, 2), *x.tensor_split((1, -2), 2), x.tensor_split(1)[0]), [X]),
    "windows": (lambda x: (x.unfold(2, 3, 2), x.unfold(-2, 3, 1), x.unfold(0, 1, 1).unfold(2, 4, 3)), [X]),
    "norms_of_batches": (
        lambda x, y, w: (F.batch_norm(x, None, None, w, training=True), F.batch_norm(y, None, None, training=True)),
        [X, randn(5, 4), randn(3)],
    ),
    "norm_of_one": (lambda x: F.batch_norm(x[:1], None, None, training=True, eps=1e-3), [X]),
    "remainders": (
        lambda x, n, m: (x % 0.3, x % -0.7, x % x.flip(0), n % 3, (n - 4) % -3, (n - 4) % m, 2.5 % (x + 3)),
        [randn(5, 6), whole(8, 5, 6), whole(5, 5, 6) + 1],
    ),
    "tiles": (lambda x: (x.tile(2), x.tile(2, 1, 3, 1), torch.tile(x, (1, 2, 1))), [X]),
    "bicubic": (
        lambda x: (
            F.interpolate(x, (7, 11), mode="bicubic"), F.interpolate(x, scale_factor=1.7, mode="bicubic"),
            F.interpolate(x, (3, 9), mode="bicubic", align_corners=True),
        ),
        [randn(2, 3, 5, 6)],
    ),
    "in_place": (lambda x: (x + 1).mul_(2).relu_().add_(x), [X]),
    "turned": (lambda x: (x.mT, x.adjoint(), x.movedim(0, 2), x.moveaxis((0, 1), (-1, 0)), x[0].T, x[0].H), [X]),
    "unchanged": (lambda x: (x.ravel(), x.positive() + 1, x.real * 2, x.conj().resolve_conj() - 1), [X]),
    "no_grad": (lambda x: inside_no_grad(x), [X]),
}  # fmt: skip


def inside_no_grad(x: Any) -> Any:
    with torch.no_grad():
        y = x.cos()
    return y * x


def converted(program: Any) -> Model:
    """Convert a program that need not be quantized."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    archive = Archive(buffer.getvalue())
    return network(archive, {}).model(Options())


@pytest.fixture(scope="module")
def core() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions into the operators of the core, which it otherwise looks up for each program."""
    return torch.export.default_decompositions().materialize()


@pytest.mark.parametrize("name", FUNCTIONS)
@quiet()
def test_function_is_torchs(name: str, core: dict[Any, Callable[..., Any]]) -> None:
    """As it is exported, and decomposed."""
    function, inputs = FUNCTIONS[name]
    program = torch.export.export(Function(function).eval(), tuple(inputs))
    expected = [tensor.numpy() for tensor in flat(function(*inputs))]
    for form, each in (("training", program), ("core", program.run_decompositions(core))):
        model = converted(each)
        given = {name: tensor.numpy() for name, tensor in zip(model.graph.inputs, inputs, strict=True)}
        results = list(model.run(given).values())
        assert [(r.shape, r.dtype) for r in results] == [(e.shape, e.dtype) for e in expected], form
        for mine, theirs in zip(results, expected, strict=True):
            if theirs.dtype.kind == "f":
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max(), err_msg=form)
            else:
                assert np.array_equal(mine, theirs), form


def written_forward(x: Any) -> Any:
    y = x * 2
    y[0].mul_(3)
    return y


def written_backward(x: Any) -> Any:
    y = x * 2
    z = y.view(-1)
    y.relu_()
    return z


def written_turned(x: Any) -> Any:
    y = x * 2
    y.transpose(1, 2)[0].add_(1)
    return y + 1


def written_by_index(x: Any) -> Any:
    y = x * 2
    y[:, 0], y[:, -1], y[:, 1:, 3:5], y[..., -2:] = 0, x[:, 1], x[:, 1:, 5:7], 7
    return y


def chosen(x: Any) -> Any:
    real = activation(x)
    return torch.where(real > 0, real, 0)


@quiet()
def test_a_number_beside_a_tensor_is_verified(tmp_path: Path) -> None:
    """Decomposed, it is a tensor that torch makes of the number."""
    program = torch.export.export(Function(chosen).eval(), (X,)).run_decompositions()
    torch.export.save(program, tmp_path / "m.pt2")
    report = qfmt.verify(tmp_path / "m.pt2", qfmt.convert(tmp_path / "m.pt2"))
    assert report.ok and report.outputs[0].outputs > 0


def test_images_of_integers_are_not_interpolated() -> None:
    """torch rounds them: its results are not those of floats."""

    def enlarged(x: Any) -> Any:
        image = torch.nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear")
        return activation(image.to(torch.float32))

    with quiet():
        program = torch.export.export(Function(enlarged).eval(), (torch.zeros(1, 3, 4, 4, dtype=torch.uint8),))
    with pytest.raises(SourceError, match="interpolates integers"):
        converted(program)


def written_after_a_block(x: Any) -> Any:
    y = x * 2
    with torch.no_grad():
        view, other = y.view(-1), x + 1
    view.mul_(3)
    return y + other


def written_through_a_view_without_equivalent(x: Any) -> Any:
    y = x * 2
    y.hsplit(3)[0].add_(1)
    return y


def written_before_a_view_is_read(x: Any) -> Any:
    y = x * 2
    z, grid = torch.einsum("ijk->kji", y), torch.meshgrid(y[0, 0], y[1, 0], indexing="ij")[0]
    y.add_(1)
    return z.sum() + grid


def written_by_a_norm(x: Any) -> Any:
    mean, deviation = torch.zeros(3), torch.ones(3)
    F.instance_norm(x, mean, deviation, use_input_stats=True)
    return x + mean[:, None]


def written_by_a_norm_of_the_batch(x: Any) -> Any:
    mean, deviation = torch.zeros(3), torch.ones(3)
    F.batch_norm(x, mean, deviation, training=True)
    return x + mean[:, None]


def written_as_the_result_of_a_sum(x: Any) -> Any:
    y = x * 2
    torch.add(x[0], 1.0, out=y[1])
    return y * 1


def written_as_results_by_name(x: Any) -> Any:
    y = x * 2
    torch.aminmax(x[0], dim=0, out=(y[0, 0], y[0, 1]))
    return y * 1


def written_with_many(x: Any) -> Any:
    y = x * 2
    torch._foreach_add_([y[0]], 1.0)
    return y * 1


def written_by_a_bitwise_operator(x: Any) -> Any:
    y = x > 0
    z = y[0]
    z &= x[1] > 0
    return y


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (written_as_the_result_of_a_sum, "aten::add writes its result into another tensor"),
        (written_as_results_by_name, "no equivalent in qfmt: aten::aminmax"),
        (written_with_many, "no equivalent in qfmt: aten::_foreach_add_"),
        (written_after_a_block, "changed through another view"),
        (written_through_a_view_without_equivalent, "aten::hsplit"),
        (written_before_a_view_is_read, "changed through another view"),
        (written_by_a_norm, "instance_norm changed"),
        (written_by_a_norm_of_the_batch, "statistics of the batch"),
    ],
)
@quiet()
def test_changes_by_calls_whose_results_are_not_read_are_not_lost(function: Any, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        converted(torch.export.export(Function(function).eval(), (X,), strict=False))


@quiet()
def test_a_block_that_changes_its_own_values_is_supported() -> None:
    """What it reads beside them, as a weight, is not changed."""
    weight = randn(8, 8)

    def function(x: Any) -> Any:
        with torch.no_grad():
            y = (x @ weight).relu_()
        return y.mul_(2) + weight[0]

    model = converted(torch.export.export(Function(function).eval(), (X,)))
    (mine,) = model.run({model.graph.inputs[0]: X.numpy()}).values()
    np.testing.assert_allclose(mine, function(X).numpy(), rtol=1e-5, atol=1e-6)


@quiet()
def test_a_block_that_returns_nothing_is_supported() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        with torch.no_grad():
            y.add_(1)
        return y * x

    model = converted(torch.export.export(Function(function).eval(), (X,), strict=False))
    (mine,) = model.run({model.graph.inputs[0]: X.numpy()}).values()
    np.testing.assert_array_equal(mine, function(X).numpy())


@pytest.mark.parametrize("function", [written_backward, written_turned])
@quiet()
def test_writing_through_a_view_is_refused_or_right(function: Any) -> None:
    """A program in the training set of operators writes in place; one in the core set does not."""
    program = torch.export.export(Function(function).eval(), (X,))
    with pytest.raises(SourceError, match=r"changed through another view of it.*run_decompositions"):
        converted(program)
    model = converted(program.run_decompositions())
    (mine,) = model.run({model.graph.inputs[0]: X.numpy()}).values()
    np.testing.assert_allclose(mine, function(X).numpy(), rtol=1e-6)


@pytest.mark.parametrize("function", [written_forward, written_by_index, written_by_a_bitwise_operator])
@quiet()
def test_writing_to_slices(function: Any) -> None:
    program = torch.export.export(Function(function).eval(), (X,), strict=False)
    for form in (program, program.run_decompositions()):
        model = converted(form)
        (mine,) = model.run({model.graph.inputs[0]: X.numpy()}).values()
        np.testing.assert_array_equal(mine, function(X).numpy())


ON_INTEGERS: Mapping[str, Callable[..., Any]] = {
    "relu": F.relu, "clamp": lambda q: q.clamp(0, 9), "abs": abs, "pad": lambda q: F.pad(q, [1, 1]),
    "compare": lambda q: q > 0, "sum": lambda q: q.sum(), "sigmoid": lambda q: q.sigmoid(), "product": lambda q: q * X,
    "least": lambda q: q.minimum(torch.tensor(5, dtype=torch.int8)), "matmul": lambda q: q @ q.transpose(1, 2),
    "two grids": lambda q: torch.cat([q, torch.ops.quantized_decomposed.quantize_per_tensor(X, 0.5, 0, *INT8)]),
}  # fmt: skip
INT8 = -128, 127, torch.int8


@pytest.mark.parametrize("name", ON_INTEGERS)
@quiet()
def test_integers_of_quantized_decomposed_are_not_numbers_on_a_grid(name: str) -> None:
    def function(x: Any) -> Any:
        return ON_INTEGERS[name](torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 3, *INT8))

    with pytest.raises(SourceError, match=r"computes with integers that were quantized.*dequantize them first"):
        converted(torch.export.export(Function(function).eval(), (X,)))


@quiet()
def test_moved_and_ordered_integers_of_quantized_decomposed() -> None:
    def function(x: Any) -> Any:
        q = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 3, *INT8)
        return q.transpose(0, 1), torch.cat([q, q]), q.amax(1), torch.maximum(q, q.flip([0])), q[:, 1:]

    model = converted(torch.export.export(Function(function).eval(), (X,)))
    results = model.run({model.graph.inputs[0]: X.numpy()}).values()
    for mine, theirs in zip(results, function(X), strict=True):
        assert np.array_equal(mine, theirs.numpy())


@quiet()
def test_writing_to_a_view_that_is_not_read_again_is_supported() -> None:
    def function(x: Any) -> Any:
        y = (x * 2).flatten(1).relu_()
        z = y.add_(1)
        return z.mul_(3) + y

    model = converted(torch.export.export(Function(function).eval(), (X,)))
    (mine,) = model.run({model.graph.inputs[0]: X.numpy()}).values()
    np.testing.assert_allclose(mine, function(X).numpy(), rtol=1e-6)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@quiet()
def test_recurrent_layers_are_torchs(kind: str, batch_first: bool) -> None:
    torch.manual_seed(1)
    layer = getattr(torch.nn, kind)(5, 6, num_layers=2, bidirectional=batch_first, batch_first=batch_first).eval()
    x = randn(4, 3, 5)
    model = converted(torch.export.export(layer, (x,)))
    with torch.no_grad():
        expected = flat(layer(x))
    results = list(model.run({model.graph.inputs[0]: x.numpy()}).values())
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-6)


def under_autocast(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.mT


@quiet()
def test_autocast_is_refused_until_it_is_decomposed() -> None:
    program = torch.export.export(Function(under_autocast), (X,))
    with pytest.raises(SourceError, match="computes with torch"):
        converted(program)
    model = converted(program.run_decompositions())
    (result,) = model.run({model.graph.inputs[0]: X.numpy()}).values()
    assert result.dtype.name == "bfloat16"


@quiet()
def test_numbers_among_the_inputs_keep_their_value() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any, factor: float, twice: bool) -> Any:
            return x * factor * (2 if twice else 1)

    model = converted(torch.export.export(Scaled(), (X, 1.5, True)))
    (result,) = model.run({"x": X.numpy()}).values()
    np.testing.assert_array_equal(result, (X * 1.5 * 2).numpy())


@quiet()
def test_element_types_that_are_not_supported_are_named() -> None:
    with pytest.raises(SourceError, match="element type complex64, which is not supported"):
        converted(torch.export.export(Function(lambda x: x.to(torch.complex64).abs()), (X,)))
