"""What is known of a run: its model, packages, platform and trainer."""
