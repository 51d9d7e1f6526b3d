"""The worker's OpenAI-compatible server beside vLLM's own, on one engine.

    python benchmarks/server.py            a table; about a minute on a CPU
    python benchmarks/server.py --json     the same as JSON

The model is tiny, so nearly all of the time is the servers'. Both run in one event loop, and a client in a process of its own
asks them in turns.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import measure

TOKENS, MAX_MODEL_LEN = 16, 1024
NAME, KEY = "tiny", "open-sesame"
OURS, THEIRS = "the worker's server", "vLLM's server"
CHAT = {"model": NAME, "messages": [{"role": "user", "content": "hello there"}], "ignore_eos": True}
#: What each server is asked for: our replies carry ids and logprobs unless told otherwise, vLLM's if told to.
VARIANTS = {
    f"{THEIRS}, text": (THEIRS, {}),
    f"{OURS}, text": (OURS, {"return_token_ids": False}),
    f"{THEIRS}, ids and logprobs": (THEIRS, {"return_token_ids": True, "logprobs": True}),
    f"{OURS}, ids and logprobs": (OURS, {}),
}


class Client:
    """A connection to one server that stays open."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=600)

    def post(self, path: str, body: bytes) -> http.client.HTTPResponse:
        """Sends a request; the reply has to be read."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        self._connection.request("POST", path, body, headers)
        return self._connection.getresponse()

    def whole(self, path: str, body: bytes) -> float:
        """Milliseconds until the whole reply is there."""
        start = time.perf_counter()
        reply = self.post(path, body)
        text = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {text[:300]!r}")
        return (time.perf_counter() - start) * 1e3

    def first_event(self, body: bytes) -> float:
        """Milliseconds until the first event of a stream; the others are read too."""
        start = time.perf_counter()
        reply = self.post("/v1/chat/completions", body)
        reply.readline()
        first = (time.perf_counter() - start) * 1e3
        reply.read()
        return first


def compared(addresses: dict[str, str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds by kind of request and by server, asked in turns."""
    clients = {name: Client(address) for name, address in addresses.items()}

    def calls(more: dict[str, Any], call: Callable[[Client, bytes], float]) -> dict[str, Callable[[], float]]:
        def one(server: str, variant: dict[str, Any]) -> Callable[[], float]:
            body = json.dumps({**CHAT, "max_tokens": TOKENS, **more, **variant}).encode()
            return lambda: call(clients[server], body)

        return {name: one(server, variant) for name, (server, variant) in VARIANTS.items()}

    def whole(client: Client, body: bytes) -> float:
        return client.whole("/v1/chat/completions", body)

    tokenize = json.dumps({"prompt": "hello there"}).encode()
    return {
        "first token of a stream": measure.in_turns(calls({"stream": True}, Client.first_event), rounds),
        f"stream of {TOKENS} tokens": measure.in_turns(calls({"stream": True}, whole), rounds),
        f"{TOKENS} tokens at once": measure.in_turns(calls({}, whole), rounds),
        "1 token": measure.in_turns(calls({"max_tokens": 1}, whole), rounds),
        "tokenize": measure.in_turns(
            {name: lambda name=name: clients[name].whole("/tokenize", tokenize) for name in (THEIRS, OURS)},  # type: ignore[misc]
            rounds,
        ),
    }


@asynccontextmanager
async def vllms_server(llm: Any, model: str) -> AsyncIterator[str]:
    """Serves vLLM's own routes as ours are served: by uvicorn in the engine's event loop."""
    import uvicorn
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = ["--model", model, "--served-model-name", NAME, "--api-key", KEY, "--chat-template", _TEMPLATE]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    tasks = await llm.get_supported_tasks()
    app = build_app(args, tasks, llm.model_config)
    await init_app_state(llm, app.state, args, tasks)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, access_log=False))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


async def asked(*words: str) -> Any:
    """Runs this file as a client and returns what it prints."""
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--client", *words, stdout=-1)
    text, _ = await process.communicate()
    return json.loads(text)


async def everything(folder: Path, rounds: int) -> list[measure.Row]:
    """All rows."""
    from worker.lab.kit.lab import Lab

    lab = Lab(folder)
    model = lab.checkpoint("qwen3")
    values = {
        "engine": {"max_model_len": MAX_MODEL_LEN, "load_format": "auto"},
        "sampling": {"max_new_tokens": TOKENS},
        "server": {"enabled": True, "api_key": KEY, "served_model_name": NAME, "chat_template": _TEMPLATE},
    }
    found: list[measure.Row] = []
    async with lab.worker(model, values) as worker:
        ours = str(await worker.report_dp_openai_server_base_url()).removeprefix("http://").removesuffix("/v1")
        async with vllms_server(worker.engine.llm, str(model)) as theirs:
            times = await asked(json.dumps({OURS: ours, THEIRS: theirs}), str(rounds))
            for kind, by_server in times.items():
                for start in range(0, len(by_server), 2):
                    pair = dict(list(by_server.items())[start : start + 2])
                    found += measure.rows(
                        {f"{kind}: {name}": ms for name, ms in pair.items()}, to=f"{kind}: {next(iter(pair))}"
                    )
    return found


_TEMPLATE = (
    "{% for m in messages %}{{ '<bos>' + m['role'] + '\\n' + m['content'] + '<eos>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<bos>assistant\\n' }}{% endif %}"
)


def measured(rounds: int) -> Iterable[measure.Row]:
    """All rows."""
    from worker.lab.kit.lab import set_environment

    set_environment()
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(everything(Path(folder), rounds))


def client(words: list[str]) -> None:
    """Runs in a process of its own, and prints JSON."""
    print(json.dumps(compared(json.loads(words[0]), int(words[1]))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2:])
    else:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        sys.exit(measure.main(__doc__, measured, rounds=60))
