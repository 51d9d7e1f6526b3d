"""What engines that others started run on now: their ledgers, asked for in this process or over HTTP."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from quirks_core.apply.ledger import Account, Entry
from quirks_core.base.errors import QuirksError, UsageError, shortened, words
from quirks_core.hook import worker_calls

_LEDGER = "worker.refit.engine.ledger"
_TIMEOUT_S = 600.0
_NO_LEDGER = (
    "the engine keeps no ledger: start it with MODEL_QUIRKS=rollout (and MODEL_QUIRKS_LEDGER not off), model-quirks installed "
    "where vLLM is"
)


class Server:
    """A running ``vllm serve``.

    Attributes:
        url: Where it listens.
    """

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """Connects to nothing yet.

        Args:
            url: As ``http://host:8000``.
            key: Its API key; that in ``VLLM_API_KEY`` if None.
        """
        self.url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        self._key = os.environ.get("VLLM_API_KEY") if key is None else key

    def ask(self, path: str, body: Any = None) -> Any:
        """Returns what a path answers, as JSON; None if the server has no such path.

        Args:
            path: As ``/weight_info``.
            body: What is sent, by POST; GET if None.

        Raises:
            UsageError: Nothing listens there, or what does is no ``vllm serve``, or it wants another key.
            QuirksError: The server failed.
        """
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, data, headers)  # noqa: S310 - checked below
            if request.type not in ("http", "https"):
                raise UsageError(f"{self.url} is no address of a server; name one as http://host:8000")
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as above
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (404, 405):
                return None
            if error.code in (401, 403):
                raise UsageError(f"{self.url} refuses the key: set VLLM_API_KEY to the one it was started with") from None
            said = error.read(4096).decode(errors="replace")
            raise QuirksError(f"{self.url}{path} failed with HTTP {error.code}: {shortened(said)}") from None
        except json.JSONDecodeError:
            raise UsageError(f"{self.url}{path} answers no JSON: it is no vllm serve") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UsageError(f"nothing answers at {self.url}: {reason}; is it running, and is the port right?") from None

    def rpc(self, function: str) -> list[Any] | None:
        """Returns what a function of ours answers in each worker; None if the server has no door for it.

        Raises:
            UsageError: The engine has no ledger.
        """
        call = {"method": worker_calls.METHOD, "args": [f"{_LEDGER}:{function}", [], {}]}
        try:
            answer = self.ask("/collective_rpc", call)
        except UsageError:
            raise
        except QuirksError:  # the engine lacks the method
            raise UsageError(f"{self.url}: {_NO_LEDGER}") from None
        return None if answer is None else _values(answer["results"])

    def look(self) -> list[Entry]:
        """Returns what each process of the engine runs on now.

        Raises:
            UsageError: The engine has no ledger, or the server no door to it.
        """
        if (found := self.rpc("look")) is None:
            raise UsageError(f"{self.url} has no /collective_rpc: start it with VLLM_SERVER_DEV_MODE=1, as TRL needs it, too")
        return [Entry.model_validate(row) for row in found]

    def account(self) -> Account | None:
        """Returns the account of the engine's weights; None if the server has no door to it.

        Raises:
            UsageError: The engine has no ledger.
        """
        found = self.rpc("account")
        return Account.model_validate(found[0]) if found and found[0] else None


def look(llm: Any) -> list[Entry]:
    """Returns what each process of an engine in this process runs on now.

    Args:
        llm: VLLM's ``LLM``.

    Raises:
        UsageError: The engine has no ledger.
    """
    try:
        answers = llm.collective_rpc(worker_calls.METHOD, args=(f"{_LEDGER}:look", [], {}))
    except (AttributeError, NotImplementedError, ValueError) as error:
        raise UsageError(f"{_NO_LEDGER} ({words(error)})") from error
    return [Entry.model_validate(row) for row in _values(answers)]


def _values(answers: Sequence[Any]) -> list[Any]:
    """Returns the values of a call of `worker_calls`; over HTTP each is JSON."""
    if errors := [answer["error"] for answer in answers if "error" in answer]:
        raise UsageError(f"{_NO_LEDGER} ({errors[0]})")
    return [answer["value"] for answer in answers]
