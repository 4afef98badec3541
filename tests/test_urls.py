"""Files by URL: which text is one, what is read and when, and what the other side may do wrong."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt import transfer
from qfmt.errors import DigestError, FormatError, MissingFileError, QfmtError, RemoteError
from qfmt.file import header, remote
from qfmt.file.copies import downloaded
from qfmt.file.encode import encode
from qfmt.model import Data, Graph, Model, Node, Tensor
from qfmt.passes.statistics import statistics
from qfmt.rules import violations
from qfmt.transfer import PACKAGES
from qfmt.urls import Url, place
from support.command_line import invoke, start, tiny_model, trouble
from support.crafted import numbers
from support.paths import DIGITS, ROOT
from support.web_server import Server, unstated
from support.weights import MB, content, weights

pytestmark = pytest.mark.usefixtures("temporary")


# Which is a URL


def test_only_text_with_a_known_protocol_is_a_url(tmp_path: Path) -> None:
    for text in ("a.qfb", "./s3://a", "a/http://b", "C:\\a.qfb", "C://a.qfb", "std::net.pt", "::http", "/s3://a"):
        assert place(text) == Path(text)
    assert place(Path("s3://bucket/a")) == Path("s3:/bucket/a")
    for protocol in PACKAGES:
        url = place(f"{protocol.upper()}://host/a.qfb")
        assert isinstance(url, Url)
        assert url.protocol == protocol
    assert place(f"file://{tmp_path}/a%20b.qfb") == tmp_path / "a b.qfb"
    assert place(f"file://localhost{tmp_path}/a.qfb") == tmp_path / "a.qfb"
    if os.name != "nt":
        assert os.fsencode(place("file:///a%FF.qfb")) == b"/a\xff.qfb"
    for other in (b"QFB", bytearray(3), io.BytesIO(), None, 3):
        with pytest.raises(QfmtError, match=rf"^expects a path or a URL, not {type(other).__name__}; give the path"):
            place(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "ftp://host/a",
        "ssh://host/a",
        "github://org:repo@main/a",
        "local:///etc/passwd",
        "simplecache::s3://bucket/a",
        "zip://a.qfb::http://host/a.zip",
        "reference://a::memory://b",
        "file://host/a",
        "file::memory://a",
    ],
)
def test_other_protocols_and_chains_are_refused(text: str) -> None:
    """None of them reaches fsspec: many protocols run programs or open what a file names."""
    code = f"""
import sys
from qfmt import load
try:
    load({text!r})
except Exception as error:
    print(type(error).__name__, error, any(name.startswith("fsspec") for name in sys.modules))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said.startswith(f"RemoteError {text.replace('org:repo@', '')}: ")
    assert said.endswith(" False\n")


def test_a_plain_path_never_reaches_fsspec(tmp_path: Path) -> None:
    tiny_model().save(tmp_path / "a.qfb")
    code = f"""
import sys, qfmt
model = qfmt.load({str(tmp_path / "a.qfb")!r})
model.save({str(tmp_path / "b.qfb")!r})
qfmt.check("file://" + {str(tmp_path / "b.qfb")!r})
qfmt.convert({str(DIGITS)!r})
print([name for name in sys.modules if name.partition(".")[0] in ("fsspec", "aiohttp", "distributed")])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said == "[]\n"


def test_what_is_missing_is_named() -> None:
    # In a separate process: fsspec keeps a filesystem that another test has opened, and then needs no package.
    code = """
import sys, qfmt
for protocol, package in ("memory", "fsspec"), ("http", "aiohttp"), ("s3", "s3fs"):
    sys.modules[package] = None
    try:
        qfmt.load(f"{protocol}://host/a.qfb")
    except qfmt.errors.MissingPackageError as error:
        print(protocol, error.hint)
    del sys.modules[package]
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said.splitlines() == [
        "memory run `pip install '.[remote]'` in a checkout of qfmt",
        "http run `pip install '.[remote]'` in a checkout of qfmt",
        "s3 run `pip install s3fs`",
    ]


def test_a_url_as_text_has_no_secrets(server: Server) -> None:
    url = Url("https://user:word@host:8080/a/b.qfb?signature=secret")
    assert str(url) == "https://host:8080/a/b.qfb?…"
    assert (url.name, url.stem, url.suffix) == ("b.qfb", "b", ".qfb")
    assert (url.parent / "c d.qfb").text == "https://user:word@host:8080/a/c%20d.qfb"
    where = server.url("missing.qfb?signature=secret")
    for action in (qfmt.load, qfmt.check, qfmt.convert):
        with pytest.raises(MissingFileError) as error:
            action(where)
        assert "secret" not in str(error.value)
        assert str(error.value).count("http://") == 1


@pytest.mark.parametrize(
    "text",
    [
        "ftp://user:secret@127.0.0.1/a",
        "zip://user:secret@a::http://127.0.0.1/a",
        "file://user:secret@host/a",
        "http://user:secret@127.0.0.1:port/a",
        "http://user:secret/a@127.0.0.1/a?secret",
        "http://user:secret@[::1/a",
        "s3://key:secret@bucket/a",
        "ftp://user:a secret@127.0.0.1/a",
        "http://user:'secret\"@127.0.0.1:port/a",
    ],
)
def test_what_is_no_url_is_named_without_secrets(text: str) -> None:
    with pytest.raises(RemoteError) as error:
        place(text).is_file()
    assert "secret" not in str(error.value)


def test_a_redirection_in_a_circle_tells_no_secrets(server: Server) -> None:
    server.answers["m.qfb"] = lambda handler: handler.answer(302, b"", Location="/m.qfb?signature=~secret")
    with pytest.raises(RemoteError) as error:
        qfmt.load(server.url("m.qfb?signature=%7Esecret"))
    assert "secret" not in str(error.value)
    assert "the server redirects in a circle, or too often" in str(error.value)


def test_parts_of_a_file_whose_size_is_not_stated(server: Server, tmp_path: Path) -> None:
    """All of it is read instead, also what is behind the part that was asked for."""
    data = content(weights(3, MB), tmp_path)

    def answer(handler: Any) -> None:
        if "Range" in handler.headers:
            handler.answer(206, data[:65536], **{"Content-Range": "bytes 0-65535/*"})
        else:
            handler.answer(200, data)

    server.answers["m.qfb"] = answer
    model = qfmt.load(server.url("m.qfb"))
    assert all((model.tensors[f"w{index}"].array == index).all() for index in range(3))
    server.answers["m.qfb"] = lambda handler: handler.answer(206, data, **{"Content-Range": "bytes 0-65535/*"})
    with pytest.raises(RemoteError, match="does not state its size"):
        qfmt.load(server.url("m.qfb"))


# A `.qfb` by parts


def test_load_reads_the_metadata_and_then_each_array_once(server: Server, tmp_path: Path) -> None:
    server.files["m.qfb"] = content(weights(3, MB), tmp_path)
    model = qfmt.load(server.url("m.qfb"))
    assert [asked for *_, asked in server.requests] == ["bytes=0-65535"]
    for _ in range(2):
        assert (model.tensors["w1"].array == 1).all()
    assert len(server.requests) == 2
    assert server.sent < remote.FIRST + MB + 2 * remote.GRANULE
    assert model.content_id() == qfmt.load(tmp_path / "model.qfb").content_id()
    assert server.sent < 3 * MB + remote.FIRST + 6 * remote.GRANULE


@pytest.mark.parametrize("seed", range(6))
def test_what_was_verified_does_not_change(seed: int, server: Server, tmp_path: Path) -> None:
    """A server that knows what is asked for sends right bytes for that array, and others for what lies beside it."""
    rng = np.random.default_rng(seed)
    arrays = {f"w{index:02}": rng.integers(0, 256, int(size), np.uint8) for index, size in enumerate(SIZES)}
    right = content(Model(Graph((), (), (), {n: Tensor.constant(n, array) for n, array in arrays.items()})), tmp_path)
    server.files["m.qfb"] = right
    model, read, refused = qfmt.load(server.url("m.qfb")), {}, 0
    for name in rng.permutation([*arrays]):
        begin = right.index(arrays[name].tobytes())
        wrong = bytearray(byte ^ 255 for byte in right)
        wrong[begin : begin + arrays[name].size] = arrays[name].tobytes()
        server.files["m.qfb"] = bytes(wrong)
        try:
            read[name] = model.tensors[name].array
        except DigestError:  # a part of it came beside another array
            refused += 1
        for each, array in read.items():
            assert (array == arrays[each]).all() and (model.tensors[each].array == arrays[each]).all()
    assert refused and len(read) > 2


SIZES = (70_000, 5000, 3000, 9000, 100, 20_000, 4096, 12_000, 70_000, 6000, 50_000)
"""Of arrays that share granules with their neighbours."""


def test_each_byte_is_fetched_once(server: Server, tmp_path: Path) -> None:
    arrays = {f"w{index:02}": np.full(size, index, np.uint8) for index, size in enumerate(SIZES)}
    data = content(Model(Graph((), (), (), {n: Tensor.constant(n, array) for n, array in arrays.items()})), tmp_path)
    server.files["m.qfb"] = data
    model = qfmt.load(server.url("m.qfb"))
    for name in [*arrays][::2] + [*arrays][1::2]:
        assert (model.tensors[name].array == arrays[name]).all()
    assert server.sent <= len(data)


def test_inspect_shows_the_digest_of_what_it_read(server: Server, tmp_path: Path) -> None:
    """Not of what the server sends the next time."""
    data = content(weights(3, 100), tmp_path)
    begun = []

    def answer(handler: Any) -> None:
        begun.append(handler)
        forged = data if len(begun) == 1 else data[:64] + bytes(32) + data[96:]
        handler.answer(206, forged, ETag='"1"', **{"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"})

    server.answers["m.qfb"] = answer
    assert data[64:96].hex() in invoke("inspect", server.url("m.qfb")).output and len(begun) == 1


def test_large_metadata_are_read_by_two_requests(server: Server, tmp_path: Path) -> None:
    server.files["m.qfb"] = content(weights(4000, 1), tmp_path)
    begin = header.parse(server.files["m.qfb"][:128], len(server.files["m.qfb"])).data_offset
    assert begin > 2 * remote.FIRST
    model = qfmt.load(server.url("m.qfb"))
    assert [tensor.name for tensor in model.tensors.values()] == sorted(f"w{index}" for index in range(4000))
    assert [asked for *_, asked in server.requests] == ["bytes=0-65535", f"bytes=65536-{begin - 1}"]


def gigabyte(path: Path) -> None:
    """A file of 100 weights of 10 MB, quantized per channel; the system stores only its metadata."""
    rows, columns, space = 4096, 2560, 1 << 24
    scales = [1.0 + index for index in range(rows)]
    grid = {"scale": numbers("float32", *scales, bytes=None), "block": [1]}
    grid |= {"quant_min": -128, "quant_max": 127}
    tensors, buffers = [], []
    for index in range(100):
        scale = grid["scale"] | {"buffer": 2 * index + 1}  # type: ignore[operator]
        shape = {"name": f"w{index:03}", "dtype": 2, "shape": [rows, columns], "buffer": 2 * index}
        tensors.append({**shape, "quantization": grid | {"scale": scale}})
        begin = index * space
        for offset, size in ((begin, rows * columns), (begin + rows * columns, 4 * rows)):
            buffers.append({"offset": offset, "size": size, "sha256": bytes([index]) * 32})
    graph = {"tensors": tensors, "nodes": [], "inputs": [], "outputs": []}
    metadata = header.seal(*encode("Model", {"graph": graph, "buffers": buffers}), 100 * space)
    path.write_bytes(metadata)
    with path.open("r+b") as file:
        file.truncate(header.parse(metadata, header.round_up(len(metadata), header.PAGE) + 100 * space).file_size)


def test_inspect_of_a_gigabyte_reads_less_than_a_megabyte(server: Server, tmp_path: Path) -> None:
    gigabyte(tmp_path / "large.qfb")
    server.files["large.qfb"] = tmp_path / "large.qfb"
    for options in ([], ["--tensors"], ["--nodes"]):
        server.sent = 0
        shown = invoke("inspect", server.url("large.qfb"), *options)
        assert shown.exit_code == 0, shown.output
        assert server.sent < MB
    local = invoke("inspect", tmp_path / "large.qfb")
    remotely = invoke("inspect", server.url("large.qfb"))
    assert remotely.output.replace(server.url("large.qfb"), str(tmp_path / "large.qfb")) == local.output
    assert "w099" in local.output


def test_a_server_without_ranges_sends_all(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.files["m.qfb"] = content(weights(3, MB), tmp_path)
    model = qfmt.load(server.url("m.qfb"), verify="all")
    assert len(server.requests) == 1
    assert (model.tensors["w2"].array == 2).all()


@pytest.mark.parametrize("verify", [True, False, "all"])
def test_a_store_gives_the_same_as_a_path(store: str, verify: Any, tmp_path: Path) -> None:
    weights(3, MB).save(tmp_path / "m.qfb")
    weights(3, MB).save(f"{store}/sub/m.qfb")
    model = qfmt.load(f"{store}/sub/m.qfb", verify=verify)
    for name, tensor in qfmt.load(tmp_path / "m.qfb").tensors.items():
        assert (model.tensors[name].array == tensor.array).all()
    assert qfmt.check(f"{store}/sub/m.qfb") == []
    assert place(f"{store}/sub/m.qfb").is_file()  # type: ignore[union-attr]
    with pytest.raises(MissingFileError, match="there is no such file"):
        qfmt.load(f"{store}/sub/other.qfb")
    with pytest.raises(RemoteError, match="is a folder"):
        qfmt.load(f"{store}/sub")


def test_shards_are_read_beside_their_file(server: Server, store: str, tmp_path: Path) -> None:
    weights(3, MB).save(tmp_path / "m.qfb")
    weights(3, MB).save(f"{store}/shards/m.qfb", shard_size=MB)
    stored = qfmt.load(f"{store}/shards/m.qfb", verify="all")
    assert stored.content_id() == qfmt.load(tmp_path / "m.qfb").content_id()
    assert qfmt.check(f"{store}/shards/m.qfb") == []

    weights(3, MB).save(tmp_path / "m.qfb", shard_size=MB)
    server.files.update({path.name: path.read_bytes() for path in tmp_path.glob("m.*")})
    first, *others = sorted(path.name for path in tmp_path.glob("*.qfs"))
    model = qfmt.load(server.url("m.qfb"))
    assert len(others) == 2 and len(server.requests) == 1
    name = sorted(model.tensors)[0]
    assert model.tensors[name].array.tobytes() == stored.tensors[name].array.tobytes()
    assert {path for _, path, *_ in server.requests} == {"m.qfb", first}
    del server.files[others[0]]
    assert [(each.rule, each.what) for each in qfmt.check(server.url("m.qfb"))] == [("F15", "is missing")]


def test_damage_is_found_as_in_a_local_file(server: Server, tmp_path: Path) -> None:
    data = bytearray(content(weights(3, MB), tmp_path))
    data[-1] ^= 1
    server.files["m.qfb"] = bytes(data)
    model = qfmt.load(server.url("m.qfb"))
    assert (model.tensors["w0"].array == 0).all()
    with pytest.raises(DigestError, match="the data is damaged"):
        _ = model.tensors["w2"].array
    assert [broken.rule for broken in qfmt.check(server.url("m.qfb"))] == ["F9"]
    server.files["m.qfb"] = bytes(data[:-1])
    with pytest.raises(FormatError, match="is truncated"):
        qfmt.load(server.url("m.qfb"))
    server.files["m.qfb"] = DIGITS.read_bytes()
    with pytest.raises(FormatError, match=r"is not a \.qfb file; if it is of another format, try `qfmt convert`"):
        qfmt.load(server.url("m.qfb"))


def test_large_shards_are_copied_from_a_server_with_ranges(server: Server, tmp_path: Path) -> None:
    """As an archive on a web server is checked, and a source converted."""
    weights(3, MB).save(tmp_path / "m.qfb", shard_size=MB)
    server.files |= {path.name: path.read_bytes() for path in tmp_path.glob("m.*")}
    with downloaded(Url(server.url("m.qfb"))) as path:
        assert path.parent != tmp_path and len([*path.parent.glob("*.qfs")]) == 3
        assert qfmt.check(path) == []
        np.testing.assert_array_equal(qfmt.load(path).tensors["w2"].array, weights(3, MB).tensors["w2"].array)


def test_of_a_shard_no_more_is_read_than_it_has(server: Server, tmp_path: Path) -> None:
    weights(3, MB).save(tmp_path / "m.qfb", shard_size=MB)
    (tmp_path / "m.qfb").replace(tmp_path / "served.qfb")
    server.files["m.qfb"] = (tmp_path / "served.qfb").read_bytes()
    for shard in tmp_path.glob("*.qfs"):
        server.answers[shard.name] = unstated
    model = qfmt.load(server.url("m.qfb"))
    with pytest.raises(RemoteError, match=r"has 1\.0 MB or more, and the server does not state how many"):
        _ = model.tensors["w0"].array


@pytest.mark.parametrize("size", [(1 << 62) + 1, (1 << 63) + 1, 1 << 70])
def test_a_size_that_cannot_be_mapped(size: int, server: Server) -> None:
    part = {"Content-Range": f"bytes 0-65535/{size}"}
    server.answers["m.qfs"] = lambda handler: handler.answer(206, bytes(65536), **part)
    with pytest.raises(RemoteError, match="cannot be mapped"):
        remote.RemoteFile(Url(server.url("m.qfs"))).data(0, size)


# What the other side may do


def short(handler: Any) -> None:
    handler.answer(206, b"QFB1" * 10, **{"Content-Length": "65536", "Content-Range": "bytes 0-65535/100000"})
    handler.close_connection = True


def endless(handler: Any) -> None:
    """Says that it sends a little, and never stops."""
    handler.send_response(206)
    handler.send_header("Content-Range", "bytes 0-65535/100000")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.send(b"10000\r\n" + bytes(65536) + b"\r\n")


def malformed(handler: Any) -> None:
    """Sends a chunk without a size, which arrives after the head."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    time.sleep(0.2)
    handler.send(b"-5\r\n")
    handler.close_connection = True


ANSWERS: dict[str, tuple[Callable[[Any], None], str]] = {
    "forbidden": (lambda handler: handler.answer(403, b"no"), "access is denied"),
    "failing": (lambda handler: handler.answer(500, b"no"), "the server answers 500"),
    "silent": (lambda handler: time.sleep(3), "nothing came for 0.5 seconds"),
    "malformed": (malformed, "nothing came for 0.5 seconds|is not valid HTTP|ended the connection before the end"),
    "short": (short, "the server ended the connection before the end of the file|ends at byte"),
    "closed": (
        lambda handler: setattr(handler, "close_connection", True),
        "the server ended the connection before the end of the file",
    ),
    "endless": (endless, "is not a .qfb file|is a file of unknown format"),
    "without size": (unstated, "has 1.0 MB or more, and the server does not state how many"),
    "huge": (
        lambda handler: handler.answer(200, b"", **{"Content-Length": str(1 << 60)}),
        "has 1152921504.6 GB, but there is room for",
    ),
    "another part": (
        lambda handler: handler.answer(206, b"no", **{"Content-Range": "bytes 5-6/100"}),
        "sends another part",
    ),
    "no part": (lambda handler: handler.answer(206, b"no"), "does not say which part"),
    "compressed": (
        lambda handler: handler.answer(200, gzip.compress(b"QFB1"), **{"Content-Encoding": "gzip"}),
        r"sends the file compressed \(gzip\), which was not asked for",
    ),
    "redirected to nowhere": (lambda handler: handler.answer(302, b"QFB1"), "the server answers 302, without the file"),
    "empty": (lambda handler: handler.answer(204, b""), "the server answers 204, without the file"),
    "file": (
        lambda handler: handler.answer(302, b"", Location="file:///x"),
        "redirects to something other than a web address",
    ),
    "long": (
        lambda handler: handler.answer(206, b"no", **{"Content-Range": f"bytes 0-1/{'9' * 5000}"}),
        "does not say which part",
    ),
    "nonsense": (lambda handler: handler.send(b"\0\0\0\r\n\r\n"), "the transfer failed"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_a_server_does_wrong_is_one_line(kind: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers["m.qfb"], said = ANSWERS[kind]
    monkeypatch.setattr(remote, "UNSTATED", MB)
    if kind in ("silent", "malformed"):
        monkeypatch.setattr(transfer, "SILENCE", 0.5)
    for action in (qfmt.load, qfmt.check, qfmt.convert):
        with pytest.raises(QfmtError, match=said) as error:
            action(server.url("m.qfb"))
        assert error.value.where == server.url("m.qfb")
    assert trouble("inspect", server.url("m.qfb"))


@pytest.mark.parametrize("status", [403, 404, 500])
def test_of_an_error_page_nothing_is_left_open(status: int, server: Server) -> None:
    """aiohttp tells that on stderr, when it collects a response that is longer than what it reads at once."""
    server.answers["m.qfb"] = lambda handler: handler.answer(status, bytes(100_000))
    running = start("inspect", server.url("m.qfb"), stderr=subprocess.PIPE, text=True)
    said = running.communicate()[1]
    assert running.returncode == 2 and said.count("\n") == 1 and said.startswith("qfmt: error: http://")


def test_a_file_that_changes_while_it_is_read_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["m.qfb"] = content(weights(3, MB), tmp_path)
    model = qfmt.load(server.url("m.qfb"))
    server.tags["m.qfb"] = "2"
    with pytest.raises(RemoteError, match="was changed while it was read"):
        _ = model.tensors["w1"].array


class Unreachable(Data):
    """An array of a server that fails."""

    nbytes = 16

    def view(self) -> memoryview:
        raise RemoteError("the server answers 503")


def test_a_failed_transfer_breaks_no_rule() -> None:
    """Rules read the constants that shapes depend on; statistics read all."""
    shape = Tensor("shape", "int64", (2,), Unreachable())
    tensors = [Tensor("x", "float32", (4,)), shape, Tensor("y", "float32", (4, 1))]
    node = Node("Reshape", ("x", "shape"), ("y",), {"allowzero": 0}, version=23)
    model = Model(Graph(("x",), ("y",), (node,), {tensor.name: tensor for tensor in tensors}))
    with pytest.raises(RemoteError, match="answers 503"):
        violations(model)
    with pytest.raises(RemoteError, match="answers 503"):
        statistics(shape, None, 4, 0)


def test_an_object_that_changes_while_it_is_read_is_refused(bucket: str) -> None:
    weights(3, MB).save(f"{bucket}/m.qfb")
    model = qfmt.load(f"{bucket}/m.qfb")
    weights(4, MB).save(f"{bucket}/m.qfb")
    with pytest.raises(RemoteError):
        _ = model.tensors["w2"].array


class Endless:
    """The body of an answer without an end."""

    def __init__(self) -> None:
        self.given = 0

    async def read(self, count: int = 1 << 20) -> bytes:
        self.given += min(count, 100)
        return b"x" * min(count, 100)

    def close(self) -> None:
        pass


def test_of_an_object_no_more_is_read_than_was_asked_for(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    (tmp_path / "x").write_bytes(bytes(1000))
    Url(f"{bucket}/x").put(tmp_path / "x")
    body, call = Endless(), s3fs.S3FileSystem._call_s3

    async def answer(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        found = await call(self, method, *arguments, **options)
        return {**found, "Body": body} if method == "get_object" else found

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", answer)
    with closing(Url(f"{bucket}/x").open()) as reading:
        assert b"".join(reading.chunks(10, 270)) == b"x" * 260
    assert body.given == 260


def test_an_object_that_disappears_is_no_fault_of_the_disk(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(1 << 20))
    Url(f"{bucket}/x").put(tmp_path / "x")
    file = remote.RemoteFile(Url(f"{bucket}/x"))
    Url(f"{bucket}/x").unlink()
    with pytest.raises(MissingFileError, match=r"x: there is no such file; check the URL$"):
        file.read(1 << 19, 8)


def test_a_server_that_is_not_there(server: Server) -> None:
    where = server.url("m.qfb")
    server.server_close()
    with pytest.raises(RemoteError, match="the transfer failed: Cannot connect"):
        qfmt.load(where)


def test_redirections_are_followed(server: Server, tmp_path: Path) -> None:
    server.files["m.qfb"] = content(tiny_model(), tmp_path)
    server.answers["other"] = lambda handler: handler.answer(302, b"", Location=server.url("m.qfb"))
    assert qfmt.load(server.url("other")).content_id() == tiny_model().content_id()
    server.answers["file"] = lambda handler: handler.answer(302, b"", Location=f"file://{tmp_path}/model.qfb")
    with pytest.raises(RemoteError):
        qfmt.load(server.url("file"))


def test_encryption_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that redirects from https to http is not read."""

    class Stream:
        closed = False

        def close(self) -> None:
            self.closed = True

    stream = Stream()
    first, last = (SimpleNamespace(url=SimpleNamespace(scheme=scheme)) for scheme in ("https", "http"))
    stream.r = SimpleNamespace(url=last.url, history=[first], status=200, headers={})  # type: ignore[attr-defined]
    files = SimpleNamespace(open=lambda *_, **__: stream)
    monkeypatch.setattr(transfer, "filesystem", lambda protocol: files)
    with pytest.raises(RemoteError, match="leads to an address without encryption"):
        qfmt.load("https://host/m.qfb")
    assert stream.closed
