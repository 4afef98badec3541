"""The code of an archive, found by qualified name and parsed a few statements at a time.

PyTorch prints one statement per line, indents by two spaces, and escapes line ends in strings: so functions and their
statements can be extracted by their lines, and only those that are executed are parsed. Classes that differ in their
mangled name only (one per convolution) share one parse. Syntax trees take much more memory than code, so the oldest are
dropped, and made again when they are needed.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from keyword import kwlist
from typing import NamedTuple, cast

from ....budget import AT_ONCE, Budget
from ....errors import SourceError, damaged
from ....threads import cached_property, parsed

TREE, PARSER = 360, 560
"""The most bytes of a syntax tree for each word or sign of the code, and those that Python takes while it is made."""

TREES = 4 << 20
"""Bytes of syntax trees that are kept, besides those of long statements."""

PIECE = 500
"""Bytes of code that are parsed at once, if they are several statements."""

LINE = 150
"""Bytes of a line that is kept, and of where its block begins."""

PARSING = 2
"""Operations to parse a word or a sign."""

LONG = 4
"""A statement of more pieces than that is long: its tree is kept."""

CHAIN_LIMIT = 2000
"""Operators in one statement. Python 3.10 crashes on a hundred thousand; newer versions raise an error."""

_DAMAGED = "the file is malicious or damaged"

_TOO_DEEP = "the code is nested too deeply, or not text"

_TEXTS = re.compile(r"\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|#.*")
"""Texts and comments of code without escapes: a pattern for escapes would take memory for each of them."""

_NUMBERS = re.compile(r"\d+(?:\.\d*)?(?:e[-+]?\d+)?")
_LINKS = re.compile(r"[.(\[{+\-*/%@&|^<>~:]|\b(?:if|and|or|not|lambda|in|is)\b")
_UNPRINTED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]|\"{3}|'{3}|\\\n")
"""What PyTorch does not print, although it may accept it: control characters, which Python may take for line ends,
texts of multiple lines, and lines that continue on the next. With these, lines are no statements."""

_PREFIXED = re.compile(r"[A-Za-z]\"")
"""A text of another kind, where `_TEXTS` are replaced."""

_KEYWORD_READ = re.compile(rf"(?m)^( *\w+ = )(\w+)\.({'|'.join(kwlist)})$")
"""An attribute whose name is a Python keyword: PyTorch writes `from0 = self.from` for a module "from"."""

_WORDS = re.compile(r"\w+|[^\w ]")
"""Words, signs and line ends: there are no more nodes in the tree."""

_MANGLED = re.compile(r"___torch_mangle_\d+\.")


class _Lines(NamedTuple):
    """Lines of a file: those of one class, function or method. `start` counts from 0."""

    file: str
    text: list[str]
    start: int
    end: int

    def blocks(self, indent: int) -> list[_Lines]:
        """The statements at an indent, each with what is indented below it."""
        starts = [i for i in range(self.start, self.end) if _indent(self.text[i]) == indent]
        ends = [*starts, self.end][1:]
        return [_Lines(self.file, self.text, start, end) for start, end in zip(starts, ends, strict=True)]

    @property
    def where(self) -> str:
        return f"{self.file}:{self.start + 1}"

    @property
    def first(self) -> str:
        return self.text[self.start].strip()


class _Pieces(NamedTuple):
    """A function in pieces: the lines before its body, and those of the body, a few of its statements in each."""

    header: _Lines
    body: list[_Lines]
    statements: int


class Function:
    """A function or method of the archive's code."""

    __slots__ = ("_library", "_lines", "_pieces", "file", "name")

    def __init__(self, library: Library, lines: _Lines, name: str) -> None:
        self.name = name
        self.file = lines.file
        self._library = library
        self._lines = lines
        self._pieces: _Pieces | None = None

    @property
    def pieces(self) -> _Pieces:
        if self._pieces is None:
            self._pieces = _pieces(self._lines)
        return self._pieces

    @property
    def header(self) -> ast.FunctionDef:
        """The syntax tree of the function without its body."""
        match self._library.parse(self._lines, self.pieces.header, is_header=True):
            case [ast.FunctionDef(body=[ast.Pass()]) as node]:
                return node
        raise SourceError("the code is not TorchScript: not a function", where=self._lines.where)

    def statements(self) -> Iterator[ast.stmt]:
        """The syntax trees of the body, made one after the other."""
        for piece in self.pieces.body:
            yield from self._library.parse(self._lines, piece)

    def line(self, node: ast.AST) -> int:
        """The line of the file with a node of this function."""
        return self._lines.start + int(getattr(node, "lineno", 2)) - 1

    def text(self, node: ast.AST) -> str:
        """The text of that line, for messages."""
        return self.text_of(self.line(node))

    def text_of(self, line: int) -> str:
        """The beginning of a line of the file; a line may be long, and is shown often."""
        line -= 1
        return self._lines.text[line][:1000].strip()[:200] if line < len(self._lines.text) else ""

    def signature(self) -> list[tuple[str, str, bool]]:
        """(name, type, whether it has a default) of every argument."""
        header = self.header
        given = header.args
        required = len(given.args) - len(given.defaults)
        try:
            types = [ast.unparse(argument.annotation) if argument.annotation else "" for argument in given.args]
        except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
            raise SourceError(_TOO_DEEP, where=f"{self.file}:{self.line(header)}") from None
        return [(argument.arg, types[i], i >= required) for i, argument in enumerate(given.args)]


class Class:
    """A class of the archive's code."""

    def __init__(self, library: Library, lines: _Lines, qualified: str) -> None:
        self.name = qualified
        self.base = lines.first.partition("(")[2].partition(")")[0]
        self.library = library
        self._body = lines.blocks(2)
        self._expressions: dict[str, ast.expr] = {}

    @cached_property
    def methods(self) -> Mapping[str, Function]:
        definitions = [(lines, _defined(lines.first, "def")) for lines in self._body]
        return {name: Function(self.library, lines, name) for lines, name in definitions if name}

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """Attributes in order, with the text of their value: of `Final` ones and members of enumerations."""
        fields = {}
        for lines in self._body:
            declared = re.match(r"(\w+) (?:: .*?)?(?:= (.*))?$", lines.first)
            if declared:
                fields[declared[1]] = declared[2] or ""
        return fields

    @cached_property
    def has_hooks(self) -> bool:
        """Whether torch runs more than `forward` in a call, however that is spelled."""
        declared = (lines.first for lines in self._body if not _defined(lines.first, "def"))
        return any(name in line for line in declared for name in ("__forward_hooks__", "__forward_pre_hooks__"))

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each attribute, from 0."""
        return {name: place for place, name in enumerate(self.fields)}

    def expression(self, field: str) -> ast.expr:
        """The value of a field as a syntax tree, parsed once; SourceError if it is not valid."""
        if field not in self._expressions:
            self._expressions[field] = _expression(self.fields[field], self.library.budget)
        return self._expressions[field]

    def method(self, name: str) -> Function | None:
        return self.methods.get(name)


class Library:
    """All code files of an archive. `files` maps paths in the archive to names of zip entries."""

    def __init__(self, files: Mapping[str, str], read: Callable[[str], bytes], budget: Budget) -> None:
        self._files = files
        self._read = read
        self._open: dict[str, dict[str, _Lines]] = {}
        self._found: dict[str, Class | Function | None] = {}
        self._parsed: dict[tuple[int, str], tuple[list[ast.stmt], int]] = {}
        self._long: dict[tuple[int, str], list[ast.stmt]] = {}
        self._kept = 0
        self.budget = budget

    def find(self, qualified: str) -> Class | Function | None:
        """The class or function `__torch__.a.b.Name`; None if the archive has none."""
        if qualified not in self._found:
            self._found[qualified] = self._search(qualified)
        return self._found[qualified]

    def class_of(self, qualified: str) -> Class:
        found = self.find(qualified)
        if not isinstance(found, Class):
            raise damaged(f"the archive's code lacks the class {qualified[:200]}")
        return found

    def parse(self, function: _Lines, piece: _Lines, *, is_header: bool = False) -> list[ast.stmt]:
        """The syntax trees of statements of a function, whose first line counts as line 2."""
        block = piece.text[piece.start : piece.end]
        if is_header:
            block = [*(_MANGLED.sub("", line) for line in block), f"{' ' * (_indent(block[0]) + 2)}pass"]
        key = piece.start - function.start, "\n".join(block)
        self.budget.spend(len(key[1]) // AT_ONCE)
        if key in self._long:
            return self._long[key]
        found = self._parsed.pop(key, None) or self._parse(key, piece)
        if len(key[1]) > LONG * PIECE:
            self._long[key] = found[0]
        else:
            self._parsed[key] = found  # the newest is the last
        return found[0]

    def _parse(self, key: tuple[int, str], piece: _Lines) -> tuple[list[ast.stmt], int]:
        """Syntax trees, and the memory that they are charged for."""
        check_chains(key[1], piece.where)
        size = charge_parsing(self.budget, key[1])
        if len(key[1]) > LONG * PIECE:
            self.budget.allocate(size)
            return _parse(key[1], piece, key[0]), 0
        while self._parsed and self._kept + size > TREES:
            self._kept -= self._parsed.pop(next(iter(self._parsed)))[1]
        self._kept += size
        self.budget.reach("trees", self._kept)
        return _parse(key[1], piece, key[0]), size

    def _search(self, qualified: str) -> Class | Function | None:
        module, _, name = qualified.rpartition(".")
        if "/" in module:  # one class would have many names
            return None
        file = "code/" + module.replace(".", "/") + ".py"
        if file not in self._files:
            return None
        if file not in self._open:
            self._open[file] = self._index(file)
        lines = self._open[file].get(name)
        if lines is None:
            return None
        return Class(self, lines, qualified) if lines.first.startswith("class") else Function(self, lines, name)

    def _index(self, file: str) -> dict[str, _Lines]:
        text = self._read(self._files[file]).decode("latin-1")  # in PyTorch, the elements of a text are bytes
        self.budget.allocate(LINE * text.count("\n"))
        check_printed(text, file)
        lines = text.split("\n")
        blocks = _Lines(file, lines, 0, len(lines)).blocks(0)
        names = [_defined(lines.first, "class") or _defined(lines.first, "def") for lines in blocks]
        return {name: lines for name, lines in zip(names, blocks, strict=True) if name}


def _pieces(function: _Lines) -> _Pieces:
    text, end = function.text, function.end
    begin = next((i + 1 for i in range(function.start, end) if text[i].endswith(":")), function.start + 1)
    indents = (_indent(text[i]) for i in range(begin, end))
    statements = function._replace(start=begin).blocks(next((indent for indent in indents if indent >= 0), 0))
    starts, size = [begin], 0
    for lines in statements:
        if size > PIECE and not lines.first.startswith("else"):
            starts.append(lines.start)
            size = 0
        size += sum(len(text[i]) for i in range(lines.start, lines.end))
    ends = [*starts[1:], end]
    body = [function._replace(start=start, end=end) for start, end in zip(starts, ends, strict=True)]
    return _Pieces(function._replace(end=begin), body, len(statements))


def charge_parsing(budget: Budget, text: str) -> int:
    """Count the cost of parsing some code; the bytes of its syntax tree, which the caller counts."""
    words = sum(1 for _ in _WORDS.finditer(text))
    budget.spend(PARSING * words)
    budget.reach("parser", PARSER * words)
    return TREE * words


def syntax_tree(text: str) -> ast.Module:
    """The tree of statements, without Python's advice: who converts a model cannot follow it. Raises as `ast.parse`."""
    warnings.filterwarnings("ignore", module=_NAME)  # each time, as other filters may have come before this one
    return cast(ast.Module, parsed(text, "exec", _NAME))


def syntax_of_expression(text: str) -> ast.expr:
    """The same for one expression."""
    warnings.filterwarnings("ignore", module=_NAME)
    return cast(ast.Expression, parsed(text, "eval", _NAME)).body


_NAME = "<code of a model>"


def _expression(text: str, budget: Budget) -> ast.expr:
    check_chains(text, "")
    budget.allocate(charge_parsing(budget, text))
    try:
        return syntax_of_expression(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SourceError(f"the value of an attribute is not TorchScript: {text[:80]}") from None


def _tree(text: str) -> ast.stmt:
    try:
        return syntax_tree(text).body[0]
    except SyntaxError:
        return syntax_tree(_KEYWORD_READ.sub(r'\1getattr(\2, "\3")', text)).body[0]


def _parse(text: str, lines: _Lines, first: int) -> list[ast.stmt]:
    """The statements of indented code, whose first line is this one of a function, which counts as line 2."""
    try:
        wrapper = _tree(f"if 1:\n{text}" if text.startswith(" ") else f"if 1:\n {text}")
    except SyntaxError as error:
        line = lines.start + (error.lineno or 1) - 1
        raise SourceError(f"the code is not TorchScript: {error.msg}", where=f"{lines.file}:{line}") from None
    except (ValueError, RecursionError, MemoryError):
        raise SourceError(_TOO_DEEP, where=lines.where) from None
    if isinstance(wrapper, ast.If) and not wrapper.orelse:
        return ast.increment_lineno(wrapper, first).body
    raise SourceError("the code is not TorchScript: not a function", where=lines.where)


def check_printed(text: str, file: str) -> None:
    """Reject code whose lines are not those of PyTorch."""
    if found := _UNPRINTED.search(text):
        where = f"{file}:{text.count(chr(10), 0, found.start()) + 1}"
        raise SourceError(f"the code has {found[0]!a}, which PyTorch does not print", where=where, hint=_DAMAGED)


def check_chains(text: str, where: str) -> None:
    """Reject printed code with statements whose syntax tree would be too deep for Python's own recursion."""
    if len(text) <= CHAIN_LIMIT:
        return
    for escape in (r"\\", r"\"", r"\'"):
        text = text.replace(escape, "")
    text = _TEXTS.sub('"', text)
    depth = links = 0
    for line in _NUMBERS.sub("", text).split("\n"):
        links = len(_LINKS.findall(line)) + (links if depth else 0)
        depth = max(depth + _open_brackets(line), 0)
        if links > CHAIN_LIMIT:
            raise SourceError(_TOO_DEEP, where=where)
    if _PREFIXED.search(text):
        raise SourceError("the code has a text with a prefix, which PyTorch does not print", where=where, hint=_DAMAGED)


def _open_brackets(line: str) -> int:
    return line.count("(") + line.count("[") + line.count("{") - line.count(")") - line.count("]") - line.count("}")


def _indent(line: str) -> int:
    """The indent of a statement; -1 for a line without one."""
    stripped = line.lstrip(" ")
    return len(line) - len(stripped) if stripped and stripped[0] != "#" else -1


def _defined(line: str, keyword: str) -> str:
    found = re.match(rf"{keyword} +(\w+)", line)
    return found[1] if found else ""
