"""The first 128 bytes of a file: where its parts lie, and the digest that commits to all of them.

An ordinary FlatBuffer begins with the offset of its root table and four letters; the fixed header that follows
takes the place of padding, so that every FlatBuffers reader still opens the file (spec.md, "Container").
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from ..errors import DigestError, FormatError, VersionError

IDENTIFIER = b"QFB1"
TAG = b"qh01"
SIZE = 128
PAGE = 4096
ALIGNMENT = 64
MAXIMUM_METADATA = (1 << 31) - 1

_LAYOUT = struct.Struct("<I4s4sIQQQQIIQ32s32s")
_DIGEST = slice(64, 96)


class Header(NamedTuple):
    """The fixed header, in the order of its bytes; sizes and offsets count bytes."""

    root: int
    identifier: bytes
    tag: bytes
    header_size: int
    meta_size: int
    data_offset: int
    data_size: int
    file_size: int
    required_flags: int
    optional_flags: int
    reserved: int
    sha256: bytes
    reserved_end: bytes


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def seal(root: int, body: bytes, data_size: int) -> bytes:
    """The metadata of a file: the header, and after it the FlatBuffer `body`, whose root table is at `root` in it."""
    meta_size = SIZE + len(body)
    if meta_size > MAXIMUM_METADATA:
        raise FormatError(f"the metadata has {meta_size} bytes, more than {MAXIMUM_METADATA}", rule="F3")
    data_offset = round_up(meta_size, PAGE)
    sizes = (SIZE, meta_size, data_offset, data_size, data_offset + data_size)
    fields = Header(SIZE + root, IDENTIFIER, TAG, *sizes, 0, 0, 0, bytes(32), bytes(32))
    unsigned = _LAYOUT.pack(*fields) + body
    return unsigned[: _DIGEST.start] + metadata_digest(unsigned) + unsigned[_DIGEST.stop :]


def metadata_digest(metadata: bytes) -> bytes:
    """The sha256 of the metadata, header included, with the 32 bytes of the digest itself as zeros."""
    digest = hashlib.sha256(metadata[: _DIGEST.start])
    digest.update(bytes(32))
    digest.update(memoryview(metadata)[_DIGEST.stop :])
    return digest.digest()


def is_qfb(head: bytes) -> bool:
    """Whether a file that begins so is a `.qfb`, of whatever version."""
    return head[4:7] == IDENTIFIER[:3] and len(head) >= 8


def parse(head: bytes, actual_size: int) -> Header:
    """The header of a `.qfb` of `actual_size` bytes that begins with `head`, all of its rules checked.

    Raises FormatError, VersionError for a file of another major version or with an unknown required flag.
    """
    if head[4:8] != IDENTIFIER:
        major = head[7:8].decode("latin-1")
        raise VersionError(
            f"has major version {major!r}; this reader supports 1", hint="a newer qfmt is needed", rule="F1"
        )
    if len(head) < SIZE:
        raise FormatError(f"ends inside the header, at byte {len(head)}", hint=AGAIN, rule="F3")
    header = Header._make(_LAYOUT.unpack_from(head))
    if header.tag != TAG:
        raise FormatError(f"the header tag is {header.tag!r}, not {TAG!r}", where="byte 8", rule="F1")
    if header.required_flags:
        raise VersionError(
            f"requires features that this reader does not support (flags {header.required_flags:#x})",
            where="byte 48",
            hint="a newer qfmt is needed",
            rule="F10",
        )
    if header.reserved or any(header.reserved_end):
        raise FormatError("reserved bytes of the header are not zero", where="bytes 56 and 96", rule="F2")
    _check_sizes(header, actual_size)
    return header


def _check_sizes(header: Header, actual_size: int) -> None:
    if not SIZE <= header.header_size <= header.meta_size <= MAXIMUM_METADATA or header.header_size % 8:
        sizes = f"{header.header_size} and {header.meta_size}"
        raise FormatError(f"the sizes of header and metadata ({sizes} bytes) are not valid", where="byte 12", rule="F3")
    if header.data_offset != round_up(header.meta_size, PAGE):
        what = f"the data begins at byte {header.data_offset}, not at the first multiple of {PAGE} after the metadata"
        raise FormatError(what, where="byte 24", rule="F3")
    if header.file_size != header.data_offset + header.data_size:
        raise FormatError("the sizes of metadata, data and file disagree", where="byte 40", rule="F3")
    if header.file_size != actual_size:
        finding = "truncated" if actual_size < header.file_size else "longer than its header states"
        raise FormatError(f"is {finding}: {actual_size} bytes instead of {header.file_size}", hint=AGAIN, rule="F3")


def check_digest(header: Header, metadata: bytes) -> None:
    """DigestError unless the metadata is what was written."""
    if metadata_digest(metadata) != header.sha256:
        raise DigestError("the metadata is damaged: its sha256 differs from that in the header", hint=AGAIN, rule="F4")


def check_padding(padding: bytes) -> None:
    """FormatError unless the bytes between metadata and data are zero."""
    if any(padding):
        raise FormatError("the padding between metadata and data is not zero", rule="F5")


AGAIN = "download or convert the file again"
