"""The configuration of `run_eval.py`: that of a group of engines, and what to evaluate with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.sections import Section


class EvalSection(Section):
    """What to evaluate, and how.

    Attributes:
        dataset: JSONL file, one object per line.
        dataset_name: Its name in the results; the file's if None.
        prompt: Template of a prompt; ``{name}`` stands for a field of the object, other braces for themselves.
        answer_field: Field with the right answer, a text or a number.
        answer_pattern: Regular expression of an answer; the last match in a response counts (its first group, if it has
            one). If None it is the whole response without the space around it.
        chat: Put each prompt as a user's message into the tokenizer's chat template.
        metric: ``pass@k``: the probability that at least one of k samples is right.
        k: One or several.
        num_tests_per_prompt: Samples per prompt.
        seed: Of the engines, and of the tiny model.
        batch_size: Prompts that are under way at a time; None for all.
        generation: ``async`` sends the next prompt as soon as one is finished; ``sync`` sends ``batch_size`` prompts and waits
            for all of them before it sends more.
    """

    dataset: str = Field(min_length=1)
    dataset_name: str | None = None
    prompt: str = "{prompt}"
    answer_field: str = "answer"
    answer_pattern: str | None = None
    chat: bool = False
    metric: Literal["pass@k"] = "pass@k"
    k: tuple[int, ...] = Field(default=(1,), min_length=1)
    num_tests_per_prompt: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)
    batch_size: int | None = Field(default=None, ge=1)
    generation: Literal["async", "sync"] = "async"

    @field_validator("k", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @field_validator("answer_pattern")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value

    @model_validator(mode="after")
    def _enough_tests(self) -> Self:
        if min(self.k) < 1:
            raise ValueError(f"k must be at least 1, not {min(self.k)}")
        if max(self.k) > self.num_tests_per_prompt:
            raise ValueError(
                f"k = {max(self.k)} is more than num_tests_per_prompt = {self.num_tests_per_prompt}: there are too few samples "
                "to draw k from; raise eval.num_tests_per_prompt or lower eval.k"
            )
        return self


class EvalConfig(GenerationConfig):
    """The configuration of a group of engines, and what to evaluate with it."""

    purpose: Literal["eval"] = "eval"  # weights come from the checkpoint; those of a rollout would be dummies
    eval: EvalSection

    @model_validator(mode="after")
    def _one_seed(self) -> Self:
        if self.engine.seed not in (None, self.eval.seed):
            raise ValueError(f"engine.seed = {self.engine.seed} but eval.seed = {self.eval.seed}: set eval.seed alone")
        return self

    def for_engines(self, model: str | Path) -> GenerationConfig:
        """Returns what the group gets: only what was typed, because quirks tell that from defaults; another model's path."""
        values = self.model_dump(exclude={"eval"}, exclude_unset=True)
        values["model"] = {**values["model"], "path": str(model)}
        values["engine"] = {**values.get("engine", {}), "seed": self.eval.seed}
        return GenerationConfig.parse({**values, "purpose": "eval"})

    def notes(self) -> list[str]:
        """Returns what is allowed and probably not meant."""
        tests, sampling = self.eval.num_tests_per_prompt, self.sampling
        if tests > 1 and (sampling.temperature == 0 or sampling.top_k == 1):
            reason = "sampling.temperature = 0" if sampling.temperature == 0 else "sampling.top_k = 1"
            return [
                f"with {reason} all {tests} samples of a prompt are equal, and pass@k is pass@1; raise it, or ask each once"
            ]
        return []
