"""Three steps of GRPO with TRL, rollouts by vLLM in the same process (colocate mode).

An ordinary script for TRL: it imports nothing of model-quirks. What model-quirks does for it comes from one variable::

    python -c "from pathlib import Path; from worker.lab.kit.checkpoints import build; build('qwen3', Path('qwen3'))"
    MODEL_QUIRKS=on python examples/trl_grpo.py qwen3 log.json

TRL logs how far vLLM's logprobs are from the trainer's, in nats, as ``sampling/sampling_logp_difference/mean``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

PROMPTS = ("once upon", "the cat", "a dog", "my house")
STEPS = 3


def vowels(completions: list[str], **_: Any) -> list[float]:
    """Rewards each completion with its share of vowels."""
    return [sum(letter in "aeiou" for letter in text) / max(len(text), 1) for text in completions]


def configuration(log: Path, **changes: Any) -> GRPOConfig:
    """Returns TRL's configuration for a tiny model on a CPU."""
    values: dict[str, Any] = {
        "output_dir": str(log.with_suffix(".checkpoints")),
        "model_init_kwargs": {"dtype": "float32"},
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 8,
        "temperature": 0.7,
        "learning_rate": 1e-2,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 128,
        "vllm_gpu_memory_utilization": 0.05,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    return GRPOConfig(**values | changes)


def prompts(steps: int) -> Dataset:
    """Returns a dataset for so many steps."""
    return Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS * steps])


def main() -> None:
    """Trains, and writes what TRL logged at each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a checkpoint, or hub id")
    parser.add_argument("log", type=Path, help="file for the log, JSON")
    options = parser.parse_args()
    config = configuration(options.log)
    trainer = GRPOTrainer(model=options.model, reward_funcs=vowels, args=config, train_dataset=prompts(STEPS))
    trainer.train()
    options.log.write_text(json.dumps(trainer.state.log_history, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
