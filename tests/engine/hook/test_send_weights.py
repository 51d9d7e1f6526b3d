"""The backend ``model_quirks`` of a plain ``vllm serve``, and its trainer's half behind vLLM's interface."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest
from patience import HUNG_S
from transformers import AutoConfig, AutoModelForCausalLM

from worker.refit import RefitTrainerInitInfo
from worker.refit.transport.channel import free_port

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "send_weights.py"
PROMPT = "once upon a time"

#: Sends a model to a server, as if that had one process.
TO_ONE = """
import sys
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from transformers import AutoModelForCausalLM
from worker.refit import RefitTrainer, RefitTrainerInitInfo, Source
source = Source(AutoModelForCausalLM.from_pretrained(sys.argv[1]), "state_dict")
client = HTTPVLLMWeightSyncClient(sys.argv[2])
RefitTrainer.trainer_init(RefitTrainerInitInfo(rank=0), client=client, source=source).send_weights()
"""

KEY = "the-trainer-s"


def text(server, key="none"):
    return server.completion(key=key, prompt=PROMPT, max_tokens=12, temperature=0).text


@pytest.fixture(scope="module")
def serving(vllm, programs):
    """Starts servers of a model with our backend and without a plan."""
    options = [*programs.small, "--enforce-eager", "--weight-transfer-config", '{"backend": "model_quirks"}']

    def start(model):
        return programs.server(vllm, "serve", model, *options, port=free_port("127.0.0.1"), VLLM_SERVER_DEV_MODE="1")

    return start


@pytest.fixture(scope="module")
def expected(models, serving):
    """What a server makes that loaded the second checkpoint itself."""
    with serving(models[1]) as server:
        return text(server)


@pytest.fixture(scope="module")
def server(models, expected, serving):  # noqa: ARG001  # one server at a time
    """A server of the first checkpoint."""
    with serving(models[0]) as running:
        yield running


@pytest.fixture
def send(programs, server):
    return partial(send_weights, programs, server.url)


def send_weights(programs, url, model, *options, ranks=1):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    return programs.run(*(launcher if ranks > 1 else [sys.executable]), EXAMPLE, model, url, *options, OMP_NUM_THREADS="1")


@pytest.mark.parametrize(("options", "ranks"), [((), 1), ((), 2), (("--transport", "collective"), 1)])
def test_a_trainer_without_our_worker_sends_its_weights_to_vllm_serve(models, server, send, expected, options, ranks):
    for model in models[:2]:
        ended = send(model, *options, "--port", str(free_port("127.0.0.1")), ranks=ranks)

        assert ended.code == 0, ended.text[-3000:]
        assert re.search(r"sent \d+ tensors by", ended.text)
    assert text(server) == expected


def test_both_ranks_of_our_engine_take_what_two_ranks_of_a_trainer_send_to_its_routes(programs, models, expected):
    port, env = free_port("127.0.0.1"), {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with programs.worker(models[0], port, KEY, env=env, tensor_parallel_size=2) as server:
        url = f"http://:{KEY}@127.0.0.1:{port}"
        before = text(server, KEY)
        to_one = programs.run(sys.executable, "-c", TO_ONE, models[1], url, OMP_NUM_THREADS="1")

        assert to_one.code != 0
        assert "sends to 1 of the engine's processes (engine_ranks), and it has 2" in to_one.text
        assert text(server, KEY) == before

        ended = send_weights(programs, url, models[1], ranks=2)

        assert ended.code == 0, ended.text[-3000:]
        assert (before != expected, text(server, KEY)) == (True, expected)


@pytest.fixture
def wider(models, tmp_path):
    """The model with another width of its MLP."""
    config = AutoConfig.from_pretrained(models[0])
    config.intermediate_size *= 2
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return tmp_path


def test_weights_of_another_model_are_rejected_with_the_engine_s_reason(server, send, wider):
    before = text(server)

    ended = send(wider)

    assert ended.code != 0
    assert "refit rejected, nothing was loaded" in ended.text, ended.text[-3000:]
    assert "model.layers.0.mlp.gate_proj.weight" in ended.text
    httpx.post(f"{server.url}/resume", timeout=HUNG_S).raise_for_status()
    assert text(server) == before


def test_a_trainer_without_a_server_gets_one_error_that_names_the_call(programs, models):
    port = free_port("127.0.0.1")
    ended = programs.run(sys.executable, "-c", TO_ONE, models[0], f"http://127.0.0.1:{port}", OMP_NUM_THREADS="1")

    assert ended.code != 0
    assert ended.text.rstrip().splitlines()[-1].startswith("requests.exceptions.ConnectionError"), ended.text[-3000:]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"transport": "file"}, "transport is 'file'; there are ipc_zmq and collective"),
        ({"transport": "collective"}, "a collective needs port"),
        ({"rank": 2}, "rank is 2 of trainer_ranks 1"),
        ({"engine_ranks": 0}, "engine_ranks is 0"),
    ],
)
def test_an_init_info_that_cannot_work_is_refused(values, reason):
    with pytest.raises(ValueError, match=reason):
        RefitTrainerInitInfo(**{"rank": 0, **values})
