"""One engine and its server for all modules of this folder."""
