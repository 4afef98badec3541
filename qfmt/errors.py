"""Every error that qfmt raises on purpose. `QfmtError` catches everything that a bad file can cause.

QfmtError
├── FormatError                  a `.qfb` that breaks the specification
│   ├── DigestError              its bytes are not those that were written
│   ├── VersionError             it needs a newer reader, and names what it needs
│   └── ValidityError            it can be decoded, but breaks validity rules (all of them, by number)
├── SourceError                  a file or object that cannot be converted
│   ├── BudgetError              converting it would cost more than its size allows
│   ├── UnsafePickleError        its pickle refers to something that is not on the list of safe types
│   ├── ControlFlowError         its code has no single graph: operators, or the number of tensors, depend on the data
│   └── UnsupportedOperatorsError it contains operators that qfmt does not support (all of them, counted)
├── NoIntegerFormError           nodes without an integer-only form (all of them, by reason)
├── RunError                     a model cannot be run on the given inputs
├── DestinationError             the result cannot be written to its destination
│   └── InexpressibleNodesError  the destination cannot express some nodes (all of them, by reason)
├── RemoteError                  a URL cannot be read: its protocol, or the other side, which fails or misleads
├── MissingPackageError          an optional package is needed for this
└── MissingFileError             there is no file at a path; also a FileNotFoundError

A message is one line: where it is wrong, what is wrong, and what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

LONGEST = 10_000
"""Characters of a finding that a message shows; a place and a hint get a tenth of that."""


def printable(text: str) -> str:
    """The text with control characters escaped: a name from a malicious file must not control a terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def shortened(text: str, limit: int) -> str:
    """The text, or its two ends: names in a file may have a megabyte."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}… ({len(text):,} characters) …{text[-half:]}"


def _cut(text: str, limit: int) -> str:
    """The text, or its beginning: if it is a command, a quoted name must not end in the middle and leave a rest."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def brief(value: object, limit: int = 60) -> str:
    """A value of a source, for a message. Of lists only the type: a short file may describe one that has no end."""
    plain = value is None or isinstance(value, str | int | float)
    return shortened(str(value), limit) if plain else type(value).__name__


def masked(text: str) -> str:
    """A text that is a URL or quotes URLs, without their passwords and queries.

    It may lose more than these: it is for texts that cannot be parsed. A text that begins with a protocol is taken for
    a URL to its end, as a password may contain blanks.
    """
    character = "." if re.match(r"[^\s/:]+://", text) else r"\S"
    text = re.sub(rf"(?s)(?<=://)(?:{character}*@|[^\s/]*%40)", "", text)
    return re.sub(rf"(?s)\?{character}+", "?…", text)


def some(names: Sequence[str], limit: int = 3) -> str:
    """The first names, each once and shortened."""
    shown = ", ".join(dict.fromkeys(shortened(name, LONGEST // 100) for name in names[:limit]))
    return f"{shown}, …" if len(names) > limit else shown


def _counted(found: Mapping[str, Sequence[str]]) -> str:
    """What was found, how often, and the first places where."""
    shown = {what: f": {some(places)}" if any(places) else "" for what, places in found.items()}
    return ", ".join(f"{what} ({len(places)}×{shown[what]})" for what, places in sorted(found.items()))


def first_line(error: BaseException) -> str:
    """The message of another library's exception, in one line."""
    if isinstance(error, MemoryError):
        return "needs more memory than is allowed"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def message(error: Exception) -> str:
    """What to say of any exception, in one line: it may be a bug of qfmt, too (`is_expected`)."""
    if isinstance(error, QfmtError):
        return str(error)
    if isinstance(error, MemoryError):
        return first_line(error)
    if isinstance(error, OSError):
        return printable(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    if what := _not_loaded(error) or _no_thread(error):
        return what
    from . import __version__

    return printable(
        f"unexpected {type(error).__name__}: {error}; this is a bug in qfmt {__version__}: please report it "
        "with the output of `qfmt --debug` for the same arguments"
    )


def is_expected(error: Exception) -> bool:
    """Whether it is no bug of qfmt."""
    return isinstance(error, QfmtError | OSError | MemoryError) or bool(_not_loaded(error) or _no_thread(error))


def _no_thread(error: Exception) -> str:
    """What to say if the system, or a container, allows no more threads; "" for other errors."""
    if not isinstance(error, RuntimeError) or "can't start new thread" not in str(error):
        return ""
    return "a thread cannot be started: the system allows no more; raise its limit (ulimit -u), or use fewer --jobs"


def _not_loaded(error: Exception) -> str:
    """What to say of a package that is missing, under its name on PyPI, or cannot be loaded; "" for other errors."""
    package = (getattr(error, "name", None) or "").partition(".")[0].replace("_", "-")
    if not isinstance(error, ImportError) or package == "qfmt":
        return ""
    if isinstance(error, ModuleNotFoundError) and package:
        package = {"google": "protobuf"}.get(package, package)
        return f"this needs the package {package}, which is not installed; run `pip install {package}`"
    return f"a package cannot be loaded: {first_line(error.__cause__ or error)}"  # NumPy's own text has many lines


class QfmtError(Exception):
    """The root of the tree.

    `what` is the finding, `where` the place (file, node, tensor, line of source), `hint` what to do.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Its classes have other arguments than Exception: a pool that pickles an error would wait for ever."""
        return _restored, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        """One line that is safe to print, whatever names a file put into it."""
        place = f"{shortened(self.where, LONGEST // 10)}: " if self.where else ""
        advice = f"; {_cut(self.hint, LONGEST // 10)}" if self.hint else ""
        return printable(f"{place}{shortened(self.what, LONGEST)}{advice}")

    def at(self, where: str) -> QfmtError:
        """The same error with a place: an outer layer knows the file, an inner one only the table."""
        if not f"{self.where}: ".startswith(f"{where}: "):
            self.where = f"{where}: {self.where}" if self.where else where
        return self


def _restored(kind: type[QfmtError], args: tuple[object, ...], state: dict[str, object]) -> QfmtError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class FormatError(QfmtError):
    """A `.qfb` file breaks the specification; `rule` is the number of the container rule (`F3`), where it is known."""

    def __init__(self, what: str, *, where: str = "", hint: str = "", rule: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.rule = rule


class DigestError(FormatError):
    """The sha256 of some bytes differs from the one that the file states."""


class VersionError(FormatError):
    """The file needs something that this reader does not know."""


class Violation:
    """One broken validity rule: its number (`V12`), the place, and the finding; long texts are shortened."""

    __slots__ = ("rule", "what", "where")

    def __init__(self, rule: str, where: str, what: str) -> None:
        self.rule = rule
        self.where = shortened(where, LONGEST // 20)
        self.what = shortened(what, LONGEST // 20)

    def __str__(self) -> str:
        return printable(f"{self.rule} {self.where}: {self.what}")

    def __repr__(self) -> str:
        return f"Violation({str(self)!r})"


class ValidityError(FormatError):
    """A model breaks validity rules; `violations` holds every one of them.

    The message lists the first; or the first three, if there is no file that `qfmt check` could read.
    """

    def __init__(self, violations: Iterable[Violation], *, where: str = "", in_file: bool = False) -> None:
        self.violations = tuple(violations)
        shown = 1 if in_file else 3
        listed = ", ".join(map(str, self.violations[:shown]))
        rest = len(self.violations) - shown
        more = f" (and {rest} more)" if rest > 0 else ""
        hint = "`qfmt check` lists them all" if rest > 0 and in_file else ""
        super().__init__(f"breaks rule {listed}{more}", where=where, hint=hint)


class SourceError(QfmtError):
    """A source cannot be converted: not readable, not quantized, or of a kind without a graph."""


def damaged(what: str, *, where: str = "") -> SourceError:
    """The error for a file in a form that no program writes."""
    return SourceError(what, where=where, hint="the file is damaged")


class BudgetError(SourceError):
    """Converting a source would take time or memory out of proportion to it; docs/spec/conversions.md, "Budget"."""


class UnsafePickleError(SourceError):
    """A pickle names a global that qfmt does not resolve. No part of it was executed."""


class ControlFlowError(SourceError):
    """The code of a source branches on data, or has any number of input tensors: it has no single graph."""


class UnsupportedOperatorsError(SourceError):
    """Operators that qfmt does not support; `operators` maps each to the places that call it."""

    def __init__(self, operators: Mapping[str, Iterable[str]], *, where: str = "", hint: str = "") -> None:
        self.operators = {name: tuple(places) for name, places in operators.items()}
        listed = _counted(self.operators)
        count = len(self.operators)
        noun = "operator has" if count == 1 else "operators have"
        super().__init__(f"{count} {noun} no equivalent in qfmt: {listed}", where=where, hint=hint)


class RunError(QfmtError):
    """A model cannot be run: an input is missing or misshapen, or a node has no reference."""


class MemoryLimitError(RunError):
    """A run would take more memory than it may."""


class DestinationError(QfmtError):
    """The destination cannot be written. What was there before is untouched."""


class InexpressibleNodesError(DestinationError):
    """Nodes that another format cannot express; `reasons` maps each reason to the names of the nodes."""

    def __init__(self, reasons: Mapping[str, Iterable[str]], *, format: str, hint: str = "") -> None:
        self.reasons = {reason: tuple(nodes) for reason, nodes in reasons.items()}
        listed = _counted(self.reasons)
        count = sum(map(len, self.reasons.values()))
        noun = "node" if count == 1 else "nodes"
        super().__init__(f"{count} {noun} cannot be written in {format}: {listed}", hint=hint)


class NoIntegerFormError(QfmtError):
    """Nodes without an integer-only form; `reasons` maps each reason to the names of the nodes."""

    def __init__(self, reasons: Mapping[str, Iterable[str]], *, hint: str) -> None:
        self.reasons = {reason: tuple(nodes) for reason, nodes in reasons.items()}
        listed = "; ".join(f"{some(nodes, 20)} {reason}" for reason, nodes in sorted(self.reasons.items()))
        count = sum(map(len, self.reasons.values()))
        noun = "node has" if count == 1 else "nodes have"
        super().__init__(f"{count} {noun} no integer form: {listed}", hint=hint)


class RemoteError(QfmtError):
    """A URL cannot be read: qfmt does not know its protocol, or the other side failed."""


class MissingPackageError(QfmtError):
    """An optional package is missing; the hint is the command that installs it."""


class MissingFileError(QfmtError, FileNotFoundError):
    """There is no file at the path that was given to read."""
