"""Runs ONNX models in a worker process: with ONNX Runtime at any optimization level, or with the reference
implementation of the onnx package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...arrays import Array
from ...errors import RunError, first_line
from ...model import DTYPES
from .runnable import opset_of

REFERENCE = "reference"

_LEVELS = {"": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}

OLDEST_REFERENCE = 19
"""The oldest opset in which the reference implementation has DequantizeLinear."""


class Engine:
    """One ONNX model and the engine that runs it; see `isolation.child.Engine`.

    The model is a serialized ModelProto. Its large initializers are in `arrays` instead, since a protobuf message
    has at most 2 GB.
    """

    def __init__(self, model: Array, arrays: Mapping[str, Array], engine: str) -> None:
        self.version = _version(engine)
        import onnx

        self.proto, self.arrays = onnx.ModelProto.FromString(model.tobytes()), arrays
        self._reference: Any = None
        self._opened: tuple[Any, Any] = (None, None)
        """The request that the last session was made for, and the session with its initializers."""

    def answer(self, verb: str, *arguments: Any) -> Iterator[tuple[Any, ...]]:
        """Answer "constants" (names) with the values that do not depend on inputs, and "run" (inputs, names, engine)
        with values of the graph. Both omit values of types that NumPy does not have."""
        if verb == "constants":
            found = constants(self.proto, self.arrays, *arguments)
        else:
            yield "at", 0
            found = self._run(*arguments)
        yield from (("value", name, array) for name, array in found.items() if array.dtype.name in DTYPES)

    def _run(self, inputs: Mapping[str, Array], names: Sequence[str], engine: str) -> dict[str, Array]:
        try:
            if engine == REFERENCE:
                return self._by_reference(inputs, names)
            return self._by_onnxruntime(inputs, names, engine)
        except Exception as error:  # whatever the library raises
            other = "" if engine == REFERENCE else ", or try `--engine reference`"
            hint = f"set the sizes of inputs with --input-shape{other}"
            raise RunError(f"{self.version} cannot run it: {first_line(error)}", hint=hint) from None

    def _by_onnxruntime(self, inputs: Mapping[str, Array], names: Sequence[str], engine: str) -> dict[str, Array]:
        import onnxruntime

        session = self._session(names, engine)
        feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        found = zip(names, map(_array, session.run_with_ort_values(list(names), feeds)), strict=True)
        return {name: array for name, array in found if array is not None}

    def _session(self, names: Sequence[str], engine: str) -> Any:
        """A session that computes these values. The last one is cached: all samples of a verification ask for the
        same."""
        import onnxruntime

        asked = (tuple(names), engine)
        if self._opened[0] == asked:
            return self._opened[1][0]
        self._opened = (None, None)  # frees its memory before the next one is made
        options = onnxruntime.SessionOptions()
        level = _LEVELS[engine.partition(":")[2]]
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as parent._WAITING
        options.add_session_config_entry("session.load_model_format", "ONNX")  # not ORT's own, if some bytes look so
        proto = self._with_outputs(names)
        read = _names_read(proto.graph)
        arrays = {name: array for name, array in self.arrays.items() if name in read}  # unused ones are refused
        for name, array in arrays.items():
            proto.graph.initializer.append(_without_data(name, array))
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        options.add_external_initializers(list(values), list(values.values()))
        for name, value in values.items():  # without this it copies them
            options.add_initializer(name, value)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._opened = (asked, (session, values))  # the session does not keep the values alive
        return session

    def _with_outputs(self, names: Sequence[str]) -> Any:
        """The model with these values as its graph outputs."""
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
            values = self._reference.run(None, {**self.arrays, **inputs}, intermediate=True)
        return {name: np.asarray(values[name]) for name in names if values.get(name) is not None}

    def _for_reference(self) -> Any:
        """The model with `arrays` as graph inputs, in an opset that the reference implementation supports."""
        import onnx

        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        inputs = {value.name for value in proto.graph.input}
        for name, array in self.arrays.items():
            if name not in inputs:
                kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                proto.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
        return onnx.version_converter.convert_version(proto, 21) if opset_of(proto) < OLDEST_REFERENCE else proto


def _without_data(name: str, array: Array) -> Any:
    """An initializer without data, which ONNX Runtime receives separately. It does not open a file of this location."""
    import onnx

    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="beside")
    return tensor


def _names_read(graph: Any) -> set[str]:
    """The names that nodes, subgraphs included, and graph outputs read."""
    names = {value.name for value in graph.output}
    for node in graph.node:
        names.update(node.input)
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                names |= _names_read(inner)
    return names


def _array(value: Any) -> Array | None:
    """The value as an array; None for a type that NumPy does not have."""
    try:
        return np.asarray(value.numpy())
    except RuntimeError:
        return None


def constants(proto: Any, arrays: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """Initializers and the results of nodes over initializers, computed with the onnx package. `arrays` are the
    initializers that are not in the model."""
    import onnx

    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    producers = {name: node for node in proto.graph.node for name in node.output if name}
    needed = _ancestors(names, producers)
    found = {name: arrays[name] for name in needed & arrays.keys()}
    for name in needed & stored.keys():
        found[name] = np.asarray(onnx.numpy_helper.to_array(stored[name]))
    for node in proto.graph.node:
        if len(node.output) != 1 or node.output[0] not in needed or node.output[0] in found:
            continue
        inputs = {each: found[each] for each in node.input if each in found}
        if len(inputs) == len({*node.input} - {""}):
            array = _evaluated(node, inputs, proto.opset_import)
            if array is not None:
                found[node.output[0]] = array
    return {name: found[name] for name in names if name in found}


def _ancestors(names: Sequence[str], producers: Mapping[str, Any]) -> set[str]:
    """These values, and all that they are computed from."""
    needed, open_ = set(names), list(names)
    while open_:
        node = producers.get(open_.pop())
        fresh = set() if node is None else {*node.input} - needed - {""}
        needed |= fresh
        open_ += fresh
    return needed


def _evaluated(node: Any, inputs: Mapping[str, Array], opsets: Any) -> Array | None:
    """The only output of a node; None if it cannot be computed."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    untyped = [onnx.ValueInfoProto(name=each) for each in inputs]
    graph = onnx.helper.make_graph([node], "constant", untyped, [onnx.ValueInfoProto(name=node.output[0])])
    try:
        (result,) = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets)).run(None, dict(inputs))
        return np.asarray(result)
    except Exception:  # any error of the library: only the fresh conversion remains as a witness
        return None


def _version(engine: str) -> str:
    """Name and version of the package."""
    if engine == REFERENCE:
        import onnx

        return f"onnx {onnx.__version__}"
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"
