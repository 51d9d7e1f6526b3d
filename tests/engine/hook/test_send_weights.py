"""The trainer's half of the backend ``model_quirks`` where an engine has several processes."""

from __future__ import annotations

import requests
from patience import HUNG_S

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
        to_one = programs.send(url, models[1], "--engine-ranks", "1")

        assert to_one.code != 0
        assert "sends to 1 of the engine's processes (ranks), and it has 2" in to_one.text
        assert requests.post(f"{url}/resume", timeout=HUNG_S).ok
        assert tokens(server) == before

        ended = programs.send(url, models[1], ranks=2)

        assert ended.code == 0, ended.text[-3000:]
        assert (before != expected, tokens(server)) == (True, expected)
