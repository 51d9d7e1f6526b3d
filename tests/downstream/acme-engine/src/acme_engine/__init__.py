"""A tiny engine."""
