"""One model by URL in threads, forked processes and signal handlers."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt import transfer
from qfmt.errors import DigestError, QfmtError, RemoteError
from qfmt.file import remote, shards
from qfmt.model import Graph, Model, Tensor
from support.processes import end_of_fork
from support.web_server import Server
from support.weights import MB, weights

pytestmark = pytest.mark.usefixtures("temporary")


FORKS = """
import multiprocessing, random, sys
import numpy as np
import qfmt

qfmt.load(sys.argv[1]).save("memory://a/m.qfb")
model, local = qfmt.load("memory://a/m.qfb"), qfmt.load(sys.argv[1])
names = [tensor.name for tensor in local.graph.constants()]

def wrong(seed):
    order = random.Random(seed).sample(names, len(names))
    held = {name: model.tensors[name].array for name in order}
    return sum(not np.array_equal(held[name], local.tensors[name].array) for name in names)

with multiprocessing.get_context("fork").Pool(4) as pool:
    print(len(names) > 100, pool.map(wrong, range(4), chunksize=1))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_forked_processes_fetch_for_themselves(tmp_path: Path) -> None:
    """A child shares the positions of its parent's files and connections."""
    arrays = {f"t{index}": Tensor.constant(f"t{index}", np.full(50_000, index, np.float32)) for index in range(101)}
    Model(Graph((), (), (), arrays)).save(tmp_path / "m.qfb")
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", FORKS, tmp_path / "m.qfb"], capture_output=True, text=True, check=False
        )
        assert done.stdout == "True [0, 0, 0, 0]\n", done.stderr


COLLECTS = """
import gc, os, sys
from qfmt import load, transfer

transfer.SILENCE = 3
model = load(sys.argv[1])
arrays = [tensor.array for tensor in list(model.tensors.values())[:1]]
for end in (sys.exit, os._exit):
    if not os.fork():
        model.content_id()
        gc.collect()
        end(0)
    assert os.wait()[1] == 0
print(model.content_id() == load(sys.argv[1]).content_id())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_child_leaves_the_connections_of_its_parent(tmp_path: Path, server: Server) -> None:
    """To collect their objects closes them."""
    weights(6, MB // 2).save(tmp_path / "m.qfb")
    server.files["m.qfb"] = (tmp_path / "m.qfb").read_bytes()
    command = [sys.executable, "-c", COLLECTS, server.url("m.qfb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


EXITS = """
import os, sys
import numpy as np
import qfmt
from qfmt import transfer

qfmt.load(sys.argv[1]).save("memory://a/m.qfb")
model, read = qfmt.load("memory://a/m.qfb", verify=False), transfer.Stored._read

def forked(self, *arguments):
    if not os.fork():
        sys.exit()
    os.wait()
    return read(self, *arguments)

transfer.CHUNK, transfer.Stored._read = 2500, forked
sys.exit(model.tensors["w2"].array.tobytes() != qfmt.load(sys.argv[1]).tensors["w2"].array.tobytes())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_child_that_ends_changes_nothing(tmp_path: Path) -> None:
    """At its end it closes what it has of its parent's files, which must not write anything."""
    weights(3, 40_000).save(tmp_path / "m.qfb")
    done = subprocess.run(
        [sys.executable, "-c", EXITS, tmp_path / "m.qfb"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("shard_size", [None, 2 * MB + 1000])
def test_a_forked_process_reads_what_its_parent_read(
    shard_size: int | None, ranges: bool, server: Server, tmp_path: Path
) -> None:
    weights(3, MB).save(tmp_path / "m.qfb", shard_size=shard_size)
    server.ranges, server.files = ranges, {path.name: path.read_bytes() for path in tmp_path.glob("m.*")}
    model = qfmt.load(server.url("m.qfb"))
    assert (model.tensors["w1"].array == 1).all()

    def read(*indices: int) -> None:
        assert all((model.tensors[f"w{index}"].array == index).all() for index in indices)

    assert end_of_fork(partial(read, 1, 2, 0, 1)) == 0
    read(0, 2)
    server.files.clear()
    assert end_of_fork(partial(read, 0, 1, 2)) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize("tagged", [True, False])
def test_a_forked_process_notices_that_the_file_was_replaced(tagged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the other side says of it, or else by the digests. What the parent fetched stays what it was, also after
    the child has its own copy."""
    if not tagged:
        monkeypatch.setattr(transfer, "TAGS", ())
    weights(3, MB).save("memory://a/m.qfb")
    model = qfmt.load("memory://a/m.qfb")
    assert (model.tensors["w1"].array == 1).all()
    tensors = {name: Tensor.constant(name, tensor.array + 1) for name, tensor in weights(3, MB).tensors.items()}
    Model(Graph((), (), (), tensors)).save("memory://a/m.qfb")

    def read() -> None:
        for _ in range(2):
            assert (model.tensors["w1"].array == 1).all()
            with pytest.raises(RemoteError if tagged else DigestError):
                _ = model.tensors["w2"].array

    assert end_of_fork(read) == 0


def test_threads_read_one_file_in_memory() -> None:
    """fsspec gives all readers of it one position."""
    model = weights(20, 50_000)
    model.save("memory://a/m.qfb")
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: qfmt.load("memory://a/m.qfb") == model, range(40)))


def test_threads_open_a_shard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two copies, only one would be verified: the server may change between them."""
    weights(8, 5000).save("memory://a/m.qfb", shard_size=20_000)
    opened, together, fetch = list[str](), Barrier(8), shards._fetched

    def slowly(url: Any, shard: shards.Shard) -> shards.Part:
        opened.append(shard.name)
        sleep(0.2)  # time for the others to find that it is not open
        return fetch(url, shard)

    monkeypatch.setattr(shards, "_fetched", slowly)
    model = qfmt.load("memory://a/m.qfb")

    def read(index: int) -> bool:
        tensor = model.tensors[f"w{index}"]
        together.wait()
        return bool((tensor.array == index).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))
    assert len(opened) == len({*opened}) > 1


def test_a_signal_handler_does_not_wait_for_what_it_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    weights(3, MB).save("memory://a/m.qfb")
    model, write = qfmt.load("memory://a/m.qfb"), remote._write

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(remote, "_write", write)
        with pytest.raises(QfmtError, match="this cannot begin in the middle of the same work"):
            _ = model.tensors["w2"].array
        write(*arguments)

    monkeypatch.setattr(remote, "_write", interrupted)
    for index in range(3):
        assert (model.tensors[f"w{index}"].array == index).all()
