"""What a validity rule is, and how rules are applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ..errors import Violation, shortened

SHOWN = 100
"""The most characters of a name that are shown."""

Check = TypeVar("Check", bound=Callable[..., str])


class Rule(NamedTuple):
    """One rule: its number, its sentence in spec.md, and the check that says what is wrong; "" if nothing is."""

    number: str
    sentence: str
    check: Callable[..., str]


class Stage:
    """Rules about one subject that do not rely on each other, only on the stages before."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def rule(self, number: int, sentence: str) -> Callable[[Check], Check]:
        """Make the decorated check the rule of that number."""

        def register(check: Check) -> Check:
            self.rules.append(Rule(f"V{number}", sentence, check))
            return check

        return register

    def also(self, number: int) -> Callable[[Check], Check]:
        """Make the decorated check another part of a rule, of which a different stage has the sentence."""
        return self.rule(number, "")

    def broken(self, where: str | Callable[[], str], *subject: object) -> list[Violation]:
        """The violations of this stage's rules by `subject`; `where` names it, and is called only when needed."""
        found = []
        for number, _, check in self.rules:
            if what := check(*subject):
                found.append(Violation(number, where if isinstance(where, str) else where(), what))
        return found


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(text: str) -> bool:
    """Whether it is text, and UTF-8 can hold it, and a C string too."""
    try:
        return isinstance(text, str) and b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def quoted(name: str) -> str:
    """A name in a finding, shortened: findings about thousands of nodes must not repeat a long name in full."""
    return repr(shortened(name, SHOWN) if isinstance(name, str) else name)


def first_of(names: Sequence[str]) -> str:
    """The first name, and how many more there are."""
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{quoted(names[0])}{more}"
