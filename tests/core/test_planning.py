"""The one way from a configuration to its plan: which layer wins, and that everybody who goes it gets the same plan."""

from __future__ import annotations

import pytest
from installed import needs_vllm

from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.records import NoteKind
from quirks_core.plan.switches import DISABLE_VARIABLE, SwitchNames
from quirks_core.plugins.lock import Lock, LockError
from quirks_core.plugins.planning import LOCKED_VARIABLE, STRICT_VARIABLE, PlanOptions, make_plan
from quirks_core.plugins.registry import Registry

QUIRK = "double-bos"


@pytest.fixture
def config(model):
    """Checks a configuration of a model."""
    folder = str(model())
    return lambda **sections: GenerationConfig.parse({"model": folder, **sections})


def test_switches_come_from_all_four_layers(config):
    """`tests/core/test_switches.py` has which of them wins."""
    off, environ = SwitchNames([QUIRK]), {DISABLE_VARIABLE: QUIRK}

    made = PlanOptions.gather(config(quirks={"disable": [QUIRK]}), call=off, command_line=off, environ=environ)

    assert [layer[QUIRK].layer for layer in made.switches.layers] == [
        "the call (disable=)",
        "the command line (--disable)",
        f"the environment ({DISABLE_VARIABLE})",
        "the configuration (quirks.disable)",
    ]


@pytest.mark.parametrize(
    ("flag", "text", "strict"), [(False, None, False), (True, "0", True), (False, "1", True), (False, "", False)]
)
def test_a_plan_is_strict_if_flag_or_environment_say_so(flag, text, strict):
    """Any other word is never silently lenient."""
    environ = {} if text is None else {STRICT_VARIABLE: text}

    assert PlanOptions.gather(strict=flag, environ=environ).strict is strict
    with pytest.raises(UsageError, match=rf"{STRICT_VARIABLE}='yes': set it to 1, or to 0"):
        PlanOptions.gather(environ={STRICT_VARIABLE: "yes"})


@pytest.mark.parametrize(
    ("flag", "environment", "file", "winner"),
    [("a", "b", "c", "a"), (None, "b", "c", "b"), (None, None, "c", "c"), (None, "", "c", "c"), (None, None, None, None)],
)
def test_the_lock_file_is_that_of_the_strongest_layer(config, flag, environment, file, winner):
    environ = {} if environment is None else {LOCKED_VARIABLE: environment}

    assert PlanOptions.gather(config(quirks={"locked": file}), locked=flag, environ=environ).locked == winner


def test_a_plan_is_held_against_the_lock_file_that_won(config, tmp_path):
    good, other = tmp_path / "good.lock", tmp_path / "other.lock"
    Lock.of(Registry.load()).write(good)
    Lock.of(Registry.load([])).write(other)
    run = config(quirks={"locked": str(other)})

    make_plan(run, environ={LOCKED_VARIABLE: str(good)})

    with pytest.raises(LockError, match=r"other\.lock"):
        make_plan(run, environ={})


def test_the_plan_is_made_of_what_its_quirks_ask_for(config, fake_distribution, load_fakes):
    """Nothing else of the environment reaches it; the configuration's variables do, and override the shell's."""
    fake_distribution("xformers", "0.0.27")
    match = "package('xformers', fixed='0.0.28') & environment('FAKE_SWITCH').is_set() & typed('env.FAKE_TYPED')"
    registry = load_fakes(fake_one=f"QUIRK = make('fake-one', match={match}, adjustments=Default('env.FAKE_OTHER', '1'))")
    environ = dict.fromkeys(("FAKE_SWITCH", "FAKE_TYPED", "NCCL_X", "VLLM_X"), "1") | {"FAKE_OTHER": "0"}
    environ |= dict.fromkeys(("UNRELATED", "VLLM_API_KEY", "NCCL_PASSWORD", "VLLM_PLUGINS"), "s3cr3t")
    engine = {"hf_token": "s3cr3t", "vllm_kwargs": {"hf_token": "s3cr3t"}}
    run = config(engine=engine, env={"HF_TOKEN": "s3cr3t", "VLLM_X": "2", "OWN": "2"}, server={"api_key": "s3cr3t"})

    plan = make_plan(run, PlanOptions(), registry=registry, environ=environ)

    asked, own = {"FAKE_OTHER": "0", "FAKE_SWITCH": "1", "FAKE_TYPED": "1", "NCCL_X": "1"}, {"OWN": "2", "VLLM_X": "2"}
    assert list(plan.context.environment.items()) == list((asked | own).items())
    assert plan.context.packages["xformers"] == "0.0.27"
    assert ([verdict.id for verdict in plan.active], plan.value("env.FAKE_OTHER")) == (["fake-one"], "0")
    assert "s3cr3t" not in plan.to_json()


@needs_vllm
def test_a_value_that_vllm_does_not_list_is_a_warning(config):
    """Of a version that is not here, neither names nor values are checked."""
    typed = {"load_format": "dumy", "tokenizer_mode": "auto"}

    assumed = make_plan(config(engine={**typed, "no_such_argument": 1}), PlanOptions(assume=("vllm==0.31.0",)))

    (note,) = [note for note in make_plan(config(engine=typed)).warnings if note.kind is NoteKind.UNLISTED]
    assert note.about == ("engine.load_format",)
    assert note.text.startswith("engine.load_format: the installed vLLM does not list 'dumy'; did you mean 'dummy'?")
    unchecked = [note.about for note in assumed.warnings if note.kind is NoteKind.UNCHECKED]
    assert ("engine.no_such_argument",) in unchecked
    assert NoteKind.UNLISTED not in {note.kind for note in assumed.warnings}
