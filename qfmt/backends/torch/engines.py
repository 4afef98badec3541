"""The engines by name, and which of them `auto` takes."""

from __future__ import annotations

import torch

from ...errors import RunError
from ...model import Model, static_shape
from .emit import QUANTIZED, Emitter, Engine, Lacks, Site, Table
from .floats import FLOAT
from .integers import INTEGERS
from .interpreted import LOOK_UP, NUMPY
from .native import NATIVE_EMITTERS
from .native_dynamic import DYNAMIC_EMITTERS, linear_float16
from .onednn import COMPUTES, ONEDNN_ENGINE
from .qdq import QDQ_ENGINE
from .reference import REFERENCE, REFERENCE_ENGINE
from .weights import WEIGHTS

NATIVE_ENGINES = ("x86", "onednn", "fbgemm", "qnnpack")
"""torch's kernels, the fastest first; each has the arithmetic of its name."""


def _native(operator: str) -> Emitter | None:
    emitter = NATIVE_EMITTERS.get(operator)
    dynamic = DYNAMIC_EMITTERS.get(operator, linear_float16 if operator == "qfmt.Linear" else None)
    if emitter is None:
        return dynamic

    def emit(s: Site) -> object:
        if not s.is_float:
            return emitter(s)
        if dynamic is None:
            raise Lacks("is not quantized")
        return dynamic(s)

    return emit


NATIVE = Table("native", QUANTIZED, _native)


def native_engine(arithmetic: str, kernels: str) -> Engine:
    """The engine for a model's arithmetic, or with `kernels` named outright."""
    supported = torch.backends.quantized.supported_engines
    chosen = kernels or (arithmetic if arithmetic in NATIVE_ENGINES else torch.backends.quantized.engine)
    if chosen not in supported or chosen == "none":
        known = ", ".join(name for name in supported if name != "none")
        raise RunError(f"this torch has no quantized kernels {chosen!r}", hint=f"it has {known}")
    tables = (NATIVE, FLOAT, WEIGHTS, INTEGERS, LOOK_UP, REFERENCE, COMPUTES, NUMPY)
    return Engine(f"native:{chosen}", tables, own=4, kernels=chosen)


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
    there = [kernels for kernels in NATIVE_ENGINES if kernels in supported]
    right = [
        kernels for kernels in there if not _errs(model, kernels) and (kernels != "qnnpack" or there == ["qnnpack"])
    ]
    native = [native_engine(model.arithmetic, kernels) for kernels in right]
    has_onednn = torch._C._has_mkldnn and hasattr(torch.ops.onednn, "qconv_prepack")
    return [*native[:1], *([ONEDNN_ENGINE] if has_onednn else []), REFERENCE_ENGINE]


def _errs(model: Model, kernels: str) -> bool:
    """Whether a transposed convolution of the model comes out wrong by these kernels of torch, far beyond rounding.

    Measured with torch 2.13 on x86: oneDNN's take the weights for those of another shape where a group has not as many
    outputs as inputs; fbgemm's have a path of their own for a kernel and strides of 2 × 2 and channels by eights.
    """
    for node in model.nodes:
        if node.operator != "ConvTranspose" or model.tensors[node.outputs[0]].quantization is None:
            continue
        inputs, outputs, *kernel = static_shape(model.tensors[node.inputs[1]])
        group = node.attributes["group"]
        if kernels in ("x86", "onednn") and inputs != outputs * group:
            return True
        if kernels == "fbgemm" and kernel == [2, 2] and inputs % 8 == 0 and outputs % 8 == 0:
            return True
    return False
