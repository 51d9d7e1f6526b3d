"""What all tests share: a temporary folder for each process of a parallel run, engines first, and the command line."""

from __future__ import annotations

import importlib
import json
import multiprocessing.util
import os
import re
import runpy
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schedule
from hidden import hide_plugins
from installations import lay
from patience import patience
from programs import Outcome
from recorded import recorded

from quirks_core.cli import main
from quirks_core.declaration import data_file
from quirks_core.source.engine_arguments import EngineArguments
from quirks_core.source.vllm_source import VllmSource
from worker.lab.kit import evidence_table

_STARTUP = str(Path(__file__).parent / "startup")
#: Ray gives its workers what nobody else wants of the cores, which on a busy machine is nothing, and starts some in advance.
_RAY = {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
#: Threads of OpenBLAS and of torch wait by spinning. On a busy machine that takes a sixth of the import of vLLM, and makes
#: torch several times slower.
_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
#: What differs by versions of Python and of this project, or moves with the code, in recorded messages.
_VOLATILE = {r"(not valid YAML: \w+Error): .*": r"\1: …", r"(model-quirks) \d[\w.]*": r"\1 …", r"\.py:\d+": ".py:…"}
_OURS = ("HF_", "MODEL_QUIRKS", "NCCL_", "NRL_", "VLLM_")
#: The tests' own cache, in the user's; it stays, so that releases are fetched once. What others keep in theirs is taken over.
_CACHE, _SHARED = "model-quirks-tests", ("huggingface", "model-quirks/models", "pip", "selenium", "uv", "vllm")


def _own_environment(environ: MutableMapping[str, str]) -> None:
    """Gives tests a home, a cache and variables of their own: none of ours, nor of an engine's, that the developer has set."""
    for name in [name for name in environ if name.startswith(_OURS) and not name.startswith("MODEL_QUIRKS_TESTS_")]:
        del environ[name]
    theirs, home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"), Path.home()
    if theirs.name == _CACHE:  # a process of a run that has one
        return
    own = theirs / _CACHE
    links = {own / name: theirs / name for name in _SHARED} | {own / "home/.config/pip": home / ".config/pip"}
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            with suppress(FileExistsError):
                link.symlink_to(target)
    environ.update(HOME=str(own / "home"), XDG_CACHE_HOME=str(own))


_own_environment(os.environ)  # before other files of this kind set theirs


def pytest_configure(config: pytest.Config) -> None:
    """Gives each process that runs tests its own temporary folder (some look for what is left behind), and Ctrl-C back.

    A shell that starts a run in the background makes it ignore Ctrl-C, and all that it starts with it; tests send that signal.
    What `tests/startup` does is done in this process, too.
    """
    if _STARTUP not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_STARTUP, os.environ.get("PYTHONPATH"))))
        runpy.run_path(str(Path(_STARTUP) / "sitecustomize.py"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update({**_THREADS, **_RAY})
    os.environ.setdefault("PYTEST_TIMEOUT", str(patience(1800)))  # for a hang that no other limit ends
    hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("untimed")
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path outlives a run
    multiprocessing.util.get_temp_dir()  # outside of the folder that goes before it
    folder = tempfile.mkdtemp(prefix="tests-", dir="/tmp" if Path("/tmp").is_dir() else None)  # noqa: S108 - sockets need short paths
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    hide_plugins(Path(folder, "hidden"))
    config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest goes first, so that no process of a parallel run is left alone with it."""

    def place(item: pytest.Item) -> int:
        starts_engines = item.get_closest_marker("engine") is not None
        return schedule.place_of(item.nodeid.partition("::")[0], starts_engines=starts_engines)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Modules that share engines go to one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return schedule.group_of(super()._split_scope(nodeid))

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def compiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What small engines are started with is no fact of the plans that other tests make."""
    if request.node.get_closest_marker("engine") is None:
        monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)


@pytest.fixture
def worker_in_core(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables of programs whose engine's core does the work of its only worker, as on a GPU; half the time of a start."""
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    return variables


@pytest.fixture
def shell() -> Iterator[None]:
    """A wide terminal without colours, nothing of other tests' environment that could count, and nothing left behind."""
    before = dict(os.environ)
    for variable in [name for name in os.environ if name.startswith(_OURS)]:
        del os.environ[variable]
    os.environ.update({"COLUMNS": "300", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "TERM": "dumb"})
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def quirks(shell: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:  # noqa: ARG001 - for its effect
    """Runs one command in this process; whatever it meets, it must not end in a traceback."""

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        outcome = Outcome(code, *capsys.readouterr())
        assert "Traceback" not in outcome.out + outcome.err
        return outcome

    return run


@pytest.fixture
def messages(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Compares texts that users see with the test's section of ``messages.txt``, which ``make messages`` writes."""

    def compare(*texts: object) -> None:
        name = request.node.nodeid
        text = "\n".join(str(text).replace(str(tmp_path), "TMP").rstrip("\n") for text in texts)
        for pattern, instead in _VOLATILE.items():
            text = re.sub(pattern, instead, text)
        assert text == recorded(Path(__file__).with_name("messages.txt"), {name: text}).get(name)

    return compare


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Makes a model folder that holds a ``config.json`` and nothing else."""

    def make(model_type: str = "qwen3", /, **config: Any) -> Path:
        folder = tmp_path / model_type
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, **config}), encoding="utf-8")
        return folder

    return make


def _forget_sources() -> None:
    arguments = (EngineArguments.names, EngineArguments.find, EngineArguments._fields)
    source = (VllmSource.attribute_source, VllmSource.module_source, VllmSource.parsed, VllmSource.options)
    for cached in (*source, data_file._read, evidence_table._read, *arguments):
        cached.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture
def forget_sources() -> Callable[[], None]:
    """Makes this process read the source of installed packages again."""
    return _forget_sources


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path for fake packages; afterwards nothing of them is left in this process."""
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(folder)
    _forget_sources()
    yield folder
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    _forget_sources()


@pytest.fixture
def install(site: Path) -> Callable[..., None]:
    """Installs a distribution as pip would leave it: modules, and metadata with its entry points."""

    def make(name: str, points: str | Mapping[str, str], *, group: str = "model_quirks", **modules: str) -> None:
        if isinstance(points, str):  # the source of one plugin
            module = name.replace("-", "_")
            points, modules = {name: f"{module}:QUIRK"}, {module: points}
        lay(site, name, "1.2", points, group=group)
        for module, text in modules.items():
            (site / f"{module}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        _forget_sources()

    return make
