"""A network in Netron, which shows ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import MissingPackageError
from ..file.replacing import temporary_folder

if TYPE_CHECKING:
    from ..model import Model


def show(model: Model) -> None:
    """Convert to ONNX, and serve it until Ctrl-C. Raises MissingPackageError, and what `Model.to_onnx` raises."""
    try:
        import netron
    except ImportError:
        raise MissingPackageError("showing a network in Netron needs netron", hint="run `pip install netron`") from None
    from ..backends.onnx import write_onnx

    with temporary_folder() as folder:
        path = folder / "model.onnx"
        write_onnx(model, path)
        netron.start(str(path))
        netron.wait()
