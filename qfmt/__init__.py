"""qfmt: a portable file format (`.qfb`) and converter for quantized neural networks.

    import qfmt

    model = qfmt.convert("quantized.pt")     # no torch needed, no code of the file executed
    qfmt.save(model, "model.qfb")
    model = qfmt.load("model.qfb")           # memory-mapped, digests verified
    model.tensors["conv1.weight"].array      # NumPy, zero-copy
    model.run({"x": x})                      # the reference interpreter: exact, NumPy only

Importing this module imports neither NumPy nor any framework.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes longer to import than all of this module
if TYPE_CHECKING:
    from typing import Any

    from .compare import diff, verify
    from .errors import QfmtError
    from .file.checker import check
    from .file.reader import load
    from .file.writer import save
    from .frontends import convert
    from .interpreter import run
    from .model import Graph, Model, Node, Quantization, Tensor

__version__ = "0.1.0"

__all__ = [
    "Graph",
    "Model",
    "Node",
    "QfmtError",
    "Quantization",
    "Tensor",
    "check",
    "convert",
    "diff",
    "load",
    "run",
    "save",
    "verify",
]

_HOMES = {
    "Graph": "model",
    "Model": "model",
    "Node": "model",
    "QfmtError": "errors",
    "Quantization": "model",
    "Tensor": "model",
    "check": "file.checker",
    "convert": "frontends",
    "diff": "compare",
    "load": "file.reader",
    "run": "interpreter",
    "save": "file.writer",
    "verify": "compare",
}


def __getattr__(name: str) -> Any:
    """Import names on first use (PEP 562), so that the command line starts in milliseconds."""
    if name not in _HOMES:
        raise AttributeError(f"module 'qfmt' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
