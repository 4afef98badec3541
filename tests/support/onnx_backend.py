"""qfmt as a backend of the onnx package's own test suite: ONNX → Model → `.qfb` → Model → run."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.loader import load_model_tests

import qfmt
from qfmt.model import Model

SMALL = {"int4": np.int8, "uint4": np.uint8, "int2": np.int8, "uint2": np.uint8}
"""qfmt has one 4-bit or 2-bit integer per byte; onnx has separate types."""


class Prepared(BackendRep):
    """A model that was saved and loaded."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Sequence[Any], **_: Any) -> tuple[Any, ...]:
        """Inputs and outputs in the order of the graph."""
        arrays = [each.astype(SMALL.get(each.dtype.name, each.dtype)) for each in map(array, inputs)]
        found = self.model.run(dict(zip(self.model.graph.inputs, arrays, strict=True)))
        return tuple(self._typed(name, values) for name, values in found.items())

    def _typed(self, name: str, values: Any) -> Any:
        dtype = self.model.tensors[name].dtype
        return values.astype(getattr(ml_dtypes, dtype)) if dtype in SMALL else values


class QfmtBackend(Backend):
    """The interface that `onnx.backend.test.BackendTest` requires."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
        return Prepared(stored(qfmt.convert(model)))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def stored(model: Model) -> Model:
    """The model, saved and loaded again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.qfb"
        qfmt.save(model, path)
        return qfmt.load(path)


def array(value: Any) -> Any:
    """A value of a case as an array: an array, a NumPy scalar, or a TensorProto for a type that NumPy does not
    have."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


class Case:
    """One test of the suite."""

    def __init__(self, case: Any) -> None:
        self.name = case.name.removeprefix("test_")
        self.case = case

    @property
    def model(self) -> onnx.ModelProto:
        if self.case.model is not None:
            return self.case.model
        return onnx.load(Path(self.case.model_dir) / "model.onnx")

    @property
    def operators(self) -> set[str]:
        return {node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
                for node in self.model.graph.node}  # fmt: skip

    def data_sets(self) -> list[tuple[list[Any], list[Any]]]:
        """(inputs, outputs) of each data set."""
        if self.case.data_sets is not None:
            return [([*inputs], [*outputs]) for inputs, outputs in self.case.data_sets]
        folders = sorted(Path(self.case.model_dir).glob("test_data_set_*"))
        return [tuple(self._read(folder, kind) for kind in ("input", "output")) for folder in folders]  # type: ignore[misc]

    def _read(self, folder: Path, kind: str) -> list[Any]:
        count = len([*folder.glob(f"{kind}_*.pb")])
        protos = [(folder / f"{kind}_{index}.pb").read_bytes() for index in range(count)]
        return [onnx.TensorProto.FromString(each) for each in protos]

    def disagreement(self, got: Sequence[Any], wanted: Sequence[Any]) -> str:
        """The difference between the outputs and the expected ones; "" if they agree within the suite's
        tolerance."""
        if len(got) != len(wanted):
            return f"{len(got)} outputs, {len(wanted)} expected"
        for mine, theirs in zip(got, map(array, wanted), strict=True):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                return f"{mine.dtype} {mine.shape}, {theirs.dtype} {theirs.shape} expected"
            if not _close(mine, theirs, self.case.rtol, self.case.atol):
                return f"{_differing(mine, theirs)} of {mine.size} differ"
        return ""


def _close(mine: Any, theirs: Any, rtol: float, atol: float) -> bool:
    if mine.dtype.kind in "iub" or mine.dtype.name in SMALL:
        return bool(np.array_equal(mine, theirs))
    wide = np.complex128 if mine.dtype.kind == "c" else np.float64
    return bool(np.allclose(mine.astype(wide), theirs.astype(wide), rtol=rtol, atol=atol, equal_nan=True))


def _differing(mine: Any, theirs: Any) -> int:
    return int((mine != theirs).sum())


@cache
def cases(kind: str) -> tuple[Case, ...]:
    """The cases of a kind: node, expanded, simple, light, real, pytorch-converted, pytorch-operator.

    `expanded` are those of `node` that state an operator as a function of other operators.
    """
    if kind in ("node", "expanded"):
        return tuple(case for case in _all("node") if ("_expanded" in case.name) == (kind == "expanded"))
    return _all(kind)


@cache
def _all(kind: str) -> tuple[Case, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own warnings while it computes expected outputs
        return tuple(map(Case, load_model_tests(kind=kind)))
