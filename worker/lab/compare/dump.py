"""What one engine generates from given prompts and seeds, as a file to compare with that of another engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from quirks_core.base import whole_file
from quirks_core.base.errors import UsageError, words
from quirks_core.plan.receipt import Receipt
from worker.lab.parity.records import ParityRecord

#: Version of the dumps' format; one of another is refused.
DUMP_FORMAT = 2

#: Prompt and generated tokens.
Sequences = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]


class Row(ParityRecord):
    """One sequence that the engine generated."""

    kind: Literal["greedy", "sampled"]
    prompt: int  #: number of its prompt
    seed: int | None = None  #: its own, of a sampled one
    tokens: tuple[int, ...]  #: G token ids
    logprobs: tuple[float, ...]  #: G logprobs in nats, as the engine reports them

    @property
    def origin(self) -> tuple[str, int, int | None]:
        """What it was made from."""
        return self.kind, self.prompt, self.seed


class Dump(ParityRecord):
    """Everything that one engine generated, and every setting that may have affected it."""

    format: int = DUMP_FORMAT
    date: str  #: when it was made (ISO)
    model: str  #: name of the model
    model_type: str  #: its ``model_type``
    config_digest: str  #: SHA-256 of its ``config.json``
    platform: str  #: ``cpu``, ``cuda``, …; empty if it is unknown
    versions: dict[str, str]  #: versions by package, Python's and the device's name among them
    plan: str  #: the plan's digest
    quirks: tuple[str, ...]  #: ids of the quirks in force
    settings: dict[str, Any]  #: the slots as in force, and how samples were drawn
    effective: dict[str, Any]  #: the engine's own settings (`worker.lab.compare.effective`)
    prompts: tuple[tuple[int, ...], ...]  #: token ids of each prompt
    receipt: Receipt  #: the acknowledgements of its processes
    rows: tuple[Row, ...]  #: what was generated
    #: by the digest of some sequences, the logprobs of each one's generated tokens, computed at once as a prompt (prefill,
    #: temperature 1): always for the dump's own rows, and for another dump's if it was made ``--tokens-of`` it
    scored: dict[str, tuple[tuple[float, ...], ...]] = Field(default_factory=dict)

    @property
    def sequences(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Prompt and generated tokens of each row."""
        return [(self.prompts[row.prompt], row.tokens) for row in self.rows]

    @property
    def digest(self) -> str:
        """Names the sequences: equal digests are equal tokens."""
        return digest(self.sequences)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Reads a dump.

        Raises:
            UsageError: The file cannot be read, is not a dump, or has another format.
        """
        try:
            values = json.loads(file.read_bytes())
            if isinstance(values, dict) and "rows" in values and (found := values.get("format")) != DUMP_FORMAT:
                raise UsageError(f"{file} is a dump of format {found}, this version reads format {DUMP_FORMAT}; make it again")
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
        except (OSError, ValueError) as error:
            problem = words(error)
        raise UsageError(f"{file} is no dump as 'quirks parity dump' writes it: {problem}")

    def write(self, file: Path) -> None:
        """Writes the dump atomically: a reader never sees half of it.

        Raises:
            UsageError: It cannot be written there.
        """
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            whole_file.write(file, self.model_dump_json() + "\n")
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror or error}") from None


def digest(sequences: Sequences) -> str:
    """Returns the SHA-256 that names some sequences."""
    return hashlib.sha256(json.dumps(sequences).encode()).hexdigest()
