"""Commands of ``quirks`` that start engines; they reach it through the entry-point group ``model_quirks.commands``."""
