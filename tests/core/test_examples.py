"""Examples: runs that an author writes down, checked where they are declared."""

from __future__ import annotations

from typing import Any

import pytest

from quirks_core import Answer, DeclarationError, Example, Fact, Registry, model_type, setting, typed
from quirks_core.resolve import resolve


def test_an_example_becomes_the_facts_of_a_run() -> None:
    example = Example(
        answer=Answer.YES,
        config={"model_type": "gemma3"},
        settings={"engine.load_format": "dummy"},
        packages={"flash_attn": "2.8"},
        platform="cuda",
        environment={"VLLM_USE_V1": "1"},
        purpose="eval",
        recipe="grpo",
        name="google/gemma-3",
        extra={"acme.nodes": 4},
    )

    context = example.context()

    facts = {
        "model.model_type": "gemma3",
        "model.name": "google/gemma-3",
        "engine.load_format": "dummy",
        "packages.flash-attn": "2.8",
        "platform": "cuda",
        "env.VLLM_USE_V1": "1",
        "purpose": "eval",
        "recipe": "grpo",
        "acme.nodes": 4,
    }
    assert {name: context.fact(name) for name in facts} == facts
    assert typed("engine.load_format").trace(context).answer is Answer.YES


def test_what_an_example_leaves_out_is_open_or_unknown() -> None:
    context = Example(answer=Answer.NO).context()

    assert setting("engine.seed").is_set().trace(context).answer is Answer.NO
    assert model_type("gemma3").trace(context).answer is Answer.UNKNOWN
    assert Fact("platform").is_set().trace(context).answer is Answer.UNKNOWN


def test_an_example_looks_at_nothing_that_is_installed() -> None:
    context = Example(answer=Answer.NO, packages={"vllm": "0.9.1"}).context()

    assert not context.source_known("vllm")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"answer": "yes"}, "is no Answer"),
        ({"settings": {"engine.load_fromat": "auto"}}, r"did you mean 'engine\.load_format'"),
        ({"settings": {"engine.seed": "one"}}, r"engine\.seed takes a value of type int"),
        ({"purpose": "train"}, "purpose 'train'"),
    ],
)
def test_a_mistake_is_an_error_where_the_example_is_declared(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        Example(**{"answer": Answer.YES, **wrong})


@pytest.mark.parametrize("item", Registry.load().loaded, ids=lambda item: item.quirk.id)
def test_every_example_of_a_built_in_quirk_gets_its_verdict(item: Any) -> None:
    verdicts = [resolve(example.context(), [item]).verdicts[0].verdict for example in item.quirk.examples]

    assert verdicts == [example.answer for example in item.quirk.examples]
