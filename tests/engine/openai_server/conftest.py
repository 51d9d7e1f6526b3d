"""One engine with its server, clients for it, and ways to wait; shared by all modules of this folder."""

from __future__ import annotations

import json
import shutil
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx
import openai
import pytest
from patience import HUNG_S, settled

from quirks_core.configuration.config import GenerationConfig
from worker.server import OpenAIServer

LONGEST = 256
NEW_TOKENS = 16
TEMPERATURE = 0.7
KEY = "open-sesame"
NAME = "tiny"
HELLO = [{"role": "user", "content": "hello there"}]
CHAT = {"messages": HELLO}
LONG = {**CHAT, "max_tokens": 200}
#: Ends every turn, and strips the reasoning of all assistants but the last, as Qwen-3's does.
TEMPLATE = (
    "{% for m in messages %}{{ '<bos>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<eos>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<bos>assistant\\n' }}{% endif %}"
)
#: What other policies' sampling the checkpoint recommends; none of it may reach a rollout.
FOREIGN = {"temperature": 0.05, "top_k": 2, "top_p": 0.1, "repetition_penalty": 3.0, "max_new_tokens": 3}


@pytest.fixture(scope="package")
def model(checkpoint, tmp_path_factory):
    """A tiny checkpoint whose byte-level tokenizer says most of what the random model makes in other ids."""
    folder = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(checkpoint("qwen3"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    recommended = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**recommended, **FOREIGN}))
    return folder


def values(**server):
    return {
        # What the model's generation_config.json says must not reach a request, whichever is configured.
        "engine": {"load_format": "auto", "max_model_len": LONGEST, "generation_config": "auto"},
        "sampling": {"temperature": TEMPERATURE, "max_new_tokens": NEW_TOKENS},
        "server": {"enabled": True, "api_key": KEY, "served_model_name": NAME, **server},
    }


@pytest.fixture(scope="package")
async def served(model, running):
    """The one engine of this folder, its worker and its server."""
    async with running(model, values()) as worker:
        yield SimpleNamespace(
            worker=worker,
            llm=worker.engine.llm,
            server=worker._server,
            base_url=await worker.report_dp_openai_server_base_url(),
            key=worker.openai_api_key,
        )


@pytest.fixture
def second(served):
    """Starts another server on the same engine, configured otherwise, and stops it whatever happens."""

    @asynccontextmanager
    async def start(*, purpose="rollout", sampling=None, request=None, **section):
        config = served.worker.config
        asked = {**config.model_dump(mode="json"), "purpose": purpose, "server": {**values()["server"], **section}}
        asked["sampling"].update(sampling or {})
        asked["request"].update(request or {})
        server = OpenAIServer(served.worker.engine, GenerationConfig.parse(asked), served.worker._parts.trainer_client)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()

    return start


@pytest.fixture
async def client(served):
    async with openai.AsyncOpenAI(base_url=served.base_url, api_key=served.key, max_retries=0, timeout=HUNG_S) as found:
        yield found


@pytest.fixture
async def http(served):
    async with raw(served.base_url) as found:
        yield found


def raw(base_url, key=KEY):
    """A plain HTTP client for a server."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=base_url.removesuffix("/v1"), headers=headers, timeout=HUNG_S)


@pytest.fixture(scope="package")
def idle(served):
    """Waits until the engine has nothing left to do."""

    async def wait():
        await settled(lambda: served.llm.output_processor.get_num_unfinished_requests() == 0)

    return wait


@pytest.fixture
def aborted(served, monkeypatch):
    """The requests that were aborted in the engine, as they come."""
    found, abort = [], type(served.llm).abort

    async def noting(llm, request_id, *args, **kwargs):
        await abort(llm, request_id, *args, **kwargs)
        found.append(request_id)

    monkeypatch.setattr(type(served.llm), "abort", noting)
    return found
