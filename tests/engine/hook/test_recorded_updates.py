"""Updates by vLLM's own ways, with recorded copies and without, in programs that know nothing of model-quirks."""

from __future__ import annotations

import pytest

SCRIPT = """
import hashlib, json, os, sys
import torch
from safetensors.torch import load_file
from torch.multiprocessing.reductions import StorageWeakRef
from vllm import LLM, SamplingParams
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

PROMPTS = [list(range(5, 37)), list(range(100, 120))]
SAMPLING = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SENT = []


def sent(tensor):
    SENT.append(StorageWeakRef(tensor.untyped_storage()))
    return tensor


class FileEngine(IPCWeightTransferEngine):
    \"\"\"VLLM's own engine, but tensors come from a file: the CPU platform has no IPC.\"\"\"

    def parse_update_info(self, info):
        return info

    def receive_weights(self, info):
        tensors = list(load_file(info["file"]).items())[info["first"] : info["last"]]
        self.model.load_weights([(name, sent(tensor)) for name, tensor in tensors])


WeightTransferEngineFactory.register_engine("files", FileEngine)


def keep_weights():
    \"\"\"Has the CPU platform keep linear weights as they are loaded, as a GPU does.\"\"\"
    import vllm.model_executor.layers.utils

    def dispatch(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    for module in list(sys.modules.values()):
        if "dispatch_cpu_unquantized_gemm" in vars(module):
            module.dispatch_cpu_unquantized_gemm = dispatch


def held(worker):
    from worker.refit.engine.verify import packed_answers

    found = {}
    model = worker.model_runner.get_model()
    for name, tensor in (*model.named_parameters(), *model.named_buffers(), *packed_answers(model)):
        found[name] = hashlib.sha256(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    return found


def ways(worker):
    from worker.refit.engine import updates

    found = updates.of(worker.model_runner.get_model())
    return None if found is None else [found.copied, found.loaded]


def chunks(worker, file, size):
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    model = worker.model_runner.get_model()
    tensors = [(name, sent(tensor)) for name, tensor in load_file(file).items()]
    initialize_layerwise_reload(model)
    for first in range(0, len(tensors), size):
        model.load_weights(iter(tensors[first : first + size]))
    finalize_layerwise_reload(model, worker.model_config)


if __name__ == "__main__":
    if os.environ.get("KEEP_WEIGHTS"):
        keep_weights()
    models = sys.argv[1:]
    files = [model + "/model.safetensors" for model in models]
    llm = LLM(
        models[0], dtype="bfloat16", max_model_len=128, max_num_seqs=8, enforce_eager=True, num_gpu_blocks_override=64,
        weight_transfer_config={"backend": "files"}, distributed_executor_backend="uni",
    )

    def generated():
        rows = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], SAMPLING, use_tqdm=False)
        return [list(row.outputs[0].token_ids) for row in rows]

    def transfer(file, size=10_000):
        llm.start_weight_update()
        for first in range(0, len(load_file(file)), size):
            info = {"file": file, "first": first, "last": first + size}
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
    }
    found = {}
    for name, step in steps.items():
        step()
        found[name] = {
            "tokens": generated(),
            "held": llm.collective_rpc(held)[0],
            "ways": llm.collective_rpc(ways)[0],
            "sent": len(SENT),
            "alive": sum(not one.expired() for one in SENT),
        }
        SENT.clear()
    print("RESULT", json.dumps(found), flush=True)
"""


@pytest.fixture
def outcomes(programs, checkpoint, worker_in_core):
    """Runs the script without and with the quirk; returns what each step left, and our lines of the second run."""

    def run(kind, **variables):
        models = [checkpoint(kind, seed=seed) for seed in range(3)]
        common = {
            "MODEL_QUIRKS": "rollout",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            **worker_in_core,
            **variables,
        }
        plain = programs.script(SCRIPT, *models, **common)
        switched = programs.script(SCRIPT, *models, **common, MODEL_QUIRKS_FORCE="recorded-updates")
        return plain.result(), switched.result(), [line for line in switched.said if line.startswith("recorded-updates: ")]

    return run


def assert_same(expected, found):
    """Compares the bits of all tensors, and the tokens, after each step; memory that a trainer sent is free then."""
    for name, step in expected.items():
        differing = [tensor for tensor, digest in step["held"].items() if found[name]["held"][tensor] != digest]
        assert (name, differing, found[name]["tokens"]) == (name, [], step["tokens"])
        assert (name, step["alive"], found[name]["alive"]) == (name, 0, 0)
        assert bool(found[name]["sent"]) == (name not in ("start", "reload"))  # a reload reads its own files
    assert expected["whole"]["tokens"] != expected["again"]["tokens"]
    assert all(step["ways"] is None for step in expected.values())


#: The steps of an update that is as recorded.
AS_RECORDED = ("again", "chunks", "one by one", "reload", "own loop")


def test_copied_updates_leave_the_engine_as_vllms_own_would(outcomes):
    """Of a tied head, too."""
    expected, found, said = outcomes("llama_tied", KEEP_WEIGHTS="1")

    assert_same(expected, found)
    sent = sum(found["whole"]["ways"])
    assert found["whole"]["ways"] == [0, sent]
    assert [found[name]["ways"] for name in AS_RECORDED] == [[sent, 0]] * len(AS_RECORDED)
    (recorded,) = said
    assert f"of {sent} tensors {sent} are copied from the next update on, 0 are loaded by vLLM (0 layers)" in recorded


def test_layers_that_pack_their_weights_go_through_the_reload(outcomes):
    """Linear layers and experts do on this platform; others beside them are copied."""
    expected, found, said = outcomes("qwen3_moe")

    assert_same(expected, found)
    for name in AS_RECORDED:
        copied, loaded = found[name]["ways"]
        assert copied > 0
        assert loaded > 0
        assert f"{copied} are copied from the next update on, {loaded} are loaded by vLLM" in "\n".join(said)
