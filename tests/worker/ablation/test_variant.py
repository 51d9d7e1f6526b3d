"""Which variants of a run there are, in which order they are tried, and what each takes. No engine runs."""

from __future__ import annotations

import pytest

from quirks_core import Default, Patch, Require, setting
from quirks_core.base.errors import UsageError
from quirks_core.plugins.planning import make_plan
from worker.lab.attribution.settings import SETTINGS
from worker.lab.attribution.variant import variants

PROCESSED = "rollout-logprobs-processed"
HEADS = ("engine.head_dtype", "train.head_dtype")


def test_variants_come_in_order_of_cost_then_of_likelihood(user):
    start = user(engine={"enforce_eager": True, "logprobs_mode": "raw_logprobs"})

    found = variants(start)

    costs = [variant.how for variant in found]
    assert costs == sorted(costs, key=["rescore", "restart"].index)
    assert len(set(costs)) == 2
    typed, by_quirks = start.plan.context.typed, {line.slot for line in start.plan.adjustments if line.in_force}
    names = [variant.change.setting for variant in found if variant.how == "restart"]
    assert names.pop() == "engine.enforce_eager"  # typed, but an engine that compiles starts slowly
    likely = [0 if name in typed else 2 if name in by_quirks else 1 for name in names]
    assert likely == sorted(likely)
    assert {0, 1} <= set(likely)


def test_names_choose_variants_or_are_errors_with_the_nearest(user):
    start = user()
    chosen = variants(start, only=["engine.head_dtype+train.head_dtype", "engine.dtype"])

    assert {item.change.setting for item in chosen} == {"engine.head_dtype + train.head_dtype", "engine.dtype"}
    with pytest.raises(UsageError, match=r"'engine\.dtpe'; did you mean 'engine\.dtype'\?"):
        variants(start, only=["engine.dtpe"])
    with pytest.raises(UsageError, match=f"did you mean 'quirk {PROCESSED}'"):
        variants(start, only=["quirk rollout-logprobs-procesed"])


def test_a_variant_changes_one_setting_of_the_configuration(user):
    start = user(engine={"seed": 3})

    for variant in variants(start):
        assert variant.config.typed_slots() - start.config.typed_slots() <= set(variant.values)
        assert variant.config.engine.seed == 3
        assert all(variant.plan.value(path) == value for path, value in variant.values.items() if path in SETTINGS)


@pytest.mark.parametrize("layer", ["configuration", "environment", "flag"])
def test_a_quirk_is_tried_whatever_switched_it_off(layer, user, monkeypatch):
    if layer == "environment":
        monkeypatch.setenv("MODEL_QUIRKS_DISABLE", PROCESSED)
    disable = ["logprobs"] if layer == "flag" else ()
    start = user(disable=disable, **({"quirks": {"disable": [PROCESSED]}} if layer == "configuration" else {}))

    (variant,) = variants(start, only=[f"quirk {PROCESSED}"])

    assert start.plan.value("engine.logprobs_mode") is None
    assert variant.plan.value("engine.logprobs_mode") == "processed_logprobs"
    assert (variant.change.before, variant.change.after, variant.how, variant.error) == ("disabled", "active", "restart", "")
    assert make_plan(variant.config, variant.planning, registry=start.registry) == variant.plan


def test_only_quirks_that_would_change_the_run_are_tried(user):
    start = user(disable=["all"])

    assert [item.change.setting for item in variants(start) if item.change.setting.startswith("quirk ")] == [
        f"quirk {PROCESSED}"
    ]
    assert "async-rollout-timeout" in {verdict.id for verdict in start.plan.verdicts if verdict.verdict == "yes"}


def test_a_variant_takes_what_quirks_change_besides(user, declare):
    engine, train = (setting(slot).one_of("float32") for slot in HEADS)
    alike = Require(HEADS[0], "float32", reason="-", when=train), Require(HEADS[1], "float32", reason="-", when=engine)
    alone, tied = user(), user(installed=[declare("heads-alike", *alike, match=engine | train)])
    (cheap,), (dear,) = (variants(start, only=["train.head_dtype"]) for start in (alone, tied))
    (scope,) = variants(user("gemma4"), only=["refit.scope"])

    assert (scope.change.before, scope.change.after, scope.how) == ("state_dict", "parameters", "restart")
    assert scope.also == {"engine.load_format": ("dummy", "auto")}
    assert (cheap.how, cheap.also) == ("rescore", {})
    assert (dear.how, dear.also) == ("restart", {"engine.head_dtype": (None, "float32")})


def test_a_quirk_of_an_open_slot_or_a_patch_takes_a_restart(user, declare):
    adds = Patch("json.encoder:JSONEncoder.encode_all", adds="json:dumps")
    quirks = (
        declare("a", adds),
        declare("b", Default("engine.block_size", 16)),
        declare("c", Default("env.NCCL_ALGO", "Ring")),
    )
    start = user(installed=quirks, disable=["a", "b", "c"])

    found = {
        item.change.setting: (item.how, item.also, item.error) for item in variants(start) if "quirk" in item.change.setting
    }

    assert found == {
        "quirk a": ("restart", {}, ""),
        "quirk b": ("restart", {"engine.block_size": (None, 16)}, ""),
        "quirk c": ("restart", {"env.NCCL_ALGO": (None, "Ring")}, ""),
    }


def test_a_quirk_that_another_one_replaces_anyhow_is_not_tried(user, declare):
    quirks = (declare("a", Default("engine.enforce_eager", True)), declare("b", Default("engine.seed", 1), supersedes=("a",)))

    alone, replaced = (variants(user(installed=quirks, disable=off), only=["quirk a"]) for off in (["a", "b"], ["a"]))

    assert [item.change.setting for item in alone] == ["quirk a"]
    assert replaced == []
