# SPDX-License-Identifier: Apache-2.0
"""A series of blackholes: each second one of a link's four flows, during an all-reduce."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from tools.hosts.jobs import job
from tools.hosts.ranks import TooLate
from tools.measure.fault_table import blackhole_one_flow
from tools.measure.fault_trials import FLOWS, Setting, args_for, join

PERIOD_S = 1.0
LIMIT_S = 60.0  # seconds for the job to finish after the last blackhole


@dataclass
class Series:
    """The result of a series. blackholes: the number made. replaced: the replaced flows, by the
    ranks' counters. times: seconds from each blackhole to the flow's new connection. failure: the
    first failure, None without one."""

    blackholes: int = 0
    replaced: int = 0
    wrong: Optional[int] = None
    messages: int = 0
    times: list[float] = field(default_factory=list)
    failure: Optional[str] = None

    def judge(self) -> Series:
        """Checks the counts and sets the failure if they are wrong."""
        if self.failure:
            return self
        if self.wrong != 0:
            self.failure = f"{self.wrong} elements are wrong"
        elif self.replaced != self.blackholes or not self.blackholes:
            self.failure = f"{self.blackholes} blackholes, but {self.replaced} flows were replaced"
        return self


def run_series(setting: Setting, seconds: int, folder: Path) -> Series:
    """Runs one blackhole a second, in an empty folder. It uses the default timeout of links: the
    timeout of a flow grows with its RTT, which is long on a busy machine. Raises LabError if the
    hosts fail."""
    draw = random.Random(f"{setting.seed}/series")
    series = Series()
    args = [*args_for(seconds * PERIOD_S + 1, "8M"), "--timeout", 30]
    if setting.inject_wrong:
        args.append("--inject-wrong")
    with ExitStack() as stack:
        joint = stack.enter_context(join(setting.transport, setting.lab, folder, flows=FLOWS))
        running = stack.enter_context(job(joint.sites, joint.host, args))
        next_at = time.monotonic()
        try:
            for _ in range(seconds):
                time.sleep(max(0.0, next_at - time.monotonic()))
                next_at += PERIOD_S
                series.times.append(blackhole_one_flow(running, joint, draw))
                series.blackholes += 1
            joint.impair()
            statuses = running.finish(LIMIT_S)
        except TooLate as late:
            series.failure = str(late)
            statuses = []
        seen = running.look()
        series.replaced = sum(counts.get("flows_replaced", 0) for counts in seen)
        series.messages = sum(counts.get("messages_in", 0) for counts in seen)
        warnings = [line for rank in running.ranks for line in rank.warnings]
        if statuses == [0, 0]:
            series.wrong = sum(running.ranks[0].wrong())
        elif statuses or warnings:
            said = [rank.lines() for rank in running.ranks]
            series.failure = series.failure or f"the ranks ended with {statuses}: {said}"
    return series.judge()
