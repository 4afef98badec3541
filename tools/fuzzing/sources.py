"""Mutants of files that `convert` reads. Each function makes one from the bytes of a file; a file that does not
parse as the function's kind is mutated as bytes."""

from __future__ import annotations

import io
import json
import pickletools
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from random import Random

from .flips import LARGEST, changed_bytes
from .protos import changed_onnx
from .trees import NUMBERS, TEXTS, mutated, other_value

Mutate = Callable[[bytes, Random], bytes]


# Archives


def changed_archive(data: bytes, chance: Random) -> bytes:
    """Change one or two entries by the mutations of their kind, or the archive itself."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > LARGEST:  # a bomb
                return changed_bytes(data, chance)
            entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, RuntimeError):
        return changed_bytes(data, chance)
    if not entries or chance.random() < 0.1:
        return changed_bytes(data, chance)
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.choices(range(len(entries)), [_weight(name) for name, _ in entries])[0]
        name, content = entries[at]
        entries[at] = name, _change_of(name)(content, chance)[:LARGEST]
    if chance.random() < 0.08:
        chance.choice(_DIRECTORY)(entries, chance)
    return _archive(entries, zipfile.ZIP_STORED if chance.random() < 0.9 else zipfile.ZIP_DEFLATED)


def _archive(entries: list[tuple[str, bytes]], method: int) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # duplicate names are intended
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def _weight(name: str) -> int:
    """The weight of an entry in the random choice: parsed parts are more likely than numbers."""
    return 10 if name.endswith((".py", ".pkl", ".json")) else 1


def _change_of(name: str) -> Mutate:
    return {"py": changed_code, "pkl": changed_pickle, "json": changed_json}.get(name.rpartition(".")[2], changed_bytes)


def _drop(entries: list[tuple[str, bytes]], chance: Random) -> None:
    del entries[chance.randrange(len(entries))]


def _double(entries: list[tuple[str, bytes]], chance: Random) -> None:
    entries.append(chance.choice(entries))


def _exchange(entries: list[tuple[str, bytes]], chance: Random) -> None:
    one, other = chance.randrange(len(entries)), chance.randrange(len(entries))
    names = entries[one][0], entries[other][0]
    entries[one], entries[other] = (names[1], entries[one][1]), (names[0], entries[other][1])


def _rename(entries: list[tuple[str, bytes]], chance: Random) -> None:
    at = chance.randrange(len(entries))
    name = entries[at][0]
    other = chance.choice((f"/{name}", f"../{name}", name.upper(), "", name + "/", f"x/{name}", "m/PWNED"))
    entries[at] = other, entries[at][1]


_DIRECTORY = (_drop, _double, _exchange, _rename)


def changed_saved(data: bytes, chance: Random) -> bytes:
    """A mutant of a torch.save file: an archive, or the consecutive pickles of older versions."""
    return (changed_archive if data[:2] == b"PK" else changed_pickle)(data, chance)


def changed_source(data: bytes, chance: Random) -> bytes:
    """A mutant of a file of any kind, detected by its first bytes."""
    if data[:2] == b"PK":
        return changed_archive(data, chance)
    return (changed_pickle if data[:1] == b"\x80" else changed_onnx)(data, chance)


# Code


_TOKEN = re.compile(r"\s+|[A-Za-z_][\w.]*|\d+\.?\d*(?:e[+-]?\d+)?|\"[^\"]*\"|.", re.DOTALL)
WORDS = (
    "None", "True", "False", "self", "x", "()", "[]", "{}", "[x]", "[0]", "[1, 1]", "(0, 1)", "{0: 1}", '""', '"x"',
    "-1", "0", "1.0", "0.0", "1e300", "float('nan')", "CONSTANTS.c0", "ops.prim.NumToTensor", "torch.add", "torch.mul",
    "torch.relu", "torch.cat", "torch.size", "torch.reshape", "torch.to", "torch.quantize_per_tensor", "annotate",
    "torch.dequantize", "torch.append", "torch.len", "torch.slice", "torch.select", "ops.quantized.add",
    "uninitialized",
    "torch.tensor", "torch.zeros", "torch.max", "torch.permute", "torch.transpose", "torch.expand", "torch.split",
    "unchecked_cast", "getattr", "torch.view", "torch.mean", "torch.unsqueeze", "torch.squeeze", "torch.flatten",
    "torch.max_pool2d", "torch.adaptive_avg_pool2d", "torch.softmax", "torch.int", "torch.chunk", "torch.pad",
    "torch.floordiv", "torch.upsample_nearest2d", "torch.linear", "torch.matmul", "torch.embedding",
    "torch.index_select", "torch.__getitem__", "torch.stack", "torch.clamp", "torch.hardtanh", "ops.quantized.mul",
    "ops.quantized.linear", "ops.quantized.conv2d", "ops.quantized.cat", "while", "if", "for", "in", "return", "pass",
)  # fmt: skip


def changed_code(data: bytes, chance: Random) -> bytes:
    """Replace words of code, and double, cut out or exchange lines."""
    text = data.decode("utf-8", "replace")
    for _ in range(chance.choice((1, 1, 2, 3))):
        text = (_lines if chance.random() < 0.25 else _words)(text, chance)
    return text.encode()


def _words(text: str, chance: Random) -> str:
    tokens = _TOKEN.findall(text)
    at = [index for index, token in enumerate(tokens) if not token.isspace()]
    if not at:
        return text
    chosen = chance.choice(at)
    token = tokens[chosen]
    way = chance.random()
    if token[0].isdigit() and way < 0.7:
        value = float(token) if "." in token or "e" in token else int(token)
        tokens[chosen] = str(other_value(value, chance))
    elif way < 0.45:
        tokens[chosen] = tokens[chance.choice(at)]
    elif way < 0.75:
        tokens[chosen] = chance.choice(WORDS)
    elif way < 0.9:
        tokens[chosen] = ""
    else:
        tokens[chosen] = token + tokens[chance.choice(at)]
    return "".join(tokens)


def _lines(text: str, chance: Random) -> str:
    lines = text.split("\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    way = chance.randrange(4)
    if way == 0:
        lines[at:at] = [lines[at]] * chance.choice((1, 2, 100))
    elif way == 1:
        del lines[at]
    elif way == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at:at] = [lines[other]]
    return "\n".join(lines)


# Pickles


def changed_pickle(data: bytes, chance: Random) -> bytes:
    """Cut out, double or exchange instructions, or change their operands. Data after the pickle, such as other
    pickles and the numbers of torch's older files, is kept."""
    parts, end = _instructions(data, chance)
    if not parts:
        return changed_bytes(data, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at, other = chance.randrange(len(parts)), chance.randrange(len(parts))
        way = chance.random()
        if way < 0.5:
            parts[at] = _other_operand(parts[at], parts, chance)
        elif way < 0.6:
            parts[at] = parts[other]
        elif way < 0.7:
            parts[at] = b""
        elif way < 0.8:
            parts[at] *= chance.choice((2, 2, 1000))
        elif way < 0.9:
            parts[at], parts[other] = parts[other], parts[at]
        else:
            parts[at] += chance.choice(_PIECES)
    return b"".join(parts) + data[end:]


_PIECES = (b"N", b"]", b"}", b")", b"(", b"K\x00", b"0", b"1", b"2", b"R", b"b", b"s", b"u", b"a", b"e", b"t", b"\x85",
           b"\x86", b"\x87", b"\x88", b"\x89", b"\x81", b"Q", b"h\x00", b"q\x00", b"\x8f", b"J\xff\xff\xff\xff",
           b"cos\nsystem\nX\x05\x00\x00\x00touchR", b"cbuiltins\neval\n")  # fmt: skip


def _instructions(data: bytes, chance: Random) -> tuple[list[bytes], int]:
    """The instructions of one of the consecutive pickles, with the data before it; and its end."""
    start, ends = 0, []
    for _ in range(4):
        try:
            *_, (last, _, position) = pickletools.genops(memoryview(data)[start:].tobytes())
        except ValueError:
            break
        if last.name != "STOP" or position is None:
            break
        start += position + 1
        ends.append(start)
    if not ends:
        return [], 0
    chosen = chance.randrange(len(ends))
    start, end = ([0, *ends])[chosen], ends[chosen]
    places = [start + (position or 0) for _, _, position in pickletools.genops(data[start:end])]
    parts = [data[at:to] for at, to in zip(places, [*places[1:], end], strict=True)]
    return [data[:start] + parts[0], *parts[1:]] if start else parts, end


def _other_operand(part: bytes, parts: list[bytes], chance: Random) -> bytes:
    code = part[:1]
    same = [each for each in parts if each[:1] == code]
    if chance.random() < 0.4:
        return chance.choice(same)
    if code == b"K":
        return b"K" + bytes([chance.choice((0, 1, 2, 3, 4, 5, 12, 13, 127, 128, 255))])
    if code in (b"J", b"M"):
        return b"J" + struct.pack("<I", chance.choice(NUMBERS) & 0xFFFFFFFF)
    if code == b"G":
        return b"G" + struct.pack(">d", other_value(struct.unpack(">d", part[1:9])[0], chance))
    if code == b"X":
        text = chance.choice(
            (*TEXTS, "int8", "float32", "cpu", "forward", "weight", part[5:].decode("utf-8", "replace"))
        )
        encoded = text.encode()
        return b"X" + struct.pack("<I", len(encoded)) + encoded
    if code in (b"h", b"q"):
        return code + bytes([chance.choice((0, 1, 2, 3, chance.randrange(256)))])
    if code in (b"\x88", b"\x89", b"N", b")", b"]", b"}"):
        return chance.choice((b"\x88", b"\x89", b"N", b")", b"]", b"}", b"K\x01"))
    return chance.choice((b"\x8a\x08" + struct.pack("<Q", chance.choice(NUMBERS) % (1 << 64)), b"N", b")"))


# JSON, safetensors


def changed_json(data: bytes, chance: Random) -> bytes:
    if chance.random() < 0.05:
        return changed_bytes(data, chance)
    try:
        return json.dumps(mutated(json.loads(data), chance)).encode()
    except (ValueError, RecursionError):
        return changed_bytes(data, chance)


def changed_safetensors(data: bytes, chance: Random) -> bytes:
    """Change the header as JSON, with a matching size, or the bytes."""
    size = int.from_bytes(data[:8], "little")
    if chance.random() < 0.15 or not 8 < size <= len(data):
        return changed_bytes(data, chance)
    header = data[8 : 8 + size]
    try:
        document = json.loads(header)
        described = document.get("__metadata__", {})
        inner = [key for key, text in described.items() if text[:1] in "{["] if chance.random() < 0.4 else []
        if inner:
            key = chance.choice(inner)
            described[key] = changed_json(described[key].encode(), chance).decode()
            header = json.dumps(document).encode()
        else:
            header = changed_json(header, chance)
    except (ValueError, AttributeError, TypeError):
        header = changed_json(header, chance)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]
