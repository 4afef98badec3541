"""Arrays from files, for the inputs of a network."""

from __future__ import annotations

import warnings
from collections import Counter
from io import BytesIO
from typing import TYPE_CHECKING

from ..backstop import LITTLE, grow, limited
from ..budget import Budget
from ..errors import QfmtError, RunError, some
from ..file.copies import downloaded
from ..frontends.zips import STORED, Zip
from ..memory import FACTOR, available
from ..notation import size
from ..urls import Place
from .output import line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from ..model import Model

    Array = NDArray[np.generic]


def arrays(place: Place, wanted: Sequence[str]) -> dict[str, Array]:
    """The arrays of a file by name, only those that are wanted if it has all of them; the array of a `.npy` has the
    empty name. Nothing is unpickled."""
    with downloaded(place) as path, limited(path.stat().st_size, str(place)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what NumPy and Python say of old headers is not about the array
        found = _arrays(path, str(place), wanted)
    if records := [name or "the array" for name, array in found.items() if array.dtype.names]:
        raise RunError(f"{records[0]} has records, not numbers", where=str(place), hint=_WRITE)
    return found


_ZIP = b"PK\3\4", b"PK\5\6"
"""How a `.npz` begins, for NumPy, too: with a member, or without any."""

_WRITE = "write it with numpy.save or numpy.savez"


def _arrays(path: Path, where: str, wanted: Sequence[str]) -> dict[str, Array]:
    import numpy as np

    if not path.stat().st_size:
        raise RunError("is an empty file", where=where, hint=_WRITE)
    try:
        with path.open("rb") as file:
            if file.read(len(_ZIP[0])) not in _ZIP:
                file.seek(0)
                return {"": np.load(file, allow_pickle=False)}
        archive = Zip(path, Budget(path.stat().st_size, "reading"))
        return dict(_members(archive, where, {*wanted}))
    except QfmtError as error:
        raise RunError(error.what, where=where, hint=error.hint) from None
    except MemoryError:
        if path.stat().st_size > LITTLE:  # a limit of the system, which `limited` explains
            raise
        what = "is not a .npy or .npz file of plain arrays (its header states more than it has)"
        raise RunError(what, where=where, hint=_WRITE) from None
    except Exception as error:  # any error of zipfile, zlib and NumPy's header parser
        advice = "pickle" in str(error)  # NumPy's own hint is to trust the file
        why = "" if advice else f" ({error})"
        hint = "write float8_e5m2 as bytes: array.view('V1')" if "'<f1'" in str(error) else _WRITE
        raise RunError(f"is not a .npy or .npz file of plain arrays{why}", where=where, hint=hint) from None


def _allow_expansion(archive: Zip, names: Iterable[str]) -> None:
    """Raise the limits by what compressed arrays take, once expanded and once copied. Arrays of zeros compress to a
    thousandth, so the available memory is the limit, not the size of the file. QfmtError if it is too little."""
    entries = [archive.entries[name] for name in names]
    nbytes = 2 * sum(entry.size for entry in entries if entry.method != STORED)
    if nbytes > available() // 2:
        what = f"expands to {size(nbytes // 2)}, more than a quarter of the memory that is available"
        raise QfmtError(what, hint="write it with numpy.savez, or split it")
    archive.budget.bytes += nbytes
    grow(nbytes // FACTOR)


def _members(archive: Zip, where: str, wanted: set[str]) -> Iterator[tuple[str, Array]]:
    """The arrays of a `.npz` by name."""
    import numpy as np

    names = {name: name.removesuffix(".npy") for name in archive.entries}
    if repeated := [name for name, count in Counter(names.values()).items() if count > 1]:
        raise RunError(f"has two arrays with the name {repeated[0]!r}", where=where, hint=_WRITE)
    if wanted <= {*names.values()} and (aside := [name for name in names.values() if name not in wanted]):
        line(f"note: {where}: ignored, because they are not inputs: {some(aside)}", err=True)
        names = {name: array for name, array in names.items() if array in wanted}
    _allow_expansion(archive, names)
    for name, array in names.items():
        yield array, np.lib.format.read_array(BytesIO(archive.read(name)), allow_pickle=False)


def matched(wanted: Sequence[str], held: Mapping[str, Array], path: Place) -> dict[str, Array]:
    """Arrays for inputs by name, or the only array for the only input."""
    if len(held) == 1 and len(wanted) == 1:
        return {wanted[0]: next(iter(held.values()))}
    if missing := [name for name in wanted if name not in held]:
        names = some([*filter(None, held)]) or "one without a name"
        inputs = f"the inputs are {some(wanted)}"
        what = f"no array {missing[0]!r}, only {names}" if held else "has no arrays"
        raise RunError(what, where=str(path), hint=inputs)
    return {name: held[name] for name in wanted}


def taken(model: Model, given: Mapping[str, Array], path: Place) -> dict[str, Array]:
    """The arrays as the inputs of a model, with a line on stderr for each that had to be converted.

    Raises RunError for one that cannot be converted.
    """
    from ..interpreter import checked_inputs

    arrays = checked_inputs(model, given)
    for name, array in arrays.items():
        if array.dtype != given[name].dtype and given[name].dtype.kind != "V":  # V: how NumPy saves types of ml_dtypes
            line(f"note: {path}: input {name} expects {array.dtype}; {given[name].dtype} was converted", err=True)
    return arrays
