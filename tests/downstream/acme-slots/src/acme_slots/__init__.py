"""Quirks of Acme's cluster."""
