"""An ONNX file, or a ModelProto, as a sound graph of onnx-ir."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MissingPackageError, SourceError

if TYPE_CHECKING:
    import onnx_ir as ir

NEWEST_OPSET = 28
"""Of the default domain, that the operators here were written for."""


def read(source: str | PathLike[str] | Any) -> ir.Model:
    """The model of a file or of an onnx.ModelProto, functions inlined, nodes in topological order.

    External data is mapped, not read, and only from the folder of the file or below. Raises SourceError for what is no
    sound model: damaged, cyclic, dangling, without its weights, newer than known.
    """
    try:
        import onnx_ir as ir
        from onnx_ir.passes.common import InlinePass
    except ImportError:
        raise MissingPackageError("reading ONNX needs onnx and onnx-ir", hint="pip install 'qfmt[onnx]'") from None
    model = _from_file(Path(source)) if isinstance(source, str | PathLike) else _from_proto(source)
    opset = model.opset_imports.get("", 1)
    if opset > NEWEST_OPSET:
        raise SourceError(
            f"is written for opset {opset}, newer than {NEWEST_OPSET}, the newest known",
            hint="onnx.version_converter makes it older",
        )
    if model.functions:
        model = InlinePass()(model).model
    _check_links(model.graph)
    for tensor in _tensors(model.graph):
        _check_tensor(tensor, ir)
    return model


def _from_file(path: Path) -> ir.Model:
    import onnx
    import onnx_ir as ir
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        proto = onnx.load(path, load_external_data=False)
    except DecodeError:
        raise SourceError("is not a whole ONNX model", hint="it was cut off or damaged; get it again") from None
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}") from None
    _check_external(proto, path.parent)
    model = _from_proto(proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _from_proto(proto: Any) -> ir.Model:
    import onnx_ir as ir

    model: ir.Model
    if not proto.HasField("graph"):
        raise SourceError("is an ONNX model without a graph")
    if len(proto.graph.sparse_initializer):
        raise SourceError("has sparse initializers", hint="make them dense")
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # the library's own exceptions for whatever is inconsistent
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__  # type: ignore[assignment]
        raise SourceError(f"is not a sound ONNX model: {cause}".splitlines()[0]) from None
    return model


def _check_external(proto: Any, folder: Path) -> None:
    """SourceError for external data that is not in the folder of the model, or not all there."""
    from onnx.external_data_helper import _get_all_tensors, uses_external_data

    home = folder.resolve()
    for tensor in _get_all_tensors(proto):
        if not uses_external_data(tensor):
            continue
        where, entries = f"initializer {tensor.name}", {each.key: each.value for each in tensor.external_data}
        location = Path(entries.get("location", ""))
        if not entries.get("location"):
            raise SourceError("its external data has no location", where=where)
        inside = not location.is_absolute() and (home / location).resolve().is_relative_to(home)
        if not inside:
            hint = "external data may lie beside the model or in a folder below only"
            raise SourceError(
                f"its external data {str(location)!r} lies outside the model's folder", where=where, hint=hint
            )
        target = home / location
        if not target.is_file():
            hint = "put it beside the model"
            raise SourceError(f"its external data {str(location)!r} is missing", where=where, hint=hint)
        try:
            offset, size = int(entries.get("offset", 0)), target.stat().st_size
            length = int(entries.get("length", size - offset))
        except ValueError:
            raise SourceError("the place of its external data is not a number", where=where) from None
        if not 0 <= offset <= offset + length <= size:
            what = f"bytes {offset} to {offset + length} of {str(location)!r} are stated, which has {size}"
            raise SourceError(what, where=where, hint="the file was cut off; get it again")


def _check_links(graph: ir.Graph) -> None:
    """SourceError for a cycle and for values that nothing gives; else nodes are in topological order afterwards."""
    given = {id(value) for value in (*graph.inputs, *graph.initializers.values())}
    seen: set[int] = set()
    sorted_already = True
    for node in graph:
        for value in node.inputs:
            if value is None or id(value) in given:
                continue
            producer = value.producer()
            if producer is None and value.graph is None:
                raise SourceError(f"reads {value.name!r}, which nothing gives", where=_place(node))
            sorted_already = sorted_already and (producer is None or id(producer) in seen)
        seen.add(id(node))
    for value in graph.outputs:
        if value.producer() is None and id(value) not in given:
            raise SourceError("is given by nothing", where=f"output {value.name!r}")
    if not sorted_already:
        try:
            graph.sort()
        except ValueError:
            raise SourceError("its nodes form a cycle") from None


def _place(node: ir.Node) -> str:
    return f"node {node.name or (node.outputs[0].name if node.outputs else '')} ({node.op_type})"


def _tensors(graph: ir.Graph) -> Iterator[Any]:
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value


def _check_tensor(tensor: Any, ir: Any) -> None:
    """SourceError if the bytes of an initializer are not as many as its shape needs."""
    if not isinstance(tensor, ir.TensorProtoTensor) or not tensor.raw.HasField("raw_data"):
        return
    needed, stored = tensor.nbytes, len(tensor.raw.raw_data)
    if needed != stored:
        hint = "its weights were stripped; get the whole model" if not stored else "the file is damaged; get it again"
        raise SourceError(
            f"holds {stored} bytes, its shape needs {needed}", where=f"initializer {tensor.name}", hint=hint
        )
