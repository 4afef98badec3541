"""Pickle's stack machine, for the opcodes that PyTorch writes; each is charged before it is executed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sized
from mmap import mmap
from typing import Any

from ..budget import Budget, reading
from ..errors import SourceError, UnsafePickleError
from .harmless import PAIR, Escaped, Inert, InertClass, Rebuild, ShownKey, StorageType, rebuilt, safe_key
from .stored import Storage, StoredTensor

GRAPHS = "torch.fx.graph_module."
"""The names of functions that trace the code of a module when they are called."""

LONGEST_NAME = 1000
"""Characters of the name of a class, which each of its objects may copy."""

SHOWN = 80
"""Bytes of a ShownKey."""

_U8, _U32, _U64 = map(struct.Struct, ("<B", "<I", "<Q"))


class Machine:
    """Pickle's stack machine. Opcodes are methods with the names of `pickletools`."""

    def __init__(
        self,
        data: bytes | mmap,
        position: int,
        storage: Callable[[str, str], Storage],
        find_global: Callable[[str, str], Any],
        budget: Budget,
    ) -> None:
        self.data = data
        self.budget = budget
        self.position = position
        self.storage = storage
        self.find_global = find_global
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: list[Any] = []
        self.gaps = 0
        """Numbers of the memo that nothing has."""
        self.sealed: dict[int, Any] = {}
        """States that an object copied, by identity: a later change has no effect on it."""

    def run(self) -> Any:
        data, opcodes, budget = self.data, _OPCODES, self.budget
        while True:
            if self.position >= len(data):
                raise SourceError("the pickle is incomplete", hint="the file is truncated")
            code = data[self.position]
            if code not in opcodes:
                hint = "the file is damaged, or not written by PyTorch"
                raise SourceError(f"the pickle uses opcode {code:#04x}, which PyTorch does not write", hint=hint)
            opcode, size = opcodes[code]
            self.position += 1
            if opcode is _stop:
                return self.stack.pop()
            budget.spend()
            budget.allocate(size)
            opcode(self)

    def take(self, count: int) -> bytes:
        piece = self.data[self.position : self.position + count]
        if len(piece) != count:
            raise SourceError("the pickle is incomplete", hint="the file is truncated")
        self.position += count
        if count > 8:
            self.budget.allocate(count)
        return piece

    def number(self, kind: struct.Struct) -> Any:
        return kind.unpack(self.take(kind.size))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise IndexError
        text = self.data[self.position : end].decode()
        self.position = end + 1
        return text

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        self.budget.allocate(8 * len(items))  # for a copy in what is made of them
        return items

    def resolve(self, module: str, name: str) -> None:
        if len(module) + len(name) > LONGEST_NAME:
            raise SourceError(f"the name of a class has {len(module) + len(name):,} characters")
        meaning = self.find_global(module, name)
        if meaning is None:
            raise UnsafePickleError(
                f"the pickle refers to {f'{module}.{name}'[:100]!a}, which is not on the list of safe types",
                hint="nothing was executed; do not load this file with torch unless you trust its author",
            )
        self.push(meaning)

    def make(self, maker: Any, arguments: Any) -> Any:
        """Call one of qfmt's rebuilders, or record the arguments of an inert object."""
        if isinstance(maker, InertClass):  # TorchScript passes the bare value to an enumeration
            if maker.name.startswith((GRAPHS, "builtins.", "collections.")) and isinstance(arguments, tuple):
                self.seal(*arguments)
            return Inert(maker.name, arguments if isinstance(arguments, tuple) else (arguments,))
        if isinstance(maker, Inert):  # such as a functools.partial or a method
            return Inert(maker.class_name, (maker, arguments))
        if not isinstance(arguments, tuple):
            raise SourceError("the arguments of an object are not a tuple")
        if isinstance(maker, Rebuild):
            self._charge_copies(arguments, maker.copied)
            if maker.function is rebuilt:
                state = arguments[-1]
                self.seal(*state if isinstance(state, tuple) else (state,))
            return maker.function(*arguments)
        raise SourceError(f"the pickle calls a {type(maker).__name__}, which is not a function")

    def seal(self, *copied: Any) -> None:
        """Note that these dicts and lists must not change any more."""
        self.sealed.update((id(each), each) for each in copied if isinstance(each, dict | list))

    def _charge_copies(self, arguments: tuple[Any, ...], copied: int) -> None:
        """Charge for all elements that a rebuilder may read or copy; a file can pass it the same list many times."""
        waiting: list[Any] = [arguments]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Sized):
                self.budget.spend(len(value))
                self.budget.allocate(len(value) * copied)
            if isinstance(value, list | tuple):
                waiting.extend(value)


def _filled(machine: Machine, kind: type) -> Any:
    """The container that gets items: that of an object whose class remains a name, such as a subclass of dict or a
    deque."""
    target = machine.stack[-1]
    if id(target) in machine.sealed:
        raise SourceError("a state changes after an object copied it")
    if isinstance(target, Inert) and not target.class_name.startswith("__torch__."):
        if target.items is None:
            target.items = kind()
        return target.items
    return target


def _setitems(machine: Machine, items: list[Any]) -> None:
    target = _filled(machine, dict)
    if type(target) is not dict or len(items) % 2:
        raise SourceError("items are assigned to something that is not a dict")
    size = len(target) + len(items) // 2
    machine.budget.allocate(max(len(items) // 2, 2) * PAIR)
    machine.budget.spend(sum(map(reading, items[::2])))
    for index in range(0, len(items), 2):
        key = safe_key(items[index], len(target), size)
        if isinstance(key, ShownKey):
            machine.budget.allocate(SHOWN)
        target[key] = items[index + 1]


def _extend(machine: Machine, items: list[Any]) -> None:
    target = _filled(machine, list)
    if type(target) is not list:
        raise SourceError("items are appended to something that is not a list")
    target.extend(items)


def _add_to_set(machine: Machine) -> None:
    """Sets are objects with a list, as in protocol 2: their elements need no hash."""
    items = machine.since_mark()
    match machine.stack[-1]:
        case Inert(class_name="builtins.set", arguments=(list() as elements,)):
            elements.extend(items)
        case _:
            raise SourceError("items are added to something that is not a set")


def _memoize(machine: Machine, index: int) -> None:
    """Picklers number what they memoize from 0 on; that of Python 2 from 1 on."""
    value, skipped = machine.stack[-1], index - len(machine.memo)
    if skipped < 0:
        machine.gaps -= machine.memo[index] is _NOTHING
        machine.memo[index] = value
        return
    machine.budget.allocate(8 * skipped)
    machine.gaps += skipped
    machine.memo += [_NOTHING] * skipped
    machine.memo.append(value)


_NOTHING = object()


def _recall(machine: Machine, index: int) -> None:
    if machine.memo[index] is _NOTHING:
        raise IndexError
    machine.push(machine.memo[index])


def _tuple(count: int) -> Callable[[Machine], None]:
    def build(machine: Machine) -> None:
        if len(machine.stack) < count:
            raise IndexError
        machine.stack[-count:] = [tuple(machine.stack[-count:])]

    return build


def _string(size: struct.Struct) -> Callable[[Machine], None]:
    return lambda machine: machine.push(_text(machine.take(machine.number(size))))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raw.decode("utf-8", "surrogatepass")  # what Python reads
        return Escaped(raw.decode("utf-8", "backslashreplace"))


def _old_string(size: struct.Struct) -> Callable[[Machine], None]:
    """Strings of Python 2, which may be bytes."""
    return lambda machine: machine.push(machine.take(machine.number(size)).decode("utf-8", "backslashreplace"))


def _bytes(size: struct.Struct) -> Callable[[Machine], None]:
    return lambda machine: machine.push(machine.take(machine.number(size)))


def _constant(value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.push(value)


def _fixed(kind: struct.Struct) -> Callable[[Machine], None]:
    return lambda machine: machine.push(machine.number(kind))


def _mark(machine: Machine) -> None:
    machine.marks.append(machine.stack)
    machine.budget.reach("marks", 72 * len(machine.marks))
    machine.stack = []


def _long(machine: Machine) -> None:
    count = machine.number(_U8)
    if count > 32:
        raise SourceError(f"an integer of {count} bytes is larger than any that PyTorch writes")
    machine.push(int.from_bytes(machine.take(count), "little", signed=True))


def _global(machine: Machine) -> None:
    machine.resolve(machine.line(), machine.line())


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if not isinstance(module, str) or not isinstance(name, str):
        raise SourceError("the name of a global is not a string")
    machine.resolve(module, name)


def _reduce(machine: Machine) -> None:
    arguments, maker = machine.stack.pop(), machine.stack.pop()
    machine.push(machine.make(maker, arguments))


def _newobj(machine: Machine) -> None:
    arguments, maker = machine.stack.pop(), machine.stack.pop()
    if not isinstance(maker, InertClass):
        raise SourceError("an object is created from something that is not a class")
    machine.push(machine.make(maker, arguments))


def _newobj_ex(machine: Machine) -> None:
    keywords, arguments, maker = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.stack += [maker, (arguments, keywords)]
    _newobj(machine)


def _build(machine: Machine) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    if isinstance(target, Inert):
        if target.state is not None:  # torch merges dicts, and calls `__setstate__` again
            raise SourceError("an object gets two states")
        target.state = state
        machine.seal(state)
    elif type(target) is not dict and not _is_of_old_tensor(target, state):  # a state_dict has its `_metadata` as state
        raise SourceError(f"a {type(target).__name__} gets a state, but supports none")


def _is_of_old_tensor(target: Any, state: Any) -> bool:
    """Whether it is the state of a parameter of PyTorch 0.3. Other states replace the elements."""
    match state:
        case (bool(), bool(), dict() | None):  # requires_grad, volatile, hooks
            return isinstance(target, StoredTensor)
    return False


def _persistent(machine: Machine) -> None:
    found = machine.stack.pop()
    if isinstance(found, tuple):  # it may be from the memo
        machine.budget.spend(len(found) + sum(map(reading, found)))
    match found:
        # Before PyTorch 0.2, a storage within another was saved with its place in that one: a view.
        case ("storage", StorageType(dtype), str(key), str(), int(), *view) if not any(view):
            machine.push(machine.storage(key, dtype))
        case ("module", InertClass() as cls, *_):  # before PyTorch 1.6 classes of modules were saved with their source
            machine.push(cls)
        case _:
            raise SourceError("the pickle refers to an external object that is not a storage")


def _pop(machine: Machine) -> None:
    machine.stack.pop()


def _pop_mark(machine: Machine) -> None:
    machine.since_mark()


def _skip(count: int) -> Callable[[Machine], None]:
    def skip(machine: Machine) -> None:
        machine.take(count)

    return skip


def _stop(machine: Machine) -> None:
    """The last opcode; `run` returns."""


def _opcodes() -> Iterator[tuple[str, Callable[[Machine], None]]]:
    yield ".", _stop
    yield "\x80", _skip(1)  # PROTO
    yield "\x95", _skip(8)  # FRAME
    yield "(", _mark
    yield "0", _pop
    yield "1", _pop_mark
    yield "N", _constant(None)
    yield "\x88", _constant(True)
    yield "\x89", _constant(False)
    yield "J", _fixed(struct.Struct("<i"))
    yield "K", _fixed(_U8)
    yield "M", _fixed(struct.Struct("<H"))
    yield "G", _fixed(struct.Struct(">d"))
    yield "\x8a", _long
    yield "X", _string(_U32)
    yield "\x8c", _string(_U8)
    yield "\x8d", _string(_U64)
    yield "U", _old_string(_U8)
    yield "T", _old_string(_U32)
    yield "B", _bytes(_U32)
    yield "C", _bytes(_U8)
    yield "\x8e", _bytes(_U64)
    yield "\x96", _bytes(_U64)
    yield ")", _constant(())
    yield "t", lambda machine: machine.push(tuple(machine.since_mark()))
    yield "\x85", _tuple(1)
    yield "\x86", _tuple(2)
    yield "\x87", _tuple(3)
    yield "]", lambda machine: machine.push([])
    yield "l", lambda machine: machine.push(machine.since_mark())
    yield "a", lambda machine: _extend(machine, [machine.stack.pop()])
    yield "e", lambda machine: _extend(machine, machine.since_mark())
    yield "}", lambda machine: machine.push({})
    yield "s", lambda machine: _setitems(machine, [machine.stack.pop(-2), machine.stack.pop()])
    yield "u", lambda machine: _setitems(machine, machine.since_mark())
    yield "\x8f", lambda machine: machine.push(Inert("builtins.set", ([],)))
    yield "\x90", _add_to_set
    yield "\x91", lambda machine: machine.push(Inert("builtins.frozenset", (machine.since_mark(),)))
    yield "q", lambda machine: _memoize(machine, machine.number(_U8))
    yield "r", lambda machine: _memoize(machine, machine.number(_U32))
    yield "\x94", lambda machine: _memoize(machine, len(machine.memo) - machine.gaps)
    yield "h", lambda machine: _recall(machine, machine.number(_U8))
    yield "j", lambda machine: _recall(machine, machine.number(_U32))
    yield "c", _global
    yield "\x93", _stack_global
    yield "R", _reduce
    yield "\x81", _newobj
    yield "\x92", _newobj_ex
    yield "b", _build
    yield "Q", _persistent


_SIZES = {
    ord(code): size
    for codes, size in (
        ("}", 80), ("]lt\x85\x86\x87", 72), ("\x8f\x91", 216), ("qr\x94", 16), ("GJM\x8a", 40),
        ("XT\x8d\x8cUBC\x8e\x96", 64), ("Rb\x81\x92", 100), ("c\x93Q", 200),
    )
    for code in codes
}  # fmt: skip
"""Approximate memory in bytes of the object that an opcode creates, besides its text; by default a stack slot."""

_OPCODES = {ord(code): (opcode, _SIZES.get(ord(code), 8)) for code, opcode in _opcodes()}
"""Each opcode, and the memory that it is charged for."""
