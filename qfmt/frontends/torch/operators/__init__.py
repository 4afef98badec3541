"""Lifts of torch's calls: each module registers functions with `lifts`."""

from . import (  # noqa: F401
    attention,
    creation,
    decomposed,
    dynamic_linear,
    embeddings,
    float_recurrent,
    functions,
    indexing,
    layouts,
    linear,
    logic,
    norms,
    pointwise,
    pools,
    queries,
    recurrent,
    runtime_grids,
    torchao_linear,
)
