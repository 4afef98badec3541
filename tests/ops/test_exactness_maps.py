"""Compares pools, means, normalizations, cat and resizing with torch's kernels, in each memory layout if it
matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from qfmt.ops import OPERATORS
from support.torch_kernels import (
    ENGINES,
    Comparison,
    any_grid,
    check,
    compare,
    f32,
    integers,
    printed_ledger,
    rule_of,
    to_torch,
)

quantized = torch.ops.quantized


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@pytest.fixture(scope="module", autouse=True)
def _ledger() -> Iterator[None]:
    yield from printed_ledger()


# Operators that move or concatenate integers


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "rule"), [("cat, NCHW", "reciprocal_fma"), ("cat, NHWC", "premultiplied"), ("aten cat", "reciprocal_fma")]
)
@pytest.mark.filterwarnings("ignore:All inputs of this cat operator must share the same quantization parameters")
def test_cat(name: str, rule: str, engine: str) -> None:
    check(name, engine, joins(name, rule, engine), strict=True)


def joins(name: str, rule: str, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(12)
    for dtype in ("uint8", "int8"):
        for _ in range(5):
            parts = [(integers(rng, (2, channels, 9, 8), dtype), any_grid(rng, dtype)) for channels in (64, 128)]
            tensors = [to_torch(*part) for part in parts]
            if name == "cat, NHWC":
                tensors = [channels_last(tensor) for tensor in tensors]
            q = any_grid(rng, dtype)
            theirs = (
                torch.cat(tensors, 1) if name == "aten cat" else quantized.cat(tensors, 1, q.scale[0], q.zero_point[0])
            )
            yield compare("Concat", list(parts), theirs, rule, axis=1)


LAYOUTS = {"NCHW": lambda x: x, "NHWC": channels_last}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("pad", "dilation", "ceil"), [(1, 1, False), (1, 1, True), (0, 2, False)])
def test_max_pool(pad: int, dilation: int, ceil: bool, layout: str, engine: str) -> None:
    if engine == "qnnpack" and dilation > 1:
        pytest.skip("qnnpack ignores the dilation of uint8 inputs")
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(13)
    for dtype in ("uint8", "int8"):
        x, q = integers(rng, (2, 20, 13, 12), dtype), any_grid(rng, dtype)
        theirs = functional.max_pool2d(LAYOUTS[layout](to_torch(x, q)), 3, 2, pad, dilation, ceil)
        window = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (pad,) * 4, "dilations": (dilation,) * 2}
        found = compare("MaxPool", [(x, q)], theirs, "", **window, ceil_mode=int(ceil))
        check("max_pool2d", engine, iter([found]), strict=True)


@pytest.mark.parametrize(("kernel", "size"), [(3, 2), (2, 1), (4, 3)])
def test_a_window_of_ceil_mode_that_is_larger_than_the_input(kernel: int, size: int) -> None:
    x = np.random.default_rng(16).integers(-9, 9, (2, 3, size, size)).astype(np.float32)
    both = {"MaxPool": functional.max_pool2d, "AveragePool": functional.avg_pool2d}
    window = {"kernel_shape": (kernel,) * 2, "strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1), "ceil_mode": 1}
    for name, pool in both.items():
        theirs = pool(torch.from_numpy(x), kernel, 2, 0, ceil_mode=True).numpy()
        entry = OPERATORS[name]
        mine = entry.reference(x, **entry.complete(window))
        np.testing.assert_allclose(mine[0] if isinstance(mine, list) else mine, theirs, rtol=1e-6)


# Means


AVERAGES = {
    "avg_pool2d, NCHW": (2, LAYOUTS["NCHW"], "mean_divide_offset", "mean_reciprocal"),
    "avg_pool2d, NHWC": (2, channels_last, "mean_reciprocal", "mean_reciprocal"),
    "avg_pool3d": (3, LAYOUTS["NCHW"], "mean_reciprocal", ""),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", AVERAGES)
def test_average_pools(name: str, engine: str) -> None:
    rank, layout, rule, qnnpack = AVERAGES[name]
    if engine == "qnnpack" and not qnnpack:
        pytest.skip("qnnpack has no such pool")
    found = average_pools(rank, layout, rule if engine != "qnnpack" else qnnpack, engine)
    check(name, engine, found, strict=engine != "qnnpack")


def average_pools(rank: int, layout: Callable[[torch.Tensor], torch.Tensor], rule: str, engine: str) -> Iterator[Any]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(14)
    pool = {2: functional.avg_pool2d, 3: functional.avg_pool3d}[rank]
    for dtype in ("uint8", "int8"):
        for kernel, stride, pad, ceil, count in (
            (2, 2, 0, False, True),
            (3, 2, 1, True, True),
            (3, 1, 1, False, False),
        ):
            if engine == "qnnpack" and not count:
                continue  # torch counts the padding all the same
            x, q = integers(rng, (2, 64, 11, 12, 9)[: rank + 2], dtype), any_grid(rng, dtype)
            theirs = pool(layout(to_torch(x, q)), kernel, stride, pad, ceil, count)
            window = {"kernel_shape": (kernel,) * rank, "strides": (stride,) * rank, "pads": (pad,) * (2 * rank)}
            options = {"dilations": (1,) * rank, "ceil_mode": int(ceil), "count_include_pad": int(count)}
            yield compare("AveragePool", [(x, q)], theirs, rule, **window, **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (6, 6)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_adaptive_average_pool(layout: str, size: tuple[int, int], engine: str) -> None:
    """Networks pool in NHWC, the layout of quantized convolutions; qnnpack uses fixed point."""
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(15)
    for dtype in ("uint8", "int8"):
        for _ in range(10):
            x, q = integers(rng, (4, 64, 12, 10), dtype), any_grid(rng, dtype)
            theirs = functional.adaptive_avg_pool2d(LAYOUTS[layout](to_torch(x, q)), size)
            operator = "GlobalAveragePool" if size == (1, 1) else "qfmt.AdaptiveAveragePool"
            attributes = {} if size == (1, 1) else {"output_size": size}
            rule = rule_of(operator, engine) if layout == "NHWC" or engine == "qnnpack" else "mean_stored"
            found = compare(operator, [(x, q)], theirs, rule, **attributes)
            check(f"adaptive_avg_pool2d, {layout}", engine, iter([found]), strict=engine != "qnnpack")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("axes", [(2, 3), (3,), (1, 2, 3), (1,)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_mean(layout: str, axes: tuple[int, ...], engine: str) -> None:
    """Over the innermost axes torch sums integers; otherwise it sums dequantized floats, which may miss a tie."""
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(16)
    inner = axes != (1,) and layout == "NCHW" and engine != "qnnpack"
    for dtype in ("uint8", "int8"):
        for _ in range(10):
            x, q = integers(rng, (4, 64, 8, 7), dtype), any_grid(rng, dtype)
            theirs = torch.mean(LAYOUTS[layout](to_torch(x, q)), list(axes), True)
            operands = [(x, q), (np.array(axes), None)]
            found = compare("ReduceMean", operands, theirs, rule_of("ReduceMean", engine), keepdims=1)
            check(f"mean, {'innermost' if inner else 'other'} axes", engine, iter([found]), strict=inner)


# Normalizations. Inputs with a small range far from 0 show how the variance is computed.


def narrow(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    centre = int(rng.integers(-100, 100)) + (128 if dtype == "uint8" else 0)
    return (centre + rng.integers(-4, 5, shape)).astype(dtype)


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "instance_norm"])
def test_normalizations(name: str, engine: str) -> None:
    check(name, engine, normalizations(name, engine), strict=True)


def normalizations(name: str, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(17)
    for dtype in ("uint8", "int8"):
        for values in (integers, narrow):
            for _ in range(5):
                x, xq, yq = values(rng, (2, 32, 8, 16), dtype), any_grid(rng, dtype), any_grid(rng, dtype, -2, -1)
                size = 16 if name == "layer_norm" else 32
                w, b = rng.normal(1, 0.3, size).astype(f32), rng.normal(0, 0.3, size).astype(f32)
                tail = (torch.from_numpy(w), torch.from_numpy(b), 1e-5, yq.scale[0], yq.zero_point[0])
                if name == "layer_norm":
                    theirs, operator, extra = quantized.layer_norm(to_torch(x, xq), [16], *tail), "Layer", {"axis": -1}
                elif name == "group_norm":
                    theirs, operator = quantized.group_norm(to_torch(x, xq), 4, *tail), "Group"
                    extra = {"num_groups": 4}
                else:
                    theirs, operator, extra = quantized.instance_norm(to_torch(x, xq), *tail), "Instance", {}
                operator += "Normalization"
                operands = [(x, xq), (w, None), (b, None)]
                yield compare(operator, operands, theirs, rule_of(operator, engine), epsilon=1e-5, **extra)


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_batch_norm(rank: int, engine: str) -> None:
    check(f"batch_norm{rank}d", engine, batch_norms(rank, engine), strict=True)


def batch_norms(rank: int, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(18)
    for dtype in ("uint8", "int8"):
        for relu in (False, True):
            x, xq, yq = integers(rng, (2, 64, 9, 8, 5)[: rank + 2], dtype), any_grid(rng, dtype), any_grid(rng, dtype)
            w, b, mean = (rng.normal(centre, 0.5, 64).astype(f32) for centre in (1, 0, 0))
            constants = [w, b, mean, rng.uniform(0.3, 2, 64).astype(f32)]
            call = getattr(quantized, f"batch_norm{rank}d" + "_relu" * relu)
            theirs = call(to_torch(x, xq), *map(torch.from_numpy, constants), 1e-5, yq.scale[0], yq.zero_point[0])
            operands = [(x, xq), *((each, None) for each in constants)]
            rule = rule_of("BatchNormalization", engine)
            yield compare("BatchNormalization", operands, theirs, rule, relu=relu, epsilon=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_softmax(engine: str) -> None:
    check("softmax", engine, softmaxes(engine))


def softmaxes(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(19)
    for dtype, zero_point in (("uint8", 0), ("int8", -128)):
        for _ in range(5):
            x, q = integers(rng, (64, 40), dtype), any_grid(rng, dtype)
            theirs = quantized.softmax(to_torch(x, q), 1, 1 / 256, zero_point)
            yield compare("Softmax", [(x, q)], theirs, rule_of("Softmax", engine), axis=1)


# Resizing


NEAREST = {
    "nearest": {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "nearest-exact": {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"},
}


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(20, 11), (5, 3), 2.0, 1.7, 0.6])
@pytest.mark.parametrize("mode", [*NEAREST, "align_corners", "half_pixel"])
def test_resize(mode: str, size: tuple[int, int] | float, layout: str, engine: str) -> None:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(20)
    for dtype in ("uint8", "int8"):
        x, q = integers(rng, (2, 64, 9, 7), dtype), any_grid(rng, dtype)
        options: dict[str, Any] = {"mode": mode if mode in NEAREST else "bilinear"}
        if mode not in NEAREST:
            options["align_corners"] = mode == "align_corners"
        if isinstance(size, tuple):
            theirs = functional.interpolate(LAYOUTS[layout](to_torch(x, q)), size=size, **options)
            how = [None, None, (np.array([2, 64, *size]), None)]
        else:
            theirs = functional.interpolate(LAYOUTS[layout](to_torch(x, q)), scale_factor=size, **options)
            how = [None, (np.array([1, 1, size, size], np.float64), None)]
        attributes = NEAREST.get(mode, {"coordinate_transformation_mode": mode})
        rule = "interpolate_fma" if layout == "NHWC" else "interpolate"
        kind = "nearest" if mode in NEAREST else "linear"
        found = compare("Resize", [(x, q), *how], theirs, rule, mode=kind, **attributes)
        check(f"upsample {mode}, {layout}", engine, iter([found]), strict=True)
