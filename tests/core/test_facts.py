"""The facts of a run: read once, from JSON and metadata, with unknown told apart from absent."""

from __future__ import annotations

import json
import socket
import time

import pytest
from installed import needs_vllm

from quirks_core import Fact, RunContext, model_type
from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.slots import SLOTS
from quirks_core.facts import context
from quirks_core.facts.checkpoint import CHECKPOINT_FACTS
from quirks_core.facts.fact_table import FACTS, FAMILIES, always_known, assumed_as, is_known_fact
from quirks_core.facts.model import ModelFacts, require_weights, unreachable
from quirks_core.facts.model_runner import Runner
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.plan.formats import option_for
from quirks_core.plugins.registry import Registry


@pytest.fixture
def gather(model):
    """Gathers the facts of a run in an empty environment, of which quirks ask for nothing unless they are named."""
    folder = str(model())

    def make(*, fact_names=(), assume=(), **sections):
        config = GenerationConfig.parse({"model": folder, **sections})
        return RunContext.gather(config, fact_names=fact_names, assume=assume, environ={})

    return make


@pytest.mark.parametrize(
    ("overrides", "fact", "value"),
    [
        ({"quantization_config": {}}, "model.is_quantized", False),
        ({"quantization_config": {}}, "model.quantization.quant_method", None),
        ({}, "model.quantization.quant_method", "mxfp4"),
        ({"model_type": "qwen3"}, "model.model_type", "qwen3"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "model.config.rope_parameters.rope_theta", None),
        ({"text_config": {"rope_parameters": {"factor": 2.0}}}, "model.config.text_config.rope_parameters.rope_theta", 1.0),
        ({"text_config": {"vocab_size": 8}}, "model.config.text_config.rope_parameters.rope_theta", 1.0),
    ],
)
def test_facts_of_the_model_are_those_with_typed_overrides(overrides, fact, value):
    rope = {"rope_type": "default", "rope_theta": 1.0}
    quantization = {"quant_method": "mxfp4"}
    config = {
        "model_type": "a",
        "rope_parameters": rope,
        "quantization_config": quantization,
        "text_config": {"rope_parameters": rope},
    }
    run = RunContext(model=ModelFacts(name="m", path="m", config=config), settings={"engine.hf_overrides": overrides})

    assert run.fact(fact) == value
    assert run.model.config == config


@pytest.mark.parametrize(
    ("config", "beside", "fact", "value"),
    [
        ({}, {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "quant_method", "modelopt"),
        ({}, {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}, "quant_method", "modelopt_fp4"),
        ({"quantization_config": {"quant_method": "awq"}}, {"quantization": {"quant_algo": "FP8"}}, "quant_algo", None),
        ({"compression_config": {"format": "int-quantized"}}, None, "format", "int-quantized"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, None, "quant_method", "fp8"),
    ],
)
def test_how_weights_are_quantised_is_read_where_vllm_reads_it(model, config, beside, fact, value):
    folder = model(**config)
    if beside is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(beside))

    run = RunContext(model=ModelFacts.read(str(folder)))

    assert run.fact("model.is_quantized") is True
    assert run.fact(f"model.quantization.{fact}") == value


@pytest.mark.parametrize(
    ("config", "types"),
    [
        ({"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}, ("kimi_k2", "deepseek_v3")),
        ({"model_type": "acme", "architectures": ["MiniMaxM2ForCausalLM"]}, ("acme", "minimax_m2")),
        ({"architectures": ["LongcatFlashForCausalLM"]}, "longcat_flash"),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}, "gemma3_text"),
    ],
)
def test_a_model_is_also_of_the_type_of_its_architecture(make_context, config, types):
    run = make_context(config=config)
    several = types if isinstance(types, tuple) else (types,)

    assert run.fact("model.model_type") == types
    assert [model_type(name).trace(run).answer for name in (*several, "qwen3")] == ["yes"] * len(several) + ["no"]


def test_a_hub_that_cannot_be_reached_is_asked_once(tmp_path, monkeypatch):
    """By all files together, and nobody waits for it to come back; what its cache has is read from there."""
    hub = pytest.importorskip("huggingface_hub.utils")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    asked = []

    def no_route(address, *_more, **_named):
        asked.append(address)
        raise OSError("no route to host")

    monkeypatch.setattr(socket, "create_connection", no_route)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it is asked again"))
    home, commit = tmp_path / "models--acme--tiny", "0" * 40
    for name, text in {"refs/main": commit, f"snapshots/{commit}/config.json": '{"model_type": "qwen3"}'}.items():
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(text)
    unreachable.cache_clear()
    hub.build_hf_headers()  # for which the library asks once in a process
    asked.clear()

    run = RunContext.gather(GenerationConfig.parse({"model": "acme/tiny"}))

    assert (run.model.name, run.model.model_type) == ("acme/tiny", "qwen3")
    assert {run.fact(name) for name in CHECKPOINT_FACTS} - {UNKNOWN} == set()
    with pytest.raises(UsageError, match=r"config\.json of 'acme/other' .*hub cannot be reached.*no route to host"):
        ModelFacts.read("acme/other")
    assert len(asked) == 1
    unreachable.cache_clear()


def experts(count):
    """The facts of a mixture with that many experts; None for a dense model."""
    return {"model.num_experts": count, "model.is_moe": UNKNOWN if count is UNKNOWN else count is not None}


def sizes(*values):
    """Products of sizes."""
    names = ("parallel.replica_size", "parallel.expert_group_size", "parallel.num_ranks", "cluster.num_gpus")
    return dict(zip(names, values, strict=True))


PARALLEL = {f"engine.{name}_parallel_size": size for name, size in (("tensor", 2), ("pipeline", 3), ("data", 4))}
HEADS = {"num_attention_heads": 4, "hidden_size": 64}


@pytest.mark.parametrize(
    ("config", "settings", "facts"),
    [
        ({"num_experts": 8}, {}, experts(8)),
        ({"text_config": {"n_routed_experts": 2}}, {}, experts(2)),
        ({"model_type": "ernie4_5_vl_moe", "moe_num_experts": [64, 64]}, {}, experts(64)),
        ({"num_experts": 1}, {}, experts(None)),
        ({"model_type": "qwen3"}, {}, experts(None)),
        ({"model_type": "qwen3_moe"}, {}, experts(UNKNOWN)),
        ({"model_type": "acme_vl", "text_config": {"model_type": "acme_moe"}}, {}, experts(UNKNOWN)),
        ({"model_type": "acme", "num_experts": "many"}, {}, experts(UNKNOWN)),
        ({}, {}, experts(UNKNOWN)),
        (HEADS, {}, {"model.head_size": 16}),
        ({**HEADS, "head_dim": 32}, {}, {"model.head_size": 32}),
        ({"head_dim": 8, "text_config": HEADS}, {}, {"model.head_size": 16}),
        ({"num_heads": 4, "head_dim": 32}, {}, {"model.head_size": None}),  # a state-space model's
        ({"num_attention_heads": [4, 8], "hidden_size": 64}, {}, {"model.head_size": None}),
        ({}, {}, sizes(1, 1, 1, None)),
        ({}, {**PARALLEL, "cluster.gpus_per_node": 8}, sizes(6, 8, 24, 8)),
        ({}, {"cluster.gpus_per_node": 8, "cluster.num_nodes": 3}, sizes(1, 1, 1, 24)),
    ],
)
def test_experts_heads_and_sizes_are_read_or_computed(make_context, config, settings, facts):
    context = make_context(config=config, settings=settings)

    assert {name: context.fact(name) for name in facts} == facts


def test_only_a_fact_that_says_when_it_is_unknown_can_be(make_context):
    of_files = dict.fromkeys(CHECKPOINT_FACTS, 1)  # whose values are another file's tests
    config = {"model_type": "qwen3_moe", "num_experts": 8, "dtype": "bfloat16"}
    everything = make_context(config=config, cpu=frozenset(), gpu=90, extra=of_files)
    nothing = make_context(config={}, packages={}, platform=None, environment={"VLLM_A": "1"})

    doubtful = {name for name, spec in FACTS.items() if spec.unknown}
    assert [name for name in FACTS if everything.fact(name) is UNKNOWN] == []
    assert {name for name in FACTS if nothing.fact(name) is UNKNOWN} == doubtful
    assert {name for name in FACTS if not always_known(name)} == doubtful
    assert {name for name in FACTS if assumed_as(name)} == doubtful


#: A value for an option, by the name that it gives or the type that it takes.
_VALUES = {
    "platform": "cuda",
    "cpu": "amx",
    "gpu": "8.0",
    "vllm": "0.33.0",
    "transformers": "5.0",
    "trl": "1.16.0",
    bool: "true",
    int: "3",
    str: "qwen3",
    list[int]: "[3]",
    list[str]: "[VLLM_A]",
    Runner: "v2",
}


def test_every_fact_can_be_given_as_the_hint_for_it_says(model, monkeypatch):
    """Looked at: all facts that built-in quirks read, where next to nothing is known of machine and model."""
    monkeypatch.setattr(context, "installed_versions", dict)
    monkeypatch.setattr(context, "installed_version", lambda _: None)
    monkeypatch.setattr(context, "installed_platform", lambda: None)
    folder = model()
    (folder / "config.json").write_text("{}")
    config, names = GenerationConfig.parse({"model": str(folder)}), Registry.load().fact_names
    start = RunContext.gather(config, fact_names=names, environ={"VLLM_A": "1"})
    missing = {name: option_for(name) for name in names if start.fact(name) is UNKNOWN}

    assert {"platform.gpu.capability", "platform.cpu.amx", "environment.unread", "model.is_moe"} < missing.keys()
    for name, option in missing.items():
        given = option.removeprefix("--assume ").removesuffix("==…")
        value = _VALUES.get(given) or (_VALUES[FACTS[given].takes] if given in FACTS else "1.0")
        assumed = RunContext.gather(config, fact_names=names, assume=[f"{given}=={value}"], environ={"VLLM_A": "1"})
        assert assumed.fact(name) is not UNKNOWN, (name, option)


def test_every_fact_has_one_name(make_context):
    """Those that an example can give are in `tests/core/test_quirk.py`."""
    expected = {
        "model.model_type": "qwen3_vl",  # by the architecture: the other is not a text
        "model.architectures": ("Qwen3VL",),
        "model.is_multimodal": True,
        "model.text_config.layers": 2,
        "typed.engine.load_format": False,
        "typed.env.NAME": True,
        "env.OTHER": None,
        "packages.gone": UNKNOWN,
        "engine.dtype": None,
        "engine.hf_overrides.rope_scaling.factor": 4.0,
        "engine.load_format.key": None,
        "engine.any_argument.key": None,
        "acme.nodes": 4,
        "weather": UNKNOWN,
    }
    config = {"model_type": 3, "architectures": ["Qwen3VL"], "vision_config": {"depth": 1}, "text_config": {"layers": 2}}
    context = make_context(
        config=config,
        settings={"engine.load_format": "dummy", "engine.hf_overrides": {"rope_scaling": {"factor": 4.0}}},
        environment={"NAME": "1"},
        extra={"acme.nodes": 4},
    )

    assert {name: context.fact(name) for name in expected} == expected
    assert [name for name in expected if not is_known_fact(name)] == ["acme.nodes", "weather"]


def test_names_of_facts_are_distinguished_from_other_names():
    families = {"typed.": "engine.seed", "env.": "NAME", "engine.": "any_argument", "packages.": "any", "model.config.": "a.b"}
    families |= {"model.quantization.": "quant_method", "model.text_config.": "a"}

    assert {spec.name for spec in FAMILIES} == set(families)
    assert all(is_known_fact(family + rest) for family, rest in families.items())
    assert not any(map(is_known_fact, ("typed.refit.scop", "env.PATH", "engine.hf_token", "model.model_typ", "acme.nodes")))
    assert all(map(always_known, (*SLOTS, "typed.engine.seed", "env.HOME", "model.config.a", "purpose")))
    assert not any(map(always_known, ("engine.any_argument", "packages.vllm", "platform", "acme.nodes")))
    # A key inside of an argument is known as the argument is.
    inside = ("engine.hf_overrides.a.b", "engine.any_argument.a")
    assert [(is_known_fact(name), always_known(name)) for name in inside] == [(True, True), (True, False)]
    assert not any(map(is_known_fact, ("engine.hf_token.a", "typed.engine.hf_overrides.a", "refit.scope.a")))


@needs_vllm
def test_arguments_that_vllm_does_not_take_are_all_in_one_error(gather):
    with pytest.raises(UsageError) as caught:
        gather(engine={"max_num_sequences": 4, "vllm_kwargs": {"kv_cache_dtyp": "fp8"}, "block_size": "16"})
    assert str(caught.value) == (
        "engine.block_size takes a whole number, not '16'; "
        "engine.kv_cache_dtyp: the installed vLLM has no such engine argument; did you mean 'kv_cache_dtype'?; "
        "engine.max_num_sequences: the installed vLLM has no such engine argument; did you mean 'max_num_seqs'?"
    )


def test_what_an_engine_takes_is_known_unless_it_is_assumed(make_context, write_modules):
    arguments = "class EngineArgs:\n    block_size: int = 1\n"
    envs = 'table = {\n    "VLLM_PORT": lambda: 1,\n}\n'
    deep = 'import os\n\nvalue = os.environ.get("VLLM_ELSEWHERE")\n'
    files = {"__init__": "", "envs": envs, "engine/arg_utils": arguments, "deep/down": deep}
    write_modules({f"vllm/{name}.py": text for name, text in files.items()})
    variables = dict.fromkeys(("VLLM_PORT", "VLLM_ELSEWHERE", "VLLM_B", "VLLM_A", "NCCL_X"), "1")

    here, assumed = (make_context(environment=variables, assumed=frozenset(names)) for names in ((), ("vllm",)))

    assert here.fact("environment.unread") == ("VLLM_A", "VLLM_B")
    assert Fact("environment.unread").is_not_empty().trace(assumed).answer == "unknown"
    assert make_context(packages={}).fact("environment.unread") == ()  # of none, none is unread, whatever the engine
    # An argument that the engine lacks is not one that was left open.
    assert [here.fact(f"engine.{name}") for name in ("block_size", "gone", "gone.key")] == [None, UNKNOWN, UNKNOWN]
    assert assumed.fact("engine.gone") is None


def test_a_context_survives_json_with_its_names_in_order(make_context):
    names = frozenset({"vllm", "torch", "ray", "transformers", "flash-attn"})
    context = make_context(assumed=names, typed=names)

    written = context.model_dump_json()

    assert RunContext.model_validate_json(written) == context
    assert (json.loads(written)["assumed"], json.loads(written)["typed"]) == (sorted(names), sorted(names))


def test_the_gpu_is_read_only_where_a_quirk_asks_for_it(gather, monkeypatch):
    monkeypatch.setattr(context, "gpu_capability", lambda: 90)
    fact = "platform.gpu.capability"

    runs = [
        gather(fact_names=asked, assume=[f"platform=={name}"])
        for asked, name in (((fact,), "cuda"), ((), "cuda"), ((fact,), "cpu"))
    ]

    assert [run.fact(fact) for run in runs] == [90, UNKNOWN, UNKNOWN]
    assert [run.gpu for run in runs] == [90, None, None]


def test_weights_of_a_hub_id_are_the_engine_s_business():
    assert require_weights("acme/tiny") is None
