"""The configuration of a run, checked: what the user typed, with its defaults. Its fields are the slots.

A slot's name (``engine.load_format``) is a path into this configuration. The section ``engine`` takes every further argument
of the installed vLLM, and ``env`` every variable; whether vLLM has an argument is found out when a plan is made. Unknown keys
of the other sections are errors with the nearest name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, ValidationError, field_validator

from quirks_core.base.errors import UsageError, nearest
from quirks_core.configuration import sections
from quirks_core.configuration.sections import Section
from quirks_core.configuration.variables import problem_of_variable
from quirks_core.configuration.yaml_file import lay_over, read_yaml

Purpose = Literal["rollout", "eval", "serve"]
#: The values that pydantic names in a message.
_QUOTED = re.compile("'([^']*)'")


class GenerationConfig(Section):
    """Everything that a generation worker needs to know."""

    #: The sections whose fields are slots. The others hold the model, how to serve it, and which quirks to leave out.
    SLOT_SECTIONS: ClassVar[tuple[str, ...]] = (
        *("cluster", "engine", "parallel", "refit", "request", "sampling", "tokenizer", "train"),
    )

    purpose: Purpose = Field(
        "rollout", description="rollout (a trainer will refit: weights start as dummy), eval or serve (weights are loaded)"
    )
    recipe: str | None = Field(None, description="name of the training recipe")
    model: sections.ModelSection
    engine: sections.EngineSection = sections.EngineSection()
    sampling: sections.SamplingSection = sections.SamplingSection()
    tokenizer: sections.TokenizerSection = sections.TokenizerSection()
    train: sections.TrainSection = sections.TrainSection()
    parallel: sections.ParallelSection = sections.ParallelSection()
    cluster: sections.ClusterSection = sections.ClusterSection()
    refit: sections.RefitSection = sections.RefitSection()
    request: sections.RequestSection = sections.RequestSection()
    server: sections.ServerSection = sections.ServerSection()
    env: dict[str, str] = Field(default_factory=dict, description="environment variables for the engine's processes")
    quirks: sections.QuirksSection = sections.QuirksSection()

    @field_validator("model", mode="before")
    @classmethod
    def _model_from_path(cls, value: Any) -> Any:
        return {"path": str(value)} if isinstance(value, str | Path) else value

    @field_validator("env", mode="before")
    @classmethod
    def _env_as_text(cls, value: Any) -> Any:
        """YAML reads ``NAME: 0`` as a number; in an environment it is a text."""
        if not isinstance(value, dict):
            return value
        return {
            key: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
            for key, item in value.items()
        }

    @field_validator("env")
    @classmethod
    def _env_can_be_set(cls, value: dict[str, str]) -> dict[str, str]:
        if problems := [problem for name, text in value.items() if (problem := problem_of_variable(name, text))]:
            raise ValueError("; ".join(problems))
        return value

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Checks a nested mapping.

        Raises:
            UsageError: Something is wrong with it; the message lists everything, with the nearest names.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise UsageError("; ".join(_problem(cls, item) for item in error.errors())) from None

    @classmethod
    def load(cls, file: str | Path | None = None, *, model: str | None = None, settings: Iterable[str] = ()) -> Self:
        """Reads a YAML file and lays command-line settings over it.

        Args:
            file: The file; None for none.
            model: Overrides the file's model.
            settings: Texts of the form ``engine.load_format=dummy``; values are read as YAML.

        Raises:
            UsageError: The file cannot be read, or something is wrong with its content.
        """
        values = read_yaml(Path(file)) if file is not None else {}
        if model is not None:
            section = values.get("model")
            values["model"] = {**section, "path": model} if isinstance(section, dict) else {"path": model}
        for text in settings:
            lay_over(values, text)
        return cls.parse(values)

    def slots(self) -> dict[str, Any]:
        """Returns the value of every slot of the sections; a slot that is left open is missing."""
        values: dict[str, Any] = {"engine.load_format": "dummy" if self.purpose == "rollout" else "auto"}
        for section in self.SLOT_SECTIONS:
            for key, value in getattr(self, section):  # fields, and of the engine its further arguments
                if value is not None:
                    values[f"{section}.{key}"] = list(value) if isinstance(value, tuple) else value
        return values

    def typed_slots(self) -> frozenset[str]:
        """Returns the slots whose value the user typed, also where it equals the default; null leaves a slot open."""
        return frozenset(
            f"{section}.{key}"
            for section in self.SLOT_SECTIONS
            for key in getattr(self, section).model_fields_set
            if getattr(getattr(self, section), key) is not None
        )

    @property
    def sources(self) -> Mapping[str, str]:
        """Where values were read that nobody typed, by slot. Here none: what is not typed is a default."""
        return {}

    def undeclared_slots(self) -> frozenset[str]:
        """Returns the slots without a known value. Here none: what is left open has its default, or is the engine's choice."""
        return frozenset()

    def adjusted(self, changes: Mapping[str, Any]) -> Self:
        """Returns the configuration with the values that a plan gives to slots, as its ``changes`` has them."""
        sections: dict[str, dict[str, Any]] = {}
        for slot, value in changes.items():
            section, _, key = slot.partition(".")
            is_tuple = isinstance(getattr(getattr(self, section), key, None), tuple)
            sections.setdefault(section, {})[key] = tuple(value) if is_tuple else value
        update: dict[str, Any] = {
            name: getattr(self, name).model_copy(update=values) for name, values in sections.items() if name != "env"
        }
        if variables := sections.get("env"):
            update["env"] = {**self.env, **variables}
        return self.model_copy(update=update)

    def overridden(self, values: Mapping[str, Any]) -> Self:
        """Returns the configuration with checked values that a program puts there itself, by slot of a section.

        They take the place also of what the user typed, and do not count as typed.
        """
        found = self.adjusted(values)
        for slot in values:
            section, _, key = slot.partition(".")
            getattr(found, section).model_fields_set.discard(key)
        return found


def _problem(root: type[BaseModel], item: Any) -> str:
    """Puts one pydantic error into our words: path, what is wrong, nearest name."""
    path = ".".join(str(part) for part in item["loc"])
    if path == "model" and item["type"] == "missing":
        return "no model: give --model FOLDER_OR_HUB_ID, or a configuration with a 'model' key"
    if item["type"] != "extra_forbidden":
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] in ("missing", "value_error"):
            return f"{path}: {message}"
        hint = nearest(str(item["input"]), _QUOTED.findall(message)) if item["type"] == "literal_error" else ""
        return f"{path}: {message}, not {item['input']!r}{hint}"
    section: Any = root
    for part in item["loc"][:-1]:
        section = section.model_fields[part].annotation
    key = str(item["loc"][-1])
    hint = nearest(key, section.model_fields)
    if not hint and len(item["loc"]) == 1:  # a key of some section at the top level
        sections = {
            name: field.annotation for name, field in root.model_fields.items() if name in GenerationConfig.SLOT_SECTIONS
        }
        hint = nearest(key, [f"{name}.{field}" for name, kind in sections.items() for field in kind.model_fields])  # type: ignore[union-attr]
    return f"{path}: unknown key{hint}"
