"""The options of ``vllm serve``, read from its source, beside those of vLLM's own parser."""

from __future__ import annotations

import sys

import fork_server
import pytest

from quirks_core.source.serve_options import Shape
from quirks_core.source.vllm_source import INSTALLED

pytestmark = pytest.mark.skipif(INSTALLED.arguments.names() is None, reason="the options are read from the installed vLLM")

#: Every option that vLLM's parser has, and how many words it takes.
_REFERENCE = """
import argparse, json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser().add_subparsers(dest="subparser").add_parser("serve"))
actions = [action for action in parser._actions if action.option_strings and action.dest != "help"]
shapes = {None: "value", "?": "value", 0: "switch"}

def shape(action):
    return "flag" if isinstance(action, argparse.BooleanOptionalAction) else shapes.get(action.nargs, "values")

found = [[action.option_strings, shape(action)] for action in actions]
"""


def test_every_option_of_the_installed_vllm_is_known():
    theirs = {tuple(sorted(names)): shape for names, shape in fork_server.run(_REFERENCE)}
    ours = {}
    for option in INSTALLED.options():
        negations = [f"--no-{name[2:]}" for name in option.names if name.startswith("--") and option.shape is Shape.FLAG]
        ours[tuple(sorted([*option.names, *negations]))] = option.shape.value

    assert ours == theirs
    assert len(ours) > 200


def test_options_of_an_older_vllm_are_known(site, forget_sources, monkeypatch):
    """A tiny package laid out as vLLM before 0.29: the server's options are in another module."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:  # of tests with engines
        monkeypatch.delitem(sys.modules, name)
    files = {
        "vllm/__init__.py": "",
        "vllm/engine/arg_utils.py": _OLD_ENGINE,
        "vllm/entrypoints/openai/cli_args.py": _OLD_SERVER,
    }
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    forget_sources()

    assert {option.name: (option.argument, option.shape.value) for option in INSTALLED.options()} == {
        "--model": ("model", "value"),
        "--block-size": ("block_size", "value"),
        "--flag": ("flag", "flag"),
        "--port": (None, "value"),
        "--hosts": (None, "values"),
        "--headless": (None, "switch"),
    }


_OLD_ENGINE = """
class EngineArgs:
    model: str = "default/model"
    block_size: int | None = None
    flag: bool = False

    @staticmethod
    def add_cli_args(parser):
        group = parser.add_argument_group()
        group.add_argument("--model", **kwargs["model"])
        group.add_argument("--block-size", "-bs", **kwargs["block_size"])
        group.add_argument("--flag", **kwargs["flag"])
"""
_OLD_SERVER = """
class FrontendArgs:
    port: int = 8000
    hosts: list[str] | None = None

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--headless", action="store_true")
"""
