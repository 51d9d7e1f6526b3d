"""NeMo RL's own workers with a plan: their source, as it was read at this commit, makes the engine and the batches."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
#: Their package refuses the transformers that vLLM 0.32 needs; the text is all that it looks at.
BEGIN = """
import transformers
transformers.__version__ = "5.11.0"
import asyncio, inspect, json, sys, torch
from worker import nemo_rl as ours
from nemo_rl.models.generation.vllm import vllm_worker, vllm_worker_async
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
"""
INTERFACE = """
def public(kind):
    return {name: list(inspect.signature(one).parameters) for name, one in inspect.getmembers(kind, inspect.isfunction)}

pairs = {
    ours.VllmGenerationWorkerPlanned: vllm_worker.VllmGenerationWorkerImpl,
    ours.VllmAsyncGenerationWorkerPlanned: vllm_worker_async.VllmAsyncGenerationWorkerImpl,
}
print("RESULT " + json.dumps({
    "same": [public(mine) == public(theirs) for mine, theirs in pairs.items()],
    "answered": [hasattr(ours.VllmAsyncGenerationWorkerPlanned, name) for name in (
        "get_reserved_url", "init_nccl_reshard_comm_group_async", "prepare_nccl_reshard_refit_info_async",
        "nccl_reshard_refit_async", "configure_worker")],
    "actors": [type(one).__name__ for one in (ours.VllmGenerationWorker, ours.VllmAsyncGenerationWorker)],
}))
"""
#: Their constructor is left out: it rewrites files of the installed vLLM, and asks for a GPU. So is their extension of vLLM's
#: worker: at this commit it has a method that the worker of vLLM 0.32 has as well, which vLLM refuses.
ENGINE = """
async def main():
    import vllm
    worker = object.__new__(ours.VllmAsyncGenerationWorkerPlanned)
    worker.cfg = {
        "vllm_cfg": {"async_engine": True, "max_model_len": 128}, "_pad_token_id": 0, "max_new_tokens": 8,
        "temperature": 1.0, "top_p": 1.0, "top_k": None, "stop_token_ids": None,
    }
    worker.SamplingParams, worker.routed_experts_dtype = vllm.SamplingParams, torch.int16
    worker._create_engine(dict(
        model=sys.argv[1], load_format="auto", max_model_len=128, enforce_eager=True,
        dtype="float32", num_gpu_blocks_override=64, trust_remote_code=True,
    ))
    data = BatchedDataDict({"input_ids": torch.tensor([[5, 6, 7, 0]]), "input_lengths": torch.tensor([3])})
    found = [item async for item in worker.generate_async(data, greedy=True)]
    (index, output), = found
    worker.llm.shutdown()
    print("RESULT " + json.dumps({
        "index": index, "kind": type(output).__name__,
        "shapes": {name: list(one.shape) for name, one in output.items()},
    }))

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Their package at the commit; needs a folder of git directories, ``owner+name/repo``, and what the package imports."""
    folder = os.environ.get("MODEL_QUIRKS_TESTS_TRAINERS")
    if not folder:
        pytest.skip("MODEL_QUIRKS_TESTS_TRAINERS names no folder with the trainers' repositories")
    git = Path(folder, "NVIDIA-NeMo+RL", "repo")
    program = shutil.which("git") or pytest.skip("there is no git")
    command = [program, f"--git-dir={git}", "archive", COMMIT, "nemo_rl"]
    found = subprocess.run(command, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"{folder} has no NVIDIA-NeMo/RL at {COMMIT[:8]}")
    if importlib.util.find_spec("pynvml") is None:
        pytest.skip("NeMo RL needs nvidia-ml-py, which is not installed")
    root = tmp_path_factory.mktemp("nemo_rl")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(root, filter="data")
    return os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_the_workers_have_every_signature_of_nemo_rl_s(programs, source):
    ended = programs.script(BEGIN + INTERFACE, PYTHONPATH=source)

    assert ended.code == 0, ended.text[-3000:]
    assert ended.result() == {
        "same": [True, True],
        "answered": [True] * 5,
        "actors": ["ActorClass(VllmGenerationWorkerPlanned)", "ActorClass(VllmAsyncGenerationWorkerPlanned)"],
    }


def test_a_planned_engine_answers_with_nemo_rl_s_batch(programs, source, checkpoint):

    ended = programs.script(BEGIN + ENGINE, checkpoint("qwen3"), PYTHONPATH=source)

    assert ended.code == 0, ended.text[-3000:]
    lines = ended.said
    assert any(line.startswith("plan ") and "purpose rollout" in line for line in lines), ended.text[-3000:]
    assert any(line.startswith("receipt: plan ") for line in lines)
    assert ended.result() == {
        "index": 0,
        "kind": "BatchedDataDict",
        "shapes": {
            "output_ids": [1, 11],
            "logprobs": [1, 11],
            "generation_lengths": [1],
            "unpadded_sequence_lengths": [1],
            "truncated": [1],
        },
    }


def test_a_configuration_that_cannot_work_starts_no_engine(programs, source, checkpoint):

    ended = programs.script(BEGIN + ENGINE, checkpoint("qwen3"), PYTHONPATH=source, VLLM_DP_SIZE="2")

    assert ended.code != 0
    assert "dp-environment" in ended.text, ended.text[-3000:]
    assert "receipt: plan " not in ended.text
