"""Four steps of GRPO with TRL whose weight updates have a fault; a line of it makes the faults known."""

from __future__ import annotations

import argparse
import json
import runpy
from pathlib import Path

import torch
from peft import LoraConfig
from trl import GRPOTrainer

from worker.refit import LedgerCallback

EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_grpo.py"
STEPS = 4


def plant(trainer, fault):
    """Puts a fault into the trainer's weight updates."""
    generation = trainer.vllm_generation
    send = generation._iter_named_params
    if fault == "unmerged":  # what is sent is the base, at every step
        trainer.model.merge_adapter = trainer.model.unmerge_adapter = lambda: None
    elif fault == "stale":  # from the third update on, the second
        sent = []

        def stale():
            sent.append([(name, one.clone()) for name, one in send()])
            return iter(sent[:2][-1])

        generation._iter_named_params = stale
    elif fault == "unsent":
        generation.sync_weights = lambda: None


def skip_two_steps(accelerator):
    """Computes in float16 with a gradient scaler, which accelerate has on GPUs alone; its scale overflows twice."""
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, backoff_factor=2.0**-23)


def main():
    """Trains, and writes what TRL logged."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("log", type=Path)
    parser.add_argument("fault", choices=["none", "unmerged", "stale", "unsent"])
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--sampled-at", type=float, help="temperature of the rollout, where the trainer's is another")
    parser.add_argument("--on-difference", choices=["stop", "warn"], default="warn")
    options = parser.parse_args()
    example = runpy.run_path(str(EXAMPLE))
    changes = {"max_steps": STEPS, "num_iterations": options.iterations, "fp16": options.fp16}
    if options.sampled_at is not None:
        changes["generation_kwargs"] = {"temperature": options.sampled_at}
    config = example["configuration"](options.log, **changes)
    adapter = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False) if options.lora else None
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=example["vowels"],
        args=config,
        train_dataset=example["prompts"](STEPS),
        peft_config=adapter,
    )
    plant(trainer, options.fault)
    if options.fp16:
        skip_two_steps(trainer.accelerator)
    file = options.log.with_suffix(".jsonl")
    trainer.add_callback(LedgerCallback(trainer, file=file, on_difference=options.on_difference))
    trainer.train()
    options.log.write_text(json.dumps(trainer.state.log_history, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
