"""The facts of a run: read once, from JSON and metadata, with unknown told apart from absent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from quirks_core import Fact, ModelFacts, RunContext, UsageError, environment, sources, typed
from quirks_core.checkpoint import require_weights
from quirks_core.context import FACTS, Purpose
from quirks_core.match import UNKNOWN

MakeContext = Callable[..., RunContext]


@dataclass
class Settings:
    """The least that a context is gathered from."""

    model_path: str
    values: dict[str, Any] = field(default_factory=dict)
    typed: frozenset[str] = frozenset()
    env: dict[str, str] = field(default_factory=dict)
    purpose: Purpose = "eval"
    recipe: str | None = "grpo"
    model_revision: str | None = None

    def slots(self) -> dict[str, Any]:
        """The values."""
        return self.values

    def typed_slots(self) -> frozenset[str]:
        """The typed ones."""
        return self.typed

    def environment(self) -> Mapping[str, str]:
        """The variables."""
        return self.env


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str | None], str]:
    """Writes a model folder with the given text as its ``config.json``."""

    def write(config: str | None) -> str:
        folder = tmp_path / "tiny-model"
        folder.mkdir()
        if config is not None:
            (folder / "config.json").write_text(config, encoding="utf-8")
        return str(folder)

    return write


@pytest.fixture
def model(checkpoint: Callable[[str | None], str]) -> str:
    """A model folder."""
    return checkpoint('{"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}')


def test_the_model_is_what_its_config_says(model: str) -> None:
    facts = ModelFacts.read(model)

    assert (facts.name, facts.path, facts.model_type) == ("tiny-model", model, "gemma3_text")
    assert facts.architectures == ("Gemma3ForCausalLM",)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "has no config.json"),
        ("", "not valid JSON"),
        ("{not json", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1, 2]", "must hold a JSON object, not a list"),
        ("null", "must hold a JSON object, not a NoneType"),
    ],
)
def test_a_broken_config_is_one_clear_usage_error(
    checkpoint: Callable[[str | None], str], config: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as error:
        ModelFacts.read(checkpoint(config))

    assert "tiny-model" in str(error.value)


def test_a_config_that_is_no_text_is_a_usage_error(checkpoint: Callable[[str | None], str]) -> None:
    folder = checkpoint("{}")
    Path(folder, "config.json").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(UsageError, match="cannot be read"):
        ModelFacts.read(folder)


@pytest.mark.parametrize("path", ["./no-such-folder", "/no/such/folder", "~/no-such-folder-here", "no-such-folder", "a/b/c"])
def test_a_missing_folder_is_a_usage_error_that_looks_nothing_up(path: str) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        ModelFacts.read(path)


def test_a_file_is_no_model_folder(model: str) -> None:
    with pytest.raises(UsageError, match="is a file"):
        ModelFacts.read(f"{model}/config.json")


def test_a_folder_without_weights_is_told_what_to_do(model: str) -> None:
    with pytest.raises(UsageError, match=r"--set engine\.load_format=dummy"):
        require_weights(model)


def test_a_folder_with_weights_and_a_hub_id_have_weights(model: str) -> None:
    Path(model, "model.safetensors").touch()

    assert (require_weights(model), require_weights("Qwen/Qwen3-0.6B")) == (None, None)


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"num_experts": 8}, 8),
        ({"text_config": {"n_routed_experts": 2}}, 2),
        ({"model_type": "ernie4_5_vl_moe", "moe_num_experts": [64, 64]}, 64),
        ({"num_experts": 1}, None),
        ({"model_type": "jamba", "num_experts": 0}, None),
        ({"model_type": "qwen3"}, None),
        ({"model_type": "qwen3_moe"}, UNKNOWN),
        ({"model_type": "acme", "architectures": ["AcmeMoeForCausalLM"]}, UNKNOWN),
        ({"model_type": "acme_vl", "text_config": {"model_type": "acme_moe"}}, UNKNOWN),
        ({"model_type": "acme", "num_experts": "many"}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
def test_a_model_with_several_experts_is_a_mixture_and_one_that_does_not_say_is_unknown(
    make_context: MakeContext, config: dict[str, Any], count: object
) -> None:
    context = make_context(config=config)

    assert context.fact("model.num_experts") is count
    assert context.fact("model.is_moe") is (UNKNOWN if count is UNKNOWN else count is not None)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, [1, 1, 1, None]),
        ({"engine.tensor_parallel_size": 2}, [2, 2, 2, None]),
        (
            {
                "engine.tensor_parallel_size": 2,
                "engine.pipeline_parallel_size": 3,
                "engine.data_parallel_size": 4,
                "cluster.gpus_per_node": 8,
            },
            [6, 8, 24, 8],
        ),
        ({"cluster.gpus_per_node": 8, "cluster.num_nodes": 3}, [1, 1, 1, 24]),
        ({"cluster.num_nodes": 3}, [1, 1, 1, None]),
    ],
)
def test_sizes_are_products_of_what_is_set_and_gpus_are_absent_where_none_are_named(
    make_context: MakeContext, settings: dict[str, int], sizes: list[int | None]
) -> None:
    context = make_context(settings=settings)

    names = ("parallel.replica_size", "parallel.expert_group_size", "parallel.num_ranks", "cluster.num_gpus")
    assert [context.fact(name) for name in names] == sizes


def test_every_named_fact_is_one_that_a_run_has(make_context: MakeContext) -> None:
    context = make_context(config={"model_type": "qwen3_moe", "num_experts": 8})

    assert [name for name in FACTS if context.fact(name) is UNKNOWN] == []


def test_a_model_with_a_vision_tower_is_multimodal(make_context: MakeContext) -> None:
    assert make_context(config={"vision_config": {"depth": 1}}).fact("model.is_multimodal") is True


@pytest.mark.parametrize("config", [{"model_type": 3}, {}])
def test_a_model_type_that_is_no_text_is_unknown(make_context: MakeContext, config: dict[str, Any]) -> None:
    assert make_context(config=config).fact("model.model_type") is UNKNOWN


def test_any_key_of_the_config_is_a_fact(make_context: MakeContext) -> None:
    context = make_context(config={"rope": {"theta": 10}, "n": 1})

    got = [context.fact(f"model.config.{key}") for key in ("rope.theta", "n", "rope.factor", "n.deeper")]
    assert got == [10, 1, None, None]


def test_a_slot_left_open_is_absent_and_an_unheard_of_fact_is_unknown(make_context: MakeContext) -> None:
    context = make_context()

    assert context.fact("engine.seed") is None
    assert context.fact("weather") is UNKNOWN


def test_a_package_that_is_not_installed_is_unknown(make_context: MakeContext) -> None:
    assert make_context(packages={}).fact("packages.vllm") is UNKNOWN


def test_a_platform_that_cannot_be_told_is_unknown(make_context: MakeContext) -> None:
    assert make_context(platform=None).fact("platform") is UNKNOWN


def test_a_recipe_that_was_not_given_is_absent(make_context: MakeContext) -> None:
    assert make_context().fact("recipe") is None


def test_facts_of_plugins_are_found_under_their_name(make_context: MakeContext) -> None:
    assert make_context(extra={"my-dist.nodes": 4}).fact("my-dist.nodes") == 4


def test_a_plugins_fact_cannot_stand_for_one_of_ours(make_context: MakeContext) -> None:
    extra = {"model.name": "other", "engine.load_format": "auto"}

    context = make_context(extra=extra)

    assert (context.fact("model.name"), context.fact("engine.load_format")) == ("tiny-qwen3", "dummy")


def test_a_key_counts_as_typed_even_with_the_default_value(model: str) -> None:
    settings = Settings(model, {"engine.seed": 0, "engine.dtype": "auto"}, frozenset({"engine.seed"}))

    context = RunContext.gather(settings, environ={})

    assert [typed(slot).trace(context).answer for slot in ("engine.seed", "engine.dtype")] == ["yes", "no"]


def test_a_variable_that_is_a_slot_counts_as_typed(model: str) -> None:
    context = RunContext.gather(Settings(model), environ={"VLLM_USE_V1": "0"})

    assert (context.settings["env.VLLM_USE_V1"], "env.VLLM_USE_V1" in context.typed) == ("0", True)


def test_the_configurations_variables_override_the_shells(model: str) -> None:
    context = RunContext.gather(Settings(model, env={"VLLM_USE_V1": "1"}), environ={"VLLM_USE_V1": "0", "NCCL_DEBUG": "INFO"})

    assert context.environment == {"VLLM_USE_V1": "1", "NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize("secret", ["VLLM_API_KEY", "NRL_TOKEN", "VLLM_SECRET_X", "NCCL_PASSWORD", "HF_TOKEN", "PATH"])
def test_secrets_and_foreign_variables_are_never_read(model: str, secret: str) -> None:
    context = RunContext.gather(Settings(model, env={secret: "s3cr3t"}), environ={secret: "s3cr3t"})

    assert "s3cr3t" not in context.model_dump_json()


def test_a_variable_that_is_not_set_is_absent(make_context: MakeContext) -> None:
    assert environment("VLLM_USE_V1").is_set().trace(make_context()).answer == "no"


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "VLLM_API_KEY"])
def test_a_variable_that_is_never_read_is_unknown_not_absent(make_context: MakeContext, variable: str) -> None:
    assert environment(variable).is_set().trace(make_context()).answer == "unknown"


def test_assumptions_replace_what_is_installed(model: str) -> None:
    context = RunContext.gather(Settings(model), assume=["vllm==0.9.1", "platform==rocm"], environ={})

    assert (context.packages["vllm"], context.platform, context.assumed) == ("0.9.1", "rocm", {"vllm"})


def test_the_source_is_known_only_of_what_is_installed_and_not_assumed(make_context: MakeContext) -> None:
    context = make_context(packages={"vllm": "0.9.1", "torch": "2.8.0"}, assumed=frozenset({"vllm"}))

    assert [context.source_known(name) for name in ("vllm", "torch", "ray")] == [False, True, False]


@pytest.fixture
def engine_reads(write_modules: Callable[[dict[str, str]], None]) -> None:
    """Installs an engine that reads one variable."""
    write_modules({"vllm/__init__.py": "", "vllm/envs.py": 'table = {\n    "VLLM_PORT": lambda: 1,\n}\n'})
    assert sources.unread_by_engine(["VLLM_PORT", "VLLM_GONE"]) == ("VLLM_GONE",)


@pytest.mark.usefixtures("engine_reads")
def test_variables_that_the_engine_does_not_read_are_named(make_context: MakeContext) -> None:
    context = make_context(environment={"VLLM_PORT": "1", "VLLM_B": "1", "VLLM_A": "1", "NCCL_X": "1"})

    assert context.fact("environment.unread") == ("VLLM_A", "VLLM_B")


@pytest.mark.usefixtures("engine_reads")
def test_what_an_assumed_engine_reads_is_unknown(make_context: MakeContext) -> None:
    context = make_context(environment={"VLLM_A": "1"}, assumed=frozenset({"vllm"}))

    assert Fact("environment.unread").is_not_empty().trace(context).answer == "unknown"


def test_without_variables_none_is_unread_whatever_the_engine(make_context: MakeContext) -> None:
    assert make_context(packages={}).fact("environment.unread") == ()


def test_a_context_is_frozen_and_knows_its_keys(make_context: MakeContext) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_context().platform = "xpu"
    with pytest.raises(ValidationError, match="Extra inputs"):
        make_context(colour="red")


def test_a_context_survives_json_unchanged(make_context: MakeContext) -> None:
    context = make_context(typed=frozenset({"engine.seed", "engine.dtype"}), assumed=frozenset({"vllm", "torch"}))

    assert RunContext.model_validate_json(context.model_dump_json()) == context


def test_the_json_of_a_context_lists_names_in_order(make_context: MakeContext) -> None:
    names = frozenset({"vllm", "torch", "ray", "transformers", "flash-attn"})

    written = json.loads(make_context(assumed=names, typed=names).model_dump_json())

    assert (written["assumed"], written["typed"]) == (sorted(names), sorted(names))
