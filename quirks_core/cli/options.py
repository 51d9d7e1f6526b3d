"""What the commands share: from the options that describe a run to a configuration, and to what its plan is made with."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from difflib import get_close_matches

from packaging.version import Version

from quirks_core.base.errors import UsageError, shown
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.engine_run import EngineRun
from quirks_core.configuration.sections import EngineSection
from quirks_core.configuration.serve_command import ServeCommand, read_serve_command
from quirks_core.facts.fact_table import assumed_as
from quirks_core.facts.packages import NEWEST_READ, gpu_capability, installed_platform, installed_version
from quirks_core.facts.trainers import TRAINERS
from quirks_core.plan.formats import option_for
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions
from quirks_core.reporting.terminal import Screen, line
from quirks_core.source.vllm_source import INSTALLED, VllmSource

ENGINE = "vllm"
#: Who starts an engine, beside trainers: our worker, and a server.
OURS, SERVE = "worker", "serve"
#: The GPU of most trainers, where a plan is made for one without having it.
_H100 = "9.0"
#: So much alike, a name is a misspelt one; without vLLM, others may be arguments of one.
_ALMOST = 0.88


def load_config(options: argparse.Namespace) -> GenerationConfig:
    """Reads the configuration that the options describe.

    Raises:
        UsageError: Something is wrong with it.
    """
    settings = [f"purpose={options.purpose}"] if options.purpose else []
    return GenerationConfig.load(options.config, model=options.model, settings=[*settings, *_settings(options)])


def load_run(options: argparse.Namespace) -> GenerationConfig:
    """Reads the run that the options describe, as whoever starts the engine makes it.

    Raises:
        UsageError: Something is wrong with it, or the options contradict each other.
    """
    if not options.cmd:
        return _started(options, load_config(options))
    if options.trainer == OURS:
        raise UsageError(f"--trainer {OURS}: our worker starts its engine by itself, not by vllm serve; leave one of them out")
    if options.trainer in TRAINERS and not options.purpose:
        options.purpose = "rollout"
    return _started(options, load_server_command(options)[1])


def _started(options: argparse.Namespace, config: GenerationConfig) -> GenerationConfig:
    """Returns a run as ``--trainer`` starts its engine: what a trainer sends, and how it computes, are its presets."""
    trainer = TRAINERS.get(options.trainer or OURS)
    if trainer is None and (options.cmd or options.trainer != SERVE):
        return config
    values = config.model_dump(mode="json", exclude_unset=True)
    sources: dict[str, str] = {}
    if trainer is not None:
        is_default = values.get("engine", {}).get("dtype") in (None, "auto", "bfloat16")
        numerics = trainer.numerics if is_default else {}
        colocated = {} if options.cmd else trainer.colocates
        preset = {**colocated, **trainer.passes, **trainer.facts, "train.framework": trainer.name, **numerics}
        sources = dict.fromkeys(preset, trainer.source) | dict.fromkeys(numerics, f"{trainer.name}'s default")
        for slot, value in preset.items():
            section, _, key = slot.partition(".")
            if key in (own := values.setdefault(section, {})):
                del sources[slot]  # it is the user's
            own.setdefault(key, value)
    values = {"purpose": "serve" if trainer is None else "rollout", **values}
    server = {"async_engine": True} if trainer is None else {}
    values["engine"] = {"load_format": "auto", **server, **values.get("engine", {})}
    values["parallel"] = {"dp_strategy": "engine", **values.get("parallel", {})}
    return EngineRun.given(values, {*config.typed_slots(), *sources}, sources)


def program(options: argparse.Namespace) -> str:
    """Returns the program that starts the engine, if the options name one that is neither our worker nor a trainer."""
    return "vllm serve" if options.cmd or options.trainer == SERVE else ""


def describes_run(options: argparse.Namespace, *, with_command: bool = True) -> bool:
    """Returns whether the options describe a run at all, or the words after ``--`` do."""
    given = (options.model, options.config, options.purpose, options.set, options.assume, with_command and options.cmd)
    return any(given)


def _settings(options: argparse.Namespace) -> list[str]:
    for name in (text.partition("=")[0].strip() for text in options.set):
        if assumed_as(name):
            raise UsageError(f"--set {name}: it is a fact, no setting; write {option_for(name)}")
        family, _, key = name.partition(".")
        known = () if family != "engine" or INSTALLED.arguments.names() is not None else EngineSection.model_fields
        if key not in known and (near := get_close_matches(key, known, 1, _ALMOST)):
            raise UsageError(f"unknown slot {name!r}; did you mean 'engine.{near[0]}'? (no vLLM is installed to check it)")
    return list(options.set)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds who starts the engine, and the command line of a server."""
    parser.add_argument(
        "--trainer", metavar="NAME", choices=(OURS, SERVE, *TRAINERS),
        help=f"who starts the engine: {OURS} (our own, if left out), {SERVE} (vllm serve), or {', '.join(TRAINERS)}",
    )  # fmt: skip
    add_server_command(parser)


def add_server_command(parser: argparse.ArgumentParser) -> None:
    """Adds the command line of a server, which describes a run, as the words after ``--``."""
    parser.add_argument(
        "cmd", nargs="*", metavar="CMD", default=[],
        help="after --: the command line of a server (vllm serve MODEL …), which describes the run instead of --model and "
        "--config; its purpose is serve, unless another option says otherwise",
    )  # fmt: skip


def load_server_command(options: argparse.Namespace, source: VllmSource = INSTALLED) -> tuple[ServeCommand, GenerationConfig]:
    """Reads the command line of a server, for the vLLM of a source, and the configuration that it stands for.

    Raises:
        UsageError: Something is wrong with it, or other options describe the run as well.
    """
    if len(options.cmd) == 1:
        name = shown(options.cmd[0], 100)
        raise UsageError(f"{name} is no command line of a server; a model is given by --model {options.cmd[0]}")
    if options.model or options.config:
        raise UsageError("the command after -- says which model and which configuration; leave out --model and --config")
    command = read_serve_command(options.cmd, source, notify=progress(options))
    return command, command.config(purpose=options.purpose or "serve", settings=_settings(options))


def progress(options: argparse.Namespace) -> Callable[[str], None]:
    """Returns what prints a line of progress on standard error, unless the command prints JSON."""
    screen = Screen(stderr=True)
    return lambda text: None if options.json else screen.say(f"[dim]{line(text)}[/]")


def plan_options(options: argparse.Namespace, config: GenerationConfig | None = None) -> PlanOptions:
    """Collects what the plan is made with: command line, environment and configuration."""
    return PlanOptions.gather(
        config,
        command_line=SwitchNames(options.disable, options.force),
        strict=options.strict,
        locked=options.locked,
        assume=options.assume,
    )


def run_options(options: argparse.Namespace, config: GenerationConfig) -> PlanOptions:
    """Collects what the plan is made with, and assumes what is not here: the newest vLLM that was read, and an H100."""
    given = {name.strip(): value.strip() for name, _, value in (text.partition("==") for text in options.assume)}
    more: dict[str, str] = {}
    if installed_version(ENGINE) is None and ENGINE not in given:
        more[ENGINE] = ".".join(map(str, NEWEST_READ))
    if installed_platform() is None and given.keys().isdisjoint({"platform", "cpu", "gpu"}):
        more["platform"] = "cuda"
    if "cuda" in (given.get("platform"), more.get("platform")) and "gpu" not in given and gpu_capability() is None:
        more["gpu"] = _H100
    options.assume = [*options.assume, *map("==".join, more.items())]
    return plan_options(options, config)


def add_versions(parser: argparse.ArgumentParser, more: str = "", several: str = "") -> None:
    """Adds the versions; where several can be given, the words for them."""
    what = f"resolve as if that version of vLLM were installed{several}"
    parser.add_argument("--vllm", metavar=f"VERSION{more}", action="append", default=[], help=what)


def read_versions(options: argparse.Namespace) -> tuple[str, ...]:
    """Reads the comma-separated versions of ``--vllm``, and assumes the first; equal ones count once.

    Raises:
        UsageError: One is not a version, or another option contradicts them.
    """
    seen: dict[Version, str] = {}
    for text in (part.strip() for item in options.vllm for part in item.split(",")):
        try:
            seen.setdefault(Version(text), text)
        except ValueError:  # InvalidVersion, or a number of thousands of digits
            raise UsageError(f"--vllm: {shown(text, 100)} is not a version; write for example --vllm 0.26,0.32.0") from None
    if seen and any(text.partition("==")[0].strip() == ENGINE for text in options.assume):
        raise UsageError("--assume vllm==… and --vllm contradict each other: give the versions with --vllm")
    versions = tuple(seen.values())
    options.assume = [*(f"{ENGINE}=={version}" for version in versions[:1]), *options.assume]
    return versions


def installed_only(options: argparse.Namespace, instead: str = "") -> None:
    """Makes sure that no versions are assumed: the command runs an engine.

    Raises:
        UsageError: Some are.
    """
    if options.assume:
        what = instead or "this command runs the installed one"
        raise UsageError(f"--assume makes plans for versions that are not installed; {what}")
