"""What is asked of a server that others started, over HTTP."""

from __future__ import annotations

import http.server
import threading

import pytest

from quirks_core.base.errors import UsageError
from worker.refit.running import Server


@pytest.fixture
def heard(monkeypatch):
    """A server on every address of this machine; yields its port and the keys that came. One path redirects to another host."""
    monkeypatch.setenv("VLLM_API_KEY", "hush")
    keys = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            keys.append(self.headers["Authorization"])
            self.send_response(302 if self.path == "/moved" else 200)
            self.send_header("Location", f"http://0.0.0.0:{self.server.server_port}/version")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler) as server:  # noqa: S104 - the law is about addresses
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, keys
        server.shutdown()


@pytest.mark.parametrize(("host", "key"), [("127.0.0.1", "Bearer hush"), ("localhost", "Bearer hush"), ("0.0.0.0", None)])  # noqa: S104
def test_a_key_does_not_leave_this_machine_over_http(heard, host, key):
    port, keys = heard

    assert Server(f"http://{host}:{port}").query("/version") == {}
    assert keys == [key]


def test_no_redirect_is_followed(heard):
    port, keys = heard

    with pytest.raises(UsageError, match=f"redirects to http://0.0.0.0:{port}/version, which is not followed"):
        Server(f"http://127.0.0.1:{port}").query("/moved")
    assert keys == ["Bearer hush"]


def test_no_proxy_gets_a_key_of_this_machine(heard, monkeypatch):
    port, keys = heard
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    Server(f"http://127.0.0.1:{port}").query("/version")
    assert keys == ["Bearer hush"]


def test_a_program_that_is_no_vllm_serve_is_named(heard):
    with pytest.raises(UsageError, match="is no vllm serve"):
        Server(f"http://127.0.0.1:{heard[0]}").config()
