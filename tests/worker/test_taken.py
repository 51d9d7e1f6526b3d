"""What the loaders of a process took, from update to update."""

from __future__ import annotations

import pytest

from quirks_core.ledger.account import COMPUTES
from worker.refit.engine.taken import Taken

QUERY, OUTPUT, NORM = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.o_proj.weight", "model.norm.weight"
PACKED = f"model.layers.0.self_attn.qkv_proj{COMPUTES}"


@pytest.fixture
def taken():
    found = Taken()
    found.add({QUERY: "1", OUTPUT: "1", NORM: "1"}, (), {}, None)
    return found


def test_what_did_not_come_again_is_as_it_came(taken):
    taken.add({QUERY: "2"}, (PACKED,), {}, None)

    assert taken.digests == {QUERY: "2", OUTPUT: "1", NORM: "1"}


def test_nothing_is_known_of_a_layer_changed_past_its_loader(taken):
    taken.add({NORM: "2"}, (PACKED, NORM), {}, None)

    assert taken.digests == {OUTPUT: "1", NORM: "2"}


def test_a_layer_changed_since_has_another_value_than_it_took(taken):
    assert taken.beside((PACKED,)) == {QUERY: "", OUTPUT: "1", NORM: "1"}
