"""Files of one node whose sizes, attributes or inputs do not fit its operator (V43, V52, V57, V69, V71 to V73).

The shapes of the outputs are not known: only the operator tells that a file is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qfmt.model import Quantization, Tensor

from ..altered import HALVES, alone
from .case import Bases, Refused

FAR = 1 << 30

Given = tuple[int | None, ...] | list[int] | None
"""An input: its shape, or, as a list, the int64 numbers of a constant."""

KERNEL = {"kernel_shape": (2, 2), "dilations": (1, 1), "pads": (0, 0, 0, 0), "strides": (1, 1)}
WINDOW = {"kernel_shape": (2,), "dilations": (1,), "pads": (0, 0), "strides": (1,)}

MOVED: tuple[tuple[str, str, str, Sequence[Given], dict[str, Any]], ...] = (
    ("axis-too-large", "An axis of 2 of matrices", "Concat", [(2, 2), (2, 2)], {"axis": 2}),
    ("axis-too-small", "An axis of -3 of matrices", "Concat", [(2, 2), (2, 2)], {"axis": -3}),
    ("joined-ranks", "A matrix and a vector are joined", "Concat", [(2, 2), (2,)], {"axis": 0}),
    ("joined-sizes", "Rows of 2 and of 3 are joined", "Concat", [(2, 2), (2, 3)], {"axis": 0}),
    ("split-sum", "Parts of 1 and 2 of 4 elements", "Split", [(4,), [1, 2]], {}),
    ("split-count", "Two parts, and three outputs", "Split", [(4,), [2, 2]], {}),
    ("perm-twice", "A permutation with an axis twice", "Transpose", [(2, 2)], {"perm": (0, 0)}),
    ("reshape-copied", "A size of a dimension that is not there is copied", "Reshape", [(4,), [4, 0]], {}),
    ("reshape-count", "4 elements as 5", "Reshape", [(2, 2), [5]], {}),
    ("squeeze-size", "A dimension of size 2 is removed", "Squeeze", [(1, 2), [1]], {}),
    ("unsqueeze-twice", "A dimension is added twice", "Unsqueeze", [(2,), [0, 0]], {}),
    ("slice-scalar", "Bounds without a dimension", "Slice", [(4,), (), ()], {}),
    ("slice-step", "A step of 0", "Slice", [(4,), [0], [4], [0], [0]], {}),
    ("pad-count", "Three pads for two axes", "Pad", [(2, 2), [0, 1, 0]], {}),
    ("pad-removed", "More elements are removed than there are", "Pad", [(2,), [-2, -1]], {}),
    ("clip-bound", "A bound of two numbers", "Clip", [(2,), (2,), None], {}),
    ("table-rows", "Two rows of a table for three channels", "qfmt.Table", [(3,), (2, 256)], {"axis": 0}),
    ("resize-sizes", "Three sizes of two dimensions", "Resize", [(2, 2), None, None, [4, 4, 4]], {"mode": "nearest"}),
    ("depth-rank", "Blocks of images without a batch", "DepthToSpace", [(4, 4, 2)], {"blocksize": 2}),
    ("depth-blocks", "6 channels in blocks of 2 x 2", "DepthToSpace", [(1, 6, 2, 2)], {"blocksize": 2}),
    ("space-blocks", "Rows of 3 in blocks of 2", "SpaceToDepth", [(1, 1, 2, 3)], {"blocksize": 2}),
    ("pool-rank", "A window of two dimensions over one", "MaxPool", [(1, 2, 4)], KERNEL),
    ("window-too-large", "A window of 3 over 2 elements", "MaxPool", [(1, 1, 2)], {**WINDOW, "kernel_shape": (3,)}),
    ("window-dilation-0", "A dilation of 0", "MaxPool", [(1, 1, 2)], {**WINDOW, "dilations": (0,)}),
    ("window-pads", "Three pads of one dimension", "MaxPool", [(1, 1, 2)], {**WINDOW, "pads": (0, 0, 0)}),
    ("window-pad-negative", "A pad of -1", "MaxPool", [(1, 1, 4)], {**WINDOW, "pads": (-1, 0)}),
    ("window-stride-large", "A stride of 2^30 + 1", "MaxPool", [(1, 1, 4)], {**WINDOW, "strides": (FAR + 1,)}),
    ("window-extent", "A window over 2^30 + 1 elements", "MaxPool", [(1, 1, None)], {**WINDOW, "dilations": (FAR,)}),
    (
        "window-padding",
        "2^30 + 1 elements of padding",
        "MaxPool",
        [(1, 1, None)],
        {**WINDOW, "kernel_shape": (FAR,), "pads": (1, FAR)},
    ),
)

SUMMED: tuple[tuple[str, str, str, Sequence[Given], dict[str, Any]], ...] = (
    ("conv-channels", "3 channels, where the weight has 2", "Conv", [(1, 3, 4, 4), (2, 2, 2, 2)], KERNEL),
    ("conv-kernel", "A weight of another kernel_shape", "Conv", [(1, 2, 4, 4), (2, 2, 2, 3)], KERNEL),
    ("conv-rank", "Images of one dimension", "Conv", [(1, 2, 4), (2, 2, 2, 2)], KERNEL),
    ("conv-bias", "3 biases of 2 channels", "Conv", [(1, 2, 4, 4), (2, 2, 2, 2), (3,)], KERNEL),
    ("transposed-channels", "3 channels, where the weight has 2", "ConvTranspose", [(1, 3, 4, 4), (2, 2, 2, 2)],
     {**KERNEL, "output_padding": (0, 0)}),
    ("transposed-nothing", "Pads that leave -1 elements", "ConvTranspose", [(1, 2, 1, 1), (2, 2, 2, 2)],
     {**KERNEL, "output_padding": (0, 0), "pads": (2, 1, 1, 1)}),
    ("linear-features", "4 features, where the weight has 3", "qfmt.Linear", [(2, 4), (2, 3)], {}),
    ("matmul-sizes", "Rows of 3 by columns of 2", "MatMul", [(2, 3), (2, 2)], {}),
    ("matmul-scalar", "A product with a scalar", "MatMul", [(2, 3), ()], {}),
    ("gemm-sizes", "Rows of 2 by transposed rows of 3", "Gemm", [(3, 2), (2, 3)], {"transB": 1}),
    ("gemm-rank", "A product of three dimensions", "Gemm", [(1, 2, 3), (3, 2)], {}),
    ("gemm-bias", "A bias of two rows of a product of one", "Gemm", [(1, 3), (3, 2), (2, 2)], {}),
    ("linear-scalar", "A layer of a scalar", "qfmt.Linear", [(), (2, 3)], {}),
    ("broadcast-sizes", "2 and 3 elements are added", "qfmt.WeightedSum", [(2,), (3,)], {"weights": (1, 1)}),
)  # fmt: skip


def cases(bases: Bases) -> Iterator[Refused]:
    for name, about, operator, shapes, attributes in MOVED:
        inputs = [_given(f"x{index}", "int8", each) for index, each in enumerate(shapes)]
        if operator == "qfmt.Table":
            inputs[1] = Tensor.constant("x1", np.zeros((2, 256), np.int8))
        outputs = [Tensor(f"y{index}", "int8", None) for index in range(3 if name == "split-count" else 1)]
        yield Refused(name, "V43", about, alone(operator, inputs, *outputs, **attributes))
    for name, about, operator, shapes, attributes in SUMMED:
        inputs = [_given(f"x{index}", "int8" if index < 2 else "int32", each) for index, each in enumerate(shapes)]
        rule = "" if operator == "qfmt.WeightedSum" else "exact"
        yield Refused(name, "V43", about, alone(operator, inputs, Tensor("y", "int32", None), rule=rule, **attributes))
    yield from of_rules()


def _given(name: str, dtype: str, each: Given) -> Tensor | None:
    if isinstance(each, list):
        return Tensor.constant(name, np.array(each, np.int64))
    return None if each is None else Tensor(name, dtype, each)


def of_rules() -> Iterator[Refused]:
    """Weights with scales along another axis than that of the output channels."""
    square = np.arange(4, dtype=np.int8).reshape(2, 2)
    whole = Quantization.of((0.5,), (7,), 0, 255)
    for name, operator, axis, rule, attributes in (
        ("matmul", "MatMul", 0, "affine", {}),
        ("gemm", "Gemm", 0, "affine", {}),
        ("gemm-transposed", "Gemm", 1, "affine", {"transB": 1}),
        ("transposed", "ConvTranspose", 0, "affine",
         {**KERNEL, "kernel_shape": (1, 1), "output_padding": (0, 0)}),
        ("dynamic", "qfmt.DynamicLinear", 1, "dynamic_add", {}),
        ("lookup", "qfmt.Embedding", 1, "lookup_float32", {}),
    ):  # fmt: skip
        is_conv, is_real = operator == "ConvTranspose", rule != "affine"
        scales = Quantization.of((0.5, 1.0), (0, 0), -127, 127, axis)
        w = Tensor.constant("w", square.reshape(2, 2, 1, 1) if is_conv else square, scales)
        x = Tensor("x", "float32" if is_real else "uint8", (1, 2, 1, 1) if is_conv else (1, 2),
                   None, None if is_real else whole)  # fmt: skip
        if rule == "lookup_float32":
            x = Tensor("x", "int64", (1,))
        y = Tensor("y", "float32" if is_real else "uint8", None, None, None if is_real else whole)
        inputs = [w, x] if rule == "lookup_float32" else [x, w]
        made = alone(operator, inputs, y, rule=rule, **attributes)
        yield Refused(f"weight-axis-{name}", "V52", f"{operator} by {rule}: scales along axis {axis}", made)
    byte = Quantization.of((0.5,), (7,), 0, 255)
    x, plain = Tensor("x", "uint8", (2, 2), None, byte), Tensor("p", "int8", (2, 2))
    y, real = Tensor("y", "uint8", (2, 2), None, byte), Tensor("y", "float32", (2, 2))
    yield Refused(
        "plain-weight",
        "V57",
        "A weight of a layer that is not quantized",
        alone("MatMul", [x, plain], y, rule="float_bias"),
    )
    yield Refused(
        "plain-input",
        "V71",
        "Quantized negatives of integers that are not quantized",
        alone("Neg", [plain], y, rule="divide"),
    )
    yield Refused(
        "plain-output",
        "V71",
        "Integers that are not quantized added to some that are",
        alone("Add", [plain, x], Tensor("y", "int8", (2, 2))),
    )
    yield Refused(
        "float-indices",
        "V72",
        "Indices that are floats",
        alone("Gather", [x, Tensor("at", "float32", (2,))], Tensor("y", "uint8", None, None, byte), axis=0),
    )
    yield Refused(
        "repeats-int32",
        "V72",
        "Computed repeats that are int32",
        alone("Tile", [x, Tensor("at", "int32", (2,))], Tensor("y", "uint8", None, None, byte)),
    )
    yield Refused(
        "slope-real",
        "V69",
        "The rule product with a slope that is not quantized",
        alone("PRelu", [x, Tensor("slope", "float32", (2,))], Tensor("y", "uint8", (2, 2), None, byte), rule="product"),
    )
    yield Refused(
        "quantized-indices",
        "V72",
        "Indices that are quantized",
        alone("Gather", [x, Tensor("at", "int32", (2,), None, HALVES)], Tensor("y", "uint8", None, None, byte), axis=0),
    )
    images = Tensor("x", "uint8", (1, 1, 2, 2), None, byte)
    sizes, roi = Tensor.constant("sizes", np.array([1, 1, 4, 4])), Tensor.constant("roi", np.zeros(8, np.float32))
    for name, about, changes in (
        ("resize-cubic", "Integers are resized by cubic", {"mode": "cubic"}),
        ("resize-antialias", "Integers are resized with antialias", {"mode": "linear", "antialias": 1}),
        (
            "resize-crop-integers",
            "Integers are cropped and resized",
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
        ),
    ):
        yield Refused(
            name,
            "V69",
            about,
            alone(
                "Resize",
                [images, roi, None, sizes],
                replace(images, name="y", shape=None),
                rule="interpolate",
                **changes,
            ),
        )
    columns = Quantization.of((0.5, 0.25), (7, 7), 0, 255, 1)
    yield Refused(
        "padded-channels",
        "V54",
        "A constant inserted beside columns with two scales",
        alone(
            "Pad",
            [replace(x, quantization=columns), Tensor.constant("pads", np.array([1, 0, 1, 0]))],
            Tensor("y", "uint8", None, None, columns),
        ),
    )
    fill = Tensor.constant("fill", np.array(9, np.uint8), byte)
    pads = Tensor.constant("pads", np.array([1, 0, 1, 0]))
    yield Refused(
        "plain-fill",
        "V71",
        "A quantized number beside integers that are not quantized",
        alone("Pad", [plain, pads, fill], Tensor("y", "int8", None)),
    )
    yield Refused(
        "real-fill",
        "V54",
        "A quantized number beside floats",
        alone("Pad", [Tensor("x", "float32", (2, 2)), pads, fill], Tensor("y", "float32", None)),
    )
    yield Refused(
        "quantized-range",
        "V72",
        "A range from a quantized number",
        alone(
            "Range", [fill, *(Tensor.constant(n, np.array(9, np.float32)) for n in "ld")], Tensor("y", "float32", None)
        ),
    )
    signed = Quantization.of((0.5,), (0,), -127, 127)
    yield Refused(
        "narrow-sums",
        "V67",
        "A weighted sum of int8",
        alone("qfmt.WeightedSum", [plain], Tensor("y", "int8", (2, 2), None, signed), weights=(1,)),
    )
    weights = Tensor.constant("w", square, signed)
    yield Refused(
        "half-quantized",
        "V47",
        "One of two weights is quantized",
        alone(
            "qfmt.RNNCell",
            [Tensor("x", "float32", (1, 2)), weights, Tensor.constant("r", np.eye(2, dtype=np.float32))],
            Tensor("y", "float32", None),
            rule="dynamic_fma",
        ),
    )
    blocks = Quantization.of_blocks("int8", (2, 2), (1, 1), np.ones((2, 2), np.float32))
    table, at = Tensor.constant("w", square, blocks), Tensor("at", "int64", (1, 1))
    for name, about, operator, inputs, rule in (
        ("block-wise-weight", "Sums of products with block-wise weights", "qfmt.DynamicLinear",
         [real, table], "dynamic_fma"),
        ("block-wise-table", "A lookup in a table with block-wise scales", "qfmt.Embedding", [table, at],
         "lookup_float32"),
        ("maximum-table", "The maximum of rows of a quantized table", "qfmt.EmbeddingBag", [weights, at],
         "lookup_float32"),
    ):  # fmt: skip
        attributes = {"mode": "max"} if name == "maximum-table" else {}
        yield Refused(
            name,
            "V52",
            about,
            alone(
                operator,
                [replace(each, name=f"i{index}") for index, each in enumerate(inputs)],
                Tensor("y", "float32", None),
                rule=rule,
                **attributes,
            ),
        )
    floats = Quantization.of(0.5, 0.5, 0, 255)
    yield Refused(
        "float-zero-point-sum",
        "V47",
        "A product of integers with a zero point of floats",
        alone("Mul", [x, Tensor.constant("w", square.astype(np.uint8), floats)], y, rule="product"),
    )
    yield Refused(
        "product-zero-point",
        "V71",
        "A zero point of another type",
        alone(
            "MatMulInteger",
            [plain, Tensor("b", "int8", (2, 2)), Tensor.constant("z", np.array(1, np.uint8))],
            Tensor("y", "int32", (2, 2)),
        ),
    )
    yield Refused(
        "dequantized-plain",
        "V73",
        "Integers that are not quantized are dequantized",
        alone("DequantizeLinear", [plain], Tensor("y", "int8", (2, 2))),
    )
    yield Refused(
        "bound-type",
        "V73",
        "A bound of floats for integers",
        alone("Clip", [plain, Tensor.constant("low", np.array(0.5, np.float32)), None], Tensor("y", "int8", (2, 2))),
    )
    yield Refused(
        "root-of-integers",
        "V73",
        "The root of integers that are not quantized",
        alone("Sqrt", [plain], Tensor("y", "int8", (2, 2))),
    )
    yield Refused(
        "float-bits", "V71", "The bits of floats", alone("BitwiseNot", [Tensor("x", "float32", (2, 2))], real)
    )
    yield Refused("quantized-bits", "V71", "The bits of quantized integers", alone("BitwiseNot", [x], real))
