"""What kind of file is this? Told by its content, never by its name."""

from __future__ import annotations

import hashlib
import mmap
import zipfile
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..budget import Budget
from ..errors import SourceError
from ..regular import irregular, refusal
from .pickles import Inert, Subclass, harmless_or_inert, unpickle
from .stored import Storage, StoredTensor
from .zips import Zip

ONNX_FIELDS = 10_000
"""The most fields before the graph that are read; exporters write about five, and one for each property."""

_SAVE_TORCHSCRIPT = "load it in the version of PyTorch that saved it and save the whole network with torch.jit.save"


class Kind(NamedTuple):
    """A kind of file: a key for programs, a name for people, and what to do if it cannot be converted."""

    key: str
    name: str
    hint: str = ""

    def __str__(self) -> str:
        return self.name


KINDS = {
    kind.key: kind
    for kind in (
        Kind("torchscript", "a TorchScript archive"),
        Kind("torchscript_lite", "a PyTorch Mobile archive with bytecode only (_save_for_lite_interpreter)",
             "convert the TorchScript archive that it was made from"),
        Kind("torchscript_flatbuffer", "a PyTorch Mobile model in its FlatBuffer form",
             "convert the TorchScript archive that it was made from"),
        Kind("torchscript_json", "a TorchScript archive of PyTorch 1.0 to 1.2 (model.json)", _SAVE_TORCHSCRIPT),
        Kind("torch_export", "a torch.export archive (.pt2)"),
        Kind("state_dict", "a state_dict: named tensors without a graph", _SAVE_TORCHSCRIPT),
        Kind("torch_data", "a torch.save file of tensors or other plain data",
             "these may be inputs or outputs of a network: convert the file that holds the network itself"),
        Kind("torch_module", "a whole Python module pickled with torch.save", _SAVE_TORCHSCRIPT),
        Kind("torch_legacy", "a torch.save file from before PyTorch 1.6 (a bare pickle)",
             "load it in PyTorch and save the whole network with torch.jit.save"),
        Kind("torch_tar", "a tar archive, as PyTorch before 0.2 wrote them", _SAVE_TORCHSCRIPT),
        Kind("onnx", "an ONNX model"),
        Kind("qfb", "a .qfb file"),
        Kind("safetensors", "a safetensors file: named tensors without a graph"),
        Kind("tflite", "a TensorFlow Lite model", "convert it to ONNX first: `python -m tf2onnx.convert --tflite`"),
        Kind("espdl", "an ESP-DL model (.espdl)", "convert the ONNX or PyTorch model that it was made from"),
        Kind("executorch", "an ExecuTorch program (.pte)", "convert the .pt2 file that it was made from"),
        Kind("gguf", "a GGUF file: named tensors without a graph"),
        Kind("hdf5", "an HDF5 file (Keras?)"),
        Kind("numpy", "NumPy arrays (.npy or .npz)", "use them as inputs of a network: `qfmt run MODEL --input`"),
        Kind("zip", "a zip archive that PyTorch did not write"),
        Kind("broken_zip", "an incomplete zip archive", "it was cut off or damaged; download it again"),
        Kind("pickle", "a Python pickle that torch.save did not write"),
        Kind("git_lfs", "a Git LFS pointer, not the file itself", "run `git lfs pull`"),
        Kind("html", "a web page, not a model", "the download failed; download the file itself"),
        Kind("empty", "an empty file"),
        Kind("unknown", "a file of unknown format"),
    )
}  # fmt: skip
"""Every kind that is told apart."""

READABLE = "qfmt reads TorchScript, torch.save and .pt2 files, safetensors and ONNX models"

SAVED = ("state_dict", "torch_module", "torch_data", "torch_legacy")
"""What torch.save writes."""

_MAGIC = (
    (0, b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", "torch_legacy"),
    (4, b"QFB", "qfb"),
    (4, b"TFL3", "tflite"),
    (4, b"ET1", "executorch"),
    (0, b"EDL", "espdl"),
    (0, b"PDL", "espdl"),
    (4, b"PTMF", "torchscript_flatbuffer"),
    (0, b"GGUF", "gguf"),
    (0, b"\x89HDF\r\n\x1a\n", "hdf5"),
    (0, b"\x93NUMPY", "numpy"),
    (0, b"version https://git-lfs", "git_lfs"),
    (257, b"ustar", "torch_tar"),
)


def sniff(path: str | PathLike[str]) -> Kind:
    """The kind of a file; "unknown" if none fits. Reads a little of it and executes nothing.

    Raises MissingFileError, SourceError if the file cannot be read, UnsafePickleError if it is a torch.save file whose
    pickle names something that is not harmless.
    """
    try:
        if what := irregular(path):
            raise SourceError(what)
        with Path(path).open("rb") as file:
            head = file.read(4096)
            size = file.seek(0, 2)
    except (OSError, ValueError) as error:  # a path cannot hold a zero byte
        raise refusal(error, SourceError) from None
    return KINDS[_by_head(head, size) or _by_structure(path, head)]


def sha256_of(path: str | PathLike[str]) -> str:
    """The digest of a file that is not empty, in hexadecimal digits."""
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return hashlib.sha256(content).hexdigest()


def _by_head(head: bytes, size: int) -> str:
    if not head:
        return "empty"
    for offset, magic, key in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return key
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "html"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") + 8 <= size:
        return "safetensors"
    return ""


def _by_structure(path: str | PathLike[str], head: bytes) -> str:
    try:
        whole = zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # an end that speaks of more than one disk
        return "broken_zip"
    if whole:
        return zip_kind(Zip(path)).key
    if head.startswith(b"PK\x03\x04"):
        return "broken_zip"
    if head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pickle"
    return "onnx" if _is_onnx(Path(path)) else "unknown"


def root_of(archive: Zip) -> str:
    """The folder that all entries of a PyTorch archive lie in, with its slash; "" if there is none."""
    for name in archive.entries:
        folder, slash, rest = name.partition("/")
        if rest in ("data.pkl", "model.json", "bytecode.pkl", "version", "archive_format", ".data/version"):
            return folder + slash
    return ""


def zip_kind(archive: Zip) -> Kind:
    """The kind of a zip archive that is open already."""
    return KINDS[_zip_kind(archive)]


def _zip_kind(archive: Zip) -> str:
    root = root_of(archive)
    inner = {name.removeprefix(root) for name in archive.entries}
    has_code = any(name.startswith("code/") for name in inner)
    if "archive_format" in inner or "serialized_exported_program.json" in inner or "models/model.json" in inner:
        return "torch_export"
    if "data.pkl" in inner and has_code:
        return "torchscript"
    if "bytecode.pkl" in inner:
        return "torchscript_lite"
    if "model.json" in inner and has_code:
        return "torchscript_json"
    if "data.pkl" in inner:
        return _pickle_kind(archive.read(f"{root}data.pkl"), archive.budget)
    return "numpy" if inner and all(name.endswith(".npy") for name in inner) else "zip"


def _pickle_kind(data: bytes, budget: Budget) -> str:
    return saved_kind(unpickle(data, _no_storage, where="data.pkl", find_global=harmless_or_inert, budget=budget))


def saved_kind(value: Any) -> str:
    """What torch.save saved: the key of its Kind."""
    if isinstance(value, Inert) and _is_module(value):
        return "torch_module"
    holders = StoredTensor, Subclass, Inert, dict
    tensors = isinstance(value, dict) and any(isinstance(item, holders) for item in value.values())
    return "state_dict" if tensors else "torch_data"


def _is_module(top: Inert) -> bool:
    fx = top.class_name.startswith("torch.fx.graph_module.")
    convolution = ".quantized.modules.conv" in top.class_name  # their state is a tuple
    return fx or convolution or (isinstance(top.state, dict) and "_modules" in top.state)


def _no_storage(key: str, dtype: str) -> Storage:
    return Storage(key, dtype, lambda: memoryview(b""))


def _is_onnx(path: Path) -> bool:
    """Whether the bytes are fields of a ModelProto up to its graph: onnx.proto, message ModelProto."""
    with path.open("rb") as file:
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
    """A protobuf varint; 0 at the end of the file or where there is none."""
    value = 0
    for shift in range(0, 35, 7):
        byte = file.read(1)
        if not byte:
            return 0
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return 0
