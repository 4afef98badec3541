"""Sources and destinations by URL: what is copied, and what is left behind: nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt.errors import DestinationError, MissingFileError, QfmtError, RemoteError
from qfmt.file import remote
from qfmt.model import Graph, Model
from qfmt.urls import Url, place
from support.command_line import invoke, start, tiny_model, trouble
from support.paths import DIGITS
from support.web_server import Server, serving, unstated
from support.weights import content, weights

pytestmark = pytest.mark.usefixtures("temporary")


# Other sources, and destinations


def test_a_source_is_a_temporary_copy(server: Server, store: str, tmp_path: Path) -> None:
    expected = qfmt.convert(DIGITS)
    server.files["net.pt"] = DIGITS.read_bytes()
    converted = qfmt.convert(server.url("net.pt"))
    assert converted.content_id() == expected.content_id()
    converted.save(f"{store}/digits.qfb")
    assert qfmt.load(f"{store}/digits.qfb").content_id() == expected.content_id()
    assert qfmt.verify(server.url("net.pt"), f"{store}/digits.qfb").is_exact
    converted.save(f"{store}/parts/digits.qfb", shard_size=4096)
    assert qfmt.verify(f"{store}/parts/digits.qfb", converted).is_exact
    converted.save(tmp_path / "d.qfb")  # from a copy that is gone
    assert (tmp_path / "d.qfb").read_bytes() == content(expected, tmp_path)


def test_external_data_of_onnx_are_not_fetched(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    from qfmt.backends.onnx import write_onnx

    write_onnx(qfmt.convert(DIGITS), tmp_path / "net.onnx", external=0)
    for path in tmp_path.glob("net.onnx*"):
        server.files[path.name] = path.read_bytes()
    assert len(server.files) == 2
    with pytest.raises(QfmtError, match="is missing; put it next to the model, in a local folder"):
        qfmt.convert(server.url("net.onnx"))
    assert {path for _, path, _ in server.requests} == {"net.onnx"}


def test_onnx_with_external_data_is_written_to_a_store(store: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    from qfmt.backends.onnx import write_onnx

    write_onnx(qfmt.convert(DIGITS), f"{store}/sub/net.onnx", external=0)
    write_onnx(qfmt.convert(DIGITS), tmp_path / "net.onnx", external=0)
    folder = place(f"{store}/sub")
    assert isinstance(folder, Url)
    for name, url in folder.files():
        with qfmt.file.copies.downloaded(url) as path:
            assert path.read_bytes() == (tmp_path / name).read_bytes()
    assert len(folder.files()) == 2


def test_destinations_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="is for reading only"):
        tiny_model().save(server.url("m.qfb"))
    tiny_model().save(tmp_path / "m.qfb")
    said = trouble("convert", tmp_path / "m.qfb", "memory://folder/")
    assert "a C program consists of multiple files" in said
    assert server.requests == []
    for url in ("memory://", "memory://folder/", "s3://"):
        with pytest.raises(DestinationError, match=f"^{url}/?: is a folder"):
            tiny_model().save(url)
    with pytest.raises(DestinationError, match=r"^s3://a/b/../c.qfb: has .. in its key"):
        tiny_model().save("s3://a/b/../c.qfb")
    with pytest.raises(DestinationError, match=r"^memory://a/\\x00b: "):
        tiny_model().save("memory://a/\0b")


@pytest.mark.parametrize("name", ["absent", "a file"])
def test_a_folder_for_temporary_files_that_is_none(
    name: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model().save(f"{store}/m.qfb")
    Url(f"{store}/m.pt").put(DIGITS)
    (tmp_path / "a file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    for attempt in (
        lambda: qfmt.load(f"{store}/m.qfb"),
        lambda: qfmt.convert(f"{store}/m.pt"),
        lambda: tiny_model().save(f"{store}/n.qfb"),
    ):
        with pytest.raises(DestinationError, match=r"a temporary file cannot be written: .*; TMPDIR names the folder"):
            attempt()


def test_a_folder_for_temporary_files_that_is_full(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full, as on Linux")
    weights(1, 100).save(f"{store}/m.qfb")
    monkeypatch.setattr(remote.tempfile, "TemporaryFile", lambda **_: full.open("w+b", buffering=0))
    with pytest.raises(DestinationError, match="No space left on device; TMPDIR names the folder"):
        qfmt.load(f"{store}/m.qfb")


def test_the_store_in_memory_needs_no_folder(memory: Any) -> None:
    tiny_model().save("memory://m.qfb")
    assert qfmt.load("memory://m.qfb").content_id() == tiny_model().content_id()


def test_a_failed_write_leaves_what_was_there(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights(1, 10).save(f"{store}/m.qfb")
    before = qfmt.load(f"{store}/m.qfb").content_id()
    broken = Model(Graph(("x",), (), (), {}))
    with pytest.raises(QfmtError):
        broken.save(f"{store}/m.qfb")
    monkeypatch.setattr(Url, "put", lambda *_: (_ for _ in ()).throw(DestinationError("no")))
    with pytest.raises(DestinationError):
        weights(2, 10).save(f"{store}/m.qfb")
    assert qfmt.load(f"{store}/m.qfb").content_id() == before


def test_an_upload_that_fails_at_its_end_leaves_what_was_there(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    weights(1, 10).save(f"{bucket}/m.qfb")
    before = qfmt.load(f"{bucket}/m.qfb").content_id()
    call, called = s3fs.S3FileSystem._call_s3, []

    async def fail(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        called.append(method)
        if method == "complete_multipart_upload":
            raise PermissionError("no\nmore")
        return await call(self, method, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("s3fs.core.calculate_chunksize", lambda *_, **__: 5 << 20)
        patch.setattr(s3fs.S3FileSystem, "_call_s3", fail)
        with pytest.raises(DestinationError, match="access is denied"):
            weights(2, 6 << 20).save(f"{bucket}/m.qfb")
    assert called.count("upload_part") == 3 and called[-1] == "abort_multipart_upload"
    assert qfmt.load(f"{bucket}/m.qfb").content_id() == before


def test_a_bucket_that_is_not_there(bucket: str) -> None:
    with pytest.raises(MissingFileError):
        qfmt.load("s3://other/m.qfb")
    with pytest.raises((DestinationError, MissingFileError)):
        tiny_model().save("s3://other/m.qfb")


# The command line


def test_every_command_takes_urls(store: str, server: Server, tmp_path: Path) -> None:
    server.files["net.pt"] = DIGITS.read_bytes()
    qfb, images = f"{store}/net.qfb", f"{store}/images.npy"
    np.save(tmp_path / "images.npy", np.zeros((2, 1, 8, 8), np.float32))
    Url(images).put(tmp_path / "images.npy")
    told = json.loads(invoke("convert", server.url("net.pt"), qfb, "--json").stdout)
    assert told["source"] == server.url("net.pt")
    assert told["dest"] == qfb
    qfmt.convert(DIGITS).save(tmp_path / "net.qfb")
    assert told["bytes"] == (tmp_path / "net.qfb").stat().st_size
    for arguments in (
        ["inspect", qfb],
        ["inspect", server.url("net.pt")],
        ["check", qfb],
        ["verify", server.url("net.pt"), qfb],
        ["diff", server.url("net.pt"), qfb],
        ["run", qfb, "--input", images, "--output", f"{store}/y.npz", "--record", f"{store}/tested.qfb"],
        ["run", f"{store}/tested.qfb", "--vectors"],
        ["convert", qfb, f"{store}/net.onnx"],
        ["verify", server.url("net.pt"), f"{store}/net.onnx"],
        ["convert", qfb, tmp_path / "copy.qfb"],
    ):
        done = invoke(*arguments)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "copy.qfb").read_bytes() == (tmp_path / "net.qfb").read_bytes()
    assert "is the source itself" in trouble("convert", qfb, qfb)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_download_leaves_nothing(number: int, server: Server, temporary: Path) -> None:
    server.answers["net.pt"] = unstated
    with start("convert", server.url("net.pt"), "net.qfb", stderr=subprocess.PIPE) as process:
        while not any(temporary.glob("*/*")):  # tempfile also tries whether it can write here
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == 128 + number


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_what_a_killed_process_left_is_removed_by_the_next(server: Server, temporary: Path) -> None:
    server.answers["net.pt"] = unstated
    with start("convert", server.url("net.pt"), "net.qfb", stderr=subprocess.PIPE) as process:
        while not any(temporary.glob("*/*")):  # tempfile also tries whether it can write here
            time.sleep(0.01)
        process.kill()
    (left,) = temporary.iterdir()
    assert left.stat().st_mode & 0o777 == 0o700
    del server.answers["net.pt"]
    server.files["net.pt"], server.ranges = DIGITS.read_bytes(), True
    qfmt.convert(server.url("net.pt"))


def test_a_version_of_an_object_is_not_another_object(bucket: str, tmp_path: Path) -> None:
    """s3fs omits the version."""
    model = weights(1, 100)
    model.save(tmp_path / "m.qfb")
    place(f"{bucket}/m.qfb").put(tmp_path / "m.qfb")
    url = place(f"{bucket}/m.qfb?versionId=1")
    for action in (
        url.is_file,
        url.is_dir,
        url.files,
        url.unlink,
        lambda: qfmt.load(str(url)),
        lambda: url.put(tmp_path),
    ):
        with pytest.raises(QfmtError, match=r"m.qfb\?versionId=1: has \?versionId= in its key"):
            action()
    assert "download that version" in trouble("inspect", url)
    assert "has ?versionId= in its key" in trouble("convert", tmp_path / "m.qfb", f"{bucket}/n.qfb?versionId=.qfb")
    for protocol in "s3", "S3":
        assert qfmt.load(f"{protocol}://{bucket[5:]}/m.qfb").content_id() == model.content_id()


def test_urls_that_name_nothing() -> None:
    for text, said in (
        ("s3:///key", "names no bucket"),
        ("file:///a%00b", "contains a NUL byte"),
        ("", "the path is empty"),
    ):
        with pytest.raises(QfmtError, match=said):
            place(text)


@pytest.mark.parametrize(
    "text", ["http:///u:secret@host/m.pt", "https://///u:secret@host/m.pt", "http://u:secret%40host/m.pt"]
)
def test_passwords_of_mistyped_urls_are_not_told(text: str) -> None:
    with pytest.raises(RemoteError) as error:
        place(text)
    assert "secret" not in str(error.value)


def test_a_part_that_there_is_no_room_for_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = qfmt.Tensor.constant("w", np.arange(1 << 18, dtype=np.uint8))
    Model(Graph((), (), (), {"w": tensor})).save(tmp_path / "m.qfb")
    monkeypatch.setattr("qfmt.file.remote.disk_usage", lambda folder: SimpleNamespace(free=100_000))
    with serving() as server:
        server.files["m.qfb"] = (tmp_path / "m.qfb").read_bytes()
        with pytest.raises(RemoteError, match=r"has 2\d\d\.\d kB, but there is room for 100\.0 kB"):
            qfmt.load(server.url("m.qfb"), verify="all")
        assert server.sent == 1 << 16
