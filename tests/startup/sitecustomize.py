"""Runs first in every Python program that tests start, and in the processes of its engines.

Imports of vLLM and torch make objects by the hundred thousand, and Python looks through all of them again and again: while it
imports, and when a program ends. Without that a program that does nothing but import vLLM takes 6 s instead of 10.
"""

import atexit
import gc
import os


def _end() -> None:
    gc.freeze()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries of bindings report what is not collected any more as leaks


gc.set_threshold(50_000, 20, 20)
gc.unfreeze = lambda: None  # vLLM calls it when an engine ends, and then collects what is freed with the process anyway
atexit.register(_end)  # the first that is registered is the last that runs
