"""Learning curves of a trained model: what precision, and what corrections of an engine's defaults, do to GRPO.

SmolLM2-135M-Instruct learns two tasks from 40 short questions. ``answers`` rewards the answer alone: "The capital of France is
Paris." earns 1/6, "Paris." earns 1. ``vowels``, held out while settings were chosen, rewards words that begin with a vowel. A
run is one arm with one seed, in a process of its own, and writes a JSON line per step; one whose file is complete is not
repeated. Runs share the GPUs that there are::

    python examples/learning_curves.py precision --out curves --jobs 16      # the figure is curves/precision.png
    python examples/learning_curves.py corrections --out curves --jobs 16
    python examples/learning_curves.py precision --out curves --draw         # the figure again, from what is there
    python examples/learning_curves.py corrections --out tiny --tiny         # two arms, one seed, few steps, on two cores

``precision``: TRL, unmodified, with ``MODEL_QUIRKS=on``, in four arms: its defaults (bfloat16 on both sides), ``fp16=True``
(the engine follows), float32 on both sides, and an engine in float16 beside a trainer in bfloat16; both tasks, the second also
with LoRA.

``corrections``: the experiment of https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections with our worker. The
next rollout runs while the trainer updates. The first arm has the defaults of vLLM's V1 (logprobs before temperature, a prefix
cache that is kept over updates, requests in flight that keep their keys and values, a head in bfloat16); each further arm
corrects one more.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from learning_runs import CACHE_BYTES, METRICS, Arm, add, train_with_trl, train_with_worker

from quirks_core.base.errors import QuirksError
from quirks_core.facts.packages import installed_version

WINDOW = 5  # steps that a point of the figure is the mean of
_PORTS = 150  # ranges of ports of an experiment
PACKAGES = ("vllm", "torch", "transformers", "trl")
_PRECISIONS = {
    "bfloat16": ("TRL's defaults: bfloat16 on both sides", {}, ""),
    "float16": ("float16 on both sides", {"fp16": True}, ""),
    "float32": ("float32 on both sides", {"bf16": False}, "engine.dtype=float32"),
    "mixed": ("bfloat16 trainer, engine in float16", {}, "engine.dtype=float16"),
}
_TASKS = {"answers": ("answers", False), "vowels": ("vowels", False), "lora": ("vowels", True)}
_KEPT = {"clear_cache": False}
_RAW, _SALT = "rollout-logprobs-processed", "prefix-cache-after-update"
_FLOAT32_HEAD = {"engine": {"head_dtype": "float32"}}
#: By experiment and name.
ARMS: dict[str, dict[str, Arm]] = {
    "precision": {
        f"{column}-{name}": Arm(label, task=task, lora=lora, trl=trl, given=given)
        for column, (task, lora) in _TASKS.items()
        for name, (label, trl, given) in _PRECISIONS.items()
    },
    "corrections": {
        "v1": Arm("V1's defaults", settings={"refit": _KEPT}, disable=(_RAW, _SALT)),
        "logprobs": Arm("+ logprobs after temperature", settings={"refit": _KEPT}, disable=(_SALT,)),
        "prefixes": Arm("+ prefixes of the current weights alone", settings={"refit": _KEPT}),
        "in-flight": Arm("+ requests in flight computed anew"),
        "head": Arm("+ heads in float32 on both sides", settings=_FLOAT32_HEAD, float32_head=True),
        "float16": Arm(
            "+ float16 on both sides",
            settings={"engine": {"head_dtype": "float32", "dtype": "float16"}},
            float32_head=True,
            autocast="float16",
        ),
    },
}


def file_of(folder: Path, name: str, seed: int) -> Path:
    """Returns the file of a run: a line that describes it, and one per step."""
    return folder / f"{name}-{seed}.jsonl"


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Reads a run's file; a line that was cut off while it was written is left out."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def variables(arm: Arm, jobs: int, number: int, gpus: int) -> dict[str, str]:
    """Returns the environment of a run's process, beside ours; each run has ports of its own."""
    found = {
        "HF_HUB_OFFLINE": "1",
        "MASTER_PORT": str(20000 + number),
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)),
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHDYNAMO_DISABLE": "1",  # to compile takes longer than it saves here
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_PORT": str(21000 + 100 * number),
    }
    if gpus:
        found["CUDA_VISIBLE_DEVICES"] = str(number % gpus)
    if arm.trl is None:  # our worker, which needs no hook
        return found
    shared = ["engine.enforce_eager=true", *[f"engine.kv_cache_memory_bytes={CACHE_BYTES}"] * bool(gpus)]
    return found | {"MODEL_QUIRKS": "on", "MODEL_QUIRKS_SET": ";".join(filter(None, [arm.given, *shared]))}


def train(name: str, seed: int, options: argparse.Namespace) -> None:
    """Makes one run, in this process."""
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass fails with some versions of cuDNN
    file, arm = file_of(options.out, name, seed), ARMS[options.experiment][name]
    file.unlink(missing_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    versions = {package: installed_version(package) for package in PACKAGES}
    add(file, arm=name, seed=seed, prompts=options.prompts, group=options.group, device=device, versions=versions)
    if arm.trl is not None:
        train_with_trl(arm, seed, options, file)
    else:
        asyncio.run(train_with_worker(arm, seed, options, file))


# ---- all runs


def is_complete(file: Path, steps: int) -> bool:
    """Says whether a run has taken all its steps."""
    return any(line.get("step", 0) >= steps for line in lines_of(file))


def command(options: argparse.Namespace, name: str, seed: int) -> list[str]:
    """Returns the command of one run's process."""
    flags = ["--out", str(options.out), "--model", str(options.model), "--steps", str(options.steps)]
    return [sys.executable, __file__, options.experiment, *flags, *["--tiny"] * options.tiny, "--run", name, str(seed)]


def run_all(options: argparse.Namespace, wanted: Sequence[tuple[str, int]], *, gpus: int) -> list[str]:
    """Makes the runs that are not complete, `jobs` at a time, until the time is over; returns what is missing then, and why."""
    until = time.monotonic() + options.minutes * 60
    running: set[subprocess.Popen[bytes]] = set()
    left = [run for run in wanted if not is_complete(file_of(options.out, *run), options.steps)]
    numbers = itertools.count(_PORTS * [*ARMS].index(options.experiment))  # two experiments may run at the same time
    print(f"{len(wanted) - len(left)} of {len(wanted)} runs are complete", flush=True)

    def make(run: tuple[str, int]) -> str:
        file = file_of(options.out, *run)
        for _ in range(2):  # once more if it fails: engines that start at the same time may disturb each other
            if (seconds := until - time.monotonic()) <= 0:
                return f"{file.stem}: no time left"
            arm = ARMS[options.experiment][run[0]]
            environment = {**os.environ, **variables(arm, options.jobs, next(numbers) % (_PORTS * len(ARMS)), gpus)}
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


def collect(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what the runs' files say: per arm and seed the values of each step, rounded; and where it was measured."""
    shown = {"reward", "difference", *(metric for _, metric, _ in panels(options.experiment))}
    arms: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for name in ARMS[options.experiment]:
        for file in sorted(options.out.glob(f"{name}-[0-9]*.jsonl")):
            head, *steps = lines_of(file) or [{}]
            if not steps:
                continue
            about = {key: head[key] for key in ("device", "versions", "prompts", "group")}
            run = {key: [float(f"{line[key]:.3g}") for line in steps] for key in METRICS if key in steps[0] and key in shown}
            last = steps[-1]
            seconds = (last["s"] - steps[0]["s"]) / max(last["step"] - 1, 1)
            arms.setdefault(name, {})[str(head["seed"])] = {**run, "seconds": round(seconds, 2)}
    return {**about, "arms": arms}


def band(runs: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
    """Returns smallest value, mean and largest over the runs at each step; a run that was cut off is left out.

    Each run is smoothed before: the mean of WINDOW steps, of fewer at the beginning.
    """
    steps = range(max(map(len, runs)))
    whole = [run for run in runs if len(run) == len(steps)]
    smooth = [[sum(run[max(0, at - WINDOW + 1) : at + 1]) / min(at + 1, WINDOW) for at in steps] for run in whole]
    return [(min(values), sum(values) / len(values), max(values)) for values in zip(*smooth, strict=True)]


_AXES = {
    "reward": "mean reward",
    "difference": "|rollout - trainer| logprob, nats",
    "clip": "share of clipped tokens",
    "kl": "KL(rollout, trainer), nats",
    "entropy": "entropy, nats",
    "ratio": "mean importance ratio",
    "lag": "age of a token's weights, updates",
}


def panels(experiment: str) -> list[tuple[str, str, dict[str, Arm]]]:
    """Returns the panels of a figure: title, metric, arms."""
    arms = ARMS[experiment]
    if experiment == "corrections":
        return [("", metric, arms) for metric in ("reward", "clip", "kl", "entropy", "ratio", "lag")]
    titles = {"answers": "answers", "vowels": "vowels (held out)", "lora": "vowels, LoRA"}
    columns = {
        title: {name: arm for name, arm in arms.items() if name.startswith(f"{column}-")} for column, title in titles.items()
    }
    return [(title, metric, found) for metric in ("reward", "difference") for title, found in columns.items()]


def draw(data: dict[str, Any], experiment: str, file: Path) -> None:
    """Draws a line for each arm, the mean over its seeds, in a band from least to most."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 8), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True).flatten()
    for number, (title, metric, arms) in enumerate(panels(experiment)):
        axis = axes[number]
        for name, arm in arms.items():
            seeds = data["arms"].get(name, {})
            if runs := [run[metric] for run in seeds.values() if metric in run]:
                low, mean, high = zip(*band(runs), strict=True)
                steps = range(1, len(mean) + 1)
                (line,) = axis.plot(steps, mean, label=arm.label)
                axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axis.set(title=title, ylabel=_AXES[metric], xlabel="step" if number >= len(axes) // 2 else "")
        axis.set_yscale("log" if metric in ("difference", "kl") else "linear")
        if number == 0:
            axis.legend(fontsize="small")
    figure.savefig(file, format=file.suffix[1:], dpi=80)


def row(name: str, seeds: dict[str, Any]) -> str:
    """Returns a line on an arm: the reward of the last steps, and the difference at both ends."""

    def mean(run: dict[str, Any], metric: str, part: slice) -> float:
        values = run[metric][part]
        return float(sum(values) / len(values))

    first, last = slice(0, WINDOW), slice(-WINDOW, None)
    rewards = [mean(run, "reward", last) for run in seeds.values()]
    apart = [sum(mean(run, "difference", part) for run in seeds.values()) / len(seeds) for part in (first, last)]
    seconds, steps = [run["seconds"] for run in seeds.values()], len(next(iter(seeds.values()))["reward"])
    return (
        f"{name:18} {len(seeds)} seeds, {steps} steps: reward {sum(rewards) / len(rewards):.3f} "
        f"({min(rewards):.3f} to {max(rewards):.3f}), difference {apart[0]:.4f} -> {apart[1]:.4f}, "
        f"{min(seconds):.2f} to {max(seconds):.2f} s a step"
    )


def finish(options: argparse.Namespace) -> None:
    """Writes the data as one file, and the figure beside it."""
    data, target = collect(options), options.out / f"{options.experiment}.json"
    if not data["arms"]:
        print("no run has a step yet: nothing to draw")
        return
    target.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    for name, seeds in data["arms"].items():
        print(row(name, seeds))
    try:
        draw(data, options.experiment, target.with_suffix(".png"))
    except ImportError:
        print(f"{target}; no figure, because matplotlib is not installed: install it, and call this with --draw")
        return
    print(f"{target} and {target.with_suffix('.png')}")


def main() -> int:
    """Returns 0 if all runs are complete, 1 if some failed or had no time, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("experiment", choices=ARMS)
    parser.add_argument("--out", type=Path, default=Path("learning_curves"), help="folder of the runs' files (%(default)s)")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="which of the experiment's arms (default: all)")
    parser.add_argument("--seeds", type=int, help="runs of each arm (4, corrections 3; with --tiny 1)")
    parser.add_argument("--steps", type=int, help="of each run (40; with --tiny 6)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; on a GPU each takes 8 GB (%(default)s)")
    parser.add_argument("--minutes", type=float, default=600, help="ends after so long, with what is there (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="the first and the last arm, with small batches: for a CPU")
    parser.add_argument("--draw", action="store_true", help="only draw what is in the folder")
    parser.add_argument("--run", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.prompts, options.group = (4, 4) if options.tiny else (8, 8)
    options.steps = options.steps or (6 if options.tiny else 40)
    arms = ARMS[options.experiment]
    if unknown := set(options.arms or ()) - set(arms):
        parser.error(f"--arms: {options.experiment} has no {', '.join(sorted(unknown))}; it has {', '.join(arms)}")
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
        names = options.arms or ([*arms][:: len(arms) - 1] if options.tiny else [*arms])
        seeds = options.seeds or (1 if options.tiny else 3 if options.experiment == "corrections" else 4)
        wanted = [(name, seed) for seed in range(seeds) for name in names]
        missing = run_all(options, wanted, gpus=torch.cuda.device_count())
    finish(options)
    print("\n".join(missing), end="\n" if missing else "")
    return 1 if missing else 0


if __name__ == "__main__":  # the engine spawns processes, and each of them imports this file
    sys.exit(main())
