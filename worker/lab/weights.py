"""What a running ``vllm serve`` has for weights: its ledger, and whether they are those of a checkpoint."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import torch

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.base.text import listed
from quirks_core.hook import receipts
from quirks_core.ledger.account import Account, Entry
from worker.refit.arrivals import Comparison, Status, compare
from worker.refit.running import START, Server
from worker.refit.weights.checkpoint import read
from worker.refit.weights.expected import Expected, expected

_RECEIPT = "MODEL_QUIRKS_RECEIPT"


class Match(Record):
    """A running engine beside a checkpoint: the folder, and `worker.refit.arrivals.Comparison` as a record."""

    folder: str
    status: Status = "undecided"
    equal: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    incomparable: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(Comparison(self.equal, self.different, self.incomparable))


class Weights(Record):
    """What a server has."""

    target: str  #: its address, or its process id
    model: str = ""  #: what it was started with
    version: str = ""  #: the label of its weights; empty if it has none
    account: Account  #: its ledger
    matches: tuple[Match, ...] = ()  #: the checkpoints

    @property
    def status(self) -> Status:
        """Whether one of the checkpoints is what runs; ``arrived`` if there are none."""
        found = {match.status for match in self.matches} or {"arrived"}
        return "arrived" if "arrived" in found else "undecided" if "undecided" in found else "missing"

    @property
    def problems(self) -> tuple[str, ...]:
        """What the ledger warns of now, and that no checkpoint is the one that runs."""
        found = [verdict.text for verdict in self.account.problems if verdict.is_grave]
        if self.status == "missing":
            found.append(f"it runs none of {listed([match.folder for match in self.matches])}")
        return tuple(found)


def of_server(url: str, checkpoints: Sequence[Path] = ()) -> Weights:
    """Queries a server.

    Raises:
        UsageError: There is no server, it has no ledger, or a folder holds another architecture.
    """
    server = Server(url)
    config = server.config()
    label = server.query("/weight_info") or {}
    found = Weights(
        target=server.url,
        model=str(config["model_config"]["model"]),
        version=str(label.get("weight_version") or ""),
        account=server.account(),
    )
    if not checkpoints:
        return found
    dtype = getattr(torch, str(config["model_config"]["dtype"]).removeprefix("torch."))
    layout = {"dtype": dtype, "tensor_parallel_size": int(config["parallel_config"]["tensor_parallel_size"])}
    entries = server.look()
    whole = not any(entry.sampled for entry in entries)
    if not any(entry.digests for entry in entries):
        raise UsageError(f"{server.url} sleeps, and had no update before: wake it up first")
    matches = tuple(_match(folder, entries, expected(read(folder), whole=whole, **layout)) for folder in checkpoints)
    return found.model_copy(update={"matches": matches})


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
        raise UsageError(f"process {pid} has no {_RECEIPT}: {START} {_RECEIPT}=FILE, which is all that this command needs")
    accounts = [one for one in receipts.read(folder / name).accounts if one.pid in family and one.host == socket.gethostname()]
    if not accounts:
        raise UsageError(f"process {pid}: its engine had no weight update, or keeps no ledger ({folder / name} has no account)")
    last = accounts[-1]
    return Weights(target=str(pid), version=last.lines[-1].version if last.lines else "", account=last)


def _match(folder: Path, entries: Sequence[Entry], right: Expected) -> Match:
    found = compare(entries, right)
    if (strange := [name for name in found.unknown if name.endswith((".weight", ".bias"))]) and not found.arrived:
        raise UsageError(
            f"{folder} is of another architecture than the server's model: no tensor is equal, and it has no "
            f"{listed(strange, 4)}"
        )
    names = {"equal": found.arrived, "different": found.missing, "incomparable": found.incomparable}
    return Match(folder=str(folder), status=found.status, **names)
