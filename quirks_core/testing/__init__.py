"""The half of the test kit that needs no engine: contract, marker, fixtures and an isolated registry."""
