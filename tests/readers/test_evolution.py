"""Reads files of later versions with every reader, which ignores unknown things, or names them in its error.

spec.md, "Promise" and "Unknown things". The conformance suite has more such files, which the tests of each reader read.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import generate_schema
import qfmt
from conformance.containers import longer, patched, plain
from qfmt.errors import QfmtError
from qfmt.file import header
from qfmt.file.decode import Decoder
from qfmt.file.encode import encode
from qfmt.file.schema import TABLES, Field
from support import c_reader, spec_reader
from support.counts import tell
from support.js_reader import Reader
from support.paths import INTEGER_SUITE, SUITE

FILES = sorted((SUITE / "read").glob("*.qfb")) + INTEGER_SUITE
SCHEMA = generate_schema.SOURCE.read_text(encoding="utf-8")

NEW = {
    "later_flag": Field("", 0, "bool", "", 1, None, False),
    "later_number": Field("", 0, "long", "", 8, None, False),
    "later_text": Field("", 0, "string", "", 4, None, False),
    "later_list": Field("", 0, "[double]", "", 4, None, False),
    "later_table": Field("", 0, "table", "Later", 4, None, False),
    "later_tables": Field("", 0, "[table]", "Later", 4, None, False),
}
"""Fields that a later version appends to every table."""

VALUES = {
    "later_flag": True, "later_number": -7, "later_text": "größer", "later_list": [0.5],
    "later_table": {"text": "t"}, "later_tables": [{"text": "u"}, {}],
}  # fmt: skip

LATER = {"Later": (NEW["later_text"]._replace(name="text"),)} | {
    table: (*fields, *(field._replace(name=name, id=at) for at, (name, field) in enumerate(NEW.items(), len(fields))))
    for table, fields in TABLES.items()
}
"""The tables of the later version."""


def grown(table: str, record: dict[str, Any]) -> dict[str, Any]:
    """A record with the new fields, also in every nested record."""
    made = dict(VALUES)
    for field in TABLES[table]:
        value = record[field.name]
        if value is not None and "table" in field.kind:
            value = grown(field.of, value) if field.kind == "table" else [grown(field.of, each) for each in value]
        made[field.name] = value
    return made


def later(data: bytes) -> bytes:
    """A file of a version 1.9: new fields in every table, a longer header, optional flags."""
    start, size, offset = struct.unpack_from("<IQQ", data, 12)
    record = grown("Model", plain(Decoder(data[:size], "Model", start=start).root()))
    root, body = encode("Model", record | {"minor_version": 9}, tables=LATER)
    made = header.seal(root, body, len(data) - offset)
    room = -(-len(made) // header.PAGE) * header.PAGE - len(made)
    made = patched(made + bytes(room) + data[offset:], 52, b"\xff\xff\xff\xff")
    return longer(made) if room >= 16 else made


@pytest.fixture(scope="module")
def later_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The later versions of `FILES`, in the same order."""
    folder = tmp_path_factory.mktemp("later")
    paths = [folder / path.name for path in FILES]
    for path, original in zip(paths, FILES, strict=True):
        path.write_bytes(later(original.read_bytes()))
    for shard in FILES[0].parent.glob("*.qfs"):
        shutil.copy(shard, folder)
    return paths


def test_python_reads_later_files_like_current_ones(later_files: list[Path]) -> None:
    for path, original in zip(later_files, FILES, strict=True):
        assert "größer".encode() in path.read_bytes()
        assert qfmt.load(path) == qfmt.load(original), path.name
        assert qfmt.load(path).content_id() == qfmt.load(original).content_id()
        assert qfmt.check(path) == []
    tell(f"files of a later version: {len(FILES)} are read as without what is new")


def test_the_reader_of_the_specification_does(later_files: list[Path]) -> None:
    for path, original in zip(later_files, FILES, strict=True):
        shards = {each.name: each.read_bytes() for each in path.parent.glob("*.qfs")}
        now, then = (spec_reader.Network(each.read_bytes(), shards) for each in (path, original))
        assert now.content_id() == then.content_id(), path.name


def test_c_does(later_files: list[Path]) -> None:
    now, then = (_dumped_by_c(paths) for paths in (later_files, FILES))
    assert {each.pop("minor_version") for each in now} == {9}
    assert now == [{key: value for key, value in each.items() if key != "minor_version"} for each in then]


def _dumped_by_c(paths: Iterable[Path]) -> list[dict[str, Any]]:
    done = subprocess.run([c_reader.build("qfb_dump.c", *c_reader.SANITIZED), *paths], capture_output=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_javascript_does(later_files: list[Path], reader: Reader) -> None:
    assert reader.dump(*later_files) == reader.dump(*FILES)


def test_later_files_are_run_like_current_ones(later_files: list[Path]) -> None:
    """In C; for Python they are the same models, as the test above compares."""
    networks = later_files[-len(INTEGER_SUITE) :]
    done = subprocess.run([c_reader.build("qfb_run.c"), "--vectors", *networks], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# Python, C and JavaScript name what they cannot ignore


def _said_by_python(path: Path) -> str:
    with pytest.raises(QfmtError) as error:
        list(qfmt.load(path).tensors.values())
    return str(error.value)


def _said_by_c(program: str, *arguments: str | Path) -> str:
    done = subprocess.run([c_reader.build(program), *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    return done.stderr


@pytest.mark.parametrize(
    ("name", "python", "c", "javascript"),
    [
        ("feature", "not support: sparse", "not support: sparse ", 'not support: "sparse"'),
        ("flags", "flags 0x4", "flags that this reader does not support: 4 ", "flags 0x4"),
        ("dtype", "type 99 is not known", "type is not known: 99 ", "type 99 is not known"),
        ("major-2", "major version '2'", "a different major version", 'major version "2"'),
    ],
)
def test_a_file_is_refused(name: str, python: str, c: str, javascript: str, reader: Reader) -> None:
    path = SUITE / "refused" / f"{name}.qfb"
    assert python in _said_by_python(path)
    assert c in _said_by_c("qfb_dump.c", path)
    assert javascript in reader.error(path)


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("read/unknown-operator", "com.example.Strange"),
        ("read/newer-operator", "1000"),
        ("refused/unknown-rule", "float_bias"),  # only `check` refuses the file
    ],
)
def test_a_node_is_read_but_not_run(name: str, node: str, reader: Reader) -> None:
    path = SUITE / f"{name}.qfb"
    model = qfmt.load(path)
    tensors = [model.tensors[each] for each in model.graph.inputs]
    feed = {x.name: np.zeros([size if isinstance(size, int) else 1 for size in x.shape], x.dtype) for x in tensors}
    with pytest.raises(QfmtError, match=node):
        model.run(feed)
    assert node in _said_by_c("qfb_run.c", "--list", path)
    assert _dumped_by_c([path])
    assert reader.error(path) == ""


# The schema


def _evolves(tmp_path: Path, old: str, new: str) -> None:
    """Raise SystemExit unless the schema with `new` instead of `old` is an evolution of every released one."""
    assert SCHEMA.count(old) == 1
    (tmp_path / "qfb.fbs").write_text(SCHEMA.replace(old, new), "utf-8")
    try:
        generate_schema.check_evolution(tmp_path / "qfb.fbs")
    except SystemExit as error:
        if "flatc is missing" in str(error):
            pytest.skip("needs flatc")
        raise


APPENDED = {
    "a field": ("  vectors:[TestVector];\n", "  vectors:[TestVector];\n  later:string;\n"),
    "a deprecation": ("  engine:string;\n", "  engine:string (deprecated);\n"),
    "a member": ("Strings = 6", "Strings = 6, Bools = 7"),
    "a table": ("root_type Model", "table Later { text:string (required); }\nroot_type Model"),
}

CHANGED = {
    "a field is removed": ("  engine:string;\n", ""),
    "the last field is removed": ("  vectors:[TestVector];\n", ""),
    "a field comes before": ("  engine:string;\n", "  motor:string;\n  engine:string;\n"),
    "a field has another name": ("  engine:string;\n", "  motor:string;\n"),
    "another type": ("  version:uint = 1;\n", "  version:ulong = 1;\n"),
    "another default": ("  version:uint = 1;\n", "  version:uint = 2;\n"),
    "no longer required": ("  graph:Graph (required);\n", "  graph:Graph;\n"),
    "a new field is required": ("  vectors:[TestVector];\n", "  vectors:[TestVector];\n  later:string (required);\n"),
    "a struct grows": ("bytes:[ubyte:32];", "bytes:[ubyte:32];\n  later:ubyte;"),
    "another struct": ("bytes:[ubyte:32];", "bytes:[ubyte:64];"),
    "another code": ("  Int8 = 2,", "  Int8 = 40,"),
    "a code is free again": ("  UInt2 = 17,\n", ""),
}


@pytest.mark.parametrize("how", APPENDED)
def test_a_schema_may_grow(how: str, tmp_path: Path) -> None:
    _evolves(tmp_path, *APPENDED[how])


@pytest.mark.parametrize("how", CHANGED)
def test_a_schema_may_not_change(how: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"schemas don't conform|not as in qfb-1\.0|error"):
        _evolves(tmp_path, *CHANGED[how])
