"""The part of a failed refit's message about the engine's weights, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quirks_core.base.text import listed
from worker.errors import RefitError, RefitRejectedError, RefitUnsupportedError


def kind_of(error: BaseException) -> type[RefitError]:
    """Returns the most specific class of refit error for a failure: rejected, unsupported, or a refit error in general."""
    return next((kind for kind in (RefitRejectedError, RefitUnsupportedError) if isinstance(error, kind)), RefitError)


def main_cause(errors: Iterable[BaseException]) -> BaseException:
    """Returns the error that explains the others: ranks fail if another one rejects the refit or cannot reload the model."""
    order = (RefitRejectedError, RefitUnsupportedError, RefitError)
    return min(errors, key=lambda error: order.index(kind_of(error)))  # the first one of the same kind


def way_back(kind: type[RefitError], *, dummy: bool, restart: str = "restart_async") -> str:
    """Returns what to do about an engine that a failed refit has left unable to generate; `restart` starts it again."""
    if kind is not RefitUnsupportedError:
        return f"refit once more, completely, or call {restart}"
    cure = "set engine.load_format=auto, which may avoid it, or " if dummy else ""
    return f"further refits of this engine fail in the same way; {cure}report it to vLLM"


def unchanged(kind: type[RefitError], *, version: str, problem: str | None, dummy: bool) -> str:
    """Describes an engine whose weights a failed refit has not touched.

    Args:
        kind: How the refit failed.
        version: Label of the engine's weights.
        problem: Why the engine could not generate before the refit either; None if it could.
        dummy: The engine starts from dummy weights.
    """
    advice = f"; {way_back(kind, dummy=dummy)}" if kind is RefitUnsupportedError else ""
    if problem is None:
        return f"the engine keeps the weights it had (version {version!r}) and generates with them{advice}"
    return f"the refit has changed nothing, so the engine still cannot generate: {problem}{advice}"


def with_counts(not_finite: Mapping[str, int]) -> str:
    """Names tensors with values that are NaN or infinite, and counts them."""
    return listed(f"{name} ({count} value{'s' if count > 1 else ''})" for name, count in not_finite.items())
