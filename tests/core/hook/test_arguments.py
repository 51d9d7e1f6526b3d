"""Facts of a run from vLLM's arguments, and a plan's values back onto them. vLLM is imported; no engine starts."""

from __future__ import annotations

import json

import fork_server
import pytest
from installed import needs_vllm

pytestmark = needs_vllm


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Runs everything that needs ``EngineArgs`` in one process, as the import of vLLM takes longer than all of it."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}), encoding="utf-8")
    text = """
        from vllm import AsyncEngineArgs, EngineArgs
        from quirks_core.facts.trainers import TRAINERS
        from quirks_core.hook import arguments as a, explicit
        from quirks_core.hook.settings import HookSettings
        from quirks_core.plugins.planning import make_plan
        from quirks_core.configuration.serve_command import read_serve_command
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        found = {}
        args = EngineArgs(model=model, dtype="float32", max_num_seqs=8, data_parallel_size_local=1)
        names = {"dtype", "max_num_seqs", "gpu_memory_utilization", "data_parallel_size_local"}
        explicit.declare(args, explicit.Typed(frozenset(names)))
        settings = HookSettings(given={"refit.scope": "parameters", "env.ACME": "1"})
        for purpose in ("rollout", "serve"):
            run = a.engine_run(args, settings, purpose)
            found[purpose] = {"slots": run.slots(), "typed": sorted(run.typed_slots())}
            found[purpose]["undeclared"] = sorted(run.undeclared_slots())
        signs = {"load_format": "dummy", "enable_sleep_mode": True, "worker_extension_cls": "a.B"}
        every = args, AsyncEngineArgs(model=model), EngineArgs(model=model, **signs)
        backend = EngineArgs(model=model, attention_backend=AttentionBackendEnum.CPU_ATTN)
        found["backend"] = a.engine_run(backend, HookSettings(), "serve").slots()["engine.attention_backend"]
        found["purposes"] = [a.purpose_of(one, HookSettings(), None) for one in every]

        same, other = EngineArgs(model=model, dtype="float32", max_num_seqs=8), EngineArgs(model=model, dtype="float32")
        found["identity"] = [a.identity(args) == a.identity(same), a.identity(args) == a.identity(other)]

        lines = [f"{model}", f"{model} --dtype float16 --logprobs-mode raw_logprobs", f"{moe} -dp 2 --enable-expert-parallel"]
        found["plans"], found["ours"] = [], []
        for words in lines:
            command = read_serve_command(["vllm", "serve", *words.split()])
            args_of = AsyncEngineArgs(**command.arguments)
            explicit.declare(args_of, explicit.Typed(frozenset(command.arguments) - {"model"}))
            for purpose in ("rollout", "serve"):
                runs = command.config(purpose=purpose), a.engine_run(args_of, HookSettings(), purpose)
                plans = [make_plan(run, environ={}) for run in runs]
                found["ours"] += [patch.quirk.id for plan in plans for patch in plan.patches if "coalesced" in patch.quirk.id]
                found["plans"].append([[(x.slot, x.value, x.status) for x in plan.adjustments] for plan in plans])

        def planned(trainer, dtype, **given):
            args = EngineArgs(model=model, dtype=dtype)
            explicit.declare(args, explicit.Typed(frozenset({"dtype"})))
            given = {slot.replace("_", "."): value for slot, value in given.items()}
            return make_plan(a.engine_run(args, HookSettings(given=given, trainer=TRAINERS[trainer]), "rollout"), environ={})

        half = {"train_dtype": "float16", "train_autocast": "none"}
        follows = [planned(trainer, "bfloat16", **half) for trainer in ("openrlhf", "trl")]
        found["follows"] = [plan.changes.get("engine.dtype") for plan in follows]
        assumed = [planned("verl", dtype).context for dtype in ("bfloat16", "float16")]
        found["assumed"] = [[run.settings.get("train.autocast"), run.sources.get("train.autocast")] for run in assumed]

        args.compilation_config.cudagraph_capture_sizes = [1, 2]
        changes = {"engine.logprobs_mode": "processed_logprobs", "engine.head_dtype": "float32", "refit.clear_cache": True,
                   "engine.compilation_config": {"mode": 0}, "env.ACME": "1", "engine.async_engine": True}
        a.put(args, changes)
        compiled = args.compilation_config
        found["put"] = [args.logprobs_mode, args.hf_overrides, int(compiled.mode), compiled.cudagraph_capture_sizes,
                        type(compiled).__name__]
        args.hf_overrides = lambda config: config
        try:
            a.put(args, {"engine.head_dtype": "float32"})
        except Exception as error:
            found["function"] = str(error)
    """
    moe = tmp_path_factory.mktemp("moe")
    (moe / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_experts": 8}), encoding="utf-8")
    return fork_server.run(text, model=str(folder), moe=str(moe))


def test_the_facts_of_an_engine_leave_out_our_own_defaults(seen):
    slots = seen["rollout"]["slots"]

    assert slots["engine.load_format"] == "auto"  # not our own default of rollouts
    assert (slots["engine.dtype"], slots["engine.max_num_seqs"], slots["engine.gpu_memory_utilization"]) == ("float32", 8, 0.92)
    assert (slots["refit.scope"], slots["parallel.dp_strategy"]) == ("parameters", "engine")
    assert slots["engine.tensor_parallel_size"] == 1
    assert {name.partition(".")[0] for name in slots} == {"engine", "parallel", "refit"}
    assert "engine.enable_prefix_caching" not in slots
    assert {"engine.data_parallel_size_local", "engine.generate_from_dummy"}.isdisjoint(slots)  # a node's place; our worker's
    typed = ["engine.dtype", "engine.gpu_memory_utilization", "engine.max_num_seqs", "refit.scope"]
    assert seen["rollout"]["typed"] == typed  # also where it equals the default


def test_a_plan_for_a_command_is_what_the_hook_in_it_plans(seen):
    assert [command for command, _ in seen["plans"]] == [hook for _, hook in seen["plans"]]
    assert seen["plans"][0][0], "a rollout has adjustments"
    assert seen["ours"] == []  # what only our worker makes use of
    assert "parallel.dp_strategy" not in {slot for plans in seen["plans"] for slot, *_ in plans[0]}


def test_settings_of_the_trainer_are_unknown_only_in_a_rollout(seen):
    rollout, serve = (set(seen[purpose]["undeclared"]) for purpose in ("rollout", "serve"))

    assert {"refit.clear_cache", "sampling.top_p", "train.backend", "request.timeout_s"} <= rollout
    assert "refit.scope" not in rollout
    assert {name.partition(".")[0] for name in serve} == {"request", "sampling"}


def test_an_attention_backend_is_called_as_users_type_it(seen):
    assert seen["backend"] == "CPU_ATTN"


def test_the_purpose_follows_from_the_arguments(seen):
    signs = "a sign of a trainer: load_format=dummy, enable_sleep_mode, worker_extension_cls"
    assert list(map(tuple, seen["purposes"])) == [
        ("eval", "no sign of a trainer, and no server"),
        ("serve", "no sign of a trainer"),
        ("rollout", signs),
    ]


def test_a_default_of_a_framework_follows_its_trainer(seen):
    """OpenRLHF starts every engine in bfloat16; TRL passes no dtype, so that its user has set it."""
    assert seen["follows"] == ["float16", None]
    assert seen["assumed"] == [["bfloat16", "verl's default"], [None, None]]  # of an engine in bfloat16 alone


def test_arguments_of_one_command_line_have_one_identity(seen):
    assert seen["identity"] == [True, False]


def test_values_are_put_into_arguments_of_every_form(seen):
    assert seen["put"] == ["processed_logprobs", {"head_dtype": "float32"}, 0, [1, 2], "CompilationConfig"]
    assert "hf_overrides is a function" in seen["function"]
