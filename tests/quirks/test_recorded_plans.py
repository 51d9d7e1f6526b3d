"""The plans of built-in quirks for recorded runs: models x versions, and settings, each with what was planned for it.

``recorded_plans.txt`` has a line for each thing that plans decide, with the models and the places (version and platform) where
they do. A run with settings has a section of its own, with what it has (+) and has not (-) other than the plain run of the same
model and place. A refactoring must leave every line as it is. After an intended change write the file again with ``make
records``, and read its diff.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from recorded import recorded

from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.context import RunContext
from quirks_core.plan.records import Contributor, Plan, State, Status
from quirks_core.plan.switches import Switches, SwitchNames

_FILE = Path(__file__).with_name("recorded_plans.txt")

_MOE = {"model_type": "qwen3_moe", "num_experts": 8, "tie_word_embeddings": False}
_QWEN3 = {"model_type": "qwen3", "tie_word_embeddings": False}
_MODELS: dict[str, dict[str, Any]] = {
    "no type": {},
    "gemma": {"model_type": "gemma"},
    "gemma2": {"model_type": "gemma2"},
    "gemma3": {"model_type": "gemma3", "vision_config": {"hidden_size": 8}},
    "gemma3_text": {"model_type": "gemma3_text"},
    "gemma4": {"model_type": "gemma4", "vision_config": {"hidden_size": 8}},
    "gemma4_text": {"model_type": "gemma4_text"},
    "apertus": {"model_type": "apertus", "tie_word_embeddings": False},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "qwen3": _QWEN3,
    "qwen3_moe": _MOE,
    "deepseek_v3": {"model_type": "deepseek_v3", "n_routed_experts": 256, "tie_word_embeddings": False},
    "glm4_moe": {"model_type": "glm4_moe", "n_routed_experts": 128},
    "nemotron_h": {"model_type": "nemotron_h", "n_routed_experts": 4},
    "unknown experts": {"model_type": "acme_moe"},
    "qwen3 in float32": {**_QWEN3, "dtype": "float32"},
    "qwen3_next in float32": {"model_type": "qwen3_next", "num_experts": 8, "dtype": "float32"},
}
_VERSIONS = ("0.16.0", "0.26.0", "0.32.0", "0.1.dev1+g123")
_PLATFORMS = ("cpu", "cuda")


class Run(NamedTuple):
    """What the user types: a configuration without its model, a shell, and switches."""

    values: dict[str, Any]
    environ: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple's default, never changed
    disable: tuple[str, ...] = ()
    force: tuple[str, ...] = ()


def _engine(**values: Any) -> dict[str, Any]:
    return {"engine": values}


def _parallel(dp: int = 1, tp: int = 1, ep: int | None = None, strategy: str | None = None, **engine: Any) -> Run:
    parallel = {"expert_parallel_size": ep, "dp_strategy": strategy}
    return Run({"engine": {"data_parallel_size": dp, "tensor_parallel_size": tp, **engine}, "parallel": parallel})


def _train(**values: Any) -> Run:
    return Run({"train": values})


_RUNS = {
    "serve": Run({"purpose": "serve"}),
    "eval": Run({"purpose": "eval"}),
    "typed dummy": Run(_engine(load_format="dummy")),
    "typed auto": Run(_engine(load_format="auto")),
    "typed safetensors": Run(_engine(load_format="safetensors")),
    "typed scope parameters": Run({"refit": {"scope": "parameters"}}),
    "typed scope state_dict": Run({"refit": {"scope": "state_dict"}}),
    "typed dummy and parameters": Run({**_engine(load_format="dummy"), "refit": {"scope": "parameters"}}),
    "raw logprobs": Run({**_engine(logprobs_mode="raw_logprobs"), "sampling": {"temperature": 0.7}}),
    "minimum length": Run({"sampling": {"min_new_tokens": 4}}),
    "top-p": Run({"sampling": {"top_p": 0.9, "top_k": 50}}),
    "kept cache": Run({"refit": {"clear_cache": False}}),
    "kept cache and prefixes": Run({"refit": {"clear_cache": False}, **_engine(enable_prefix_caching=True)}),
    "generation_config auto": Run(_engine(generation_config="auto")),
    "float32 head of the engine": Run(_engine(head_dtype="float32")),
    "float32 head of the trainer": Run({"train": {"head_dtype": "float32"}}),
    "float32 head, contradicted": Run({**_engine(head_dtype="float32"), "train": {"head_dtype": "model"}}),
    "head by override": Run(_engine(hf_overrides={"head_dtype": "float32", "rope_theta": 1e6})),
    "CP": _train(context_parallel_size=2),
    "CP with packing": _train(context_parallel_size=2, sequence_packing=True),
    "CP with SP": _train(context_parallel_size=2, sequence_parallel=True, tensor_parallel_size=2),
    "CP, eager attention": _train(context_parallel_size=2, attn_implementation="eager"),
    "CP with Megatron": _train(context_parallel_size=2, backend="megatron"),
    "packing": _train(sequence_packing=True),
    "DP2": _parallel(2),
    "DP2 EP2": _parallel(2, ep=2),
    "DP2, expert flag": _parallel(2, enable_expert_parallel=True),
    "DP2, expert flag, actors": _parallel(2, strategy="actors", enable_expert_parallel=True),
    "DP2 EP2 independent": _parallel(2, ep=2, strategy="independent"),
    "DP2 independent": _parallel(2, strategy="independent"),
    "DP2 actors": _parallel(2, strategy="actors"),
    "DP2 engine": _parallel(2, ep=2, strategy="engine"),
    "DP2 EP2 synchronous": _parallel(2, ep=2, async_engine=False),
    "DP2 TP2 EP3": _parallel(2, 2, ep=3),
    "TP2 EP2": _parallel(tp=2, ep=2),
    "EP1 and the flag": _parallel(2, ep=1, enable_expert_parallel=True),
    "expert flag alone": _parallel(enable_expert_parallel=True),
    "DP3 EP3": _parallel(3, ep=3),
    "PP2": _parallel(pipeline_parallel_size=2),
    "PP2 synchronous": _parallel(pipeline_parallel_size=2, async_engine=False),
    "TP16 on nodes of 8": Run({**_engine(tensor_parallel_size=16), "cluster": {"num_nodes": 2, "gpus_per_node": 8}}),
    "DP8 TP4 on 16 GPUs": Run({**_engine(tensor_parallel_size=4, data_parallel_size=8), "cluster": {"gpus_per_node": 16}}),
    "VLLM_USE_V1 by the shell": Run({}, {"VLLM_USE_V1": "1"}),
    "VLLM_USE_V1 typed": Run({"env": {"VLLM_USE_V1": "0"}, **_engine(async_engine=False)}),
    "VLLM_DP_SIZE": Run({}, {"VLLM_DP_SIZE": "2"}),
    "timeout by the shell": Run({}, {"NRL_VLLM_ASYNC_TIMEOUT_SECONDS": "90"}),
    "timeout by the shell, unusable": Run({}, {"NRL_VLLM_ASYNC_TIMEOUT_SECONDS": "soon"}),
    "timeout typed": Run({"request": {"timeout_s": 30}}, {"NRL_VLLM_ASYNC_TIMEOUT_SECONDS": "90"}),
    "other slots": Run(
        _engine(
            gpu_memory_utilization=0.5, max_num_seqs=4, compilation_config={"mode": 0}, vllm_kwargs={"block_size": 32},
            kv_cache_dtype="fp8", max_model_len=512, async_scheduling=False, enable_chunked_prefill=True,
        )
    ),
    "all off": Run(_engine(load_format="dummy"), disable=("all",)),
    "a flag off": Run(_engine(load_format="dummy"), disable=("weight_sync", "load_format")),
    "forced": Run({}, force=("recurrent-state-float32", "gemma4-layer-scalar")),
}  # fmt: skip
#: What settings are tried on: a model, a version and a platform.
_PLACES = (
    ("qwen3", "0.32.0", "cpu"),
    ("qwen3_moe", "0.32.0", "cpu"),
    ("gemma4_text", "0.32.0", "cuda"),
    ("gemma3", "0.16.0", "cuda"),
)


def _outcome(plan: Plan) -> set[str]:
    """What a plan decides, a line for each thing, without words that only people read."""
    applied = {item.slot: item.value for item in plan.adjustments if item.status is Status.APPLIED}
    left_out = (State.NOT_MATCHED, State.DISABLED)
    return {
        *(
            f"{item.slot} {item.relation} {json.dumps(item.value)}: {item.strength}, {item.status} ({_ids(item.quirks)})"
            for item in plan.adjustments
        ),
        *(f"{slot} = {json.dumps(value)}" for slot, value in plan.changes.items() if applied.get(slot) != value),
        *(f"refused {item.slot or 'run'}: {item.kind} ({_ids(item.quirks)})" for item in plan.refusals),
        *(f"patch {item.target} ({item.quirk.id})" for item in plan.patches),
        *(f"{item.state} {item.id}" for item in plan.verdicts if item.state not in left_out),
        *(f"warning {str(warning).partition(': ')[0]}" for warning in plan.warnings),
    }


def _ids(quirks: Iterable[Contributor]) -> str:
    return ", ".join(quirk.id for quirk in quirks)


def _where(runs: Iterable[tuple[str, str, str]]) -> str:
    """Names runs by their models and, for models that are in the same places, by these: a version alone is every platform."""
    places, models = defaultdict(set), defaultdict(list)
    for model, version, platform in runs:
        places[model].add((version, platform))
    for model, found in places.items():
        models[tuple(_place(version, found) for version in _VERSIONS if _place(version, found))].append(model)
    return "; ".join(f"{_models(found)} on {', '.join(where)}" for where, found in models.items())


def _place(version: str, found: set[tuple[str, str]]) -> str:
    platforms = [platform for platform in _PLATFORMS if (version, platform) in found]
    return version if len(platforms) == len(_PLATFORMS) else " ".join([version, *platforms]) if platforms else ""


def _models(found: list[str]) -> str:
    others = [model for model in _MODELS if model not in found]
    if len(others) < len(found):
        return f"all but {', '.join(others)}" if others else "all"
    return ", ".join(found)


def _lines(outcomes: Mapping[tuple[str, str, str], Iterable[str]]) -> str:
    """A line for each outcome, with where it is."""
    runs: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for place, lines in outcomes.items():
        for line in lines:
            runs[line].append(place)
    return "\n".join(f"{line} | {_where(runs[line])}" for line in sorted(runs))


@pytest.fixture(scope="module")
def planned(registry, tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    for name, config in _MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def outcome(model: str, version: str, platform: str, run: Run) -> set[str]:
        config = GenerationConfig.parse({"model": str(folder / model), **run.values})
        assume = [f"vllm=={version}", f"platform=={platform}", "cpu==avx512_bf16"]  # the plan is that of no machine
        context = RunContext.gather(config, assume=assume, environ=run.environ)
        context = context.model_copy(update={"packages": {"vllm": version}})  # whatever else is installed
        switches = Switches.gather(command_line=SwitchNames(run.disable, run.force), environ={})
        return _outcome(registry.resolve(context, switches))

    plain = {place: outcome(*place, Run({})) for place in itertools.product(_MODELS, _VERSIONS, _PLATFORMS)}
    found = {"plain": _lines(plain)}
    for name, run in _RUNS.items():
        lines = {place: outcome(*place, run) for place in _PLACES}
        new = {place: [f"+ {line}" for line in lines[place] - plain[place]] for place in _PLACES}
        gone = {place: [f"- {line}" for line in plain[place] - lines[place]] for place in _PLACES}
        found[name] = _lines({place: [*gone[place], *new[place]] for place in _PLACES})
    return found


def test_every_recorded_run_has_the_plan_that_was_recorded(planned):
    before = recorded(_FILE, planned)

    changes = {
        name: list(unified_diff(before.get(name, "").splitlines(), text.splitlines(), n=0)) for name, text in planned.items()
    }
    assert before.keys() == planned.keys()
    assert {name: lines for name, lines in changes.items() if lines} == {}
