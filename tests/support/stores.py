"""Fixtures for URLs: a web server on the loopback, the store in memory, and S3 as moto plays it."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.web_server import Server, serving

MISSING = "is not installed: pip install '.[remote]' s3fs 'moto[s3]' flask flask-cors"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, also of child processes, which is empty after the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    left = {path.name for path in folder.iterdir()} - {".ses", "dask-scratch-space"}  # of ONNX Runtime and Dask
    assert not left, left


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("aiohttp", reason=f"aiohttp {MISSING}")
    with serving() as found:
        yield found


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system of memory://, empty."""
    files = pytest.importorskip("fsspec", reason=f"fsspec {MISSING}").filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of a server that plays S3."""
    pytest.importorskip("s3fs", reason=f"s3fs {MISSING}")
    servers = pytest.importorskip("moto.server", reason=f"moto {MISSING}")
    running = servers.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket, for this process and its children."""
    import fsspec

    settings = {"ENDPOINT_URL": s3, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}
    for name, value in {**settings, "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    name = f"models-{secrets.token_hex(8)}"
    fsspec.filesystem("s3", use_listings_cache=False).mkdir(name)
    return f"s3://{name}"


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of a folder that can be written: in memory, and on S3."""
    if request.param == "memory":
        request.getfixturevalue("memory")
        return "memory://models"
    found: str = request.getfixturevalue("bucket")
    return found
