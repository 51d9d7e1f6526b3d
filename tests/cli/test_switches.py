"""``--disable``, ``--force``, ``--strict`` and ``--locked`` of the commands that describe a run."""

from __future__ import annotations

import json

import pytest

ACME = """
from quirks_core import Default, Quirk, Severity, model_type, report
QUIRK = Quirk(
    id="{name}", title="t", flag="enforce_eager", match=model_type("qwen3"), severity=Severity.SLOW,
    adjustments=Default("engine.enforce_eager", True), references=report("https://example.org"),
)
"""
EAGER = "engine.enforce_eager"


@pytest.fixture
def acme(install):
    """Installs a third party's quirk that concerns the models of these tests."""
    install("acme-eager", ACME.format(name="acme-eager"))


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
    assert f"switched off by {name.lower()!r} in the command line (--disable)" == verdicts["acme-eager"]["because"]


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("name", ["distribution:acme_eager", "distribution:Acme-Eager", "third-party", "all"])
def test_disable_keeps_a_distribution_from_being_loaded_and_the_plan_says_so(planned, name):
    plan, verdicts = planned("--disable", name)

    assert "acme-eager" not in verdicts
    assert any("plugin 'acme-eager' of acme_eager 1.0 was not loaded: switched off by" in text for text in plan["warnings"])


def test_force_turns_a_quirk_on_that_does_not_concern_the_run(planned):
    plan, verdicts = planned("--force", "deepscaler-eager")

    assert (verdicts["deepscaler-eager"]["state"], plan["changes"][EAGER]) == ("active", True)
    assert verdicts["deepscaler-eager"]["because"].startswith("forced by 'deepscaler-eager' in the command line (--force)")


@pytest.mark.usefixtures("acme")
def test_one_quirk_can_be_forced_where_all_third_parties_are_off(planned):
    _, verdicts = planned("--disable", "third-party", "--force", "acme-eager")

    assert verdicts["acme-eager"]["state"] == "active"


def test_the_command_line_beats_the_environment(planned, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "all")

    _, verdicts = planned("--force", "logprobs")

    assert verdicts["rollout-logprobs-processed"]["state"] == "active"
    assert verdicts["v1-runtime"]["because"] == "switched off by 'all' in the environment (MODEL_QUIRKS_DISABLE)"


def test_the_environment_can_force(planned, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_FORCE", "deepscaler-eager")

    _, verdicts = planned()

    assert verdicts["deepscaler-eager"]["because"].startswith(
        "forced by 'deepscaler-eager' in the environment (MODEL_QUIRKS_FORCE)"
    )


@pytest.mark.parametrize("verb", [("plan",), ("explain", "v1-runtime")], ids=lambda verb: verb[0])
def test_a_name_cannot_be_off_and_on_at_once(quirks, model, verb):
    outcome = quirks(*verb, "--model", model(), "--disable", "logprobs", "--force", "LOGPROBS")

    assert outcome.code == 2
    assert "'logprobs' is turned off and on at once" in outcome.err


@pytest.mark.parametrize("option", ["--disable", "--force"])
@pytest.mark.parametrize("verb", [("plan",), ("explain", "v1-runtime")], ids=lambda verb: verb[0])
def test_a_name_that_does_not_exist_is_a_usage_error_with_the_nearest(quirks, model, verb, option):
    outcome = quirks(*verb, "--model", model(), option, "distribution:model-quirk")

    assert outcome.code == 2
    assert f"in the command line ({option}); did you mean 'distribution:model-quirks'?" in outcome.err


def test_explain_says_that_a_quirk_is_forced(quirks, model):
    explained = quirks("explain", "deepscaler-eager", "--model", model(), "--force", "deepscaler-eager")

    assert explained.code == 0
    assert explained.out.splitlines()[0] == "deepscaler-eager applies"
    assert "forced by 'deepscaler-eager' in the command line (--force)" in explained.out


@pytest.mark.parametrize("name", ["third-party", "all"])
def test_explain_says_who_switched_a_quirk_off_with_its_whole_distribution(quirks, model, acme, name):  # noqa: ARG001
    explained = quirks("explain", "acme-eager", "--model", model(), "--disable", name)

    assert explained.code == 0
    assert f"switched off by '{name}' in the command line (--disable)" in explained.out


@pytest.mark.parametrize("verb", [("plan",), ("explain", "v1-runtime")], ids=lambda verb: verb[0])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_strict_makes_broken_plugins_fatal_and_lists_all(quirks, model, install, monkeypatch, verb, by):
    install("acme-broken", "raise RuntimeError('imported')\n")
    install("acme-other", "QUIRK = 3\n")
    if by == "environment":
        monkeypatch.setenv("MODEL_QUIRKS_STRICT", "1")

    outcome = quirks(*verb, "--model", model(), *(["--strict"] if by == "option" else []))

    assert (outcome.code, outcome.out) == (3, "")
    assert "plugin 'acme-broken' of acme_broken 1.0" in outcome.err
    assert "plugin 'acme-other' of acme_other 1.0" in outcome.err


@pytest.fixture
def lock_file(quirks, tmp_path):
    """A lock file of what is installed."""
    file = tmp_path / "quirks.lock"
    assert quirks("lock", "--output", file).code == 0
    return file


@pytest.mark.parametrize("verb", [("plan",), ("explain", "v1-runtime")], ids=lambda verb: verb[0])
def test_a_lock_that_fits_passes(quirks, model, lock_file, verb):
    assert quirks(*verb, "--model", model(), "--locked", lock_file).code == 0


@pytest.mark.parametrize("verb", [("plan",), ("explain", "v1-runtime")], ids=lambda verb: verb[0])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_quirk_that_is_not_in_the_lock_refuses_the_run(quirks, model, install, lock_file, monkeypatch, verb, by):
    install("acme-eager", ACME.format(name="acme-eager"))
    if by == "environment":
        monkeypatch.setenv("MODEL_QUIRKS_LOCKED", str(lock_file))

    outcome = quirks(*verb, "--model", model(), *(["--locked", lock_file] if by == "option" else []))

    assert (outcome.code, outcome.out) == (1, "")
    assert "acme-eager of acme_eager 1.0 is not in the lock file" in outcome.err


def test_a_distribution_that_is_off_may_be_missing_from_what_is_loaded(quirks, model, install, tmp_path):
    install("acme-eager", ACME.format(name="acme-eager"))
    assert quirks("lock", "--output", tmp_path / "quirks.lock").code == 0

    outcome = quirks("plan", "--model", model(), "--locked", tmp_path / "quirks.lock", "--disable", "third-party")

    assert outcome.code == 0


@pytest.mark.parametrize("content", [None, "", "{}", "quirks: []"])
def test_a_lock_that_cannot_be_used_is_a_usage_error(quirks, model, tmp_path, content):
    file = tmp_path / "quirks.lock"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    outcome = quirks("plan", "--model", model(), "--locked", file, "--json")

    assert outcome.code == 2
    assert "quirks.lock" in json.loads(outcome.out)["error"]
