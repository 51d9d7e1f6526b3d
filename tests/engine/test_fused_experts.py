"""Models of vLLM that load what transformers holds (fused-experts-refit): vLLM's own models, without an engine."""

from __future__ import annotations

import functools
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import fork_server
import pytest

from quirks_plugins.weight_sync.fused_experts_refit import QUIRK, wrap_load_model

#: vLLM has no sparse attention on its CPU platform.
_NOT_ON_CPU = {"deepseek_v32", "glm_moe_dsa"}
#: Models that vLLM loads fused experts of: the quirk leaves them alone.
_TAKES_FUSED = ("glm4_moe", "olmoe", "qwen3_moe")


@pytest.fixture(scope="module")
def elsewhere():
    """A process of its own, because a model of vLLM needs process groups."""
    fork_server.start()
    with ProcessPoolExecutor(1, mp_context=fork_server.ForkContext()) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result(timeout=240)


@pytest.mark.parametrize("kind", sorted(QUIRK.match.model_types() - _NOT_ON_CPU))
def test_a_model_takes_what_transformers_holds(kind, elsewhere, tmp_path):
    plain, patched, from_checkpoint = elsewhere(_loaded, kind, tmp_path)
    assert plain, "vLLM loads this model's experts without the quirk"
    assert (patched, from_checkpoint) == ([], [])


@pytest.mark.parametrize("kind", _TAKES_FUSED)
def test_a_model_that_takes_fused_experts_needs_no_patch(kind, elsewhere, tmp_path):
    assert elsewhere(_loaded, kind, tmp_path)[0] == []


@functools.cache
def _groups() -> None:
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.utils.network_utils import get_open_port

    init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")
    initialize_model_parallel(1, 1)


def _loaded(kind: str, folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Loads new parameters into a model of vLLM, and compares it with one that loaded the same from a checkpoint.

    Returns:
        What differs, or the error: of transformers' parameters without the patch and with it, and of the checkpoint with it,
        of which nothing is converted.
    """
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    from worker.lab.kit.checkpoints import build
    from worker.lab.kit.lab import Lab
    from worker.refit.weights.scope import tensors

    model = build(kind, folder / kind)
    trainer = Lab(folder).trainer(model)
    held, saved = list(trainer.named_parameters()), list(tensors(trainer, "parameters"))
    arguments = EngineArgs(model=str(model), dtype="float32", enforce_eager=True, max_model_len=256)
    config = arguments.create_engine_config()

    def loaded(weights: list[tuple[str, Any]], *, patched: bool) -> dict[str, Any]:
        config.compilation_config.static_forward_context.clear()
        made = initialize_model(config)
        for parameter in made.parameters():
            parameter.data.zero_()
        if patched:
            made = wrap_load_model(lambda: made)()
        for name, tensor in weights:  # one by one, as TRL does
            made.load_weights([(name, tensor.data)])
        return dict(made.named_parameters())

    def differing(weights: list[tuple[str, Any]], *, patched: bool) -> list[str]:
        try:
            got = loaded(weights, patched=patched)
        except (KeyError, ValueError) as error:
            return [str(error)]
        return [name for name, parameter in wanted.items() if not got[name].equal(parameter)]

    with set_current_vllm_config(config):
        _groups()
        wanted = loaded(saved, patched=False)
        plain, converted = differing(held, patched=False), differing(held, patched=True)
        with mock.patch("transformers.core_model_loading.revert_weight_conversion", side_effect=ValueError("converted")):
            return plain, converted, differing(saved, patched=True)
