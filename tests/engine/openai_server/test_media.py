"""Hosts that media of a request are fetched from; vLLM's own connector with a server of this machine."""

from __future__ import annotations

import base64
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image

from worker.server.server import allow_media


def picture():
    found = io.BytesIO()
    Image.new("RGB", (2, 2)).save(found, "PNG")
    return found.getvalue()


@pytest.fixture
def pictures():
    """A server of pictures that records requests; ``/away`` redirects to another name of this machine."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if self.path == "/away":
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{self.server.server_port}/inside")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(picture())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.asked, server.url = asked, f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def fetched(served, monkeypatch):
    """Fetches an image as vLLM's renderer does for a request, after a server allowed some hosts."""
    from vllm.renderers.chat_utils import AsyncMultiModalContentParser, AsyncMultiModalItemTracker

    config = served.llm.model_config
    monkeypatch.setattr(config, "allowed_media_domains", config.allowed_media_domains)

    async def fetch(url, *, domains=(), engines=None):
        config.allowed_media_domains = engines
        allow_media(config, domains)
        connector = AsyncMultiModalContentParser(AsyncMultiModalItemTracker(config))._connector
        return await connector.fetch_image_async(url)

    return fetch


async def test_only_data_urls_are_fetched_by_default(fetched, pictures):
    with pytest.raises(ValueError, match=r"server\.allowed_media_domains is empty.*domain: 127\.0\.0\.1"):
        await fetched(f"{pictures.url}/a.png")

    assert not pictures.asked
    assert (await fetched("data:image/png;base64," + base64.b64encode(picture()).decode())).size == (2, 2)


@pytest.mark.parametrize("allowed", [{"domains": ("127.0.0.1",)}, {"engines": ["127.0.0.1"]}])
async def test_only_allowed_hosts_are_fetched_from(fetched, pictures, allowed):
    image = await fetched(f"{pictures.url}/a.png", **allowed)

    assert image.size == (2, 2)
    with pytest.raises(ValueError, match="must be from one of the allowed domains"):
        await fetched(f"http://localhost:{pictures.server_port}/b.png", **allowed)
    assert pictures.asked == ["/a.png"]


async def test_redirects_are_not_followed(fetched, pictures):
    with pytest.raises(Exception, match=r"302|identify"):
        await fetched(f"{pictures.url}/away", domains=("127.0.0.1",))

    assert pictures.asked == ["/away"]
