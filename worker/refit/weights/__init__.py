"""A trainer's weights: names, shapes, scope and packing."""
