"""Waits for a server that is down."""

import threading

threading.Event().wait()
