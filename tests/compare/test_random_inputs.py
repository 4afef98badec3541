"""Pseudo-random inputs reach what a network was calibrated for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qfmt
from networks.onnx_models import dq, grids, node, proto, q
from qfmt.compare.random_inputs import draw

CHANNELS = [3, 1, 1]
MEAN, DEVIATION = np.array([120, 110, 100], np.float32), np.array([60, 50, 40], np.float32)
CONSTANTS = {
    **grids(s=(1 / 128, np.uint8(128)), almost=(0.9995 / 255, np.uint8(0))),
    "half": np.float32(127.5),
    "one": np.float32(1),
    "pads": np.array([0, 0, 1, 1, 0, 0, 0, 0]),
    "ones": np.ones(3, np.float32),
    "zeros": np.zeros(3, np.float32),
    "middle": np.full(3, 127.5, np.float32),
    "square": np.full(3, 16256, np.float32),
    "mean": MEAN.reshape(CHANNELS),
    "deviation": DEVIATION.reshape(CHANNELS),
    "factor": np.float32(1 / 32768),
    "table": np.zeros((7, 2), np.float32),
    "first": np.int64(3),
}
SCALED = [node("Div", ["r", "half"], ["d"]), node("Sub", ["d", "one"], ["n"])]
NORMALIZED = [node("Sub", ["r", "mean"], ["d"]), node("Div", ["d", "deviation"], ["n"])]
ENDS = [q("n", "s", "i"), dq("i", "s", "y")]
CAST = node("Cast", ["x"], ["r"], to=TensorProto.FLOAT)
SAME = node("Identity", ["x"], ["r"])
CASES: dict[str, tuple[int, Sequence[onnx.NodeProto], tuple[float, float]]] = {
    "an image": (TensorProto.UINT8, [CAST, *SCALED, *ENDS], (0, 254)),
    "an image of floats": (TensorProto.FLOAT, [SAME, *SCALED, *ENDS], (0, 254.00390625)),
    "an image by channels": (TensorProto.FLOAT, [SAME, *NORMALIZED, *ENDS], (60, 179.53125)),
    "an image, moved": (
        TensorProto.UINT8, [CAST, node("Transpose", ["r"], ["t"], perm=[0, 1, 3, 2]), *(
            node("Div", ["t", "half"], ["d"]), node("Sub", ["d", "one"], ["n"]), *ENDS)], (0, 254),
    ),
    "an image, pooled": (
        TensorProto.FLOAT, [node("AveragePool", ["x"], ["p"], kernel_shape=[2, 2]), node("Pad", ["p", "pads"], ["r"]),
                            *SCALED, *ENDS], (0, 254.00390625),
    ),
    "an image, clamped": (
        TensorProto.FLOAT, [node("Relu", ["x"], ["r"]), *SCALED, *ENDS], (-63.5009765625, 317.5048828125),
    ),
    "an image by a batch norm": (
        TensorProto.FLOAT, [node("BatchNormalization", ["x", *["ones", "zeros", "middle", "square"]], ["n"],
                                 epsilon=0.25), *ENDS], (0, 254.00390625),
    ),
    "an image of int64": (TensorProto.INT64, [CAST, *SCALED, *ENDS], (0, 254)),
    "sound": (TensorProto.INT16, [CAST, node("Mul", ["r", "factor"], ["n"]), *ENDS], (-32768, 32512)),
    "an image without a quantizer": (TensorProto.UINT8, [CAST, node("Mul", ["r", "half"], ["y"])], (0, 255)),
    "a mask": (TensorProto.INT64, [CAST, node("Sub", ["one", "r"], ["y"])], (0, 1)),
    "indices": (TensorProto.INT64, [node("Gather", ["table", "x"], ["y"])], (0, 6)),
    "indices, moved": (
        TensorProto.UINT8, [node("Transpose", ["x"], ["t"]), node("Cast", ["t"], ["r"], to=TensorProto.INT64),
                            node("Gather", ["table", "r"], ["y"])], (0, 6),
    ),
    "indices, computed": (
        TensorProto.UINT8, [node("Cast", ["x"], ["r"], to=TensorProto.INT64), node("Add", ["r", "first"], ["t"]),
                            node("Gather", ["table", "t"], ["y"])], (0, 1),
    ),
    "a calibrated mask": (
        TensorProto.INT64, [CAST, q("r", "almost", "i"), dq("i", "almost", "y")], (0, 1),
    ),
    "a condition": (TensorProto.BOOL, [node("Where", ["x", "one", "half"], ["y"])], (0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_range_of_an_input(name: str) -> None:
    kind, nodes, ends = CASES[name]
    read = {each for made in nodes for each in made.input}
    constants = {key: value for key, value in CONSTANTS.items() if key in read}
    model = qfmt.convert(proto(nodes, {"x": (kind, [1, 3, 40, 40])}, ["y"], constants))
    drawn = np.concatenate([each["x"] for each in draw(model, {"x": (1, 3, 40, 40)}, 4, model.engine)])
    low, high = float(drawn.min()), float(drawn.max())
    assert ends[0] <= low and high <= ends[1] and high - low >= 0.999 * (ends[1] - ends[0])
    assert np.unique(drawn).size >= min(200, ends[1] - ends[0])


@pytest.mark.parametrize(("point", "highest"), [(100, 27), (140, 155)])
def test_half_of_the_integers_only_if_zero_points_are_in_it(point: int, highest: int) -> None:
    """For fbgemm, PyTorch calibrates to half of them, unless told otherwise."""
    nodes = [q("x", "s", "i"), dq("i", "s", "r"), node("Neg", ["r"], ["n"]), q("n", "t", "o"), dq("o", "t", "y")]
    constants = grids(s=(1.0, np.uint8(100)), t=(1.0, np.uint8(point)))
    model = qfmt.convert(proto(nodes, {"x": (TensorProto.FLOAT, [4000])}, ["y"], constants))
    (drawn,) = draw(model, {"x": (4000,)}, 1, "fbgemm")
    assert highest * 0.9 < drawn["x"].max() <= highest
    (drawn,) = draw(model, {"x": (4000,)}, 1, "onnx")
    assert 139 < drawn["x"].max() <= 155


def test_a_constant_without_elements() -> None:
    nodes = [node("Add", ["x", "none"], ["n"]), *ENDS]
    constants = {**grids(s=(1 / 128, np.uint8(128))), "none": np.zeros((1, 0), np.float32)}
    model = qfmt.convert(proto(nodes, {"x": (TensorProto.FLOAT, [3, 1])}, ["y"], constants))
    assert [each["x"].shape for each in draw(model, {"x": (3, 1)}, 1, model.engine)] == [(3, 1)]


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.INT8, TensorProto.INT16])
def test_a_mask_of_bytes_has_zeros(kind: int) -> None:
    nodes = [node("Unsqueeze", ["x", "axes"], ["u"]), node("Equal", ["u", "none"], ["c"]),
             node("Where", ["c", "half", "one"], ["y"])]  # fmt: skip
    none = np.zeros((), helper.tensor_dtype_to_np_dtype(kind))
    constants = {"axes": np.array([1]), "none": none, "one": CONSTANTS["one"], "half": CONSTANTS["half"]}
    model = qfmt.convert(proto(nodes, {"x": (kind, [1, 400])}, ["y"], constants))
    (drawn,) = draw(model, {"x": (1, 400)}, 1, model.engine)
    assert 20 < np.count_nonzero(drawn["x"] == 0) < 200 and 20 < np.count_nonzero(drawn["x"] == 1) < 200
    assert np.unique(drawn["x"]).size > 150


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.FLOAT])
def test_a_clamp_before_the_normalization_is_found(kind: int, tmp_path: Path) -> None:
    first: list[Any] = [CAST if kind == TensorProto.UINT8 else SAME]
    constants = {key: CONSTANTS[key] for key in ("s", "s.s", "s.z", "half", "one") if key in CONSTANTS}
    inputs = {"x": (kind, [1, 3, 8, 8])}
    onnx.save(proto([*first, *SCALED, *ENDS], inputs, ["y"], constants), tmp_path / "m.onnx")
    clamped = [node("Identity", ["x"], ["c"])] if kind == TensorProto.FLOAT else [node("Cast", ["x"], ["c"], to=1)]
    clamped.append(node("Clip", ["c", "", "top"], ["r"]))
    wrong = proto([*clamped, *SCALED, *ENDS], inputs, ["y"], {**constants, "top": np.float32(127)})
    assert qfmt.verify(tmp_path / "m.onnx", qfmt.convert(tmp_path / "m.onnx")).ok
    assert not qfmt.verify(tmp_path / "m.onnx", qfmt.convert(wrong)).ok
