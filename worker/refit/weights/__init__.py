"""A trainer's weights: names, shapes and scope."""
