"""``vllm serve`` with quirks in force: one start shows as much as it can."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
import yaml
from declarations import declared
from installations import lay
from programs import free_port

ACME = declared(
    "acme-variable",
    match='purpose("rollout")',
    adjustments='[Default("env.ACME_LEVEL", "7"), Default("engine.max_num_batched_tokens", 96), Default("engine.seed", 11)]',
)


@pytest.fixture(scope="module")
def third_party(started_programs):
    """A plugin of somebody else's that changes a variable, and one that is broken, in a folder on the programs' path."""
    site = Path(started_programs.environment["PYTHONPATH"].split(os.pathsep)[1])
    (site / "acme_variable.py").write_text(ACME, encoding="utf-8")
    (site / "acme_broken.py").write_text("raise RuntimeError('no such thing')\n", encoding="utf-8")
    lay(site, "acme", "1.2", {"acme-variable": "acme_variable:QUIRK", "acme-broken": "acme_broken:QUIRK"})
    yield
    shutil.rmtree(site / "acme-1.2.dist-info")  # other modules' programs have the same folder


def completion(server, key="none"):
    return server.completion(key=key, prompt="once upon", max_tokens=4, temperature=0.5, seed=1, logprobs=0)


@pytest.mark.usefixtures("third_party")
def test_a_server_runs_by_a_proven_plan(started_programs, vllm, quirks_run, checkpoint, receipts, tmp_path):
    config = tmp_path / "serve.yaml"
    # A typed value that is vLLM's default: only a recorder tells it from one that was left open.
    config.write_text(yaml.safe_dump({"max-model-len": 128, "seed": 0, "enforce-eager": True}), encoding="utf-8")
    command = [*quirks_run("--purpose", "rollout", "--require-receipt"), vllm, "serve", checkpoint("qwen3"), "--config", config]
    command += ["--max-num-seqs", "8", *started_programs.few_blocks, "--api-key", "hush", "--hf-token", "hush"]
    variables = {"MODEL_QUIRKS_RECEIPT": str(receipts.file), "VLLM_PLUGINS": "lora_filesystem_resolver"}
    keys = {"HF_TOKEN": "hush", "VLLM_API_KEY": "hush"}

    with started_programs.server(*command, **variables, **keys) as server:
        choice = completion(server, "hush")
        (started,) = psutil.Process(server.program.pid).children()  # of `quirks run`, as it was typed
        children = started.children(recursive=True)
        shown = [[*one.cmdline(), one.environ().get("MODEL_QUIRKS_PLAN", "")] for one in children]
        server.program.send_signal(signal.SIGTERM)
        code = server.program.wait(60)

    assert len(choice.logprobs.token_logprobs) == 4
    found = receipts()
    (engine,) = found.engines
    core, worker = engine.processes
    assert {core.digest, worker.digest, *(one.digest for one in found.front_ends)} == {engine.digest}
    assert engine.changes == {
        "engine.generation_config": "vllm",
        "engine.logprobs_mode": "processed_logprobs",
        "engine.max_num_batched_tokens": 96,
        "env.ACME_LEVEL": "7",
    }
    assert worker.engine["engine.logprobs_mode"] == "processed_logprobs"
    assert worker.engine["engine.max_num_batched_tokens"] == 96
    effects = {effect.slot: effect for effect in worker.effects}
    assert effects["env.ACME_LEVEL"].after == "7"
    assert effects["patch.vllm.v1.worker.cpu_model_runner:CPUModelRunner.sample_tokens"].pending is False
    lines = server.said
    assert len(lines) <= 12
    assert "purpose rollout (MODEL_QUIRKS_SET), plan " in lines[0]
    assert "; you set: enforce_eager, max_model_len, " in lines[0]
    assert any("plugin 'acme-broken' of acme 1.2" in line for line in lines)
    assert any(
        line.startswith("  undecided: rollout-precision: ") and "; decided by MODEL_QUIRKS_SET='" in line for line in lines
    )
    assert any(line.startswith("  in force") and "generation-config-leak" in line for line in lines)
    assert any(line.startswith("receipt: plan") and "engine.logprobs_mode = processed_logprobs" in line for line in lines)
    assert code in (0, 128 + signal.SIGTERM)
    for text in (str(shown), server.log.read_text(errors="replace"), receipts.file.read_text(encoding="utf-8")):
        assert "hush" not in text


def test_data_parallel_ranks_and_api_servers_share_the_plan(programs, vllm, checkpoint, receipts, worker_in_core, weights):
    command = [vllm, "serve", checkpoint("qwen3_moe"), *programs.small, "-dp", "2", "--distributed-executor-backend", "uni"]
    variables = {
        "MODEL_QUIRKS": "on",
        "MODEL_QUIRKS_LOG": "quiet",
        "MODEL_QUIRKS_RECEIPT": str(receipts.file),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **worker_in_core,
    }

    with programs.server(*command, **variables) as server:
        choices = [completion(server) for _ in range(4)]
        lines = server.said
        is_read, _, reason = weights(server.url)
        server.program.kill()
        server.program.wait()
        time.sleep(5)  # engines that look for their front end do so each second
        assert len(completion(server).logprobs.token_logprobs) == 4  # the API servers live on, and so do their engines

    assert is_read == 2
    assert "start it with MODEL_QUIRKS=rollout VLLM_SERVER_DEV_MODE=1" in reason
    assert [len(choice.logprobs.token_logprobs) for choice in choices] == [4] * 4
    found = receipts()
    assert len(found.engines) == 2
    assert len(found.front_ends) == 3  # the process that was started, and an API server for each rank
    acknowledgements = [*found.front_ends, *(one for engine in found.engines for one in engine.processes)]
    assert len({one.pid for one in acknowledgements}) == 5
    assert len({one.digest for one in acknowledgements}) == 1
    # vLLM's CPU build cannot do this without the quirk.
    assert all(engine.changes == {"engine.enforce_eager": True} for engine in found.engines)
    assert any("all_gatherv" in effect.slot for effect in found.engines[0].processes[-1].effects)
    (line,) = lines
    assert "purpose serve (no sign of a trainer)" in line
    assert "cpu-moe-expert-parallel" in line


def test_a_refusal_is_one_block_in_the_words_of_the_server(programs, vllm, checkpoint):
    variables = {"MODEL_QUIRKS": "serve", "VLLM_DP_RANK": "0", "HF_TOKEN": "hush", "VLLM_API_KEY": "hush"}
    keys = ("--port", str(free_port()), "--api-key", "hush", "--hf-token", "hush")

    ended = programs.run(vllm, "serve", checkpoint("qwen3"), "--no-enforce-eager", *keys, **variables)

    assert ended.code == 1
    block = ended.text.partition("this configuration is refused for 2 reasons:\n")[2]
    assert "override: MODEL_QUIRKS_DISABLE=dp-environment\n" in block
    assert "engine.enforce_eager must be True, but False was set explicitly" in block
    assert "; here: --enforce-eager\n" in block
    assert block.splitlines()[-1] == "  purpose serve (MODEL_QUIRKS=serve)"
    assert "--disable" not in block
    assert ended.said == []  # nothing is listed as applied
    assert "Traceback" not in ended.text
    assert "EngineCore" not in ended.text
    assert "hush" not in ended.text


@pytest.mark.usefixtures("third_party")
def test_a_broken_plugin_starts_nothing_where_the_user_is_strict(programs, vllm, checkpoint):
    variables = {"MODEL_QUIRKS": "rollout", "MODEL_QUIRKS_STRICT": "1"}

    ended = programs.run(vllm, "serve", checkpoint("qwen3"), "--port", str(free_port()), **variables)

    assert ended.code != 0
    assert "plugin 'acme-broken' of acme 1.2" in ended.text
    assert "no such thing" in ended.text
    assert "EngineCore" not in ended.text
