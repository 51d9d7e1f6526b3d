"""Keeps the account of an engine's weights in its core: collects what the workers' ledgers have of an update, and judges it.

An update is over when the engine generates again, or gets the label of its weights: until then more of it may come. Then the
core queries its workers once, logs verdicts, and writes them into the file of receipts.
"""

from __future__ import annotations

import os
import pkgutil
import socket
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

from quirks_core.apply.imports import wrap
from quirks_core.base.errors import QuirksError, UsageError, words
from quirks_core.facts.installation import check_ours
from quirks_core.hook import receipts, report, worker_calls
from quirks_core.hook.settings import SET_VARIABLE, HookSettings
from quirks_core.hook.turns import Turns
from quirks_core.ledger.account import LEDGER_VARIABLE, Account, Entry, LedgerSettings, Line, Verdict
from quirks_core.ledger.verdicts import Judge

_LEDGER = "worker.refit.engine.ledger"
_ATTRIBUTE = "_model_quirks_account"
#: Calls of every step, after which no weights are others.
_STEPS = frozenset({"execute_model", "sample_tokens", "execute_dummy_batch", "take_draft_token_ids", "check_health"})
#: Calls that complete an update.
_ENDS = frozenset({"finish_weight_update", "reload_weights", "add_lora"})
#: Our own backend for weight transfer, which refuses by itself what is not finite.
_OURS = "model_quirks"
_KEPT = 8
_accountants: weakref.WeakSet[_Accountant] = weakref.WeakSet()


def watch_worker(wrapper: Any) -> None:
    """Has a worker process keep a ledger; its ``WorkerWrapperBase`` has not loaded its model yet."""
    if LedgerSettings.read().mode != "off" and not _missing():  # the core reports it
        pkgutil.resolve_name(f"{_LEDGER}:watch")(wrapper.worker)


def watch_executor(executor: Any) -> None:
    """Keeps the account of an engine whose weights are loaded.

    Raises:
        UsageError: The user asked for an engine that stops at verdicts, and no ledger can be kept here.
    """
    settings = LedgerSettings.read()
    if settings.mode == "off" or hasattr(executor, _ATTRIBUTE):
        return
    if not (missing := _missing()):
        setattr(executor, _ATTRIBUTE, _Accountant(executor, settings))
    elif settings.mode == "stop":
        raise UsageError(f"{LEDGER_VARIABLE}=stop: no ledger can be kept: {missing}")
    else:
        report.info(f"ledger: none is kept: {missing}")


def _missing() -> str:
    """Returns why this process has no ledger; empty if it has one."""
    try:
        check_ours(_LEDGER)
    except UsageError as error:
        return str(error)
    return ""


def set_weight_version(original: Callable[..., Any], core: Any, weight_version: str) -> Any:
    """Around the method of an engine's core that takes the label of its weights."""
    found = original(core, weight_version)
    if (accountant := getattr(core.model_executor, _ATTRIBUTE, None)) is not None:
        accountant.label(weight_version)
    return found


def add_request(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Around the method of an engine's scheduler that takes a request: counts prompts that continue an answer in other ids."""
    for accountant in _accountants:
        if accountant.config is scheduler.vllm_config:
            accountant.start(request)
    return original(scheduler, request)


def _refuse_requests() -> None:
    """Has engines refuse requests as long as their accounts hold a refusal; in a core of its own, a refused one gets an error.

    Not before it is needed: quirks wrap the same functions, and each must find them as vLLM wrote them. A front end in the
    core's process refuses first: it would wait for ever for a request that it knows and its core does not.
    """
    for target in ("core:EngineCore.preprocess_add_request", "input_processor:InputProcessor.process_inputs"):
        if f"vllm.v1.engine.{target.partition(':')[0]}" in sys.modules:
            wrap(f"vllm.v1.engine.{target}", _refuse_or_take)


def _refuse_or_take(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
    for accountant in _accountants:
        if accountant.config is owner.vllm_config and (problem := accountant.still_refuses()):
            raise QuirksError(problem)
    return original(owner, *args, **kwargs)


class _Accountant:
    """The account of one engine core."""

    def __init__(self, executor: Any, settings: LedgerSettings) -> None:
        self.config = config = executor.vllm_config
        self._judge = Judge(
            settings,
            ranks=config.parallel_config.world_size,
            has_lora=config.lora_config is not None,
            is_quantized=config.model_config.quantization is not None,
        )
        hook = HookSettings.read() or HookSettings(given={"refit.finite": False})
        is_ours = getattr(config.weight_transfer_config, "backend", "") == _OURS
        self._needs_finite = not is_ours and bool(hook.given.get("refit.finite", True))
        self._is_float16 = str(config.model_config.dtype) == "torch.float16"
        self._is_spoilt = False
        self._settings = settings
        self._has_lora = config.lora_config is not None
        self._is_rollout = hook.purpose == "rollout"
        has_turns = self._is_rollout and not config.model_config.skip_tokenizer_init
        self._turns = Turns(self._decode) if has_turns else None
        self._call, self._step = executor.collective_rpc, executor.execute_model
        self._is_open = self._is_coming = False
        self._loads = 0
        self._version = ""
        self._account = Account(pid=os.getpid(), host=socket.gethostname())
        self._is_off = False
        _accountants.add(self)
        executor.collective_rpc = self._around_call
        executor.execute_model = self._around_step

    def label(self, version: str) -> None:
        """Takes the label of the weights that came last."""
        self._version = version
        self.settle()

    def start(self, request: Any) -> None:
        """Takes a request that begins."""
        if self._turns is not None:
            self._turns.start(request)

    def settle(self) -> None:
        """Judges the updates that are over; an error of the account ends the account, and no engine."""
        if self._is_off:
            return
        self._is_open, self._loads = False, self._raw_loads()
        try:
            answers = self._query("settle")
            self._is_open = self._is_coming = any(answer["is_open"] for answer in answers)
            ranks = [[Entry.model_validate(row) for row in answer["entries"]] for answer in answers]
            updates = [[row for row in rows if row is not None] for rows in zip_longest(*ranks)]
            for rows in updates:
                last = rows is updates[-1]
                self._add([row.model_copy(update={"version": self._version}) for row in rows] if last else rows)
                self._mend(rows)
            if updates:
                self._version = ""
                self._write()
        except Exception as error:
            self._is_off = True
            report.info(f"ledger: no account is kept from now on: {words(error)}")

    @property
    def refusal(self) -> str:
        """Why the engine takes no request; empty if it does, as where the next update is complete with the next request."""
        if self._is_coming:
            return ""
        grave = [verdict for verdict in self._judge.problems.values() if verdict.is_grave]
        if grave and self._settings.mode == "stop":
            return f"{LEDGER_VARIABLE}=stop: {'; '.join(verdict.text for verdict in grave)}"
        found = (verdict.text for verdict in grave if self._needs_finite and verdict.kind == "not-finite")
        return next((f"{text}; {SET_VARIABLE}=refit.finite=false takes them" for text in found), "")

    def still_refuses(self) -> str:
        """Returns `refusal`; a program may have loaded other weights since then, into a model of this process."""
        if self.refusal and self._loads != self._raw_loads():
            self.settle()
        return self.refusal

    def account(self) -> Account:
        """Returns the account as it is now."""
        now = {"problems": tuple(self._judge.problems.values()), "refusal": self.refusal}
        return self._account.model_copy(update=now)

    def _add(self, rows: list[Entry]) -> None:
        new = self._judge.add(rows)
        updates, lines = self._account.updates + (rows[0].way != "start"), (*self._account.lines, *map(Line.of, rows))
        after = {"updates": updates, "entries": tuple(rows), "lines": lines[-_KEPT:]}
        self._account = self._account.model_copy(update=after)
        self._log(new)

    def _mend(self, rows: list[Entry]) -> None:
        """Takes out of the KV cache what weights that were not finite left there; it would outlive them."""
        is_spoilt = any(row.not_finite for row in rows)
        if rows[0].way != "start" and not is_spoilt and (self._is_spoilt or self._is_float16):
            self._query("mend", self._is_spoilt)
        self._is_spoilt = is_spoilt

    def _log(self, verdicts: list[Verdict]) -> None:
        self._account = self._account.model_copy(update={"verdicts": (*self._account.verdicts, *verdicts)})
        for verdict in verdicts:
            (report.error if verdict.is_grave else report.info)(f"ledger: {verdict.text}")
        if self.refusal:
            _refuse_requests()

    def _compare_turns(self, finished: Iterable[str]) -> None:
        """Compares new prompts with the answers before them; an error ends that, and no request."""
        try:
            if self._turns is not None and self._turns.step(finished):
                new = self._judge.encoded_again(self._turns.encoded_again, self._turns.continued)
                self._log(new)
                if new:
                    self._write()
        except Exception as error:
            self._turns = None
            report.info(f"ledger: prompts are not compared with answers from now on: {words(error)}")

    def _decode(self, ids: Sequence[int]) -> str:
        tokenizer = pkgutil.resolve_name("vllm.tokenizers:cached_tokenizer_from_config")(self.config.model_config)
        return str(tokenizer.decode(ids))

    def _write(self) -> None:
        receipts.add((HookSettings.read() or HookSettings()).receipt, self.account())

    def _query(self, function: str, *arguments: Any) -> list[Any]:
        answers = self._call(worker_calls.METHOD, args=(f"{_LEDGER}:{function}", list(arguments), {}))
        if errors := [answer["error"] for answer in answers if "error" in answer]:
            raise QuirksError(errors[0])
        return [answer["value"] for answer in answers]

    @staticmethod
    def _raw_loads() -> int:
        """Returns how often weights were loaded in this process without a call of the core."""
        ledger = sys.modules.get(_LEDGER)
        return ledger.raw_loads if ledger is not None else 0

    # ---- calls of the core to its workers

    def _around_call(self, method: Any, timeout: float | None = None, args: Any = (), kwargs: Any = None, **named: Any) -> Any:
        if method in _STEPS:
            return self._call(method, timeout, args, kwargs, **named)
        function = args[0].removeprefix(f"{_LEDGER}:") if method == worker_calls.METHOD and args else ""
        if function in ("account", "trainer_at"):
            self.settle()  # a trainer in a worker's process calls nothing here
            if function == "trainer_at" and (new := self._judge.trainer_at(*args[1])):
                self._log(new)
                self._write()
            return [{"value": self.account().model_dump(mode="json")}]
        self._is_open = True
        found = self._call(method, timeout, args, kwargs, **named)
        is_stop = self._settings.mode == "stop"
        if self.refusal or (method in _ENDS and (is_stop or self._is_spoiling())):  # before a request comes
            self.settle()
        return found

    def _is_spoiling(self) -> bool:
        """Returns whether the update that ended just now is one to refuse; any other waits for its label."""
        return self._needs_finite and not self._is_off and any(self._query("is_spoilt"))

    def _around_step(self, scheduler_output: Any, *args: Any, **named: Any) -> Any:
        if self._is_open or self._loads != self._raw_loads():
            self.settle()
        self._compare_turns(scheduler_output.finished_req_ids)
        if self._has_lora and (new := scheduler_output.scheduled_new_reqs):
            used = sum(one.lora_request is not None for one in new)
            self._is_open = self._is_open or used > 0  # the step loads the request's adapter
            if self._is_rollout:
                self._log(self._judge.served(used, len(new) - used))
        return self._step(scheduler_output, *args, **named)
