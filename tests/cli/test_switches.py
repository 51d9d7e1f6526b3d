"""``--disable``, ``--force``, ``--strict`` and ``--locked`` of the commands that describe a run."""

from __future__ import annotations

import pytest

ACME = """
from quirks_core import Default, Quirk, Severity, model_type, report
QUIRK = Quirk(
    id="acme-eager", title="t", flag="enforce_eager", match=model_type("qwen3"), severity=Severity.SLOW,
    adjustments=Default("engine.enforce_eager", True), references=report("https://example.org"),
)
"""
EAGER = "engine.enforce_eager"
OF_A_RUN = pytest.mark.parametrize("command", [("plan",), ("explain", "v1-runtime")], ids=lambda command: command[0])
BY = pytest.mark.parametrize("by", ["option", "environment"])


@pytest.fixture
def acme(install):
    """Installs a third party's quirk that concerns the models of these tests."""
    install("acme-eager", ACME)


@pytest.fixture
def planned(quirks, model):
    """Plans with the given options; gives the plan and the verdicts by id."""

    def plan(*options):
        outcome = quirks("plan", "--model", model(), *options, "--json")
        assert outcome.code == 0, outcome
        return outcome.json, {verdict["id"]: verdict for verdict in outcome.json["verdicts"]}

    return plan


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("name", ["acme-eager", "enforce_eager", "ENFORCE_EAGER"])
def test_disable_turns_a_quirk_off_by_id_and_flag_in_any_case(planned, name):
    plan, verdicts = planned("--disable", name)

    assert (verdicts["acme-eager"]["state"], plan["changes"].get(EAGER)) == ("disabled", None)
    assert verdicts["acme-eager"]["because"] == f"switched off by {name.lower()!r} in the command line (--disable)"


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("name", ["distribution:acme_eager", "distribution:Acme-Eager", "third-party", "all"])
def test_disable_keeps_a_distribution_from_being_loaded_and_the_plan_says_so(planned, name):
    plan, verdicts = planned("--disable", name)

    assert "acme-eager" not in verdicts
    skipped = [note["text"] for note in plan["warnings"] if note["kind"] == "plugin"]
    assert any("plugin 'acme-eager' of acme-eager 1.2 was not loaded: switched off by" in text for text in skipped)


def test_the_stronger_layer_wins_and_the_plan_names_it(quirks, model, monkeypatch, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {model()}\nquirks: {{disable: [logprobs]}}\n", encoding="utf-8")

    def because(*options):
        verdicts = quirks("plan", "--config", file, *options, "--json").json["verdicts"]
        explained = quirks("explain", "rollout-logprobs-processed", "--config", file, *options, "--json").json
        (verdict,) = [item for item in verdicts if item["id"] == "rollout-logprobs-processed"]
        assert verdict == explained
        return verdict["because"]

    assert because() == "switched off by 'logprobs' in the configuration (quirks.disable)"
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "logprobs")
    assert because() == "switched off by 'logprobs' in the environment (MODEL_QUIRKS_DISABLE)"
    assert because("--disable", "logprobs") == "switched off by 'logprobs' in the command line (--disable)"
    assert because("--force", "logprobs").startswith("forced by 'logprobs' in the command line (--force); ")
    monkeypatch.delenv("MODEL_QUIRKS_DISABLE")
    monkeypatch.setenv("MODEL_QUIRKS_FORCE", "logprobs")
    assert because().startswith("forced by 'logprobs' in the environment (MODEL_QUIRKS_FORCE); ")


def test_force_turns_a_quirk_on_that_does_not_concern_the_run_and_explain_says_so(quirks, model, planned):
    plan, verdicts = planned("--force", "deepscaler-eager")
    explained = quirks("explain", "deepscaler-eager", "--model", model(), "--force", "deepscaler-eager")

    assert (verdicts["deepscaler-eager"]["state"], plan["changes"]["engine.compilation_config"]) == (
        "active",
        {"backend": "eager"},
    )
    assert explained.out.splitlines()[0] == "deepscaler-eager applies"
    assert "forced by 'deepscaler-eager' in the command line (--force)" in explained.out


@pytest.mark.usefixtures("acme")
def test_one_quirk_can_be_forced_where_all_third_parties_are_off(planned):
    _, verdicts = planned("--disable", "third-party", "--force", "acme-eager")

    assert verdicts["acme-eager"]["state"] == "active"


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("name", ["third-party", "all"])
def test_explain_says_who_switched_a_quirk_off_with_its_whole_distribution(quirks, model, name):
    explained = quirks("explain", "acme-eager", "--model", model(), "--disable", name)

    assert explained.code == 0
    assert f"switched off by '{name}' in the command line (--disable)" in explained.out


@OF_A_RUN
@BY
def test_strict_makes_every_broken_plugin_that_is_loaded_fatal_at_once(quirks, model, install, monkeypatch, command, by):
    install("acme-broken", "raise RuntimeError('imported')\n")
    install("acme-other", "QUIRK = 3\n")
    if by == "environment":
        monkeypatch.setenv("MODEL_QUIRKS_STRICT", "1")

    line = [*command, "--model", model(), *(["--strict"] if by == "option" else [])]

    outcome, loaded_only = quirks(*line), quirks(*line, "--disable", "third-party")

    assert (outcome.code, outcome.out, loaded_only.code) == (3, "", 0)
    assert "plugin 'acme-broken' of acme-broken 1.2" in outcome.err
    assert "plugin 'acme-other' of acme-other 1.2" in outcome.err


@OF_A_RUN
@BY
def test_a_quirk_that_is_not_in_the_lock_refuses_the_run(quirks, model, install, monkeypatch, tmp_path, command, by):
    lock = tmp_path / "quirks.lock"
    assert quirks("lock", "--output", lock).code == 0
    if by == "environment":
        monkeypatch.setenv("MODEL_QUIRKS_LOCKED", str(lock))
    line = [*command, "--model", model(), *(["--locked", lock] if by == "option" else [])]

    fits = quirks(*line)
    install("acme-eager", ACME)
    more = quirks(*line)
    off = quirks(*line, "--disable", "third-party")

    assert (fits.code, more.code, more.out, off.code) == (0, 1, "", 0)
    assert "acme-eager of acme-eager 1.2 is not in the lock file" in more.err


def test_a_distribution_that_is_off_may_be_missing_from_what_is_loaded(quirks, model, acme, tmp_path):  # noqa: ARG001
    quirks("lock", "--output", tmp_path / "quirks.lock")

    outcome = quirks("plan", "--model", model(), "--locked", tmp_path / "quirks.lock", "--disable", "third-party")

    assert outcome.code == 0


@pytest.mark.parametrize("content", [None, "", "{}", "quirks: []"])
def test_a_lock_that_cannot_be_used_is_a_usage_error(quirks, model, tmp_path, content):
    file = tmp_path / "quirks.lock"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    outcome = quirks("plan", "--model", model(), "--locked", file, "--json")

    assert outcome.code == 2
    assert "quirks.lock" in outcome.json["error"]
