"""Finds, loads, checks and locks plugins."""
