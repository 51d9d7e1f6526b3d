"""Weight updates by programs that know nothing of model-quirks: what later requests are computed from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

SCRIPT = """
import json, sys
from safetensors.torch import load_file
from vllm import LLM, SamplingParams

PROMPTS = [list(range(5, 69)), list(range(100, 170))]
SAMPLING = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)

def load(worker, file):
    worker.model_runner.model.load_weights(load_file(file).items())

def sampled(llm):
    rows = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], SAMPLING, use_tqdm=False)
    return {
        "hits": sum(row.num_cached_tokens for row in rows),
        "logprobs": [next(iter(entry.values())).logprob for row in rows for entry in row.outputs[0].logprobs],
    }

if __name__ == "__main__":
    first, second, third = sys.argv[1:]
    llm = LLM(
        first, dtype="float32", max_model_len=512, max_num_seqs=8, enforce_eager=True, block_size=32,
        num_gpu_blocks_override=128, enable_prefix_caching=True, distributed_executor_backend="mp",
    )
    sampled(llm)
    found = {"unchanged": sampled(llm)}
    # A request that runs during the update holds blocks, so that vLLM would refuse a reset.
    llm.llm_engine.add_request("running", {"prompt_token_ids": PROMPTS[0]}, SamplingParams(max_tokens=200, ignore_eos=True))
    for _ in range(3):
        llm.llm_engine.step()
    llm.collective_rpc("reload_weights", kwargs={"weights_path": second})
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    found["reloaded"], found["again"] = sampled(llm), sampled(llm)
    llm.reset_prefix_cache()
    found["second"] = sampled(llm)
    llm.collective_rpc(load, args=(third + "/model.safetensors",))  # past the reload, as trainers with an extension do
    found["loaded"] = sampled(llm)
    llm.reset_prefix_cache()
    found["third"] = sampled(llm)
    print("RESULT", json.dumps(found), flush=True)
"""


def _difference(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    return max(abs(a - b) for a, b in zip(one["logprobs"], other["logprobs"], strict=True))


def test_requests_after_an_update_use_no_block_of_older_weights(programs, models):
    variables = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "MODEL_QUIRKS": "rollout"}

    result = programs.script(SCRIPT, *models, **variables).result()

    assert (
        result["unchanged"]["hits"] == result["again"]["hits"] == 96
    )  # whole blocks; of the first prompt, the last one is computed
    assert result["reloaded"]["hits"] == result["loaded"]["hits"] == 0
    assert _difference(result["reloaded"], result["second"]) < 1e-4
    assert _difference(result["loaded"], result["third"]) < 1e-4
    assert _difference(result["second"], result["third"]) > 0.1


RAW = """
import json, sys
from safetensors.torch import load_file
from vllm import LLM, SamplingParams

def sampled(llm):
    sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
    (row,) = llm.generate([{"prompt_token_ids": list(range(5, 30))}], sampling, use_tqdm=False)
    return {"logprobs": [next(iter(entry.values())).logprob for entry in row.outputs[0].logprobs]}

if __name__ == "__main__":
    first, second, third = sys.argv[1:]
    llm = LLM(first, dtype="float32", max_model_len=128, max_num_seqs=8, enforce_eager=True, num_gpu_blocks_override=64)

    def load(weights):
        llm.apply_model(lambda running: len(running.load_weights(list(weights.items()))))

    for model in (second, third):
        load(load_file(model + "/model.safetensors"))
    found = {"raw": sampled(llm)}
    for name, model in (("second", second), ("third", third)):
        llm.collective_rpc("reload_weights", kwargs={"weights_path": model})
        found[name] = sampled(llm)
    print("RESULT", json.dumps(found), flush=True)
"""


def _shortened(model: Path, folder: Path) -> Path:
    """Writes a checkpoint with a vocabulary that vLLM pads."""
    shutil.copytree(model, folder)
    weights = load_file(model / "model.safetensors")
    save_file({name: tensor[:500].clone() for name, tensor in weights.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 500}))
    return folder


@pytest.mark.parametrize(("kind", "is_padded"), [("llama_tied", False), ("llama", True)])
def test_raw_updates_are_whole_with_the_next_request(programs, checkpoint, worker_in_core, tmp_path, kind, is_padded):
    """Also two updates without a request between them."""
    models = [checkpoint(kind, seed=seed) for seed in range(3)]
    if is_padded:
        models = [_shortened(model, tmp_path / str(seed)) for seed, model in enumerate(models)]

    result = programs.script(RAW, *models, MODEL_QUIRKS="rollout", **worker_in_core).result()

    assert _difference(result["raw"], result["third"]) < 1e-4
    assert _difference(result["second"], result["third"]) > 0.1
