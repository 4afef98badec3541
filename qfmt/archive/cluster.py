"""The tasks of an archive on a Dask cluster, whose scheduler gives the task of a worker that died to another one.

Sources and the archive are URLs, or paths that all workers share.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from logging import CRITICAL
from typing import Any

from .. import __version__
from ..errors import MissingPackageError, RemoteError, first_line, masked
from ..progress import counted
from .workers import Message, named

RETRIES = 2
"""How often a task is repeated whose other side, a server or a store, failed."""

HINT = "run `pip install '.[dask]'` in a checkout of qfmt"

PATIENCE = 30
"""Seconds until a scheduler that does not answer counts as unreachable."""


def results(
    tasks: Sequence[Message], work: str, arguments: Sequence[str], jobs: int, address: str
) -> Generator[tuple[Message, object]]:
    """Each task and the answer to it, as they come: see `workers.results`.

    `address` is that of a scheduler, or "local" for a cluster of `jobs` processes on this machine. Raises
    MissingPackageError, RemoteError if the scheduler cannot be reached.
    """
    try:
        import distributed
    except ImportError as error:
        raise MissingPackageError(f"--dask needs a package: {error}", hint=HINT) from None
    dask: Any = distributed
    shown = masked(address) if "://" in address else address.rpartition("@")[2]  # without a password
    with ExitStack() as stack:
        stack.enter_context(dask.utils.silence_logging_cmgr(CRITICAL))  # it would log tracebacks
        try:
            if address == "local":
                options = {
                    "n_workers": jobs,
                    "threads_per_worker": 1,
                    "dashboard_address": "127.0.0.1:0",  # any free port: the default one may be taken
                    "silence_logs": CRITICAL,
                }
                address = stack.enter_context(dask.LocalCluster(processes=True, **options))
            if str(address).startswith("tls:") and not dask.Security().get_connection_args("client").get("ssl_context"):
                hint = "Dask's own settings name them (docs/archive.md)"
                raise RemoteError("there are no certificates for TLS", where=f"--dask {shown}", hint=hint)
            client = stack.enter_context(dask.Client(address, timeout=PATIENCE, set_as_default=False))
        except (OSError, ValueError, RuntimeError) as error:
            hint = "give the address of a Dask scheduler, as in tcp://HOST:8786, or local"
            what = masked(first_line(error).replace(address, shown))
            raise RemoteError(what, where=f"--dask {shown}", hint=hint) from None
        given = {"work": work, "arguments": arguments, "version": __version__}
        futures = client.map(attempt, tasks, pure=False, retries=RETRIES, **given)
        asked = {future.key: task for future, task in zip(futures, tasks, strict=True)}
        with client.as_current():
            coming = dask.as_completed(futures)
        del futures  # what has been answered and is still asked for would be repeated if its worker dies
        for future in counted(coming, "", len(asked), "files"):
            if future.cancelled():
                hint = "start a scheduler and workers, and run the same command again"
                raise RemoteError("the connection to the scheduler was lost", where=f"--dask {shown}", hint=hint)
            task, answer = asked[future.key], _answer(future)
            future.release()
            yield task, answer


def attempt(task: Message, work: str, arguments: Sequence[str], version: str) -> Message:
    """What a worker of the cluster does."""
    if version != __version__:
        return {"error": f"the worker has qfmt {__version__}, not {version}"}
    answer: Message = named(work)(*arguments, task)
    if answer.get("again"):
        raise TryAgain(answer)
    return answer


class TryAgain(Exception):
    """The other side failed: the answer if it is not asked again."""


def _answer(future: Any) -> object:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, TryAgain):
        return error.args[0]
    return {"error": f"its worker failed: {first_line(error)}"}
