"""Other element types by torch's operators, which wrap and saturate otherwise than `run`."""

from __future__ import annotations

import numpy as np
import pytest

from qfmt.backends.torch.values import to_array, to_tensor
from qfmt.model import DTYPES, Graph, Model, Node, Quantization, Tensor, numpy_dtype
from qfmt.ops import OPERATORS
from support.counts import tell

NUMBERS = (
    0, 1, -1, 7, 8, -8, -9, 15, 16, 100, 127, 128, -128, -129, 200, 255, 256, 300, -300, 448, 449, 465, 500, 1000,
    57344, 60000, 65504, 70000, 2**31 - 1, -(2**31), 2**33 + 5,
    0.5, -0.5, 1.5, 2.5, 3.75, 1e-3, 1e-9, np.inf, -np.inf, np.nan,
)  # fmt: skip

SOURCES = "bool", "uint8", "int32", "int64", "int4", "float16", "bfloat16", "float64", "float8_e5m2", "float4_e2m1fn"


def numbers(source: str, target: str) -> np.ndarray:
    """Those that the first type holds, without floats beyond every integer: what becomes of them is not defined."""
    found, kind = np.array(NUMBERS), DTYPES[source]
    if kind.kind != "f":
        found = found[np.isfinite(found) & (found == np.trunc(found))]
        found = found[(found >= kind.minimum) & (found <= (1 if source == "bool" else kind.maximum))]
    elif DTYPES[target].kind != "f":
        found = found[np.isfinite(found) & (np.abs(found) < 2**31)]
    with np.errstate(all="ignore"):
        found = found.astype(numpy_dtype(source))
        return found if DTYPES[target].kind == "f" else found[np.isfinite(found.astype(np.float64))]


@pytest.mark.parametrize(("engine", "saturate"), [("reference", 1), ("reference", 0), ("fast", 1)])
def test_casts(engine: str, saturate: int) -> None:
    total = 0
    for source in SOURCES:
        for target in DTYPES:
            x, y, entry = Tensor("x", source, (None,)), Tensor("y", target, (None,)), OPERATORS["Cast"]
            attributes = entry.complete({"to": target, "saturate": saturate})
            node = Node("Cast", ("x",), ("y",), attributes, "", entry.version)
            model = Model(Graph(("x",), ("y",), (node,), {"x": x, "y": y}))
            given = numbers(source, target)
            mine, theirs = (
                model.run({"x": given})["y"],
                to_array(model.to_torch(engine)(to_tensor(given, source)), target),
            )
            same = (mine == theirs) | ((mine != mine) & (theirs != theirs))
            assert same.all(), (source, target, given[~same], mine[~same], theirs[~same])
            total += mine.size
    tell(f"casts by {engine}, saturate={saturate}: {total:,} of {total:,} equal")


@pytest.mark.parametrize("engine", ["auto", "reference", "native", "qdq", "fast", "onednn"])
def test_numbers_of_any_type_are_quantized(engine: str) -> None:
    grid, entry, total = Quantization.of((0.5,), (3,), -128, 127), OPERATORS["QuantizeLinear"], 0
    sources = [
        name for name, kind in DTYPES.items() if kind.kind in "iub" or name in ("float16", "bfloat16", "float64")
    ]
    for source in sources:
        x, y = Tensor("x", source, (None,)), Tensor("y", "int8", (None,), None, grid)
        node = Node("QuantizeLinear", ("x",), ("y",), entry.complete({}), "", entry.version, "divide")
        model = Model(Graph(("x",), ("y",), (node,), {"x": x, "y": y}), engine="onnx")
        given = np.array([0, 1, 1, 0] if source in ("bool", "int2") else [0, 1, 2, 3]).astype(numpy_dtype(source))
        found = model.to_torch(engine)(to_tensor(given, source))
        theirs = (found.int_repr() if found.is_quantized else found).numpy()
        assert np.array_equal(model.run({"x": given})["y"], theirs), source
        total += given.size
    tell(f"quantized numbers of {len(sources)} types by {engine}: {total} of {total} equal")
