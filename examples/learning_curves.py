"""Learning curves of a trained model, with faults between rollout and trainer and without: GRPO, several seeds, one figure.

SmolLM2-135M-Instruct learns to answer short questions with the answer alone. The reward is the share of the words that are the
answer, so "The capital of France is Paris." earns 1/6, "Paris." earns 1, and "Paris Paris" 1/2. Each run is one arm with one
seed, in a process of its own, and writes a JSON line per step; a run whose file is complete is not repeated::

    python examples/learning_curves.py --out curves --jobs 9     # on a GPU; the figure is curves/learning_curves.png
    python examples/learning_curves.py --out curves --draw       # the figure again, from what is there
    python examples/learning_curves.py --out tiny --tiny         # two arms, one seed, few steps, on two cores

Two trainers: TRL, unmodified (``GRPOTrainer``, vLLM in colocate mode under the hook), and a loop around our worker, as in
``grpo_tiny.py``. Everything is sampled at temperature 0.7. The faults are configurations that users have:

- ``trl-default``: TRL's defaults. Weights in float32 under bfloat16 autocast, the engine in the checkpoint's bfloat16.
- ``trl-mixed``: ``GRPOConfig(bf16=False)``, and the engine stays in bfloat16. The quirk ``float32-trainer-rollout`` names it.
- ``trl-raw``: the engine reports logprobs before temperature, which is vLLM's default, and was TRL's until huggingface/trl#4159
  was fixed. TRL computes importance weights from them. ``MODEL_QUIRKS_SET`` sets it, because TRL has no option for it.
- ``worker-raw``: the same with our worker, by switching off ``rollout-logprobs-processed``.
- ``worker-stale``: ``refit.clear_cache: false`` without ``prefix-cache-after-update``: prefixes keep the keys and values of the
  weights that computed them first. ``worker-kept`` is the same setting with the quirk.
- ``worker-base``: each refit sends the model that training started from, as a trainer does that forgets to merge its adapter.
  No quirk cures that; ``verify_refit_async`` names the tensors that differ, and the run's file has their number.

``trl`` and ``worker`` are without a fault: float32 on both sides, logprobs after temperature, a cache that is dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quirks_core.base.errors import QuirksError
from quirks_core.facts.packages import installed_version

_CAPITALS = (
    "France Paris, Japan Tokyo, Italy Rome, Spain Madrid, Germany Berlin, England London, Russia Moscow, China Beijing, "
    "Egypt Cairo, Greece Athens, Austria Vienna, Portugal Lisbon, Ireland Dublin, Poland Warsaw, Norway Oslo, Cuba Havana"
)
_OPPOSITES = "hot cold, big small, up down, day night, left right, good bad, happy sad, open closed"
_SUMS = "1 1 2, 2 2 4, 2 3 5, 3 3 6, 4 5 9, 5 5 10, 6 2 8, 10 10 20"
#: By question, the answer: one word.
QUESTIONS = {
    **{"What is the capital of {}?".format(*pair.split()): pair.split()[1] for pair in _CAPITALS.split(", ")},
    **{"What is the opposite of {}?".format(*pair.split()): pair.split()[1] for pair in _OPPOSITES.split(", ")},
    **{"What is {} plus {}?".format(*row.split()): row.split()[2] for row in _SUMS.split(", ")},
    "What colour is the sky?": "blue",
    "What colour is grass?": "green",
    "What colour is snow?": "white",
    "What colour is a banana?": "yellow",
    "Which planet do we live on?": "Earth",
    "Which animal barks?": "dog",
    "Which day comes after Monday?": "Tuesday",
    "Which month comes after May?": "June",
}
TEMPERATURE = 0.7  # not 1, so that logprobs before temperature differ from those of what was sampled
LEARNING_RATE = 2e-5
NEW_TOKENS = 24
LENGTH = 128  # of a prompt with its response, in tokens
CACHE_BYTES = 1 << 30  # of an engine's KV cache, of a fixed size because runs share a GPU
WINDOW = 5  # steps that a point of the figure is the mean of
#: Of each step, with TRL's names for them.
METRICS = {
    "reward": "reward",
    "difference": "sampling/sampling_logp_difference/mean",
    "ratio": "sampling/importance_sampling_ratio/mean",
    "grad_norm": "grad_norm",
}
TRAINERS = {"trl": "TRL", "worker": "our worker"}
PACKAGES = ("vllm", "torch", "transformers", "trl")
BEGUN = time.perf_counter()


@dataclass(frozen=True)
class Arm:
    """One kind of run.

    Attributes:
        label: Its name in the figure.
        bf16: TRL's autocast.
        given: What MODEL_QUIRKS_SET says; None for our worker.
        disable: Quirks that are switched off.
        settings: Of the worker's configuration, beside those that all have.
        sends_base: Each refit sends the weights that training started from.
    """

    label: str
    bf16: bool = False
    given: str | None = None
    disable: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    sends_base: bool = False


_TRAINER = "train.dtype=float32;train.autocast=null"
_FLOAT32 = f"{_TRAINER};engine.dtype=float32"
_RAW = "rollout-logprobs-processed"
ARMS = {
    "trl": Arm("no fault (float32 on both sides)", given=_FLOAT32),
    "worker": Arm("no fault"),
    "trl-raw": Arm("logprobs before temperature", given=f"{_FLOAT32};engine.logprobs_mode=raw_logprobs", disable=(_RAW,)),
    "worker-raw": Arm("logprobs before temperature", disable=(_RAW,)),
    "worker-base": Arm("weights do not arrive", sends_base=True),
    "worker-stale": Arm(
        "stale prefix cache", settings={"refit": {"clear_cache": False}}, disable=("prefix-cache-after-update",)
    ),
    "worker-kept": Arm("the same setting, with the quirk", settings={"refit": {"clear_cache": False}}),
    "trl-default": Arm("TRL's defaults (autocast, engine in bfloat16)", bf16=True, given="", disable=("all",)),
    "trl-mixed": Arm("float32 trainer, engine in bfloat16", given=_TRAINER, disable=("float32-trainer-rollout",)),
}


def reward(text: str, answer: str) -> float:
    """Returns the share of the words that are the answer, which counts once; 0 for a text without it."""
    words = re.findall(r"\w+", text.lower())
    return (answer.lower() in words) / len(words) if words else 0.0


def chat(question: str) -> list[dict[str, str]]:
    """Returns a question as a conversation."""
    return [{"role": "user", "content": question}]


def questions(count: int, seed: int) -> Iterator[list[str]]:
    """Yields the questions of each step, endlessly: all of them in random order, and then once more."""
    generator, deck = random.Random(seed), []  # noqa: S311 - not a secret
    while True:
        while len(deck) < count:
            deck += generator.sample(list(QUESTIONS), len(QUESTIONS))
        yield [deck.pop(0) for _ in range(count)]


def file_of(folder: Path, name: str, seed: int) -> Path:
    """Returns the file of a run: a line that describes it, and one per step."""
    return folder / f"{name}-{seed}.jsonl"


def add(file: Path, **values: Any) -> None:
    """Appends a line, with the seconds since the process began."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**values, "s": round(time.perf_counter() - BEGUN, 1)}) + "\n")


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Reads a run's file; a line that was cut off while it was written is left out."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


# ---- one run


def variables(arm: Arm, jobs: int, *, on_gpu: bool) -> dict[str, str]:
    """Returns the environment of a run's process, beside ours."""
    found = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)),
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHDYNAMO_DISABLE": "1",  # to compile takes longer than it saves here
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    if arm.given is None:  # our worker, which needs no hook
        return found
    given = [arm.given, "engine.enforce_eager=true", *[f"engine.kv_cache_memory_bytes={CACHE_BYTES}"] * on_gpu]
    found |= {
        "MODEL_QUIRKS": "on",
        "MODEL_QUIRKS_DISABLE": ",".join(arm.disable),
        "MODEL_QUIRKS_SET": ";".join(given).strip(";"),
    }
    if not on_gpu and "all" in arm.disable:
        found["MODEL_QUIRKS_FORCE"] = "cpu-load-into-live-model"  # without it TRL's first update fails on the CPU platform
    return found


def train_with_trl(arm: Arm, seed: int, options: argparse.Namespace, file: Path) -> None:
    """Trains with TRL as it is."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Recorder(TrainerCallback):
        def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, Any], **_: Any) -> None:
            if "reward" in logs:
                add(file, step=state.global_step, **{key: float(logs[name]) for key, name in METRICS.items()})

    def rewards(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        return [reward(completion[0]["content"], wanted) for completion, wanted in zip(completions, answer, strict=True)]

    rows = [{"prompt": chat(question), "answer": answer} for question, answer in QUESTIONS.items()]
    with tempfile.TemporaryDirectory(prefix="learning-curves-") as folder:
        config = GRPOConfig(
            output_dir=folder,
            model_init_kwargs={"dtype": "float32"},
            use_cpu=not torch.cuda.is_available(),
            bf16=arm.bf16,
            max_steps=options.steps,
            per_device_train_batch_size=options.prompts * options.group,
            num_generations=options.group,
            max_completion_length=NEW_TOKENS,
            temperature=TEMPERATURE,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            seed=seed,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_max_model_length=LENGTH,
            vllm_gpu_memory_utilization=0.05,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        data = Dataset.from_list(rows)
        GRPOTrainer(str(options.model), reward_funcs=rewards, args=config, train_dataset=data, callbacks=[Recorder()]).train()


class Policy:
    """The model that is trained beside our worker, with its tokenizer and optimiser."""

    def __init__(self, model: Path, device: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.device, self.tokenizer = device, AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device).train()
        self.base = copy.deepcopy(self.model)
        self.model.gradient_checkpointing_enable()  # as TRL does by default; runs that share a GPU share its memory
        self._optimiser = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)

    def prompts(self, asked: Sequence[str], group: int) -> dict[str, Any]:
        """Returns the questions as token ids, each `group` times: ``input_ids`` [B, S], ``input_lengths`` [B]."""
        import torch

        chats = [chat(question) for question in asked for _ in range(group)]
        encoded = self.tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)["input_ids"]
        rows = [torch.tensor(row) for row in encoded]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id)
        return {"input_ids": ids, "input_lengths": torch.tensor([len(row) for row in rows])}

    def update(self, batch: dict[str, Any], answers: Sequence[str], group: int) -> dict[str, float]:
        """Takes one step of GRPO on a rollout; returns the metrics, from before the step."""
        import torch
        from grpo_tiny import advantages, grpo_loss, response_mask

        mask, ids = response_mask(batch), batch["output_ids"]
        texts = [self.tokenizer.decode(row[1:][kept], skip_special_tokens=True) for row, kept in zip(ids, mask, strict=True)]
        score = torch.tensor([reward(*pair) for pair in zip(texts, answers, strict=True)])
        mask, ids, old = (values.to(self.device) for values in (mask, ids, batch["logprobs"][:, 1:]))
        hidden = self.model.model(ids, use_cache=False).last_hidden_state[:, :-1][mask]
        logprobs = (self.model.lm_head(hidden) / TEMPERATURE).log_softmax(-1).gather(-1, ids[:, 1:][mask][:, None])[:, 0]
        new = logprobs.new_zeros(mask.shape).masked_scatter(mask, logprobs)
        self._optimiser.zero_grad()
        grpo_loss(new, old, advantages(score, group).to(self.device), mask).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimiser.step()
        apart = (new.detach() - old)[mask]
        found = {"difference": float(apart.abs().mean()), "ratio": float(apart.exp().mean()), "grad_norm": float(norm)}
        return {"reward": float(score.mean()), **found}


def configuration(arm: Arm, options: argparse.Namespace, pad: int, *, on_gpu: bool) -> dict[str, Any]:
    """Returns the configuration of our worker."""
    rows = options.prompts * options.group
    engine = {"dtype": "float32", "enforce_eager": True, "max_model_len": LENGTH, "max_num_seqs": rows}
    if on_gpu:
        engine |= {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": CACHE_BYTES}
    sampling = {"temperature": TEMPERATURE, "max_new_tokens": NEW_TOKENS, "pad_token_id": pad}
    return {"model": str(options.model), "engine": engine, "sampling": sampling, **arm.settings}


async def train_with_worker(arm: Arm, seed: int, options: argparse.Namespace, file: Path) -> None:
    """Trains with our worker: roll out, update once, refit."""
    import torch
    from grpo_tiny import rollout

    from worker import VllmAsyncGenerationWorker

    torch.manual_seed(seed)
    policy = Policy(options.model, "cuda" if torch.cuda.is_available() else "cpu")
    sent = policy.base if arm.sends_base else policy.model
    config = configuration(arm, options, policy.tokenizer.pad_token_id, on_gpu=policy.device == "cuda")
    worker = VllmAsyncGenerationWorker(config, seed=seed, disable=arm.disable)
    asked = questions(options.prompts, seed)
    try:
        await worker.post_init_async()
        await worker.refit_async(sent, version="0")
        for step in range(1, options.steps + 1):
            now = next(asked)
            batch = await rollout(worker, policy.prompts(now, options.group), version=str(step - 1))
            answers = [QUESTIONS[question] for question in now for _ in range(options.group)]
            found = policy.update(batch, answers, options.group)
            await worker.refit_async(sent, version=str(step))
            add(file, step=step, **found)
        differing = await worker.verify_refit_async(policy.model)
        add(file, differing=len(differing))
    finally:
        await worker.shutdown()


def train(name: str, seed: int, options: argparse.Namespace) -> None:
    """Makes one run, in this process."""
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass fails with some versions of cuDNN
    file = file_of(options.out, name, seed)
    file.unlink(missing_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    versions = {package: installed_version(package) for package in PACKAGES}
    add(file, arm=name, seed=seed, prompts=options.prompts, group=options.group, device=device, versions=versions)
    if name.startswith("trl"):
        train_with_trl(ARMS[name], seed, options, file)
    else:
        asyncio.run(train_with_worker(ARMS[name], seed, options, file))


# ---- all runs


def is_complete(file: Path, steps: int) -> bool:
    """Says whether a run has taken all its steps."""
    return any(line.get("step", 0) >= steps for line in lines_of(file))


def command(options: argparse.Namespace, name: str, seed: int) -> list[str]:
    """Returns the command of one run's process."""
    flags = ["--out", str(options.out), "--model", str(options.model), "--steps", str(options.steps)]
    return [sys.executable, __file__, *flags, *["--tiny"] * options.tiny, "--run", name, str(seed)]


def run_all(options: argparse.Namespace, wanted: Sequence[tuple[str, int]], *, on_gpu: bool) -> list[str]:
    """Makes the runs that are not complete, `jobs` at a time, until the time is over; returns what is missing then, and why."""
    until = time.monotonic() + options.minutes * 60
    running: set[subprocess.Popen[bytes]] = set()
    left = [run for run in wanted if not is_complete(file_of(options.out, *run), options.steps)]
    print(f"{len(wanted) - len(left)} of {len(wanted)} runs are complete", flush=True)

    def make(run: tuple[str, int]) -> str:
        environment = {**os.environ, **variables(ARMS[run[0]], options.jobs, on_gpu=on_gpu)}
        file = file_of(options.out, *run)
        for _ in range(2):  # once more if it fails: engines that start at the same time may disturb each other
            if (seconds := until - time.monotonic()) <= 0:
                return f"{file.stem}: no time left"
            with file.with_suffix(".log").open("w", encoding="utf-8") as log:
                process = subprocess.Popen(command(options, *run), stdout=log, stderr=log, env=environment)  # noqa: S603
                running.add(process)
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    process.kill()  # its engine notices, and ends
                    process.wait()
                running.remove(process)
            if process.returncode == 0:
                print(f"{file.stem}: done", flush=True)
                return ""
        return f"{file.stem}: {file.with_suffix('.log')} says why it ended"

    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            return list(filter(None, pool.map(make, left)))
        except KeyboardInterrupt:
            until = 0
            for process in running:
                process.kill()
            raise


# ---- the figure


def collect(folder: Path) -> dict[str, Any]:
    """Returns what the runs' files say: per arm and seed the values of each step, rounded; and where it was measured."""
    arms: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for name in ARMS:
        for file in sorted(folder.glob(f"{name}-[0-9]*.jsonl")):
            head, *lines = lines_of(file) or [{}]
            steps = [line for line in lines if "step" in line]
            if not steps:
                continue
            about = {key: head[key] for key in ("device", "versions", "prompts", "group")}
            run = {key: [float(f"{line[key]:.4g}") for line in steps] for key in METRICS}
            run |= {key: line[key] for line in lines for key in ("differing",) if key in line}
            arms.setdefault(name, {})[str(head["seed"])] = run
    return {**about, "arms": arms}


def band(runs: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
    """Returns smallest value, mean and largest over the runs at each step; a run that was cut off is left out.

    Each run is smoothed before: the mean of WINDOW steps, of fewer at the beginning.
    """
    steps = range(max(map(len, runs)))
    whole = [run for run in runs if len(run) == len(steps)]
    smooth = [[sum(run[max(0, at - WINDOW + 1) : at + 1]) / min(at + 1, WINDOW) for at in steps] for run in whole]
    return [(min(values), sum(values) / len(values), max(values)) for values in zip(*smooth, strict=True)]


def draw(data: dict[str, Any], file: Path) -> None:
    """Draws reward and logprob difference of each trainer's arms: the mean over the seeds, in a band from least to most."""
    from matplotlib.figure import Figure

    trainers = {
        trainer: {name: runs for name, runs in data["arms"].items() if name.startswith(trainer)} for trainer in TRAINERS
    }
    trainers = {trainer: arms for trainer, arms in trainers.items() if arms}
    figure = Figure(figsize=(6 * len(trainers), 8), layout="constrained")
    axes = figure.subplots(2, len(trainers), sharex=True, sharey="row", squeeze=False)
    for column, (trainer, arms) in enumerate(trainers.items()):
        for row, (metric, unit) in enumerate((("reward", "mean reward"), ("difference", "|rollout - trainer| logprob, nats"))):
            axis = axes[row][column]
            for name, seeds in arms.items():
                low, mean, high = zip(*band([run[metric] for run in seeds.values()]), strict=True)
                steps = range(1, len(mean) + 1)
                (line,) = axis.plot(steps, mean, label=ARMS[name].label)
                axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
            axis.set(
                title=TRAINERS[trainer] if row == 0 else "", ylabel=unit if column == 0 else "", xlabel="step" if row else ""
            )
            if row:
                axis.set_yscale("log")
            else:
                axis.legend(fontsize="small")
    figure.savefig(file, format=file.suffix[1:], dpi=100)


def finish(folder: Path) -> None:
    """Writes the data as one file, and the figure beside it."""
    data, target = collect(folder), folder / "learning_curves.json"
    if not data["arms"]:
        print("no run has a step yet: nothing to draw")
        return
    target.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    for name, seeds in data["arms"].items():
        means = [mean for _, mean, _ in band([run["reward"] for run in seeds.values()])]
        first = means[min(WINDOW, len(means)) - 1]
        print(f"{name:14} seeds {len(seeds)}, steps {len(means):3}: reward {first:.3f} -> {means[-1]:.3f}")
    try:
        draw(data, target.with_suffix(".png"))
    except ImportError:
        print(f"{target}; no figure, because matplotlib is not installed: install it, and call this with --draw")
        return
    print(f"{target} and {target.with_suffix('.png')}")


def main() -> int:
    """Returns 0 if all runs are complete, 1 if some failed or had no time, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("learning_curves"), help="folder of the runs' files (%(default)s)")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--arms", nargs="+", choices=ARMS, metavar="ARM", help=f"which of {', '.join(ARMS)} (default: all)")
    parser.add_argument("--seeds", type=int, help="runs of each arm (3; with --tiny 1)")
    parser.add_argument("--steps", type=int, help="of each run (40; with --tiny 6)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; on a GPU each takes 8 GB (%(default)s)")
    parser.add_argument("--minutes", type=float, default=600, help="ends after so long, with what is there (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="the arms worker and worker-raw, with small batches: for a CPU")
    parser.add_argument("--draw", action="store_true", help="only draw what is in the folder")
    parser.add_argument("--run", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.prompts, options.group = (4, 4) if options.tiny else (8, 8)
    options.steps = options.steps or (6 if options.tiny else 40)
    if options.model and not (options.model / "config.json").is_file():
        parser.error(f"--model: {options.model} is no checkpoint: it has no config.json")
    if options.jobs < 1 or options.steps < 1:
        parser.error("--jobs and --steps must be at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no run outlives this process
    if options.run:
        train(options.run[0], int(options.run[1]), options)
        return 0
    missing: list[str] = []
    if not options.draw:
        import torch

        from worker.lab.trained import trained_model

        try:
            options.model = options.model or trained_model(notify=print)
        except QuirksError as error:
            parser.error(str(error))
        names = options.arms or (["worker", "worker-raw"] if options.tiny else list(ARMS))
        seeds = options.seeds or (1 if options.tiny else 3)
        wanted = [(name, seed) for seed in range(seeds) for name in names]
        missing = run_all(options, wanted, on_gpu=torch.cuda.is_available())
    finish(options.out)
    print("\n".join(missing), end="\n" if missing else "")
    return 1 if missing else 0


if __name__ == "__main__":  # the engine spawns processes, and each of them imports this file
    sys.exit(main())
