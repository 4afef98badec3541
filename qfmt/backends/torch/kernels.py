"""Select torch's quantized kernels, and silence their warnings: global settings, changed temporarily."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch


@contextmanager
def quantized_kernels(kernels: str) -> Iterator[None]:
    """A context in which torch packs, and some operators run, with these kernels.

    The setting is global to the process: threads that change it wait for each other.
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
    """torch warns of the removal of quint8 and qint8 whenever one is made; the docs mention it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.quint8, torch.qint8, and torch.qint32 are deprecated.*")
        yield
