"""The errors that reach a person, each with the exit code the command line gives it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class QuirksError(Exception):
    """Base of every error this project raises on purpose. The command line prints it on one line, without a traceback."""

    exit_code = 1


class UsageError(QuirksError):
    """What the user typed or pointed at cannot be used: an unknown name, an unreadable file, a wrong value."""

    exit_code = 2


class DeclarationError(QuirksError):
    """A quirk's declaration is wrong. Raised while its module is imported, so only that plugin breaks."""

    exit_code = 3


class PatchDriftError(QuirksError):
    """A patch's target is no longer the source that the patch was written against."""


class ReceiptError(QuirksError):
    """A process did not acknowledge the plan, acknowledged another one, or the engine runs with other values."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Says which known name comes closest, as the end of an error message.

    Args:
        name: What was typed.
        known: The names that exist.

    Returns:
        ``"; did you mean 'x'?"``, or an empty string if nothing comes close.
    """
    names = sorted(map(str, known))  # of an enumeration member, the text
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.55)
    if not close:  # 'load_format' for 'engine.load_format': the last part alone may say it all
        close = [candidate for candidate in names if candidate.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    return f"; did you mean {close[0]!r}?" if close else ""
