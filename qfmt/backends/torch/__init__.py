"""A Model as a PyTorch module; `qfmt.convert` converts it back. torch is imported on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import MissingPackageError, RunError
from ...rules import require_sound

if TYPE_CHECKING:
    from ...model import Model
    from .module import QuantizedModule

ENGINES = ("auto", "fast", "reference", "native", "onednn", "qdq")
"""The engines; `native` may name its kernels: `native:qnnpack`."""


def to_torch(model: Model, engine: str = "auto") -> QuantizedModule:
    """The model as a `torch.nn.Module`; see `Model.to_torch`."""
    name, _, kernels = engine.partition(":")
    if name not in ENGINES or (kernels and name != "native"):
        raise RunError(f"unknown engine {engine!r}", hint=f"choose one of {', '.join(ENGINES)}, native:KERNELS")
    if model.no_graph:
        raise RunError(model.no_graph)
    require_sound(model)
    from ...passes.proofs import require_proven

    require_proven(model)
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingPackageError(
            "a PyTorch module needs PyTorch", hint="run `pip install '.[torch]'` in a checkout of qfmt"
        ) from None
    from .module import QuantizedModule

    return QuantizedModule(model, engine)
