"""Who may use the server, and what there is to use."""

from __future__ import annotations

import pytest

from worker.server import ServerStartError

from .conftest import KEY, LONGEST, NAME


async def test_nothing_but_health_answers_without_the_key(served, raw):
    for key in (None, KEY[:-1], "schlüssel"):
        async with raw(served.base_url, None) as http:
            headers = {} if key is None else {b"Authorization": b"Bearer " + key.encode()}
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("GET", "/x")):
                reply = await http.request(method, path, headers=headers)

                assert reply.status_code == 401
                assert "Authorization: Bearer KEY" in reply.json()["error"]["message"]
            assert (await http.get("/health")).status_code == 200


async def test_the_model_is_listed_under_its_name(client):
    models = await client.models.list()

    assert [model.id for model in models.data] == [NAME]
    assert models.data[0].max_model_len == LONGEST


async def test_vllms_development_routes_are_never_there(second, monkeypatch, raw):
    """Vllms development routes are not there even in its development mode."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    paths = (
        "pause resume sleep wake_up is_sleeping collective_rpc reset_prefix_cache init_weight_transfer_engine update_weights "
        "start_weight_update finish_weight_update server_info abort_requests get_world_size weight_info inference/v1/generate "
        "v1/completions v1/load_lora_adapter docs redoc openapi.json metrics invocations ping version load tokenizer_info"
    )
    async with second() as server, raw(server.base_url) as http:
        for path in paths.split():
            for method in ("GET", "POST"):
                reply = await http.request(method, f"/{path}", json={})

                assert reply.status_code == 404, path
                assert reply.json()["error"]["code"] == 404


async def test_an_error_of_any_route_is_an_error_body(http, monkeypatch):
    async def broken(*_):
        raise RuntimeError("the list is lost")

    monkeypatch.setattr("worker.server.serving.Serving.models", broken)
    monkeypatch.setattr("worker.server.serving.Serving.errored", property(broken))

    models, health = await http.get("/v1/models"), await http.get("/health")

    assert (models.status_code, models.json()["error"]["code"]) == (500, 500)
    assert (health.status_code, health.content) == (503, b"")


async def test_a_server_without_auth_warns_that_every_user_can_use_it(second, caplog, raw):
    async with second(auth=False, api_key=None) as server, raw(server.base_url, key=None) as http:
        assert (await http.get("/v1/models")).status_code == 200
        assert server.api_key is None
        assert "every user of this machine can use the engine" in server.warnings[0]
        assert server.warnings[0] in caplog.text


async def test_what_vllm_refuses_is_an_error_at_the_start(second):
    """A configuration that vLLM refuses is an error at the start."""
    with pytest.raises(ServerStartError, match="no_such_parser"):
        async with second(tool_parser="no_such_parser"):
            pass
