"""A network in Netron, which shows ONNX."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MissingPackageError

if TYPE_CHECKING:
    from ..model import Model


def show(model: Model) -> None:
    """Convert to ONNX, and serve it until Ctrl-C. Raises MissingPackageError, and what `Model.to_onnx` raises."""
    try:
        import netron
    except ImportError:
        raise MissingPackageError("showing a network in Netron needs netron", hint="run `pip install netron`") from None
    from ..backends.onnx import write_onnx

    with tempfile.TemporaryDirectory(prefix="qfmt-netron-") as folder:
        path = Path(folder) / "model.onnx"
        write_onnx(model, path)
        netron.start(str(path))
        netron.wait()
