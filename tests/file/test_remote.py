"""`.qfb` files by URL: what is read and when, what a server may do wrong, and what is left behind: nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt.errors import DestinationError, DigestError, FormatError, MissingFileError, RemoteError
from qfmt.file import remote
from qfmt.model import Graph, Model, Tensor
from qfmt.urls import Url, place
from support.paths import DIGITS
from support.web_server import Server, serving

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'qfmt[remote]'")
pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'qfmt[remote]'")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, which is empty after each test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def weights(count: int, nbytes: int) -> Model:
    """A model of constants with different bytes."""
    arrays = {f"w{index}": np.full(nbytes, index, np.uint8) for index in range(count)}
    return Model(Graph((), (), (), {name: Tensor.constant(name, array) for name, array in arrays.items()}))


def test_load_reads_metadata_and_arrays_by_parts(server: Server, tmp_path: Path) -> None:
    weights(3, 1_000_000).save(tmp_path / "m.qfb")
    server.files["m.qfb"] = (tmp_path / "m.qfb").read_bytes()
    model = qfmt.load(server.url("m.qfb"))
    assert [asked for *_, asked in server.requests] == ["bytes=0-65535"]
    assert (model.tensors["w1"].array == 1).all()
    assert (model.tensors["w1"].array == 1).all()
    assert len(server.requests) == 2
    assert server.sent < 65_536 + 1_000_000 + 2 * 4096
    assert model.content_id() == qfmt.load(tmp_path / "m.qfb").content_id()
