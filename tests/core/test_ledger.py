"""Verdicts on the entries of ledgers: what each fault is called, and what is none."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.ledger.account import Entry, LedgerSettings
from quirks_core.ledger.verdicts import Judge

NAMES = (
    "embed.weight",
    *(f"model.layers.{index}.{part}.weight" for index in range(3) for part in ("attn", "mlp")),
    "norm.weight",
)


class Engine:
    """What the ranks of an engine have after each update: a value for each tensor."""

    def __init__(self, names=NAMES, ranks=1, **options):
        settings = LedgerSettings(**options.pop("settings", {}))
        self.judge = Judge(settings, ranks=ranks, **options)
        self.values = [dict.fromkeys(names, 1) for _ in range(ranks)]
        self.number = 0
        self.judge.add([self.entry(rank, "start") for rank in range(ranks)])

    def entry(self, rank, way="transfer", **more):
        """What a rank has now."""
        held = {name: f"{value:032x}"[::-1] for name, value in self.values[rank].items()}
        return Entry(number=self.number, way=way, rank=rank, digests=held, came=tuple(more.get("received", ())), **more)

    def update(self, changed=(), *, ranks=None, **more):
        """Gives the named tensors new values on some ranks; returns the verdicts."""
        self.number += 1
        rows = []
        for rank, values in enumerate(self.values):
            mine = changed if ranks is None or rank in ranks else ()
            for name in mine:
                values[name] += 1
            rows.append(self.entry(rank, changed=tuple(mine), **more))
        return self.judge.add(rows)


def kinds(verdicts):
    return [(verdict.kind, verdict.is_grave) for verdict in verdicts]


@pytest.mark.parametrize(
    "later",
    [
        [{"changed": NAMES, "received": {"a": str(turn % 2)}} for turn in range(30)],  # two policies by turns
        [{"version": "1"}] * 3,  # the label of the update before
    ],
)
def test_a_policy_that_moves_or_keeps_its_label_has_no_verdict(later):
    engine = Engine()
    engine.update(NAMES, version="1")

    assert [engine.update(**one) for one in later] == [[]] * len(later)


def test_weights_that_come_again_as_they_were_are_one_note():
    engine = Engine()
    engine.update(NAMES[:-1], received={"a": "0"})
    engine.update(NAMES[:-1], received={"a": "1"})

    found = engine.update(received={"a": "1"})
    later = [engine.update(changed, received={"a": "1"}) for _ in range(15) for changed in ((), NAMES[:-1], ())]

    assert kinds(found) == [("unchanged", False)]
    assert "changed 0 of 8 tensors; earlier updates changed 7 of them, and never norm.weight" in found[0].text
    assert "(learning rate 0) or whose step was skipped by the scaler" in found[0].text
    assert later == [[]] * 45  # an evaluation, or the end of a schedule


def test_new_weights_that_change_nothing_are_a_warning():
    engine = Engine()
    engine.update(NAMES, received={"a": "0"})

    found = [engine.update(received={"a": str(step)}) for step in (1, 2)]

    assert [kinds(verdicts) for verdicts in found] == [[("unchanged", False)], [("unchanged", True)]]
    assert "does not reach what the engine computes with" in found[1][0].text


@pytest.mark.parametrize("way", ["transfer", "lora"])
def test_weights_that_never_change_are_a_warning_after_warm_up(way):
    engine = Engine()
    engine.update(NAMES, way=way)

    found = [verdict.is_grave for _ in range(17) for verdict in engine.update(way=way)]

    assert found == [False, True]


def test_a_rank_that_does_not_change_is_named_each_time():
    engine = Engine(ranks=2)
    for _ in range(2):
        (verdict,) = engine.update(NAMES, ranks=[0])
        assert (verdict.kind, verdict.is_grave) == ("ranks", True)
        assert "8 of 8 on rank 0, 0 of 8 on rank 1" in verdict.text
        assert engine.update(NAMES) == []
        engine.values[1] = dict(engine.values[0])
        engine.update(NAMES)

    (verdict,) = engine.judge.add([engine.entry(0, changed=NAMES)])
    assert "came on 1 of 2 ranks (0)" in verdict.text


@pytest.mark.parametrize(("options", "row"), [({"is_quantized": True}, {}), ({}, {"is_cast": True})])
def test_weights_that_round_to_the_same_values_are_no_warning(options, row):
    engine = Engine(**options)
    engine.update(NAMES, received={"a": "0"})

    found = [verdict for step in range(30) for verdict in engine.update(received={"a": str(step + 1)}, **row)]

    assert kinds(found) == [("unchanged", False)]
    assert "rounds to the same values" in found[0].text


def test_a_second_update_of_one_chunk_is_named():
    chunk = ("model.layers.0.attn.weight",)
    engine = Engine()
    engine.update(NAMES, way="raw", received=dict.fromkeys(NAMES, "0"))
    engine.update(chunk, way="raw", received=dict.fromkeys(chunk, "0"))

    (verdict,) = engine.update(chunk, way="raw", received=dict.fromkeys(chunk, "1"))

    assert (verdict.kind, verdict.is_grave) == ("partial", True)
    assert "changed 1 of 3 layers, and never model.layers.1, model.layers.2: no update brought them" in verdict.text


def test_frozen_layers_that_were_sent_are_at_most_a_note():
    tower = tuple(f"visual.blocks.{index}.weight" for index in range(2))
    engine = Engine((*NAMES, *tower))
    sent = dict.fromkeys((*NAMES, *tower), "0")
    assert [engine.update(NAMES, received=sent) for _ in range(3)] == [[]] * 3

    upper = NAMES[3:]
    found = [verdict for _ in range(3) for verdict in engine.update(upper, received=sent)]

    assert kinds(found) == [("partial", False)]
    assert "never model.layers.0: they came with the values" in found[0].text


def test_a_tensor_that_ranks_held_alike_must_stay_alike():
    engine = Engine(ranks=2)
    engine.values[1]["embed.weight"] = 500
    engine.update(NAMES)
    assert engine.update(NAMES) == []
    engine.values[1] |= {"norm.weight": 99, "embed.weight": 600}

    (verdict,) = engine.update(NAMES)

    assert "1 tensor that all ranks held alike are different on them now: norm.weight" in verdict.text


def test_the_problems_of_an_update_are_named_until_the_next_one():
    engine = Engine()

    found = engine.update(NAMES, not_finite=("norm.weight",), unannounced=("embed.weight",))

    assert kinds(found) == [("not-finite", True), ("no-update", True)]
    assert "NaN or infinite values in 1 tensor: norm.weight" in found[0].text
    assert "1 tensor changed before update 1 began" in found[1].text
    assert engine.judge.problems.keys() == {"not-finite", "no-update"}
    engine.update(NAMES)
    assert not engine.judge.problems


def test_the_frozen_base_of_an_engine_without_adapter_is_named():
    engine = Engine(has_lora=True)
    engine.update()
    engine.update()

    found = engine.update()

    assert kinds(found) == [("adapter-missing", True)]
    assert "LoRA is on, no adapter was ever loaded" in found[0].text


def test_a_rollout_with_lora_whose_engine_gets_nothing_is_a_note():
    engine = Engine(has_lora=True)

    found = [engine.judge.served(0, 100) for _ in range(20)]

    assert [kinds(verdicts) for verdicts in found] == [[]] * 10 + [[("adapter-missing", False)]] + [[]] * 9
    assert "send the adapter (add_lora), and name it in each request" in found[10][0].text


@pytest.mark.parametrize(
    ("labels", "weights", "verdict"),
    [
        (["base", "1", "base"], "012", [("label", False)]),
        (["base", "1", "2", "base", "3", "4", "5", "base"], "01234567", [("label", False)]),
        (["base", "base", "base"], "012", []),  # the parts of one update
        (["base", "1", "2", "3", "4", "base"], "012345", []),  # too long ago
        (["base", "1", "base", "2", "base"], "01020", []),  # the same ones
        (["", "1", ""], "012", []),
    ],
)
def test_other_weights_under_an_earlier_label_are_named(labels, weights, verdict):
    engine = Engine()

    found = [engine.update(NAMES, version=label, received={"a": one}) for label, one in zip(labels, weights, strict=True)]

    assert kinds(verdict for verdicts in found for verdict in verdicts) == verdict


LORA = ("layers.0.q_proj.lora_a", "layers.0.q_proj.lora_b", "layers.1.q_proj.lora_a", "layers.1.q_proj.lora_b")


@pytest.mark.parametrize(
    ("unmatched", "is_grave"), [(("layers.0.q_proj", "layers.1.q_proj"), True), (("layers.1.q_proj",), False)]
)
def test_an_adapter_whose_modules_are_not_the_models_is_named(unmatched, is_grave):
    engine = Engine(LORA, has_lora=True)

    (verdict,) = engine.update(LORA, way="lora", adapter="policy", unmatched=unmatched)

    assert (verdict.kind, verdict.is_grave) == ("adapter-names", is_grave)
    assert f"'policy': {len(unmatched)} of its 2 modules are no modules of this model" in verdict.text


def test_an_adapter_may_add_nothing_only_before_it_was_trained():
    trained, untrained = Engine(LORA, has_lora=True), Engine(LORA, has_lora=True)

    found = [trained.update(LORA[::2], way="lora", adapter="policy", is_zero=True) for _ in range(3)]
    warming = [untrained.update(LORA * (number == 0), way="lora", is_zero=True) for number in range(9)]

    assert [kinds(verdicts) for verdicts in found] == [[], [], [("adapter-zero", True)]]
    assert "A, B or lora_alpha is zero" in found[2][0].text
    assert kinds(verdict for verdicts in warming for verdict in verdicts) == [("unchanged", False)]


@pytest.mark.parametrize(("with_adapter", "verdict"), [(0, [("adapter-unused", True)]), (1, [])])
def test_adapters_that_no_request_names_are_named(with_adapter, verdict):
    engine = Engine(LORA, has_lora=True)
    found = []
    for _ in range(4):
        found += engine.update(LORA, way="lora", adapter="policy")
        found += [*engine.judge.served(with_adapter, 5), *engine.judge.served(0, 5)]  # the base as a reference

    assert kinds(found) == verdict


def test_an_engine_that_is_too_far_behind_its_trainer_is_named():
    engine = Engine(settings={"behind": 2})
    engine.judge.trainer_at(1)
    engine.update(NAMES)

    assert engine.judge.trainer_at(3) == []
    (verdict,) = engine.judge.trainer_at(4)

    assert (verdict.kind, verdict.is_grave) == ("behind", True)
    assert "3 updates old: the trainer has made 4, and its weights came last after 1" in verdict.text


def test_the_variable_takes_a_mode_with_options():
    read = LedgerSettings.read

    assert read({}) == LedgerSettings()
    assert read({"MODEL_QUIRKS_LEDGER": "stop; unchanged=3; whole=1"}) == LedgerSettings(mode="stop", unchanged=3, whole=True)
    for text in ("wran", "warn;unchanged=0", "warn;often=1"):
        with pytest.raises(UsageError, match=r"it takes warn, stop or off(; did you mean 'warn'\?)?, then"):
            read({"MODEL_QUIRKS_LEDGER": text})
