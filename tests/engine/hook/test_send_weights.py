"""The trainer's half of the backend ``model_quirks`` where sizes do not fit, or nobody answers."""

from __future__ import annotations

import sys

import pytest
from programs import free_port

from worker.refit import RefitTrainerInitInfo

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


PROMPT = [5, 6, 7]


def tokens(server):
    """What the model says, greedily."""
    more = {"return_token_ids": True}
    return server.completion(key=KEY, prompt=PROMPT, max_tokens=6, temperature=0, extra_body=more).token_ids


def test_two_ranks_take_what_two_ranks_of_a_trainer_send(programs, models, greedy):
    (expected,) = greedy(models[1], [PROMPT], 6)
    env = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with programs.worker(models[0], KEY, env=env, tensor_parallel_size=2) as server:
        url = f"http://:{KEY}@127.0.0.1:{server.port}"
        before = tokens(server)
        to_one = programs.run(sys.executable, "-c", TO_ONE, models[1], url, OMP_NUM_THREADS="1")

        assert to_one.code != 0
        assert "sends to 1 of the engine's processes (engine_ranks), and it has 2" in to_one.text
        assert tokens(server) == before

        ended = programs.send(url, models[1], ranks=2)

        assert ended.code == 0, ended.text[-3000:]
        assert (before != expected, tokens(server)) == (True, expected)


def test_a_trainer_without_a_server_gets_one_error(programs, models):
    nowhere = f"http://127.0.0.1:{free_port()}"
    ended = programs.run(sys.executable, "-c", TO_ONE, models[0], nowhere, OMP_NUM_THREADS="1")

    assert ended.code != 0
    assert ended.text.rstrip().splitlines()[-1].startswith("requests.exceptions.ConnectionError"), ended.text[-3000:]


def test_an_init_info_that_cannot_work_is_refused_in_one_error():
    reasons = "transport is 'file'; there are ipc_zmq and collective; rank is 2 of trainer_ranks 1; engine_ranks is 0"
    with pytest.raises(ValueError, match=reasons):
        RefitTrainerInitInfo(transport="file", rank=2, engine_ranks=0)
    with pytest.raises(ValueError, match="a collective needs port"):
        RefitTrainerInitInfo(transport="collective", rank=0)
