"""Needs what is not installed."""

import acme_telemetry

QUIRK = acme_telemetry.QUIRK
COMMAND = acme_telemetry.COMMAND
