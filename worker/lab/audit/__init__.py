"""Finds what a refit leaves wrong in a model, tensor by tensor and by logprobs."""
