"""Faults: killed writers, full disks, signals, and sources that are not regular files."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import qfmt
from qfmt.cli import main
from qfmt.errors import DestinationError, QfmtError
from qfmt.file import replacing
from qfmt.file.replacing import replacing_folder, temporary_folder
from qfmt.frontends.sources import sniff
from support.c_reader import build
from support.command_line import invoke, tiny_model
from support.paths import DIGITS, ROOT, SUITE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and special files are POSIX")

SIZE = 1 << 20

WRITER = """
import sys
from pathlib import Path
from qfmt.file import replacing
kind, where, nameless = sys.argv[1:]
if not int(nameless):
    replacing._nameless = lambda directory: None
if kind == "onnx":
    import numpy as np
    import onnx_ir as ir
    from qfmt.backends.onnx.write import write
if kind == "shards":
    import tempfile
    import numpy as np
    import qfmt
    def save(turn, where):
        arrays = {str(size): np.full(size, turn % 256, np.uint8) for size in SIZES}
        tensors = {name: qfmt.Tensor.constant(name, array) for name, array in arrays.items()}
        qfmt.Model(qfmt.Graph((), (), (), tensors)).save(where, shard_size=1 << 18)
    with tempfile.TemporaryDirectory() as elsewhere:
        save(0, elsewhere + "/m.qfb")  # imports what it needs
print("ready", flush=True)
for turn in range(1 << 30):
    part = bytes([turn % 256]) * (1 << 18)
    if kind == "folder":
        with replacing.replacing_folder(Path(where)) as folder:
            for name in "abcd":
                (folder / name).write_bytes(part)
    elif kind == "onnx":
        held = [ir.tensor(np.full(size, turn % 256, np.uint8), name=str(size)) for size in (1, 1 << 20)]
        values = [ir.Value(name=each.name, const_value=each) for each in held]
        write(ir.Model(ir.Graph([], [], nodes=[], initializers=values), ir_version=10), where, external=0)
    elif kind == "shards":
        save(turn, where)
    else:
        with replacing.replacing(where) as file:
            for _ in range(4):
                file.write(part)
""".replace("SIZES", "range((1 << 18) - 3, 1 << 18)")
"""Writes in an endless loop; in each iteration all data is another byte."""


def child(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=environment, **options)


def killed_writer(number: int, where: Path, kind: str, nameless: bool, seconds: float) -> None:
    """Start a writer, and end it by a signal while it writes."""
    with child("-c", WRITER, kind, where, int(nameless), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        time.sleep(seconds)
        running.send_signal(number)
    assert running.returncode == -number


def contents(where: Path, kind: str) -> list[bytes]:
    """The contents that one iteration wrote, in parts."""
    if not where.exists():
        return []
    if kind == "folder":
        return [(where / name).read_bytes() for name in "abcd"]
    if kind == "shards":
        assert qfmt.check(where) == []
        return [bytes(next(iter(tensor.stored()))[1].view()) for tensor in qfmt.load(where).tensors.values()]
    if kind == "onnx":
        import onnx

        return [tensor.raw_data for tensor in onnx.load(where).graph.initializer]
    return [where.read_bytes()]


LENGTHS = {
    "file": [SIZE],
    "folder": 4 * [SIZE // 4],
    "onnx": [1, SIZE],
    "shards": [SIZE // 4 - 3, SIZE // 4 - 2, SIZE // 4 - 1],
}
NAMES = {"onnx": 2, "shards": 4}


def kill_again_and_again(times: int, folder: Path, kind: str, nameless: bool, seed: int) -> None:
    dest, random_ = folder / "dest", random.Random(seed)
    most, longest = 0, 0.15 if kind == "shards" else 0.03
    for _ in range(times):
        killed_writer(signal.SIGKILL, dest, kind, nameless, random_.uniform(0, longest))
        found = contents(dest, kind)
        assert [len(each) for each in found] in ([], LENGTHS[kind])
        assert len(set(b"".join(found))) <= 1, "parts of two turns"
        most = max(most, len(list(folder.iterdir())))
    print(f"{kind}, {'nameless' if nameless else 'named'}: {times} kills, at most {most} names")
    own = NAMES.get(kind, 1)
    assert most <= 3 * own  # the file, an unfinished one, and what one before left: parts, a lock
    done = child("-c", WRITER.replace("range(1 << 30)", "range(1)"), kind, dest, int(nameless), stdout=subprocess.PIPE)
    done.communicate(timeout=60)
    assert done.returncode == 0
    assert len(list(folder.iterdir())) == own


FORMS = [("file", True), ("file", False), ("onnx", True), ("folder", True), ("shards", True), ("shards", False)]


@pytest.mark.parametrize(("kind", "nameless"), FORMS)
def test_a_killed_writer_leaves_the_old_or_the_new(kind: str, nameless: bool, tmp_path: Path) -> None:
    kill_again_and_again(5, tmp_path, kind, nameless, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "nameless"), FORMS)
def test_200_killed_writers(kind: str, nameless: bool, tmp_path: Path) -> None:
    kill_again_and_again(200, tmp_path, kind, nameless, seed=2)


@pytest.mark.skipif(sys.platform != "linux", reason="O_TMPFILE is of Linux")
def test_an_unfinished_file_has_no_name(tmp_path: Path) -> None:
    probe = replacing._nameless(tmp_path)
    if probe is None:
        pytest.skip("the file system has no files without names")
    probe.close()
    with replacing.replacing(str(tmp_path / "a")) as a:
        a.write(b"1")
        assert list(tmp_path.iterdir()) == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1"}


@pytest.fixture(autouse=True)
def signals_are_not_ignored() -> Iterator[None]:
    """Reset ignored signals, which child processes inherit; `nohup` and `&` of a script ignore signals."""
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, hangup)
    signal.signal(signal.SIGINT, interrupt)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a system without O_TMPFILE."""
    monkeypatch.setattr(replacing, "_nameless", lambda _directory: None)


@pytest.mark.usefixtures("named")
def test_files_of_a_running_writer_are_not_removed(tmp_path: Path) -> None:
    abandoned, folder = tmp_path / f".qfmt-{'0' * 16}.tmp", tmp_path / f".qfmt-{'1' * 16}.tmp"
    abandoned.write_bytes(b"left")
    folder.mkdir()
    (folder / "file").write_bytes(b"left")
    os.mkfifo(tmp_path / f".qfmt-{'2' * 16}.tmp")  # not one of ours; it must not block
    (tmp_path / "target").write_bytes(b"kept")
    (tmp_path / f".qfmt-{'3' * 16}.tmp").symlink_to("target")
    (tmp_path / ".qfmt-notes.tmp").write_bytes(b"kept")
    with replacing.replacing(str(tmp_path / "a")) as a, replacing_folder(tmp_path / "folder") as made:
        a.write(b"1")
        with replacing.replacing(str(tmp_path / "b")) as b:
            b.write(b"2")
        (made / "c").write_bytes(b"3")
    assert not abandoned.exists()
    assert not folder.exists()
    assert [(tmp_path / name).read_bytes() for name in ("a", "b", "folder/c", "target", ".qfmt-notes.tmp")] == [
        b"1", b"2", b"3", b"kept", b"kept",
    ]  # fmt: skip


def test_a_folder_that_is_nested_too_deeply_stays(tmp_path: Path) -> None:
    """It is not one of ours; Python 3.11 removes folders by recursion."""
    deep = tmp_path / f".qfmt-{'0' * 16}.tmp"
    deep.mkdir()
    here = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    with replacing.replacing(str(tmp_path / "a")) as a:
        a.write(b"1")
    assert (tmp_path / "a").read_bytes() == b"1"
    subprocess.run(["rm", "-r", str(deep)], check=False)


def test_a_folder_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold thousands of models."""
    searched = []
    monkeypatch.setattr(Path, "glob", lambda path, pattern: searched.append(path) or [])
    for name in "ab":
        with replacing.replacing(str(tmp_path / name)):
            pass
    assert searched == [tmp_path]


@pytest.mark.usefixtures("named")
def test_a_failure_removes_a_named_file(tmp_path: Path) -> None:
    with pytest.raises(QfmtError, match="no"), replacing.replacing(str(tmp_path / "a")):
        raise QfmtError("no")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole(exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:
        monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    for turn in (b"1", b"2"):
        with replacing_folder(tmp_path / "dest") as made:
            (made / turn.decode()).write_bytes(turn)
        assert [(path.name, path.read_bytes()) for path in (tmp_path / "dest").iterdir()] == [(turn.decode(), turn)]
    with pytest.raises(QfmtError), replacing_folder(tmp_path / "dest") as made:
        (made / "3").write_bytes(b"3")
        raise QfmtError("no")
    assert [path.name for path in (tmp_path / "dest").iterdir()] == ["2"]
    assert [path.name for path in tmp_path.iterdir()] == ["dest"]


# Signals

SLOW = """
import atexit, os, sys, time, signal
if sys.argv.pop(1) == "named":
    from qfmt.file import replacing
    replacing._nameless = lambda directory: None
import qfmt.file.writer as writer
pad = writer._pad
def slow(file, multiple):
    pad(file, multiple)
    atexit.register(os.write, 2, b"what a library did not finish")
    print("writing", flush=True)
    for _ in range(6000):  # a signal just before a long sleep would not end it
        time.sleep(0.01)
writer._pad = slow
from qfmt.__main__ import run
sys.argv[0] = "qfmt"
run()
"""


@pytest.mark.parametrize("way", ["nameless", "named"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_ends_a_conversion_without_a_trace(name: str, way: str, tmp_path: Path) -> None:
    number = getattr(signal, name)
    (tmp_path / "dest.qfb").write_bytes(b"before")
    arguments = "-c", SLOW, way, "convert", DIGITS, tmp_path / "dest.qfb"
    with child(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"writing\n"
        running.send_signal(number)
        running.send_signal(number)  # as `timeout` does
        _, errors = running.communicate(timeout=30)
    told = f"qfmt: interrupted; {tmp_path / 'dest.qfb'} was not changed\n"
    assert (running.returncode, errors.decode()) == (128 + number, told)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("dest.qfb", b"before")]


LAST = """
import os, signal, sys
class Last:  # is collected after Python has forgotten the handlers
    def __del__(self, kill=os.kill, number=getattr(signal, sys.argv.pop(1))):
        kill(os.getpid(), number)
last = Last()
from qfmt.__main__ import run
run()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_in_the_last_moment_does_not_change_the_status(name: str) -> None:
    assert child("-c", LAST, name, "--version", stdout=subprocess.DEVNULL).wait(timeout=60) == 0


def test_a_signal_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    arguments = "-c", SLOW.replace("6000", "20"), "named", "convert", DIGITS, tmp_path / "dest.qfb"
    with child(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=ignore) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"writing\n"
        running.send_signal(signal.SIGHUP)
        running.communicate(timeout=60)
    assert running.returncode == 0
    assert (tmp_path / "dest.qfb").exists()


def test_the_library_installs_no_handlers() -> None:
    code = (
        "import signal; before = [signal.getsignal(each) for each in range(1, 32)]\n"
        "import qfmt, qfmt.cli, qfmt.file.replacing, qfmt.__main__\n"
        "assert before == [signal.getsignal(each) for each in range(1, 32)]"
    )
    assert child("-c", code).wait(timeout=60) == 0


LOADING = """
import builtins, signal, sys
from importlib.machinery import ExtensionFileLoader
load = ExtensionFileLoader.exec_module.__code__
importing = builtins.__import__
waiting = True
def interrupted(*arguments, **options):
    global waiting
    frame = sys._getframe()
    while frame and waiting:
        if frame.f_code is load:
            waiting = False
            signal.raise_signal(signal.SIGTERM)
            print("loading goes on", flush=True)
        frame = frame.f_back
    return importing(*arguments, **options)
builtins.__import__ = interrupted
from qfmt.__main__ import run
run()
"""
"""An extension module, NumPy's, imports others while it is loaded."""


def test_a_signal_waits_until_an_extension_module_is_loaded() -> None:
    """C++ that is initialized may abort at an exception."""
    with child("-c", LOADING, "verify", DIGITS, DIGITS, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        printed, errors = running.communicate(timeout=60)
    assert printed == b"loading goes on\n"
    assert (running.returncode, errors) == (128 + signal.SIGTERM, b"qfmt: interrupted\n")


CONVERTED = """
import os, sys
import qfmt.frontends
def interrupted(*arguments, **options):
    try:
        os.kill(os.getpid(), 15)
    except SystemExit:
        raise TypeError("expected a message argument") from None
qfmt.frontends.convert = interrupted
from qfmt.__main__ import run
run()
"""


def test_an_error_that_a_signal_became_is_not_reported(tmp_path: Path) -> None:
    """CPython does that in an import."""
    dest = tmp_path / "m.qfb"
    with child("-c", CONVERTED, "convert", DIGITS, dest, stderr=subprocess.PIPE) as running:
        _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors.decode()) == (143, f"qfmt: interrupted; {dest} was not written\n")


IMPORTING = """
import os, sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), 2)  # SIGINT; to import signal is one of the cases
sys.meta_path.insert(0, Interrupted())
from qfmt.__main__ import run
run()
"""


@pytest.mark.parametrize("module", ["signal", "click", "qfmt.cli", "qfmt.cli.output"])
def test_an_interruption_of_the_start_is_one_line(module: str) -> None:
    with child("-c", IMPORTING, module, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        output = running.communicate(timeout=60)
    assert (running.returncode, output) == (130, (b"", b"qfmt: interrupted\n"))


# Destinations


def command(*arguments: object) -> tuple[int, str]:
    """Exit status, and the error line of a command."""
    result = CliRunner().invoke(main, [*map(str, arguments)], prog_name="qfmt")
    if result.exit_code == 2:
        assert result.stderr.startswith("qfmt: error: ")
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    return result.exit_code, result.stderr


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An integer-only network, and a file with its input."""
    path = tmp_path_factory.mktemp("integers") / "integers.qfb"
    assert command("convert", DIGITS, path, "--integer-only", "--input-shape", "x=N,1,8,8")[0] == 0
    np.save(path.with_name("x.npy"), np.zeros((1, 1, 8, 8), np.float32))
    return path


def writing(form: str, source: Path, dest: Path) -> list[object]:
    """The arguments of a command that writes this format."""
    if form == "npz":
        return ["run", DIGITS, "--input", source.with_name("x.npy"), "--output", dest]
    return ["convert", source, dest]


WRITTEN = ["qfb", "onnx", "npz", "c"]


@pytest.mark.parametrize("form", WRITTEN)
def test_a_missing_folder_is_an_error(form: str, integers: Path, tmp_path: Path) -> None:
    suffix = "" if form == "c" else f".{form}"
    status, said = command(*writing(form, integers, tmp_path / "missing" / f"dest{suffix}"))
    assert status == 2
    assert "no directory" in said or "does not exist" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["qfb", "onnx", "npz"])
def test_a_folder_instead_of_a_file_is_an_error(form: str, integers: Path, tmp_path: Path) -> None:
    (tmp_path / f"dest.{form}").mkdir()
    status, said = command(*writing(form, integers, tmp_path / f"dest.{form}"))
    assert status == 2
    assert "it is a directory" in said
    assert list(tmp_path.rglob("*")) == [tmp_path / f"dest.{form}"]


def test_a_destination_that_is_the_source_is_an_error(integers: Path, tmp_path: Path) -> None:
    source, link = tmp_path / "m.qfb", tmp_path / "link.qfb"
    source.write_bytes(integers.read_bytes())
    link.symlink_to("m.qfb")
    for dest in source, link:
        status, said = command("convert", source, dest)
        assert status == 2
        assert "is the source itself" in said
    assert source.read_bytes() == integers.read_bytes()


def test_a_source_in_the_folder_of_a_program_is_not_removed(integers: Path, tmp_path: Path) -> None:
    """It may have the name of what a compiler writes, which is replaced."""
    assert command("convert", integers, tmp_path / "program")[0] == 0
    source = tmp_path / "program" / "main.o"
    source.write_bytes(integers.read_bytes())
    status, said = command("convert", source, tmp_path / "program")
    assert (status, source.read_bytes()) == (2, integers.read_bytes()) and "contains the source" in said


LIMITED = """
import resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from qfmt.__main__ import run
run()
"""


@pytest.mark.parametrize("form", WRITTEN)
def test_a_file_that_grows_too_large_leaves_what_was_there(form: str, integers: Path, tmp_path: Path) -> None:
    dest = tmp_path / ("dest" if form == "c" else f"dest.{form}")
    for limit, status in ((1 << 30, 0), (64, 2)):
        arguments = "-c", LIMITED, limit, *writing(form, integers, dest)
        with child(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            _, errors = running.communicate(timeout=60)
        assert running.returncode == status, errors
        if status == 0:
            before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            assert before
    assert errors.startswith(b"qfmt: error: ")
    assert (errors.count(b"\n"), b"File too large" in errors) == (1, True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte; skipped if it cannot be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(options, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("no file system may be mounted")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    dest = small_disk / "dest.qfb"
    small = qfmt.convert({"a": torch_zeros(100)})
    small.save(dest)
    before = dest.read_bytes()
    with pytest.raises(DestinationError, match="No space left on device"):
        qfmt.convert({"a": torch_zeros(1 << 20)}).save(dest)
    with pytest.raises(DestinationError, match="No space left on device"):
        qfmt.convert({"a": torch_zeros(100), "b": torch_zeros(1 << 20)}).save(dest, shard_size=1000)
    with pytest.raises(DestinationError, match="No space left on device"), replacing_folder(small_disk / "c") as made:
        (made / "a").write_bytes(bytes(1 << 21))
    assert [(path.name, path.read_bytes()) for path in small_disk.iterdir()] == [("dest.qfb", before)]


def torch_zeros(count: int) -> Any:
    import torch

    return torch.zeros(count)


# Sources that are not regular files


@pytest.fixture
def special(tmp_path: Path) -> Iterator[list[tuple[Path, str]]]:
    """Files that must not be opened, and their names in messages."""
    fifo, path = tmp_path / "fifo.pt", tmp_path / "socket.pt"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        yield [
            (fifo, "a FIFO"), (path, "a socket"), (tmp_path, "a directory"), (Path("/dev/zero"), "a character device")
        ]  # fmt: skip


COMMANDS: list[list[object]] = [
    ["convert", "SOURCE", "dest.qfb"],
    ["inspect", "SOURCE"],
    ["check", "SOURCE"],
    ["verify", "SOURCE", DIGITS],
    ["verify", DIGITS, "SOURCE"],
    ["diff", "SOURCE", DIGITS],
    ["run", "SOURCE"],
    ["run", DIGITS, "--input", "SOURCE"],
]

ARCHIVES = "neither a file nor a folder that `qfmt convert --out` wrote"
FOLDERS = {"convert": "a folder; to convert all", "inspect": ARCHIVES, "check": ARCHIVES}
"""What commands that take folders say of others."""


def test_only_regular_files_are_opened(
    special: list[tuple[Path, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, kind in special:
        for arguments in COMMANDS:
            status, said = command(*(path if each == "SOURCE" else each for each in arguments))
            assert status == 2
            what = FOLDERS.get(arguments[0]) if path.is_dir() else None
            assert f"{path} is {what or f'{kind}, not a regular file'}" in said
        for read in (qfmt.load, qfmt.convert, qfmt.check, sniff):
            with pytest.raises(QfmtError, match=f"is {kind}, not a regular file"):
                found = read(path)
                raise QfmtError(str(next(iter(found))))  # qfmt.check lists what it finds
    assert not (tmp_path / "dest.qfb").exists()


def test_standard_input_is_not_a_source() -> None:
    for arguments in COMMANDS:
        status, said = command(*("-" if each == "SOURCE" else each for each in arguments))
        assert status == 2
        assert "standard input is not supported" in said


def test_the_c_reader_does_not_wait_for_a_fifo(special: list[tuple[Path, str]], integers: Path) -> None:
    dump, interpreter = build("qfb_dump.c"), build("qfb_run.c")
    for path, _kind in special:
        for arguments in ([dump, path], [interpreter, path], [interpreter, integers, path]):
            done = subprocess.run(arguments, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
            assert (done.returncode, done.stdout) == (2, b"")
            assert b"regular file" in done.stderr or b"No such device" in done.stderr  # a socket cannot be opened
            assert done.stderr.count(b"\n") == 1


# Messages


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\x1c\0\0\0TFL3", "is a TensorFlow Lite model, which cannot be converted; convert it to ONNX first"),
        (b"EDL2", "is an ESP-DL model (.espdl), which cannot be converted; convert the ONNX or PyTorch model"),
        (b"\x93NUMPY\x01\0", "is NumPy arrays (.npy or .npz), which cannot be converted; use them as inputs"),
        (b"words", "is a file of unknown format, which cannot be converted; qfmt reads TorchScript,"),
    ],
)
def test_unsupported_files_have_a_hint(head: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(head + bytes(100))
    for arguments in (["convert", tmp_path / "model", tmp_path / "m.qfb"], ["inspect", tmp_path / "model"]):
        status, line = command(*arguments)
        assert (status, said in line) == (2, True), line
        assert "TorchScript archive" not in line


def test_a_safetensors_file_that_begins_like_another_format(tmp_path: Path) -> None:
    """Its first bytes are the length of its header."""
    size = int.from_bytes(b"EDL", "little")
    path = tmp_path / "m.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + b"{}".ljust(size))
    assert command("inspect", path)[0] == 0


@pytest.mark.parametrize("package", ["numpy", "ml_dtypes", "onnx", "onnx_ir"])
def test_a_missing_package_is_not_a_bug_of_qfmt(package: str, integers: Path) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\nfrom qfmt.__main__ import run\nrun()"
    arguments = "convert", integers, integers.with_name("missing.onnx")
    with child("-c", code, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        errors = running.communicate(timeout=60)[1].decode()
    assert running.returncode == 2
    assert errors.count("\n") == 1
    assert "pip install" in errors
    assert package.replace("_", "-") in errors
    assert "fault" not in errors


def test_a_float_source_causes_a_note(tmp_path: Path) -> None:
    import torch

    torch.save({"a.weight": torch.zeros(3)}, tmp_path / "floats.pt")
    floats = CliRunner().invoke(main, ["convert", str(tmp_path / "floats.pt"), str(tmp_path / "m.qfb")])
    assert "note   no quantization was found" in floats.stderr
    quantized = CliRunner().invoke(main, ["convert", str(DIGITS), str(tmp_path / "m.qfb")])
    assert "nothing is quantized" not in quantized.stderr
    assert (floats.exit_code, quantized.exit_code) == (0, 0)


def test_computed_integers_do_not_count_as_floats(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    made = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero_point"])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    graph = helper.make_graph([made], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.UINT8, [4])])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    result = CliRunner().invoke(main, ["convert", str(tmp_path / "m.onnx"), str(tmp_path / "m.qfb")])
    assert result.exit_code == 0
    assert "nothing is quantized" not in result.stderr


def test_one_violation_is_singular(tmp_path: Path) -> None:
    data = bytearray((SUITE / "integer" / "clip-range.qfb").read_bytes())
    data[-1] ^= 1
    (tmp_path / "bad.qfb").write_bytes(data)
    found = CliRunner().invoke(main, ["check", str(tmp_path / "bad.qfb")])
    assert found.stderr.rstrip().endswith(": 1 violation")


@pytest.mark.parametrize("words", ["inspect FILE", "check FILE", "run MODEL --input FILE", "diff FILE MODEL"])
def test_a_file_without_a_size_is_not_read(words: str, tmp_path: Path) -> None:
    """Some of these block their reader, as /proc/kmsg."""
    file, model = Path("/proc/cpuinfo"), tmp_path / "m.qfb"
    if not file.exists():
        pytest.skip("needs /proc, as on Linux")
    tiny_model().save(model)
    arguments = [{"FILE": file, "MODEL": model}.get(word, word) for word in words.split()]
    assert "is an empty file" in invoke(*arguments).output


def test_a_temporary_file_is_not_named() -> None:
    """The user did not name it, and it is there no more."""
    told = "^a temporary file cannot be written: full; TMPDIR names"
    with pytest.raises(DestinationError, match=told), temporary_folder() as folder:
        raise DestinationError("cannot be written: full", where=str(folder / "m.qfb"))
