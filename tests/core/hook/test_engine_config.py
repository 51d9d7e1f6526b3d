"""What a program that starts an engine sees of a refusal. No engine starts."""

from __future__ import annotations

import re

import fork_server
import pytest
from installed import needs_vllm

pytestmark = needs_vllm

REFUSED = """
from quirks_core.plan.records import RefusedError
from vllm import EngineArgs
from vllm.config import KVTransferConfig

try:
    store = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both")
    EngineArgs(model=model, enforce_eager=False, kv_transfer_config=store).create_engine_config()
except RefusedError as error:
    found = {"kinds": [one.kind for one in error.refusals], "text": str(error)}
"""


def test_a_script_can_catch_a_refusal_in_its_own_words(model, shell, monkeypatch):  # noqa: ARG001 - for its effect
    monkeypatch.setenv("MODEL_QUIRKS", "rollout")
    monkeypatch.setenv("MODEL_QUIRKS_SET", "engine.enforce_eager=false")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")

    found = fork_server.run(REFUSED, model=str(model("qwen3")))

    assert found["kinds"] == ["refuse", "require"]
    assert "enforce_eager must be True" in found["text"]
    assert "; here: enforce_eager=True" in found["text"]
    assert "override: MODEL_QUIRKS_DISABLE=kv-connector-stale" in found["text"]


SAID = """
import logging

found = []

class Kept(logging.Handler):
    def emit(self, record):
        found.append(record.getMessage())

logging.getLogger("model_quirks.hook").addHandler(Kept())
from vllm import EngineArgs
from vllm.usage.usage_lib import UsageContext

EngineArgs(model=model).create_engine_config(UsageContext[usage])
"""


@pytest.mark.parametrize(("usage", "purpose"), [("OPENAI_API_SERVER", "serve"), ("LLM_CLASS", "eval")])
def test_a_server_or_an_evaluation_without_quirks_gets_one_line(model, shell, monkeypatch, usage, purpose):  # noqa: ARG001 - shell
    for name, text in {"MODEL_QUIRKS": "on", "MODEL_QUIRKS_DISABLE": "all"}.items():
        monkeypatch.setenv(name, text)

    (line,) = fork_server.run(SAID, model=str(model("qwen3")), usage=usage)

    assert f", purpose {purpose} (no sign of a trainer" in line
    assert "no change, checked: 0 quirks for vLLM " in line
    assert re.search(r" \d+ plugins \(.*apertus-xielu-buffers and \d+ more\) were not loaded", line)
    assert line.endswith("were not loaded: switched off by 'all' in the environment (MODEL_QUIRKS_DISABLE)")
    assert "dtypes" not in line
