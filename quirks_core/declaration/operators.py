"""How a fact is compared: a closed set of operators, each with its words and those of its negation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple


class Operator(NamedTuple):
    """How a fact is compared with an operand; what is wanted, and what the negation wants, in words."""

    test: Callable[[Any, Any], bool]
    words: Callable[[Any], str]
    contrary: Callable[[Any], str]


@lru_cache(maxsize=4096)  # the cache of `re` itself is smaller than a large registry
def compiled(pattern: str) -> re.Pattern[str]:
    """Compiles a regular expression; case does not count."""
    return re.compile(pattern, re.IGNORECASE)


def _listed(values: tuple[Any, ...], joint: str) -> str:
    return joint.join(str(value) for value in values)


#: The closed set of comparisons; a condition names one, so that a declaration is data.
OPERATORS: Mapping[str, Operator] = {
    "above": Operator(lambda got, bound: bool(got > bound), lambda bound: f"> {bound}", lambda bound: f"<= {bound}"),
    "any_in": Operator(
        lambda got, values: any(value in got for value in values),
        lambda values: f"any of {_listed(values, ', ')}",
        lambda values: f"none of {_listed(values, ', ')}",
    ),
    "below": Operator(lambda got, bound: bool(got < bound), lambda bound: f"< {bound}", lambda bound: f">= {bound}"),
    "differs_from": Operator(lambda got, other: bool(got != other), lambda other: f"other than {other}", str),
    "indivisible_by": Operator(
        lambda got, divisor: bool(got % divisor),
        lambda divisor: f"not a multiple of {divisor}",
        lambda divisor: f"a multiple of {divisor}",
    ),
    "is_not_empty": Operator(lambda got, _: bool(got), lambda _: "something", lambda _: "nothing"),
    "is_set": Operator(lambda _got, _: True, lambda _: "a value", lambda _: "no value"),
    "is_true": Operator(lambda got, _: bool(got), lambda _: "true", lambda _: "false"),
    "matches": Operator(
        lambda got, pattern: compiled(pattern).search(got) is not None,
        lambda pattern: f"text matching /{pattern}/",
        lambda pattern: f"no text matching /{pattern}/",
    ),
    "one_of": Operator(
        lambda got, values: any(one in values for one in got) if isinstance(got, tuple) else got in values,
        lambda values: _listed(values, " or "),
        lambda values: f"other than {_listed(values, ', ')}",
    ),
}

#: Those that can compare with another fact.
BETWEEN_FACTS = ("above", "below", "differs_from", "indivisible_by")
