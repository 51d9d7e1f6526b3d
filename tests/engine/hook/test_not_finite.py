"""Weights that a float16 engine cannot hold, sent by programs that know nothing of model-quirks, by every way."""

from __future__ import annotations

import math
import re

import pytest

SCRIPT = """
import json, sys
import torch
from safetensors.torch import load_file, save_file
from vllm import LLM, SamplingParams
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

PROMPTS = [list(range(5 + 7 * i, 17 + 12 * i)) for i in range(12)]
SAMPLING = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)
NAME = "model.layers.0.self_attn.o_proj.weight"

class FileEngine(IPCWeightTransferEngine):
    \"\"\"VLLM's own engine, but tensors come from a file: the CPU platform has no IPC.\"\"\"

    def parse_update_info(self, info):
        return info

    def receive_weights(self, info):
        self.model.load_weights(list(load_file(info["file"]).items()))

WeightTransferEngineFactory.register_engine("files", FileEngine)

def generated(llm):
    try:
        rows = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], SAMPLING, use_tqdm=False)
    except Exception as error:
        return str(error)
    return [[next(iter(entry.values())).logprob for entry in row.outputs[0].logprobs] for row in rows]

if __name__ == "__main__":
    model, spoilt = sys.argv[1:]
    weights = load_file(model + "/model.safetensors")
    weights[NAME].view(-1)[:5] = 1e5
    save_file(weights, spoilt + "/model.safetensors", metadata={"format": "pt"})
    llm = LLM(
        model, dtype="float16", max_model_len=256, max_num_seqs=8, enforce_eager=True, block_size=32,
        num_gpu_blocks_override=64, weight_transfer_config={"backend": "files"}, enable_prefix_caching=True,
    )

    def transfer(folder):
        llm.start_weight_update()
        llm.update_weights({"update_info": {"file": folder + "/model.safetensors"}})
        llm.finish_weight_update()

    def load(folder):
        return lambda model: model.load_weights(list(load_file(folder + "/model.safetensors").items()))

    ways = {
        "transfer": transfer,
        "reload": lambda folder: llm.collective_rpc("reload_weights", kwargs={"weights_path": folder}),
        "raw": lambda folder: llm.apply_model(load(folder)),
    }
    found = {"start": generated(llm)}
    for name, way in ways.items():
        way(spoilt)
        found[name] = [generated(llm) for _ in range(3)]
        way(model)
        found[name] += [generated(llm) for _ in range(3)]
    print("RESULT", json.dumps(found), flush=True)
"""


@pytest.fixture
def outcome(programs, checkpoint, worker_in_core, tmp_path):
    """Runs the script; returns its result and our lines."""

    def run(**variables):
        common = {"MODEL_QUIRKS": "rollout", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", **worker_in_core, **variables}
        ended = programs.script(SCRIPT, checkpoint("qwen3"), tmp_path, **common)
        return ended.result(), ended.said

    return run


def assert_same(expected, rows):
    """The logprobs of all prompts are those of the start; a NaN is not."""
    assert all(abs(a - b) < 0.01 for one, other in zip(expected, rows, strict=True) for a, b in zip(one, other, strict=True))


def is_nan(rows):
    return all(math.isnan(row[-1]) for row in rows)


def test_they_are_refused_by_name_until_the_next_update(outcome):
    """That one is right for all prompts."""
    found, said = outcome()

    start = found.pop("start")
    for way, (first, second, third, *mended) in found.items():
        if way == "raw":  # judged with the first step
            assert is_nan(first)
            first = second
        for text in (first, second, third):
            named = (
                r"left NaN or infinite values in 1 tensor: model\.layers\.0\.self_attn\.o_proj(\.weight| \(as it computes\));"
            )
            assert re.search(named, text)  # some CPUs pack it
            assert "MODEL_QUIRKS_SET=refit.finite=false takes them" in text
        for rows in mended:
            assert_same(start, rows)
    assert sum("left NaN" in line for line in said) == 3


def test_they_are_taken_on_demand_and_no_nan_outlives_them(outcome):
    found, said = outcome(MODEL_QUIRKS_SET="refit.finite=false")

    start = found.pop("start")
    for *spoilt, one, two, three in found.values():
        assert all(is_nan(rows) for rows in spoilt)
        for rows in (one, two, three):
            assert_same(start, rows)
    assert sum("left NaN or infinite values in 1 tensor: model.layers.0.self_attn.o_proj" in line for line in said) == 3
