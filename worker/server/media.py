"""Restricts the hosts of media URLs in requests: the worker's machine may reach hosts that the client cannot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

#: vLLM reads an empty list as all hosts. No host has this name, and vLLM's error message quotes it.
_NO_HOST = "none, because server.allowed_media_domains is empty"


def allow_media(model_config: Any, domains: Sequence[str]) -> None:
    """Makes vLLM's media connector refuse URLs of all other hosts, and redirects. ``data:`` URLs are not affected.

    Args:
        model_config: vLLM's ``ModelConfig``, which the connector reads for every request.
        domains: Host names. If empty, vLLM's own argument ``allowed_media_domains`` applies; if that is empty too, none is
            allowed.
    """
    # By default vLLM follows redirects, also from an allowed host to any other.
    os.environ.setdefault("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
    if domains or not model_config.allowed_media_domains:
        model_config.allowed_media_domains = [domain.lower() for domain in domains] or [_NO_HOST]
