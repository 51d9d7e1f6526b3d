"""Whether the rollout engine and the trainer mean the same by a log-probability, and which setting breaks it."""
