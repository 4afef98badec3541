"""Archives that a Dask cluster fills, whose workers may die."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import qfmt
from qfmt.archive.filling import fill
from qfmt.archive.manifest import MANIFEST, Entry
from qfmt.archive.sources import find
from qfmt.errors import MissingPackageError, RemoteError
from qfmt.file.sharding import stated
from qfmt.urls import place
from support.archives import described, digits
from support.paths import DIGITS, ROOT
from support.web_server import Server

IN_STEP = "support.making:in_step"
NO_DASK = "distributed is not installed: pip install '.[dask]'"


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


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("where", ["bucket", pytest.param("folder", marks=pytest.mark.slow)])
def test_a_cluster_makes_the_same_archive(where: str, four: Path, bucket: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    expected = fill(tmp_path / "local", find([str(four)], tmp_path / "local").sources).manifest
    archive = place(f"{bucket}/archive") if where == "bucket" else tmp_path / "archive"
    found = find([str(four)], archive).sources
    filled = fill(archive, found, jobs=2, dask="local")
    assert "converted" in filled.results.values()
    with cluster_of(1) as cluster:
        again = fill(archive, found, dask=cluster.scheduler_address)
    assert set(again.results.values()) == {"kept"}
    assert described(filled.manifest) == described(again.manifest) == described(expected)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="refused by older Pythons")
def test_others_cannot_reach_a_local_cluster(four: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            gc.collect()  # a client that is collected while another one starts waits for the lock that this one holds
        for page in "info/main/workers.html", "json/counts.json":
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"http://127.0.0.1:{cluster.scheduler.http_server.port}/{page}")
        return cluster

    monkeypatch.setattr(distributed, "LocalCluster", watched)
    filled = fill(archive, find([str(four)], archive).sources, jobs=8, dask="local")
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


@pytest.mark.skipif(sys.platform == "win32" or sys.version_info < (3, 11), reason="refused by older Pythons")
def test_a_cluster_uses_no_folder_of_another_user(tmp_path: Path) -> None:
    """Dask imports from its folder, and opens files in it that may be links."""
    pytest.importorskip("distributed", reason=NO_DASK)
    digits(tmp_path / "models" / "a.pt")
    (foreign := tmp_path / "dask-scratch-space").mkdir()
    (tmp_path / "mine").write_text("precious")
    (foreign / "global.lock").symlink_to(tmp_path / "mine")
    for name in "ast", "locket", "zipfile", "textwrap":
        (foreign / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(1)\n")
    foreign.chmod(0o777)
    command = [sys.executable, "-m", "qfmt", "convert", "models", "--out", "archive", "--dask", "local"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "archive" / "a.qfb").exists() and not (tmp_path / "ran").exists()
    assert (tmp_path / "mine").read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"models", "archive", "mine", foreign.name}


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


def test_a_cluster_that_is_not_there(four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qfmt.archive import cluster

    found = find([str(four)], tmp_path / "archive").sources
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
    greeting: bytes | None, said: str, four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the port of its dashboard: a Client would hang, or end with a traceback."""
    pytest.importorskip("distributed", reason=NO_DASK)
    from qfmt.archive import cluster

    monkeypatch.setattr(cluster, "PATIENCE", 1)
    found = find([str(four)], tmp_path / "archive").sources
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


def test_the_address_of_a_worker_is_not_that_of_a_scheduler(four: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason=NO_DASK)
    found = find([str(four)], tmp_path / "archive").sources
    options = {"n_workers": 1, "processes": False, "protocol": "tcp://", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        (worker,) = cluster.workers.values()
        with pytest.raises(RemoteError, match="does not answer as a Dask scheduler"):
            fill(tmp_path / "archive", found, dask=worker.address)


def test_a_cluster_needs_certificates_for_tls(four: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    found = find([str(four)], tmp_path / "archive").sources
    with pytest.raises(RemoteError, match="there are no certificates for TLS"):
        fill(tmp_path / "archive", found, dask="tls://127.0.0.1:1")


def test_a_cluster_that_does_not_start(four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)

    def fail(**_: object) -> None:
        raise RuntimeError("Cluster failed to start: Nanny failed to start.")

    monkeypatch.setattr("distributed.LocalCluster", fail)
    with pytest.raises(RemoteError, match="--dask local: Cluster failed to start"):
        fill(tmp_path / "archive", find([str(four)], tmp_path / "archive").sources, dask="local")


def test_settings_of_dask_that_cannot_be_read(four: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
    settings = tmp_path / "settings.yaml"
    settings.write_text("distributed: [")
    command = [sys.executable, "-m", "qfmt", "convert", four, "--out", tmp_path / "archive", "--dask", "local"]
    done = subprocess.run(command, env=os.environ | {"DASK_CONFIG": str(settings)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("qfmt: error: --dask: cannot be used: ") and len(done.stderr.splitlines()) == 1


def test_a_scheduler_that_is_lost(four: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed", reason=NO_DASK)  # later, its settings would be gone after the block
    import dask

    archive = tmp_path / "archive"
    with dask.config.set({"distributed.comm.timeouts.connect": "3s"}), cluster_of(1) as cluster:
        found = find([str(four)], archive).sources
        with pytest.raises(RemoteError, match="the connection to the scheduler was lost"):
            fill(archive, found, dask=cluster.scheduler_address, told=lambda entry: cluster.close())
    assert "Traceback" not in capfd.readouterr().err
    assert "converted" in fill(archive, found).results.values()


def test_a_scheduler_that_dies_while_it_answers(four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask raises a subclass of OSError, which must not be taken for one of the manifest."""
    distributed = pytest.importorskip("distributed", reason=NO_DASK)

    async def gather(*_: object, **__: object) -> None:
        raise distributed.comm.CommClosedError("in <TCP (closed)>: Stream is closed")

    monkeypatch.setattr(distributed.Client, "gather", gather)
    found = find([str(four)], tmp_path / "archive").sources
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


def test_a_worker_without_qfmt_is_named(four: Path, tmp_path: Path, dask_program: Callable[..., Any]) -> None:
    found = find([str(four)], tmp_path / "archive").sources
    with cluster_of(0) as cluster:
        dask_program("dask_worker", cluster.scheduler_address, "--no-nanny", "--no-dashboard")
        with pytest.raises(RemoteError, match=f"the worker tcp://.* does not have qfmt {qfmt.__version__}: import of"):
            fill(tmp_path / "archive", found, dask=cluster.scheduler_address)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
def test_a_worker_that_hangs_is_not_waited_for(
    four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dask_program: Callable[..., Any]
) -> None:
    from qfmt.archive import cluster

    monkeypatch.setattr(cluster, "IDLE", 2)
    found = find([str(four)], tmp_path / "archive").sources
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


def test_a_scheduler_without_qfmt_is_named(four: Path, tmp_path: Path, dask_program: Callable[..., Any]) -> None:
    stated = tmp_path / "scheduler.json"
    dask_program("dask_scheduler", "--port", 0, "--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", stated)
    while not (stated.exists() and stated.read_text().rstrip().endswith("}")):
        time.sleep(0.05)
    found = find([str(four)], tmp_path / "archive").sources
    with pytest.raises(RemoteError, match="the scheduler does not have qfmt"):
        fill(tmp_path / "archive", found, dask=json.loads(stated.read_text())["address"])


def test_a_cluster_without_workers_is_not_waited_for(
    four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qfmt.archive import cluster

    monkeypatch.setattr(cluster, "IDLE", 1)
    monkeypatch.setattr(cluster, "PERIOD", 0.01)
    archive = tmp_path / "archive"
    found = find([str(four)], archive).sources
    with cluster_of(0) as empty, pytest.raises(RemoteError, match="there was no worker for 1 seconds"):
        fill(archive, found, dask=empty.scheduler_address)
    with cluster_of(1) as left, pytest.raises(RemoteError, match="there was no worker for 1 seconds"):
        fill(archive, found, dask=left.scheduler_address, told=lambda entry: left.scale(0))


def test_a_scheduler_that_hangs_is_not_waited_for(four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qfmt.archive import cluster

    async def hang(**_: object) -> None:
        await asyncio.sleep(30)

    def freeze(entry: Entry) -> None:
        one.scheduler.handlers["identity"] = hang
        one.scale(0)

    monkeypatch.setattr(cluster, "IDLE", 1)
    monkeypatch.setattr(cluster, "PERIOD", 0.01)
    found = find([str(four)], tmp_path / "archive").sources
    with cluster_of(1) as one, pytest.raises(RemoteError, match="the scheduler did not answer for 1 seconds"):
        fill(tmp_path / "archive", found, dask=one.scheduler_address, told=freeze)


def test_workers_of_another_version_are_refused() -> None:
    from qfmt.archive.cluster import attempt

    assert attempt({}, "", (), "0.0") == {"error": f"the worker has qfmt {qfmt.__version__}, not 0.0"}
