"""Evidence from the source of an installed package, read without importing it: does the quirk apply to it?

A probe also decides whether a source build (``0.1.dev…``) is affected; a version number cannot.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from quirks_core.base.errors import DeclarationError
from quirks_core.declaration.flags import Kind
from quirks_core.declaration.trace import Answer
from quirks_core.facts.packages import distribution_of
from quirks_core.source.vllm_source import INSTALLED, VllmSource


class Probe(ABC):
    """A check of source."""

    __slots__ = ()

    @abstractmethod
    def source(self) -> str:
        """Returns the dotted name of the module that is read."""

    @abstractmethod
    def answer(self, source: VllmSource) -> Answer:
        """Yes: the source has the defect, or is as in a rule. No: it is not. Unknown: no such module, or it shows neither."""

    @property
    def package(self) -> str:
        """The package whose source is read, under the name that version ranges use."""
        return distribution_of(self.source().partition(".")[0])


@dataclass(frozen=True, slots=True)
class StaticProbe(Probe):
    """Searches a module's source for a regular expression.

    Attributes:
        module: Dotted name of the module.
        pattern: The regular expression.
        found_means_affected: True if the quirk applies where the pattern is found; False if it applies where it is not.
    """

    module: str
    pattern: str
    found_means_affected: bool = True

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise DeclarationError(f"StaticProbe of {self.module}: {self.pattern!r} is no pattern: {error}") from None

    def __str__(self) -> str:
        has = "has" if self.found_means_affected else "lacks"
        return f"applies while the source of {self.module} {has} /{self.pattern}/"

    def source(self) -> str:
        """The module."""
        return self.module

    def answer(self, source: VllmSource) -> Answer:
        """Searches."""
        found = source.search(self.module, self.pattern)
        return Answer.UNKNOWN if found is None else _yes(found is self.found_means_affected)


@dataclass(frozen=True, slots=True)
class SymbolProbe(Probe):
    """Looks for a module, class, function, method, constant or field, or for a name that a module imports.

    Inherited names, and names that a module gets by ``import *``, count as missing.

    Attributes:
        target: ``package.module`` or ``package.module:Class.attribute``.
        present_means_affected: True if the quirk applies where it is present; False if it applies where it is not.
    """

    target: str
    present_means_affected: bool

    def __str__(self) -> str:
        return f"applies while there is {'a' if self.present_means_affected else 'no'} {self.target}"

    def source(self) -> str:
        """The target's module."""
        return self.target.partition(":")[0]

    def answer(self, source: VllmSource) -> Answer:
        """Looks; a missing module is an answer as long as its package is installed."""
        module, _, name = self.target.partition(":")
        present = source.module_source(module) is not None
        if source.module_source(module.partition(".")[0]) is None or (present and source.parsed(module) is None):
            return Answer.UNKNOWN
        if name:
            present = source.attribute_source(self.target) is not None or source.imported_from(module, name) is not None
        return _yes(present is self.present_means_affected)


def ask(probe: Probe, package: str | None = None, source: VllmSource = INSTALLED) -> Answer:
    """Runs a probe; if a third party's own kind raises, or it is not of the package in question, the answer is unknown."""
    try:
        answer = probe.answer(source) if package in (None, probe.package) else Answer.UNKNOWN
    except (Exception, SystemExit):  # unknown: the quirk is then unknown too, and plans warn
        return Answer.UNKNOWN
    return answer if isinstance(answer, Answer) else Answer.UNKNOWN


def in_words(answer: Answer, kind: Kind) -> str:
    """Returns what a probe found in a source, as the rest of a sentence that begins with the source.

    What a workaround is about is a bug; a rule or a feature rests on how the source defines something.
    """
    bug = kind is Kind.WORKAROUND
    words = {
        Answer.YES: "has the bug" if bug else "is as declared",
        Answer.NO: "has the fix" if bug else "is not as declared",
        Answer.UNKNOWN: "does not tell",
    }
    return words[answer]


def _yes(value: bool) -> Answer:
    return Answer.YES if value else Answer.NO
