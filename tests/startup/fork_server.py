"""Engines' processes as copies of one that has imported vLLM: a start takes 2 s instead of 12.

vLLM spawns them: each begins with nothing and imports vLLM. Here they are forked from a server, which has imported it.
Like a spawned process they have the environment, the outputs and the path that their parent has when it starts them. Only
variables that vLLM and torch read while they are imported keep the values of the time when the server was started.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import context, forkserver, reduction
from typing import Any
from unittest import mock

#: How many spare processes one that is forked begins with: what its engine spawns; see `forked_programs`.
SPARES_VARIABLE = "TESTS_SPARES"


class LikeTheParent:
    """A process that takes the environment, standard output and standard error of its parent along."""

    def __reduce__(self) -> tuple[Any, ...]:
        outputs = [reduction.DupFd(number) for number in (1, 2)]
        return _like_the_parent, (type(self), dict(os.environ), outputs), self.__dict__


class _Process(LikeTheParent, context.ForkServerProcess):
    pass


def _like_the_parent(kind: type[LikeTheParent], environment: dict[str, str], outputs: Sequence[Any]) -> LikeTheParent:
    """Runs in the new process, before anything of its task is imported."""
    os.environ.clear()
    os.environ.update(environment)
    for number, output in enumerate(outputs, 1):
        os.dup2(output.detach(), number)
    if count := int(os.environ.pop(SPARES_VARIABLE, 0)):
        import forked_programs

        forked_programs.with_spares(count)
    return kind.__new__(kind)


class ForkContext(context.ForkServerContext):
    """What vLLM gets where it asks for spawned processes."""

    _name = "spawn"
    Process = _Process


def start() -> None:
    """Starts the server, with one thread for each engine; it imports vLLM while this process goes on."""
    multiprocessing.set_forkserver_preload(["imported_vllm"])
    from worker.lab.kit.lab import set_environment

    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        set_environment()
        forkserver.ensure_running()


def address() -> str:
    """Returns where the server listens, for `use`."""
    start()
    return forkserver._forkserver._forkserver_address


def use(address: str) -> None:
    """Makes this process, which did not start the server, take its processes from there."""
    server = forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd = address, os.open(os.devnull, os.O_RDONLY)
    server.ensure_running = lambda: None


@contextmanager
def instead_of_spawning(forking: context.BaseContext | None = None) -> Iterator[None]:
    """Forks what this process wants to be spawned, and the program with which vLLM looks at a model's class.

    Args:
        forking: How; from the server if left out.
    """
    forking, original = forking or ForkContext(), multiprocessing.get_context

    def get_context(method: str | None = None) -> context.BaseContext:
        return forking if method == "spawn" else original(method)

    with ExitStack() as patches:
        patches.enter_context(mock.patch("multiprocessing.get_context", get_context))
        if registry := sys.modules.get("vllm.model_executor.models.registry"):
            patches.enter_context(mock.patch.object(registry, "_run_in_subprocess", partial(_with_plugins, forking)))
        yield


def run(statements: str, **names: Any) -> Any:
    """Runs statements in a process of its own that has imported vLLM.

    Args:
        statements: Python code.
        **names: Variables of the code.

    Returns:
        What the code leaves in the variable ``found``.
    """
    start()

    def found() -> Any:
        exec(textwrap.dedent(statements), names)  # noqa: S102 - the tests' own
        return names["found"]

    return _call(ForkContext(), found)


def _call(forking: context.BaseContext, function: Callable[[], Any]) -> Any:
    """Calls a function, which may be a lambda, in a process of its own that has imported vLLM; returns what it returns."""
    import cloudpickle

    with ProcessPoolExecutor(1, mp_context=forking) as other:
        return other.submit(_called, cloudpickle.dumps(function)).result()


def _called(function: bytes) -> Any:
    import cloudpickle

    return cloudpickle.loads(function)()


def _with_plugins(forking: context.BaseContext, function: Callable[[], Any]) -> Any:
    """Calls a function where vLLM's plugins are loaded, as vLLM's program does."""

    def loaded() -> Any:
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        return function()

    return _call(forking, loaded)
