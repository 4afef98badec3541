"""`check`: every rule that a file breaks, those of the container (F1…Fn) and those of the model in it (V1…Vn).

The reader stops at the first fault that it meets; this checks everything and continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..errors import FormatError, ValidityError, VersionError, Violation
from ..model import Model, Node, Tensor
from ..progress import BYTES, Steps, counted
from ..rules import data_violations, graph_violations, vector_data_violations
from ..rules.rule import quoted
from ..urls import Named, place
from . import header
from .reader import Container, Stored
from .shards import Shards

CONTAINER_RULES: tuple[tuple[str, str], ...] = (
    ("F1", 'A file begins with the offset of its root table and "QFB1"; the header\'s tag is "qh01".'),
    ("F2", "The reserved bytes of the header are zero."),
    (
        "F3",
        "The header has a size of at least 128 bytes, a multiple of 8, and is not longer than the metadata, which is "
        "shorter than 2^31 bytes. The data begins at the next multiple of 4096, and the file ends where the data ends.",
    ),
    ("F4", "The 32 bytes at byte 64 are the sha256 of the metadata, with these 32 bytes taken as zeros."),
    ("F5", "The bytes between metadata and data are zero."),
    (
        "F6",
        "The metadata is a FlatBuffer of the schema: every offset, vtable and vector is inside it, after the header, "
        "and is aligned; required fields are present; strings are UTF-8 and end with a zero byte. Strings and nested "
        "tables may be shared; a reader may refuse a file that refers to long strings, or to anything else, too often.",
    ),
    ("F7", "Every index refers to an element that exists; only an input of a node may be -1, which stands for none."),
    (
        "F8",
        "Buffers begin at multiples of 64, in the order of their offsets, and do not overlap. The first begins at 0. "
        "Fewer than 64 bytes are between two buffers, all of them zero. The last buffer ends where the data ends; "
        "without buffers there is no data.",
    ),
    ("F9", "The sha256 that is stated for a buffer is the digest of its bytes."),
    ("F10", "The reader knows every required flag and feature."),
    ("F11", "Tensors and attributes are sorted by name, the pairs of maps by key; none appears twice."),
    (
        "F12",
        "If there are names of sizes, there is one, possibly empty, for each size, and a size with a name is -1. "
        "Every quantization has a quant_min and a quant_max; each of its arrays has either bytes or a buffer. An "
        "attribute has a known type, a value of that type and none of another: an integer of 0 and a float of 0 or -0 "
        "are none, an empty string or list is one. A list that is empty has the type Ints. The values of test vectors "
        "have a buffer.",
    ),
    (
        "F13",
        "Every buffer holds the data of a tensor, of its quantization, or of a test vector, and no two buffers hold "
        "the same bytes. An array of a quantization is a buffer if and only if it has more than 4096 bytes.",
    ),
    (
        "F14",
        "A file has shards if and only if it requires the feature `shards`, and then no data itself. They are sorted "
        "by name; none appears twice. A name ends in `.qfs`, and has at most 255 bytes, none of them below 0x20, 0x7F, "
        "`/`, `\\` or `:`. Each size is above 0, each but the last a multiple of 64; all together are less "
        "than 2^63. Each buffer is in one shard.",
    ),
    (
        "F15",
        "A shard is a regular file, not a link, in the folder of the file, and has the stated size and sha256.",
    ),
)
"""The rules for the file as a container: number and sentence."""

MOST = 1000
"""The most violations that are listed; then the check stops."""


class _Enough(Exception):
    """More was found than is listed."""


class Found(list[Violation]):
    """Violations, at most MOST."""

    def add(self, violations: Iterable[Violation]) -> None:
        for violation in violations:
            if len(self) == MOST:
                raise _Enough
            self.append(violation)


def check(path: Named) -> list[Violation]:
    """Every rule that a file breaks, by number; an empty list if it is valid, the first 1000 if there are more.

    These are levels 1 to 3 of docs/checking.md: bytes, structure, meaning.

    `path` may be a URL (docs/archive.md, "URLs"), of which the whole file is fetched.

    Raises MissingFileError, RemoteError, FormatError if it is not a `.qfb` file at all, VersionError for one that needs
    a newer reader.
    """
    violations, model = checked(path)
    if model is not None:
        model.close()
    return violations


def checked(path: Named) -> tuple[list[Violation], Model | None]:
    """The same, and the model of a valid file: of a remote one from the bytes that were checked."""
    found = Found()
    try:
        container = Container(path, verify=False)
    except VersionError:
        raise
    except FormatError as error:
        if error.rule in ("", "F1"):
            raise
        return [_violation(error, str(place(path)))], None
    with suppress(_Enough):
        _check(container, found)
    return found, None if found else container.model()


def _check(container: Container, found: Found) -> None:
    container.fetch_all()
    with _collecting(found, container):
        header.check_digest(container.header, container.metadata)
    _check_shards(container, found)
    damaged = _check_buffers(container, found)
    used: set[int] = set()
    decoded = _check_tensors(container, damaged, used, found)
    model = None
    with _collecting(found, container):
        model = container.model()
        decoded = _check_nodes(model.nodes, container, found) and decoded
    if model is not None and decoded:
        found.add(graph_violations(model, (FormatError,)))  # a lost shard is known already
        if _check_vectors(model, container, damaged, used, found) and len(used) < len(container.buffers):
            unused = set(range(len(container.buffers))) - used
            found.add([Violation("F13", f"buffer {min(unused)}", f"{len(unused)} buffers are not used")])


def _check_shards(container: Container, found: Found) -> None:
    """F15."""
    data = container.data
    if isinstance(data, Shards):
        for index in range(len(data.shards)):
            with _collecting(found, container):
                data.verify(index)


def _is_lost(container: Container, offset: int) -> bool:
    """Whether bytes of the data are in a shard that cannot be read, which is one violation, not one for each buffer."""
    return isinstance(container.data, Shards) and container.data.is_lost(offset)


def _check_buffers(container: Container, found: Found) -> set[int]:
    """F8 and F9. Returns the buffers whose bytes are not those that were written."""
    damaged: set[int] = set()
    end = 0
    digests: set[tuple[bytes, int]] = set()
    steps = Steps("comparing digests", len(container.data), BYTES)
    for index in range(len(container.buffers)):
        where = f"buffer {index}"
        with _collecting(found, container, where):
            stored = container.buffer(index, "buffer", "")
            gap = b"" if _is_lost(container, end) else container.data[end : stored.offset]
            if not 0 <= stored.offset - end < header.ALIGNMENT:
                found.add([Violation("F8", where, f"begins at {stored.offset}, but the previous one ends at {end}")])
            elif any(gap):
                found.add(
                    [Violation("F8", where, f"the bytes from {end} to {stored.offset} before it are not all zero")]
                )
            overlaps, end = stored.offset < end, max(end, stored.offset + stored.nbytes)
            if overlaps or _is_lost(container, stored.offset):  # the same bytes are not read for each of many
                damaged.add(index)
            elif not stored.is_intact():
                damaged.add(index)
                found.add([Violation("F9", where, "its sha256 differs from the one stated: the data is damaged")])
            if (stored.digest, stored.nbytes) in digests:
                found.add([Violation("F13", where, "holds the same bytes as an earlier one")])
            digests.add((stored.digest, stored.nbytes))
            steps.add(end - steps.done)
    if end != len(container.data):
        found.add([Violation("F8", "data", f"the last buffer ends at {end}, but the data at {len(container.data)}")])
    return damaged


def _check_tensors(container: Container, damaged: set[int], used: set[int], found: Found) -> bool:
    """F11 and V1-V25; whether every tensor could be decoded. `used` gets the buffers that are theirs."""
    tensors, before, decoded = container.tensors, None, True
    for index in counted(range(len(tensors)), "", len(tensors), "tensors"):
        tensor = None
        with _collecting(found, container, f"tensor {index}"):
            name = tensors.name(index)
            if before is not None and name <= before:
                found.add([Violation("F11", f"tensor {name!r}", f"follows {before!r}, out of order or repeated")])
            before = name
            asked = tensors[name]
            _ = asked.quantization  # decoded, and checked
            tensor = asked
        decoded = decoded and tensor is not None
        if tensor is not None:
            own = {data.index for _, data in tensor.stored() if isinstance(data, Stored)}
            used |= own
            found.add(_misplaced(tensor))
            if not own & damaged:
                found.add(data_violations(tensor))
    return decoded


def _misplaced(tensor: Tensor) -> Iterator[Violation]:
    """F13: small arrays of a quantization in a buffer, and large ones in the metadata."""
    for name, each in () if tensor.quantization is None else tensor.quantization.parameters():
        if each.is_inline == isinstance(each.data, Stored):
            where = "the metadata" if each.is_inline else "a buffer"
            yield Violation(
                "F13", f"tensor {quoted(tensor.name)}", f"{name} has {each.data.nbytes} bytes, its place is {where}"
            )


def _check_nodes(nodes: Sequence[Node], container: Container, found: Found) -> bool:
    """Whether every node could be decoded."""
    before = len(found)
    for index in counted(range(len(nodes)), "", len(nodes), "nodes"):
        with _collecting(found, container, f"node {index}"):
            nodes[index]
    return len(found) == before


def _check_vectors(model: Model, container: Container, damaged: set[int], used: set[int], found: Found) -> bool:
    """V50, V51, and of what the values hold V10-V12 and V23; whether every test vector could be decoded."""
    decoded = 0
    for index in range(len(model.vectors)):
        with _collecting(found, container, f"test vector {index}"):
            vector = model.vectors[index]
            own = {value.data.index for *_, value in vector.stored(model.graph) if isinstance(value.data, Stored)}
            used |= own
            if not own & damaged:
                found.add(vector_data_violations(vector, model.graph, f"test vector {index}"))
            decoded += 1
    return decoded == len(model.vectors)


@contextmanager
def _collecting(found: Found, container: Container, where: str = "") -> Iterator[None]:
    """A context whose first FormatError ends it and joins the violations."""
    try:
        yield
    except ValidityError as error:
        found.add(error.violations)
    except FormatError as error:
        found.add([_violation(error, container.where, where)])


def _violation(error: FormatError, file: str, where: str = "") -> Violation:
    place = error.where.removeprefix(file).removeprefix(": ") or where or "file"
    return Violation(error.rule or "F6", place, error.what)
