"""Changes one setting at a time, and says which one moves parity."""
