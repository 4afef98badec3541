"""Export to ONNX: nodes that ONNX or ONNX Runtime lacks become equivalent ones, or an error names them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases.one_node import single
from qfmt.errors import InexpressibleNodesError
from qfmt.model import Model, Tensor
from support.onnx_witness import runtime

f32 = np.float32
RNG = np.random.default_rng(0)
IMAGE = RNG.integers(-9, 9, (1, 2, 4, 5)).astype(f32)


def agrees(model: Model, given: dict[str, Any]) -> None:
    want = model.run(given)["y"]
    for opset in 13, None:
        np.testing.assert_allclose(runtime(model.to_onnx(opset=opset), given)[0], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("pads", "output_padding"),
    [
        ((-1, 1, 0, 2), (0, 0)),
        ((0, 1, -2, 1), (1, 1)),
        ((1, 1, 0, 0), (0, 3)),
        ((-2, 0, 6, 0), (5, 0)),
        ((9, 0, -4, 0), (0, 0)),
    ],
)
def test_what_a_transposed_convolution_adds(pads: tuple[int, ...], output_padding: tuple[int, ...], bias: bool) -> None:
    """By pads below 0, which ONNX does not have, or by output_padding of a stride or more."""
    tensors = [Tensor("x", "float32", IMAGE.shape), Tensor.constant("w", RNG.integers(-4, 5, (2, 3, 3, 3)).astype(f32))]
    tensors += [Tensor.constant("b", np.array([1, -2, 3], f32))] if bias else []
    layout = {"kernel_shape": (3, 3), "strides": (2, 2), "dilations": (1, 1), "pads": pads}
    output = Tensor("y", "float32", None)
    agrees(single("ConvTranspose", "", tensors, output, {"output_padding": output_padding, **layout}), {"x": IMAGE})


@pytest.mark.parametrize("shape", [(1, 2, 3, 3), (1, 2, "h", "w")])
@pytest.mark.parametrize("axes", [(), (2, 3)])
def test_a_resize_that_keeps_a_size(shape: tuple[Any, ...], axes: tuple[int, ...]) -> None:
    """By a scale of 1.3: ONNX interpolates along that dimension, too."""
    scales = np.array([1.3, 2] if axes else [1, 1, 1.3, 2])
    tensors = [Tensor("x", "float32", shape), None, Tensor.constant("scales", scales)]
    model = single("Resize", "", tensors, Tensor("y", "float32", None), {"mode": "linear", "axes": axes})
    image = IMAGE[:, :, :3, :3]
    want = model.run({"x": image})["y"]
    np.testing.assert_allclose(runtime(model.to_onnx(opset=18), {"x": image})[0], want, rtol=1e-6, atol=1e-6)


def test_a_product_of_booleans() -> None:
    shape = (2, 3)
    tensors = [Tensor("x", "bool", shape), Tensor("z", "bool", shape)]
    model = single("Mul", "", tensors, Tensor("y", "bool", shape), {})
    with pytest.raises(InexpressibleNodesError, match="an input of bool, which ONNX's Mul does not have"):
        model.to_onnx()
