"""Faults of weight updates by programs that know nothing of model-quirks, each named within two updates."""

from __future__ import annotations

import functools

import pytest

_BEFORE = """
import json, os, sys
from safetensors.torch import load_file
from vllm import LLM, SamplingParams

SAMPLING = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)

def generate(llm, **options):
    llm.generate([{"prompt_token_ids": list(range(5, 20))}], SAMPLING, use_tqdm=False, **options)

def account():
    with open(os.environ["MODEL_QUIRKS_RECEIPT"]) as file:
        (found,) = json.load(file)["accounts"]
    return found

def start(**options):
    return LLM(sys.argv[1], dtype="float32", max_model_len=128, max_num_seqs=8, enforce_eager=True, num_gpu_blocks_override=64,
        **options)
"""

ONE = (
    _BEFORE
    + """
def load(worker, file, beginning):
    weights = [(name, tensor) for name, tensor in load_file(file).items() if name.startswith(beginning)]
    worker.model_runner.model.load_weights(weights)

if __name__ == "__main__":
    models = sys.argv[1:]
    llm = start()
    for model in (models[1], models[2], models[1]):  # a healthy run: the whole model, one tensor after the other
        for name, tensor in load_file(model + "/model.safetensors").items():
            llm.apply_model(lambda running, item=(name, tensor): running.load_weights([item]))
        generate(llm)
    generate(llm)
    found = {"healthy": account()}
    for model in (models[2], models[1]):
        llm.collective_rpc(load, args=(model + "/model.safetensors", "model.layers.0."))
        generate(llm)
    found["chunk"] = account()
    try:
        generate(llm)
    except Exception as error:
        found["refused"] = str(error)
    llm.collective_rpc("reload_weights", kwargs={"weights_path": models[2]})
    generate(llm)
    found["mended"] = account()
    for _ in range(3):  # a learning rate of 0
        llm.collective_rpc("reload_weights", kwargs={"weights_path": models[2]})
        generate(llm)
    llm.collective_rpc("reload_weights", kwargs={"weights_path": models[1]})
    generate(llm)
    found["end"] = account()
    print("RESULT", json.dumps(found), flush=True)
"""
)


def described(account):
    """The verdicts of an account, as kind and gravity."""
    return [(verdict["kind"], verdict["is_grave"]) for verdict in account["verdicts"]]


@pytest.fixture
def run(programs, receipts):
    """Runs a script that reads the accounts of its engine."""
    common = {"MODEL_QUIRKS": "rollout", "MODEL_QUIRKS_RECEIPT": str(receipts.file), "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    return functools.partial(programs.script, **common)


def test_stop_refuses_requests_and_names_the_fault(run, models, worker_in_core):
    ended = run(ONE, *models, MODEL_QUIRKS_LEDGER="stop", **worker_in_core)

    result = ended.result()
    healthy = result["healthy"]
    assert (healthy["updates"], healthy["verdicts"]) == (3, [])
    assert [(line["way"], line["changed"] == line["held"]) for line in healthy["lines"][1:]] == [("raw", True)] * 3
    assert described(result["chunk"]) == [("partial", True)]
    assert "changed 1 of 2 layers, and never model.layers.1: no update brought them" in result["chunk"]["refusal"]
    assert result["mended"]["refusal"] == ""
    assert "MODEL_QUIRKS_LEDGER=stop: only some layers change" in result["refused"]
    assert described(result["end"])[1:] == [("unchanged", False)]
    assert result["end"]["problems"] == []
    assert sum(line.startswith("ledger: only some layers change") for line in ended.said) == 1


DIRECT = (
    _BEFORE
    + """
from quirks_core.hook import worker_calls

if __name__ == "__main__":
    llm = start(distributed_executor_backend="uni")
    found = []
    for model in sys.argv[2:]:
        llm.llm_engine.model_executor.driver_worker.reload_weights(weights_path=model)
        (answer,) = llm.collective_rpc(worker_calls.METHOD, args=("worker.refit.engine.ledger:account", [], {}))
        found.append(answer["value"]["updates"])
    print("RESULT", json.dumps(found), flush=True)
"""
)


def test_updates_without_a_call_of_the_core_are_in_the_account(run, models):
    """A trainer in the worker's process calls its methods itself."""
    assert run(DIRECT, *models, VLLM_ENABLE_V1_MULTIPROCESSING="0").result() == [1, 2]


MERGES = (
    _BEFORE
    + """
import torch

if __name__ == "__main__":
    llm = start()
    kept = {name: tensor.bfloat16() for name, tensor in load_file(sys.argv[1] + "/model.safetensors").items()}
    torch.manual_seed(0)
    adapter = {name: torch.randn_like(tensor) * 0.01 for name, tensor in kept.items() if "q_proj" in name}

    def send(weights, label):
        llm.apply_model(lambda running: running.load_weights(list(weights.items())))
        llm.llm_engine.set_weight_version(label)
        generate(llm)
        return account()

    base = dict(kept)
    send(base, "base")
    found = {}
    for way in ("restored", "taken out"):
        base |= {name: base[name] + adapter[name] for name in adapter}
        send(base, f"merged {way}")
        base |= {name: kept[name] if way == "restored" else base[name] - adapter[name] for name in adapter}
        found[way] = send(base, "base")

    tokenizer, sampling = llm.get_tokenizer(), SamplingParams(seed=1, max_tokens=24, ignore_eos=True)
    question = tokenizer.encode("tell me what a small model knows")
    (answer,) = llm.generate([{"prompt_token_ids": question}], sampling, use_tqdm=False)[0].outputs
    for way, ids in (("ids", list(answer.token_ids)), ("text", tokenizer.encode(answer.text, add_special_tokens=False))):
        llm.generate([{"prompt_token_ids": [*question, *ids, *question]}], sampling, use_tqdm=False)
        found[way] = account()
    print("RESULT", json.dumps(found), flush=True)
"""
)


def test_a_drifting_base_and_text_encoded_again_are_named(run, checkpoint, worker_in_core):
    found = run(MERGES, checkpoint("qwen3"), **worker_in_core).result()

    before, _, after = [line["digest"] for line in found["restored"]["lines"][-3:]]
    assert (before == after, found["restored"]["verdicts"]) == (True, [])
    assert found["taken out"]["lines"][-1]["digest"] != after
    assert described(found["taken out"]) == described(found["ids"]) == [("label", False)]
    assert "label 'base' of an earlier one, and 2 of 25 tensors are others" in found["taken out"]["problems"][0]["text"]
    assert described(found["text"])[1:] == [("encoded-again", False)]
    assert "1 of 2 prompts that continue an answer" in found["text"]["problems"][-1]["text"]


TWO_RANKS = (
    _BEFORE
    + """
def reload(worker, models):
    worker.reload_weights(weights_path=models[worker.rank])

if __name__ == "__main__":
    first, second, third = sys.argv[1:]
    llm = start(tensor_parallel_size=2)
    found = {}
    updates = {"both": (second, second), "again": (third, third), "skipped": (first, third), "stale": (second, third)}
    for name, models in updates.items():
        llm.collective_rpc(reload, args=(models,))
        generate(llm)
        generate(llm)
        found[name] = account()
    print("RESULT", json.dumps(found), flush=True)
"""
)


def test_a_rank_that_is_left_out_is_named_at_once(run, models):
    result = run(TWO_RANKS, *models, VLLM_CPU_OMP_THREADS_BIND="0|1").result()

    assert result["both"]["verdicts"] == result["again"]["verdicts"] == []
    assert described(result["skipped"]) == [("ranks", True)]
    text = result["skipped"]["verdicts"][0]["text"]
    assert "0 of 19 on rank 1" in text
    assert "9 tensors that all ranks held alike are different on them now" in text
    assert "embed_tokens" not in text  # each rank has a part of its own
    assert [problem["kind"] for problem in result["stale"]["problems"]] == ["ranks"]
