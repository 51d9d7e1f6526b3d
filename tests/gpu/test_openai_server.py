"""The OpenAI-compatible server on vLLM 0.26, which GPUs run here and whose serving lies elsewhere than the CPU build's."""

from __future__ import annotations

import httpx
import pytest
import torch

from worker import VllmAsyncGenerationWorker
from worker.lab.kit import checkpoints
from worker.lab.parity.session import running

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{{ eos_token }}{% endfor %}"


@pytest.fixture(scope="module")
async def server(tmp_path_factory):
    """A worker with its server, and a client that has the key."""
    model = checkpoints.build("qwen3", tmp_path_factory.mktemp("model"))
    worker = VllmAsyncGenerationWorker(
        {
            "model": str(model),
            "purpose": "rollout",
            "engine": {
                "enforce_eager": True,
                "max_model_len": 256,
                "gpu_memory_utilization": 0.2,
                "kv_cache_memory_bytes": 2 << 30,
                "load_format": "auto",
            },
            "sampling": {"max_new_tokens": 16},
            "server": {"enabled": True, "served_model_name": "tiny", "chat_template": _TEMPLATE},
        }
    )
    async with running(worker):
        base = await worker.report_dp_openai_server_base_url()
        headers = {"Authorization": f"Bearer {worker.openai_api_key}"}
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as client:
            yield client


def request(**values):
    return {"model": "tiny", "messages": [{"role": "user", "content": "5 6 7"}], "max_tokens": 8, "logprobs": True, **values}


async def test_a_second_turn_extends_the_ids_of_the_first(server):
    first = (await server.post("/chat/completions", json=request())).json()["choices"][0]["message"]
    messages = [request()["messages"][0], first, {"role": "user", "content": "8"}]

    second = await server.post("/chat/completions", json=request(messages=messages))

    assert second.status_code == 200, second.text
    ids = first["prompt_token_ids"] + first["generation_token_ids"]
    assert second.json()["choices"][0]["message"]["prompt_token_ids"][: len(ids)] == ids
