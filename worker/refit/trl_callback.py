"""TRL's trainers: one line that logs whether the policy arrives in their vLLM. Imports transformers, and TRL never."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import TrainerCallback

from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.hook import report, trainer_process
from quirks_core.plan.contract import Contract
from worker.refit.agreement import agree
from worker.refit.arrivals import Arrival, Arrivals
from worker.refit.running import look
from worker.refit.weights.expected import Expected, digest
from worker.refit.weights.scope import is_sharded


class LedgerCallback(TrainerCallback):  # type: ignore[misc]
    """Logs ``weights/arrived``, ``weights/changed_share`` and ``weights/update_norm`` at each step of a TRL trainer.

    Before the first rollout it compares the trainer's contract with the engine's (`worker.refit.agreement`). The engine has to
    run with ``MODEL_QUIRKS=rollout``; that of ``trl vllm-serve`` with ``VLLM_SERVER_DEV_MODE=1``, too::

        trainer.add_callback(LedgerCallback(trainer))

    Attributes:
        arrivals: What arrived, step by step, the newest last.
    """

    def __init__(
        self, trainer: Any, *, file: str | Path | None = None, on_difference: Literal["stop", "warn"] = "warn"
    ) -> None:
        """Takes a trainer that generates with vLLM.

        Args:
            trainer: TRL's ``GRPOTrainer``, or another that has ``vllm_generation``.
            file: Where to write a line of JSON for each step.
            on_difference: Whether a difference between the trainer's contract and the engine's ends the run, or is logged.

        Raises:
            UsageError: The trainer does not use vLLM.
        """
        if getattr(trainer, "vllm_generation", None) is None:
            raise UsageError("LedgerCallback: the trainer generates without vLLM; set use_vllm=True")
        self.arrivals: list[Arrival] = []
        self._trainer = trainer
        self._file = None if file is None else Path(file)
        self._on_difference = on_difference
        steps = getattr(trainer.args, "steps_per_generation", None) or 1
        rollout = steps * getattr(trainer, "num_iterations", 1) / trainer.args.gradient_accumulation_steps
        self._comparison = Arrivals(behind=max(1, math.ceil(rollout)) - 1)
        self._sent: Expected | None = None
        self._layout: dict[str, Any] = {}
        self._whole = False
        self._is_off = self._is_skipped = False
        self._scale = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - transformers' names
        """Looks whether the engine has a ledger, and agrees with the trainer.

        Raises:
            UsageError: It has none; or it does not agree, and a difference ends the run.
        """
        if not self._has_engine():
            return  # this process only gathers
        agree(self._engine, self._contract(), requests=self._requests(), on_difference=self._on_difference)
        self._layout, self._whole = self._found_layout(), not any(entry.sampled for entry in look(self._engine))
        if self._file is not None:
            self._file.write_text("", encoding="utf-8")

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Makes the digest of what this step's rollout should come from; other ranks of a sharded model wait for this one."""
        if not self._is_off or any(map(is_sharded, self._trainer.model.parameters())):
            try:
                self._sent = digest(self._trainer.model, whole=self._whole, **self._layout)
            except QuirksError as error:  # on every rank
                self._end(error)
            self._scale = self._scale_now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Compares it with what the engine has; an error ends the comparison, and no training.

        A step that the gradient scaler skipped is logged: the next update will change nothing.
        """
        if self._sent is None or self._is_off or not self._has_engine():
            return
        try:
            arrival = self._comparison.compare(look(self._engine), self._sent)
            is_skipped = self._was_skipped()
        except QuirksError as error:
            self._end(error)
            return
        before = self.arrivals[-1].status if self.arrivals else "arrived"
        self.arrivals.append(arrival)
        self._log(arrival)
        if arrival.status != before and arrival.status == "missing":
            report.error(f"arrival: step {state.global_step}: {arrival.verdict}")
        elif arrival.status != before:
            again = "the policy arrives again" if arrival.status == "arrived" else arrival
            report.info(f"arrival: step {state.global_step}: {again}")
        if is_skipped and not self._is_skipped:
            report.info(f"arrival: step {state.global_step} was skipped by the scaler: the weights stay as they are")
        self._is_skipped = is_skipped
        if self._file is not None:
            share = arrival.share if math.isfinite(arrival.share) else None
            row = {"step": state.global_step, "status": arrival.status, "arrived": share, "norms": dict(arrival.norms)}
            row |= {"incomparable": arrival.incomparable, "changed_share": arrival.changed_share}
            row |= {"missing": arrival.missing, "verdict": arrival.verdict, "skipped": is_skipped}
            with self._file.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps(row) + "\n")

    def _end(self, error: QuirksError) -> None:
        if not self._is_off:
            report.error(f"arrival: not looked at from now on: {error}")
        self._is_off, self._sent = True, None

    def _log(self, arrival: Arrival) -> None:
        """Adds to what TRL logs at this step."""
        values = {"arrived": arrival.share, "changed_share": arrival.changed_share}
        values["update_norm"] = arrival.update_norm if arrival.norms else None
        metrics = self._trainer._metrics["train"]
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                metrics[f"weights/{name}"].append(value)

    def _contract(self) -> Contract:
        """Returns the trainer's side: TRL scales logits by its temperature.

        Where it corrects by the engine's logprobs, its own are of all tokens; elsewhere it does not read the engine's.
        """
        args = self._trainer.args
        products = trainer_process.precision(None).get("train.autocast")
        dtype = next(str(one.dtype) for one in self._trainer.model.parameters() if one.is_floating_point())
        dtype = dtype.removeprefix("torch.") if products is None or products.value == "none" else products.value
        corrects = getattr(args, "vllm_importance_sampling_correction", False)
        return Contract(
            dtype=dtype,
            head_dtype="float32" if getattr(args, "cast_lm_head_to_fp32", False) else dtype,
            temperature=args.temperature,
            top_p=1 if corrects else None,
            top_k=0 if corrects else None,
            logprobs="processed_logprobs" if corrects else None,
            scope="parameters",
            adapters=False,  # they are merged
        )

    def _requests(self) -> dict[str, Any]:
        """Returns how the rollout samples: TRL sets it in each request."""
        generation = self._trainer.vllm_generation
        more = generation.generation_kwargs
        return {name: more.get(name, getattr(generation, name)) for name in ("temperature", "top_p", "top_k")}

    def _was_skipped(self) -> bool:
        """Returns whether the scaler skipped this step; accelerate 1.15 does not see it of a fused optimizer, TRL's default."""
        return bool(self._trainer.accelerator.optimizer_step_was_skipped) or self._scale_now() < self._scale

    def _scale_now(self) -> float:
        scaler = self._trainer.accelerator.scaler
        return 0.0 if scaler is None else float(scaler.get_scale())

    @property
    def _engine(self) -> Any:
        """What the trainer generates with: vLLM's ``LLM``, or a server's address."""
        generation = self._trainer.vllm_generation
        return generation.llm if generation.mode == "colocate" else generation.vllm_client.base_url

    def _found_layout(self) -> dict[str, Any]:
        """Returns what makes the engine's tensors of the trainer's: its dtype, and over how many ranks it splits them."""
        generation = self._trainer.vllm_generation
        if generation.mode == "colocate":
            config = generation.llm.llm_engine.vllm_config
            return {"dtype": config.model_config.dtype, "tensor_parallel_size": config.parallel_config.tensor_parallel_size}
        found = generation.vllm_client.get_server_info()
        dtype = getattr(torch, str(found["model_config"]["dtype"]).removeprefix("torch."))
        return {"dtype": dtype, "tensor_parallel_size": found["parallel_config"]["tensor_parallel_size"]}

    def _has_engine(self) -> bool:
        """Whether this process can query an engine."""
        return self._trainer.vllm_generation.mode == "colocate" or bool(self._trainer.accelerator.is_main_process)
