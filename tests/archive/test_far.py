"""Archives beyond one machine: sources and archives by URL."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import qfmt
from qfmt.archive.filling import fill
from qfmt.archive.manifest import MANIFEST, Entry, Manifest
from qfmt.archive.sources import find
from qfmt.cli.source import is_archive
from qfmt.errors import DestinationError, MissingFileError, QfmtError, SourceError
from qfmt.file.sharding import stated
from qfmt.urls import Url, place
from support.archives import described, digits
from support.command_line import invoke, trouble
from support.paths import DIGITS
from support.web_server import Server

IN_STEP = "support.making:in_step"
NO_DASK = "distributed is not installed: pip install '.[dask]'"


@pytest.mark.usefixtures("temporary")
def test_an_archive_in_a_bucket_is_that_of_a_folder(bucket: str, four: Path, tmp_path: Path) -> None:
    for path in four.rglob("*.*"):
        Url(f"{bucket}/models/{path.relative_to(four).as_posix()}").put(path)
    expected = fill(tmp_path / "local", find([str(four)], tmp_path / "local").sources).manifest
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
def test_sources_at_urls_are_verified_where_the_user_says(bucket: str, four: Path, tmp_path: Path) -> None:
    """A manifest may come from anyone: no URL in it is opened."""
    pytest.importorskip("torch")
    for path in four.rglob("*.pt"):
        Url(f"{bucket}/models/{path.relative_to(four).as_posix()}").put(path)
    archive = tmp_path / "archive"
    assert invoke("convert", f"{bucket}/models", "--out", archive).exit_code == 0
    refused = invoke("verify", "--archive", archive)
    assert refused.exit_code == 2
    assert refused.stdout.count("name the folder of the sources with --sources") == 4
    for where in (f"{bucket}/models", four):
        done = invoke("verify", "--archive", archive, "--sources", where, "--jobs", "1")
        assert done.exit_code == 0, done.output
        assert "4 of 4 are right" in done.output
    stranger = Manifest(archive)
    for name in ("../x.pt", "/x.pt", "a/../../x.pt"):
        with pytest.raises(QfmtError, match="is not the name of a source"):
            stranger.source(Entry(name, ""), four)
    for name in ("../x.pt", "a/../../x.pt"):
        with pytest.raises(QfmtError, match="is not below it"):
            stranger.source(Entry(name, ""), place(f"{bucket}/models"))


@pytest.mark.usefixtures("temporary")
def test_keys_with_empty_parts_are_verified(bucket: str, four: Path, tmp_path: Path) -> None:
    """S3 keeps them; a path would not."""
    import fsspec

    files = fsspec.filesystem("s3", use_listings_cache=False)
    for key, name in (("models//a.pt", "a.pt"), ("models/sub//b.pt", "b.pt")):
        files.put_file(str(four / name), f"{bucket}/{key}")
    archive = tmp_path / "archive"
    assert invoke("convert", f"{bucket}/models", "--out", archive).exit_code == 0
    assert {*Manifest(archive).entries} == {"/a.pt", "sub//b.pt"}
    done = invoke("verify", "--archive", archive, "--sources", f"{bucket}/models", "--jobs", "1")
    assert done.exit_code == 0 and "2 of 2 are right" in done.output


@pytest.mark.usefixtures("temporary")
def test_an_archive_with_shards_is_read_by_url(bucket: str, four: Path, tmp_path: Path) -> None:
    """It is filled in a local folder, and copied."""
    archive = tmp_path / "archive"
    fill(archive, find([str(four)], archive).sources, options={"shard_size": 1000})
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
def test_sources_with_shards_are_read_by_url(bucket: str, four: Path, tmp_path: Path) -> None:
    qfmt.convert(four / "b.pt").save(f"{bucket}/sharded/b.qfb", shard_size=1000)
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
def test_a_remote_shard_of_another_size_is_not_copied(server: Server, four: Path, tmp_path: Path) -> None:
    qfmt.convert(four / "b.pt").save(tmp_path / "b.qfb", shard_size=1000)
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
    for folder in (server.url(""), tmp_path / "sources"):
        assert invoke("verify", "--archive", archive, "--sources", folder).exit_code == 0


@pytest.mark.usefixtures("temporary")
def test_sources_of_a_web_server_are_named_one_by_one(server: Server, four: Path, tmp_path: Path) -> None:
    """What a page links to is not followed."""
    server.files["folder/"] = f'<!doctype html><a href="{server.url("folder/a.pt")}">a</a>'.encode()
    for name in ("a.pt", "b.pt"):
        server.files[f"folder/{name}"] = (four / name).read_bytes()
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


def test_memory_of_one_process_is_no_archive(memory: Any, four: Path, tmp_path: Path) -> None:
    for folder, named in ((place("memory://archive"), str(four)), (tmp_path / "archive", "memory://models/a.pt")):
        with pytest.raises(DestinationError, match="memory:// is the memory of one process"):
            fill(folder, find([named], folder).sources)


def test_odd_keys_of_a_bucket(bucket: str, four: Path, tmp_path: Path) -> None:
    names = ("[a].pt", "a.pt", "b c#d?e%20.pt", "Net.pt", "net.pt")
    for name in names:
        Url(f"{bucket}/{name}").put(four / "a.pt")
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


def test_a_key_with_dots_is_the_error_of_one_source(bucket: str, four: Path, tmp_path: Path) -> None:
    import fsspec

    names = ("a.pt", "../up.pt", "b/../c.pt", "/d.pt")
    listed = {f"{bucket.removeprefix('s3://')}/models/{name}": {"type": "file"} for name in names}
    files = fsspec.filesystem("s3", use_listings_cache=False)
    files.put_file(str(four / "a.pt"), f"{bucket}/models/a.pt")
    with pytest.MonkeyPatch.context() as patch:  # S3 has any key; moto has none of these
        patch.setattr(type(files), "find", lambda *_, **__: listed)
        found = find([f"{bucket}/models"], tmp_path / "archive").sources
    assert set(found) == set(names)
    filled = fill(tmp_path / "archive", found)
    assert filled.results == dict.fromkeys(names, "failed") | {"a.pt": "converted"}
    errors = {name: entry.error for name, entry in filled.manifest.entries.items()}
    assert errors["../up.pt"].startswith("has .. in its key") and errors["b/../c.pt"] == errors["../up.pt"]
    assert Manifest(tmp_path / "archive").entries == filled.manifest.entries


def test_a_name_with_a_version_is_the_error_of_one_source(bucket: str, four: Path) -> None:
    """s3fs would write, and remove, the object without that ending."""
    import fsspec

    files = fsspec.filesystem("s3", use_listings_cache=False)
    files.pipe_file(f"{bucket}/archive/a.pt", b"of the user")
    for version in "12":
        (four / f"a.pt?versionId={version}").write_bytes((four / "a.pt").read_bytes())
    filled = fill(place(f"{bucket}/archive"), find([str(four)], place(f"{bucket}/archive")).sources)
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


def test_limits_are_for_archives_without_dask(tmp_path: Path, four: Path) -> None:
    assert "requires --out FOLDER" in trouble("convert", four / "a.pt", tmp_path / "a.qfb", "--dask", "local")
    assert "requires --out FOLDER" in trouble("convert", four / "a.pt", tmp_path / "a.qfb", "--timeout", "3")
    said = trouble("convert", four, "--out", tmp_path / "archive", "--dask", "local", "--memory", "1G")
    assert "limit the workers of the cluster" in said
    assert "--dask is empty" in trouble("convert", four, "--out", tmp_path / "archive", "--dask", "")


@pytest.mark.parametrize("seconds", ["inf", "nan", "0", "-1", "1e300"])
def test_a_timeout_is_a_number_of_seconds(tmp_path: Path, four: Path, seconds: str) -> None:
    said = trouble("convert", four, "--out", tmp_path / "archive", "--timeout", seconds)
    assert "is not a number of seconds above 0" in said


def test_the_password_of_an_archive_is_not_told() -> None:
    told = trouble("verify", "--archive", "https://user:secret@127.0.0.1:1/x.dir?token=hidden")
    assert "https://127.0.0.1:1/x.dir?… is not a folder that" in told
    assert "secret" not in told
    assert "hidden" not in told
