"""Run RESCALE in Arm's TOSA reference model: an independent witness of the rules `fixed_point_…`.

    python -m venv FOLDER && FOLDER/bin/pip install tosa-tools==2026.8.0 "numpy<2.2" flatbuffers==25.2.10
    FOLDER/bin/python tools/tosa_oracle.py CASES.npz RESULTS.npz

It needs a separate environment, and does not import qfmt. CASES.npz contains for each case NAME the arrays NAME.x
(int32 [N, C]), NAME.multiplier (int32), NAME.shift (int8; both with C elements or one), NAME.zero_point (int),
NAME.dtype ("int8", "uint8", "int16") and NAME.rounding ("SINGLE_ROUND", "DOUBLE_ROUND"). RESULTS.npz contains an
array NAME for each case, with this dtype and the shape of x.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

try:
    import numpy as np
    import tosa_reference_model  # type: ignore[import-not-found]
    import tosa_serializer as ts  # type: ignore[import-not-found]
except ImportError as error:
    sys.exit(f"{__doc__}\n{error}")

STORED = {"int8": ts.DType.INT8, "int16": ts.DType.INT16}


class Graph:
    """A chain of RESCALE nodes."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.graph = ts.TosaSerializer("")
        self.shape = shape
        self.last = self.graph.addPlaceholder(shape, ts.DType.INT32, None)

    def rescale(
        self,
        multiplier: Any,
        shift: Any,
        points: tuple[int, int],
        dtypes: tuple[str, str],
        rounding: int,
        *,
        last: bool,
    ) -> None:
        """Add a node. `points` and `dtypes` are those of input and output; parameters are per tensor, or per channel
        along the last axis."""
        kinds = [ts.DType.INT32 if each == "int32" else STORED[each.removeprefix("u")] for each in dtypes]
        constants = [
            self.graph.addConst(multiplier.shape, ts.DType.INT32, multiplier),
            self.graph.addConst(shift.shape, ts.DType.INT8, shift),
            *(self.graph.addConst([1], kind, np.array([point])) for kind, point in zip(kinds, points, strict=True)),
        ]
        make = self.graph.addOutput if last else self.graph.addIntermediate
        out = make(self.shape, kinds[1])
        attribute = ts.TosaSerializerAttribute()
        attribute.RescaleAttribute(True, rounding, len(multiplier) > 1, False, dtypes[1].startswith("u"))
        inputs = [self.last.name, *(each.name for each in constants)]
        self.graph.addOperator(ts.Op.RESCALE, inputs, [out.name], attribute)
        self.last = out

    def run(self, x: Any, dtype: str) -> Any:
        (result,), status = tosa_reference_model.run(bytes(self.graph.serialize()), [x])
        if status != tosa_reference_model.GraphStatus.TOSA_VALID:
            raise SystemExit(f"the reference model says {status}")
        return np.asarray(result).view(dtype).reshape(x.shape)


def rescale(x: Any, multiplier: Any, shift: Any, zero_point: int, dtype: str, rounding: str) -> Any:
    """Rescale from int32. uint8 is only possible through int8, with a second RESCALE from int8 to uint8."""
    graph, mode = Graph(x.shape), getattr(ts.RoundingMode, rounding)
    if dtype != "uint8":
        graph.rescale(multiplier, shift, (0, zero_point), ("int32", dtype), mode, last=True)
        return graph.run(x, dtype)
    graph.rescale(multiplier, shift, (0, zero_point - 128), ("int32", "int8"), mode, last=False)
    one, thirty = np.array([1 << 30]), np.array([30])
    graph.rescale(one, thirty, (-128, 0), ("int8", "uint8"), ts.RoundingMode.SINGLE_ROUND, last=True)
    return graph.run(x, dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", metavar="CASES.npz")
    parser.add_argument("results", metavar="RESULTS.npz")
    options = parser.parse_args()
    cases = np.load(options.cases)
    names = sorted({key.rpartition(".")[0] for key in cases.files})
    keys = ("x", "multiplier", "shift", "zero_point", "dtype", "rounding")
    results = {}
    for name in names:
        x, multiplier, shift, zero_point, dtype, rounding = (cases[f"{name}.{key}"] for key in keys)
        results[name] = rescale(x, multiplier, shift, int(zero_point), str(dtype), str(rounding))
    np.savez(options.results, **results)


if __name__ == "__main__":
    main()
