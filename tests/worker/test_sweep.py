"""The sweep over architectures: verdicts, what is run again, and the page. No engine runs here."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from script_modules import load_script

from worker.lab.kit.checkpoints import FURTHER, build, configuration

_ROOT = Path(__file__).resolve().parents[2]
_DOCS = _ROOT / "docs" / "results"
command = load_script(_ROOT / "scripts" / "sweep.py")
KINDS, Row, Run, Stage, Sweep, Tokens, Verdict = (
    command.KINDS, command.Row, command.Run, command.Stage, command.Sweep, command.Tokens, command.Verdict,
)  # fmt: skip
EXPLANATIONS, dependencies, make, markdown = command.EXPLANATIONS, command.dependencies, command.make, command.markdown
_ALL, _SOME = Tokens(equal=72, total=72, logprobs=1e-6), Tokens(equal=7, total=72, logprobs=0.5)
_DONE = Run(stage=Stage.DONE, first=_ALL, second=_ALL, differs=())
_RIGHT_FROM_DISK = Run(stage=Stage.DONE, first=_ALL)


def _row(kind="qwen3", run=_DONE, disk=None, **values):
    return Row(kind=kind, run=run, disk=disk, seconds=20, date=date(2026, 11, 22), depends=values or dependencies(kind))


def _changed(**values):
    return _DONE.model_copy(update=values)


@pytest.mark.parametrize(
    ("run", "disk", "verdict"),
    [
        (_DONE, None, Verdict.RIGHT),
        (Run(stage=Stage.BUILD, error="no"), None, Verdict.NOT_BUILT),
        (Run(stage=Stage.BUILD, error="not done after 240 s", killed=True), None, Verdict.UNFINISHED),
        (Run(stage=Stage.PLAN, refusals=("cpu-head-size",), error="no"), None, Verdict.REFUSED),
        (Run(stage=Stage.START, error="no"), None, Verdict.NO_START),
        (Run(stage=Stage.FIRST, error="no"), _RIGHT_FROM_DISK, Verdict.REFIT_FAILS),
        (Run(stage=Stage.FIRST, error="no"), Run(stage=Stage.FIRST, error="no"), Verdict.ERROR_FROM_DISK),
        (_changed(first=_SOME), _RIGHT_FROM_DISK, Verdict.REFIT_WRONG),
        (_changed(second=_SOME), _RIGHT_FROM_DISK, Verdict.REFIT_WRONG),
        (_changed(differs=("lm_head",)), _RIGHT_FROM_DISK, Verdict.REFIT_WRONG),
        (_changed(first=_SOME), Run(stage=Stage.DONE, first=_SOME), Verdict.OTHER_FROM_DISK),
        (_changed(first=_SOME), Run(stage=Stage.BUILD, killed=True), Verdict.UNFINISHED),
    ],
)
def test_only_a_checkpoint_right_from_disk_blames_the_refit(run, disk, verdict):
    assert _row(run=run, disk=disk).verdict is verdict


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs the command on a folder of its own; returns its exit code and the kinds whose engines it would have started."""

    def run(*arguments, make=lambda kind, *_: _row(kind)):
        started = []
        monkeypatch.setattr(command, "make", lambda kind, *rest: (started.append(kind), make(kind, *rest))[1])
        return command.main([*arguments, "--docs", str(tmp_path)]), started

    return run


def test_a_second_sweep_skips_rows_of_the_same_versions(sweep):
    assert sweep("qwen3", "gemma") == (0, ["qwen3", "gemma"])
    assert sweep("qwen3", "gemma", "llama") == (0, ["llama"])
    assert sweep("gemma", "--anew", make=lambda kind, *_: _row(kind, vllm="0.31.0")) == (0, ["gemma"])
    assert sweep("qwen3", "gemma") == (0, ["gemma"])


def test_an_interrupted_sweep_keeps_its_rows(sweep, tmp_path):
    def make(kind, *_):
        if kind == "gemma":
            raise KeyboardInterrupt
        return _row(kind)

    with pytest.raises(KeyboardInterrupt):
        sweep("qwen3", "gemma", make=make)

    assert [row.kind for row in Sweep.read(tmp_path / "sweep.json").rows] == ["qwen3"]
    assert "| qwen3 |" in (tmp_path / "sweep.md").read_text(encoding="utf-8")


def test_a_wrong_row_without_an_explanation_is_a_finding(sweep):
    assert sweep("qwen3", make=lambda kind, *_: _row(kind, _changed(first=_SOME), _RIGHT_FROM_DISK)) == (1, ["qwen3"])
    assert sweep("qwen3", "--render") == (1, [])


def test_a_run_that_takes_too_long_is_unfinished():
    found = make("qwen3", timeout_s=0.01)

    assert found.verdict is Verdict.UNFINISHED
    assert "not done after 0.01 s" in found.run.error


def test_every_further_kind_is_small_with_finite_logits(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    for kind in FURTHER:
        folder = build(kind, tmp_path / kind)
        config = type(configuration(kind)).from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(torch.arange(3, 27)[None], use_cache=False).logits
        assert bool(logits.isfinite().all()), kind
        assert model.num_parameters() < 500_000, kind


def test_the_recorded_page_shows_the_recorded_rows():
    recorded = Sweep.read(_DOCS / "sweep.json")

    assert (_DOCS / "sweep.json").read_text(encoding="utf-8") == recorded.text()
    assert (_DOCS / "sweep.md").read_text(encoding="utf-8") == markdown(recorded)


def test_every_recorded_wrong_row_has_an_explanation():
    recorded = Sweep.read(_DOCS / "sweep.json")

    assert {row.kind for row in recorded.rows} == set(KINDS)
    assert all(row.depends["values"] == dependencies(row.kind)["values"] for row in recorded.rows)
    assert recorded.unexplained == []
    assert set(EXPLANATIONS) <= {row.kind for row in recorded.rows if row.verdict is not Verdict.RIGHT}
