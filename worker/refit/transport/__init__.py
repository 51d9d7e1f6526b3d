"""The wire between a trainer and an engine."""
