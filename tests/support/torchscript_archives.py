"""Hand-made TorchScript archives."""

from __future__ import annotations

import zipfile
from pathlib import Path

MODULE = b"\x80\x02c__torch__\nM\n)\x81}b."

NOTHING = b"\x80\x02)."


def archive_of(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(f"m/{name}", content)
    return path


def module_of(path: Path, *body: str, data: bytes = MODULE, **entries: bytes) -> Path:
    """Write an archive of one module whose `forward` has this body."""
    head = "class M(Module):\n  __parameters__ = []\n  def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:"
    code = "\n".join([head, *(f"    {line}" for line in body or ("return x",)), ""])
    named = {"data.pkl": data, "constants.pkl": NOTHING, "version": b"3\n", "code/__torch__.py": code.encode()}
    return archive_of(path, named | entries)
