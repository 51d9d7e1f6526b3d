"""``quirks audit``: what a refit leaves wrong in a model, and which quirk covers it, shown on real engines."""

from __future__ import annotations

import argparse
import asyncio
import json

from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.cli.command import Command
from quirks_core.cli.options import installed_only, load_config, plan_options
from quirks_core.reporting.terminal import Screen
from worker.lab.cli.arguments import add_verbose
from worker.lab.cli.display import quiet_engine, stages

#: Steps of a complete audit; other audits end earlier.
_STEPS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the model."""
    parser.add_argument("checkpoint", nargs="?", metavar="MODEL", help="model folder or hub id; the same as --model")
    add_verbose(parser)


def run_audit(options: argparse.Namespace) -> int:
    """Audits the refits of a model; 1 if there are hazards that nothing covers, 2 or more if the audit could not be made."""
    installed_only(options)
    if options.checkpoint and options.model:
        raise UsageError("the model is given twice: as MODEL and as --model; leave one out")
    options.model = options.model or options.checkpoint
    quiet_engine(verbose=options.verbose)
    config = load_config(options)
    from worker.lab.audit.records import AuditError
    from worker.lab.audit.refit_audit import audit
    from worker.lab.audit.table import show_audit

    console = Screen(stderr=options.json)  # with --json standard output holds the JSON alone
    with stages(console, _STEPS) as notify:
        try:
            found = asyncio.run(audit(config, plan_options(options, config), notify=notify))
        except QuirksError as error:
            error.exit_code = max(error.exit_code, AuditError.exit_code)  # 1 means that hazards were found
            raise
    if options.json:
        values = {**found.model_dump(mode="json"), "clean": found.clean, "passed": found.passed}
        print(json.dumps(values, indent=2, sort_keys=True))
    else:
        show_audit(console, found)
    return 0 if found.passed else 1


COMMAND = Command(
    "find what a refit leaves wrong in a model, and which quirk covers it", run_audit, add_arguments, describes_run=True
)
