"""The arguments of the installed vLLM: names, types, defaults and help, read from its source without an import."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from installed import needs_vllm

from quirks_core.configuration.sections import EngineSection
from quirks_core.configuration.slots import Place, engine_doubt, engine_problem, installed_slot, is_slot, slot_named
from quirks_core.source.vllm_source import INSTALLED

LOUD = "raise RuntimeError('a module must not be imported to be read')\n"
#: Every form of a declaration, with the type and the default that are read; what is no argument has none.
FIELDS = {
    'model: str = "tiny"': (str, "tiny"),
    'block_size: int | None = CacheConfig.block_size\n    "Its own help."': (int | None, None),
    "swap: float = CacheConfig.swap_space": (float, None),
    'cache_dtype: "CacheDType" = get_field(CacheConfig, "cache_dtype")': (Literal["auto", "int8", "fp8"], "auto"),
    "backend: ParallelBackend | None = None": (Literal["ray", "mp"] | None, None),
    'format: str | Formats = "auto"': (str | Literal["auto", "dummy"], "auto"),
    "threshold: Threshold = 1": (int | float, 1),
    "local: Deep = 3": (str | int, 3),
    "several: int | str | None = None": (int | str | None, None),
    "limited: Annotated[int, Field(ge=1)] = 4": (int, 4),
    "made: dict[str, Any] = field(default_factory=dict)": (dict, None),
    "computed: int = 6 * 7": (int, None),
    "foreign: Foreign | None = None": (Any, None),
    'unknown_member: Literal["a", Foreign] = "a"': (Any, "a"),
    "required: str": (str, None),
    "_private: int = 0": None,
    "not_annotated = 1": None,
    "def method(self): ...": None,
}
ARGUMENTS = """
from typing import TYPE_CHECKING, Annotated, Literal
from vllm.config import CacheConfig, Threshold
from vllm.config.parallel import Backend as ParallelBackend
from elsewhere import Foreign

if TYPE_CHECKING:
    from vllm.config.cache import Formats
else:
    Formats = str

Local = str | int
Deep: "TypeAlias" = Local

@dataclass
class EngineArgs:
    FIELDS

class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False

class OtherArgs:
    other: int = 0

from vllm.config.cache import CacheDType
""".replace("FIELDS", "\n    ".join(FIELDS))
CONFIG = '''
from typing import Literal
Narrow = Literal["int8"]
CacheDType = Literal["auto", Narrow, "fp8"]
Limit = int | float
Formats = Literal["auto", "dummy"]

class CacheConfig:
    block_size: int = None
    """Size of a block."""
    swap_space: float = Field(default=4, ge=0)
    """Swap space,
    in GiB."""
    cache_dtype: CacheDType = "auto"
    """Type of the cache."""
'''


@pytest.fixture
def fake_vllm(write_modules):
    """A small vLLM that cannot be imported."""
    again = "from vllm.config.cache import CacheConfig\nfrom vllm.config.cache import Limit as Threshold\n"
    texts = {"engine/arg_utils": ARGUMENTS, "config/__init__": again, "config/cache": CONFIG, "__init__": ""}
    texts["config/parallel"] = 'Backend = Literal["ray", "mp"]\n'
    write_modules({f"vllm/{name}.py": LOUD + text for name, text in texts.items()})


@pytest.mark.usefixtures("fake_vllm")
def test_arguments_are_read_from_every_form_of_declaration():
    expected = {text.partition(":")[0]: found for text, found in FIELDS.items() if found}
    expected["enable_log_requests"] = (bool, False)

    found = {name: INSTALLED.arguments.find(name) for name in INSTALLED.arguments.names()}

    assert {name: (argument.type, argument.default) for name, argument in found.items()} == expected
    assert INSTALLED.arguments.find("other") is None


@pytest.mark.usefixtures("fake_vllm")
def test_an_argument_has_the_help_of_its_configuration():
    swap, block, cache, model = map(INSTALLED.arguments.find, ("swap", "block_size", "cache_dtype", "model"))

    assert (swap.help, swap.owner, swap.attribute) == ("Swap space, in GiB.", "CacheConfig", "swap_space")
    assert (cache.help, cache.owner, cache.attribute) == ("Type of the cache.", "CacheConfig", "cache_dtype")
    assert (block.help, model.help, model.owner, model.attribute) == ("Its own help.", "", "", "model")


@pytest.mark.usefixtures("fake_vllm")
def test_the_slot_of_an_argument_takes_what_its_type_takes():
    slot = installed_slot("engine.cache_dtype")
    problems = {
        ("engine.block_size", 16): None,
        ("engine.async_engine", True): None,  # ours, and nothing that vLLM has by that name
        ("refit.scope", "parameters"): None,
        ("engine.block_size", "16"): "engine.block_size takes a whole number, not '16'",
        ("engine.several", 1.5): "engine.several takes a whole number or a text, not 1.5",
        ("engine.cache_dtype", "int9"): "engine.cache_dtype takes one of auto, int8, fp8, not 'int9'; did you mean 'int8'?",
        ("engine.blok", 1): "engine.blok: the installed vLLM has no such engine argument; did you mean 'block_size'?",
    }

    assert {case: engine_problem(*case) for case in problems} == problems
    assert slot.choices == ("auto", "int8", "fp8")
    assert installed_slot("engine.foreign").takes == "any JSON value"
    assert installed_slot("engine.gone") is None


@pytest.mark.usefixtures("fake_vllm")
def test_a_value_that_a_plugin_may_add_is_doubted():
    doubt = (
        "engine.format: the installed vLLM does not list 'dumy'; did you mean 'dummy'? (listed: auto, dummy; a plugin may add"
    )

    assert engine_doubt("engine.format", "dumy").startswith(doubt)
    assert [engine_doubt("engine.format", value) for value in ("dummy", None)] == [None, None]
    assert [
        engine_doubt(name, "dumy") for name in ("engine.model", "engine.cache_dtype", "engine.gone", "engine.async_engine")
    ] == [None] * 4
    assert (engine_problem("engine.format", "dumy"), "int8" in engine_problem("engine.cache_dtype", "dumy")) == (None, True)


@pytest.mark.parametrize("modules", [{}, {"vllm/engine/arg_utils.py": "class EngineArgs(:\n"}])
def test_an_engine_that_cannot_be_read_leaves_names_open(write_modules, modules):
    write_modules({"vllm/__init__.py": "", **modules})

    assert (INSTALLED.arguments.names(), INSTALLED.arguments.find("seed"), installed_slot("engine.seed")) == (None, None, None)
    assert engine_problem("engine.no_such_argument", 1) is None


@needs_vllm
def test_every_argument_of_vllm_but_a_secret_is_a_slot():
    slots = {name: installed_slot(f"engine.{name}") for name in INSTALLED.arguments.names()}

    assert len(slots) > 150
    assert len([slot for slot in slots.values() if slot.type is not Any]) > 0.8 * len(slots)
    defaults = {name: INSTALLED.arguments.find(name).default for name in slots}
    assert [why for name, value in defaults.items() if value is not None and (why := slots[name].problem(value))] == []
    assert (slots["block_size"].type, slots["disable_custom_all_reduce"].type) == (int | None, bool)
    assert slots["scheduling_policy"].choices == ("fcfs", "priority")
    assert "Random seed" in INSTALLED.arguments.find("seed").help
    assert [name for name in slots if not is_slot(f"engine.{name}")] == ["hf_token"]


def test_every_engine_field_of_ours_is_an_argument_of_vllm():
    slots = [slot_named(f"engine.{key}") for key in EngineSection.model_fields]

    assert [slot.name for slot in slots if slot.place is Place.ARGUMENT and engine_problem(slot.name)] == []
    assert [slot.name for slot in slots if slot.place is not Place.ARGUMENT and INSTALLED.arguments.find(slot.key)] == []


@needs_vllm
def test_auto_leaves_an_argument_open_where_vllm_chooses():
    """It names the checkpoint's file where that is what the argument takes."""
    chosen = {
        (name, "auto"): name in ("dtype", "load_format") for name in ("dtype", "load_format", "generation_config", "gone")
    }
    chosen |= {("dtype", "bfloat16"): False, ("enforce_eager", False): False}

    assert {case: INSTALLED.arguments.leaves_open(*case) for case in chosen} == chosen
