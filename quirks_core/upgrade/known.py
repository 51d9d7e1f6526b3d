"""Changes of vLLM that were read in its source and that no quirk declares, each with what it concerns.

A change that alters results needs a quirk. This table is for what an upgrade mends or alters otherwise: an error that is gone,
a length that is computed in another way. The source of both releases is read, so that no version number is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quirks_core.declaration.match import Fact, Match, setting
from quirks_core.declaration.probes import Probe, StaticProbe, SymbolProbe, ask
from quirks_core.declaration.trace import Answer
from quirks_core.plan.evaluate import matches
from quirks_core.upgrade.finding import Finding, Level, Section
from quirks_core.upgrade.run import OnRelease

_YARN = ("yarn", "deepseek_yarn")


@dataclass(frozen=True, slots=True)
class Known:
    """A change.

    Attributes:
        id: Its name.
        match: The runs that it concerns.
        probe: Yes where the source is as it was before the change.
        old: What holds before it.
        new: What holds after it.
        reference: Where it is described; empty if it was read in the source alone.
    """

    id: str
    match: Match
    probe: Probe
    old: str
    new: str
    reference: str = ""


def _rope_type(*names: str) -> Match:
    keys = ("rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type", "text_config.rope_scaling.rope_type")
    found: Match = Fact(f"model.config.{keys[0]}").one_of(*names)
    for key in keys[1:]:
        found |= Fact(f"model.config.{key}").one_of(*names)
    return found


KNOWN = (
    Known(
        "tcpstore-port-choice",
        setting("engine.distributed_executor_backend").one_of("ray") | setting("cluster.num_nodes").above(1),
        SymbolProbe("vllm.v1.executor.ray_executor_v2:RayExecutorV2._select_tcpstore_port", present_means_affected=True),
        "an engine on Ray chooses the port of its TCPStore before it is taken: of engines that start together some may fail "
        "with EADDRINUSE",
        "the function that chose it, _select_tcpstore_port, is gone",
        "https://github.com/vllm-project/vllm/issues/50969",
    ),
    Known(
        "yarn-length",
        _rope_type(*_YARN),
        StaticProbe("vllm.config.model", r"\"yarn\",\s+\"deepseek_yarn\"", found_means_affected=False),
        "the longest length of a YaRN model is original_max_position_embeddings times factor",
        "the longest length of a YaRN model is max_position_embeddings: an engine.max_model_len above it is refused",
    ),
)


def known_changes(before: OnRelease, after: OnRelease) -> Iterator[Finding]:
    """Yields the known changes between two releases that concern a run; as unknown, those that may.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
    """
    for item, sentence in _between(before, after):
        concerns = matches(item.match, after.context).answer
        if concerns is Answer.NO:
            continue
        level = Level.NOTE if concerns is Answer.YES else Level.UNKNOWN
        may = "" if concerns is Answer.YES else "whether it concerns this run cannot be told: "
        lines = (item.reference,) if item.reference else ()
        yield Finding(section=Section.KNOWN, level=level, subject=item.id, message=f"{may}{sentence}", lines=lines)


def elsewhere(before: OnRelease, after: OnRelease) -> Iterator[str]:
    """Yields the known changes between two releases that do not concern a run, one sentence each.

    Args:
        before: The run on the release that it uses.
        after: The run on the release in question.
    """
    for item, sentence in _between(before, after):
        if matches(item.match, after.context).answer is Answer.NO:
            yield f"{item.id}: {sentence}"


def _between(before: OnRelease, after: OnRelease) -> Iterator[tuple[Known, str]]:
    """The changes that lie between two releases, each with what holds on both."""
    for item in KNOWN:
        old, new = (ask(item.probe, source=side.release.source) for side in (before, after))
        words = {Answer.YES: item.old, Answer.NO: item.new}
        if old in words and new in words and old is not new:
            yield item, f"on {before.release.label}, {words[old]}; on {after.release.label}, {words[new]}"
