"""What an upgrade of vLLM changes for one run, told from the source of both versions; nothing is installed or imported."""
