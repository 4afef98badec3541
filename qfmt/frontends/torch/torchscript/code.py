"""The code of an archive, found by qualified name and parsed a function at a time.

PyTorch prints one statement per line, indents by two spaces, and escapes line ends in strings: so functions
can be extracted by their lines, and only those that are called are parsed. Classes that differ in their
mangled name only (one per convolution) share one parse.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from keyword import kwlist
from typing import NamedTuple

from ....budget import Budget
from ....errors import SourceError, damaged

TREE = 128
"""Approximate bytes of a syntax tree for each byte of code."""

LINE = 150
"""Bytes of a line that is kept, and of where its block begins."""

PARSING = 4
"""Operations to parse one byte of code."""

CHAIN_LIMIT = 2000
"""Operators in one statement. Python 3.10 crashes on about ten thousand; newer versions raise an error."""

_DAMAGED = "the file is malicious or damaged"
_TOO_DEEP = "the code is nested too deeply, or not text"

_ATOMS = re.compile(r'(?s)"[^"]*(?:"|$)|\d+(?:\.\d*)?(?:e[-+]?\d+)?')
_LINKS = re.compile(r"[.(\[{+\-*/%@&|^<>~:]|\b(?:if|and|or|not|lambda|in|is)\b")
_UNPRINTED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]|\"{3}|'{3}|\\\n")
"""What PyTorch accepts in code, but does not print: control characters, which Python may take for line ends, texts of
several lines, and lines that continue on the next. With these, lines are no statements."""

_KEYWORD_READ = re.compile(rf"(?m)^( *\w+ = )(\w+)\.({'|'.join(kwlist)})$")
"""An attribute whose name is a Python keyword: PyTorch writes `from0 = self.from` for a module "from"."""

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


class Function:
    """A function or method of the archive's code; `node` is its syntax tree, parsed at the first use."""

    __slots__ = ("_library", "_lines", "_node", "file", "name")

    def __init__(self, library: Library, lines: _Lines, name: str) -> None:
        self.name = name
        self.file = lines.file
        self._library = library
        self._lines = lines
        self._node: ast.FunctionDef | None = None

    @property
    def node(self) -> ast.FunctionDef:
        if self._node is None:
            self._node = self._library.parse(self._lines)
        return self._node

    def line(self, node: ast.AST) -> int:
        """The line of the file with a node of this function."""
        return self._lines.start + int(getattr(node, "lineno", 2)) - 1

    def text(self, node: ast.AST) -> str:
        """The text of that line, for messages."""
        line = self.line(node) - 1
        return self._lines.text[line].strip()[:200] if line < len(self._lines.text) else ""

    def signature(self) -> list[tuple[str, str, bool]]:
        """(name, type, whether it has a default) of every argument."""
        given = self.node.args
        required = len(given.args) - len(given.defaults)
        try:
            types = [ast.unparse(argument.annotation) if argument.annotation else "" for argument in given.args]
        except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
            raise SourceError(_TOO_DEEP, where=f"{self.file}:{self.line(self.node)}") from None
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
        self._parsed: dict[str, ast.FunctionDef] = {}
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

    def parse(self, lines: _Lines) -> ast.FunctionDef:
        """The syntax tree of one function, its first line counted as line 2."""
        block = lines.text[lines.start : lines.end]
        header = next((i for i, line in enumerate(block) if line.endswith(":")), 0) + 1
        text = "\n".join(("if 1:", *(_MANGLED.sub("", line) for line in block[:header]), *block[header:]))
        if text not in self._parsed:
            check_chains(["".join(block[:header]), *block[header:]], lines.where)
            charge_parsing(self.budget, text)
            self._parsed[text] = _parse(text if block[0].startswith(" ") else _indented(text), lines)
        return self._parsed[text]

    def _search(self, qualified: str) -> Class | Function | None:
        module, _, name = qualified.rpartition(".")
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
        if found := _UNPRINTED.search(text):
            where = f"{file}:{text.count(chr(10), 0, found.start()) + 1}"
            raise SourceError(f"the code has {found[0]!a}, which PyTorch does not print", where=where, hint=_DAMAGED)
        lines = text.split("\n")
        blocks = _Lines(file, lines, 0, len(lines)).blocks(0)
        names = [_defined(lines.first, "class") or _defined(lines.first, "def") for lines in blocks]
        return {name: lines for name, lines in zip(names, blocks, strict=True) if name}


def charge_parsing(budget: Budget, text: str) -> None:
    """Count the cost of a syntax tree of some code."""
    budget.spend(PARSING * len(text))
    budget.allocate(TREE * len(text))


def syntax_tree(text: str) -> ast.Module:
    """The tree of statements, without Python's advice: who converts a model cannot follow it. Raises as `ast.parse`."""
    warnings.filterwarnings("ignore", module=_NAME)  # each time, as other filters may have come before this one
    return ast.parse(text, _NAME)


def syntax_of_expression(text: str) -> ast.expr:
    """The same for one expression."""
    warnings.filterwarnings("ignore", module=_NAME)
    return ast.parse(text, _NAME, "eval").body


_NAME = "<code of a model>"


def _expression(text: str, budget: Budget) -> ast.expr:
    check_chains([text], "")
    charge_parsing(budget, text)
    try:
        return syntax_of_expression(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SourceError(f"the value of an attribute is not TorchScript: {text[:80]}") from None


def _tree(text: str) -> ast.stmt:
    try:
        return syntax_tree(text).body[0]
    except SyntaxError:
        return syntax_tree(_KEYWORD_READ.sub(r'\1getattr(\2, "\3")', text)).body[0]


def _parse(text: str, lines: _Lines) -> ast.FunctionDef:
    try:
        wrapper = _tree(text)
    except SyntaxError as error:
        line = lines.start + (error.lineno or 1) - 1
        raise SourceError(f"the code is not TorchScript: {error.msg}", where=f"{lines.file}:{line}") from None
    except (ValueError, RecursionError, MemoryError):
        raise SourceError(_TOO_DEEP, where=lines.where) from None
    if isinstance(wrapper, ast.If) and len(wrapper.body) == 1 and isinstance(wrapper.body[0], ast.FunctionDef):
        return wrapper.body[0]
    raise SourceError("the code is not TorchScript: not a function", where=lines.where)


def check_chains(statements: list[str], where: str) -> None:
    """Reject statements whose syntax tree would be too deep for Python's own recursion."""
    if any(_open_brackets(line) and _open_brackets(_links(line)) for line in statements):
        statements = ["".join(statements)]  # a statement over multiple lines, which PyTorch does not print
    long = [_links(line) for line in statements if len(line) > CHAIN_LIMIT]
    if any(len(_LINKS.findall(line)) > CHAIN_LIMIT for line in long):
        raise SourceError(_TOO_DEEP, where=where)


def _links(line: str) -> str:
    """A line without its texts and numbers. A pattern for escapes would take memory for each of them."""
    return _ATOMS.sub("", line.replace(r"\\", "").replace(r"\"", ""))


def _open_brackets(line: str) -> int:
    return line.count("(") + line.count("[") + line.count("{") - line.count(")") - line.count("]") - line.count("}")


def _indented(text: str) -> str:
    """A function from the top level of its file, indented by one level, so that it can follow `if 1:`."""
    first, *rest = text.split("\n")
    return "\n".join((first, *(f"  {line}" for line in rest)))


def _indent(line: str) -> int:
    """The indent of a statement; -1 for a line without one."""
    stripped = line.lstrip(" ")
    return len(line) - len(stripped) if stripped and stripped[0] != "#" else -1


def _defined(line: str, keyword: str) -> str:
    found = re.match(rf"{keyword} +(\w+)", line)
    return found[1] if found else ""
