"""Who may use the server, and what there is to use."""

from __future__ import annotations

import pytest

from worker.server import ServerStartError

from .conftest import KEY, raw


@pytest.mark.parametrize("key", [None, KEY[:-1], "schlüssel"])
async def test_nothing_but_health_answers_without_the_key(served, key):
    headers = {} if key is None else {b"Authorization": b"Bearer " + key.encode()}
    async with raw(served.base_url, None) as http:
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("GET", "/x")):
            reply = await http.request(method, path, headers=headers)

            assert reply.status_code == 401
            assert "Authorization: Bearer KEY" in reply.json()["error"]["message"]
        assert (await http.get("/health")).status_code == 200


async def test_vllms_other_routes_are_never_there(second, monkeypatch):
    """Neither its development routes, also in its development mode, nor those that sample otherwise than the rollout."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    paths = (
        "pause sleep collective_rpc update_weights server_info inference/v1/generate v1/completions v1/responses v1/messages "
        "v1/load_lora_adapter docs openapi.json metrics invocations tokenizer_info"
    )
    async with second() as server, raw(server.base_url) as http:
        for path in paths.split():
            reply = await http.post(f"/{path}", json={})

            assert (reply.status_code, reply.json()["error"]["code"]) == (404, 404), path


async def test_what_vllm_refuses_is_an_error_at_the_start(second):
    with pytest.raises(ServerStartError, match="no_such_parser"):
        async with second(tool_parser="no_such_parser"):
            pass
