"""A run on an engine that vLLM starts by itself, by ``vllm serve`` or in a program: its facts are the given values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Self

from pydantic import PrivateAttr

from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.slots import SLOTS, Place, slot_named

#: Sections whose slots belong to the client or the trainer: the engine cannot know them.
_CLIENT, _TRAINER = ("request", "sampling"), ("refit", "train")


class EngineRun(GenerationConfig):
    """A configuration of an engine that vLLM starts by itself, for the one way in which plans are made.

    Our own defaults are left out, because nothing applies them: ``load_format`` decides how weights are loaded, and an argument
    that was not typed is the engine's choice. A data-parallel engine owns its ranks (``parallel.dp_strategy: engine``).

    What belongs to the client and, of a rollout, to the trainer (``request.*``, ``sampling.*``; ``refit.*``, ``train.*``) is
    *unknown* unless it is given, in MODEL_QUIRKS_SET or by a preset for the trainer. Our defaults would assert what nobody
    checked, and a slot that is left open would silence the quirks that read it. An engine that is no rollout has no trainer,
    and the trainer's slots are absent.
    """

    _typed: frozenset[str] = PrivateAttr(default=frozenset())
    _sources: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def given(cls, values: Mapping[str, Any], typed: Collection[str], sources: Mapping[str, str] | None = None) -> Self:
        """Makes the configuration of given values and those that the engine starts with, nested; some the user chose.

        Raises:
            UsageError: Something in it makes no sense.
        """
        run = cls.parse(values)
        run._typed, run._sources = frozenset(typed), dict(sources or {})
        return run

    @property
    def sources(self) -> Mapping[str, str]:
        """Where values were read that nobody typed, by slot."""
        return self._sources

    def slots(self) -> dict[str, Any]:
        """Returns the values that were given, or that the engine starts with."""
        given = {f"{section}.{key}" for section in self.SLOT_SECTIONS for key in getattr(self, section).model_fields_set}
        found = super().slots()
        return {name: value for name, value in found.items() if name in given or slot_named(name).place is Place.ARGUMENT}

    def typed_slots(self) -> frozenset[str]:
        """Returns the slots that the user typed, as far as it is known."""
        return super().typed_slots() & self._typed

    def undeclared_slots(self) -> frozenset[str]:
        """Returns the slots of the client and the trainer whose value was not given."""
        sections = (*_CLIENT, *_TRAINER) if self.purpose == "rollout" else _CLIENT
        return frozenset(slot.name for slot in SLOTS.values() if slot.family in sections) - self.slots().keys()
