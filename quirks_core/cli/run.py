"""What the commands share: from the options to a configuration and a plan."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from quirks_core.context import RunContext
from quirks_core.lock import check_lock
from quirks_core.plan import Plan
from quirks_core.registry import Registry
from quirks_core.switches import Switches, Wishes

if TYPE_CHECKING:
    from worker.config import GenerationConfig


def load_config(options: argparse.Namespace, *, default_purpose: str | None = None) -> GenerationConfig:
    """Reads the configuration that the options describe.

    Args:
        options: Parsed arguments with ``config``, ``model``, ``set`` and ``purpose``.
        default_purpose: The purpose where neither option nor file names one.

    Raises:
        UsageError: Something is wrong with it.
    """
    from worker.config import GenerationConfig

    settings = [f"purpose={options.purpose}"] if options.purpose else []
    config = GenerationConfig.load(options.config, model=options.model, settings=[*settings, *options.set])
    if default_purpose and "purpose" not in config.model_fields_set:
        settings = [f"purpose={default_purpose}"]
        config = GenerationConfig.load(options.config, model=options.model, settings=[*settings, *options.set])
    return config


def gather_switches(options: argparse.Namespace, config: GenerationConfig) -> Switches:
    """Collects the switches of command line, environment and configuration."""
    return Switches.gather(
        command_line=Wishes(options.disable, options.force), config_file=Wishes(config.quirks.disable, config.quirks.force)
    )


def load_registry(options: argparse.Namespace, switches: Switches | None = None) -> Registry:
    """Loads the plugins as the options say.

    Raises:
        BrokenPluginsError: There are broken plugins, and the user asked to be strict.
    """
    return Registry.load(strict=options.strict or None, switches=switches)


def make_plan(options: argparse.Namespace, config: GenerationConfig, registry: Registry | None = None) -> Plan:
    """Makes the plan for the run that the options describe.

    Raises:
        UsageError: Something in the options or the configuration is wrong.
        LockError: The loaded quirks are not those of the lock file.
    """
    if not any(text.partition("=")[0].strip() == "vllm" for text in options.assume):
        config.check_engine_arguments()
    switches = gather_switches(options, config)
    registry = registry or load_registry(options, switches)
    check_lock(registry, options.locked)
    context = RunContext.gather(config, assume=options.assume, packages=registry.packages)
    return registry.resolve(context, switches)
