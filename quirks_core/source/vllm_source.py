"""The source of one vLLM as an object: its definitions, its engine's arguments, its server's options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from quirks_core.source.engine_arguments import EngineArguments
from quirks_core.source.serve_options import ServeOption, read_options
from quirks_core.source.source_tree import SourceTree


@dataclass(frozen=True)
class VllmSource(SourceTree):
    """The source of the installed vLLM, or of another one, with the packages beside it."""

    @property
    def arguments(self) -> EngineArguments:
        """The arguments of its engine."""
        return EngineArguments(self)

    @lru_cache(maxsize=4)
    def options(self) -> tuple[ServeOption, ...] | None:
        """Returns every option of ``vllm serve``; None if there is no vLLM."""
        return read_options(self.arguments)

    def option_of(self, argument: str) -> ServeOption | None:
        """Returns the option that sets an engine argument; None if ``vllm serve`` has none, or there is no vLLM."""
        return next((option for option in self.options() or () if option.argument == argument), None)


#: The installed vLLM.
INSTALLED = VllmSource()
