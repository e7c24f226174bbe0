# SPDX-License-Identifier: Apache-2.0
"""Programs for two link layers on a virtual wire (links.h), made up by hypothesis."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Optional

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from harp import paths

PROGRAM = paths.build_dir() / "tests" / "model" / "model-links"
BATCH = 2000  # programs of one seed: hypothesis remembers what it has tried
MOST_STEPS = 8  # of a part, and parts of a program

# us. A link's timeout is 4 s; what may last for longer than that is a caller's pause.
MOMENTS = (20, 40, 60, 80, 110, 160, 300, 1000, 2000, 300_000, 1_200_000, 5_000_000, 9_000_000)
PAUSES = (60, 200, 3_000, 700_000, 1_900_000, 3_300_000)
LONG = (6_000_000,)
SIZES = (0, 0, 1, 100, 2999, 3000, 3001, 9000, 25_000, 60_000)


@dataclass(frozen=True)
class Settings:
    """What a program finds; the names are those of program.c."""

    flows: int
    instances: tuple[int, int]
    nics: tuple[int, int]
    stripe: bool
    checksum: bool
    callers_poll: bool
    tso: bool
    scatter: bool
    preempt: bool
    kernel: bool
    delay: int
    loss: int
    seed: int

    def __str__(self) -> str:
        parts = (
            f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else int(value)}"
            for name, value in vars(self).items()
        )
        return " ".join(parts)


class Links:
    """model-links; it is started again once it has found something."""

    def __init__(self) -> None:
        self.process: Optional[subprocess.Popen[str]] = None

    def _start(self) -> subprocess.Popen[str]:
        assert PROGRAM.exists(), f"{PROGRAM} is not built"
        return subprocess.Popen(
            [PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str) -> str:
        """What was wrong, or ""."""
        self.process = self.process or self._start()
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.process.stdin.write(program + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().rstrip()
        if answer.startswith("ok"):
            return ""
        found = answer + self.process.stderr.read()
        self.close()
        return found or "it died without a word"

    def close(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None


def story(program: str) -> str:
    """What happens when a program runs, line by line."""
    done = subprocess.run(
        [PROGRAM, "-v"], input=program + "\n", capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


# -- programs

SETTINGS = st.builds(
    Settings,
    flows=st.sampled_from((1, 2, 2, 3, 4)),
    instances=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    nics=st.sampled_from(((1, 1), (2, 2), (2, 1), (1, 2))),
    stripe=st.booleans(),
    checksum=st.booleans(),
    callers_poll=st.booleans(),
    tso=st.booleans(),
    scatter=st.booleans(),
    preempt=st.booleans(),
    kernel=st.booleans(),
    delay=st.sampled_from((10, 50, 50, 1000)),
    loss=st.sampled_from((0, 0, 0, 20)),
    seed=st.integers(0, 999),
)


def steps(name: str, *numbers: Sequence[int]) -> list[str]:
    """One step for each combination of its numbers."""
    return [" ".join((name, *map(str, values))) for values in product(*numbers)]


def weighted(*parts: tuple[int, list[str]]) -> list[str]:
    """Of all steps, the simplest first, as if each kind's were so many."""
    return [kind[i * len(kind) // count] for count, kind in parts for i in range(count)]


LINES = (0, 0, 0, 0, 1)
SIDES = (0, 1)
FLOWS = (0, 1, 2, 3)
NICS = (0, 1)
QUEUES = (0, 1, 2, 3)  # those of the first NIC come first

# What both ranks and their hosts do where no connection is lost for good. Few ends are excused, so
# most are judged.
CALM = (
    (80, steps("time", MOMENTS)),
    (70, steps("send", LINES, SIZES)),
    (36, steps("recv", LINES, (1, 2, 9))),
    (50, steps("close", LINES, (0, 0, 0, 0, 1))),
    (24, steps("away", SIDES, (*PAUSES, *LONG))),
    (10, steps("pause", SIDES, PAUSES)),
    (40, steps("hold", SIDES, QUEUES, PAUSES)),
    (12, steps("open", (1, 2), SIDES)),
    (24, steps("down", SIDES, NICS, PAUSES)),
    (24, steps("silence", SIDES, NICS, PAUSES)),
    (12, steps("unplug", SIDES, NICS, PAUSES)),
    (4, steps("end", SIDES)),
)
ROUGH = (
    (30, steps("blackhole", LINES, FLOWS, (0, 1, 2))),
    (4, steps("drop", LINES, SIDES)),
    (6, steps("abandon", LINES)),
    (5, steps("reset", LINES, FLOWS, SIDES)),
    (2, steps("kill", SIDES)),
    (2, steps("pause", SIDES, LONG)),
    (4, steps("hold", SIDES, QUEUES, LONG)),
)

# One choice a step: that is quick, and reduces well.
MOODS = (st.sampled_from(weighted(*CALM)), st.sampled_from(weighted(*CALM, *ROUGH)))


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A line opens at the start: most programs are about one."""
    begin = draw(st.sampled_from(("open 0 0", "open 0 0; time 1000")))
    step = draw(st.sampled_from(MOODS))
    parts = draw(st.lists(st.lists(step, max_size=MOST_STEPS), max_size=MOST_STEPS))
    steps = (step for part in parts for step in part)
    return "; ".join((str(draw(SETTINGS)), begin, *steps))


def check(links: Links, program: str) -> None:
    found = links.run(program)
    if found:
        raise AssertionError(f"{found}\n{program}\n{story(program)}")


def search(examples: int, random: int = 0) -> None:
    """Runs so many programs of a seed (0: the same ones in every process); the first that is
    wrong is reduced, and raises AssertionError."""
    links = Links()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=random == 0,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(program=programs())
    def run(program: str) -> None:
        check(links, program)

    try:
        (seed(random)(run) if random else run)()
    finally:
        links.close()


def search_many(examples: int, first_seed: int, jobs: int) -> None:
    """The same in batches, each of a seed of its own; says how far it is."""
    began = time.monotonic()
    seeds = range(first_seed, first_seed - (-examples // BATCH))
    with get_context("spawn").Pool(jobs) as pool:
        done = pool.imap_unordered(partial(search, BATCH), seeds)
        for count, _ in enumerate(done, 1):
            rate = count * BATCH / (time.monotonic() - began)
            print(f"{count * BATCH} sequences, no violation, {rate:.0f} a second", flush=True)
