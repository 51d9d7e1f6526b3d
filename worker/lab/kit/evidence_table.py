"""The table of evidence of a distribution: what proofs of its quirks concluded, a row for each quirk and installation.

It is ``evidence.csv`` in the top-level package of the declarations, beside `quirks_core.declaration.data_file`, and ships with
the distribution. ``quirks prove --record`` writes it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.version import Version
from pydantic import ValidationError

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.declaration import data_file
from quirks_core.declaration.flags import Kind
from quirks_core.declaration.quirk import Quirk

NAME = "evidence.csv"
#: The packages whose versions a paired run or a probe can depend on.
PACKAGES = ("torch", "transformers", "vllm")
RUN, PROBE = "paired run", "static probe"


class Proved(Record):
    """The result of a quirk's evidence on one installation.

    Attributes:
        platform: The engine's platform.
        cpu: Kind of CPU (`quirks_core.facts.packages.CPU_KINDS`), for a quirk that depends on it.
        device: Name of the GPU, or kind of CPU; empty if it was not recorded.
        runner: The model runners that the paired runs used (``v1``); empty if nothing was run, or it was not recorded.
        graphs: The paired runs had CUDA graphs; False where they were eager, as all were before it was recorded.
        vllm: Version of the engine; ``torch`` and ``transformers`` likewise; empty if it was not recorded.
        by: ``paired run`` or ``static probe``.
        conclusion: ``NEEDED`` or ``NOT NEEDED`` of a workaround, ``HOLDS`` or ``DOES NOT HOLD`` of a rule or feature, or
            ``INCONCLUSIVE``.
        date: The day, UTC.
        digest: Digest of the code that was proved (`worker.lab.kit.digest`); empty if it is not known, or has changed.
        seen: What the paired run that decided saw, with the quirk and without it.
        doubt: What speaks against the conclusion, or why there is none; empty if all evidence agrees.
    """

    platform: str
    by: str
    conclusion: str
    date: date
    cpu: str = ""
    device: str = ""
    runner: str = ""
    graphs: bool = False
    digest: str = ""
    seen: str = ""
    doubt: str = ""
    vllm: str = ""
    torch: str = ""
    transformers: str = ""

    @property
    def mode(self) -> str:
        """Whether the engine of a paired run on a GPU was eager."""
        return ("eager", "CUDA graphs")[self.graphs] if self.platform == "cuda" and self.by == RUN else ""

    @property
    def place(self) -> str:
        """The platform, the kind of CPU where the quirk depends on it, the runner where it was recorded, and a GPU's mode."""
        more = ", ".join(filter(None, (self.cpu, self.runner and f"runner {self.runner}", self.mode)))
        return f"{self.platform} ({more})" if more else self.platform

    @property
    def decided(self) -> bool | None:
        """The evidence speaks for the quirk, or against it; None if it is inconclusive."""
        return None if self.conclusion == "INCONCLUSIVE" else Kind.WORKAROUND.conclusion(self.conclusion) == "NEEDED"

    @property
    def order(self) -> tuple[Any, ...]:
        """Where it stands among the rows of its quirk."""
        return Version(self.vllm or "0"), self.platform, self.cpu, self.runner, self.graphs

    def replaces(self, older: Proved) -> bool:
        """Returns whether older evidence is that of the same installation, or of one of which less was recorded."""
        same = (older.platform, older.vllm, older.graphs) == (self.platform, self.vllm, self.graphs)
        return same and older.cpu in ("", self.cpu) and older.runner in ("", self.runner)


#: The rows of a distribution, by quirk.
Table = Mapping[str, tuple[Proved, ...]]
_COLUMNS = (
    *("quirk", "vllm", "platform", "cpu", "device", "runner", "graphs", "by", "conclusion", "date", "digest"),
    *("torch", "transformers", "seen", "doubt"),
)


def path_for(quirk: Quirk) -> Path | None:
    """Returns the path of the table of a quirk's distribution; None if the quirk's module is not in a package."""
    path = data_file.path_for(quirk)
    return path and path.with_name(NAME)


def proved(quirk: Quirk) -> tuple[Proved, ...]:
    """Returns the recorded results of a quirk's evidence on every installation, in the words of the quirk's kind.

    Raises:
        UsageError: They cannot be read.
    """
    path = path_for(quirk)
    found = read(path).get(quirk.id, ()) if path else ()
    return tuple(
        item.model_copy(update={"conclusion": quirk.kind.conclusion(item.conclusion)})
        for item in found
        if item.by != RUN or quirk.paired_runs  # its paired run may be gone
    )


def read(path: Path) -> Table:
    """Returns the rows of a table; none if there is no such file.

    Raises:
        UsageError: It cannot be read.
    """
    return _read(path) if path.is_file() else {}


def with_proved(table: Table, found: Mapping[str, Proved]) -> Table:
    """Returns a table with new rows; each replaces those of the same quirk on the same installation."""
    kept = {name: tuple(one for one in table.get(name, ()) if not item.replaces(one)) for name, item in found.items()}
    return {**table, **{name: (*kept[name], item) for name, item in found.items()}}


def write(path: Path, table: Table) -> None:
    """Writes a table atomically, into a source tree: a line for each row, sorted.

    Raises:
        UsageError: It cannot be written, or its package is a copy that an installer made.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(name, item) for name in sorted(table) for item in sorted(table[name], key=lambda item: item.order))
    data_file.write_text(path, text.getvalue())
    _read.cache_clear()


def _row(name: str, item: Proved) -> dict[str, str]:
    return {**item.model_dump(mode="json"), "quirk": name, "graphs": "yes" if item.graphs else ""}


@lru_cache(maxsize=64)
def _read(path: Path) -> Table:
    found: dict[str, list[Proved]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows: Iterable[dict[str, Any]] = csv.DictReader(file)
            for row in rows:
                found.setdefault(row.pop("quirk"), []).append(Proved.model_validate({**row, "graphs": row["graphs"] == "yes"}))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValidationError, ValueError, csv.Error):
        raise UsageError(f"{path} is no table of evidence; delete it, and 'quirks prove --record' makes it anew") from None
    return {name: tuple(items) for name, items in found.items()}
