"""Quirks of the model's configuration: ``config.json``, and what ``engine.hf_overrides`` changes of it."""
