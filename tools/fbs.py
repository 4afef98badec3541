"""Reads schema/qfb.fbs: enums, structs and tables with their comments, in the order that gives field numbers.

Supports only the part of FlatBuffers' schema language that qfb.fbs uses. The specification's tables and the
annotated hex dump are made from its result, so that fields are described only in the schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = Path(__file__).parents[1] / "schema" / "qfb.fbs"


@dataclass(frozen=True)
class Field:
    """A field of a table. `default` is its text in the schema: "null" means that it may be absent."""

    name: str
    type: str
    default: str
    required: bool
    key: bool
    meaning: str


@dataclass
class Table:
    name: str
    meaning: str
    fields: list[Field] = field(default_factory=list)


@dataclass
class Enum:
    name: str
    meaning: str
    members: list[tuple[str, int, str]] = field(default_factory=list)

    def member(self, code: int) -> str:
        return next((name for name, number, _ in self.members if number == code), f"? {code}")


@dataclass
class Schema:
    enums: dict[str, Enum] = field(default_factory=dict)
    structs: dict[str, Table] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    root: str = ""


BLOCK = re.compile(r"(enum|struct|table)\s+(\w+)(?:\s*:\s*\w+)?\s*\{(.*?)\n?\}", re.DOTALL)
FIELD = re.compile(r"(\w+)\s*:\s*([\w\[\]:]+)\s*(?:=\s*(\w+))?\s*(?:\(([^)]*)\))?\s*;")
MEMBER = re.compile(r"(\w+)\s*=\s*(\d+)\s*,?[ \t]*(?://[ \t]*(.*))?")


def read_schema(path: Path = SCHEMA) -> Schema:
    text = path.read_text(encoding="utf-8")
    schema = Schema(root=re.findall(r"root_type\s+(\w+)", text)[0])
    for found in BLOCK.finditer(text):
        kind, name, body = found.groups()
        meaning = _comment(text[: found.start()])
        if kind == "enum":
            members = [(member, int(code), note or "") for member, code, note in MEMBER.findall(body)]
            schema.enums[name] = Enum(name, meaning, members)
        else:
            home = schema.tables if kind == "table" else schema.structs
            home[name] = Table(name, meaning, [_field(part, body) for part in FIELD.finditer(body)])
    return schema


def _field(found: re.Match[str], body: str) -> Field:
    name, kind, default, flags = found.groups()
    words = [word.strip() for word in (flags or "").split(",")]
    return Field(name, kind, default or "", "required" in words, "key" in words, _comment(body[: found.start()]))


def _comment(before: str) -> str:
    """The `///` lines that end the text before a declaration, as one line."""
    lines: list[str] = []
    for line in reversed(before.rstrip().splitlines()):
        if not line.strip().startswith("///"):
            break
        lines.append(line.strip().removeprefix("///").strip())
    return " ".join(reversed(lines))
