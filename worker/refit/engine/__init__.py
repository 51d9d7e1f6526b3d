"""The engine's side of a refit."""
