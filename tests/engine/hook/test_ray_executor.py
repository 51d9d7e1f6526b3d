"""Ray as vLLM's executor.

It needs a platform whose devices Ray counts. A platform plugin, vLLM's own way to add hardware, makes the CPU one.
"""

from __future__ import annotations

import os

from installations import lay

_POINT = """
def platform():
    return "acme_ray_platform.RayOnCpu"
"""

_PLATFORM = """
from vllm.platforms.cpu import CpuPlatform

class RayOnCpu(CpuPlatform):
    ray_device_key = "GPU"
"""

_SCRIPT = """
import os, sys
import ray
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    # The engine core asks Ray for the worker, in a process of its own.
    os.environ["RAY_ADDRESS"] = ray.init(num_cpus=2, num_gpus=1, include_dashboard=False).address_info["address"]
    options = {"max_model_len": 128, "max_num_seqs": 8, "enforce_eager": True, "num_gpu_blocks_override": 64}
    llm = LLM(sys.argv[1], distributed_executor_backend="ray", **options)
    (output,) = llm.generate(["once upon"], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    print("RESULT", len(output.outputs[0].token_ids), flush=True)
"""


def test_a_worker_that_ray_starts_for_vllm_acknowledges_the_plan(started_programs, checkpoint, tmp_path, receipts):
    lay(tmp_path, "acme-ray", "1.0", {"acme": "acme_ray:platform"}, group="vllm.platform_plugins")
    (tmp_path / "acme_ray.py").write_text(_POINT, encoding="utf-8")
    (tmp_path / "acme_ray_platform.py").write_text(_PLATFORM, encoding="utf-8")
    path = os.pathsep.join([started_programs.environment["PYTHONPATH"], str(tmp_path)])
    variables = {"MODEL_QUIRKS": "rollout", "MODEL_QUIRKS_RECEIPT": str(receipts.file), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

    ended = started_programs.script(_SCRIPT, checkpoint("qwen3"), PYTHONPATH=path, **variables)

    assert ended.result() == 4
    (engine,) = receipts().engines
    core, worker = engine.processes
    assert f"(RayWorkerProc pid={worker.pid})" in ended.text
    assert {core.digest, worker.digest, *(one.digest for one in receipts().front_ends)} == {engine.digest}
    assert worker.engine["engine.logprobs_mode"] == "processed_logprobs"
    assert any(effect.slot.endswith("CPUModelRunner.sample_tokens") for effect in worker.effects)
