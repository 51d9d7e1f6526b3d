"""The options of ``vllm serve``, read from its source, beside those of vLLM's own parser."""

from __future__ import annotations

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
