"""What sparse refits keep to: bit by bit what a dense one does, over a group of gloo and a model of plain layers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest
import torch
from patience import HUNG_S
from torch import nn

from worker.errors import TransferError
from worker.refit import CollectiveSender
from worker.refit.transport.channel import free_port
from worker.refit.transport.collective import CollectiveStream
from worker.refit.transport.group import Group
from worker.refit.weights import sparse
from worker.refit.weights.copy_plan import CopyPlan, Region, Write
from worker.refit.weights.digest import digests
from worker.refit.weights.manifest import Manifest

ROWS, COLUMNS, EXPERTS = 16, 32, 4
SIZE = ROWS * COLUMNS


class Trainer(nn.Module):
    """Two matrices, experts that lie side by side, and one tensor whose size is no multiple of a word's."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Parameter(torch.randn(ROWS, COLUMNS, dtype=dtype)) for _ in range(2))
        self.experts = nn.Parameter(torch.randn(EXPERTS, ROWS, COLUMNS, dtype=dtype))
        self.scale = nn.Parameter(torch.randn(3, dtype=dtype))

    def sent(self) -> dict[str, torch.Tensor]:
        """What a refit sends, in the trainer's memory."""
        experts = {f"experts.{number}.up": weight for number, weight in enumerate(self.experts.detach())}
        others = {name: getattr(self, name).detach() for name in ("first", "second", "scale")}
        return others | experts

    @torch.no_grad()
    def step(self, share: float = 0.01) -> None:
        """Changes a share of all values, to other values of any dtype."""
        for parameter in self.parameters():
            parameter.add_((torch.rand_like(parameter.float()) < share).to(parameter.dtype))


def engine(dtype: torch.dtype, rank: int, ranks: int) -> tuple[nn.Module, list[Write]]:
    """A rank's model: its rows of the first matrix, its columns of the second, its experts."""
    rows, columns, experts = ROWS // ranks, COLUMNS // ranks, EXPERTS // ranks
    model = nn.Module()
    model.first = nn.Parameter(torch.zeros(rows, COLUMNS, dtype=dtype), requires_grad=False)
    model.second = nn.Parameter(torch.zeros(ROWS, columns, dtype=dtype), requires_grad=False)
    model.w13 = nn.Parameter(torch.zeros(experts, ROWS, COLUMNS, dtype=dtype), requires_grad=False)
    model.scale = nn.Parameter(torch.zeros(3, dtype=dtype), requires_grad=False)
    whole, third = Region(0, (ROWS, COLUMNS), (COLUMNS, 1)), Region(0, (3,), (1,))
    part = Region(rank * rows * COLUMNS, (rows, COLUMNS), (COLUMNS, 1))
    across = Region(rank * columns, (ROWS, columns), (COLUMNS, 1))
    writes = [
        Write("first", part, "first", Region(0, (rows, COLUMNS), (COLUMNS, 1))),
        Write("second", across, "second", Region(0, (ROWS, columns), (columns, 1))),
        Write("scale", third, "scale", third),
    ]
    for number in range(experts):
        written = Region(number * SIZE, (ROWS, COLUMNS), (COLUMNS, 1))
        writes.append(Write(f"experts.{rank * experts + number}.up", whole, "w13", written))
    return model, writes


class Ranks:
    """A trainer and the processes of an engine, as threads.

    Attributes:
        trainer: The trainer's model.
        models: The engine's, by rank.
        whole: How many bytes came in the last refit as they are, by rank; more than a few are a dense refit.
        seen: What would be in the ledger of the last refit, by rank.
    """

    def __init__(self, background: Callable[..., Future], dtype: torch.dtype, held: torch.dtype, ranks: int) -> None:
        self.trainer, self._background = Trainer(dtype), background
        port, size = free_port("127.0.0.1"), ranks + 1
        found = [engine(held, rank, ranks) for rank in range(ranks)]
        self.models = [model for model, _ in found]
        manifest = Manifest.of(self.trainer.sent().items())
        self._plans = [CopyPlan(model, manifest, writes, reloaded=(), modules=()) for model, writes in found]
        for plan in self._plans:
            plan.uses = 1  # the copies of the first use are compared with loaders
            plan.room_for = lambda _: None  # so that all that comes whole is yielded
        self.whole, self.seen, self._groups = [0] * ranks, [dict[str, str]() for _ in range(ranks)], dict[int, Group]()

        def join(rank: int) -> None:
            self._groups[rank] = Group("127.0.0.1", port, rank=rank + 1, world_size=size, timeout_s=HUNG_S)

        def opening() -> None:
            self.sender = CollectiveSender("127.0.0.1", port, world_size=size, timeout_s=HUNG_S, sparse=True)

        self._together(opening, join)

    def refit(self, take: Callable[[int], None] | None = None) -> None:
        """Sends the trainer's tensors, each by itself but the experts."""
        sent = self.trainer.sent()
        manifest = Manifest.of(sent.items())
        self._together(lambda: self.sender.send(sent.items, manifest=manifest, buffer_bytes=SIZE), take or self._take)

    def verify(self) -> None:
        """Sends them all once more."""
        self.refit(lambda rank: [None for _ in CollectiveStream(self._groups[rank], None)])

    def close(self) -> None:
        """Leaves the group."""
        self.sender.close()
        for group in self._groups.values():
            group.close()

    def _take(self, rank: int) -> None:
        plan, seen = self._plans[rank], dict[str, torch.Tensor]()
        plan.see = lambda name, tensor: seen.update({name: tensor.clone()})
        stream = CollectiveStream(self._groups[rank], None, lambda _: plan)
        self.whole[rank] = 0
        for tensors in stream.borrowed():
            self.whole[rank] += sum(tensor.nbytes for _, tensor in tensors)
            plan.show(tensors)
            plan.copy(tensors)
        stream.keep()
        self.seen[rank] = digests(seen.items())

    def _together(self, sending: Callable[[], None], receiving: Callable[[int], None]) -> None:
        done = [self._background(sending), *(self._background(receiving, rank) for rank in range(len(self.models)))]
        for error in [one.exception(HUNG_S) for one in done]:
            if error is not None:
                raise error


@pytest.fixture
def opened(background):
    """Opens a trainer and an engine's ranks, and closes them after the test."""
    found = []

    def start(dtype=torch.bfloat16, held=torch.bfloat16, ranks=1):
        found.append(Ranks(background, dtype, held, ranks))
        return found[-1]

    yield start
    for ranks in found:
        ranks.close()


def check(ranks: Ranks) -> None:
    """The engine has bit by bit what a dense refit gives it."""
    sent, count = ranks.trainer.sent(), len(ranks.models)
    experts = torch.stack([sent[f"experts.{number}.up"] for number in range(EXPERTS)])
    for rank, model in enumerate(ranks.models):
        for held, whole, dim in ((model.first, sent["first"], 0), (model.second, sent["second"], 1), (model.w13, experts, 0)):
            expected = whole.chunk(count, dim)[rank].to(held.dtype).contiguous()
            assert torch.equal(held.contiguous().view(torch.uint8), expected.view(torch.uint8))
        assert torch.equal(model.scale, sent["scale"].to(model.scale.dtype))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32),
    ],
)
def test_only_words_that_changed_travel(opened, dtype, held, ranks):
    one = opened(dtype, held, ranks)
    one.refit()
    check(one)
    assert one.whole[0] == sum(tensor.nbytes for tensor in one.trainer.sent().values())
    for _ in range(3):
        one.trainer.step()
        one.refit()
        check(one)
        dense = {"scale"} | ({"second"} if ranks == 2 else set())
        # what the ledger is to see, in the trainer's own dtype, comes as it is
        dense |= {name for name in one.trainer.sent() if name.startswith("experts") and dtype is not held}
        assert one.whole[0] == sum(tensor.nbytes for name, tensor in one.trainer.sent().items() if name in dense)


@pytest.mark.parametrize(
    ("votes", "kind"),
    [([1, sparse.ANY], 1), ([sparse.ANY] * 2, sparse.DENSE), ([1, sparse.DENSE], sparse.DENSE), ([1, 3], sparse.DENSE)],
)
def test_words_are_of_the_dtype_that_all_ranks_have(votes, kind):
    """A pipeline's stages may have parts of one broadcast in different dtypes; each would read the words as its own."""
    assert sparse.kinds_of([[vote] for vote in (*votes, sparse.ANY)]) == [kind]


def test_every_bit_of_a_value_counts(opened):
    one = opened()
    with torch.no_grad():
        one.trainer.first[0, 0] = 0.0
    one.refit()
    with torch.no_grad():
        one.trainer.first[0, 0] = -0.0
        one.trainer.first[0, 1] = float("nan")
    one.refit()
    check(one)
    assert one.whole[0] == one.trainer.scale.nbytes


def test_the_ledger_sees_what_it_sees_of_a_dense_refit(opened):
    one = opened()
    for _ in range(2):
        one.trainer.step()
        one.refit()
        experts = {name: tensor for name, tensor in one.trainer.sent().items() if name.startswith("experts")}
        assert one.seen[0] == digests(experts.items())


def test_after_many_changes_nothing_is_compared_for_a_while(opened, monkeypatch):
    one = opened()
    one.refit()
    compared = []
    monkeypatch.setattr(sparse.Sent, "changed", lambda *given, real=sparse.Sent.changed: compared.append(1) or real(*given))
    for _ in range(sparse._REST + 1):
        one.trainer.step(0.9)
        one.refit()
        check(one)
        assert one.whole[0] > SIZE
    assert len(compared) == 1
    for number in range(2):
        one.trainer.step()
        one.refit()
        check(one)
        assert (one.whole[0] > SIZE) == (number == 0)


def test_what_another_wrote_into_the_engine_is_found_and_mended(opened):
    one = opened(ranks=2)
    one.refit()
    one.models[1].w13[0, 0, 0] += 1
    one.refit()
    check(one)
    assert min(one.whole) > SIZE


def test_after_a_verification_the_next_refit_is_sparse(opened):
    one = opened()
    one.refit()
    one.trainer.step()
    one.verify()
    one.refit()
    check(one)
    assert one.whole[0] == one.trainer.scale.nbytes


def test_after_a_failure_a_new_group_begins_with_a_dense_refit(opened):
    one = opened()
    one.refit()

    def breaks(rank: int) -> None:
        with CollectiveStream(one._groups[rank], None):
            raise RuntimeError("half-way")

    with pytest.raises((TransferError, RuntimeError)):
        one.refit(breaks)
    other = opened()
    other.models, other._plans = one.models, one._plans
    other.trainer.step()
    other.refit()
    check(other)
    assert other.whole[0] > SIZE
