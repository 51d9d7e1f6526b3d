"""A plain LLM with and without MODEL_QUIRKS: what the hook costs starts and generation.

    python benchmarks/hook.py                  a table; a tiny model on a CPU, the shape of Qwen3-1.7B with CUDA graphs on a GPU
    python benchmarks/hook.py --json           the same as JSON
    python benchmarks/hook.py --rounds 2       two pairs of starts, after a first one that is not counted

Every start is a process of its own, and takes from its beginning until the engine is up. The rows of tokens are the best of
three generations of the same requests in each process. The figures of each process are printed on standard error as they come.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure

WITHOUT, WITH = "LLM() without MODEL_QUIRKS", "LLM() with MODEL_QUIRKS=rollout"
#: Requests, and tokens of prompt and generation, by platform.
SIZES = {"cpu": (16, 16, 64), "cuda": (256, 128, 256)}
_SHAPES = {"cpu": "tiny", "cuda": "1.7B"}
_problems: list[str] = []
_PROGRAM = """
import json, os, random, sys, time

def main():
    began, model = float(sys.argv[1]), sys.argv[2]
    arguments, (requests, prompt, new) = json.loads(sys.argv[3]), json.loads(sys.argv[4])
    from vllm import LLM, SamplingParams

    llm = LLM(model, load_format="dummy", skip_tokenizer_init=True, seed=0, **arguments)
    start = time.time() - began
    chosen = random.Random(0)
    rows = [{"prompt_token_ids": [chosen.randrange(5, 500) for _ in range(prompt)]} for _ in range(requests)]
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_tokens=new, ignore_eos=True, detokenize=False)
    rates = []
    for _ in range(4):
        llm.reset_prefix_cache()
        at = time.perf_counter()
        llm.generate(rows, sampling, use_tqdm=False)
        rates.append(requests * new / (time.perf_counter() - at))
    print("RESULT", json.dumps({"start_s": start, "tokens_per_s": max(rates[1:])}), flush=True)

if __name__ == "__main__":
    main()
"""


def start(program: Path, model: Path, platform: str, receipt: Path | None) -> dict[str, Any]:
    """Runs the program once; with a file for the receipt, under MODEL_QUIRKS."""
    arguments: dict[str, Any] = {"max_model_len": 1024}
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    if platform == "cpu":
        arguments |= {"enforce_eager": True, "dtype": "float32"}
        variables |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if receipt is not None:
        variables |= {"MODEL_QUIRKS": "rollout", "MODEL_QUIRKS_RECEIPT": str(receipt), "MODEL_QUIRKS_LOG": "quiet"}
    words = [sys.executable, program, repr(time.time()), model, json.dumps(arguments), json.dumps(SIZES[platform])]
    done = subprocess.run(  # noqa: S603  # our own program
        list(map(str, words)), env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        raise SystemExit(f"the engine did not run:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(found[0].removeprefix("RESULT "))
    print(WITHOUT if receipt is None else WITH, result, file=sys.stderr, flush=True)
    return result


def measured(rounds: int) -> list[measure.Row]:
    """Starts engines in turns; the first pair fills vLLM's caches and is not counted."""
    from quirks_core.facts.packages import installed_platform

    platform = installed_platform() or "cpu"
    starts: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    tokens: dict[str, list[float]] = {f"1000 tokens, {WITHOUT}": [], f"1000 tokens, {WITH}": []}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(_PROGRAM, encoding="utf-8")
        model, receipt = measure.qwen3(Path(folder) / "model", _SHAPES[platform]), Path(folder) / "receipts.json"
        for number in range(rounds + 1):
            for name in starts:
                found = start(program, model, platform, receipt if name == WITH else None)
                if number:
                    starts[name].append(found["start_s"] * 1e3)
                    tokens[f"1000 tokens, {name}"].append(1e6 / found["tokens_per_s"])
        engines = json.loads(receipt.read_text(encoding="utf-8"))["engines"]
    if len(engines) != 1:
        _problems.append(f"{len(engines)} receipts of the last engine instead of one")
    return [*measure.rows(starts, to=WITHOUT), *measure.rows(tokens, to=f"1000 tokens, {WITHOUT}")]


if __name__ == "__main__":
    sys.exit(measure.main(__doc__, measured, rounds=3, notes=lambda: _problems))
