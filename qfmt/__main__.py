"""The command `qfmt`, as a program: also `python -m qfmt`.

Signals are turned into an exit here and not in the library: a program that imports qfmt keeps its own handlers.
"""

from __future__ import annotations

try:
    import atexit
    import os
    import signal
    import sys
    import time
except KeyboardInterrupt:  # signal takes the longest of what runs before `run` can handle it
    import os

    os.write(2, b"qfmt: interrupted\n")
    raise SystemExit(130) from None

TYPE_CHECKING = False  # typing takes longer to import than all of this module
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_STATUS = 128
"""Shells add it to the number of the signal that ended a program."""


def run() -> NoReturn:
    """Run the command line. A signal ends it with status 128 + its number, after files in the making are removed."""
    _open_closed_streams()
    _buffer_stdout()
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup has it
    for number in handled:
        signal.signal(number, _leave)
    atexit.register(_ignore, handled)
    sys.unraisablehook = _leave_later
    try:
        from .cli import main

        main(prog_name="qfmt")
    except SystemExit as ending:
        if ending is _ENDING:
            _say()
            _be_silent()
        raise
    finally:
        for number in handled:
            if signal.getsignal(number) is _leave:  # an exception would only print a traceback now
                signal.signal(number, _leave_at_once)
    sys.exit()


def _open_closed_streams() -> None:
    """Let streams that were closed lead nowhere: the next files would have their numbers, and get what is printed."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123


def _buffer_stdout() -> None:
    """Buffer stdout also with PYTHONUNBUFFERED: Python would drop what a disk that becomes full does not take, and
    report no error."""
    import io

    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        stream = sys.stdout
        buffered = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(buffered, stream.encoding, stream.errors, line_buffering=True)


def _leave(number: int, frame: FrameType | None) -> None:
    global _ENDING, _PATIENT
    if time.monotonic() < _PATIENT:  # a second signal must not stop the removal of files
        return
    if hasattr(signal, "setitimer") and _is_loading(frame):
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
        signal.setitimer(signal.ITIMER_REAL, _LATER)
        return
    _PATIENT = time.monotonic() + _REMOVAL
    _ENDING = _ENDING or SystemExit(_STATUS + number)
    if interruption := sys.modules.get("qfmt.cli.interruption"):
        vars(interruption)["ending"] = _ENDING
    raise _ENDING


def _leave_later(dropped: sys.UnraisableHookArgs) -> None:
    """Raise the exit again if Python dropped it: it does so where it calls a weak reference back or finalizes."""
    if _ENDING is None or dropped.exc_value is not _ENDING or not hasattr(signal, "setitimer"):
        sys.__unraisablehook__(dropped)
        return
    signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, _LATER)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    assert _ENDING is not None
    raise _ENDING


def _is_loading(frame: FrameType | None) -> bool:
    """Whether an extension module is being loaded: some in C++ abort at an exception in what they import."""
    from importlib.machinery import ExtensionFileLoader

    loading = ExtensionFileLoader.create_module.__code__, ExtensionFileLoader.exec_module.__code__
    while frame and frame.f_code not in loading:
        frame = frame.f_back
    return frame is not None


_LATER = 0.01
"""Seconds until a signal that came while an extension module was loaded is tried again, or an exit that was dropped."""

_REMOVAL = 2.0
"""Seconds for the removal of files, in which further signals are ignored."""

_PATIENT = 0.0
"""When they count again: something may have suppressed the exit."""

_ENDING: SystemExit | None = None
"""The exit that a signal caused."""


def _leave_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    _say()
    os._exit(_STATUS + number)


def _ignore(handled: list[int]) -> None:
    """Let a signal that comes last change nothing: Python forgets the handlers, and the signal would set the status."""
    for number in handled:
        signal.signal(number, signal.SIG_IGN)


def _say() -> None:
    """One line on stderr, which may be closed, or may never have been more than a descriptor."""
    from contextlib import suppress

    summary = getattr(sys.modules.get("qfmt.cli.interruption"), "summary", lambda: "qfmt: interrupted")
    with suppress(OSError):
        os.write(2, f"{summary()}\n".encode(errors="backslashreplace"))


def _be_silent() -> None:
    """Let the line of an interruption be the last one: libraries tell at the exit what they did not finish."""
    from contextlib import suppress

    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


if __name__ == "__main__":
    run()
