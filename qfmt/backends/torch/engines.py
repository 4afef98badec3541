"""The engines by name, and the choice of `fast`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...errors import RunError
from ...model import Model
from ...threads import TORCH
from .emit import QUANTIZED, Emitter, Engine, Lacks, Site, Table
from .floats import FLOAT
from .integers import INTEGERS
from .interpreted import LOOK_UP, NUMPY
from .native import NATIVE_EMITTERS
from .native_dynamic import DYNAMIC_EMITTERS, linear_float16
from .onednn import COMPUTES, ONEDNN_ENGINE
from .products import PRODUCTS
from .qdq import QDQ_ENGINE
from .reference import REFERENCE, REFERENCE_ENGINE
from .sums import SUMS
from .weights import WEIGHTS

NATIVE_ENGINES = ("x86", "onednn", "fbgemm", "qnnpack")
"""torch's kernels, the fastest first; each follows the rules of its name."""


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


def native_engine(kernels: Sequence[str]) -> Engine:
    """The engine with these kernels of torch: the first that is correct for a node."""
    tables = (NATIVE, FLOAT, WEIGHTS, INTEGERS, LOOK_UP, PRODUCTS, REFERENCE, COMPUTES, NUMPY)
    return Engine(f"native:{kernels[0]}", tables, own=4, kernels=tuple(kernels))


def named(model: Model, engine: str) -> str:
    """The requested engine. `native` gets the kernels of the model's engine, or else of torch's setting: a module keeps
    them, whatever becomes of the setting."""
    name, _, kernels = engine.partition(":")
    if name != "native":
        return engine
    supported = torch.backends.quantized.supported_engines
    with TORCH.lock:  # a thread may have another setting for its own kernels
        chosen = kernels or (model.engine if model.engine in NATIVE_ENGINES else torch.backends.quantized.engine)
    if chosen not in supported or chosen == "none":
        known = ", ".join(name for name in supported if name != "none")
        raise RunError(f"this torch has no quantized kernels {chosen!r}", hint=f"it has {known}")
    return f"native:{chosen}"


PLAIN_ENGINES = {"reference": REFERENCE_ENGINE, "onednn": ONEDNN_ENGINE, "qdq": QDQ_ENGINE}

EXACT_KERNELS = "fbgemm"
"""Kernels of torch whose results are those of their rule to the last bit: oneDNN's differ at ties, and qnnpack's ignore
`reduce_range`."""


def candidates(model: Model, engine: str) -> list[Engine]:
    """The possible engines, best first: one, or those that `fast` chooses from.

    The kernels of torch's quantized operators are the fastest, those of x86 before the others; then oneDNN's on plain
    integers, which need no deprecated dtype; the reference has no requirements.
    """
    name, _, kernels = engine.partition(":")
    if name == "native":
        return [native_engine([kernels])]
    if name in PLAIN_ENGINES:
        return [PLAIN_ENGINES[name]]
    supported = torch.backends.quantized.supported_engines if hasattr(torch, "quint8") else ()
    if name == "auto":
        packs = EXACT_KERNELS in supported and any(node.operator in DYNAMIC_EMITTERS for node in model.nodes)
        return [_exact((EXACT_KERNELS,) if packs else ())]
    there = [kernels for kernels in NATIVE_ENGINES if kernels in supported]
    there = [kernels for kernels in there if kernels != "qnnpack"] or there
    native = [native_engine(there)] if there else []
    plain = [ONEDNN_ENGINE._replace(exact=False)] if _has_onednn() else []
    return [*native, *plain, REFERENCE_ENGINE]


def _has_onednn() -> bool:
    return bool(torch._C._has_mkldnn) and hasattr(torch.ops.onednn, "qconv_prepack")


def _exact(kernels: tuple[str, ...]) -> Engine:
    """The engine `auto`: kernels that compute each node's own rule exactly, or else the reference."""
    tables = (FLOAT, WEIGHTS, LOOK_UP, INTEGERS, PRODUCTS, REFERENCE, NUMPY)
    return Engine("auto", (SUMS, *tables) if _has_onednn() else tables, own=5, kernels=kernels, exact=True)
