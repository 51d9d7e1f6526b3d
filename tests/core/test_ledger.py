"""Verdicts on the entries of ledgers: what each fault is called, and what is none."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.ledger.account import Account, Entry, LedgerSettings, Line
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


def test_a_policy_that_changes_has_no_verdict():
    engine = Engine()

    assert [engine.update(NAMES) for _ in range(5)] == [[]] * 5


def test_a_second_update_that_changes_nothing_is_a_warning():
    engine = Engine()
    engine.update(NAMES[:-1])

    assert kinds(first := engine.update()) == [("unchanged", False)]
    assert kinds(second := engine.update()) == [("unchanged", True)]

    assert "changed 0 of 8 tensors; earlier updates changed 7 of them, and never norm.weight" in second[0].text
    assert "update 2 (transfer)" in first[0].text
    assert engine.update() == []  # said once


def test_what_is_over_can_be_said_again():
    engine = Engine()
    for _ in range(2):
        engine.update(NAMES)
        assert kinds(engine.update()) == [("unchanged", False)]


def test_the_first_update_or_a_single_later_one_may_change_nothing():
    engine = Engine()

    found = [engine.update(), engine.update(), engine.update(NAMES), engine.update(NAMES)]

    assert [kinds(verdicts) for verdicts in found] == [[], [("unchanged", False)], [], []]


def test_weights_with_the_label_of_the_last_update_may_be_the_same():
    engine = Engine()
    engine.update(NAMES, version="1")

    assert [engine.update(version="1") for _ in range(3)] == [[]] * 3


def test_longer_pauses_of_training_can_be_declared():
    engine = Engine(settings={"unchanged": 5})
    engine.update(NAMES)

    assert [verdict.is_grave for _ in range(5) for verdict in engine.update()] == [False, True]


def test_updates_after_steps_that_the_scaler_skipped_may_change_nothing():
    engine = Engine()
    engine.update(NAMES)
    found = []
    for _ in range(4):
        engine.judge.trainer_skipped()
        found += engine.update()

    assert kinds(found) == [("unchanged", False)]
    assert found[0].text == "update 2 (transfer) changed nothing: the trainer's step was skipped by the scaler (float16)"
    engine.update(NAMES)
    assert kinds([*engine.update(), *engine.update()]) == [("unchanged", False), ("unchanged", True)]


@pytest.mark.parametrize("way", ["transfer", "lora"])
def test_a_scaler_that_tells_nothing_may_have_skipped_as_many_steps_as_its_scale_allows(way):
    engine = Engine(may_skip=True)
    engine.update(NAMES, way=way)

    found = [verdict.is_grave for _ in range(17) for verdict in engine.update(way=way)]

    assert found == [False, True]


def test_quantised_weights_that_round_to_the_same_values_are_no_warning():
    verdicts = {}
    for is_quantized in (True, False):
        engine = Engine(is_quantized=is_quantized)
        engine.update(NAMES, received={"a": "0"})
        verdicts[is_quantized] = [verdict for step in range(3) for verdict in engine.update(received={"a": str(step + 1)})]

    assert kinds(verdicts[True]) == [("unchanged", False)]
    assert "rounds to the same quantised values" in verdicts[True][0].text
    assert kinds(verdicts[False]) == [("unchanged", False), ("unchanged", True)]
    assert "does not reach what the engine computes with" in verdicts[False][1].text


def test_a_second_update_of_one_chunk_is_named_even_after_a_whole_model():
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


def test_a_rank_whose_weights_do_not_change_with_the_others_is_named():
    engine = Engine(ranks=2)

    (verdict,) = engine.update(NAMES, ranks=[0])

    assert (verdict.kind, verdict.is_grave) == ("ranks", True)
    assert "8 of 8 on rank 0, 0 of 8 on rank 1" in verdict.text


def test_a_rank_without_an_entry_is_named():
    engine = Engine(ranks=2)

    (verdict,) = engine.judge.add([engine.entry(0, changed=NAMES)])

    assert "came on 1 of 2 ranks (0)" in verdict.text


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


def test_the_frozen_base_of_an_engine_that_got_no_adapter_is_named():
    engine = Engine(has_lora=True)
    engine.update()
    engine.update()

    found = engine.update()

    assert kinds(found) == [("adapter-missing", True), ("unchanged", True)]
    assert "LoRA is on, no adapter was ever loaded" in found[0].text


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
    engine = Engine(LORA, has_lora=True)

    found = [engine.update(LORA, way="lora", adapter="policy", is_zero=True) for _ in range(3)]

    assert [kinds(verdicts) for verdicts in found] == [[], [("adapter-zero", False)], [("adapter-zero", True)]]


def test_an_adapter_that_comes_again_without_a_change_is_named():
    engine = Engine(LORA, has_lora=True)
    engine.update(LORA, way="lora", adapter="policy")

    found = [engine.update(way="lora", adapter="policy") for _ in range(2)]

    assert [kinds(verdicts) for verdicts in found] == [[("unchanged", False)], [("unchanged", True)]]


def test_an_engine_that_is_too_far_behind_its_trainer_is_named():
    engine = Engine(settings={"behind": 2})
    engine.judge.trainer_at(1)
    engine.update(NAMES)

    assert engine.judge.trainer_at(3) == []
    (verdict,) = engine.judge.trainer_at(4)

    assert (verdict.kind, verdict.is_grave) == ("behind", True)
    assert "3 updates old: the trainer has made 4, and its weights came last after 1" in verdict.text


def test_weights_that_come_again_are_not_behind():
    engine = Engine(settings={"behind": 2})
    engine.judge.trainer_at(3)
    engine.update(NAMES)

    assert engine.judge.trainer_at(5) == []
    assert "behind" not in engine.judge.problems


def test_the_variable_takes_a_mode_with_options():
    read = LedgerSettings.read

    assert read({}) == LedgerSettings()
    assert read({"MODEL_QUIRKS_LEDGER": "stop; unchanged=3; whole=1"}) == LedgerSettings(mode="stop", unchanged=3, whole=True)


def test_a_wrong_value_of_the_variable_is_an_error():
    read = LedgerSettings.read

    for text in ("wran", "warn;unchanged=0", "warn;often=1"):
        with pytest.raises(UsageError, match="it takes warn, stop or off"):
            read({"MODEL_QUIRKS_LEDGER": text})
    with pytest.raises(UsageError, match="did you mean 'warn'"):
        read({"MODEL_QUIRKS_LEDGER": "wran"})


def test_an_account_goes_through_json():
    entry = Entry(number=1, way="reload", rank=0, digests={"a": "0"}, changed=("a",))
    account = Account(pid=1, entries=(entry,), lines=(Line.of(entry),))

    assert Account.model_validate_json(account.model_dump_json()) == account
    assert (account.lines[0].held, account.lines[0].changed, account.lines[0].digest) == (1, 1, entry.digest)
