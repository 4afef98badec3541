"""How many examples Hypothesis tries: some in the suite, twenty times as many with `--hypothesis-profile=long`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

SHORT, LONG = 50, 1000

settings.register_profile("short", deadline=None, max_examples=SHORT)  # no test fails because the machine is busy
settings.register_profile("long", deadline=None, max_examples=LONG)
settings.load_profile("short")


def times(count: int) -> range:
    """As many rounds of a loop as `examples` gives examples: without Hypothesis, which cannot make a seed simpler."""
    return range(count * settings.default.max_examples // SHORT)


def examples(count: int, **options: Any) -> settings:
    """Settings for `count` examples in the suite."""
    return settings(max_examples=count * settings.default.max_examples // SHORT, **options)
