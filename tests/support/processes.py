"""Processes that tests start, and which others should end."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path


def has_ended(process: int) -> bool:
    """Whether it ends within a minute. (Linux; nobody may have asked for its status.)"""
    status = Path(f"/proc/{process}/status")
    for _ in range(600):
        if not status.exists() or "State:\tZ" in status.read_text():
            return True
        time.sleep(0.1)
    return False


def end_of_fork(work: Callable[[], object]) -> int:
    """The exit status of a forked child that does some work, or the signal that ends it after five seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: the process has threads
        child = os.fork()
    if not child:
        signal.alarm(5)
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
