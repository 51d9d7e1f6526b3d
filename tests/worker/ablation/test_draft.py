"""The lines of a new quirk for a setting that no quirk covers."""

from __future__ import annotations

import pytest

import quirks_core
from quirks_core import Default, Require
from worker.lab.attribution.draft import draft_of
from worker.lab.parity.records import JOINT, Change

HEADS = ("engine.head_dtype", "train.head_dtype")


@pytest.mark.parametrize(
    ("settings", "step", "wanted"),
    [
        ({}, Change(setting="engine.seed", before=None, after=3), [Default("engine.seed", 3)]),
        ({"seed": 1}, Change(setting="engine.seed", before=1, after=3), [Require("engine.seed", 3)]),
        (
            {},
            Change(setting=JOINT.join(HEADS), before=[None, None], after=["float32", "float32"]),
            [Default(HEADS[0], "float32"), Default(HEADS[1], "float32")],
        ),
    ],
)
def test_a_draft_sets_what_the_step_changed(settings, step, wanted, user):
    names = {name: getattr(quirks_core, name) for name in ("Default", "Require", "model_type", "purpose")}

    fields = eval(f"dict({draft_of(step, user(engine=settings).plan)})", names)  # noqa: S307

    assert fields["adjustments"] == wanted
    assert str(fields["match"])
