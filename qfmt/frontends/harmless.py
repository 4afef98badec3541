"""The names that a PyTorch pickle may refer to, and their replacements.

Functions of this module rebuild tensors as StoredTensors; classes remain names. Front ends that need more pass their
own `find_global`, based on these, to `unpickle`.
"""

from __future__ import annotations

import builtins
import struct
import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING  # of Python 2 → of Python 3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import SourceError, damaged
from ..model import DTYPES as ELEMENTS
from .stored import PerChannel, PerTensor, Storage, StoredTensor


class TorchDType(NamedTuple):
    """`torch.qint8` and its like; `name` is PyTorch's."""

    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"


class QScheme(NamedTuple):
    """`torch.per_channel_affine` and its like."""

    name: str


class StorageType(NamedTuple):
    """`torch.FloatStorage` and its like, as the dtype of its elements; "" for untyped bytes."""

    dtype: str


class Escaped(str):
    """A text that UTF-8 does not have, such as the name of a file in another encoding, with escapes. As a key it equals
    no text."""

    __slots__ = ()


class InertClass(NamedTuple):
    """A class that remains a name."""

    name: str


class Inert:
    """An object of such a class: its arguments, its pickled state, and its items: a dict, a list, or None."""

    __slots__ = ("arguments", "class_name", "items", "state")

    def __init__(self, class_name: str, arguments: tuple[Any, ...]) -> None:
        self.class_name = class_name
        self.arguments = arguments
        self.state: Any = None
        self.items: Any = None


def plain(value: Any) -> Any:
    """The items of an object of a subclass of dict; any other value itself."""
    return value.items if isinstance(value, Inert) and isinstance(value.items, dict) else value


def parts(value: Inert) -> list[tuple[str, Any]]:
    """The items of an object, its attributes (of a `__dict__` and of `__slots__`) and its arguments."""
    slotted = isinstance(value.state, tuple) and len(value.state) == 2 and isinstance(value.state[1], dict)
    states = value.state if slotted else (value.state,)
    return [("items", value.items), *(("state", each) for each in states), ("arguments", value.arguments)]


def members(value: Inert) -> dict[Any, Any]:
    """What the parts of an object contain, by key, name and number. If others have the same, "state." or "arguments."
    precedes it."""
    found: dict[Any, Any] = {}
    for part, held in parts(value):
        pairs = dict(enumerate(held)) if isinstance(held, list | tuple) else held
        for key, element in pairs.items() if isinstance(pairs, dict) else [(part, pairs)]:
            if element is value:  # as in `self.__dict__ = self`
                continue
            name = key
            while name in found and found[name] is not element:
                name = f"{part}.{name}"
            found[name] = element
    return found


class Subclass:
    """A tensor subclass that contains other tensors, its `state`. The fields are how it appears to the program."""

    __slots__ = ("class_name", "dtype", "shape", "state")

    def __init__(self, class_name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.class_name = class_name
        self.dtype = dtype
        self.shape = shape
        self.state: dict[Any, Any] | None = None


PAIR = 60
"""Bytes of a pair in a dict; a dict has room for two at least."""


class Rebuild:
    """A function of qfmt that replaces the one that a pickle names, and the bytes of a copy of an element of its
    arguments."""

    __slots__ = ("copied", "function")

    def __init__(self, function: Callable[..., Any], copied: int = 0) -> None:
        self.function, self.copied = function, copied


def _tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any = False, _hooks: Any = None, metadata: Any = None
) -> StoredTensor:
    """torch._utils._rebuild_tensor_v2. `metadata` may say {"neg": True}: the tensor has the negated elements."""
    if metadata and (not isinstance(metadata, dict) or any(metadata.values())):
        what = "a tensor negates or conjugates the elements that it has in the file"
        raise SourceError(what, hint="save tensor.resolve_neg().resolve_conj() instead of it")
    if not isinstance(storage, Storage) or not _sizes(shape) or not _sizes(strides) or not _sizes((offset,)):
        raise damaged("the sizes of a tensor are not integers")
    if len(shape) != len(strides):
        raise damaged(f"a tensor has {len(shape)} sizes and {len(strides)} strides")
    if not storage.dtype:
        raise damaged("the storage of a tensor has no dtype")
    return storage.tensor(shape, strides, offset)


def first_form(value: Any) -> StoredTensor | None:
    """A tensor as the first versions of PyTorch pickled it: an object with a state. None for any other object."""
    if isinstance(value, Inert) and value.class_name.startswith("torch.") and value.class_name.endswith("Tensor"):
        match value.state:
            case (Storage() as storage, offset, shape, strides):
                return _tensor(storage, offset, shape, strides)
    return None


def _tensor_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> StoredTensor:
    if isinstance(dtype, InertClass):
        raise SourceError(f"not supported: a tensor of {dtype.name}", hint="save it in another type")
    if not isinstance(storage, Storage) or not isinstance(dtype, TorchDType):
        raise SourceError("a tensor is not based on a storage with a dtype")
    elements = storage.as_dtype(DTYPES[dtype.name])
    if not dtype.name.endswith("_x2"):
        return _tensor(elements, offset, shape, strides, metadata=metadata)
    return _pairs_of_elements(_tensor(elements, offset, shape, strides, metadata=metadata))


def _pairs_of_elements(tensor: StoredTensor) -> StoredTensor:
    """The elements of a tensor of pairs of them: the last dimension has all elements of a row, one after another."""
    if not tensor.shape or (tensor.strides[-1] != 1 and tensor.shape[-1] > 1):
        raise SourceError("not supported: a transposed tensor of 4-bit elements", hint="save tensor.contiguous()")
    shape, strides = (*tensor.shape[:-1], 2 * tensor.shape[-1]), (*(2 * each for each in tensor.strides[:-1]), 1)
    return tensor.storage.tensor(shape, strides, 2 * tensor.offset)


def _quantized(
    storage: Any, offset: Any, shape: Any, strides: Any, quantizer: Any, _grad: Any = False, _hooks: Any = None
) -> StoredTensor:
    tensor = _tensor(storage, offset, shape, strides)
    match quantizer:
        case (QScheme("per_tensor_affine"), float() | int() as scale, int(zero_point)):
            tensor.quantizer = PerTensor(float(scale), zero_point)
        case (QScheme(name), list() as scales, list() as zero_points, int(axis)) if (
            name != "per_tensor_affine" and _numbers(scales, zero_points)
        ):
            tensor.quantizer = PerChannel(
                StoredTensor.of(scales, "float64"), StoredTensor.of(zero_points, "int64"), axis
            )
        case (QScheme(name), StoredTensor() as scales, StoredTensor() as zero_points, int(axis)) if (
            name != "per_tensor_affine" and _are_parameters(scales, zero_points)
        ):
            tensor.quantizer = PerChannel(scales, zero_points, axis)
    if tensor.quantizer is None or not _fits(tensor.quantizer, tensor.shape):
        raise damaged("the scales and zero points of a quantized tensor do not fit it")
    return tensor


def _fits(quantizer: PerTensor | PerChannel, shape: tuple[int, ...]) -> bool:
    if isinstance(quantizer, PerTensor):
        return abs(quantizer.zero_point) <= 1 << 31
    if not 0 <= quantizer.axis < len(shape):
        return False
    return quantizer.scale.shape == quantizer.zero_point.shape == (shape[quantizer.axis],)


def _are_parameters(scales: StoredTensor, zero_points: StoredTensor) -> bool:
    """Whether tensors of these types are scales and zero points per channel.

    PyTorch calls the scheme of an embedding, whose zero points are floats, per_channel_affine in some versions.
    """
    if scales.quantizer is not None or zero_points.quantizer is not None:
        return False
    scale, point = (ELEMENTS[each.dtype].kind if each.dtype in ELEMENTS else "" for each in (scales, zero_points))
    return scale == "f" and point in ("i", "u", "f")


def _sizes(values: Any) -> bool:
    """Whether these are integers in the range of int64; their values are checked when they are used."""
    return isinstance(values, tuple) and len(values) <= 64 and all(type(v) is int and abs(v) < 1 << 63 for v in values)


def _numbers(scales: list[Any], zero_points: list[Any]) -> bool:
    return all(type(scale) is float for scale in scales) and all(
        type(point) is int and abs(point) < 1 << 31 for point in zero_points
    )


def _subclass(cls: Any, dtype: Any, shape: Any, *_: Any) -> Subclass:
    """torch._utils._rebuild_wrapper_subclass; strides, offset, layout and device are ignored."""
    if not isinstance(cls, InertClass) or not isinstance(dtype, TorchDType) or not _sizes(shape):
        raise damaged("the sizes of a tensor subclass are not integers")
    return Subclass(cls.name, dtype.name, shape)


def _parameter(data: Any, _grad: Any, _hooks: Any, state: Any) -> Any:
    """A parameter with attributes, which are not kept."""
    _refuse_other_data(state)
    return data


def _refuse_other_data(state: Any) -> None:
    """SourceError for attributes that change the elements of a tensor: torch._utils._set_obj_state assigns them."""
    for each in state if isinstance(state, tuple) else (state,):
        if isinstance(each, Inert) or (isinstance(each, dict) and not each.keys().isdisjoint(_ELEMENTS)):
            raise SourceError("an attribute of a tensor replaces its elements")


_ELEMENTS = "data", "real", "imag", "__class__"


def rebuilt(rebuild: Any, _type: Any, arguments: Any, state: Any = None) -> Any:
    """A tensor subclass, or a tensor with attributes. Attributes are kept only for a Subclass."""
    _refuse_other_data(state)
    makers = _tensor, _tensor_v3, _quantized, _subclass, _first, _parameter  # not this one: it would recurse
    makes_tensors = isinstance(rebuild, Rebuild) and rebuild.function in makers
    if not makes_tensors or not isinstance(arguments, tuple):
        hint = "save dense tensors of PyTorch's own class"
        raise SourceError("a tensor is created by a function that does not create tensors", hint=hint)
    tensor = rebuild.function(*arguments)
    if isinstance(tensor, Subclass) and isinstance(state, dict):
        tensor.state = state
    return tensor


def _size(items: Any = ()) -> tuple[Any, ...]:
    """torch.Size; characters of a text would be new objects."""
    if not isinstance(items, list | tuple):
        raise damaged("a size is not a list of integers")
    return tuple(items)


def _first(value: Any, *_: Any) -> Any:
    return value


_NUMBERS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
"""NumPy's types of numbers → struct's."""


def _encoded(text: Any, encoding: Any) -> Any:
    """Bytes, which are a text in protocol 2."""
    if isinstance(text, str) and encoding == "latin1":
        return text.encode("latin-1")
    return Inert("_codecs.encode", (text, encoding))


def _scalar(dtype: Any, data: Any) -> Any:
    """A number or text of NumPy."""
    match dtype, data:
        case Inert(class_name="numpy.dtype", arguments=(str(kind), *_), state=(_, str(order), *_)), bytes(raw):
            if kind in _NUMBERS and len(raw) <= 8:
                return struct.unpack((">" if order == ">" else "<") + _NUMBERS[kind], raw)[0]
            if kind.startswith("U"):
                text = raw.decode("utf-32-be" if order == ">" else "utf-32-le", "backslashreplace").rstrip("\0")
                return Escaped(text) if "\\" in text else text
    return Inert("numpy.generic", (dtype, data))


def _device(kind: Any, index: Any = None) -> str:
    """torch.device, as torch prints it."""
    if not isinstance(kind, str) or not (index is None or (isinstance(index, int) and 0 <= index < 1 << 31)):
        raise damaged("a device is not a name and a number")
    return kind if index is None else f"{kind}:{index}"


DENSE, SPREAD = 1 << 16, 8
"""Keys that are integers are below the one, or that many times the size of their dict."""

KEY_PARTS, KEY_TEXT = 16, 1000
"""The most parts of a tuple, and characters of its texts, that are shown."""


def flat_key(key: Any, size: int) -> Any:
    """The key of a dict of `size` keys, if it is fast to hash, and a file cannot choose its hash; else SourceError.

    A file can choose numbers, and tuples of numbers, whose hashes are equal or lead to the same places of a dict, which
    makes it quadratic. (The hashes of strings are randomized.) Integers that are small beside `size` leave it few
    choices.
    """
    if not _is_flat(key, size):
        raise SourceError(f"a dict has a {type(key).__name__} as a key, which is not supported")
    return key


def _is_flat(key: Any, size: int) -> bool:
    small = isinstance(key, int) and abs(key) < max(DENSE, SPREAD * size)
    return key is None or small or (isinstance(key, str | bytes | TorchDType) and not isinstance(key, Escaped))


def safe_key(key: Any, number: int, size: int) -> Any:
    """The same, or a ShownKey, but for a list or dict. `number` is the place in the dict."""
    return flat_key(key, size) if isinstance(key, list | dict) or _is_flat(key, size) else ShownKey(key, number)


@dataclass(frozen=True, slots=True, eq=False)
class ShownKey:
    """A key that is not hashed, equal to no other. As a text: a number, a short tuple, or what it is and its number."""

    key: Any
    number: int

    def __str__(self) -> str:
        if isinstance(self.key, int | float | str) or _is_short(self.key):
            return str(self.key)
        given = self.key.arguments if isinstance(self.key, Inert) else ()
        if given and _is_short(given) and all(isinstance(each, str) for each in given):  # of a subclass of str, a path
            return "/".join(given)
        kind = self.key.class_name if isinstance(self.key, Inert) else type(self.key).__name__
        return f"({kind} {self.number})"


def _is_short(key: Any) -> bool:
    """Whether it is a tuple of few numbers and texts, each of which may be in the file once only."""
    if type(key) is not tuple or len(key) > KEY_PARTS:
        return False
    texts = [part for part in key if isinstance(part, str | bytes | TorchDType)]
    numbers = [part for part in key if isinstance(part, int | float)]
    return len(texts) + len(numbers) == len(key) and sum(map(len, texts)) <= KEY_TEXT


def pairs(items: Any = ()) -> dict[Any, Any]:
    """The dict of pairs of a key and a value."""
    sequences = isinstance(items, list | tuple) and all(isinstance(each, list | tuple) for each in items)
    if not sequences or any(len(each) != 2 for each in items):
        raise SourceError("the items of a dict are not pairs")
    return {flat_key(key, len(items)): value for key, value in items}


DTYPES = {
    "uint8": "uint8", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "bool": "bool",
    "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float64",
    "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2", "float8_e4m3fnuz": "float8_e4m3fnuz",
    "float8_e5m2fnuz": "float8_e5m2fnuz", "float8_e8m0fnu": "float8_e8m0fnu", "float4_e2m1fn_x2": "float4_e2m1fn",
    "complex64": "complex64", "complex128": "complex128",
    "qint8": "int8", "quint8": "uint8", "qint32": "int32", "quint4x2": "uint4", "quint2x4": "uint2",
}  # fmt: skip
"""PyTorch's dtypes → qfmt's; quantized ones map to the integers they store."""

_STORAGES = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool",
    "Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
    "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2", "Float8_e4m3fnuz": "float8_e4m3fnuz",
    "Float8_e5m2fnuz": "float8_e5m2fnuz", "Float8_e8m0fnu": "float8_e8m0fnu",
    "UInt16": "uint16", "UInt32": "uint32", "UInt64": "uint64",
    "QInt8": "int8", "QUInt8": "uint8", "QInt32": "int32", "QUInt4x2": "uint4", "QUInt2x4": "uint2",
    "Untyped": "",
}  # fmt: skip

HARMLESS: Mapping[str, Any] = {
    "collections.OrderedDict": Rebuild(pairs, PAIR),
    "torch._utils._rebuild_tensor": Rebuild(_tensor),
    "torch._utils._rebuild_tensor_v2": Rebuild(_tensor),
    "torch._utils._rebuild_tensor_v3": Rebuild(_tensor_v3),
    "torch._utils._rebuild_qtensor": Rebuild(_quantized, 16),
    "torch._utils._rebuild_parameter": Rebuild(_first),
    "torch.autograd.variable.Variable": Rebuild(_first),
    "torch.nn.parameter.Parameter": Rebuild(_first),
    "torch._utils._rebuild_parameter_with_state": Rebuild(_parameter),
    "torch._utils._rebuild_wrapper_subclass": Rebuild(_subclass),
    "torch.tensor._rebuild_from_type": Rebuild(rebuilt, 16),
    "torch._tensor._rebuild_from_type": Rebuild(rebuilt, 16),
    "torch._tensor._rebuild_from_type_v2": Rebuild(rebuilt, 16),
    "torch.Size": Rebuild(_size, 16),
    "torch.device": Rebuild(_device, 4),
    "_codecs.encode": Rebuild(_encoded, 1),
    "numpy.core.multiarray.scalar": Rebuild(_scalar, 1),
    "numpy._core.multiarray.scalar": Rebuild(_scalar, 1),
    "torch.jit._pickle.restore_type_tag": Rebuild(_first),
    **{f"torch.jit._pickle.build_{kind}list": Rebuild(_first) for kind in ("int", "double", "bool", "tensor")},
    **{f"torch.{name}Storage": StorageType(dtype) for name, dtype in _STORAGES.items()},
    **{f"torch.storage.{name}Storage": StorageType(dtype) for name, dtype in _STORAGES.items()},
    **{f"torch.{name}": TorchDType(name) for name in DTYPES},
    **{
        f"torch.{name}": QScheme(name)
        for name in ("per_tensor_affine", "per_channel_affine", "per_channel_affine_float_qparams")
    },
}
"""Qualified name that a pickle may refer to → its replacement."""


def harmless(module: str, name: str) -> Any:
    """The replacement of a global in a TorchScript archive: an entry of HARMLESS, or an inert class."""
    known = HARMLESS.get(f"{module}.{name}")
    if known is None and module.partition(".")[0] == "__torch__":
        return InertClass(f"{module}.{name}")
    return known


PLAIN_MODULES = {
    "_codecs", "abc", "argparse", "array", "bisect", "calendar", "collections", "configparser", "contextlib", "copy",
    "copy_reg", "copyreg", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq", "inspect",
    "ipaddress", "itertools", "json", "logging", "math", "ntpath", "numbers", "operator", "optparse", "pathlib",
    "posixpath", "queue", "random", "re", "statistics", "string", "time", "traceback", "types", "typing", "uuid",
    "weakref", "zoneinfo",
}  # fmt: skip
"""Modules of Python's library whose names occur in checkpoints and modules, as do those of the modules in C whose names
have an underscore in front."""

PLAIN_NAMES = {
    "_io.BytesIO", "_io.StringIO", "distutils.version.LooseVersion", "distutils.version.StrictVersion",
    "http.HTTPStatus", "io.BytesIO", "io.StringIO", "nt.stat_result", "nt.terminal_size", "os.stat_result",
    "os.terminal_size", "platform.uname_result", "posix.uname_result", "signal.Handlers", "signal.Signals",
    "socket.AddressFamily", "socket.SocketKind",
}  # fmt: skip
"""Names of other modules that occur: records of settings and machines."""

PLAIN_BUILTINS = {
    "Ellipsis", "NoneType", "NotImplemented", "abs", "all", "any", "bool", "bytearray", "bytes", "callable", "chr",
    "complex", "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "getattr", "hasattr", "hash",
    "int", "isinstance", "issubclass", "iter", "len", "list", "long", "map", "max", "min", "next", "object", "ord",
    "pow", "print", "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "type",
    "unicode", "xrange", "zip",
    *(name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)),
}  # fmt: skip

ATTACKERS_TOOLS = {
    "operator.attrgetter", "operator.delitem", "operator.methodcaller", "operator.setitem", "types.CodeType",
    "types.FunctionType",
}  # fmt: skip


LIBRARY = sys.stdlib_module_names | {
    "aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "commands", "crypt", "distutils", "imghdr",
    "imp", "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "popen2", "smtpd", "sndhdr",
    "spwd", "sunau", "telnetlib", "uu", "xdrlib",
}  # fmt: skip
"""Modules of Python's library, also those that some versions lack: the answer is the same on all of them."""

SAME_MODULES = {"_operator": "operator", "_types": "types"}
"""The name of a module in a pickle → its usual name."""


def _of_python_3(module: str, name: str) -> tuple[str, str]:
    """The names of Python 2, which protocol 2 has, in Python 3."""
    return NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))


def harmless_or_inert(module: str, name: str) -> Any:
    """The replacement of a global in a torch.save file: an entry of HARMLESS, or an inert class.

    Inert classes are never called. Names that only an attack would use, such as `os.system`, are refused all the
    same, so that the user knows.
    """
    module, name = _of_python_3(module, name)
    module = SAME_MODULES.get(module, module)
    package, qualified = module.partition(".")[0], f"{module}.{name}"
    if "." in name:  # of a part of a module or class, which must not be taken for that of another module
        qualified = f"{module}:{name}"
    if package == "builtins":
        known = name in PLAIN_BUILTINS
    else:
        is_plain = not PLAIN_MODULES.isdisjoint((package, package.removeprefix("_")))
        known = is_plain or qualified in PLAIN_NAMES or package not in LIBRARY
    if qualified in ATTACKERS_TOOLS or not known:
        return None
    return HARMLESS.get(qualified, InertClass(qualified))
