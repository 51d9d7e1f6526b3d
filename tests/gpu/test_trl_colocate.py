"""TRL's colocate mode, unmodified, with sleep mode: in bfloat16 with quirks and without, in float16 with them.

CI has no GPU; docs/trainers.md has the last figures.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from worker.lab.trained import trained_model
from worker.refit.transport.channel import free_port

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs the extra 'integrations' (TRL is not installed)"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_grpo.py"
STEPS = 6
TRAINER = """
import json, runpy, sys
from pathlib import Path
from trl import GRPOTrainer
example, model, log, steps, fp16 = sys.argv[1:]
example = runpy.run_path(example)
config = example["configuration"](
    Path(log), use_cpu=False, fp16=fp16 == "fp16", bf16=None, model_init_kwargs={}, vllm_enable_sleep_mode=True,
    max_steps=int(steps),
    max_completion_length=32, learning_rate=1e-6, temperature=1.0, vllm_gpu_memory_utilization=0.2
)
data = example["prompts"](int(steps))
trainer = GRPOTrainer(model=model, reward_funcs=example["vowels"], args=config, train_dataset=data)
trainer.train()
Path(log).write_text(json.dumps(trainer.state.log_history))
"""


#: Mean difference of logprobs in nats that each run stays below; bfloat16 on both sides leaves 0.03 to 0.05.
@pytest.mark.parametrize(("quirks", "option", "most"), [("", "", 0.1), ("on", "", 0.1), ("on", "fp16", 0.015)])
def test_trl_in_sleep_mode_samples_from_its_policy(tmp_path, quirks, option, most):
    script, log, receipt = (tmp_path / name for name in ("trainer.py", "log.json", "receipt.json"))
    script.write_text(TRAINER)
    ours = {"MODEL_QUIRKS": quirks, "MODEL_QUIRKS_RECEIPT": str(receipt)} if quirks else {}
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port("127.0.0.1")),
    }
    environment = {name: text for name, text in os.environ.items() if name != "TORCHDYNAMO_DISABLE"}  # it needs a quirk
    command = [sys.executable, str(script), str(EXAMPLE), str(trained_model()), str(log), str(STEPS), option]
    subprocess.run(command, check=True, timeout=900, env={**environment, **alone, **ours})

    steps = [row for row in json.loads(log.read_text()) if "loss" in row]
    differences = [row["sampling/sampling_logp_difference/mean"] for row in steps]
    rewards = [row["reward"] for row in steps]
    print(f"MODEL_QUIRKS={quirks} {option}: mean |rollout - trainer| {differences}, rewards {rewards}")  # noqa: T201  # for docs/trainers.md
    assert len(steps) == STEPS
    assert max(differences) < most
    assert receipt.exists() == bool(quirks)
