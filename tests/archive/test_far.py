"""Archives beyond one machine: sources and archives by URL, workers of a Dask cluster, which may die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import qfmt
from qfmt.archive.filling import fill
from qfmt.archive.manifest import MANIFEST, Entry, Manifest
from qfmt.archive.sources import find
from qfmt.cli.source import is_archive
from qfmt.errors import DestinationError, MissingFileError, MissingPackageError, QfmtError, RemoteError, SourceError
from qfmt.file.sharding import stated
from qfmt.urls import Url, place
from support.archives import described
from support.command_line import invoke, trouble
from support.paths import DIGITS, ROOT
from support.web_server import Server

IN_STEP = "support.making:in_step"
NO_DASK = "distributed is not installed: pip install '.[dask]'"


def digits(path: Path, number: int = 0) -> Path:
    """The network of DIGITS with some other weights in its last layer, the only member of so many bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(DIGITS) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, bytes([number]) + content[1:] if len(content) == 1280 else content)
    return path


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Four sources of three models, in a folder with a text."""
    folder = tmp_path / "sources"
    for name, number in {"a.pt": 1, "b.pt": 2, "sub/c.pt": 1, "sub/d.pt": 3}.items():
        digits(folder / name, number)
    (folder / "README.md").write_text("models")
    return folder


@pytest.mark.usefixtures("temporary")
def test_an_archive_in_a_bucket_is_that_of_a_folder(bucket: str, sources: Path, tmp_path: Path) -> None:
    for path in sources.rglob("*.*"):
        Url(f"{bucket}/models/{path.relative_to(sources).as_posix()}").put(path)
    expected = fill(tmp_path / "local", find([str(sources)], tmp_path / "local").sources).manifest
    archive = f"{bucket}/archive-1.5"
    done = invoke("convert", f"{bucket}/models", "--out", archive, "--jobs", "2")
    assert done.exit_code == 0, done.output
    assert "left out: 1 file in folders (not models)" in done.stdout
    manifest = Manifest(place(archive))
    assert described(manifest) == described(expected)
    assert [entry.path for entry in manifest.entries.values()] == [
        f"{bucket}/models/{name}" for name in manifest.entries
    ]
    assert [name for name, _ in Url(archive).files()] == ["a.qfb", MANIFEST, "b.qfb", "sub/d.qfb"]
    again = invoke("convert", f"{bucket}/models", "--out", archive, "--json", "--jobs", "1")
    assert {entry["result"] for entry in json.loads(again.stdout)["entries"]} == {"kept"}
    assert "3 files, valid" in invoke("check", archive, "--jobs", "1").output
    assert "sub/d.pt" in invoke("inspect", archive).output
    (tmp_path / "broken").write_bytes(b"QFB1")
    Url(f"{archive}/b.qfb").put(tmp_path / "broken")
    Url(f"{archive}/sub/d.qfb").unlink()
    broken = invoke("check", archive, "--jobs", "2")
    assert broken.exit_code == 1
    assert "b.qfb: is not the file that was written" in broken.stdout
    assert "sub/d.qfb: is missing" in broken.stdout
    again = invoke("convert", f"{bucket}/models/**/*.pt", "--out", archive, "--json", "--jobs", "1")
    repaired = json.loads(again.stdout)
    results = {entry["source"]: entry["result"] for entry in repaired["entries"]}
    assert results == {"a.pt": "kept", "b.pt": "converted", "sub/c.pt": "kept", "sub/d.pt": "converted"}


@pytest.mark.usefixtures("temporary")
def test_sources_at_urls_are_verified_where_the_user_says(bucket: str, sources: Path, tmp_path: Path) -> None:
    """A manifest may come from anyone: no URL in it is opened."""
    pytest.importorskip("torch")
    for path in sources.rglob("*.pt"):
        Url(f"{bucket}/models/{path.relative_to(sources).as_posix()}").put(path)
    archive = tmp_path / "archive"
    assert invoke("convert", f"{bucket}/models", "--out", archive).exit_code == 0
    refused = invoke("verify", "--archive", archive)
    assert refused.exit_code == 2
    assert refused.stdout.count("name the folder of the sources with --sources") == 4
    for where in (f"{bucket}/models", sources):
        done = invoke("verify", "--archive", archive, "--sources", where, "--jobs", "1")
        assert done.exit_code == 0, done.output
        assert "4 of 4 are right" in done.output
    stranger = Manifest(archive)
    for name in ("../x.pt", "/x.pt", "a/../../x.pt"):
        with pytest.raises(QfmtError, match="is not the name of a source"):
            stranger.source(Entry(name, ""), sources)
    for name in ("../x.pt", "a/../../x.pt"):
        with pytest.raises(QfmtError, match="is not below it"):
            stranger.source(Entry(name, ""), place(f"{bucket}/models"))


@pytest.mark.usefixtures("temporary")
def test_keys_with_empty_parts_are_verified(bucket: str, sources: Path, tmp_path: Path) -> None:
    """S3 keeps them; a path would not."""
    import fsspec

    files = fsspec.filesystem("s3", use_listings_cache=False)
    for key, name in (("models//a.pt", "a.pt"), ("models/sub//b.pt", "b.pt")):
        files.put_file(str(sources / name), f"{bucket}/{key}")
    archive = tmp_path / "archive"
    assert invoke("convert", f"{bucket}/models", "--out", archive).exit_code == 0
    assert {*Manifest(archive).entries} == {"/a.pt", "sub//b.pt"}
    done = invoke("verify", "--archive", archive, "--sources", f"{bucket}/models", "--jobs", "1")
    assert done.exit_code == 0 and "2 of 2 are right" in done.output


@pytest.mark.usefixtures("temporary")
def test_an_archive_with_shards_is_read_by_url(bucket: str, sources: Path, tmp_path: Path) -> None:
    """It is filled in a local folder, and copied."""
    archive = tmp_path / "archive"
    fill(archive, find([str(sources)], archive).sources, options={"shard_size": 1000})
    for path in filter(Path.is_file, archive.rglob("*")):
        Url(f"{bucket}/archive/{path.relative_to(archive).as_posix()}").put(path)
    assert "3 files, valid" in invoke("check", f"{bucket}/archive", "--jobs", "1").output
    assert "sub/d.pt" in invoke("inspect", f"{bucket}/archive").output
    lost = stated(archive / "b.qfb")[0].name
    (tmp_path / "cut").write_bytes((archive / lost).read_bytes()[:-1])
    Url(f"{bucket}/archive/{lost}").put(tmp_path / "cut")
    result = invoke("check", f"{bucket}/archive", "--jobs", "1")
    assert result.exit_code == 1
    assert result.stdout.startswith("b.qfb: F15 ") and lost in result.stdout and len(result.stdout.splitlines()) == 1
    Url(f"{bucket}/archive/{lost}").unlink()
    result = invoke("check", f"{bucket}/archive", "--jobs", "1")
    assert result.exit_code == 1
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["b.qfb"]
    assert lost in result.stdout and "is missing" in result.stdout


@pytest.mark.usefixtures("temporary")
def test_sources_with_shards_are_read_by_url(bucket: str, sources: Path, tmp_path: Path) -> None:
    qfmt.convert(sources / "b.pt").save(f"{bucket}/sharded/b.qfb", shard_size=1000)
    url, archive = f"{bucket}/sharded/b.qfb", tmp_path / "archive"
    for _ in range(2):
        done = invoke("convert", f"{bucket}/sharded", "--out", archive)
        assert done.exit_code == 0, done.output
    assert qfmt.load(archive / "b.qfb", verify="all").content_id() == qfmt.load(url).content_id()
    assert invoke("verify", "--archive", archive, "--sources", f"{bucket}/sharded", "--jobs", "1").exit_code == 0
    assert invoke("verify", url, archive / "b.qfb").exit_code == 0
    [(name, _), *_] = Url(f"{bucket}/sharded").files("*.qfs")
    Url(f"{bucket}/sharded/{name}").unlink()
    lost = invoke("convert", f"{bucket}/sharded", "--out", tmp_path / "lost")
    assert lost.exit_code == 1 and f"shard {name!r}: is missing" in lost.output


@pytest.mark.usefixtures("temporary")
def test_a_remote_shard_of_another_size_is_not_copied(server: Server, sources: Path, tmp_path: Path) -> None:
    qfmt.convert(sources / "b.pt").save(tmp_path / "b.qfb", shard_size=1000)
    first, *_ = sorted(tmp_path.glob("*.qfs"))
    server.files.update({path.name: path.read_bytes() for path in tmp_path.glob("b.*")})
    server.files[first.name] = first.read_bytes() + bytes(10**7)
    filled = fill(tmp_path / "archive", {"b": place(server.url("b.qfb"))})
    assert filled.results == {"b": "failed"} and server.sent < 10**6
    assert f"has {10**7 + first.stat().st_size} bytes instead of" in filled.manifest.entries["b"].error


@pytest.mark.parametrize("missing", [[], ["b.qfb"]])
def test_a_file_that_cannot_be_read_is_not_called_invalid(server: Server, tmp_path: Path, missing: list[str]) -> None:
    archive = tmp_path / "archive"
    fill(archive, {f"{name}.pt": digits(tmp_path / f"{name}.pt", number) for number, name in enumerate("abc")})
    server.files = {path.name: path.read_bytes() for path in archive.iterdir() if path.name not in missing}
    server.answers = {"c.qfb": lambda handler: handler.answer(403, b"")}
    result = invoke("check", server.url(""))
    said = "3 files, 1 invalid, 1 not checked" if missing else "3 files, 1 not checked"
    assert (result.exit_code, result.stderr) == (1 if missing else 2, f"{server.url('')}: {said}\n")
    told = json.loads(invoke("check", server.url(""), "--json").stdout)
    valid = [each["valid"] for each in told["files"]]
    assert (told["valid"], valid) == ((False, [True, False, None]) if missing else (None, [True, True, None]))


def test_a_manifest_of_a_bucket_leads_nowhere_else(bucket: str, tmp_path: Path) -> None:
    entry = Entry("a.pt", "a.pt", file="../other/a.qfb", content_id="1")
    (tmp_path / MANIFEST).write_text(entry.line)
    Url(f"{bucket}/archive/{MANIFEST}").put(tmp_path / MANIFEST)
    with pytest.raises(QfmtError, match="is not below it"):
        Manifest(place(f"{bucket}/archive"))


def test_an_archive_keeps_what_it_has_of_a_source_that_cannot_be_read(server: Server, tmp_path: Path) -> None:
    """Of the first, nothing is known to have changed; of the second, there is no newer model."""
    names, archive = ("a.pt", "b.pt"), tmp_path / "archive"
    server.files |= {name: digits(tmp_path / name, number).read_bytes() for number, name in enumerate(names)}
    found = find([server.url(name) for name in names], archive).sources
    before = described(fill(archive, found).manifest)
    server.answers = {"a.pt": lambda handler: handler.answer(503, b"")}
    server.files["b.pt"] = b"no model"
    filled = fill(archive, found)
    entries = filled.manifest.entries
    assert filled.results == {"a.pt": "failed", "b.pt": "failed"} and "answers 503" in entries["a.pt"].error
    assert described(filled.manifest) == before and "unknown format" in entries["b.pt"].error
    assert f"{archive}: 2 files, valid; 2 of 2 sources failed when last converted" in invoke("check", archive).stdout
    told = json.loads(invoke("check", archive, "--json").stdout)
    assert told["sources"] == {"total": 2, "without_file": 0, "failed": 2}
    server.files["c.pt"] = b"no model"
    fill(archive, find([server.url("c.pt")], archive).sources)
    told = invoke("check", archive)
    assert "no file for 1 of 3 sources; 3 of 3 sources failed when last converted" in told.stdout
    assert (
        "a.qfb; not converted again: the transfer failed: the server answers 503" in invoke("inspect", archive).stdout
    )
    server.answers = {}
    filled = fill(archive, found)
    assert filled.results["a.pt"] == "kept" and not filled.manifest.entries["a.pt"].error


def test_a_name_belongs_to_one_url(server: Server, tmp_path: Path) -> None:
    """The query may be a signature, which changes."""
    content = digits(tmp_path / "net.pt").read_bytes()
    server.files = dict.fromkeys(["1/net.pt", "1/net.pt?signature=2", "2/net.pt"], content)
    server.files["3/net.pt"] = digits(tmp_path / "other" / "net.pt", 1).read_bytes()
    archive = tmp_path / "archive"
    for path in "1/net.pt?signature=1", "1/net.pt?signature=2":
        server.files[path] = content
        assert invoke("convert", server.url(path), "--out", archive).exit_code == 0
    assert invoke("convert", server.url("2/net.pt"), "--out", archive).exit_code == 0  # an equal file
    other = tmp_path / "other" / "net.pt"
    assert "two sources have the name net.pt" in trouble("convert", other, "--out", archive)
    before = described(Manifest(archive))
    two = "two sources have the name net.pt"
    assert two in failed(server.url("3/net.pt"), archive) and described(Manifest(archive)) == before
    assert invoke("convert", tmp_path / "net.pt", "--out", archive).exit_code == 0  # it was downloaded
    assert two in failed(server.url("3/net.pt"), archive)
    (tmp_path / "net.pt").unlink()
    assert invoke("convert", server.url("3/net.pt"), "--out", archive).exit_code == 0


def failed(source: str, archive: Path) -> str:
    """The output of a conversion whose only source fails."""
    result = invoke("convert", source, "--out", archive)
    assert result.exit_code == 1
    return result.output


def test_a_source_that_fails_does_not_take_the_name_of_another(server: Server, tmp_path: Path) -> None:
    """The manifest still says where its model is from."""
    one, archive = digits(tmp_path / "1" / "net.pt"), tmp_path / "archive"
    server.files = {"net.pt": digits(tmp_path / "2" / "net.pt", 1).read_bytes()}
    assert invoke("convert", one, "--out", archive).exit_code == 0
    before = described(Manifest(archive))
    one.rename(tmp_path / "net.pt")
    server.answers = {"net.pt": lambda handler: handler.answer(503, b"")}
    assert invoke("convert", server.url("net.pt"), "--out", archive).exit_code == 1
    entry = Manifest(archive).entries["net.pt"]
    assert described(Manifest(archive)) == before and entry.path == "../1/net.pt"
    assert entry.error.startswith(f"{server.url('net.pt')}: ") and "answers 503" in entry.error
    (tmp_path / "net.pt").rename(one)
    server.answers = {}
    assert "two sources have the name net.pt: ../1/net.pt" in failed(server.url("net.pt"), archive)
    one.unlink()
    result = invoke("convert", server.url("net.pt"), "--out", archive)
    assert "note: net.pt: replaces the model of another file, ../1/net.pt\n" in result.stderr


def test_names_of_a_web_server_are_not_escaped(server: Server, tmp_path: Path) -> None:
    """They are names in the archive, which `--sources` escapes again."""
    server.files = {"a%20b%23.pt": digits(tmp_path / "sources" / "a b#.pt").read_bytes()}
    server.files["x%2Fy.pt"] = server.files["a%20b%23.pt"]
    archive = tmp_path / "archive"
    assert [*find([server.url("x%2Fy.pt")], archive).sources] == ["x%2Fy.pt"]
    filled = fill(archive, find([server.url("a%20b%23.pt")], archive).sources)
    assert [(entry.source, entry.file) for entry in filled.manifest.entries.values()] == [("a b#.pt", "a b#.qfb")]
    for sources in (server.url(""), tmp_path / "sources"):
        assert invoke("verify", "--archive", archive, "--sources", sources).exit_code == 0


@pytest.mark.usefixtures("temporary")
def test_sources_of_a_web_server_are_named_one_by_one(server: Server, sources: Path, tmp_path: Path) -> None:
    """What a page links to is not followed."""
    server.files["folder/"] = f'<!doctype html><a href="{server.url("folder/a.pt")}">a</a>'.encode()
    for name in ("a.pt", "b.pt"):
        server.files[f"folder/{name}"] = (sources / name).read_bytes()
    archive = tmp_path / "archive"
    found = find([server.url("folder/"), server.url("folder/a.pt"), server.url("folder/*.pt")], archive)
    assert list(found.sources) == ["*.pt", "a.pt", "folder"]
    filled = fill(archive, found.sources)
    assert filled.results == {"*.pt": "failed", "a.pt": "converted", "folder": "failed"}
    errors = {entry.source: entry.error for entry in filled.manifest.entries.values()}
    assert "is a web page" in errors["folder"]
    assert "there is no such file" in errors["*.pt"]
    with pytest.raises(DestinationError, match="is for reading only"):
        fill(place(server.url("archive")), found.sources)


def test_memory_of_one_process_is_no_archive(memory: Any, sources: Path, tmp_path: Path) -> None:
    for folder, named in ((place("memory://archive"), str(sources)), (tmp_path / "archive", "memory://models/a.pt")):
        with pytest.raises(DestinationError, match="memory:// is the memory of one process"):
            fill(folder, find([named], folder).sources)


def test_odd_keys_of_a_bucket(bucket: str, sources: Path, tmp_path: Path) -> None:
    names = ("[a].pt", "a.pt", "b c#d?e%20.pt", "Net.pt", "net.pt")
    for name in names:
        Url(f"{bucket}/{name}").put(sources / "a.pt")
    (tmp_path / "empty").touch()
    Url(f"{bucket}/folder/").put(tmp_path / "empty")  # consoles make such objects
    assert set(find([bucket], tmp_path).sources) == set(names)
    assert [*find([f"{bucket}/[a].pt"], tmp_path).sources] == ["[a].pt"]
    assert not is_archive(Url("https://host/model?signature"))
    assert invoke("inspect", f"{bucket}/b c#d?e%20.pt").exit_code == 0


def test_a_glob_asks_for_a_list_only(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket may have thousands of files."""
    import s3fs

    for name in ("a.pt", "b.pt", "c.pt/d.pt"):
        (place(bucket) / name).put(DIGITS)
    call, called = s3fs.S3FileSystem._call_s3, []

    async def counted(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        called.append(method)
        return await call(self, method, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    assert [name for name, _ in place(bucket).files("*.pt")] == ["a.pt", "b.pt"]
    assert "head_object" not in called


def test_a_key_with_dots_is_the_error_of_one_source(bucket: str, sources: Path, tmp_path: Path) -> None:
    import fsspec

    names = ("a.pt", "../up.pt", "b/../c.pt", "/d.pt")
    listed = {f"{bucket.removeprefix('s3://')}/models/{name}": {"type": "file"} for name in names}
    files = fsspec.filesystem("s3", use_listings_cache=False)
    files.put_file(str(sources / "a.pt"), f"{bucket}/models/a.pt")
    with pytest.MonkeyPatch.context() as patch:  # S3 has any key; moto has none of these
        patch.setattr(type(files), "find", lambda *_, **__: listed)
        found = find([f"{bucket}/models"], tmp_path / "archive").sources
    assert set(found) == set(names)
    filled = fill(tmp_path / "archive", found)
    assert filled.results == dict.fromkeys(names, "failed") | {"a.pt": "converted"}
    errors = {name: entry.error for name, entry in filled.manifest.entries.items()}
    assert errors["../up.pt"].startswith("has .. in its key") and errors["b/../c.pt"] == errors["../up.pt"]
    assert Manifest(tmp_path / "archive").entries == filled.manifest.entries


def test_a_name_with_a_version_is_the_error_of_one_source(bucket: str, sources: Path) -> None:
    """s3fs would write, and remove, the object without that ending."""
    import fsspec

    files = fsspec.filesystem("s3", use_listings_cache=False)
    files.pipe_file(f"{bucket}/archive/a.pt", b"of the user")
    for version in "12":
        (sources / f"a.pt?versionId={version}").write_bytes((sources / "a.pt").read_bytes())
    filled = fill(place(f"{bucket}/archive"), find([str(sources)], place(f"{bucket}/archive")).sources)
    assert files.cat_file(f"{bucket}/archive/a.pt") == b"of the user"
    failed = {name for name, result in filled.results.items() if result == "failed"}
    assert failed and all("?versionId=" in name for name in failed)
    assert all("has ?versionId= in its key" in filled.manifest.entries[name].error for name in failed)
    assert invoke("check", f"{bucket}/archive").exit_code == 0


def test_what_is_no_source_by_url(bucket: str, server: Server, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no file matches"):
        find([f"{bucket}/*.pt"], tmp_path)
    with pytest.raises(DestinationError, match="is in the archive"):
        find([f"{bucket}/archive/a.qfb"], place(f"{bucket}/archive"))
    with pytest.raises(SourceError, match="names no file"):
        find([server.url("")], tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_workers_have_limits(tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    for number, name in enumerate(("hungry.pt", "slow.pt", "z.pt")):
        digits(folder / name, number)
    from qfmt.archive.workers import Limits

    archive = tmp_path / "archive"
    limits = Limits(1 << 30, 5)
    filled = fill(archive, find([str(folder)], archive).sources, maker="support.making:hungry", limits=limits)
    assert filled.results == {"hungry.pt": "failed", "slow.pt": "failed", "z.pt": "converted"}
    errors = {entry.source: entry.error for entry in filled.manifest.entries.values()}
    assert errors["hungry.pt"] == "needs more memory than its worker may take; `--memory` sets the limit"
    assert errors["slow.pt"] == "took longer than 5 s, the limit of --timeout"


def test_limits_are_for_archives_without_dask(tmp_path: Path, sources: Path) -> None:
    assert "requires --out FOLDER" in trouble("convert", sources / "a.pt", tmp_path / "a.qfb", "--dask", "local")
    assert "requires --out FOLDER" in trouble("convert", sources / "a.pt", tmp_path / "a.qfb", "--timeout", "3")
    said = trouble("convert", sources, "--out", tmp_path / "archive", "--dask", "local", "--memory", "1G")
    assert "limit the workers of the cluster" in said
    assert "--dask is empty" in trouble("convert", sources, "--out", tmp_path / "archive", "--dask", "")


@pytest.mark.parametrize("seconds", ["inf", "nan", "0", "-1", "1e300"])
def test_a_timeout_is_a_number_of_seconds(tmp_path: Path, sources: Path, seconds: str) -> None:
    said = trouble("convert", sources, "--out", tmp_path / "archive", "--timeout", seconds)
    assert "is not a number of seconds above 0" in said


def test_the_password_of_a_scheduler_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="distributed is in the test extra")
    from qfmt.archive import cluster

    def refuse(address: str, **_: object) -> None:
        raise OSError(f"cannot connect to {address}")

    monkeypatch.setattr("distributed.Client", refuse)
    for address in ("tls://user:secret@127.0.0.1:1", "tcp://user:secret@127.0.0.1:1", "user:secret@127.0.0.1:1"):
        with pytest.raises(RemoteError, match=r"--dask .*127\.0\.0\.1:1") as error:
            list(cluster.results([{}], "", (), 1, address))
        assert "secret" not in str(error.value)


def test_the_password_of_an_archive_is_not_told() -> None:
    told = trouble("verify", "--archive", "https://user:secret@127.0.0.1:1/x.dir?token=hidden")
    assert "https://127.0.0.1:1/x.dir?… is not a folder that" in told
    assert "secret" not in told
    assert "hidden" not in told


@pytest.mark.parametrize(
    "address", ["host", "http://127.0.0.1:1", "inproc://", "ucx://x", "tcp://", "tcp://user:secret@127.0.0.1:port"]
)
def test_what_is_no_address_gets_no_client(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Which would hang when the process ends."""
    distributed = pytest.importorskip("distributed", reason="distributed is in the test extra")
    from qfmt.archive import cluster

    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("a client"))
    with pytest.raises(RemoteError, match="give the address of a Dask scheduler") as error:
        list(cluster.results([{}], "", (), 1, address))
    assert "secret" not in str(error.value)


# On a cluster


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("where", ["bucket", pytest.param("folder", marks=pytest.mark.slow)])
def test_a_cluster_makes_the_same_archive(where: str, sources: Path, bucket: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    expected = fill(tmp_path / "local", find([str(sources)], tmp_path / "local").sources).manifest
    archive = place(f"{bucket}/archive") if where == "bucket" else tmp_path / "archive"
    found = find([str(sources)], archive).sources
    filled = fill(archive, found, jobs=2, dask="local")
    assert "converted" in filled.results.values()
    with cluster_of(1) as cluster:
        again = fill(archive, found, dask=cluster.scheduler_address)
    assert set(again.results.values()) == {"kept"}
    assert described(filled.manifest) == described(again.manifest) == described(expected)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="refused by older Pythons")
def test_others_cannot_reach_a_local_cluster(sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They could run code in it, and in this process."""
    distributed = pytest.importorskip("distributed", reason=NO_DASK)
    began, made = distributed.LocalCluster, []

    def watched(**options: Any) -> Any:
        cluster = began(**options)
        made.append(len(cluster.worker_spec))
        address = cluster.scheduler_address
        for other in address, address.replace("tls://", "tcp://"):
            with pytest.raises((OSError, TypeError, ValueError)):
                distributed.Client(other, timeout=2, set_as_default=False)
        for page in "info/main/workers.html", "json/counts.json":
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"http://127.0.0.1:{cluster.scheduler.http_server.port}/{page}")
        return cluster

    monkeypatch.setattr(distributed, "LocalCluster", watched)
    filled = fill(archive, find([str(sources)], archive).sources, jobs=8, dask="local")
    assert made == [len(filled.results)]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="refused by older Pythons")
def test_a_cluster_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    digits(tmp_path / "models" / "a.pt")
    (tmp_path / "multiprocessing.py").write_text("open('ran', 'w')\nraise SystemExit(1)\n")
    (tmp_path / "bin").mkdir()
    start = tmp_path / "bin" / "start.py"  # as the installed `qfmt`: Python adds its folder to the import path
    start.write_text("from qfmt.__main__ import run\nif __name__ == '__main__':\n    run()\n")
    command = [sys.executable, str(start), "convert", "models", "--out", "archive", "--dask", "local"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    assert (tmp_path / "archive" / "a.qfb").exists() and not (tmp_path / "ran").exists()


LOST = [
    pytest.param("SIGKILL", None, marks=pytest.mark.slow, id="one file"),
    pytest.param("SIGKILL", 1000, id="shards"),
    pytest.param("SIGSTOP", None, marks=pytest.mark.slow, id="hangs"),
]


@pytest.mark.parametrize(("end", "shard_size"), LOST)
def test_a_worker_that_is_killed_or_hangs_loses_nothing(tmp_path: Path, end: str, shard_size: int | None) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    import dask

    folder, archive, log = tmp_path / "sources", tmp_path / "archive", tmp_path / "log"
    for number in range(12):
        digits(folder / f"{number:02}.pt", number)
    killed: list[int] = []

    def told(entry: Entry) -> None:
        started = [line.split() for line in log.read_text().splitlines()]
        if len({name for _, name in started}) >= 5 and not killed:
            killed.append(int(started[-1][0]))
            os.kill(killed[0], signal.Signals[end])

    found = find([str(folder)], archive).sources
    options = {"shard_size": shard_size} if shard_size else {}
    with dask.config.set({"distributed.scheduler.worker-ttl": "5s"}):  # by default five minutes
        filled = fill(archive, found, maker=IN_STEP, options=options, jobs=2, dask="local", told=told)
    assert filled.results == dict.fromkeys(found, "converted")
    names = [line.split()[1] for line in log.read_text().splitlines()]
    assert set(names) == set(found)
    assert len(names) <= len(found) + 2  # what the two workers had in flight
    assert killed
    files = [entry.file for entry in filled.manifest.entries.values()]
    parts = [shard.name for file in files for shard in stated(archive / file)]
    assert sorted(path.name for path in archive.iterdir()) == sorted([MANIFEST, *files, *parts])
    assert bool(parts) == bool(shard_size)
    assert all(qfmt.check(archive / entry.file) == [] for entry in filled.manifest.entries.values())


def test_a_source_that_kills_its_workers_is_the_failure_of_one(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    import dask

    folder, archive = tmp_path / "sources", tmp_path / "archive"
    for number, name in enumerate(("a.pt", "killed.pt", "bug.pt")):
        digits(folder / name, number)
    found = find([str(folder)], archive).sources
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}):  # two workers die, not four
        filled = fill(archive, found, maker="support.making:or_die", jobs=1, dask="local")
    assert filled.results == {"a.pt": "converted", "bug.pt": "failed", "killed.pt": "failed"}
    assert "its worker failed" in filled.manifest.entries["killed.pt"].error


@pytest.mark.usefixtures("temporary")
def test_what_a_server_fails_to_send_is_asked_for_again(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    content = DIGITS.read_bytes()
    server.files["never.pt"] = server.files["later.pt"] = content
    asked = {"later.pt": 0, "never.pt": 0}

    def answer(handler: Any) -> None:
        name = handler.path.lstrip("/")
        asked[name] += 1
        fails = name == "never.pt" or asked[name] < 3
        handler.answer(503 if fails else 200, b"" if fails else content)

    server.answers = dict.fromkeys(asked, answer)
    found = find([server.url(name) for name in asked], tmp_path / "archive").sources
    filled = fill(tmp_path / "archive", found, jobs=1, dask="local")
    assert filled.results == {"later.pt": "converted", "never.pt": "failed"}
    assert "the server answers 503" in filled.manifest.entries["never.pt"].error
    assert asked == {"later.pt": 3, "never.pt": 3}


def test_a_cluster_that_is_not_there(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qfmt.archive import cluster

    found = find([str(sources)], tmp_path / "archive").sources
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "distributed", None)
        with pytest.raises(MissingPackageError) as error:
            fill(tmp_path / "archive", found, dask="local")
        assert error.value.hint == "run `pip install '.[dask]'` in a checkout of qfmt"
    pytest.importorskip("distributed", reason=NO_DASK)
    monkeypatch.setattr(cluster, "PATIENCE", 1)
    for address, said in (("tcp://127.0.0.1:1", "Timed out trying to connect"), ("nonsense://x", "is not an address")):
        with pytest.raises(RemoteError, match=f"{said}.*; give the address of a Dask scheduler"):
            fill(tmp_path / "archive", found, dask=address)


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not answer as a Dask scheduler"),
        (bytes(64), "does not answer as a Dask scheduler"),
        (b"", "said nothing for 1 seconds"),
        (None, "does not answer as a Dask scheduler"),
    ],
    ids=["ssh", "zeros", "silent", "echo"],
)
def test_another_server_than_a_scheduler(
    greeting: bytes | None, said: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the port of its dashboard: a Client would hang, or end with a traceback."""
    pytest.importorskip("distributed", reason=NO_DASK)
    from qfmt.archive import cluster

    monkeypatch.setattr(cluster, "PATIENCE", 1)
    found = find([str(sources)], tmp_path / "archive").sources
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def answer() -> None:
            with suppress(OSError):
                while True:
                    taken.append(server.accept()[0])
                    taken[-1].sendall(b"" if greeting is None else greeting)
                    while greeting is None and (heard := taken[-1].recv(1 << 16)):
                        taken[-1].sendall(heard)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(RemoteError, match=f"{said}; give the address of a Dask scheduler"):
            fill(tmp_path / "archive", found, dask=f"tcp://127.0.0.1:{server.getsockname()[1]}")
        for each in taken:
            each.close()


def test_the_address_of_a_worker_is_not_that_of_a_scheduler(sources: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason=NO_DASK)
    found = find([str(sources)], tmp_path / "archive").sources
    options = {"n_workers": 1, "processes": False, "protocol": "tcp://", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        (worker,) = cluster.workers.values()
        with pytest.raises(RemoteError, match="does not answer as a Dask scheduler"):
            fill(tmp_path / "archive", found, dask=worker.address)


def test_a_cluster_needs_certificates_for_tls(sources: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    found = find([str(sources)], tmp_path / "archive").sources
    with pytest.raises(RemoteError, match="there are no certificates for TLS"):
        fill(tmp_path / "archive", found, dask="tls://127.0.0.1:1")


def test_a_cluster_that_does_not_start(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)

    def fail(**_: object) -> None:
        raise RuntimeError("Cluster failed to start: Nanny failed to start.")

    monkeypatch.setattr("distributed.LocalCluster", fail)
    with pytest.raises(RemoteError, match="--dask local: Cluster failed to start"):
        fill(tmp_path / "archive", find([str(sources)], tmp_path / "archive").sources, dask="local")


def test_settings_of_dask_that_cannot_be_read(sources: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    settings = tmp_path / "settings.yaml"
    settings.write_text("distributed: [")
    command = [sys.executable, "-m", "qfmt", "convert", sources, "--out", tmp_path / "archive", "--dask", "local"]
    done = subprocess.run(command, env=os.environ | {"DASK_CONFIG": str(settings)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("qfmt: error: --dask: cannot be used: ") and len(done.stderr.splitlines()) == 1


def test_a_scheduler_that_is_lost(sources: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)  # later, its settings would be gone after the block
    import dask

    archive = tmp_path / "archive"
    with dask.config.set({"distributed.comm.timeouts.connect": "3s"}), cluster_of(1) as cluster:
        found = find([str(sources)], archive).sources
        with pytest.raises(RemoteError, match="the connection to the scheduler was lost"):
            fill(archive, found, dask=cluster.scheduler_address, told=lambda entry: cluster.close())
    assert "Traceback" not in capfd.readouterr().err
    assert "converted" in fill(archive, found).results.values()


def test_a_scheduler_that_dies_while_it_answers(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask raises a subclass of OSError, which must not be taken for one of the manifest."""
    distributed = pytest.importorskip("distributed", reason=NO_DASK)

    async def gather(*_: object, **__: object) -> None:
        raise distributed.comm.CommClosedError("in <TCP (closed)>: Stream is closed")

    monkeypatch.setattr(distributed.Client, "gather", gather)
    found = find([str(sources)], tmp_path / "archive").sources
    with cluster_of(1) as cluster, pytest.raises(RemoteError, match="the connection to the scheduler was lost"):
        fill(tmp_path / "archive", found, dask=cluster.scheduler_address)


WITHOUT_QFMT = "import sys; sys.modules['qfmt'] = None"


@pytest.fixture
def dask_program(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A function that starts a program of Dask's in an environment in which qfmt cannot be imported."""
    pytest.importorskip("distributed", reason=NO_DASK)
    folder, started = tmp_path / "path", list[subprocess.Popen[bytes]]()
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT_QFMT)

    def start(name: str, *arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{name}", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def cluster_of(workers: int) -> Any:
    """A cluster of threads in this process."""
    distributed = pytest.importorskip("distributed", reason=NO_DASK)
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": "CRITICAL"}
    return distributed.LocalCluster(n_workers=workers, processes=False, protocol="tcp", **options)


def test_a_worker_without_qfmt_is_named(sources: Path, tmp_path: Path, dask_program: Callable[..., Any]) -> None:
    found = find([str(sources)], tmp_path / "archive").sources
    with cluster_of(0) as cluster:
        dask_program("dask_worker", cluster.scheduler_address, "--no-nanny", "--no-dashboard")
        with pytest.raises(RemoteError, match=f"the worker tcp://.* does not have qfmt {qfmt.__version__}: import of"):
            fill(tmp_path / "archive", found, dask=cluster.scheduler_address)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
def test_a_worker_that_hangs_is_not_waited_for(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dask_program: Callable[..., Any]
) -> None:
    from qfmt.archive import cluster

    monkeypatch.setattr(cluster, "IDLE", 2)
    found = find([str(sources)], tmp_path / "archive").sources
    with cluster_of(1) as one:
        hanging = dask_program("dask_worker", one.scheduler_address, "--no-nanny", "--no-dashboard")
        while len(one.scheduler_info["workers"]) < 2:
            time.sleep(0.05)
        hanging.send_signal(signal.SIGSTOP)
        with pytest.raises(RemoteError, match="a worker did not answer for 2 seconds; restart the workers that hang"):
            fill(tmp_path / "archive", found, dask=one.scheduler_address)
        hanging.kill()
        while len(one.scheduler_info["workers"]) > 1:  # the cluster could not be closed
            time.sleep(0.05)


def test_a_scheduler_without_qfmt_is_named(sources: Path, tmp_path: Path, dask_program: Callable[..., Any]) -> None:
    stated = tmp_path / "scheduler.json"
    dask_program("dask_scheduler", "--port", 0, "--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", stated)
    while not (stated.exists() and stated.read_text().rstrip().endswith("}")):
        time.sleep(0.05)
    found = find([str(sources)], tmp_path / "archive").sources
    with pytest.raises(RemoteError, match="the scheduler does not have qfmt"):
        fill(tmp_path / "archive", found, dask=json.loads(stated.read_text())["address"])


def test_a_cluster_without_workers_is_not_waited_for(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qfmt.archive import cluster

    monkeypatch.setattr(cluster, "IDLE", 1)
    monkeypatch.setattr(cluster, "PERIOD", 0.01)
    archive = tmp_path / "archive"
    found = find([str(sources)], archive).sources
    with cluster_of(0) as empty, pytest.raises(RemoteError, match="there was no worker for 1 seconds"):
        fill(archive, found, dask=empty.scheduler_address)
    with cluster_of(1) as left, pytest.raises(RemoteError, match="there was no worker for 1 seconds"):
        fill(archive, found, dask=left.scheduler_address, told=lambda entry: left.scale(0))


def test_a_scheduler_that_hangs_is_not_waited_for(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qfmt.archive import cluster

    async def hang(**_: object) -> None:
        await asyncio.sleep(30)

    def freeze(entry: Entry) -> None:
        one.scheduler.handlers["identity"] = hang
        one.scale(0)

    monkeypatch.setattr(cluster, "IDLE", 1)
    monkeypatch.setattr(cluster, "PERIOD", 0.01)
    found = find([str(sources)], tmp_path / "archive").sources
    with cluster_of(1) as one, pytest.raises(RemoteError, match="the scheduler did not answer for 1 seconds"):
        fill(tmp_path / "archive", found, dask=one.scheduler_address, told=freeze)


def test_workers_of_another_version_are_refused() -> None:
    from qfmt.archive.cluster import attempt

    assert attempt({}, "", (), "0.0") == {"error": f"the worker has qfmt {qfmt.__version__}, not 0.0"}
