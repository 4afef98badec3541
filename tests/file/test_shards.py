"""Files whose data is in others beside them: written, read, joined, replaced; and what is wrong with them."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EACCES
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import qfmt
from qfmt import Graph, Model, Quantization, Tensor, check, load, save
from qfmt.cli import main
from qfmt.errors import DestinationError, FormatError, QfmtError
from qfmt.file import replacing, sharding
from qfmt.file.reader import Container
from qfmt.file.replacing import alone
from qfmt.file.shards import Shard, Shards
from support.paths import DIGITS, ROOT, SUITE
from support.processes import end_of_fork

resource: ModuleType | None
try:
    import fcntl
    import resource
except ImportError:  # Windows
    resource = None


OPEN_FILES = Path("/proc/self/fd")


def model(last: int = 7) -> Model:
    """Arrays of many sizes, an empty one, two equal ones, scales in a buffer, a test vector."""
    random = np.random.default_rng(last)
    arrays = {f"t{size:04}": random.integers(0, 256, size, np.uint8) for size in (0, 1, 63, 64, 65, 1000, 1001)}
    tensors = {name: Tensor.constant(name, array) for name, array in arrays.items()}
    tensors["t1000.again"] = Tensor.constant("t1000.again", arrays["t1000"].reshape(10, 100))
    rows = Quantization.of(np.linspace(0.1, 1, 600), (0,), -127, 127, 0, "float64")
    tensors["w"] = Tensor.constant("w", random.integers(-127, 128, (600, 2)).astype(np.int8), rows)
    tensors["x"] = Tensor("x", "uint8", (3,))
    made = Model(Graph(("x",), ("x",), (), tensors))
    return made.with_vectors({"x": np.array([1, 2, last], np.uint8)})


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.qfs"))


@pytest.mark.parametrize("size", [1, 64, 65, 500, 1024, 2000, 5000, 1 << 30])
def test_shards_are_the_data_segment(size: int, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    save(model(), tmp_path / "whole" / "m.qfb")
    save(model(), tmp_path / "m.qfb", shard_size=size)
    whole = Container(tmp_path / "whole" / "m.qfb", verify=True)
    segment = bytes(whole.data[0 : len(whole.data)])
    assert len(segment) > 7000
    found = shards_of(tmp_path)
    assert bool(found) == (size < len(segment))
    assert not found or b"".join(path.read_bytes() for path in found) == segment
    starts = {buffer["offset"] for buffer in whole.buffers if buffer["size"]}
    cuts = np.cumsum([path.stat().st_size for path in found])[:-1].tolist()
    assert set(cuts) <= starts
    for path, begin in zip(found, [0, *cuts], strict=True) if found else ():
        inside = [start for start in starts if begin <= start < begin + path.stat().st_size]
        assert path.stat().st_size <= size or len(inside) == 1
    assert check(tmp_path / "m.qfb") == []
    read, original = load(tmp_path / "m.qfb", verify="all"), load(tmp_path / "whole" / "m.qfb")
    assert read == original == model()
    assert read.content_id() == original.content_id()
    read.save(tmp_path / "m.qfb")  # joined, over itself
    assert (tmp_path / "m.qfb").read_bytes() == (tmp_path / "whole" / "m.qfb").read_bytes()
    assert shards_of(tmp_path) == []
    assert read == original  # the shards that are gone are still mapped


LIMITED = pytest.mark.skipif(resource is None, reason="needs limits of processes")


def many_shards(file: Path) -> Model:
    """A model of 300 shards, and its file."""
    arrays = {f"t{index:03}": np.full(64, index, np.int32) for index in range(300)}
    made = Model(Graph((), (), (), {name: Tensor.constant(name, array) for name, array in arrays.items()}))
    save(made, file, shard_size=256)
    assert len(shards_of(file.parent)) == 300
    return made


def open_files() -> int:
    return len([*Path("/dev/fd").iterdir()])


@contextmanager
def few_open_files(more: int) -> Iterator[None]:
    """Only so many more files may be open, and none is closed by chance."""
    assert resource is not None
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + more, hard))
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@LIMITED
def test_more_shards_than_a_process_may_open(tmp_path: Path) -> None:
    many_shards(tmp_path / "m.qfb")
    with few_open_files(160):
        before = open_files()
        assert check(tmp_path / "m.qfb") == []
        assert open_files() == before
        read = load(tmp_path / "m.qfb", verify="all")
        assert [int(tensor.array[0]) for tensor in read.tensors.values()] == [*range(300)]


@LIMITED
def test_too_many_open_files_are_no_damage(tmp_path: Path) -> None:
    made = many_shards(tmp_path / "m.qfb")
    limit = r"Too many open files; raise the limit of open files \(`ulimit -n`\)"
    with few_open_files(60), ExitStack() as held:
        read = load(tmp_path / "m.qfb")
        assert len(read.tensors) == 300
        with suppress(OSError):
            while True:
                held.enter_context((tmp_path / "m.qfb").open("rb"))
        with pytest.raises(QfmtError, match=rf"m\.00300-of-00300\..*\.qfs': cannot be read: {limit}") as error:
            _ = read.tensors["t299"].array
        assert not isinstance(error.value, FormatError)
        with pytest.raises(QfmtError, match=limit):
            check(tmp_path / "m.qfb")
        with pytest.raises(DestinationError, match=limit):
            save(made, tmp_path / "m2.qfb", shard_size=256)
    assert check(tmp_path / "m.qfb") == [] and not [*tmp_path.glob("m2.*")]


def test_names_and_bytes_depend_on_the_model_alone(tmp_path: Path) -> None:
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        save(model(), folder / "m.qfb", shard_size=2000)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]
    assert len(contents[0]) > 3


def test_the_command_splits_and_joins(tmp_path: Path) -> None:
    def convert(*arguments: object) -> str:
        result = CliRunner().invoke(main, ["convert", *map(str, arguments)])
        told.append(result.stderr)
        return "" if result.exit_code == 0 else result.stderr

    told: list[str] = []
    assert convert(DIGITS, tmp_path / "whole.qfb") == ""
    assert convert(DIGITS, tmp_path / "m.qfb", "--shard-size", "1K") == ""
    count = len(shards_of(tmp_path))
    assert count > 2 and f" {count} shards of " in told[-1]
    assert convert(tmp_path / "m.qfb", tmp_path / "m2.qfb", "--shard-size", "1500") == ""
    assert count < len(shards_of(tmp_path))
    assert convert(tmp_path / "m2.qfb", tmp_path / "joined.qfb") == ""
    assert (tmp_path / "joined.qfb").read_bytes() == (tmp_path / "whole.qfb").read_bytes()
    for name in ("m.qfb", "m2.qfb"):
        for command in ("check", "inspect"):
            assert CliRunner().invoke(main, [command, str(tmp_path / name)]).exit_code == 0
        assert CliRunner().invoke(main, ["verify", str(DIGITS), str(tmp_path / name)]).exit_code == 0
    assert "--shard-size is for .qfb" in convert(DIGITS, tmp_path / "m.onnx", "--shard-size", "1K")
    assert "'0' is not a number of bytes above 0" in convert(DIGITS, tmp_path / "m.qfb", "--shard-size", "0")
    with pytest.raises(QfmtError, match="shard_size is 0; it is a number of bytes, at least 1"):
        qfmt.save(qfmt.load(tmp_path / "whole.qfb"), tmp_path / "m.qfb", shard_size=0)


# Reading


def test_a_link_to_the_file_leads_to_its_shards(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    save(model(), tmp_path / "folder" / "m.qfb", shard_size=2000)
    (tmp_path / "link.qfb").symlink_to(Path("folder") / "m.qfb")
    assert load(tmp_path / "link.qfb") == model()


def test_what_needs_no_array_needs_no_shard(tmp_path: Path) -> None:
    save(model(), tmp_path / "m.qfb", shard_size=2000)
    first, *others = shards_of(tmp_path)
    for path in others:
        path.unlink()
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "m.qfb")])
    assert (result.exit_code, "t1000.again" in result.output) == (0, True)
    read = load(tmp_path / "m.qfb")
    assert read.tensors["w"].shape == (600, 2)
    assert read.tensors["t0065"].array.tolist() == model().tensors["t0065"].array.tolist()
    with pytest.raises(FormatError) as caught:
        _ = read.tensors["w"].array
    assert str(caught.value).startswith(f"{tmp_path / 'm.qfb'}: shard '{others[1].name}': is missing; put it into")
    assert first.exists()
    found = [str(broken) for broken in check(tmp_path / "m.qfb")]
    assert found == [f"F15 shard '{path.name}': is missing" for path in others]


@pytest.mark.parametrize("name", ["multiply-shift-channels-1.qfb", "slice-backwards.qfb"])
def test_rules_that_read_constants_of_a_lost_shard(name: str, tmp_path: Path) -> None:
    """The shard is the only violation. Rules read the multipliers of a lowered network, and the bounds of a Slice."""
    with load(SUITE / "integer" / name) as opened:
        opened.save(tmp_path / "m.qfb", shard_size=64)
    for shard in shards_of(tmp_path):
        data = shard.read_bytes()
        shard.unlink()
        assert [(broken.rule, broken.what) for broken in check(tmp_path / "m.qfb")] == [("F15", "is missing")]
        shard.write_bytes(data)
    assert check(tmp_path / "m.qfb") == []


@pytest.mark.skipif(sys.platform == "win32", reason="links and FIFOs are POSIX")
def test_only_regular_files_beside_the_file_are_shards(tmp_path: Path) -> None:
    save(model(), tmp_path / "m.qfb", shard_size=2000)
    shard = shards_of(tmp_path)[0]
    data = shard.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(data)

    def said() -> str:
        (broken,) = check(tmp_path / "m.qfb")
        with pytest.raises(FormatError, match=f"shard {shard.name!r}: (is|has) "):
            _ = load(tmp_path / "m.qfb").tensors["t0001"].array
        return f"{broken.rule} {broken.what}"

    for make, expected in (
        (partial(shard.symlink_to, elsewhere), "F15 is a link"),
        (partial(os.mkfifo, shard), "F15 is not a regular file"),
        (partial(shard.write_bytes, data + b"\0"), f"F15 has {len(data) + 1} bytes instead of {len(data)}"),
    ):
        shard.unlink()
        make()
        assert said() == expected
    shard.unlink()
    shard.mkdir()
    assert said() == "F15 is not a regular file"
    shard.rmdir()
    os.link(elsewhere, shard)
    assert check(tmp_path / "m.qfb") == []


def test_a_shard_that_cannot_be_read_is_not_called_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(model(), tmp_path / "m.qfb", shard_size=2000)

    def refused(path: Path) -> int:
        raise PermissionError(EACCES, "Permission denied", str(path))

    monkeypatch.setattr("qfmt.file.shards.descriptor_of", refused)
    done = CliRunner().invoke(main, ["check", str(tmp_path / "m.qfb")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"shard {shards_of(tmp_path)[0].name!r}: cannot be read: Permission denied" in done.stderr


def test_a_damaged_array_is_noticed_where_it_is_used(tmp_path: Path) -> None:
    save(model(), tmp_path / "m.qfb", shard_size=2000)
    path = shards_of(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    read = load(tmp_path / "m.qfb")
    assert read.tensors["w"] == model().tensors["w"]
    with pytest.raises(FormatError, match="tensor 't0001': the data is damaged"):
        _ = read.tensors["t0001"].array
    assert {broken.rule for broken in check(tmp_path / "m.qfb")} == {"F9", "F15"}


# Replacing


def test_a_new_file_replaces_the_shards_of_the_old_one(tmp_path: Path) -> None:
    others = ["m.00001-of-00002.0123456789abcdef.qfs.txt", "n.00001-of-00002.0123456789abcdef.qfs", "m.qfs"]
    for name in others:
        (tmp_path / name).write_bytes(b"kept")
    left = tmp_path / "m.00001-of-00002.0123456789abcdef.qfs"
    left.write_bytes(b"what a killed writer left")
    save(model(1), tmp_path / "m.qfb", shard_size=2000)
    first = load(tmp_path / "m.qfb")
    save(model(2), tmp_path / "m.qfb", shard_size=1000)
    assert load(tmp_path / "m.qfb") == model(2)
    assert first == model(1)  # opened before
    data = Container(tmp_path / "m.qfb", verify=True).data
    assert isinstance(data, Shards)
    own = [shard.name for shard in data.shards]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["m.qfb", *others, *own])
    save(model(3), tmp_path / "m.qfb")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["m.qfb", *others])


def test_a_file_under_another_name_keeps_its_shards(tmp_path: Path) -> None:
    save(model(1), tmp_path / "m.qfb", shard_size=2000)
    (tmp_path / "m.qfb").rename(tmp_path / "old.qfb")
    save(model(2), tmp_path / "m.qfb", shard_size=2000)
    save(model(3), tmp_path / "m.qfb", shard_size=2000)
    assert load(tmp_path / "old.qfb") == model(1)
    assert check(tmp_path / "m.qfb") == check(tmp_path / "old.qfb") == []


@pytest.mark.parametrize(
    ("before", "after", "target"),
    [
        ("m.qfb", "m.qfb.bak", "m.qfb"),
        ("m.v1", "m.v1", "m.v2"),
        ("m.int8.qfb", "m.int8.qfb", "m.qfb"),
    ],
)
def test_shards_of_any_other_file_are_kept(before: str, after: str, target: str, tmp_path: Path) -> None:
    save(model(1), tmp_path / before, shard_size=2000)
    (tmp_path / before).rename(tmp_path / after)
    save(model(2), tmp_path / target)
    assert load(tmp_path / after, verify="all") == model(1)


def test_shards_of_a_file_that_cannot_be_read_are_kept(tmp_path: Path) -> None:
    save(model(1), tmp_path / "m.qfb", shard_size=2000)
    newer = (tmp_path / "m.qfb").rename(tmp_path / "newer.qfb")
    content = newer.read_bytes()
    newer.write_bytes(content[:7] + b"2" + content[8:])
    save(model(2), tmp_path / "m.qfb")
    newer.write_bytes(content)
    assert load(newer, verify="all") == model(1)


def test_a_shard_is_kept_until_its_file_is_complete(tmp_path: Path) -> None:
    """The shards of a file get their names before it gets its own."""
    left = tmp_path / "m.int8.00001-of-00002.0123456789abcdef.qfs"
    left.write_bytes(b"of a file that another process writes now")
    save(model(1), tmp_path / "m.qfb", shard_size=2000)
    assert left.exists()


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Root may write everywhere."""
    if not hasattr(os, "geteuid"):
        pytest.skip("modes are POSIX")
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield
    os.seteuid(was)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_parts_of_a_private_file_are_private(tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    model = qfmt.convert(DIGITS)
    model.save(path)
    path.chmod(0o600)
    for size in (4096, 2048):
        model.save(path, shard_size=size)
        assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    assert qfmt.check(path) == []


def test_a_folder_without_permission_keeps_what_it_has(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    save(model(1), tmp_path / "m.qfb", shard_size=2000)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o555)
    request.getfixturevalue("unprivileged")
    with pytest.raises(DestinationError, match="cannot be written"):
        save(model(2), tmp_path / "m.qfb", shard_size=2000)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(resource is None, reason="limits are POSIX")
def test_a_shard_that_grows_too_large_leaves_what_was_there(tmp_path: Path) -> None:
    assert resource is not None
    save(model(1), tmp_path / "m.qfb", shard_size=2000)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100, 4000):  # of a shard; of the file
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(DestinationError, match="File too large"):
                save(model(2), tmp_path / "m.qfb", shard_size=2000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names_that_shards_cannot_have(tmp_path: Path) -> None:
    for name in ("a:b.qfb", "a\\b.qfb", "a\nb.qfb", "a\udcff.qfb"):
        with pytest.raises(DestinationError, match="a shard cannot have the name"):
            save(model(), tmp_path / name, shard_size=2000)
    with pytest.raises(DestinationError, match="name"):
        save(model(), tmp_path / f"{'n' * 240}.qfb", shard_size=2000)
    assert list(tmp_path.iterdir()) == []
    for size in (0, -1):
        with pytest.raises(QfmtError, match="at least 1"):
            save(model(), tmp_path / "m.qfb", shard_size=size)


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from file.test_shards import model, save
size = int(sys.argv[3])
for turn in range(60):
    save(model(int(sys.argv[4]) + turn), sys.argv[2], shard_size=size or None)
"""


def test_other_files_are_read_before_the_new_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in a folder of an attacker may take longer than is allowed, which is an error: nothing is written then."""
    path, other = tmp_path / "m.qfb", tmp_path / "other.qfb"
    save(model(0), path, shard_size=2000)
    (tmp_path / "link.qfb").symlink_to(path.name)
    save(model(1), other)
    before, read, stated = path.read_bytes(), list[tuple[Path, bool]](), sharding.stated

    def told(each: Path) -> Sequence[Shard]:
        read.append((each, path.read_bytes() == before))
        return stated(each)

    monkeypatch.setattr(sharding, "stated", told)
    save(model(2), path, shard_size=2000)
    assert [was_before for each, was_before in read if each == other] == [True]
    data = Container(path, verify=True).data
    assert isinstance(data, Shards)
    assert [each.name for each in shards_of(tmp_path)] == [shard.name for shard in data.shards]


@pytest.mark.skipif(sys.platform == "win32", reason="without locks, writers do not take turns")
@pytest.mark.parametrize("sizes", [(0, 0), (2000, 2000), (2000, 0), (2000, 700)])
def test_two_writers_at_once(sizes: tuple[int, int], tmp_path: Path) -> None:
    """The file that was there, or that of a writer, whole; at the end no other files."""
    path, tests = tmp_path / "m.qfb", Path(__file__).resolve().parents[1]
    save(model(0), path, shard_size=sizes[0] or None)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    arguments = [(str(size), str(100 * turn)) for turn, size in enumerate(sizes)]
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tests), str(path), *each], env=environment)
        for each in arguments
    ]
    last = [model(59), model(159)]
    assert [each.wait(timeout=120) for each in running] == [0, 0]
    assert check(path) == []
    assert load(path) in last
    data = Container(path, verify=True).data
    own = [shard.name for shard in data.shards] if isinstance(data, Shards) else []
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["m.qfb", *own])


@pytest.mark.skipif(sys.platform == "win32", reason="without locks, writers do not take turns")
def test_a_signal_handler_does_not_wait_for_what_it_interrupts(tmp_path: Path) -> None:
    with alone(tmp_path / "m.qfb"):
        with pytest.raises(QfmtError, match=r"m\.qfb: this cannot begin in the middle of the same work"):
            model().save(tmp_path / "m.qfb", shard_size=2000)
        model().save(tmp_path / "other.qfb", shard_size=2000)
    model().save(tmp_path / "m.qfb", shard_size=2000)
    assert load(tmp_path / "m.qfb") == load(tmp_path / "other.qfb") == model()
    assert {each.suffix for each in tmp_path.iterdir()} == {".qfb", ".qfs"}


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="the system does not list open files")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_leaves_no_lock(tmp_path: Path) -> None:
    """At any line: Python closes a file that nobody has any more. Another save would wait for ever."""
    count, left = 0, 0

    def interrupted(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename == replacing.__file__:
            left -= event == "line"
            if not left:
                raise KeyboardInterrupt
        return interrupted

    while not left:
        count += 1
        left, path = count, tmp_path / "m.qfb"
        sys.settrace(interrupted)
        try:
            with suppress(KeyboardInterrupt), alone(path):
                pass
        finally:
            sys.settrace(None)
        gc.collect(0)
        assert [link for link in map(os.path.realpath, OPEN_FILES.iterdir()) if replacing.TEMPORARY in link] == []
        with alone(path):
            pass
    print(f"interrupted {count - 1} times")
    assert count > 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("later", [0.0, 0.5])
def test_a_forked_child_waits_for_its_parent_only_as_long_as_it_writes(later: float, tmp_path: Path) -> None:
    """It has the lock of a thread that it does not have."""
    began, end = threading.Event(), threading.Event()

    def hold() -> None:
        with alone(tmp_path / "m.qfb"):
            began.set()
            end.wait()

    def write() -> None:
        with alone(tmp_path / "m.qfb"):
            pass

    holder = threading.Thread(target=hold)
    holder.start()
    began.wait()
    threading.Timer(later, end.set).start()
    assert end_of_fork(write) == 0
    holder.join()


@pytest.mark.skipif(sys.platform == "win32", reason="without locks, writers do not take turns")
def test_a_lock_that_only_its_owner_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed writer of another user left, or one whose umask takes away its own rights."""
    opened = os.open

    def refused(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_RDWR and str(path).endswith(".tmp"):
            raise PermissionError(EACCES, os.strerror(EACCES), path)
        return opened(path, flags, *more, **options)

    (path := tmp_path / f".qfmt-{hashlib.sha256(b'm').hexdigest()[:16]}.tmp").touch()
    monkeypatch.setattr(os, "open", refused)
    with alone(tmp_path / "m.qfb"):
        assert [*tmp_path.iterdir()] == [path]
        with path.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(sys.platform == "win32", reason="without locks, writers do not take turns")
def test_a_link_in_place_of_the_lock_is_an_error(tmp_path: Path) -> None:
    with alone(tmp_path / "m.qfb"):
        (name,) = tmp_path.iterdir()
    for target in ("nowhere", "there"):
        name.unlink(missing_ok=True)
        (tmp_path / "there").touch()
        name.symlink_to(target)
        with pytest.raises(DestinationError, match="symbolic links"):
            model().save(tmp_path / "m.qfb", shard_size=2000)
        assert not (tmp_path / "nowhere").exists()


def test_the_model_knows_them_too(tmp_path: Path) -> None:
    model().save(tmp_path / "m.qfb", shard_size=2000)
    assert qfmt.load(tmp_path / "m.qfb") == model()
