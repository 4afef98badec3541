"""The tasks of an archive on a Dask cluster, whose scheduler gives the task of a worker that died to another one.

Sources and the archive are URLs, or paths that all workers share.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
from asyncio import run_coroutine_threadsafe
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from logging import CRITICAL
from multiprocessing.resource_tracker import ensure_running
from pkgutil import resolve_name
from time import monotonic, sleep
from typing import Any

from .. import __version__
from ..errors import MissingPackageError, RemoteError, first_line, masked
from ..file.replacing import temporary_folder
from ..progress import Steps, counted
from .workers import AnyTask, Message, named

RETRIES = 2
"""How often a task is repeated whose other side, a server or a store, failed."""

HINT = "run `pip install '.[dask]'` in a checkout of qfmt"

PATIENCE = 30
"""Seconds until a scheduler that does not answer counts as unreachable."""

PROTOCOLS = ("tcp://", "tls://", "ws://", "wss://")
"""Those of Dask that lead to another process, and need no other package."""

SAFE_PATH = "PYTHONSAFEPATH"
"""The variable that keeps the working directory out of the import path (Python 3.11)."""

PERIOD = 0.2
"""Seconds between two requests for results: the scheduler has less to do if many are requested at once."""

LOCAL_SETTINGS: dict[str, object] = {
    "distributed.worker.profile.enabled": False,
    **{f"distributed.{who}.http.routes": [] for who in ("scheduler", "worker", "nanny")},
}
"""Settings of Dask without web pages, and without what only they show: a profile, whose samples interrupt a task 100
times in a second."""

IDLE = 60
"""Seconds for which a cluster may have no worker, or one that does not say its version."""


def _settings(settings: dict[str, object]) -> Any:
    """A context with other settings of Dask, also for the workers that start in it."""
    from dask import config

    return config.set(settings)


def results(
    tasks: Sequence[AnyTask], work: str, arguments: Sequence[str], jobs: int, address: str
) -> Generator[tuple[AnyTask, object]]:
    """Each task and the answer to it, as they come: see `workers.results`.

    `address` is that of a scheduler, or "local" for a cluster of `jobs` processes on this machine. Raises
    MissingPackageError, RemoteError if the scheduler cannot be reached, if it has no workers for IDLE seconds, if one
    does not answer for so long, or if it or a worker has not this version of qfmt.
    """
    try:
        import distributed
    except ImportError as error:
        raise MissingPackageError(f"--dask needs a package: {error}", hint=HINT) from None
    except (ValueError, TypeError, KeyError) as error:
        hint = "correct Dask's settings: the files below DASK_CONFIG, or the variables DASK_…"
        raise RemoteError(f"cannot be used: {first_line(error)}", where="--dask", hint=hint) from None
    dask: Any = distributed
    shown = masked(address) if "://" in address else address.rpartition("@")[2]  # without a password
    with ExitStack() as stack:
        stack.enter_context(dask.utils.silence_logging_cmgr(CRITICAL + 1))  # it would log tracebacks
        try:
            if address == "local":
                stack.enter_context(_without_working_directory())
                options = {
                    "n_workers": min(jobs, len(tasks)),
                    "threads_per_worker": 1,
                    "dashboard_address": "127.0.0.1:0",  # any free port: the default one may be taken
                    "security": True,  # other users of the machine could run code in it
                    "silence_logs": CRITICAL,
                    "preload": f"{__package__}.uninterrupted",
                }
                folder = stack.enter_context(_private_folder())
                settings = {"temporary-directory": folder, **LOCAL_SETTINGS}  # pages would need no certificate
                stack.enter_context(_settings(settings))
                with _later_interrupted():
                    address = stack.enter_context(dask.LocalCluster(processes=True, **options))
            else:  # a client with a wrong one would hang at the end of the process
                if "://" in address and not address.startswith(PROTOCOLS):
                    raise ValueError("is not an address of another process")
                dask.comm.resolve_address(address)
            if str(address).startswith("tls:") and not dask.Security().get_connection_args("client").get("ssl_context"):
                hint = "Dask's own settings name them (docs/archive.md)"
                raise RemoteError("there are no certificates for TLS", where=f"--dask {shown}", hint=hint)
            if isinstance(address, str):
                _greet(dask, address)
            client = stack.enter_context(dask.Client(address, timeout=PATIENCE, set_as_default=False))
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            hint = "give the address of a Dask scheduler, as in tcp://HOST:8786, or local"
            what = first_line(error).replace(str(address).rpartition("://")[2], shown.rpartition("://")[2])
            raise RemoteError(what, where=f"--dask {shown}", hint=hint) from None
        _require_qfmt(client, shown)
        given = {"work": work, "arguments": arguments, "version": __version__}
        futures = client.map(attempt, tasks, pure=False, retries=RETRIES, **given)
        asked = {future.key: task for future, task in zip(futures, tasks, strict=True)}
        with client.as_current():
            coming = dask.as_completed(futures)
        del futures  # what has been answered and is still asked for would be repeated if its worker dies
        for future, answer in counted(_answers(coming, client, shown), "", len(asked), "files"):
            task = asked[future.key]
            future.release()
            yield task, answer


@contextmanager
def _without_working_directory() -> Iterator[None]:
    """Let Python processes that this one starts import nothing from the working directory, which may contain files of
    strangers: Dask starts its workers with `python -c`."""
    if sys.version_info < (3, 11):
        what = "a cluster of this machine needs Python 3.11: before, its processes import from the working directory"
        raise RemoteError(what, where="--dask local", hint="use --jobs, or start a scheduler and workers elsewhere")
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def _private_folder() -> Iterator[str]:
    """A folder for Dask, which imports from it. It would take one that another user of the machine has made."""
    with temporary_folder() as folder:
        try:
            yield str(folder)
        finally:
            sys.path[:] = [each for each in sys.path if not each.startswith(str(folder))]


@contextmanager
def _later_interrupted() -> Iterator[None]:
    """Hold Ctrl-C back, here and in processes that start now: a terminal sends it to all of them, and Python would end
    with a traceback each. Once they run, they ignore it (`uninterrupted`)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    ensure_running()  # Python starts this process with the others, and lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _greet(dask: Any, address: str) -> None:
    """OSError if no scheduler answers, ValueError if another side does: a Client that fails would wait for a minute."""

    async def identity() -> Any:
        given = dask.Security().get_connection_args("client")
        async with dask.rpc(address, timeout=PATIENCE, connection_args=given) as other:
            return await other.identity()

    try:
        with ThreadPoolExecutor(1) as thread:  # the caller may have a loop that runs
            found = thread.submit(asyncio.run, asyncio.wait_for(identity(), PATIENCE + 1)).result()
    except asyncio.TimeoutError:  # of a side that takes the connection and says nothing, which Dask waits for
        raise OSError(f"said nothing for {PATIENCE} seconds") from None
    except (MemoryError, struct.error, ValueError, TypeError, dask.comm.CommClosedError):
        found = None  # Dask took something else for sizes, or for a greeting
    if not isinstance(found, dict) or found.get("type") != "Scheduler":
        raise ValueError("does not answer as a Dask scheduler")


def _require_qfmt(client: Any, shown: str) -> None:
    """RemoteError if no worker comes, or if the scheduler or a worker has not this version of qfmt: the scheduler could
    not read tasks, and the worker would end with its first one."""
    steps = Steps(f"waiting for workers of {shown}", 1)
    version = resolve_name, "qfmt:__version__"  # a function that all of them have
    try:
        found: dict[str, object] = {"the scheduler": client.run_on_scheduler(*version)}
    except ImportError as error:
        found = {"the scheduler": error}
    else:
        probe = client.submit(*version, pure=False)  # a cluster that grows with its tasks starts a worker
        _wait_for_worker(client, shown)
        probe.release()
        asked = client.run(*version, on_error="return", asynchronous=True)
        coming = run_coroutine_threadsafe(asked, client.loop.asyncio_loop)
        if not wait([coming], IDLE).done:
            hint = "restart the workers that hang, and run the same command again"
            raise RemoteError(f"a worker did not answer for {IDLE} seconds", where=f"--dask {shown}", hint=hint)
        answers = coming.result()
        found |= {f"the worker {address}": answers[address] for address in sorted(answers)}
    for name, each in found.items():
        if each != __version__ and not isinstance(each, OSError):  # it is about to leave
            what = first_line(each) if isinstance(each, Exception) else f"it has {each}"
            hint = "install the same version on the scheduler and on every worker"
            raise RemoteError(f"{name} does not have qfmt {__version__}: {what}", where=f"--dask {shown}", hint=hint)
    steps.add()


def _wait_for_worker(client: Any, shown: str) -> None:
    from distributed import TimeoutError as Late  # not that of Python 3.10

    try:
        client.sync(client.scheduler.identity, callback_timeout=IDLE)
    except Late:
        hint = "restart the scheduler and its workers, and run the same command again"
        what = f"the scheduler did not answer for {IDLE} seconds"
        raise RemoteError(what, where=f"--dask {shown}", hint=hint) from None
    try:
        client.wait_for_workers(1, timeout=IDLE)
    except Late:
        hint = "start workers for this scheduler, and run the same command again"
        raise RemoteError(f"there was no worker for {IDLE} seconds", where=f"--dask {shown}", hint=hint) from None


def _answers(coming: Any, client: Any, shown: str) -> Iterator[tuple[Any, object]]:
    """The futures as they come, with the answers of their tasks. RemoteError if none comes for IDLE seconds, and then
    no worker."""
    quiet = monotonic()
    while not coming.is_empty():
        if batch := coming.next_batch(block=False):
            found = _gathered(batch, client, shown)
            for future in batch:
                if future.cancelled():
                    raise _lost(shown)
                yield future, _failed(future) if future.status == "error" else found[future.key]
            quiet = monotonic()
        elif monotonic() - quiet > IDLE:
            _wait_for_worker(client, shown)
            quiet = monotonic()
        else:
            sleep(PERIOD)


def _gathered(batch: Sequence[Any], client: Any, shown: str) -> Mapping[str, object]:
    """The results of futures by key, in one request. One that is lost with its worker is computed again."""
    asked = client.gather({future.key: future for future in batch}, errors="skip", asynchronous=True)
    results = run_coroutine_threadsafe(asked, client.loop.asyncio_loop)
    while not wait([results], IDLE).done:
        _wait_for_worker(client, shown)
    try:
        found: Mapping[str, object] = results.result()
    except (OSError, CancelledError):
        raise _lost(shown) from None
    return found


def _lost(shown: str) -> RemoteError:
    hint = "start a scheduler and workers, and run the same command again"
    return RemoteError("the connection to the scheduler was lost", where=f"--dask {shown}", hint=hint)


def attempt(task: Mapping[str, object], work: str, arguments: Sequence[str], version: str) -> Message:
    """What a worker of the cluster does."""
    if version != __version__:
        return {"error": f"the worker has qfmt {__version__}, not {version}"}
    answer: Message = named(work)(*arguments, task)
    if answer.get("again"):
        raise TryAgain(answer)
    return answer


class TryAgain(Exception):
    """The other side failed: the answer if it is not asked again."""


def _failed(future: Any) -> object:
    """The answer that the failure of a task stands for."""
    error = future.exception()
    if isinstance(error, TryAgain):
        return error.args[0]
    return {"error": f"its worker failed: {first_line(error)}"}
