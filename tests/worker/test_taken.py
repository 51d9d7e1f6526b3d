"""What the loaders of a process took, from update to update."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quirks_core.ledger.account import COMPUTES
from worker.refit.engine.taken import Taken

QUERY, OUTPUT, NORM = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.o_proj.weight", "model.norm.weight"
KEY = QUERY.replace("q_proj", "k_proj")
PACKED = f"model.layers.0.self_attn.qkv_proj{COMPUTES}"


@pytest.fixture
def taken():
    found = Taken()
    found.add({QUERY: "1", OUTPUT: "1", NORM: "1"}, (), {}, None)
    return found


#: What copied the query in a way that the model's bytes do not show.
COPIED = SimpleNamespace(manifest=SimpleNamespace(index={QUERY: 0}), alone={})


@pytest.mark.parametrize(
    ("came", "changed", "plan", "known"),
    [
        ({QUERY: "2"}, (PACKED,), None, {QUERY: "2", OUTPUT: "1", NORM: "1"}),
        ({NORM: "2"}, (PACKED, NORM), None, {OUTPUT: "1", NORM: "2"}),
        ({OUTPUT: "2", KEY: "2"}, (PACKED,), COPIED, {OUTPUT: "2", KEY: "2", NORM: "1"}),
    ],
    ids=["what did not come again is as it came", "changed past its loader", "copied unseen beside what came"],
)
def test_what_is_known_was_taken_last(taken, came, changed, plan, known):
    taken.add(came, changed, {}, plan)

    assert taken.digests == known


def test_a_layer_changed_since_has_another_value_than_it_took(taken):
    assert taken.beside((PACKED,)) == {QUERY: "", OUTPUT: "1", NORM: "1"}
