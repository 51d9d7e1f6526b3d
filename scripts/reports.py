"""Says which of a list of bug reports have no quirk, no symptom and no reason why not: what a maintainer reads next.

usage: python scripts/reports.py REPORTS.jsonl [--json]

A line of the file is one report; all but number and title can be missing::

    {"number": "vllm-project/vllm#55193", "title": "…", "words": "…", "versions": {"vllm": "0.28.0"}}

A report is known if a quirk or a page cites its number, or ``scripts/reports.yaml`` has a reason why it has no quirk. All
others are compared with the quirks by the words that both use, where rare words count more (BM25): models, slots, variables,
errors. The shared words are printed, because words alone decide nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.plugins.registry import Registry

_ROOT = Path(__file__).parents[1]
_REASONS = Path(__file__).with_name("reports.yaml")
#: How often a word of a text counts at most, and how much long texts are held back: BM25's usual values.
_SATURATION, _LENGTH = 1.2, 0.75
#: Quirks that are shown for a report.
_SHOWN = 3


@dataclass(frozen=True)
class Likeness:
    """A quirk that has words in common with a report."""

    quirk: str
    score: float
    shared: tuple[str, ...]
    concerned: bool
    """Whether the report's version is in the quirk's range; true if the report has none."""


@dataclass(frozen=True)
class Known:
    """What is known of a report."""

    number: str
    title: str
    cited: tuple[str, ...]
    """Quirks and pages that cite its number."""
    reason: str
    """Why it has no quirk; empty if no reason is noted."""
    like: tuple[Likeness, ...]

    @property
    def known(self) -> bool:
        """Nobody has to read it."""
        return bool(self.cited or self.reason)


class Catalogue:
    """The words of every quirk: its declaration, what it says of itself, and its rows among the symptoms."""

    def __init__(self) -> None:
        self._quirks = {item.quirk.id: item.quirk for item in Registry.load().loaded}
        symptoms = (_ROOT / "docs" / "symptoms.md").read_text(encoding="utf-8").splitlines()
        self._words = {
            name: Counter(_words(" ".join([_text(quirk), *(row for row in symptoms if f"`{name}`" in row)])))
            for name, quirk in self._quirks.items()
        }
        self._in = Counter(word for words in self._words.values() for word in words)
        self._mean = sum(words.total() for words in self._words.values()) / len(self._words)
        self._pages = {f"docs/{page.name}": page.read_text(encoding="utf-8") for page in (_ROOT / "docs").glob("*.md")}

    def answer(self, report: dict[str, Any], reasons: dict[str, str]) -> Known:
        """Returns what the catalogue knows of a report."""
        number = str(report["number"])
        repository, _, own = number.partition("#")
        cites = re.compile(rf"{re.escape(repository)}(/issues/|/pull/|#){own}\b", re.IGNORECASE)
        by_quirks = [name for name, quirk in self._quirks.items() if any(cites.search(item.url) for item in quirk.references)]
        cited = by_quirks or [name for name, text in self._pages.items() if cites.search(text)]
        return Known(number, report["title"], tuple(cited), reasons.get(number, ""), self._like(report))

    def _like(self, report: dict[str, Any]) -> tuple[Likeness, ...]:
        words = set(_words(f"{report['title']} {report.get('words', '')}"))
        version = report.get("versions", {}).get("vllm")
        found = []
        for name, own in self._words.items():
            weight = {word: self._weight(word, own) for word in words & own.keys()}
            ranges = [item for item in self._quirks[name].ranges if item.package == "vllm"]
            concerned = not ranges or any(item.answer(version) is not Answer.NO for item in ranges)
            shared = tuple(sorted(weight, key=weight.__getitem__, reverse=True)[:6])
            found.append(Likeness(name, round(sum(weight.values()), 1), shared, concerned))
        return tuple(sorted(found, key=lambda item: -item.score)[:_SHOWN])

    def _weight(self, word: str, own: Counter[str]) -> float:
        rare = math.log(1 + (len(self._words) - self._in[word] + 0.5) / (self._in[word] + 0.5))
        long = 1 - _LENGTH + _LENGTH * own.total() / self._mean
        return rare * own[word] * (_SATURATION + 1) / (own[word] + _SATURATION * long)


def _text(quirk: Quirk) -> str:
    file = (_ROOT / quirk.location.file).read_text(encoding="utf-8") if quirk.location else ""
    about = ast.get_docstring(ast.parse(file)) or ""
    return f"{quirk.id} {quirk.title} {about} {quirk.match} {quirk.adjustments}"


def _words(text: str) -> list[str]:
    """Splits at everything but letters, digits and dots inside of a number; names as ``qwen3_moe`` also give their parts."""
    return [word for word in re.findall(r"[a-z]+\d*|\d+(?:\.\d+)+", text.lower()) if len(word) > 2]


def main() -> None:
    """Prints the reports, those that nobody has answered first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("reports", type=Path, help="a file with one report as JSON in each line")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    reasons = yaml.safe_load(_REASONS.read_text(encoding="utf-8"))
    catalogue = Catalogue()
    reports = [json.loads(row) for row in options.reports.read_text(encoding="utf-8").splitlines() if row.strip()]
    answers = [catalogue.answer(report, reasons) for report in reports]
    if options.json:
        print(json.dumps([asdict(answer) | {"known": answer.known} for answer in answers], indent=2))
        return
    for answer in sorted(answers, key=lambda item: item.known):
        print(f"{answer.number}: {answer.title}")
        for known in (*answer.cited, *filter(None, [answer.reason])):
            print(f"    known   {known}")
        for item in answer.like if not answer.known else ():
            other = "" if item.concerned else ", other versions"
            print(f"    like    {item.quirk} ({item.score}: {', '.join(item.shared)}){other}")
    print(f"{sum(not answer.known for answer in answers)} of {len(answers)} have no quirk, no page and no reason")


if __name__ == "__main__":
    main()
