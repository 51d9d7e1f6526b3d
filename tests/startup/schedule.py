"""In which order a parallel run takes the test modules, and what of them goes to one process."""

from __future__ import annotations

from pathlib import Path

#: Folders whose modules share engines, or one Ray.
_TOGETHER = ("tests/engine/data_parallel", "tests/engine/openai_server", "tests/engine/worker_calls")
#: What takes longest; it comes first, so that no process is left alone with it.
_LONGEST = (
    "tests/engine/data_parallel",
    "tests/integrations/test_trl_ledger.py",
    "tests/integrations/test_trl.py",
    "tests/engine/test_explain.py",
    "tests/engine/hook/test_serve.py",
    "tests/engine/hook/test_weights_command.py",
    "tests/engine/hook/test_send_weights.py",
    "tests/engine/hook/test_ledger.py",
    "tests/engine/hook/test_programs.py",
    "tests/engine/hook/test_trainer_routes.py",
    "tests/engine/test_cli_engine.py",
    "tests/examples/test_grpo_tiny.py",
    "tests/examples/test_run_eval.py",
    "tests/engine/openai_server",
    "tests/engine/worker_calls",
    "tests/engine/test_coalesced_outputs.py",
    "tests/engine/test_engine_failures.py",
    "tests/engine/test_faults.py",
    "tests/engine/test_parity.py",
)


def group_of(file: str) -> str:
    """Returns what a test module goes to one process with: its folder, or itself.

    Args:
        file: The module's path below the repository.
    """
    folder = str(Path(file).parent)
    return folder if folder in _TOGETHER else file


def place_of(file: str, *, starts_engines: bool) -> int:
    """Returns the place of a module: the longest first, in their order, then others with engines, then the rest."""
    group = group_of(file)
    return _LONGEST.index(group) if group in _LONGEST else len(_LONGEST) + (not starts_engines)
