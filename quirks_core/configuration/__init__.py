"""A run's configuration: sections, slots, files and command lines."""
