"""How the server listens and who may use it, before any engine is there."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
from patience import HUNG_S
from programs import free_port

from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.configuration.config import GenerationConfig
from worker import VllmAsyncGenerationWorker, WorkerGroup
from worker.server import Listener, OpenAIServer, ServerStartError

KEY = "sesame-1234"
EVERYWHERE = "0.0.0.0"  # noqa: S104


def config_of(*, cluster=None, **section):
    return GenerationConfig.parse({"model": "m", "server": section, "cluster": cluster or {}})


def server_of(**section):
    return OpenAIServer(SimpleNamespace(), config_of(**section), SimpleNamespace())


@pytest.fixture
def reserved():
    """Reserves addresses, and gives them back whatever happens."""
    with ExitStack() as listeners:
        yield lambda **section: listeners.enter_context(closing(Listener(config_of(**section))))


def port_of(listener):
    return listener.socket.getsockname()[1]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"rl_api_key": KEY}, "there is an rl_api_key but rl_routes is false"),
        ({"rl_routes": True, "rl_api_key": KEY, "api_key": KEY}, "who may generate could replace the weights"),
        *(({"api_key": key}, "server.api_key: must be a text of visible ASCII") for key in ("1 2", "schlüssel-1234", 12341234)),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_unshown(section, words):
    with pytest.raises(UsageError) as caught:
        config_of(**section)

    assert words in str(caught.value)
    assert "1234" not in str(caught.value)


def test_a_key_shows_nowhere():
    server = server_of(api_key=KEY)
    config = server._config

    assert server.api_key.get_secret_value() == KEY
    assert KEY not in f"{config!r} {config} {config.model_dump()} {config.model_dump_json()} {vars(server)} {server!r}"
    assert not [value for slot, value in config.slots().items() if KEY in str(value)]


def test_the_key_is_configured_or_the_environment_s_or_made(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)

    def key_of(**section):
        return server_of(**section).api_key.get_secret_value()

    made = {key_of(), key_of()}
    monkeypatch.setenv("VLLM_API_KEY", "from-outside")

    assert len(made) == 2
    assert all(len(key) >= 32 for key in made)
    assert key_of() == "from-outside"
    assert key_of(api_key=KEY) == KEY


def test_engines_of_a_group_have_its_keys(model):
    keys = {"api_key": KEY, "rl_api_key": "the-trainer-s-key-1234"}
    group = WorkerGroup({"model": str(model()), "server": {"enabled": True, "rl_routes": True, **keys}})

    assert keys.items() <= group._config_of(0)["server"].items()


def test_a_server_without_a_host_is_on_the_loopback(reserved):
    one, other = reserved(), reserved()

    assert one.base_url == f"http://127.0.0.1:{port_of(one)}/v1"
    assert one.base_url != other.base_url


def test_a_port_given_back_is_closed_in_forks_too(reserved):
    listener = reserved()
    address = listener.socket.getsockname()
    with listener.socket.dup():  # what an engine's process holds that was forked after the port was reserved
        with socket.create_connection(address, timeout=HUNG_S):
            pass
        listener.close()

        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=HUNG_S)


async def test_a_port_that_is_taken_is_found_before_the_engine_starts(model, reserved, monkeypatch):
    started = []
    monkeypatch.setattr(VllmAsyncGenerationWorker, "_create_engine", lambda *_: started.append(1))
    port = port_of(reserved())
    worker = VllmAsyncGenerationWorker({"model": str(model()), "server": {"enabled": True, "port": port}})

    with pytest.raises(ServerStartError, match=f"Address already in use .*{port}"):
        await worker.post_init_async()

    assert not started


async def test_an_engine_that_does_not_start_gives_the_port_back(model, monkeypatch):
    address = ("127.0.0.1", free_port())

    async def fail(*_):
        with socket.create_connection(address, timeout=HUNG_S):
            raise QuirksError("no engine today")

    monkeypatch.setattr(VllmAsyncGenerationWorker, "_create_engine", fail)
    worker = VllmAsyncGenerationWorker({"model": str(model()), "server": {"enabled": True, "port": address[1]}})

    with pytest.raises(QuirksError, match="no engine today"):
        await worker.post_init_async()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=HUNG_S)


def test_routes_for_trainers_keep_it_on_this_machine(reserved):
    nodes = {"cluster": {"num_nodes": 2}}

    assert reserved(rl_routes=True, **nodes).host == "127.0.0.1"
    assert reserved(rl_routes=True, host=EVERYWHERE, **nodes).host == EVERYWHERE


@pytest.mark.parametrize("section", [{"host": EVERYWHERE}, {"cluster": {"num_nodes": 2}}])
def test_a_server_on_every_interface_can_be_reached(reserved, monkeypatch, section):
    monkeypatch.delenv("VLLM_HOST_IP", raising=False)

    host, _, port = reserved(**section).base_url.removeprefix("http://").removesuffix("/v1").rpartition(":")

    assert host != EVERYWHERE
    with socket.create_connection((host, int(port)), timeout=HUNG_S):
        pass
    monkeypatch.setenv("VLLM_HOST_IP", "10.1.2.3")
    assert reserved(**section).base_url.startswith("http://10.1.2.3:")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7"])
def test_an_address_that_is_not_ours_is_an_error_that_names_it(reserved, host):
    with pytest.raises(ServerStartError, match=host):
        reserved(host=host)
