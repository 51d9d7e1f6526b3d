"""Built-in quirks of the flag WEIGHT_SYNC."""
