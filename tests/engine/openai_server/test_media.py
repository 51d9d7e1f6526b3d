"""Hosts that media of a request are fetched from, by vLLM's own connector."""

from __future__ import annotations

import aiohttp
import pytest

from worker.server.server import allow_media

#: Nobody listens there.
URL = "http://127.0.0.1:9/a.png"
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


@pytest.fixture
def fetched(served, monkeypatch):
    """Fetches an image as vLLM's renderer does for a request, after a server allowed some hosts."""
    from vllm.renderers.chat_utils import AsyncMultiModalContentParser, AsyncMultiModalItemTracker

    config = served.llm.model_config
    monkeypatch.setattr(config, "allowed_media_domains", config.allowed_media_domains)

    async def fetch(url, *allowed):
        config.allowed_media_domains = list(allowed)
        allow_media(config)
        return await AsyncMultiModalContentParser(AsyncMultiModalItemTracker(config))._connector.fetch_image_async(url)

    return fetch


async def test_only_data_urls_are_fetched_by_default(fetched):
    with pytest.raises(ValueError, match=r"engine\.allowed_media_domains is empty.*domain: 127\.0\.0\.1"):
        await fetched(URL)

    assert (await fetched(PIXEL)).size == (1, 1)


async def test_only_allowed_hosts_are_fetched_from_without_redirects(fetched):
    from vllm import envs

    with pytest.raises(aiohttp.ClientConnectorError):
        await fetched(URL, "127.0.0.1")
    with pytest.raises(ValueError, match="must be from one of the allowed domains"):
        await fetched("http://localhost:9/b.png", "127.0.0.1")
    assert not envs.VLLM_MEDIA_URL_ALLOW_REDIRECTS
