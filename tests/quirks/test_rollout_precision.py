"""Every pair of dtypes of a trainer and its engine gets the right words, and facts are read from the trainer's own process."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from quirks_core.facts.trainers import TRAINERS

ID = "rollout-precision"
TRAINER = {
    "autocast bfloat16": {"dtype": "float32", "autocast": "bfloat16"},
    "autocast float16": {"dtype": "float32", "autocast": "float16"},
    "float32": {"dtype": "float32", "autocast": None},
    "all bfloat16": {"dtype": "bfloat16", "autocast": None},
    "all float16": {"dtype": "float16", "autocast": None},
}
BOTH = "by 0.005 with float16 on both sides"
FOLLOW = "leave engine.dtype open, and the engine follows"
EXACT = "by 0.002 with float32 on both sides"
#: By trainer and engine: the measured difference, and what is advised first; None where nothing is to gain.
PAIRS = {
    ("autocast bfloat16", "bfloat16"): ("0.041", BOTH),
    ("autocast bfloat16", "float16"): ("0.027", BOTH),
    ("autocast bfloat16", "float32"): ("0.027", BOTH),
    ("autocast float16", "bfloat16"): ("0.034", FOLLOW),
    ("autocast float16", "float16"): None,
    ("autocast float16", "float32"): ("0.004", FOLLOW),
    ("float32", "bfloat16"): ("0.033", EXACT),
    ("float32", "float16"): ("0.004", EXACT),
    ("float32", "float32"): None,
    ("all bfloat16", "bfloat16"): ("0.041", BOTH),
    ("all bfloat16", "float16"): ("0.027", BOTH),
    ("all bfloat16", "float32"): ("0.027", BOTH),
    ("all float16", "bfloat16"): ("0.034", FOLLOW),
    ("all float16", "float16"): None,
    ("all float16", "float32"): ("0.004", FOLLOW),
}


@pytest.fixture
def planned(plan_for):
    """Plans a rollout of a model with this ``config.json``."""

    def make(train, config=None, **engine):
        text = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16", **(config or {})}
        sections = {"train": train, "engine": engine}
        return plan_for(
            text, {f"{section}.{name}": one for section, values in sections.items() for name, one in values.items()}
        )

    return make


def advice(plan):
    """Returns what the quirk advises."""
    return [note.text for note in plan.warnings if note.quirk == ID]


@pytest.mark.parametrize(("pair", "expected"), PAIRS.items(), ids=lambda one: " beside ".join(one) if one in PAIRS else "")
def test_a_pair_that_differs_is_named_with_its_size_and_remedy(planned, pair, expected):
    trainer, engine = pair
    found = advice(planned(TRAINER[trainer], dtype=engine))

    if expected is None:
        assert found == []
        return
    (text,) = found
    nats, first = expected
    assert f"this engine in {engine}: logprobs differ by {nats} nats" in text
    assert min((text.index(words), words) for words in (BOTH, FOLLOW, EXACT) if words in text)[1] == (
        BOTH if first == FOLLOW else first
    )
    assert first in text
    assert ("more than with both in bfloat16" in text) == (engine == "float16" and "bfloat16" in trainer)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "gemma3_text", "glm4"])
@pytest.mark.parametrize("trainer", TRAINER)
def test_a_model_that_float16_overflows_is_never_advised_it(planned, trainer, kind):
    plan = planned(TRAINER[trainer], {"model_type": kind})

    (text,) = advice(plan)
    assert "engine.dtype" not in plan.changes
    assert "set engine.dtype=float32" in text
    assert BOTH not in text
    assert f"not float16, because {kind}" in text


BEYOND = torch.tensor([65536.0, -7e4, 3e38, float("inf"), 65280.0, *[1.0] * 5000], dtype=torch.bfloat16)  # 65280 fits
VANISHING = torch.tensor([1e-9, 1.0, 0.0, 6e-8] * 10, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"a": BEYOND, "b": torch.tensor([-1e5, 1.0])}, "5 weights of the checkpoint are beyond 65 504"),
        ({"a": VANISHING}, "25.0% of the checkpoint's weights would be 0"),
    ],
)
def test_weights_that_float16_cannot_hold_speak_against_it(planned, tmp_path, weights, reason):
    save_file(weights, tmp_path / "model.safetensors")

    (text,) = advice(planned(TRAINER["autocast bfloat16"]))

    assert f"not float16, because {reason}" in text


@pytest.mark.parametrize("name", TRAINERS)
def test_advice_has_the_words_of_the_trainer(planned, name):
    train, words = {**TRAINER["autocast bfloat16"], "framework": name}, TRAINERS[name].float16

    assert [words in text for text in advice(planned(train))] == [True] * bool(words)
    assert ("computes in nothing else" in advice(planned(train, dtype="float16"))[0]) == (not words)


def test_a_typed_null_of_autocast_is_a_part_of_the_plan(planned):
    assert planned({"dtype": "float32", "autocast": None}).context.settings["train.autocast"] == "none"
