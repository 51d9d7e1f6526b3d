"""``quirks doctor``: 0 if all is well, 1 with findings, 3 with a broken plugin."""

from __future__ import annotations

import pytest

from quirks_core import fingerprints

RAISES = "raise RuntimeError('imported')\n"
DRIFTED = """
from quirks_core import Patch, Quirk, Severity, model_type, report
QUIRK = Quirk(
    id="acme-patch", title="t", flag="runtime", match=model_type("acme"), severity=Severity.NOISE,
    adjustments=Patch("pluggy:PluginManager.register", wrapper="acme:make", expects=("0" * 64,)),
    references=report("https://example.org"),
)
"""


def subjects(examined, level):
    """What the findings of one level are about."""
    return [finding["subject"] for finding in examined.json if finding["level"] == level]


def test_a_sound_installation_has_no_errors(quirks):
    examined = quirks("doctor", "--json")

    assert subjects(examined, "error") == []
    assert examined.code == 0


def test_every_finding_says_how_bad_about_what_and_why(quirks):
    findings = quirks("doctor", "--json").json

    assert all(finding.keys() == {"level", "subject", "message"} for finding in findings)
    assert {finding["level"] for finding in findings} <= {"ok", "note", "error"}


def test_the_table_says_the_same(quirks):
    examined = quirks("doctor")

    assert examined.code == 0
    assert "quirks loaded, 0 plugins broken" in examined.out


def test_a_quirk_that_the_installed_engine_no_longer_needs_is_named(quirks):
    findings = quirks("doctor", "--json").json

    (message,) = [item["message"] for item in findings if item["subject"] == "gemma-normalizer-dummy-load"]
    assert "no longer needed here" in message


def test_the_patches_fit_the_installed_engine(quirks):
    messages = [item["message"] for item in quirks("doctor", "--json").json if item["subject"] == "cpu-moe-expert-parallel"]

    assert len(messages) == 3
    assert all("the source is the one that the patch was written against" in message for message in messages)


def test_a_broken_plugin_is_one_named_row_and_exit_code_3(quirks, install):
    install("acme-broken", RAISES)

    examined = quirks("doctor", "--json")

    assert examined.code == 3
    assert subjects(examined, "error") == ["acme-broken"]
    assert "RuntimeError: imported" in next(item["message"] for item in examined.json if item["level"] == "error")


def test_a_broken_plugin_shows_in_the_table_without_a_traceback(quirks, install):
    install("acme-broken", RAISES)

    examined = quirks("doctor")

    assert examined.code == 3
    assert "acme-broken" in examined.out
    assert "Traceback" not in examined.out + examined.err


@pytest.mark.parametrize("source", ["QUIRK = 3\n", "def QUIRK(): ...\n", "import sys\nsys.exit(5)\n", "syntax error\n", ""])
def test_every_way_to_break_a_plugin_is_a_row_of_its_own(quirks, install, source):
    install("acme-broken", source)

    examined = quirks("doctor", "--json")

    assert examined.code == 3
    assert subjects(examined, "error") == ["acme-broken"]


def test_a_drifted_patch_is_an_error_before_any_run_needs_it(quirks, install):
    install("acme-patch", DRIFTED)

    examined = quirks("doctor", "--json")

    assert examined.code == 1
    assert subjects(examined, "error") == ["acme-patch"]


def test_a_drifted_patch_shows_the_lines_that_are_new(quirks, install):
    target = "pluggy._manager:PluginManager.register"
    known = fingerprints.fingerprint(target, lines=True).partition(":")[2]
    declared = DRIFTED.replace("pluggy:PluginManager.register", target)
    install("acme-patch", declared.replace('"0" * 64', f'"0" * 64 + ":000000{known[6:]}"'))

    (message,) = [item["message"] for item in quirks("doctor", "--json").json if item["level"] == "error"]

    assert "\n+ " in message, message
    assert "lines as before" in message


def test_a_strict_environment_does_not_keep_the_doctor_from_the_other_rows(quirks, install, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_STRICT", "1")
    install("acme-broken", RAISES)

    examined = quirks("doctor", "--json")

    assert examined.code == 3
    assert subjects(examined, "error") == ["acme-broken"]
    assert "vllm" in subjects(examined, "ok")


def test_a_name_in_the_environments_switch_that_does_not_exist_is_an_error_with_the_nearest(quirks, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "gemma4-layer-scala")

    examined = quirks("doctor", "--json")

    (message,) = [item["message"] for item in examined.json if item["subject"] == "switches"]
    assert examined.code == 1
    assert "MODEL_QUIRKS_DISABLE" in message
    assert "did you mean 'gemma4-layer-scalar'" in message


def test_a_patch_that_no_run_here_can_need_is_not_checked(quirks, monkeypatch):
    monkeypatch.setattr("quirks_core.context.installed_platform", lambda: "cuda")

    examined = quirks("doctor", "--json")

    notes = [item["message"] for item in examined.json if item["subject"] == "cpu-moe-expert-parallel"]
    assert examined.code == 0
    assert len(notes) == 3
    assert all("no run on this installation needs the patch" in note for note in notes)


def test_a_vllm_that_is_told_not_to_load_us_is_an_error_with_what_to_set(quirks, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "lora_resolver")

    examined = quirks("doctor", "--json")

    assert examined.code == 1
    assert any("VLLM_PLUGINS='lora_resolver,model_quirks" in item["message"] for item in examined.json)
