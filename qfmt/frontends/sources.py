"""The table of sources: every kind of file that is recognized, and the module that reads it.

The content of a file decides its kind, never its name. To add a source, write its module and its line here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from ..backstop import limited
from ..errors import SourceError
from .content import (
    Content,
    Sniffer,
    holds,
    is_broken_zip,
    is_html,
    is_numpy,
    is_onnx,
    is_pickle,
    is_safetensors,
    is_saved,
    is_saved_before_zip,
    is_tar,
    starts,
)

if TYPE_CHECKING:
    from ..model import Model
    from .options import Options
    from .witness import Witness


class FileReader(Protocol):
    """The module of a source of files."""

    def convert(self, path: Path, options: Options) -> Model:
        """The Model of a file."""

    def witness(self, path: Path, file: Model, engine: str | None) -> Witness:
        """Convert the source of `file` with the same options, together with a program that can run it."""


class ObjectReader(Protocol):
    """The module of a source in memory."""

    def convert_object(self, source: Any, options: Options, example_inputs: Any, prepared: Any) -> Model:
        """The Model of an object."""


class Source(NamedTuple):
    """A source of files: their name in messages, and the module that reads them."""

    files: str
    module: str

    @property
    def reader(self) -> FileReader:
        return cast(FileReader, import_module(self.module, __package__))


class Kind(NamedTuple):
    """A kind of file: a key for programs, a name for messages, and, if it cannot be converted, a hint."""

    key: str
    name: str
    is_it: Sniffer
    source: Source | None = None
    hint: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def reader(self) -> FileReader:
        """The module that reads this kind; SourceError if there is none."""
        if self.source is None:
            raise SourceError(f"is {self}, which cannot be converted", hint=self.hint or READABLE)
        return self.source.reader


def _is_torch(source: object, depth: int = 8) -> bool:
    """Whether it is an object of torch, or a dict that contains one; does not import torch."""
    if isinstance(source, dict):
        return depth > 0 and any(_is_torch(value, depth - 1) for value in source.values())
    return any(base.__module__.partition(".")[0] == "torch" for base in type(source).__mro__)


TORCHSCRIPT = Source("TorchScript", ".torch.torchscript.source")
SAVED = Source("torch.save", ".torch.saved.source")
EXPORTED = Source(".pt2", ".torch.exported.source")
SAFETENSORS = Source("safetensors", ".torch.safetensors")
ONNX = Source("ONNX", ".onnx.source")

SOURCES = (TORCHSCRIPT, SAVED, EXPORTED, SAFETENSORS, ONNX)

IN_MEMORY: dict[str, Callable[[Any], bool]] = {
    ".onnx.source": lambda source: type(source).__name__ == "ModelProto",
    ".torch.in_memory.source": _is_torch,
}
"""Modules that convert objects in memory → a test for the objects that each accepts."""

*_FIRST, _LAST = (source.files for source in SOURCES)
READABLE = f"qfmt reads {', '.join(_FIRST)} and {_LAST} files"

_SAVE_TORCHSCRIPT = "load it in the version of PyTorch that saved it and save the whole network with torch.jit.save"
_MADE_FROM = "convert the TorchScript archive that it was made from"

KINDS = {
    kind.key: kind
    for kind in (
        Kind("empty", "an empty file", lambda content: not content.head),
        Kind("torch_tar", "a tar archive, as PyTorch before 0.2 wrote them", is_tar,
             hint=_SAVE_TORCHSCRIPT),
        Kind("torch_legacy", "a torch.save file from before PyTorch 1.6 (a bare pickle)",
             is_saved_before_zip, SAVED,
             "load it in PyTorch and save the whole network with torch.jit.save"),
        Kind("qfb", "a .qfb file", starts(b"QFB", at=4), hint="open it with qfmt.load"),
        Kind("tflite", "a TensorFlow Lite model", starts(b"TFL3", at=4),
             hint="convert it to ONNX first: `python -m tf2onnx.convert --tflite`"),
        Kind("executorch", "an ExecuTorch program (.pte)", starts(b"ET1", at=4),
             hint="convert the .pt2 file that it was made from"),
        Kind("torchscript_flatbuffer", "a PyTorch Mobile model in its FlatBuffer form", starts(b"PTMF", at=4),
             hint=_MADE_FROM),
        Kind("gguf", "a GGUF file: named tensors without a graph", starts(b"GGUF")),
        Kind("hdf5", "an HDF5 file (Keras?)", starts(b"\x89HDF\r\n\x1a\n")),
        Kind("git_lfs", "a Git LFS pointer, not the file itself", starts(b"version https://git-lfs"),
             hint="run `git lfs pull`"),
        Kind("html", "a web page, not a model", is_html, hint="the download failed; download the file itself"),
        Kind("safetensors", "a safetensors file: named tensors without a graph", is_safetensors, SAFETENSORS),
        Kind("espdl", "an ESP-DL model (.espdl)", starts(b"EDL", b"PDL"),
             hint="convert the ONNX or PyTorch model that it was made from"),
        Kind("numpy", "NumPy arrays (.npy or .npz)", is_numpy,
             hint="use them as inputs of a network: `qfmt run MODEL --input`"),
        Kind("torch_export", "a torch.export archive (.pt2)",
             holds("archive_format", "serialized_exported_program.json", "models/model.json"), EXPORTED),
        Kind("torchscript_json", "a TorchScript archive of PyTorch 1.0 to 1.2 (model.json)",
             holds("model.json", code=True), hint=_SAVE_TORCHSCRIPT),
        Kind("torchscript", "a TorchScript archive", holds("data.pkl", code=True), TORCHSCRIPT),
        Kind("torchscript_lite", "a PyTorch Mobile archive with bytecode only (_save_for_lite_interpreter)",
             holds("bytecode.pkl"), hint=_MADE_FROM),
        Kind("torch_package", "a torch.package archive: a network as Python code",
             holds(".data/extern_modules"), hint=_SAVE_TORCHSCRIPT),
        Kind("torch_settings", "a torch.save file without tensors", is_saved("torch_settings"),
             hint="it may hold settings of a training, or arrays of NumPy: convert the file that holds the network"),
        Kind("state_dict", "a state_dict: named tensors without a graph", is_saved("state_dict"), SAVED,
             _SAVE_TORCHSCRIPT),
        Kind("torch_module", "a whole Python module pickled with torch.save", is_saved("torch_module"), SAVED,
             _SAVE_TORCHSCRIPT),
        Kind("torch_data", "a torch.save file of tensors or other plain data", is_saved("torch_data"), SAVED,
             "these may be inputs or outputs of a network: convert the file that holds the network itself"),
        Kind("zip", "a zip archive that PyTorch did not write", lambda content: bool(content.is_zip)),
        Kind("broken_zip", "an incomplete zip archive", is_broken_zip,
             hint="it is truncated or damaged; download it again"),
        Kind("pickle", "a Python pickle that torch.save did not write", is_pickle),
        Kind("large_onnx", "an ONNX model of 2 GB or more, which protobuf does not read",
             lambda content: content.size >= 1 << 31 and is_onnx(content),
             hint="save its weights beside it: `onnx.save_model(…, save_as_external_data=True)`"),
        Kind("onnx", "an ONNX model", is_onnx, ONNX),
        Kind("unknown", "a file of unknown format", lambda content: True),
    )
}  # fmt: skip
"""All kinds, in the order of matching: a specific one before a more general one."""


def sniff(path: str | PathLike[str]) -> Kind:
    """The kind of a file; "unknown" if none fits. Reads a little of it and executes nothing.

    Raises what `Content` raises.
    """
    content = Content(path)
    with limited(content.size, str(path)):  # a pickle of torch.save is read as a whole
        return next(kind for kind in KINDS.values() if kind.is_it(content))


def external_files(path: Path) -> list[Path]:
    """The files that hold data of a source beside it: ONNX has them. Raises what `sniff` raises, and SourceError."""
    if sniff(path).source is not ONNX:
        return []
    from .onnx.external import external_files

    return external_files(path)


def object_reader(source: Any) -> ObjectReader | None:
    """The module that converts an object in memory; None if there is none."""
    modules = (module for module, takes in IN_MEMORY.items() if takes(source))
    return next((cast(ObjectReader, import_module(module, __package__)) for module in modules), None)
