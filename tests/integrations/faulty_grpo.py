"""Four steps of GRPO with TRL whose weight updates have a fault; a line of it makes the faults known."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from worker.refit import LedgerCallback

PROMPTS = ("once upon", "the cat", "a dog", "my house")
STEPS = 4


def vowels(completions, **_):
    """Rewards each completion with its share of vowels."""
    return [sum(letter in "aeiou" for letter in text) / max(len(text), 1) for text in completions]


def plant(trainer, fault):
    """Puts a fault into the trainer's weight updates."""
    generation = trainer.vllm_generation
    send = generation._iter_named_params
    if fault == "unmerged":  # what is sent is the base, at every step
        trainer.model.merge_adapter = trainer.model.unmerge_adapter = lambda: None
    elif fault == "frozen":
        base = copy.deepcopy(trainer.model)
        generation._iter_named_params = lambda: ((name, one.data) for name, one in base.named_parameters())
    elif fault == "stale":  # from the third update on, the second
        sent = []

        def stale():
            sent.append([(name, one.clone()) for name, one in send()])
            return iter(sent[:2][-1])

        generation._iter_named_params = stale
    elif fault == "unsent":
        generation.sync_weights = lambda: None


def main():
    """Trains, and writes what TRL logged."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("log", type=Path)
    parser.add_argument("fault", choices=["none", "unmerged", "frozen", "stale", "unsent"])
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--iterations", type=int, default=1)
    options = parser.parse_args()
    config = GRPOConfig(
        output_dir=str(options.log.with_suffix(".checkpoints")),
        model_init_kwargs={"dtype": "float32"},
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=STEPS,
        num_iterations=options.iterations,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        temperature=0.7,
        learning_rate=1e-2,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=128,
        vllm_gpu_memory_utilization=0.05,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    adapter = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False) if options.lora else None
    prompts = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS * STEPS])
    trainer = GRPOTrainer(model=options.model, reward_funcs=vowels, args=config, train_dataset=prompts, peft_config=adapter)
    plant(trainer, options.fault)
    trainer.add_callback(LedgerCallback(trainer, file=options.log.with_suffix(".jsonl")))
    trainer.train()
    options.log.write_text(json.dumps(trainer.state.log_history, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
