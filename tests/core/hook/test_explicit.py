"""What the user typed, for every way to vLLM's arguments, each in a process of its own. No engine starts."""

from __future__ import annotations

import textwrap

import fork_server
import pytest
from installed import needs_vllm

pytestmark = needs_vllm

PRELUDE = """
import argparse
found = {}

def show(name, arguments):
    from quirks_core.hook.explicit import typed_in
    typed = typed_in(arguments)
    found[name] = [sorted(typed.names), typed.exact]

def without_an_engine():
    from vllm.v1.engine.llm_engine import LLMEngine
    class Done(BaseException): pass
    def instead(cls, engine_args, usage_context=None, **named):
        show(name, engine_args)
        raise Done
    LLMEngine.from_engine_args = classmethod(instead)
    return Done
"""


@pytest.fixture
def cases(model, shell, monkeypatch):  # noqa: ARG001 - for its effect
    """Runs statements in a process that has imported vLLM; returns by name what was typed, and whether that is exact."""
    monkeypatch.setenv("MODEL_QUIRKS", "rollout")
    return lambda body: fork_server.run(PRELUDE + textwrap.dedent(body), model=str(model("qwen3")))


def test_arguments_in_python_are_compared_by_value(cases):
    """The ``**kwargs`` of LLM are known, for the first LLM of a process as for later ones."""
    found = cases("""
        Done = without_an_engine()
        from vllm import EngineArgs, LLM
        mine = {"max_model_len": 128, "logprobs_mode": "raw_logprobs", "enforce_eager": False, "dtype": "float32"}
        for name in ("first", "later"):
            try:
                LLM(model=model, **mine)
            except Done:
                pass
        show("arguments", EngineArgs(model=model, **mine))
        name = "through LLM"
        try:
            LLM.from_engine_args(EngineArgs(model=model, **mine))
        except Done:
            pass
    """)

    of_llm, by_value = [["dtype", "logprobs_mode", "max_model_len"], False], [["dtype", "max_model_len"], False]
    assert found == {"first": of_llm, "later": of_llm, "arguments": by_value, "through LLM": by_value}


COMMAND_LINES = """
    from pathlib import Path
    from vllm import AsyncEngineArgs
    import vllm.entrypoints.cli.serve as serve
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.serve.utils.api_utils import get_non_default_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def parsed(*words):
        parser = FlexibleArgumentParser()
        commands = parser.add_subparsers(required=False, dest="subparser")
        for command in serve.cmd_init():
            command.subparser_init(commands)
        found = parser.parse_args(args=["serve", model, *words])
        found.model = found.model_tag
        return found

    words = ("--max-model-len", "128", "--logprobs_mode", "raw_logprobs")
    found["logged"] = get_non_default_args(parsed("--api-key", "hush", "--hf-token", "hush"))
    show("flags", AsyncEngineArgs.from_cli_args(parsed(*words)))
    show("nothing", AsyncEngineArgs.from_cli_args(parsed()))
    file = Path(model) / "serve.yaml"
    file.write_text("max-model-len: 128\\nlogprobs-mode: raw_logprobs\\nenforce-eager: true\\n")
    show("file", AsyncEngineArgs.from_cli_args(parsed("--config", str(file))))
    show("negated", AsyncEngineArgs.from_cli_args(parsed("--no-enable-prefix-caching", "-tp=1")))
    show("nested", AsyncEngineArgs.from_cli_args(parsed("--compilation-config.mode", "0", "-O1")))

    given = argparse.Namespace(model=model, max_model_len=128, logprobs_mode="raw_logprobs")
    handed_over = make_arg_parser(FlexibleArgumentParser()).parse_args(args=[], namespace=given)
    show("namespace", AsyncEngineArgs.from_cli_args(handed_over))

    later = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(args=[])
    later.model, later.max_model_len, later.logprobs_mode, later.generation_config = model, 128, "raw_logprobs", "vllm"
    show("attributes", AsyncEngineArgs.from_cli_args(later))
"""


def test_a_command_line_is_read_exactly_with_its_file(cases):
    found = cases(COMMAND_LINES)

    both = [["logprobs_mode", "max_model_len"], True]
    assert {name: found[name] for name in ("flags", "namespace")} == {"flags": both, "namespace": both}
    assert found["nothing"] == [[], True]
    assert found["file"] == [["enforce_eager", "logprobs_mode", "max_model_len"], True]
    assert found["negated"] == [["enable_prefix_caching", "tensor_parallel_size"], True]
    assert found["nested"][1] is True
    assert "compilation_config" in found["nested"][0]
    # Set afterwards: what differs from what the parser left there was chosen, the rest may have been.
    assert found["attributes"] == [["generation_config", "max_model_len"], False]
    # vLLM logs all attributes of a namespace, and hides the values of those that it knows to be secret.
    assert set(found["logged"]) == {"api_key", "hf_token", "model", "model_tag"}


def test_the_command_line_of_trl_leaves_its_dtypes_open(cases):
    pytest.importorskip("trl")

    found = cases("""
        import json
        from pathlib import Path
        from trl.scripts.vllm_serve import ScriptArguments, build_command
        from vllm import AsyncEngineArgs
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from quirks_core.hook import engine_config
        from quirks_core.hook.settings import HookSettings

        (Path(model) / "config.json").write_text(json.dumps({"model_type": "qwen3", "dtype": "float32"}))
        command = build_command(ScriptArguments(model=model))
        parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(args=command[command.index("serve") + 1:])
        parsed.model = parsed.model_tag  # as vllm serve does
        arguments = AsyncEngineArgs.from_cli_args(parsed)
        plan = engine_config.resolve(arguments, HookSettings(given={"train.dtype": "float32"}), "rollout")
        found["dtype"] = plan.changes.get("engine.dtype")
        found["typed"] = sorted(plan.context.typed)
    """)

    assert found["dtype"] == "float32"
    assert "engine.max_logprobs" in found["typed"]
    assert not {"engine.dtype", "engine.kv_cache_dtype"} & set(found["typed"])


#: Run once where verl is imported and once where it is not.
OWN_CODE = """
words = ["--enable-prefix-caching", "--tensor-parallel-size", "1", "--max-model-len", "128"]
parsed = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(args=words)
parsed.model = model
show(f"command line of {who}", AsyncEngineArgs.from_cli_args(parsed))
name = f"LLM of {who}"
try:
    LLM(model=model, tensor_parallel_size=1, enable_sleep_mode=False, max_num_batched_tokens=4096)
except Done:
    pass
"""


def test_a_default_that_a_trainers_own_code_passes_is_not_typed(cases):
    found = cases(f"""
    from vllm import AsyncEngineArgs, LLM
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    AsyncEngineArgs(model=model)  # vLLM loads plugins in the first
    Done = without_an_engine()
    import sys
    for who in ("mine", "verl"):
        if who == "verl":
            sys.modules["verl"] = sys
        exec({OWN_CODE!r}, globals())
    """)

    assert found == {
        "command line of verl": [["enable_prefix_caching", "max_model_len"], False],
        "LLM of verl": [["max_num_batched_tokens"], False],
        "command line of mine": [["enable_prefix_caching", "max_model_len", "tensor_parallel_size"], True],
        "LLM of mine": [["enable_sleep_mode", "max_num_batched_tokens"], False],
    }
