"""The engines by name, and which of them `auto` takes."""

from __future__ import annotations

import torch

from ...model import Model
from .emit import Engine
from .native import NATIVE_ENGINES, native_engine
from .onednn import ONEDNN_ENGINE
from .qdq import QDQ_ENGINE
from .reference import REFERENCE_ENGINE

PLAIN_ENGINES = {"reference": REFERENCE_ENGINE, "onednn": ONEDNN_ENGINE, "qdq": QDQ_ENGINE}


def candidates(model: Model, engine: str) -> list[Engine]:
    """The engines that may compute, best first: one, or those that `auto` chooses from.

    The kernels of torch's quantized operators are the fastest, those of x86 before the others; then oneDNN's on plain
    integers, which need no deprecated dtype; the reference needs nothing.
    """
    name, _, kernels = engine.partition(":")
    if name == "native":
        return [native_engine(model.arithmetic, kernels)]
    if name in PLAIN_ENGINES:
        return [PLAIN_ENGINES[name]]
    supported = torch.backends.quantized.supported_engines if hasattr(torch, "quint8") else ()
    native = [native_engine(model.arithmetic, kernels) for kernels in NATIVE_ENGINES if kernels in supported]
    has_onednn = torch._C._has_mkldnn and hasattr(torch.ops.onednn, "qconv_prepack")
    return [*native[:1], *([ONEDNN_ENGINE] if has_onednn else []), REFERENCE_ENGINE]
