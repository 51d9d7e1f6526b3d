"""The half of the test kit that needs no engine: contract, fixtures and an isolated registry."""
