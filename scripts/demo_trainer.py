"""What an RL trainer does with vLLM, in plain vLLM: start an engine, send it the trainer's weights, generate.

It imports nothing of model-quirks. ``make demo`` runs it with and without ``MODEL_QUIRKS=on``::

    python scripts/demo_trainer.py MODEL [ANSWERS.json]

The result is the question, the answers of trainer and engine, and by how much their logprobs differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from vllm import LLM, SamplingParams

QUESTION = "What is the capital of France?"
TASK = "Tell me a story about a fox."
TEMPERATURE = 0.7


def main(model: str, answers: Path | None = None) -> None:
    """Starts the engine from dummy weights, as a trainer does, because the real ones come from its own model."""
    trainer = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    engine = LLM(
        model,
        load_format="dummy",
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        kv_cache_memory_bytes=64 * 2**20,
    )
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": trainer.named_parameters()})

    (answer,) = engine.chat(_chat(QUESTION), SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=24, logprobs=0)
    samples = engine.chat([_chat(TASK)] * 4, sampling, use_tqdm=False)
    result = {
        "question": QUESTION,
        "trainer": _answer(trainer, model),
        "engine": answer.outputs[0].text.strip(),
        "difference": sum(_difference(trainer, sample) for sample in samples) / len(samples),
    }
    if answers is None:
        print(json.dumps(result, indent=2))
    else:
        answers.write_text(json.dumps(result), encoding="utf-8")


def _chat(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def _answer(trainer: PreTrainedModel, model: str) -> str:
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer.apply_chat_template(_chat(QUESTION), add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = trainer.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    return tokenizer.decode(tokens, skip_special_tokens=True).strip()


def _difference(trainer: PreTrainedModel, sample: Any) -> float:
    """Mean absolute difference of engine's and trainer's logprobs of the sampled tokens, in nats."""
    prompt, output = list(sample.prompt_token_ids), sample.outputs[0]
    tokens = torch.tensor(output.token_ids)
    with torch.no_grad():
        logits = trainer(torch.tensor([[*prompt, *output.token_ids]])).logits[0, len(prompt) - 1 : -1]
    expected = (logits / TEMPERATURE).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    reported = torch.tensor([row[token].logprob for row, token in zip(output.logprobs, output.token_ids, strict=True)])
    return float((reported - expected).abs().mean())


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
