"""Numbers on the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def positive(text: str) -> int:
    """Reads a whole number above 0."""
    return int(_number(text, int, lambda number: number > 0, "a whole number above 0"))


def seconds(text: str) -> float:
    """Reads a number of seconds above 0."""
    return _number(text, float, lambda number: 0 < number < math.inf, "a number of seconds above 0")


def share(text: str) -> float:
    """Reads a number between 0 and 1, neither included."""
    return _number(text, float, lambda number: 0 < number < 1, "a number between 0 and 1")


def _number(text: str, kind: Callable[[str], float], is_one: Callable[[float], bool], what: str) -> float:
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not is_one(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number
