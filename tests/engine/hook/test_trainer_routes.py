"""vLLM's routes for trainers, by the same clients: of vLLM's own server under MODEL_QUIRKS=on, and of ours."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace

import httpx
import pytest
from patience import HUNG_S
from peft import LoraConfig, get_peft_model
from programs import free_port
from transformers import AutoConfig, AutoModelForCausalLM

KEY = "the-trainer-s"
#: As TRL sends them.
SAMPLED = {
    "model": "tiny",
    "prompt": [[5, 6, 7], [8, 9, 10, 11]],
    "n": 2,
    "repetition_penalty": 1.0,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "max_tokens": 6,
    "logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
TRL = """
import json, sys
from trl.generation.vllm_client import VLLMClient
client = VLLMClient(sys.argv[1], connection_timeout=10)
found = client.generate([[5, 6, 7], [8, 9, 10]], n=2, max_tokens=6, generation_kwargs={"ignore_eos": True})
client.reset_prefix_cache()
info = client.get_server_info()
with client.weight_update():
    pass
try:
    client.init_communicator(device="cpu")
except NotImplementedError as error:
    problem = str(error)
print("RESULT " + json.dumps({
    "prompts": found["prompt_ids"],
    "lengths": [len(ids) for ids in found["completion_ids"]],
    "logprobs": [len(one) for one in found["logprobs"]],
    "mode": info["model_config"]["logprobs_mode"],
    "ranks": client.get_world_size(),
    "problem": problem,
}))
"""


def theirs(programs, vllm, model):
    options = ["--enforce-eager", "--served-model-name", "tiny", "--enable-lora", "--max-lora-rank", "8"]
    transfer = ["--weight-transfer-config", '{"backend": "model_quirks"}', "--logprobs-mode", "processed_logprobs"]
    modes = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "MODEL_QUIRKS": "on"}
    return programs.server(vllm, "serve", model, *programs.small, *options, *transfer, **modes)


def ours(programs, vllm, model):  # noqa: ARG001 - called as `theirs` is
    return programs.worker(model, KEY, name="tiny", enable_lora=True, max_lora_rank=8)


@pytest.fixture(scope="module", params=[theirs, ours], ids=["vllm-serve", "ours"])
def server(request, programs, vllm, models):
    """A server of the first model; its URL holds the key, which vLLM's ignores."""
    with request.param(programs, vllm, models[0]) as started:
        yield SimpleNamespace(url=f"http://:{KEY}@127.0.0.1:{started.port}", is_ours=request.param is ours)


@pytest.fixture
def call(server):
    """Calls a route; returns status and body."""

    def answer(method, path, body=None, **more):
        reply = httpx.request(method, f"{server.url}{path}", json=body, timeout=HUNG_S, **more)
        is_json = reply.headers.get("content-type") == "application/json"
        return reply.status_code, reply.json() if is_json else reply.text

    return answer


@pytest.fixture
def said(call):
    """What the model says, greedily."""

    def completed(model="tiny"):
        status, body = call("POST", "/v1/completions", {**SAMPLED, "model": model, "n": 1})
        assert status == 200, body
        return [choice["token_ids"] for choice in body["choices"]]

    return completed


#: In this order.
CALLS = [
    ("POST", "/pause?mode=keep", None, {"status": "paused"}),
    ("GET", "/is_paused", None, {"is_paused": True}),
    ("POST", "/resume", None, {"status": "resumed"}),
    ("GET", "/is_paused", None, {"is_paused": False}),
    ("GET", "/get_world_size", None, {"world_size": 1}),
    ("GET", "/get_world_size?include_dp=false", None, {"world_size": 1}),
    ("GET", "/is_sleeping", None, {"is_sleeping": False}),
    ("POST", "/reset_prefix_cache", None, {"success": True}),
    ("POST", "/abort_requests", {}, {"status": "aborted", "aborted": 0}),
    ("POST", "/update_weight_version", {"new_version": "step-1"}, {"success": True, "new_version": "step-1"}),
    ("GET", "/weight_info", None, {"weight_version": "step-1"}),
]


def test_both_servers_answer_alike(call):
    assert [call(method, path, body) for method, path, body, _ in CALLS] == [(200, reply) for *_, reply in CALLS]
    status, info = call("GET", "/server_info?config_format=json")
    assert (status, info["vllm_config"]["weight_transfer_config"]["backend"]) == (200, "model_quirks")
    assert call("POST", "/pause?mode=never")[0] == 400
    assert call("POST", "/abort_requests", [1])[0] == 400
    assert call("POST", "/abort_requests", content=b"{", headers={"content-type": "application/json"})[0] == 400


def test_weights_have_checksums(call):
    status, found = call("POST", "/weight_checker", {"action": "checksum"})
    assert (status, bool(found["checksums"])) == (200, True)
    baseline = {**found["checksums"], "extra": "0"}
    assert call("POST", "/weight_checker", {"action": "compare", "baseline": baseline}) == (
        200,
        {"match": False, "mismatches": ["extra"]},
    )
    assert call("POST", "/weight_checker", {"action": "compare"})[0] == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/init_weight_transfer_engine", {}),
        ("/update_weights", {"weights": {}}),
        ("/update_weights", {"update_info": "all of them"}),
        ("/update_weight_version", {"version": "0.33"}),
        ("/weight_checker", {"action": "guess"}),
    ],
)
def test_a_body_of_another_version_is_a_400_that_names_the_field(call, path, body):
    status, reply = call("POST", path, body)

    assert status == 400
    assert reply["error"]["code"] == 400
    assert reply["error"]["param"]


def test_steps_out_of_order_fail_without_harm_to_the_next_update(call, said):
    before = said()

    assert call("POST", "/update_weights", {"update_info": {"transport": "ipc_zmq"}})[0] >= 400
    assert call("POST", "/finish_weight_update")[0] >= 400
    assert call("POST", "/start_weight_update") == (200, {"message": "Weight update started"})
    assert call("POST", "/start_weight_update")[0] >= 400
    assert call("POST", "/finish_weight_update") == (200, {"message": "Weight update finished"})
    assert said() == before


def test_an_adapter_is_used_while_it_is_loaded(call, said, models, tmp_path):
    config = LoraConfig(r=8, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(models[0]), config).save_pretrained(tmp_path)
    base = said()
    missing = {"lora_name": "policy", "lora_path": str(tmp_path / "none")}
    assert call("POST", "/v1/load_lora_adapter", missing)[0] == 404

    loaded = call("POST", "/v1/load_lora_adapter", {"lora_name": "policy", "lora_path": str(tmp_path)})
    assert loaded == (200, "Success: LoRA adapter 'policy' added successfully.")
    assert [model["id"] for model in call("GET", "/v1/models")[1]["data"]] == ["tiny", "policy"]
    assert said("policy") != base
    assert call("POST", "/v1/unload_lora_adapter", {"lora_name": "policy"})[0] == 200
    assert [model["id"] for model in call("GET", "/v1/models")[1]["data"]] == ["tiny"]
    assert said() == base


def test_trl_s_client_samples_until_it_needs_a_gpu(programs, server):
    ended = programs.script(TRL, server.url)

    assert ended.code == 0, ended.text[-3000:]
    found = ended.result()
    assert found["problem"].startswith("Weight synchronization runs on vLLM's NCCL weight-transfer engine")
    assert (found["prompts"], found["mode"], found["ranks"]) == ([[5, 6, 7], [8, 9, 10]], "processed_logprobs", 1)
    assert found["lengths"] == found["logprobs"] == [6] * 4


@pytest.fixture
def send(programs, server):
    """Sends a model to the server as a trainer without our worker does, whose model may be in two shards."""
    return partial(programs.send, server.url)


@pytest.mark.parametrize(("number", "options", "ranks"), [(1, (), 1), (2, (), 2), (1, ("--transport", "collective"), 1)])
def test_a_trainer_s_weights_are_in_force_after_its_last_step(models, send, said, greedy, number, options, ranks):
    ended = send(models[number], *options, "--port", str(free_port()), ranks=ranks)

    assert ended.code == 0, ended.text[-3000:]
    assert re.search(r"sent \d+ tensors by", ended.text)
    assert said() == greedy(models[number], SAMPLED["prompt"], SAMPLED["max_tokens"])


def test_weights_of_another_model_are_rejected_with_the_reason(call, said, send, models, tmp_path):
    config = AutoConfig.from_pretrained(models[0])
    config.intermediate_size *= 2
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    before = said()

    ended = send(tmp_path)

    assert ended.code != 0
    assert "refit rejected, nothing was loaded" in ended.text, ended.text[-3000:]
    assert "model.layers.0.mlp.gate_proj.weight" in ended.text
    assert call("POST", "/resume")[0] == 200
    assert said() == before
