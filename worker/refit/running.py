"""What engines that others started run on now: their ledgers, read in this process or over HTTP."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from quirks_core.apply.handed_down import CARRIED
from quirks_core.base.errors import QuirksError, UsageError, shortened
from quirks_core.hook import worker_calls
from quirks_core.ledger.account import Account, Entry

_LEDGER = "worker.refit.engine.ledger"
_TIMEOUT_S = 600.0
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
#: What a server is started with, all of it, so that nobody starts it twice.
START = "start it with MODEL_QUIRKS=rollout VLLM_SERVER_DEV_MODE=1"
_NO_LEDGER = f"the engine keeps no ledger: {START}, model-quirks installed where vLLM is, and MODEL_QUIRKS_LEDGER not off"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect an error: it would take the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        """Follows none."""


class Server:
    """A running ``vllm serve``.

    Attributes:
        url: Where it listens.
    """

    def __init__(self, url: str) -> None:
        """Takes an address as ``http://host:8000``. The key in ``VLLM_API_KEY`` is sent by HTTPS or on this machine alone."""
        self.url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        self._key = os.environ.get("VLLM_API_KEY")

    def query(self, path: str, body: Any = None) -> Any:
        """Returns what a path answers, as JSON; None if the server has no such path.

        Args:
            path: As ``/weight_info``.
            body: What is sent, by POST; GET if None.

        Raises:
            UsageError: Nothing listens there, or what does is no ``vllm serve``, or it wants another key.
            QuirksError: The server failed.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})  # noqa: S310 - checked
            if request.type not in ("http", "https"):
                raise UsageError(f"{self.url} is no address of a server; name one as http://host:8000")
            is_here = urllib.parse.urlsplit(self.url).hostname in _THIS_MACHINE
            if self._key and (request.type == "https" or is_here):
                request.add_header("Authorization", f"Bearer {self._key}")
            proxies = urllib.request.ProxyHandler({} if is_here else None)
            with urllib.request.build_opener(_NoRedirect, proxies).open(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (404, 405):
                return None
            if error.code in (401, 403):
                raise UsageError(
                    f"{self.url} refuses the key: set VLLM_API_KEY to the one it was started with; another machine gets it by "
                    "https alone"
                ) from None
            if place := error.headers.get("Location"):
                raise UsageError(
                    f"{self.url} redirects to {shortened(place)}, which is not followed: name that address"
                ) from None
            text = error.read(4096).decode(errors="replace")
            raise QuirksError(f"{self.url}{path} failed with HTTP {error.code}: {shortened(text)}") from None
        except json.JSONDecodeError:
            raise UsageError(f"{self.url}{path} answers no JSON: it is no vllm serve") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UsageError(f"nothing answers at {self.url}: {reason}; is it running, and is the port right?") from None

    def config(self) -> Mapping[str, Any]:
        """Returns vLLM's configuration of the engine, as JSON.

        Raises:
            UsageError: The server is no ``vllm serve``, or has no development paths.
        """
        info = self.query("/server_info?config_format=json")
        with suppress(KeyError, TypeError):
            return dict(info["vllm_config"])
        if info is not None or self.query("/version") is None:
            raise UsageError(f"{self.url} is no vllm serve: it has no /version, or answers /server_info in another form")
        raise UsageError(
            f"{self.url} has none of vLLM's development paths: {START} (they are open to all who reach the port); or, for the "
            "ledger alone, use quirks weights PID on its machine"
        )

    def collective_rpc(self, method: str, *, args: Sequence[Any]) -> list[Any]:
        """Returns what a method answers in each worker, as that of vLLM's ``LLM`` does.

        Raises:
            UsageError: The server has no such path.
        """
        answer = self.query("/collective_rpc", {"method": method, "args": args})
        if answer is None:
            raise UsageError(f"{self.url} has no /collective_rpc")
        return list(answer["results"])

    def look(self) -> list[Entry]:
        """Returns what each process of the engine runs on now.

        Raises:
            UsageError: The engine has no ledger, or the server no door to it.
        """
        return look(self)

    def account(self) -> Account:
        """Returns the account of the engine's weights.

        Raises:
            UsageError: As for `look`.
        """
        return self._account("account")

    def report_updates(self, updates: int) -> Account:
        """Reports how many updates the trainer has made, and returns the account; weights that are too old are a verdict there.

        Raises:
            UsageError: As for `look`.
        """
        return self._account("trainer_at", updates)

    def _account(self, function: str, *arguments: Any) -> Account:
        if (answer := call(self, f"{_LEDGER}:{function}", *arguments)[0]) is None:
            raise UsageError(f"{self.url}: {_NO_LEDGER}")
        return Account.model_validate(answer)


def look(engine: Any) -> list[Entry]:
    """Returns what each process of an engine runs on now; arguments and errors as for `call`."""
    return [Entry.model_validate(row) for row in call(engine, f"{_LEDGER}:look")]


def call(engine: Any, function: str, *arguments: Any) -> list[Any]:
    """Returns what a function of ours, named as ``package.module:name``, answers in each worker.

    Args:
        engine: VLLM's ``LLM`` in this process, a server, or its address.
        function: The function.
        *arguments: What it gets, plain values.

    Raises:
        UsageError: The engine has no plan of ours, or no ledger that the function needs; or the server has no door to it.
    """
    if isinstance(engine, str):
        engine = Server(engine)
    if isinstance(engine, Server):
        where, config = engine.url, engine.config().get("additional_config")
    else:
        where, config = "LLM", engine.llm_engine.vllm_config.additional_config
    if CARRIED not in (config or ()):  # a worker of several that lacks our method would leave the others' answers unread
        raise UsageError(f"{where}: {_NO_LEDGER}")
    answers = engine.collective_rpc(worker_calls.METHOD, args=(function, list(arguments), {}))
    if errors := [answer["error"] for answer in answers if "error" in answer]:
        raise UsageError(f"{_NO_LEDGER} ({errors[0]})")
    return [answer["value"] for answer in answers]
