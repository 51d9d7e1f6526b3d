"""What is asked of a server that others started, over HTTP."""

from __future__ import annotations

import http.server
import threading

import pytest

from worker.refit.running import Server


@pytest.fixture
def heard():
    """A server on every address of this machine; yields its port and the keys that came."""
    keys = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            keys.append(self.headers["Authorization"])
            self.send_response(200)
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

    assert Server(f"http://{host}:{port}", key="hush").query("/version") == {}
    assert keys == [key]
