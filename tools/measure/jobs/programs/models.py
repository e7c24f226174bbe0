# SPDX-License-Identifier: Apache-2.0
"""Small models with their data, for jobs on CPU hosts. The same seed gives the same batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[4]
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Task:
    """A model to train. batch: the inputs and targets that a generator chooses."""

    model: nn.Module
    batch: Callable[[torch.Generator], Batch]

    def loss(self, model: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> torch.Tensor:
        """The cross entropy; `model` may be a wrapped form of the task's own."""
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def vision(batch_size: int = 16) -> Task:
    """A convolutional network for scikit-learn's digits: 8x8 grey images of 10 classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)

    def batch(generator: torch.Generator) -> Batch:
        chosen = torch.randint(len(images), (batch_size,), generator=generator)
        return images[chosen], labels[chosen]

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    return Task(net, batch)


class Transformer(nn.Module):  # type: ignore[misc]
    """Predicts each next byte of a text."""

    def __init__(self, context: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, width)
        self.places = nn.Parameter(0.02 * torch.randn(context, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 256)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, letters: torch.Tensor) -> Any:
        return self.out(self.blocks(self.letters(letters) + self.places, mask=self.mask))


def transformer(batch_size: int = 4, context: int = 64) -> Task:
    """A transformer that learns the text of the project's pages."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    text = torch.frombuffer(bytearray(b"".join(page.read_bytes() for page in pages)),
                            dtype=torch.uint8).long()  # fmt: skip

    def batch(generator: torch.Generator) -> Batch:
        starts = torch.randint(len(text) - context - 1, (batch_size,), generator=generator)
        rows = torch.stack([text[start : start + context + 1] for start in starts.tolist()])
        return rows[:, :-1], rows[:, 1:]

    return Task(Transformer(context), batch)


def wide(width: int = 1024, layers: int = 6) -> Task:
    """A communication-bound model: 25 MiB of parameters, and two rows of random inputs a step."""
    hidden = [one for _ in range(layers) for one in (nn.Linear(width, width), nn.ReLU())]

    def batch(generator: torch.Generator) -> Batch:
        inputs = torch.randn(2, width, generator=generator)
        return inputs, torch.randint(10, (2,), generator=generator)

    return Task(nn.Sequential(*hidden, nn.Linear(width, 10)), batch)


MODELS: dict[str, Callable[[], Task]] = {
    "vision": vision,
    "transformer": transformer,
    "wide": wide,
}
