"""Lifts of torch's calls: each module registers functions with `lifts`."""

from . import (  # noqa: F401
    attention,
    creation,
    decomposed,
    embeddings,
    functions,
    grids,
    indexing,
    layouts,
    linear,
    logic,
    norms,
    pointwise,
    pools,
    queries,
    recurrent,
    torchao_linear,
)
