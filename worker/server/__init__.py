"""The OpenAI-compatible server in the generation worker's own event loop; vLLM is imported when it is built."""

from worker.server.errors import PrefixTokensError, RequestError, ServerStartError
from worker.server.listening import Listener
from worker.server.prefix_tokens import replace_prefix_tokens
from worker.server.server import OpenAIServer

__all__ = [
    "Listener",
    "OpenAIServer",
    "PrefixTokensError",
    "RequestError",
    "ServerStartError",
    "replace_prefix_tokens",
]
