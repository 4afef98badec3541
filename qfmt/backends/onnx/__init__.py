"""A Model as an ONNX model. onnx and onnx-ir are imported on demand."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...errors import InexpressibleNodesError, MissingPackageError, RunError
from ...forms import ONNX_FORMS
from ...rules import require_sound
from ...urls import Named

if TYPE_CHECKING:
    from ...model import Model

EXTERNAL = 1_500_000_000
"""Bytes of weights above which they go into a separate file; the limit of protobuf is 2 GB."""


def to_onnx(model: Model, *, form: str | None = None, opset: int | None = None, same_types: bool = False) -> Any:
    """The model as an `onnx.ModelProto`; see `Model.to_onnx`."""
    made = _checked(model, form, opset, same_types)
    from .write import to_proto

    return to_proto(made)


def write_onnx(
    model: Model,
    path: Named,
    *,
    form: str | None = None,
    opset: int | None = None,
    same_types: bool = False,
    external: int = EXTERNAL,
) -> int:
    """Write the model as an ONNX file, atomically; the result is its opset.

    More than `external` bytes of constants are written to `NAME.DIGEST.data` next to it, and are never all in
    memory. Raises as `Model.to_onnx` does, and DestinationError if a file cannot be written.
    """
    made = _checked(model, form, opset, same_types)
    from .write import write

    write(made, path, external)
    return int(made.opset_imports[""])


def _form(model: Model) -> str:
    """The form of an ONNX source if its rules are still stated; else the first."""
    kept = model.source.get("onnx_form", "") if model.engine == "onnx" else ""
    return kept if kept in ONNX_FORMS else ONNX_FORMS[0]


def _checked(model: Model, form: str | None, opset: int | None, same_types: bool) -> Any:
    form = form or _form(model)
    if form not in ONNX_FORMS:
        raise RunError(f"unknown ONNX form {form!r}", hint=f"choose one of {', '.join(ONNX_FORMS)}")
    if model.no_graph:
        raise RunError(model.no_graph)
    require_sound(model)
    from ...passes.proofs import require_proven

    require_proven(model)
    try:
        import onnx
        import onnx_ir  # noqa: F401
    except ImportError as error:
        if error.name == "ml_dtypes":  # they need it, too: the message is about that package
            raise
        raise MissingPackageError(
            "an ONNX model requires the packages onnx and onnx-ir",
            hint="run `pip install '.[onnx]'` in a checkout of qfmt",
        ) from None
    del onnx
    from ...frontends.onnx.tensors import quiet
    from .builder import build
    from .opsets import candidates

    quiet()
    *better, last = candidates(opset, model)
    for each in better:
        with suppress(InexpressibleNodesError):
            return build(model, form, each, same_types)
    return build(model, form, last, same_types)
