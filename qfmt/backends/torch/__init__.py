"""A Model as a PyTorch module, and back. torch is imported when one is asked for, not before."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ...errors import MissingPackageError, RunError

if TYPE_CHECKING:
    from ...model import Model
    from .module import QuantizedModule

ENGINES = ("auto", "reference", "native", "onednn", "qdq")
"""Who computes; `native` may name its kernels: `native:qnnpack`."""


def to_torch(model: Model, engine: str = "auto") -> QuantizedModule:
    """The model as a `torch.nn.Module`; see `Model.to_torch`."""
    name, _, kernels = engine.partition(":")
    if name not in ENGINES or (kernels and name != "native"):
        raise RunError(f"there is no engine {engine!r}", hint=f"choose one of {', '.join(ENGINES)}, native:KERNELS")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingPackageError("a PyTorch module needs PyTorch", hint='pip install "qfmt[torch]"') from None
    from .engines import choose
    from .module import QuantizedModule

    return QuantizedModule(model, engine, choose)


def is_quantized_module(source: Any) -> bool:
    """Whether `source` came from `to_torch`; does not import torch to find out."""
    if "torch" not in sys.modules or __name__ + ".module" not in sys.modules:
        return False
    from .module import QuantizedModule

    return isinstance(source, QuantizedModule)


def from_module(module: QuantizedModule) -> Model:
    """The Model that a module of `to_torch` is, with the numbers that its buffers hold now."""
    return module.to_model()
