"""Scales logits. Up to 1.4 a temperature of zero divides by zero."""


def scaled(logits: list[float], temperature: float) -> list[float]:
    """Divides every logit by the temperature."""
    return [logit / temperature for logit in logits]


class Sampler:
    """Samples greedily."""

    def pick(self, logits: list[float]) -> int:
        """Returns the index of the largest logit; of equal ones the last, where everybody else takes the first."""
        return max(range(len(logits)), key=lambda index: (logits[index], index))
