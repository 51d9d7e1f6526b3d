"""Built-in quirks of the flag THROUGHPUT."""
