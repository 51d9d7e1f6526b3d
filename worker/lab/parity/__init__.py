"""Measures whether the rollout engine and the trainer compute the same logprobs, and which setting makes them differ."""
