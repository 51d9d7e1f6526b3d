"""Runs every decoder architecture, tiny, through plan, engine and refits, and writes down which of them are right."""
