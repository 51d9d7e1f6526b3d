"""What supports a quirk on an installation."""

from __future__ import annotations

from datetime import date

import pytest

from quirks_core import Fact, platform
from quirks_core.declaration import evidence
from quirks_core.declaration.evidence import Proved
from quirks_core.plugins.proof_status import Standing, standing

_VLLM = {"vllm": "0.32.0"}
_AMX = Proved(platform="cpu", cpu="amx", versions=_VLLM, by="paired run", conclusion="NEEDED", date=date(2026, 11, 1))
_OLDER = _AMX.model_copy(update={"cpu": ""})


@pytest.mark.parametrize(
    ("match", "proved", "cpu", "found"),
    [
        (Fact("platform.cpu.amx").is_true(), _AMX, "amx", Standing.PROVEN),
        (Fact("platform.cpu.amx").is_true(), _AMX, "avx2", Standing.ELSEWHERE),
        (Fact("platform.cpu.amx").is_true(), _OLDER, "amx", Standing.ELSEWHERE),  # on a kind that was not recorded
        (platform("cpu"), _OLDER, "amx", Standing.PROVEN),
        (platform("cpu"), _AMX, "avx2", Standing.PROVEN),
    ],
)
def test_a_proof_holds_for_its_kind_of_cpu_if_the_quirk_depends_on_it(make_quirk, monkeypatch, match, proved, cpu, found):
    monkeypatch.setattr(evidence, "proved", lambda _: (proved,))

    assert standing(make_quirk(match=match), "cpu", _VLLM, cpu=cpu, source=False)[0] is found


@pytest.mark.parametrize("graphs", [True, False])
def test_a_proof_in_one_mode_is_none_for_the_other(make_quirk, monkeypatch, graphs):
    proved = _OLDER.model_copy(update={"graphs": graphs, "platform": "cuda"})
    monkeypatch.setattr(evidence, "proved", lambda _: (proved,))

    here, there = (standing(make_quirk(), "cuda", _VLLM, graphs=one, source=False) for one in (graphs, not graphs))

    assert here[0] is Standing.PROVEN
    assert there == (Standing.ELSEWHERE, f"cuda ({'CUDA graphs' if graphs else 'eager'}): vllm 0.32.0")


@pytest.mark.parametrize(
    ("recorded", "runner", "found"),
    [
        ("v1", "v1", Standing.PROVEN),
        ("v1", "v2", Standing.ELSEWHERE),
        ("v1", "", Standing.ELSEWHERE),
        ("v1, v2", "v1", Standing.ELSEWHERE),
        ("", "v2", Standing.PROVEN),  # before it was recorded
    ],
)
def test_a_proof_on_one_model_runner_is_none_for_the_other(make_quirk, monkeypatch, recorded, runner, found):
    proved = _OLDER.model_copy(update={"runner": recorded})
    monkeypatch.setattr(evidence, "proved", lambda _: (proved,))

    assert standing(make_quirk(match=platform("cpu")), "cpu", _VLLM, runner=runner, source=False)[0] is found
