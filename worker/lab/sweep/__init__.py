"""Tiny models of every decoder architecture."""
