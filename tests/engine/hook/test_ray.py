"""An engine in a Ray actor, and Ray as its executor.

The executor needs a platform whose devices Ray counts. A platform plugin, vLLM's own way to add hardware, makes the CPU one.
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
import json, os, sys
import ray

cluster = ray.init(num_cpus=3, num_gpus=1, include_dashboard=False, log_to_driver=True)
# The engine core asks Ray for the worker, in a process of its own.
variables = {"MODEL_QUIRKS": "on", "MODEL_QUIRKS_RECEIPT": sys.argv[2], "RAY_ADDRESS": cluster.address_info["address"]}

@ray.remote(num_cpus=1, runtime_env={"env_vars": variables})
class Actor:
    def run(self, model):
        from vllm import LLM, SamplingParams

        options = {"max_model_len": 128, "max_num_seqs": 8, "enforce_eager": True, "num_gpu_blocks_override": 64}
        llm = LLM(model, distributed_executor_backend="ray", load_format="dummy", **options)
        (output,) = llm.generate(["once upon"], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
        return len(output.outputs[0].token_ids)

if __name__ == "__main__":
    found = ray.get(Actor.remote().run.remote(sys.argv[1]))
    ray.shutdown()
    print("RESULT", json.dumps(found), flush=True)
"""


def test_an_actors_engine_has_its_plan_in_rays_worker_too(started_programs, checkpoint, tmp_path, receipts):
    """The actor's environment decides; the driver has no plan."""
    lay(tmp_path, "acme-ray", "1.0", {"acme": "acme_ray:platform"}, group="vllm.platform_plugins")
    (tmp_path / "acme_ray.py").write_text(_POINT, encoding="utf-8")
    (tmp_path / "acme_ray_platform.py").write_text(_PLATFORM, encoding="utf-8")
    path = os.pathsep.join([started_programs.environment["PYTHONPATH"], str(tmp_path)])
    variables = {"PYTHONPATH": path, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

    ended = started_programs.script(_SCRIPT, checkpoint("qwen3"), receipts.file, **variables)

    assert ended.result() == 4
    (engine,) = receipts().engines
    core, worker = engine.processes
    assert f"(RayWorkerProc pid={worker.pid})" in ended.text
    assert {core.digest, worker.digest, *(one.digest for one in receipts().front_ends)} == {engine.digest}
    assert worker.engine["engine.logprobs_mode"] == "processed_logprobs"
    assert any(effect.slot.endswith("CPUModelRunner.sample_tokens") for effect in worker.effects)
    assert any("a sign of a trainer: load_format=dummy" in line for line in ended.said)
