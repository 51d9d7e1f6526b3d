"""Scripts, actors and commands that start engines by themselves."""

from __future__ import annotations

import json
import sys

import psutil
from patience import until
from programs import free_port

from quirks_core.hook.receipts import Receipts

#: The second engine is not started while the first is there: what it wants is refused before.
SCRIPT = """
import json, os, sys
from vllm import LLM, SamplingParams

def tokens(llm):
    return len(llm.generate(["once upon"], SamplingParams(max_tokens=4), use_tqdm=False)[0].outputs[0].token_ids)

if __name__ == "__main__":
    options = {"max_model_len": 128, "max_num_seqs": 8, "enforce_eager": True, "num_gpu_blocks_override": 64}
    llm = LLM(model=sys.argv[1], logprobs_mode="raw_logprobs", **options)
    found = {"tokens": tokens(llm), "mode": llm.llm_engine.vllm_config.model_config.logprobs_mode}
    os.environ["MODEL_QUIRKS"] = "rollout"  # a tied model's rollout needs one more patch
    try:
        LLM(model=sys.argv[2], **options)
    except Exception as error:
        found["second"] = str(error)
    found["again"] = tokens(llm)
    with open(os.environ["MODEL_QUIRKS_RECEIPT"]) as file:
        found["receipts"] = file.read()
    del llm
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process, which takes a third of the time
    found["afterwards"] = tokens(LLM(model=sys.argv[2], **options))
    print("RESULT", json.dumps(found), flush=True)
"""


THROUGHPUT = {"patch.vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots"}


def patched(found):
    """The patches of the engine core of the only engine."""
    (engine,) = found.engines
    return {effect.slot for effect in engine.processes[0].effects if effect.slot.startswith("patch.")}


def test_every_engine_of_a_script_with_llm_has_its_own_plan(programs, checkpoint, receipts):
    variables = {"MODEL_QUIRKS": "on", "MODEL_QUIRKS_RECEIPT": str(receipts.file)}

    ended = programs.script(SCRIPT, checkpoint("qwen3"), checkpoint("llama_tied"), **variables)

    result = ended.result()
    assert (result["tokens"], result["again"], result["mode"]) == (4, 4, "raw_logprobs")
    assert "this process has an engine with other patches or variables" in result["second"]
    assert "cpu-tied-head-refit" in result["second"]
    assert result["afterwards"] == 4
    before, after = Receipts.model_validate_json(result["receipts"]), receipts()
    for found, processes in ((before, 3), (after, 1)):
        (engine,), (front_end,) = found.engines, found.front_ends
        assert {one.digest for one in (*engine.processes, front_end)} == {engine.digest}
        assert len({one.pid for one in (*engine.processes, front_end)}) == processes
    assert before.engines[0].digest != after.engines[0].digest
    assert patched(after) != set()
    assert THROUGHPUT & patched(after) == set()  # a rollout, and nobody forced them
    assert "purpose eval (no sign of a trainer, and no server)" in ended.said[0]
    assert ended.said[0].endswith(
        "; set other than vLLM's defaults: enforce_eager, logprobs_mode, max_model_len, max_num_seqs, num_gpu_blocks_override"
    )


DOOR = """
import asyncio, json, os, sys

async def main():
    import ray  # sets variables of its own
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM
    from quirks_core import quirks_for

    engine_args = AsyncEngineArgs(model=sys.argv[1], max_model_len=128, enforce_eager=True, num_gpu_blocks_override=64)
    before = dict(os.environ)
    with quirks_for(engine_args, purpose="rollout", given={"refit.scope": "parameters", "sampling.top_p": 1.0}) as applied:
        engine = AsyncLLM.from_engine_args(applied.engine_args, usage_context=UsageContext.LLM_CLASS)
        try:
            async for output in engine.generate("once upon", SamplingParams(max_tokens=4), "1"):
                pass
            (receipt,) = applied.receipt()
        finally:
            engine.shutdown()
    return {
        "tokens": len(output.outputs[0].token_ids),
        "digests": sorted({applied.plan.digest, receipt.digest, *(one.digest for one in receipt.processes)}),
        "mode": receipt.processes[-1].engine["engine.logprobs_mode"],
        "untouched": engine_args.logprobs_mode,
        "changed": sorted(name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)),
    }

if __name__ == "__main__":
    print("RESULT", json.dumps(asyncio.run(main())), flush=True)
"""


def test_the_library_door_proves_the_plan_that_it_applies(programs, checkpoint, worker_in_core):
    result = programs.script(DOOR, checkpoint("qwen3"), **worker_in_core).result()

    assert (result["tokens"], len(result["digests"])) == (4, 1)
    assert (result["mode"], result["untouched"]) == ("processed_logprobs", "raw_logprobs")
    assert [name for name in result["changed"] if "QUIRKS" in name or "RAY" in name] == []


def test_a_batch_of_vllms_own_command_has_the_plan(programs, vllm, checkpoint, receipts, tmp_path, worker_in_core):
    model = str(checkpoint("qwen3"))
    body = {"model": model, "messages": [{"role": "user", "content": "once upon"}], "max_tokens": 4}
    request = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(request) + "\n", encoding="utf-8")
    files = ["-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl"]
    command = [vllm, "run-batch", *files, "--model", model, "--enforce-eager", *programs.small]

    ended = programs.run(*command, MODEL_QUIRKS="on", MODEL_QUIRKS_RECEIPT=str(receipts.file), **worker_in_core)

    assert ended.code == 0, ended.text[-3000:]
    answer = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert answer["response"]["status_code"] == 200
    (engine,) = receipts().engines
    assert any(effect.slot.endswith("CPUModelRunner.sample_tokens") for effect in engine.processes[-1].effects)
    assert "purpose eval (no sign of a trainer, and no server)" in ended.said[0]


STARTED = """
import sys
from vllm import LLM

if __name__ == "__main__":
    LLM(model=sys.argv[1], max_model_len=128, max_num_seqs=8, enforce_eager=True, num_gpu_blocks_override=64)
    sys.stdin.read()
"""


def test_an_engine_that_no_quirk_changes_ends_with_its_front_end(programs, checkpoint, receipts, tmp_path):
    """It is reported like any other; what it started ends also if the front end is killed."""
    script, off = tmp_path / "started.py", "cpu-amx-permission,cpu-seeded-chunked-prefill,logprob-token-ids-rows"
    script.write_text(STARTED, encoding="utf-8")
    variables = {"MODEL_QUIRKS": "on", "MODEL_QUIRKS_DISABLE": off, "MODEL_QUIRKS_RECEIPT": str(receipts.file)}

    with programs.running(sys.executable, script, checkpoint("qwen3"), **variables) as started:
        # Core and worker have loaded the weights, and go on.
        until(lambda: receipts().engines, f"a receipt; the output is in {started.log}")
        (found,) = receipts().engines
        engine = psutil.Process(started.program.pid).children(recursive=True)
        started.program.kill()
        _, left = psutil.wait_procs(engine, timeout=120)
        (line,) = started.said

    assert ", none changes anything; " in line
    assert "; switched off: " in line
    assert line.endswith("cpu-seeded-chunked-prefill, logprob-token-ids-rows")  # on some CPUs after another one
    assert (found.changes, found.processes[-1].engine["engine.model_runner"]) == ({}, "v1")
    assert len(engine) > 1
    assert left == []


CONFIGURED = """
import sys
from vllm import EngineArgs

engine_args = EngineArgs(model=sys.argv[1], max_model_len=128, logprobs_mode="raw_logprobs")
print("RESULT", f'"{engine_args.create_engine_config().model_config.generation_config}"', flush=True)
"""


def test_a_report_prints_what_would_be_done_without_doing_it(programs, checkpoint):
    ended = programs.script(CONFIGURED, checkpoint("qwen3"), MODEL_QUIRKS="report", MODEL_QUIRKS_SET="purpose=rollout")

    assert ended.result() == "auto"
    assert ended.said[0].startswith("would apply ")
    assert any("generation-config-leak: engine.generation_config = vllm (" in line for line in ended.said)


def test_a_command_that_starts_no_engine_has_no_receipt(programs, quirks_run):
    ended = programs.run(*quirks_run("--require-receipt"), sys.executable, "-c", "pass")

    assert ended.code == 1
    assert "wrote a receipt: it started none" in ended.text


NODE = ("--data-parallel-size", "2", "--data-parallel-size-local", "1", "--data-parallel-address", "127.0.0.1")


def test_a_headless_node_makes_the_same_plan_as_the_head(programs, vllm, checkpoint, receipts, tmp_path, worker_in_core):
    files = [tmp_path / "head.json", tmp_path / "headless.json"]
    meeting = ["--data-parallel-rpc-port", str(free_port()), "--distributed-executor-backend", "uni"]
    common = [vllm, "serve", checkpoint("qwen3_moe"), *programs.small, *NODE, *meeting]
    variables = {"MODEL_QUIRKS": "on", "VLLM_CPU_OMP_THREADS_BIND": "nobind", **worker_in_core}
    headless = [*common, "--headless", "--data-parallel-start-rank", "1"]
    with programs.running(*headless, **variables, MODEL_QUIRKS_RECEIPT=str(files[1])) as other:
        with programs.server(*common, "--api-server-count", "1", MODEL_QUIRKS_RECEIPT=str(files[0]), **variables):
            found = [receipts(file) for file in files]
        assert other.said

    assert [len(one.engines) for one in found] == [1, 1]
    assert len({one.engines[0].digest for one in found}) == 1
    assert len({one.engines[0].processes[0].pid for one in found}) == 2
