"""What each quirk is worth to one rollout of the trained model: the difference from its trainer, with and without the quirk.

    python benchmarks/quirk_mismatch.py               # 10 to 40 minutes on two CPU cores; needs the extra `demo`

The rollout starts from dummy weights, answers prompts, gets the trainer's weights, and answers the same prompts again at
temperature 0.7. An engine of its own does so with all quirks, without each of them, and without any: in float32 (with a trainer
in float32), and in bfloat16 (with a trainer under autocast). It prints a table.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from run_page import TRAINED, Measured, Run, Update
from runs import generated, policy_of, scored

from quirks_core.configuration.serve_command import read_serve_command
from quirks_core.plugins.planning import PlanOptions, make_plan

TOKENS, PROMPTS, PROMPT_TOKENS = 32, 8, 64
_ENGINE = {
    "load_format": "dummy",
    "enforce_eager": True,
    "max_model_len": 128,
    "block_size": 32,  # the smallest of the CPU's attention: the prompts are cached
    "num_gpu_blocks_override": 512,
}


def engine(order: dict[str, Any]) -> None:
    """Answers, is refitted as a trainer without model-quirks would do it, answers again, and writes tokens and logprobs."""
    from transformers import AutoModelForCausalLM
    from vllm import LLM, SamplingParams

    llm = LLM(order["model"], seed=0, **order["arguments"])
    prompts = [{"prompt_token_ids": row} for row in order["prompts"]]
    llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)
    weights = AutoModelForCausalLM.from_pretrained(order["model"], dtype="float32").named_parameters()
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
    drawn = {"temperature": order["temperature"], "max_tokens": TOKENS, "ignore_eos": True, "logprobs": 0}
    outputs = llm.generate(prompts, [SamplingParams(**drawn, seed=seed) for seed in range(len(prompts))], use_tqdm=False)
    rows = [output.outputs[0] for output in outputs]
    found = [
        (list(row.token_ids), [at[token].logprob for at, token in zip(row.logprobs, row.token_ids, strict=True)])
        for row in rows
    ]
    Path(order["result"]).write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    """Measures, and prints a line as soon as it is known."""
    if sys.argv[1:2] == ["--engine"]:
        engine(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
        return
    from worker.lab.parity.prompts import load_prompts
    from worker.lab.trained import trained_model

    model = trained_model()
    run = Run(name="a rollout", model=TRAINED, trainer="trl", update=Update.RELOAD, temperature=0.7)
    policy = policy_of(run, model, noise=0)
    hook = {"MODEL_QUIRKS": "rollout", "MODEL_QUIRKS_SET": f"sampling.temperature={run.temperature};refit.scope=parameters"}
    order: dict[str, Any] = {"model": str(model), "temperature": run.temperature}
    print("| | float32 on both sides | bfloat16, trainer under autocast |\n|---|---|---|", flush=True)
    config = read_serve_command(["vllm", "serve", str(model), "--load-format", "dummy"]).config(
        purpose="rollout", settings=("refit.scope=parameters", f"sampling.temperature={run.temperature}")
    )
    order["prompts"] = load_prompts(config.model).long(PROMPT_TOKENS, PROMPTS)
    plan = make_plan(config, PlanOptions(), environ={})
    ids = sorted({patch.quirk.id for patch in plan.patches} | {
        quirk.id for item in plan.adjustments if item.in_force and item.slot.startswith("engine.") for quirk in item.quirks
    })  # fmt: skip
    cases = {"all quirks": hook, "no quirks": {"MODEL_QUIRKS": ""}}
    cases |= {f"without {name}": {**hook, "MODEL_QUIRKS_DISABLE": name} for name in ids}
    with tempfile.TemporaryDirectory(prefix="quirks-mismatch-") as folder:
        for case, variables in cases.items():
            shown = [_shown(run, policy, order, dtype, variables, Path(folder)) for dtype in ("float32", "bfloat16")]
            print(f"| {case} | {' | '.join(shown)} |", flush=True)


def _shown(run: Run, policy: Any, order: dict[str, Any], dtype: str, variables: dict[str, str], folder: Path) -> str:
    made, _ = generated({**order, "arguments": {**_ENGINE, "dtype": dtype}}, variables, folder, script=__file__)
    if isinstance(made, str):
        return f"`{made.partition(':')[0]}`"
    found: Measured = scored(run, policy, order, made, float32=dtype == "float32")
    return f"{found.mean:.2g}, up to {found.largest:.2g}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
