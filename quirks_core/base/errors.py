"""The errors that reach a person, each with the exit code the command line gives it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from quirks_core.base.text import printable


class QuirksError(Exception):
    """Base of every error this project raises on purpose. The command line prints it on one line, without a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())  # it may quote a checkpoint, a plugin or an engine


class UsageError(QuirksError):
    """What the user typed or pointed at cannot be used: an unknown name, an unreadable file, a wrong value."""

    exit_code = 2


class DeclarationError(QuirksError):
    """A quirk's declaration is wrong. Raised while its module is imported, so only that plugin breaks."""

    exit_code = 3


class BrokenPluginsError(QuirksError):
    """There are broken plugins, in strict mode; the message lists all of them."""

    exit_code = 3

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(["broken plugins (strict mode):", *(f"- {text}" for text in problems)]))


class PatchDriftError(QuirksError):
    """A patch's target is no longer the source that the patch was written against."""


class ReceiptError(QuirksError):
    """A process did not acknowledge the plan, acknowledged another one, or the engine runs with other values."""


def words(error: BaseException) -> str:
    """Returns type and message of another package's error, on one line of limited length."""
    return shortened(f"{type(error).__name__}: {error}")


def shown(value: object, most: int = 500) -> str:
    """Returns the `repr` of a value on one line, cut to a number of characters."""
    return shortened(repr(value), most)


def shortened(text: str, most: int = 500) -> str:
    """Returns a text on one line, cut to a number of characters, that any terminal and file can take."""
    line = " ".join(text[: 4 * most].split())
    return printable(line if len(line) <= most else f"{line[:most]}…")


def problem_of_text(name: str, value: object) -> str | None:
    """Returns what is wrong with a text of a declaration; None if it is a text."""
    return None if isinstance(value, str) else f"{name} must be a text, not {shown(value)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the closest known name, as the end of an error message.

    Returns:
        ``"; did you mean 'x'?"``, or an empty string if nothing comes close.
    """
    names = sorted(map(str, known))  # of an enumeration member, the text
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.55)
    if not close:  # 'load_format' for 'engine.load_format': the last part alone may be enough
        close = [candidate for candidate in names if candidate.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    return f"; did you mean {close[0]!r}?" if close else ""
