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


LORA = ("layers.0.q_proj.lora_a", "layers.0.q_proj.lora_b", "layers.1.q_proj.lora_a", "layers.1.q_proj.lora_b")
TOWER = tuple(f"visual.blocks.{index}.weight" for index in range(2))
CHUNK, MOST, UPPER = NAMES[1:2], NAMES[:-1], NAMES[3:]
NOTE, WARNING = ("unchanged", False), ("unchanged", True)
ADAPTER = {"names": LORA, "has_lora": True}


def brings(value, names=("a",), **more):
    """What comes with an update."""
    return {"received": dict.fromkeys(names, value), **more}


def labelled(labels, weights):
    """Updates with labels, each with the weights of that letter."""
    return [(NAMES, brings(one, version=label)) for label, one in zip(labels, weights, strict=True)]


def adapters(count, changed, **more):
    """Updates of an adapter, of which the named tensors change."""
    return [(changed, {"way": "lora", "adapter": "policy", **more})] * count


#: Runs by what they are: the engine; what changes in each update, and what comes with it; the verdicts; words of the last.
RUNS = {
    "two policies by turns": ({}, [(NAMES, brings(str(turn % 2))) for turn in range(30)], {}, ()),
    "the label of the update before": ({}, [(NAMES, {"version": "1"}), *[((), {"version": "1"})] * 3], {}, ()),
    "weights as they were, for an evaluation or at the end of a schedule": (
        {},
        [(MOST, brings("0")), (MOST, brings("1")), *[((), brings("1")), (MOST, brings("1")), ((), brings("1"))] * 15],
        {2: [NOTE]},
        (
            "changed 0 of 8 tensors; earlier updates changed 7 of them, and never norm.weight",
            "(learning rate 0) or whose step was skipped by the scaler",
        ),
    ),
    "new weights that change nothing": (
        {},
        [(NAMES, brings("0")), ((), brings("1")), ((), brings("2"))],
        {1: [NOTE], 2: [WARNING]},
        ["does not reach what the engine computes with"],
    ),
    **{
        f"weights that never change after warm-up, by {way}": (
            {},
            [(NAMES, {"way": way}), *[((), {"way": way})] * 17],
            {1: [NOTE], 17: [WARNING]},
            (),
        )
        for way in ("transfer", "lora")
    },
    **{
        f"weights that round to the same values, {why}": (
            {"is_quantized": why == "quantised"},
            [(NAMES, brings("0")), *[((), brings(str(step), is_cast=why == "cast")) for step in range(1, 31)]],
            {1: [NOTE]},
            ["rounds to the same values"],
        )
        for why in ("quantised", "cast")
    },
    "a second update of one chunk": (
        {},
        [(names, brings(value, names, way="raw")) for names, value in ((NAMES, "0"), (CHUNK, "0"), (CHUNK, "1"))],
        {2: [("partial", True)]},
        ["changed 1 of 3 layers, and never model.layers.1, model.layers.2: no update brought them"],
    ),
    "frozen layers that were sent": (
        {"names": (*NAMES, *TOWER)},
        [(names, brings("0", (*NAMES, *TOWER))) for names in (NAMES, UPPER) for _ in range(3)],
        {4: [("partial", False)]},
        ["never model.layers.0: they came with the values"],
    ),
    "the frozen base in place of an adapter": (
        {"has_lora": True},
        [((), {})] * 3,
        {1: [("adapter-missing", False)], 2: [("adapter-missing", True)]},
        ["LoRA is on, no adapter was ever loaded"],
    ),
    "other weights under a label": ({}, labelled(["base", "1", "base"], "abc"), {2: [("label", False)]}, ()),
    "labels again and again": ({}, labelled(["base", *"12", "base", *"345", "base"], "abcdefgh"), {3: [("label", False)]}, ()),
    "the parts of one update": ({}, labelled(["base", "base", "base"], "abc"), {}, ()),
    "a label of long ago": ({}, labelled(["base", *"1234", "base"], "abcdef"), {}, ()),
    "the same weights under a label": ({}, labelled(["base", "1", "base", "2", "base"], "abaca"), {}, ()),
    "no labels": ({}, labelled(["", "1", ""], "abc"), {}, ()),
    **{
        f"an adapter with {count} modules of another model": (
            ADAPTER,
            adapters(1, LORA, unmatched=[f"layers.{layer}.q_proj" for layer in range(count)]),
            {0: [("adapter-names", count == 2)]},
            [f"'policy': {count} of its 2 modules are no modules of this model"],
        )
        for count in (1, 2)
    },
    "an adapter that adds nothing": (
        ADAPTER,
        adapters(3, LORA[::2], is_zero=True),
        {2: [("adapter-zero", True)]},
        ["A, B or lora_alpha is zero"],
    ),
    "an adapter before it is trained": (
        ADAPTER,
        adapters(1, LORA, is_zero=True) + adapters(8, (), is_zero=True),
        {1: [NOTE]},
        (),
    ),
}


@pytest.mark.parametrize(("options", "updates", "verdicts", "words"), RUNS.values(), ids=RUNS)
def test_a_run_has_these_verdicts_and_no_others(options, updates, verdicts, words):
    engine = Engine(**options)

    found = [engine.update(changed, **more) for changed, more in updates]

    assert {number: kinds(said) for number, said in enumerate(found) if said} == verdicts
    last = [verdict.text for said in found for verdict in said][-1:]
    assert [word for text in last for word in words if word not in text] == []


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


def test_a_rollout_with_lora_whose_engine_gets_nothing_is_a_note():
    engine = Engine(has_lora=True)

    found = [engine.judge.served(0, 100) for _ in range(20)]

    assert [kinds(verdicts) for verdicts in found] == [[]] * 10 + [[("adapter-missing", False)]] + [[]] * 9
    assert "send the adapter (add_lora), and name it in each request" in found[10][0].text


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
