# SPDX-License-Identifier: Apache-2.0
"""One rank of tools/jobs recommender. Usage: recommender.py STEPS SEED sound|inject-wrong

A model of clicks: each sample has ids of features, and the score is a weighted sum of their rows.
Rank id % ranks has the row of an id, and makes it when the id first occurs. Rows and their
gradients move by all_to_all_single with uneven splits. Rank 0 then trains the same model alone with
the batches of all ranks, and prints a record of the differences.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

import harp.torch  # noqa: F401
from tools.measure.stats import largest

DIM, SAMPLES, FEATURES, RATE = 16, 32, 8, 0.5
IDS = 5000  # few of them are frequent, as in clicks
Batch = tuple[torch.Tensor, torch.Tensor]


def batch_of(seed: int, step: int, rank: int) -> Batch:
    """Ids (SAMPLES x FEATURES) and clicks of a rank's step. Ranks have batches of other sizes."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * step + rank)
    samples = SAMPLES + 8 * rank
    ids = (IDS ** torch.rand(samples, FEATURES, generator=generator)).long()
    return ids, (ids.sum(1) % 2).float()


def first_row(number: int) -> torch.Tensor:
    """What a row is before its first gradient, on whichever rank it lies."""
    return 0.1 * torch.randn(DIM, generator=torch.Generator().manual_seed(number))


class Table:
    """Rows by id, made when they are first asked for."""

    def __init__(self) -> None:
        self.rows: dict[int, torch.Tensor] = {}

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        for number in ids.tolist():
            if number not in self.rows:
                self.rows[number] = first_row(number)
        rows = [self.rows[number] for number in ids.tolist()]
        return torch.stack(rows) if rows else torch.empty(0, DIM)

    def add_gradients(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        for number, gradient in zip(ids.tolist(), gradients):
            self.rows[number] -= RATE * gradient


class Sharded:
    """The table of all ranks, of which this one has a part."""

    def __init__(self) -> None:
        self.own, self.ranks = Table(), dist.get_world_size()
        self.moved = 0  # bytes of rows and gradients that this rank has sent

    def exchange(
        self, sent: torch.Tensor, sent_rows: Sequence[int], received_rows: Sequence[int]
    ) -> torch.Tensor:
        """What the other ranks send to this one, as many rows as the lists say for each rank."""
        received = sent.new_empty((sum(received_rows), *sent.shape[1:]))
        dist.all_to_all_single(received, sent.contiguous(), list(received_rows), list(sent_rows))
        self.moved += sent.numel() * sent.element_size()
        return received

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of unique ids. `give_back` then takes their gradients."""
        self.order = torch.argsort(ids % self.ranks, stable=True)
        asked = torch.bincount(ids % self.ranks, minlength=self.ranks)
        wanted = torch.empty_like(asked)
        dist.all_to_all_single(wanted, asked)
        self.asked, self.wanted = asked.tolist(), wanted.tolist()
        self.wanted_ids = self.exchange(ids[self.order], self.asked, self.wanted)
        rows = self.exchange(self.own.look_up(self.wanted_ids), self.wanted, self.asked)
        ordered = torch.empty_like(rows)
        ordered[self.order] = rows
        return ordered

    def give_back(self, gradients: torch.Tensor) -> None:
        arrived = self.exchange(gradients[self.order], self.asked, self.wanted)
        self.own.add_gradients(self.wanted_ids, arrived)


def forward_backward(
    batch: Batch, places: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor, total: int
) -> torch.Tensor:
    """The loss of a batch, as its share of the loss of `total` samples. Leaves the gradients."""
    scores = rows[places].sum(1) @ weights
    losses = torch.nn.functional.binary_cross_entropy_with_logits(scores, batch[1], reduction="sum")
    loss = losses / total
    loss.backward()
    return loss.detach()


def train_sharded(steps: int, seed: int) -> tuple[list[float], Sharded]:
    """Losses of all ranks together, and the table."""
    table, ranks = Sharded(), dist.get_world_size()
    weights = torch.ones(DIM, requires_grad=True)
    losses = []
    for step in range(steps):
        batch = batch_of(seed, step, dist.get_rank())
        total = torch.tensor(len(batch[0]))
        dist.all_reduce(total)
        unique, places = torch.unique(batch[0], return_inverse=True)
        rows = table.look_up(unique).requires_grad_()
        loss = forward_backward(batch, places, rows, weights, int(total))
        table.give_back(rows.grad)
        dist.all_reduce(weights.grad)
        dist.all_reduce(loss)
        losses.append(float(loss))
        with torch.no_grad():
            weights -= RATE / ranks * weights.grad
            weights.grad.zero_()
    return losses, table


def train_alone(steps: int, seed: int, ranks: int) -> tuple[list[float], Table]:
    """The same in one process."""
    table = Table()
    weights = torch.ones(DIM, requires_grad=True)
    losses = []
    for step in range(steps):
        batches = [batch_of(seed, step, rank) for rank in range(ranks)]
        batch = torch.cat([one[0] for one in batches]), torch.cat([one[1] for one in batches])
        unique, places = torch.unique(batch[0], return_inverse=True)
        rows = table.look_up(unique).requires_grad_()
        loss = forward_backward(batch, places, rows, weights, len(batch[0]))
        table.add_gradients(unique, rows.grad)
        losses.append(float(loss))
        with torch.no_grad():
            weights -= RATE / ranks * weights.grad
            weights.grad.zero_()
    return losses, table


def main() -> None:
    steps, seed = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("harp")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses, table = train_sharded(steps, seed)
    if sys.argv[3] == "inject-wrong" and rank == ranks - 1:
        next(iter(table.own.rows.values())).add_(0.01)
    parts: list[dict[int, list[float]]] = [{} for _ in range(ranks)]
    mine = {number: row.tolist() for number, row in table.own.rows.items()}
    dist.all_gather_object(parts, mine)
    if rank == 0:
        right_losses, right = train_alone(steps, seed, ranks)
        found = {number: torch.tensor(row) for part in parts for number, row in part.items()}
        rows = [float((found[number] - row).abs().max()) if number in found else float("inf")
                for number, row in right.rows.items()]  # fmt: skip
        print(json.dumps({
            "loss_first": losses[0],
            "loss_last": losses[-1],
            "loss_difference": largest(abs(a - b) for a, b in zip(losses, right_losses)),
            "row_difference": largest(rows) if len(found) == len(right.rows) else float("inf"),
            "rows": [len(part) for part in parts],
            "rows_alone": len(right.rows),
            "moved": table.moved,
        }), flush=True)  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
