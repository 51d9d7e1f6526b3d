"""Plugins and a command that do not load, or fail later."""
