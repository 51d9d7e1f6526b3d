"""What supports a quirk on an installation."""

from __future__ import annotations

from datetime import date

import pytest

from quirks_core import Fact, platform
from quirks_core.declaration import evidence
from quirks_core.declaration.evidence import Proved
from quirks_core.plugins.proof_status import Standing, standing

_VLLM = {"vllm": "0.32.0"}
_PROVED = Proved(platform="cpu", versions=_VLLM, by="paired run", conclusion="NEEDED", date=date(2026, 11, 1))
_ASKS_FOR_AMX = Fact("platform.cpu.amx").is_true()


@pytest.mark.parametrize(
    ("match", "recorded", "here", "found"),
    [
        (_ASKS_FOR_AMX, {"cpu": "amx"}, {"cpu": "amx"}, Standing.PROVEN),
        (_ASKS_FOR_AMX, {"cpu": "amx"}, {"cpu": "avx2"}, Standing.ELSEWHERE),
        (_ASKS_FOR_AMX, {}, {"cpu": "amx"}, Standing.ELSEWHERE),  # on a kind that was not recorded
        (platform("cpu"), {}, {"cpu": "amx"}, Standing.PROVEN),
        (platform("cpu"), {"cpu": "amx"}, {"cpu": "avx2"}, Standing.PROVEN),
        (platform("cpu"), {"graphs": True}, {"graphs": True}, Standing.PROVEN),
        (platform("cpu"), {"graphs": True}, {"graphs": False}, Standing.ELSEWHERE),
        (platform("cpu"), {"graphs": False}, {"graphs": True}, Standing.ELSEWHERE),
        (platform("cpu"), {"runner": "v1"}, {"runner": "v1"}, Standing.PROVEN),
        (platform("cpu"), {"runner": "v1"}, {"runner": "v2"}, Standing.ELSEWHERE),
        (platform("cpu"), {"runner": "v1"}, {"runner": ""}, Standing.ELSEWHERE),
        (platform("cpu"), {"runner": "v1, v2"}, {"runner": "v1"}, Standing.ELSEWHERE),
        (platform("cpu"), {"runner": ""}, {"runner": "v2"}, Standing.PROVEN),  # before it was recorded
    ],
)
def test_a_proof_holds_for_its_kind_of_cpu_mode_and_runner(make_quirk, monkeypatch, match, recorded, here, found):
    """Of CPUs, where the quirk depends on them."""
    monkeypatch.setattr(evidence, "proved", lambda _: (_PROVED.model_copy(update=recorded),))

    assert standing(make_quirk(match=match), "cpu", _VLLM, **here, source=False)[0] is found
