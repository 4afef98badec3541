"""Mutants of `.qfb` files with valid digests, so that they pass this check."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from qfmt.errors import FormatError, QfmtError
from qfmt.file.decode import Decoder, Tables
from qfmt.file.encode import encode
from qfmt.file.header import PAGE, SIZE, metadata_digest, seal

from .trees import mutated as mutated_tree

EVIL = (0, 1, 2, 3, 4, 7, 8, 64, 0x7F, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)


def sealed(data: bytes | bytearray) -> bytes:
    """A file with changed metadata and a valid digest, which only the decoder can refuse."""
    meta_size = struct.unpack_from("<Q", data, 16)[0]
    return bytes(data[:64]) + metadata_digest(bytes(data[:meta_size])) + bytes(data[96:])


def mutants(data: bytes, *, count: int, seed: int) -> Iterator[bytes]:
    """Copies of a file with changed bytes in the metadata, and a valid digest."""
    chance = random.Random(seed)
    for _ in range(count):
        yield changed_bytes(data, chance)


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """A copy with one to four changes in the metadata or the root offset: bits, numbers, offsets."""
    meta_size = struct.unpack_from("<Q", data, 16)[0]
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.choice((0, *[chance.randrange(SIZE, meta_size)] * 30))
        if chance.random() < 0.5:
            changed[at] ^= 1 << chance.randrange(8)
            continue
        at = at // 4 * 4
        if chance.random() < 0.3:  # to the target of another offset, if it is one
            other = chance.randrange(SIZE, meta_size) // 4 * 4
            value = other + struct.unpack_from("<I", changed, other)[0] - at if other + 4 <= meta_size else 0
        else:
            value = chance.choice((*EVIL, chance.randrange(meta_size)))
        changed[at : at + 4] = struct.pack("<I", value & 0xFFFFFFFF)[: meta_size - at]
    return sealed(changed)


def changed_records(data: bytes, chance: random.Random) -> bytes:
    """A copy with changed fields of its tables: well-formed and sealed, with other contents."""
    meta_size, data_offset = struct.unpack_from("<QQ", data, 16)
    try:
        record = _plain(Decoder(data[:meta_size], "Model").root())
    except FormatError:  # the seed itself is broken
        return changed_bytes(data, chance)
    contents = data[data_offset:]
    for _ in range(20):
        # MemoryError: an integer, as which a digest is written, is a number of zeros
        with suppress(QfmtError, AttributeError, LookupError, TypeError, ValueError, RecursionError, MemoryError):
            changed = mutated_tree(record, chance)
            _digest_buffers(changed, contents, chance)
            metadata = seal(*encode("Model", changed), len(contents))
            return metadata + bytes(-len(metadata) % PAGE) + contents
    return data


def _plain(value: Any) -> Any:
    """Mutable records and lists from lazily decoded ones."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Tables | tuple):
        return [_plain(each) for each in value]
    return value


def _digest_buffers(record: Any, contents: bytes, chance: random.Random) -> None:
    """Set the correct digest for most buffers."""
    for buffer in record["buffers"]:
        offset, size = buffer["offset"], buffer["size"]
        if chance.random() < 0.95 or not isinstance(buffer["sha256"], bytes):
            buffer["sha256"] = hashlib.sha256(contents[max(offset, 0) : max(offset + size, 0)]).digest()
