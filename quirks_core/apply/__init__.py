"""Puts a plan into force in a process, and proves it."""
