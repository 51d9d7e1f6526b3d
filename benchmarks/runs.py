"""The commonest runs, with quirks and without: what is applied, what it changes, what remains.

It writes ``docs/results/runs.json`` and the page made of it::

    python benchmarks/runs.py                     # all, in 20 to 60 minutes on two CPU cores; needs the extra `demo` and peft
    python benchmarks/runs.py "TRL colocate"      # some
    python benchmarks/runs.py --render            # none: the recorded rows with the plans of today
    python benchmarks/runs.py --jobs 5 "TRL colocate"   # on a GPU, five engines at once: runs-cuda.json

Each run starts vLLM's engine with the arguments that its program gives it, in a process of its own, up to three times: without
MODEL_QUIRKS, with it, and with it and float32 on both sides. Before it generates, a rollout gets the weights of a policy in the
way of its trainer (`Update`), then an empty prefix cache. The commonest run is also measured without each of its quirks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from run_page import (
    DOCS,
    FILES,
    FLOAT32,
    RUNS,
    SHOWN,
    TRAINED,
    Each,
    Measured,
    Row,
    Run,
    Update,
    config_of,
    markdown,
    planned,
    read,
    renewed,
)

from quirks_core.base import whole_file
from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.packages import cpu_features, installed_platform, installed_version

#: Noise on each weight of the policy, in standard deviations of that weight: as after some steps of an optimizer.
NOISE = 0.005
TOKENS = 48
_OURS = "model-quirks: "
_ERROR = re.compile(r"^(?:\S+ )?((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception): .+)$", re.MULTILINE)


# ---- one engine, in a process of its own


def engine(order: dict[str, Any]) -> None:
    """Starts an engine as a program does, has it generate, and writes tokens and logprobs."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": order["port"]}
    from vllm import LLM, SamplingParams

    llm = LLM(order["model"], seed=0, **order["arguments"])
    if order["weights"]:
        _update(llm, order)
        llm.reset_prefix_cache()
    drawn = {"temperature": order["temperature"], "max_tokens": TOKENS, "ignore_eos": True, "logprobs": 0}
    prompts = [{"prompt_token_ids": row} for row in order["prompts"]]
    outputs = llm.generate(prompts, [SamplingParams(**drawn, seed=seed) for seed in range(len(prompts))], use_tqdm=False)
    rows = [output.outputs[0] for output in outputs]
    found = [
        (list(row.token_ids), [at[token].logprob for at, token in zip(row.logprobs, row.token_ids, strict=True)])
        for row in rows
    ]
    Path(order["result"]).write_text(json.dumps(found), encoding="utf-8")


def _update(llm: Any, order: dict[str, Any]) -> None:
    from safetensors.torch import load_file
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    worker = llm.llm_engine.model_executor.driver_worker.worker
    held, weights = worker.model_runner.model, list(load_file(order["weights"]).items())
    if order["update"] == Update.RELOAD:
        worker.reload_weights(weights_iterator=iter(weights))
    elif order["update"] == Update.BUCKET:
        held.load_weights(weights)
        process_weights_after_loading(held, llm.model_config, worker.device)
    else:
        for name, tensor in weights:
            held.load_weights([(name, tensor)])


def generated(
    order: dict[str, Any], variables: dict[str, str], parent: Path, script: str = __file__
) -> tuple[list[Any] | str, tuple[str, ...]]:
    """Returns tokens and logprobs of each prompt, or the error with which the engine ended; and the lines of the hook's log."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    result, log = folder / "result.json", folder / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    file = folder / "order.json"
    file.write_text(json.dumps({**order, "result": str(result), "port": port}), encoding="utf-8")
    ours = {name: text for name, text in os.environ.items() if not name.startswith("MODEL_QUIRKS")}
    small = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("wb") as output:
        command = [sys.executable, script, "--engine", str(file)]
        environ = {**ours, **small, "HF_HUB_OFFLINE": "1", **variables}
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environ, check=False, timeout=900)  # noqa: S603
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = tuple(line for line in text.splitlines() if line.startswith(_OURS))
    if result.exists():
        return list(json.loads(result.read_text(encoding="utf-8"))), lines
    errors = _ERROR.findall(text)
    return errors[-1] if errors else "the process ended without a result", lines


# ---- the trainer


def policy_of(run: Run, model: Path, noise: float = NOISE) -> Any:
    """Returns the trainer's model: float32 weights, the checkpoint's with noise, or with a LoRA adapter of that size."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    policy = policy.to(installed_platform() or "cpu")
    if "LoRA" in run.name:
        from peft import LoraConfig, get_peft_model

        policy = get_peft_model(policy, LoraConfig(r=16, target_modules="all-linear", init_lora_weights=False)).eval()
        trained = [(name, row) for name, row in policy.named_parameters() if "lora_B" in name]
    else:
        trained = list(policy.named_parameters())
    with torch.no_grad():
        for name, row in trained:
            spread = 0.01 if "lora_B" in name else float(row.std(correction=0) or row.abs().mean()) * noise
            row.copy_(torch.randn_like(row) * spread) if "lora_B" in name else row.add_(torch.randn_like(row) * spread)
    return policy


def _sent(run: Run, policy: Any) -> dict[str, Any]:
    """Returns what the trainer sends: TRL the parameters, with adapters merged, verl the state dict."""
    if run.trainer == "verl":
        tensors = dict(policy.state_dict())
    elif hasattr(policy, "merge_adapter"):
        policy.merge_adapter()
        names = {
            name: name.removeprefix("base_model.model.").replace(".base_layer", "") for name, _ in policy.named_parameters()
        }
        tensors = {names[name]: row.data.clone() for name, row in policy.named_parameters() if policy.prefix not in name}
        policy.unmerge_adapter()
    else:
        tensors = {name: row.data for name, row in policy.named_parameters()}
    return {name: row.clone().contiguous() for name, row in tensors.items()}  # a file has no tied tensors


def scored(run: Run, policy: Any, order: dict[str, Any], found: list[Any], *, float32: bool) -> Measured:
    """Compares with the trainer: TRL under autocast, verl with its weights cast as well (FSDP), or in float32."""
    import numpy as np
    import torch

    from worker.lab.parity.records import Sample, Scoring
    from worker.lab.parity.scoring import logprobs

    scoring = Scoring(temperature=run.temperature)
    samples = [
        Sample(prompt=prompt, tokens=tokens, rollout=values, scoring=scoring)
        for prompt, (tokens, values) in zip(order["prompts"], found, strict=True)
    ]
    module = policy.base_model.model if hasattr(policy, "merge_adapter") else policy
    if cast := run.trainer == "verl" and not float32:
        held = {name: row.data for name, row in module.named_parameters()}
        for row in module.parameters():  # not the buffers, as FSDP
            row.data = row.data.to(torch.bfloat16)
    trainer = logprobs(module, samples, autocast=None if float32 else "bfloat16")
    if cast:
        for name, row in module.named_parameters():
            row.data = held[name]
    delta = np.abs(
        np.concatenate([np.array(sample.rollout) - np.array(row) for sample, row in zip(samples, trainer, strict=True)])
    )
    return Measured(mean=float(delta.mean()), largest=float(delta.max()))


# ---- a row


class Made(NamedTuple):
    """What came of one engine."""

    found: list[Any] | str  #: as `generated` returns it
    log: tuple[str, ...]
    size: Measured


class Bench(NamedTuple):
    """A run that is ready to be measured, with these variables or those."""

    run: Run
    order: dict[str, Any]
    policy: Any  #: None where no trainer is there
    folder: Path
    notify: Callable[[str], object]
    scoring: threading.Lock  #: held while the policy scores

    def made(self, title: str, variables: dict[str, str]) -> Made:
        """Starts an engine, and compares what it generates with the trainer."""
        self.notify(f"{self.run.name}: {title}")
        found, log = generated(self.order, variables, self.folder)
        if isinstance(found, str):
            size = Measured(error=found)
        elif self.policy is None:
            size = Measured()
        else:
            with self.scoring:
                size = scored(self.run, self.policy, self.order, found, float32="MODEL_QUIRKS_SET" in variables)
        self.notify(f"  {title}: {size.model_dump_json(exclude_defaults=True)}")
        return Made(found, log, size)


def measure(run: Run, notify: Callable[[str], object] = print, *, platform: str = "cpu", jobs: int = 1) -> Row:
    """Plans and measures a run, with so many engines at once."""
    from worker.lab.parity.prompts import load_prompts

    with tempfile.TemporaryDirectory(prefix="quirks-runs-") as name:
        folder = Path(name)
        model = _checkpoint(run.model, folder)
        config = config_of(run, model)
        order: dict[str, Any] = {
            "model": str(model), "temperature": run.temperature, "weights": "", "arguments": _arguments(config, platform),
            "update": run.update,
            "prompts": load_prompts(config.model).rows,
        }  # fmt: skip
        policy = policy_of(run, model) if run.trainer else None
        if policy is not None:
            from safetensors.torch import save_file

            save_file(_sent(run, policy), folder / "weights.safetensors")
            order["weights"] = str(folder / "weights.safetensors")
        bench = Bench(run, order, policy, folder, notify, threading.Lock())
        hook = {"MODEL_QUIRKS": run.purpose, **({"MODEL_QUIRKS_TRAINER": run.trainer} if run.trainer else {})}
        precise = {**hook, "MODEL_QUIRKS_SET": FLOAT32}
        plans = {name: planned(run, model, name) for name in ("cpu", "cuda")}
        plan = planned(run, model, platform, installed_version("vllm") or "")
        engines = {"off": {"MODEL_QUIRKS": ""}, "on": hook} | ({"float32": precise} if policy is not None else {})
        alone = (*plan.applied, *plan.already) if run.by_quirk and policy is not None else ()
        for quirk in alone:
            for wanted, whole in ((hook, "on"), (precise, "float32")):
                engines[f"{whole} without {quirk}"] = {**wanted, "MODEL_QUIRKS_DISABLE": quirk}
        with ThreadPoolExecutor(jobs) as pool:
            made = dict(zip(engines, pool.map(bench.made, engines, engines.values()), strict=True))

        def without(quirk: str, whole: str) -> Measured:
            found = made[f"{whole} without {quirk}"]
            return found.size.model_copy(update={"same": found.found == made[whole].found})

        off, on, float32 = made["off"], made["on"], made.get("float32")
        return Row(
            run=run,
            config=json.loads((model / "config.json").read_text(encoding="utf-8")),
            **plans,
            measured=plan.applied,
            log=on.log if run.name in SHOWN else (),
            off=off.size,
            on=on.size,
            float32=float32.size if float32 else None,
            each=tuple(Each(quirk=name, bfloat16=without(name, "on"), float32=without(name, "float32")) for name in alone),
            **_alike(off.found, on.found),
            date=datetime.now(UTC).date().isoformat(),
            versions=_versions(),
        )


def _alike(off: list[Any] | str, on: list[Any] | str) -> dict[str, Any]:
    if isinstance(off, str) or isinstance(on, str):
        return {}
    equal, apart = 0, 0.0
    for (tokens, values), (other, others) in zip(off, on, strict=True):
        until = next((at for at, pair in enumerate(zip(tokens, other, strict=True)) if pair[0] != pair[1]), len(tokens))
        equal += until
        apart = max([apart, *(abs(a - b) for a, b in zip(values[:until], others[:until], strict=True))])
    return {"equal": equal, "tokens": sum(len(tokens) for tokens, _ in off), "apart": apart}


def _arguments(config: GenerationConfig, platform: str) -> dict[str, Any]:
    """Returns the arguments of `LLM`, with what a small machine needs, or several engines on one GPU."""
    given = config.engine.model_dump(mode="json", include=config.engine.model_fields_set, exclude_none=True)
    given |= config.engine.model_extra or {}
    known = {name: value for name, value in given.items() if name not in ("async_engine", "weight_transfer_config")}
    if known.get("distributed_executor_backend") == "mp":
        known["distributed_executor_backend"] = "uni"  # one process
    if platform == "cuda":
        known |= {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 1 << 30}
    return {**known, "enforce_eager": True, "max_model_len": 256, "num_gpu_blocks_override": 256}


def _checkpoint(kind: str, folder: Path) -> Path:
    """Returns a checkpoint in bfloat16."""
    if kind == TRAINED:
        from worker.lab.trained import trained_model

        return trained_model()
    import torch
    from transformers import AutoModelForCausalLM

    from worker.lab.kit.checkpoints import build

    made = build(kind, folder / kind)
    AutoModelForCausalLM.from_pretrained(made, dtype=torch.bfloat16).save_pretrained(made)
    return made


def _versions() -> dict[str, str]:
    found = {"vllm": installed_version("vllm") or ""}
    return found | {name: version(name) for name in ("torch", "transformers", "model-quirks")}


def main() -> None:
    """Measures runs, and writes data and page after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", help="names, or beginnings of them; all by default")
    parser.add_argument(
        "--render", action="store_true", help="measure nothing; renew the plans of the recorded rows and write the page"
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of runs.json and runs.md (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="engines at once (%(default)s)")
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        engine(json.loads(options.engine.read_text(encoding="utf-8")))
        return
    platform = installed_platform() or "cpu"
    if platform == "cpu" and "avx512_bf16" not in (cpu_features() or ()):
        print("this CPU has no AVX-512 BF16: the plans of the page are those of one that has", file=sys.stderr)
    chosen = [run for run in RUNS if not options.runs or run.name in options.runs]
    for run in () if options.render else chosen:
        row = measure(run, platform=platform, jobs=options.jobs)
        found = {one.run.name: one for one in (*read(options.docs, platform).rows, row)}
        _write([found[one.name] for one in RUNS if one.name in found], options.docs, platform)
    for name, file in FILES.items() if options.render else ():
        if (options.docs / file).exists():
            _write(map(renewed, read(options.docs, name).rows), options.docs, name)
    whole_file.write(options.docs / "runs.md", markdown(read(options.docs), read(options.docs, "cuda")))


def _write(rows: Iterable[Row], folder: Path, platform: str) -> None:
    text = ",\n".join(row.model_dump_json(exclude_defaults=True) for row in rows)
    whole_file.write(folder / FILES[platform], f'{{"rows":[\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
