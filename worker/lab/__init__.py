"""What compares a run with its trainer, its kit of tests, and their commands: nothing that a trainer imports."""
