"""Lifts of torch's calls: each module registers functions with `lifts`."""

from . import (  # noqa: F401
    attention,
    creation,
    decomposed,
    embeddings,
    functions,
    indexing,
    layouts,
    linear,
    logic,
    norms,
    pointwise,
    pools,
    qparams,
    queries,
    recurrent,
    torchao_linear,
)
