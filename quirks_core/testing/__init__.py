"""The kit for authors of quirks that needs no engine: contract, marker, fixtures and an isolated registry."""
