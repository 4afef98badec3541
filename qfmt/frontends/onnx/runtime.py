"""ONNX models run by others: ONNX Runtime, at any of its optimization levels, and the onnx package's reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import MissingPackageError, RunError
from .. import RUNTIMES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

REFERENCE = "reference"

_LEVELS = {"": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}

OLDEST_REFERENCE = 19
"""The reference implementation has DequantizeLinear from this opset on."""


class Runner:
    """One ONNX model and who runs it. `proto` is the model with all of its data.

    Raises MissingPackageError if the engine is not installed, RunError if there is none of that name.
    """

    def __init__(self, proto: Any, engine: str) -> None:
        if engine not in RUNTIMES:
            raise RunError(f"{engine} cannot run ONNX", hint=f"what can is {', '.join(RUNTIMES)}")
        self.proto, self.engine = proto, engine
        self.version = _version(engine)
        self._reference: Any = None

    def run(self, inputs: Mapping[str, Array], names: Sequence[str], engine: str = "") -> dict[str, Array]:
        """Values of the graph by name; those that Python cannot hold are left out. RunError if it cannot be run."""
        try:
            if (engine or self.engine) == REFERENCE:
                return self._by_reference(inputs, names)
            return self._by_onnxruntime(inputs, names, engine or self.engine)
        except MissingPackageError:
            raise
        except Exception as error:  # whatever the library raises
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            hint = "`--engine reference` asks another one" if self.engine != REFERENCE else ""
            raise RunError(f"{self.version} cannot run it: {first}", hint=hint) from None

    def _by_onnxruntime(self, inputs: Mapping[str, Array], names: Sequence[str], engine: str) -> dict[str, Array]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        level = _LEVELS[engine.partition(":")[2]]
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            self._with_outputs(names).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        found = zip(names, map(_array, session.run_with_ort_values(list(names), feeds)), strict=True)
        return {name: array for name, array in found if array is not None}

    def _with_outputs(self, names: Sequence[str]) -> Any:
        """The model with these values as its outputs."""
        import onnx

        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        stated = {value.name: value for value in self.proto.graph.output}
        del proto.graph.output[:]
        proto.graph.output.extend(stated.get(name, onnx.ValueInfoProto(name=name)) for name in names)
        return proto

    def _by_reference(self, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        from onnx.reference import ReferenceEvaluator

        if self._reference is None:
            self._reference = ReferenceEvaluator(self._for_reference())
        with np.errstate(all="ignore"):
            values = self._reference.run(None, dict(inputs), intermediate=True)
        return {name: np.asarray(values[name]) for name in names if values.get(name) is not None}

    def _for_reference(self) -> Any:
        from onnx import version_converter

        opset = next((each.version for each in self.proto.opset_import if each.domain in ("", "ai.onnx")), 1)
        return version_converter.convert_version(self.proto, 21) if opset < OLDEST_REFERENCE else self.proto


def _array(value: Any) -> Array | None:
    """None for a type that NumPy does not have."""
    try:
        return np.asarray(value.numpy())
    except RuntimeError:
        return None


def first_installed() -> str:
    """The engine that is taken where nothing is said."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return REFERENCE
    return RUNTIMES[0]


def _version(engine: str) -> str:
    """Name and version; MissingPackageError if the package is not there."""
    package = engine.partition(":")[0]
    try:
        if package == REFERENCE:
            import onnx

            return f"onnx {onnx.__version__}"
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__}"
    except ImportError:
        raise MissingPackageError(f"{package} is not installed", hint=f"pip install {package}") from None
