"""Windows and images that kernels compute wrongly in torch 2.13: `auto` and `fast` have the integers of the file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from networks.random_net import Net, grid
from qfmt import Quantization

CASES = {
    "one channel, growing strides": ((3, 10, 1), 3, (7, 3), (1, 2), (3, 1), (1, 1)),
    "one channel, no padding": ((4, 2, 3), 4, (1, 3), (1, 3), (0, 0), (1, 1)),
    "one channel, padded depth": ((4, 1, 7, 7), 4, (2, 7, 7), (1, 1, 1), (1, 0, 1), (1, 1, 1)),
    "dilated, in the padding": ((16, 13, 1), 4, (3, 2), (2, 1), (2, 1), (1, 2)),
    "dilated volume, in the padding": ((8, 2, 2, 1), 1, (1, 1, 2), (2, 2, 1), (2, 1, 1), (1, 1, 2)),
    "width 1": ((4, 9, 9), 1, (3, 1), (1, 1), (1, 0), (1, 1)),
    "a dilated kernel of 1, which crashed": ((2, 1), 1, (1,), (3,), (2,), (2,)),
}


@pytest.mark.parametrize("case", CASES)
def test_windows_that_onednn_sums_wrongly(case: str) -> None:
    size, group, kernel, strides, pads, dilations = CASES[case]
    rng = np.random.default_rng(1)
    net = Net(rng)
    x = net.input(2, *size, q=Quantization.per_tensor(0.05, 191, "uint8"))
    weight = rng.integers(-127, 128, (2 * group, size[0] // group, *kernel)).astype(np.int8)
    w = net.constant(weight, Quantization.per_tensor(0.01, 0, "int8"))
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads * 2, "dilations": dilations, "group": group}
    y = net.node("Conv", [x, w], grid(rng, scale=0.5), "float_bias", **attributes)
    model = net.model(y)
    given = rng.integers(0, 256, (2, *size)).astype(np.uint8)
    found = model.to_torch()(torch.from_numpy(given)).numpy()
    assert np.array_equal(found, model.run({x: given})[y])


@pytest.mark.parametrize("operator", ["Resize", "qfmt.AdaptiveAveragePool"])
@pytest.mark.parametrize("engine", ["auto", "fast"])
def test_images_of_single_pixels(operator: str, engine: str) -> None:
    """torch's kernels mix up their channels."""
    rng = np.random.default_rng(2)
    net, q = Net(rng), Quantization.per_tensor(0.05, 7, "uint8")
    x = net.input(2, 8, 1, 1, q=q)
    if operator == "Resize":
        scales = net.constant(np.array([1, 1, 2, 3], np.float32))
        y = net.node(operator, [x, "", scales], q, "interpolate", mode="linear")
    else:
        y = net.node(operator, [x], q, "mean_reciprocal", output_size=(2, 3))
    model = net.model(y)
    given = rng.integers(0, 256, (2, 8, 1, 1)).astype(np.uint8)
    assert np.array_equal(model.to_torch(engine)(torch.from_numpy(given)).numpy(), model.run({x: given})[y])
