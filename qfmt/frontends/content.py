"""The content that identifies a kind of file: its first bytes, and the members of its archive. Read on demand."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from ..arrays import BLOCK
from ..errors import SourceError
from ..regular import irregular, refusal
from ..threads import cached_property
from .harmless import Inert, Subclass, harmless_or_inert, members, plain
from .pickle_machine import GRAPHS
from .pickles import BESIDE, unpickle
from .stored import Storage, StoredTensor
from .zips import END, LOCAL, Zip, root_of

ONNX_FIELDS = 10_000
"""The most fields that are read before the graph; exporters write about five, and one per property."""


class Content:
    """A file: its first bytes, its size, and the members of a zip archive.

    Raises MissingFileError, SourceError if the file cannot be read, UnsafePickleError if it is a torch.save file whose
    pickle refers to an unsafe name.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            if what := irregular(path):
                raise SourceError(what)
            with self.path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                self.head = file.read(min(4096, self.size))  # some files without a size, as /proc/kmsg, block
        except (OSError, ValueError) as error:  # a path cannot contain a zero byte
            raise refusal(error, SourceError) from None

    @cached_property
    def is_zip(self) -> bool | None:
        """Whether the file is a zip archive; None for the end of an archive on multiple disks."""
        try:
            return self.head.startswith((LOCAL, END)) and zipfile.is_zipfile(self.path)
        except zipfile.BadZipFile:
            return None

    @cached_property
    def archive(self) -> Zip | None:
        return Zip(self.path, is_mapped=False) if self.is_zip else None

    @cached_property
    def members(self) -> frozenset[str]:
        """The members of an archive, without the folder that PyTorch puts around them."""
        root = "" if self.archive is None else root_of(self.archive)
        return frozenset(name.removeprefix(root) for name in (self.archive.entries if self.archive else ()))

    @cached_property
    def saved(self) -> str:
        """The kind of object that torch.save saved (see `saved_as`), "torch_settings" if it contains neither a tensor
        nor a module; "" if it did not write this archive."""
        if self.archive is None or "data.pkl" not in self.members:
            return ""
        budget = self.archive.budget
        budget.bytes += BESIDE
        data, named = self.archive.read(f"{root_of(self.archive)}data.pkl"), set[str]()

        def storage(key: str, dtype: str) -> Storage:
            named.add("_rebuild")
            return Storage(key, dtype, lambda: memoryview(b""))

        def find_global(module: str, name: str) -> Any:
            named.add(name)
            return harmless_or_inert(module, name)

        value = unpickle(data, storage, where="data.pkl", find_global=find_global, budget=budget)
        has_tensors = any(name.startswith("_rebuild") for name in named)  # some have no storage
        return saved_as(value) if has_tensors or _holds_module(value) else "torch_settings"


Sniffer = Callable[[Content], bool]
"""Whether a file is of a kind, if no kind before it in the table matches."""


def starts(*magic: bytes, at: int = 0) -> Sniffer:
    """Matches files with one of these magic words at offset `at`."""
    return lambda content: content.head[at:].startswith(magic)


def holds(*names: str, code: bool = False) -> Sniffer:
    """Matches zip archives that contain one of these files, and, with `code`, a folder of that name, too."""
    return lambda content: (
        not content.members.isdisjoint(names)
        and (not code or any(member.startswith("code/") for member in content.members))
    )


def is_saved(key: str) -> Sniffer:
    """Matches archives in which torch.save saved this kind of object."""
    return lambda content: content.saved == key


def is_safetensors(content: Content) -> bool:
    head = content.head
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") + 8 <= content.size


def is_numpy(content: Content) -> bool:
    arrays = content.head.startswith(b"\x93NUMPY")
    return arrays or (bool(content.members) and all(name.endswith(".npy") for name in content.members))


def is_pickle(content: Content) -> bool:
    return content.head[0] == 0x80 and content.head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


_BEFORE_ZIP = re.compile(rb"(?s)\x80[\2-\5](?:\x95.{8})?\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e")
"""PyTorch's magic number, pickled by a protocol with or without frames."""


def is_saved_before_zip(content: Content) -> bool:
    return _BEFORE_ZIP.match(content.head) is not None


def is_tar(content: Content) -> bool:
    """Whether the file begins with a header of tar, with or without a magic word: PyTorch looks for that first."""
    from tarfile import HeaderError, TarInfo

    try:
        TarInfo.frombuf(content.head[:512], "utf-8", "surrogateescape")
    except HeaderError:
        return False
    return True


def is_html(content: Content) -> bool:
    return content.head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html"))


def is_broken_zip(content: Content) -> bool:
    return content.is_zip is None or (not content.is_zip and content.head.startswith(LOCAL))


def is_onnx(content: Content) -> bool:
    """Whether the bytes are fields of a ModelProto up to its graph: onnx.proto, message ModelProto."""
    with content.path.open("rb") as file:
        for _ in range(ONNX_FIELDS):
            tag = _varint(file)
            number, wire = tag >> 3, tag & 7
            if number == 7 and wire == 2:
                return True
            if (number, wire) in ((1, 0), (5, 0)):
                _varint(file)
            elif wire == 2 and number in (2, 3, 4, 6, 8, 14, 20, 25, 26):
                file.seek(_varint(file), 1)
            else:
                return False
    return False


def _varint(file: BinaryIO) -> int:
    """A protobuf varint; 0 at the end of the file or for an invalid one."""
    value = 0
    for shift in range(0, 35, 7):
        byte = file.read(1)
        if not byte:
            return 0
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return 0


def saved_as(value: Any) -> str:
    """The kind of object that torch.save saved: "torch_module", "state_dict", or "torch_data" for any other."""
    value = outermost(value)
    if is_module(value):
        return "torch_module"
    tensors = isinstance(value, dict) and any(isinstance(item, HOLDERS) for item in value.values())
    return "state_dict" if tensors else "torch_data"


HOLDERS = dict, list, tuple, Storage, StoredTensor, Subclass, Inert
"""What is a tensor, or may contain some."""


SHORT = 64
"""The most elements of a list of state_dicts or modules."""


def outermost(value: Any) -> Any:
    """What torch.save saved; of an object other than a module its members, and of a short list in which there are dicts
    or modules, a dict by number."""
    if isinstance(value, Inert) and not is_module(value):
        return members(value)
    short = value if isinstance(value, list | tuple) and len(value) <= SHORT else ()
    return dict(enumerate(short)) if any(isinstance(plain(each), dict) or is_module(each) for each in short) else value


def _holds_module(value: Any) -> bool:
    value = outermost(value)
    return is_module(value) or (isinstance(value, dict) and any(map(is_module, value.values())))


def is_module(value: Any) -> bool:
    """Whether it is a module of PyTorch."""
    if not isinstance(value, Inert):
        return False
    fx = value.class_name.startswith(GRAPHS)
    convolution = ".quantized.modules.conv" in value.class_name  # their state is a tuple
    return fx or convolution or (isinstance(value.state, dict) and "_modules" in value.state)


def sha256_of(path: str | PathLike[str]) -> str:
    """The SHA-256 digest of a file, in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return sha256_of_rest(file)


def sha256_of_rest(file: BinaryIO) -> str:
    """The SHA-256 digest of an open file from its position on, in hexadecimal digits."""
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()
