"""``make demo``: an engine that answers nonsense after a weight update, the same engine with model-quirks, and why."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from quirks_core.apply.handed_down import HOOK_VARIABLE
from quirks_core.base.errors import QuirksError
from quirks_core.facts.packages import installed_platform
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.terminal import Screen, line
from worker.lab.trained import trained_model

_SCRIPT = Path(__file__).with_name("demo_trainer.py")
_OURS = "model-quirks: "
#: What a run writes into its folder.
_ANSWERS, _LOG = "answers.json", "log.txt"
#: Title, variables and the quirk that makes the difference to the run before.
_RUNS = (
    ("Without model-quirks", {}, ""),
    ("With model-quirks", {HOOK_VARIABLE: "on"}, "cpu-tied-head-refit"),
    (
        "With one quirk switched off: an error that the text does not show",
        {HOOK_VARIABLE: "on", "MODEL_QUIRKS_DISABLE": "rollout-logprobs-processed"},
        "rollout-logprobs-processed",
    ),
)
_INTRODUCTION = (
    "A trainer improves a language model, and vLLM generates the answers that it learns from. vLLM starts with random weights, "
    f"then the trainer sends it the real ones. {_SCRIPT.name} does this with a trained model, SmolLM2 with 135 million "
    "parameters, and asks both for an answer. The script imports nothing of model-quirks."
)
_REFIT = (
    "In run 1 the last layer kept its random weights, and vLLM reported no error. vLLM has this defect on CPUs, and others of "
    "the kind on GPUs, for example with gpt-oss and Gemma-4 (docs/symptoms.md)."
)
_LOGPROBS = (
    "Run 3 is the same on every device: without the quirk vLLM reports the probabilities of another distribution than the one "
    "it samples from, and trainers learn from those."
)
_NEXT = (
    ("{bin}/quirks plan --model MODEL", "what applies to your model here, and why; takes a second"),
    ("{cache}{bin}/quirks parity --model MODEL", "whether vLLM and transformers agree on your model; minutes"),
    (f"{HOOK_VARIABLE}=on {{cache}}{{bin}}/python SCRIPT.py", "your own trainer or script with quirks; also 'vllm serve …'"),
)
#: On CPUs an engine otherwise starts only if 92 % of the memory is free.
_CACHE, _CACHE_MEANING = "VLLM_CPU_KVCACHE_SPACE=4 ", "; 4: GiB for the KV cache"
#: One thread: other programs may use the cores, and then threads wait for each other. No process beside the script.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
#: Seconds; a run that takes longer hangs.
_HUNG_S = 900


def main() -> None:
    """Runs the demonstration; under three minutes on two CPU cores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the answers and the log of every run as JSON")
    options = parser.parse_args()
    try:
        shown = _demonstrate(Screen())
    except QuirksError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if options.output:
        options.output.write_text(json.dumps(shown, indent=2, sort_keys=True), encoding="utf-8")


def _demonstrate(console: Screen) -> list[dict[str, Any]]:
    begin = time.monotonic()
    model = trained_model(notify=lambda text: console.say(f"[dim]{line(text)}[/]"))
    console.say(_INTRODUCTION, hang=0)
    registry, shown = Registry.load(), list[dict[str, Any]]()
    for number, ((title, variables, quirk), run) in enumerate(zip(_RUNS, _runs(model, console), strict=True), 1):
        shown.append(run)
        typed = [f"{name}={value}" for name, value in variables.items()]
        console.say(f"\n[bold]{number}. {title}[/]")
        console.say(f"$ {line(' '.join([*typed, shlex.join(_words(model))]))}", indent=3)
        console.entries(
            [
                ("question", line(run["question"])),
                ("trainer", line(run["trainer"])),
                ("vLLM", f"{line(run['engine'])}   [bold]{'right' if run['engine'] == run['trainer'] else 'wrong'}[/]"),
                ("probabilities", f"{_factor(run['difference'])} ({run['difference']:.2g} nats per token)"),
            ],
            indent=3,
        )
        if quirk:
            console.say(f"why: {quirk}: {line(registry.find(quirk).quirk.title)}", indent=3, hang=5)
    is_wrong = shown[0]["engine"] != shown[0]["trainer"]
    console.say(f"\n{_REFIT if is_wrong else 'This platform does not show the defect of run 1.'} {_LOGPROBS}", hang=0)
    on_cpu = installed_platform() == "cpu"
    console.say(f"\n[bold]Next, with your own model[/] (MODEL: its folder{_CACHE_MEANING if on_cpu else ''}):")
    words = {"bin": _shortest(Path(sys.executable).parent), "cache": _CACHE if on_cpu else ""}
    console.entries([(f"[bold]{line(command.format(**words))}[/]", text) for command, text in _NEXT])
    console.say(f"\n[dim]{time.monotonic() - begin:.0f} s in all[/]")
    return shown


def _factor(difference: float) -> str:
    """Shows a difference of logprobs as what it does to a probability."""
    factor = math.exp(difference)
    digits = 0 if factor >= 10 else 2 if factor >= 1.01 else 6
    return f"of sampled tokens, vLLM's differ from the trainer's by a factor of {factor:,.{digits}f}"


def _shortest(path: Path) -> str:
    return min(os.path.relpath(path), str(path), key=len)


def _runs(model: Path, console: Screen) -> Iterator[dict[str, Any]]:
    """Yields what each run gave, in order; the next one runs meanwhile, on the other core."""
    with (
        tempfile.TemporaryDirectory(prefix="quirks-demo-") as parent,
        ExitStack() as processes,
        console.status("vLLM starts, gets its weights and answers …"),
    ):
        started = []
        for number, (_, variables, _) in enumerate(_RUNS):
            folder = Path(parent) / str(number)
            started.append((processes.enter_context(_started(model, variables, folder)), folder))
            if number:
                yield _result(*started[number - 1])
        yield _result(*started[-1])


@contextmanager
def _started(model: Path, variables: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts the trainer's script, which writes answers and log into a folder, and kills it in the end."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(HOOK_VARIABLE)}
    folder.mkdir()
    with (
        (folder / _LOG).open("w") as log,
        subprocess.Popen(  # noqa: S603 - our own script
            [*_words(model), str(folder / _ANSWERS)],
            env={**_ENVIRONMENT, **inherited, **variables},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _result(process: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """Waits for the script; returns what it wrote, and ``log``, the lines of the hook."""
    try:
        code = process.wait(timeout=_HUNG_S)
    except subprocess.TimeoutExpired:
        raise QuirksError(f"{_SCRIPT.name} did not end within {_HUNG_S} s") from None
    written = (folder / _LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    if code != 0:
        memory = " (killed; it needs 3 GB of memory)" if code == -9 else ""
        last = "".join(f"\n  {text}" for text in written[-8:])
        raise QuirksError(f"{_SCRIPT.name} ended with exit code {code}{memory}:{last}")
    log = [text.partition(_OURS)[2] for text in written if _OURS in text]
    return {**json.loads((folder / _ANSWERS).read_text(encoding="utf-8")), "log": log}


def _words(model: Path) -> list[str]:
    return [_shortest(path) for path in (Path(sys.executable), _SCRIPT, model)]


if __name__ == "__main__":
    main()
