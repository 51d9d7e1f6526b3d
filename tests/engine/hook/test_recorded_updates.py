"""Updates by vLLM's own ways, with recorded copies and without, in programs that know nothing of model-quirks."""

from __future__ import annotations

import pytest

SCRIPT = """
import hashlib, json, os, sys
import torch
from safetensors.torch import load_file
from vllm import LLM, SamplingParams
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

PROMPTS = [list(range(5, 37)), list(range(100, 120))]
SAMPLING = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


class FileEngine(IPCWeightTransferEngine):
    \"\"\"VLLM's own engine, but tensors come from a file: the CPU platform has no IPC.\"\"\"

    def parse_update_info(self, info):
        return info

    def receive_weights(self, info):
        tensors = list(load_file(info["file"]).items())[info["first"] : info["last"]]
        self.model.load_weights([(name, tensor.to(getattr(torch, info.get("dtype", "bfloat16")))) for name, tensor in tensors])


WeightTransferEngineFactory.register_engine("files", lambda: FileEngine)


def held(worker):
    found = {}
    model = worker.model_runner.get_model()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[name] = hashlib.sha256(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    return found


def ways(worker):
    from worker.refit.engine import updates

    found = updates.of(worker.model_runner.get_model())
    return None if found is None else [found.last.copied, found.last.loaded]


def chunks(worker, file, size):
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    model = worker.model_runner.get_model()
    tensors = [(name, tensor.to(torch.bfloat16)) for name, tensor in load_file(file).items()]
    initialize_layerwise_reload(model)
    for first in range(0, len(tensors), size):
        model.load_weights(iter(tensors[first : first + size]))
    finalize_layerwise_reload(model, worker.model_config)


if __name__ == "__main__":
    models = sys.argv[1:]
    files = [model + "/model.safetensors" for model in models]
    llm = LLM(
        models[0], dtype="bfloat16", max_model_len=128, max_num_seqs=8, enforce_eager=True, num_gpu_blocks_override=64,
        weight_transfer_config={"backend": "files"}, distributed_executor_backend="uni",
    )

    def generated():
        rows = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], SAMPLING, use_tqdm=False)
        return [list(row.outputs[0].token_ids) for row in rows]

    def transfer(file, size=10_000, only=None, **more):
        count = len(load_file(file))
        llm.start_weight_update()
        for first in range(0, only or count, size):
            info = {"file": file, "first": first, "last": min(first + size, only or count), **more}
            llm.update_weights(WeightTransferUpdateRequest(update_info=info))
        llm.finish_weight_update()

    def reload(model):
        llm.collective_rpc("reload_weights", kwargs={"weights_path": model})

    steps = {
        "start": lambda: None,
        "whole": lambda: transfer(files[1]),
        "again": lambda: transfer(files[2]),
        "chunks": lambda: transfer(files[1], size=7),
        "one by one": lambda: transfer(files[2], size=1),
        "reload": lambda: reload(models[1]),
        "own loop": lambda: llm.collective_rpc(chunks, args=(files[2], 5)),
        "half": lambda: transfer(files[0], only=len(load_file(files[0])) // 2),
        "other dtype": lambda: transfer(files[1], dtype="float32"),
        "back": lambda: transfer(files[2]),
        "end": lambda: transfer(files[1]),
    }
    found = {}
    for name, step in steps.items():
        step()
        found[name] = {
            "tokens": generated(),
            "held": llm.collective_rpc(held)[0],
            "ways": llm.collective_rpc(ways)[0],
        }
    print("RESULT", json.dumps(found), flush=True)
"""


@pytest.fixture
def outcomes(programs, checkpoint):
    """Runs the script without and with the quirk; oneDNN of an AVX2 CPU has no product of bfloat16, so nothing is packed."""

    def run(kind, **variables):
        models = [checkpoint(kind, seed=seed) for seed in range(3)]
        common = {
            "MODEL_QUIRKS": "rollout",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "OMP_NUM_THREADS": "1",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            **variables,
        }
        switched = {**common, "MODEL_QUIRKS_FORCE": "recorded-updates"}
        return tuple(programs.script(SCRIPT, *models, **each) for each in (common, switched))

    return run


@pytest.mark.parametrize("kind", ["qwen3"])
def test_recorded_updates_leave_the_same_bits_and_tokens_as_vllm_does(kind, outcomes):
    without, switched = outcomes(kind)

    expected, found = without.result(), switched.result()
    assert {name: step["held"] for name, step in found.items()} == {name: step["held"] for name, step in expected.items()}
    assert {name: step["tokens"] for name, step in found.items()} == {name: step["tokens"] for name, step in expected.items()}
