"""A file with all that a repository runs on vLLM, each with its pin: what ``quirks upgrade --runs`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.configuration.yaml_file import read_yaml


class Run(Record):
    """One run; each key is the option of ``quirks upgrade`` with its name.

    Attributes:
        command: The command line of a server, in one text.
        config: A configuration.
        model: The checkpoint.
        purpose: What the run is for.
        settings: ``slot=value`` texts.
        assume: ``name==value`` texts.
        patches: Instead of a run: a package with monkey-patches of vLLM.
        recipes: Instead of a run: a folder of recipes.
        start: The release that it uses; a version, or a path, such as that of the file that pins it.
        to: The release in question.
    """

    command: str = ""
    config: Path | None = None
    model: str | None = None
    purpose: str | None = None
    settings: tuple[str, ...] = Field((), alias="set")
    assume: tuple[str, ...] = ()
    patches: str | None = None
    recipes: str | None = None
    start: str | None = Field(None, alias="from")
    to: str | None = None


class RunsFile(Record):
    """The runs by name, and what those have that name nothing of their own.

    Attributes:
        runs: The runs; a text is the command line of a server.
        start: The release that they use.
        to: The release in question.
        assume: ``name==value`` texts for all of them.
    """

    runs: dict[str, Run] = Field(min_length=1)
    start: str | None = Field(None, alias="from")
    to: str | None = None
    assume: tuple[str, ...] = ()

    @field_validator("runs", mode="before")
    @classmethod
    def _commands(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: {"command": run} if isinstance(run, str) else run for name, run in value.items()}

    @classmethod
    def read(cls, file: Path) -> RunsFile:
        """Reads one.

        Raises:
            UsageError: It cannot be read, or holds something else.
        """
        try:
            return cls.model_validate(read_yaml(file))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UsageError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
