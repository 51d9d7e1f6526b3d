"""Changes one setting at a time, and reports which of them affect parity."""
