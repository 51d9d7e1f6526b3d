"""TRL's own server mode, unmodified, against our server: three steps of GRPO, the weights by vLLM's NCCL backend.

The server has one GPU and TRL the other one: NCCL takes no two ranks on one GPU. CI has none; docs/results/gpu.md has the last
results.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from worker.lab.kit import checkpoints
from worker.refit.transport.channel import free_port

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs the extra 'integrations' (TRL is not installed)"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_grpo.py"
KEY = "the-trainer-s"
#: In nats, mean over a step's tokens, in float32: 0.0022 was seen on H100s; another policy's is above 0.01.
TOLERANCE = 5e-3
SERVER = f"""
import asyncio, sys
from worker import VllmAsyncGenerationWorker

async def main(model, port):
    worker = VllmAsyncGenerationWorker({{
        "model": model,
        "engine": {{"load_format": "auto", "dtype": "float32", "max_model_len": 128, "gpu_memory_utilization": 0.2,
                    "kv_cache_memory_bytes": 1 << 30,
                    "weight_transfer_config": {{"backend": "nccl"}}}},
        "sampling": {{"temperature": 0.7}},
        "server": {{"enabled": True, "rl_routes": True, "rl_api_key": "{KEY}", "port": int(port)}},
    }})
    await worker.post_init_async()
    await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
"""
TRAINER = """
import json, runpy, sys
from pathlib import Path
from trl import GRPOTrainer
example, model, log, url, port = sys.argv[1:]
example = runpy.run_path(example)
config = example["configuration"](
    Path(log), use_cpu=False, vllm_mode="server", vllm_server_base_url=url, vllm_group_port=int(port)
)
data = example["prompts"](example["STEPS"])
trainer = GRPOTrainer(model=model, reward_funcs=example["vowels"], args=config, train_dataset=data)
trainer.train()
Path(log).write_text(json.dumps(trainer.state.log_history))
"""


@pytest.fixture
def program(tmp_path):
    """Starts a script on one GPU; ends it afterwards."""
    started = []

    def start(name, gpu, source, *arguments):
        script = tmp_path / f"{name}.py"
        script.write_text(textwrap.dedent(source))
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu), "NCCL_CUMEM_ENABLE": "0"}
        started.append(subprocess.Popen([sys.executable, script, *map(str, arguments)], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_until_healthy(process, port):
    for _ in range(600):
        assert process.poll() is None
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        time.sleep(1)
    pytest.fail("the server did not come up")


def test_trl_in_server_mode_samples_from_its_policy(program, tmp_path):
    model, log = checkpoints.build("qwen3", tmp_path / "qwen3"), tmp_path / "log.json"
    port, group_port = free_port("127.0.0.1"), free_port("127.0.0.1")
    wait_until_healthy(program("server", 1, SERVER, model, port), port)

    trainer = program("trainer", 0, TRAINER, EXAMPLE, model, log, f"http://:{KEY}@127.0.0.1:{port}", group_port)

    assert trainer.wait(timeout=900) == 0
    steps = [row for row in json.loads(log.read_text()) if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert all(row["grad_norm"] > 0 for row in steps[:2])  # so later steps had other weights to load
    assert max(row["sampling/sampling_logp_difference/mean"] for row in steps) <= TOLERANCE
