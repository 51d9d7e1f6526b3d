"""What a running ``vllm serve`` has for weights: its ledger, and whether they are those of a checkpoint."""

from __future__ import annotations

import hashlib
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.base.text import listed
from quirks_core.hook import receipts
from quirks_core.ledger.account import COMPUTES, Account
from worker.refit.running import Server
from worker.refit.weights.checkpoint import read
from worker.refit.weights.expected import common, engine_tensors, expected

_RECEIPT = "MODEL_QUIRKS_RECEIPT"


class Match(Record):
    """A running engine beside a checkpoint.

    Attributes:
        folder: The checkpoint.
        equal: Common names of the tensors that are equal, byte by byte.
        different: Names of those that are not.
        incomparable: Names of those that the engine packs, quantises, computes, or lays out in its own way.
    """

    folder: str
    equal: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    incomparable: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the engine runs this checkpoint, as far as tensors can be compared."""
        return bool(self.equal) and not self.different


class Weights(Record):
    """What a server has.

    Attributes:
        target: Its address, or its process id.
        model: What it was started with.
        version: The label of its weights; empty if it has none.
        account: Its ledger; None if it keeps none.
        by: What the checkpoints were compared by: ``ledger``, or ``checksum`` for vLLM's own.
        matches: The checkpoints.
    """

    target: str
    model: str = ""
    version: str = ""
    account: Account | None = None
    by: str = ""
    matches: tuple[Match, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What the ledger warns of now, and that no checkpoint is the one that runs."""
        found = [verdict.text for verdict in self.account.problems if verdict.is_grave] if self.account else []
        if self.matches and not any(match.runs for match in self.matches):
            found.append(f"it runs none of {listed([match.folder for match in self.matches])}")
        return tuple(found)


def of_server(url: str, checkpoints: Sequence[Path] = ()) -> Weights:
    """Queries a server.

    Args:
        url: As ``http://host:8000``.
        checkpoints: Folders to compare its weights with.

    Raises:
        UsageError: There is no server, it has no ledger and no checksums, or a folder holds another architecture.
    """
    server = Server(url)
    config = server.config()
    label = server.query("/weight_info") or {}
    try:
        account, reason = server.account(), ""
    except UsageError as error:
        if not checkpoints:
            raise
        account, reason = None, str(error)
    found = Weights(
        target=server.url,
        model=str(config["model_config"]["model"]),
        version=str(label.get("weight_version") or ""),
        account=account,
    )
    if not checkpoints:
        return found
    dtype = getattr(torch, str(config["model_config"]["dtype"]).removeprefix("torch."))
    layout = {"dtype": dtype, "tensor_parallel_size": int(config["parallel_config"]["tensor_parallel_size"])}
    if account is not None:
        entries = server.look()
        whole = not any(entry.sampled for entry in entries)
        held = [(name, digest) for entry in entries for name, digest in entry.digests.items()]
        found_in = [expected(read(folder), whole=whole, **layout).digests for folder in checkpoints]
    elif (answer := server.query("/weight_checker", {"action": "checksum"})) is not None:
        held = [(name.rpartition(":")[2], digest) for name, digest in answer["checksums"].items()]
        found_in = [_checksums(folder, **layout) for folder in checkpoints]
    else:
        raise UsageError(f"{server.url} has no /weight_checker, which vLLM has from 0.32; {reason}")
    if not held:
        raise UsageError(f"{server.url} sleeps, and had no update before: wake it up first")
    matches = tuple(_match(folder, held, right) for folder, right in zip(checkpoints, found_in, strict=True))
    return found.model_copy(update={"by": "ledger" if account is not None else "checksum", "matches": matches})


def of_process(pid: int) -> Weights:
    """Reads the accounts of a server on this machine from its file of receipts.

    Args:
        pid: Its process id, or that of one of its parents.

    Raises:
        UsageError: There is no such process, it keeps no file of receipts, or its engine had no update.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        variables, folder = process.environ(), Path(process.cwd())
        family = {pid, *(child.pid for child in process.children(recursive=True))}
    except psutil.NoSuchProcess:
        raise UsageError(f"{pid} is no process on this machine; name a server's process id, or its address") from None
    except psutil.AccessDenied:
        raise UsageError(f"process {pid} is another user's; ask its server by its address") from None
    if not (name := variables.get(_RECEIPT)):
        raise UsageError(f"process {pid} has no {_RECEIPT}: start it with MODEL_QUIRKS=rollout and {_RECEIPT}=FILE")
    accounts = [one for one in receipts.read(folder / name).accounts if one.pid in family and one.host == socket.gethostname()]
    if not accounts:
        raise UsageError(f"process {pid}: its engine had no weight update, or keeps no ledger ({folder / name} has no account)")
    last = accounts[-1]
    return Weights(target=str(pid), version=last.lines[-1].version if last.lines else "", account=last)


def _checksums(folder: Path, **layout: Any) -> dict[str, frozenset[str]]:
    """Returns vLLM's checksums (SHA-256) of what an engine may have of a checkpoint, by common name."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tensor in engine_tensors(read(folder), **layout):
        found[name].add(hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest())
    return {name: frozenset(texts) for name, texts in found.items()}


def _match(folder: Path, held: Sequence[tuple[str, str]], right: Mapping[str, frozenset[str]]) -> Match:
    """Sorts an engine's tensors; experts, which kernels lay out in their own ways, are never found different.

    Raises:
        UsageError: The checkpoint has other tensors.
    """
    empty = hashlib.sha256(b"").hexdigest()  # what a kernel has packed away
    equal, different, incomparable, strange = set[str](), set[str](), set[str](), set[str]()
    for name, digest in held:
        key = common(name.removesuffix(COMPUTES))
        is_packed = name.endswith(COMPUTES) or digest == empty
        if digest in right.get(key, ()):
            equal.add(key)
        elif is_packed or key not in right or ".experts." in key:
            incomparable.add(key)
        else:
            different.add(key)
        if not is_packed and key not in right and key.endswith((".weight", ".bias")):
            strange.add(key)
    if strange and not equal:
        raise UsageError(
            f"{folder} is of another architecture than the server's model: no tensor is equal, and it has no "
            f"{listed(sorted(strange), 4)}"
        )
    names = (equal - different - incomparable, different, incomparable - different)
    return Match(folder=str(folder), **dict(zip(("equal", "different", "incomparable"), map(_sorted, names), strict=True)))


def _sorted(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
