"""What the environment may ask of the hook: every wrong value is an error with the nearest one, and all are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.hook.settings import HookSettings


@pytest.mark.parametrize("mode", [None, "", "off", "OFF"])
def test_without_the_variable_nothing_is_asked(mode):
    assert HookSettings.read({} if mode is None else {"MODEL_QUIRKS": mode}) is None


@pytest.mark.parametrize(
    ("environ", "purpose", "why", "only_reports"),
    [
        ({"MODEL_QUIRKS": "on"}, None, "", False),
        ({"MODEL_QUIRKS": " Rollout "}, "rollout", "MODEL_QUIRKS=rollout", False),
        ({"MODEL_QUIRKS": "report"}, None, "", True),
        ({"MODEL_QUIRKS": "report", "MODEL_QUIRKS_SET": "purpose=eval"}, "eval", "MODEL_QUIRKS_SET", True),
        ({"MODEL_QUIRKS": "serve", "MODEL_QUIRKS_SET": "purpose=eval"}, "eval", "MODEL_QUIRKS_SET", False),
    ],
)
def test_the_purpose_is_given_or_follows_from_the_arguments(environ, purpose, why, only_reports):
    settings = HookSettings.read(environ)

    assert (settings.purpose, settings.why, settings.only_reports) == (purpose, why, only_reports)


def test_the_other_variables_are_read():
    settings = HookSettings.read(
        {
            "MODEL_QUIRKS": "on",
            "MODEL_QUIRKS_SET": "refit.scope=parameters; sampling.top_p=0.9;env.A=1;recipe=grpo;train.autocast=null;",
            "MODEL_QUIRKS_RECEIPT": "here.json",
            "MODEL_QUIRKS_REQUIRE_RECEIPT": "1",
            "MODEL_QUIRKS_LOG": "quiet",
        }
    )

    given = {"refit.scope": "parameters", "sampling.top_p": 0.9, "env.A": "1", "train.autocast": "none"}
    assert settings.given == given
    assert (settings.recipe, settings.receipt) == ("grpo", Path("here.json"))
    assert (settings.needs_receipt, settings.is_quiet) == (True, True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MODEL_QUIRKS_LOG", "quite", "did you mean 'quiet'"),
        ("MODEL_QUIRKS_TRAINER", "tlr", "did you mean 'trl'"),
        ("MODEL_QUIRKS_REQUIRE_RECEIPT", "yes", "it takes 0, 1"),
        ("MODEL_QUIRKS_SET", "refit.scop=parameters", "unknown slot 'refit.scop'; did you mean 'refit.scope'"),
        ("MODEL_QUIRKS_SET", "refit.scope=everything", "refit.scope takes one of parameters, state_dict"),
        ("MODEL_QUIRKS_SET", "refit.scope", "not of the form slot=value"),
        ("MODEL_QUIRKS_SET", "refit.scope={", "refit.scope: '{' is not valid YAML"),
        ("MODEL_QUIRKS_SET", "purpose=rolout", "did you mean 'rollout'"),
        ("MODEL_QUIRKS_SET", "recipe=3", "recipe takes a text"),
        ("MODEL_QUIRKS_SET", "engine.seed=1;train.dtype=float32; engine.seed=2", "engine.seed is given twice"),
        ("MODEL_QUIRKS_SET", "env.HF_TOKEN=x", "looks like that of a secret"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_variable(name, value, message):
    with pytest.raises(UsageError, match="MODEL_QUIRKS") as error:
        HookSettings.read({"MODEL_QUIRKS": "on", name: value})

    assert name in str(error.value)
    assert message in str(error.value)


def test_all_wrong_values_are_listed_at_once():
    with pytest.raises(UsageError) as error:
        HookSettings.read({"MODEL_QUIRKS": "rolout", "MODEL_QUIRKS_LOG": "quite", "MODEL_QUIRKS_SET": "a=1;b=2"})

    assert all(text in str(error.value) for text in ("rolout", "quite", "'a'", "'b'"))
