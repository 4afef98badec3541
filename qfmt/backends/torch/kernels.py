"""Which of torch's quantized kernels compute, and their warnings: global settings, changed for a while."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch


@contextmanager
def quantized_kernels(kernels: str) -> Iterator[None]:
    """torch packs, and some operators run, with these kernels; afterwards with those from before.

    The setting is the process's: threads that change it take turns.
    """
    with _TURN:
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = kernels
        try:
            yield
        finally:
            torch.backends.quantized.engine = before


_TURN = RLock()


@contextmanager
def deprecated_dtypes() -> Iterator[None]:
    """torch announces the end of quint8 and qint8 whenever one is made: that is known here, and reported in docs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.quint8, torch.qint8, and torch.qint32 are deprecated.*")
        yield
