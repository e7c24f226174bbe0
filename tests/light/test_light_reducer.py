# SPDX-License-Identifier: Apache-2.0
"""Reductions of harp.light on 2 and 4 ranks: 2D, 16 bits, and the largest values."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from light_ranks import run, run_each

pytestmark = pytest.mark.torch

SIZE = 1001  # no multiple of a group's ranks


def gradient(rank: int, step: int = 0) -> Any:
    import torch

    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + rank))


def average(fp16: bool = False) -> tuple[Any, Any, list[str]]:
    """The average of a reducer, the right one, and the collectives that were called."""
    import torch.distributed as dist

    from harp.light import names
    from harp.light.reducer import Reducer

    called: list[str] = []
    reducer = Reducer(fp16=fp16)

    def noting(name: str, call: Any) -> Any:
        def noted(*args: Any, **more: Any) -> Any:
            called.append(name)
            return call(*args, **more)

        return noted

    for where, name in (
        (dist, "all_reduce"),
        (names, "reduce_scatter_single"),
        (names, "all_gather_single"),
    ):
        setattr(where, name, noting(name, getattr(where, name)))
    flat = gradient(dist.get_rank())
    reducer.submit(flat, []).wait()
    right = sum(gradient(rank) for rank in range(dist.get_world_size())) / dist.get_world_size()
    return flat.tolist(), right.tolist(), called


def close(answer: tuple[Any, Any, list[str]], relative: float) -> bool:
    found, right, _ = answer
    return all(abs(a - b) <= relative * max(abs(b), 1) for a, b in zip(found, right))


TWO_D = ["reduce_scatter_single", "all_reduce", "all_gather_single"]


def test_two_dimensions_give_the_same_average() -> None:
    answers = run(4, average, LIGHT_2D_ALLREDUCE="1", LIGHT_INTRA_SIZE="2")
    assert all(close(one, 1e-6) and one[2] == TWO_D for one in answers)
    assert all(one[0] == answers[0][0] for one in answers)


def test_two_dimensions_up_to_the_threshold() -> None:
    variables = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2"}
    at = run(4, average, LIGHT_HIERARCHICAL_THRESHOLD=str(4 * SIZE), **variables)
    above = run(4, average, LIGHT_HIERARCHICAL_THRESHOLD=str(4 * SIZE - 1), **variables)
    assert at[0][2] == TWO_D and above[0][2] == ["all_reduce"]
    assert close(above[0], 1e-6)


def refused() -> str:
    from harp.light import SettingError, State

    try:
        State()
    except SettingError as error:
        return str(error)
    return ""


def test_groups_must_have_one_size() -> None:
    (text, *_) = set(run(4, refused, LIGHT_2D_ALLREDUCE="1", LIGHT_INTRA_SIZE="3"))
    assert text.startswith("LIGHT_INTRA_SIZE=3 does not divide the 4 ranks")


def test_ranks_that_differ_in_a_variable_are_named() -> None:
    (text,) = set(run_each([{}, {"LIGHT_TOPK_RATIO": "0.1"}], refused))
    assert text.startswith("LIGHT_TOPK_RATIO differs: rank 0 has 0.01, rank 1 has 0.1")


def test_sixteen_bits_are_within_their_rounding() -> None:
    answers = run(2, average, True)
    assert all(close(one, 2e-3) for one in answers)
    assert not close(answers[0], 1e-6)  # they were rounded


def in_pieces() -> list[tuple[list[float], list[str]]]:
    """16-bit averages of a buffer as one piece and as several, and the collectives."""
    from harp.light import half

    found = []
    for size in (SIZE, SIZE // 4):
        half.PIECE = size
        flat, _, called = average(True)
        found.append((flat, list(called)))
    return found


def test_pieces_of_sixteen_bits_are_those_of_the_whole() -> None:
    one, other = run(2, in_pieces)
    assert one == other
    (whole, at_once), (pieces, in_turn) = one
    assert whole == pieces
    assert (at_once, in_turn) == (["all_reduce"], ["all_reduce"] * 5)


def largest(ratio_steps: int, feedback: bool) -> list[float]:
    """The largest error of sum(sent) + residuals against the sum of the gradients."""
    import torch
    import torch.distributed as dist

    from harp.light import State

    rank, ranks = dist.get_rank(), dist.get_world_size()
    state = State(warmup_steps=ratio_steps, error_feedback=feedback)
    one, two = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    sent, total, errors = torch.zeros(SIZE), torch.zeros(SIZE), []
    for step in range(4):
        flat = gradient(rank, step)
        total += sum(gradient(other, step) for other in range(ranks))
        # DDP builds its buckets anew after the first step.
        middle = 400
        parts = [(one, flat[:middle]), (two, flat[middle:])]
        state.submit(flat, parts if step else parts[::-1]).wait()
        state.step += 1
        sent += flat * ranks
        kept = torch.cat([state.residuals.get(part, torch.zeros(size))
                          for part, size in ((one, middle), (two, SIZE - middle))])  # fmt: skip
        dist.all_reduce(kept)
        errors.append(float((sent + kept - total).abs().max()))
        errors.append(float((flat != 0).sum()))
    return errors


def test_what_is_not_sent_stays_in_the_residual() -> None:
    variables = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": str(4 * SIZE)}
    for fp16 in ("0", "1"):
        (found, other) = run(2, largest, 0, True, LIGHT_TOPK_FP16=fp16, **variables)
        assert found == other and max(found[::2]) < 1e-5
        assert all(11 <= count <= 22 for count in found[1::2])  # 1 % of each rank's
    (lost, _) = run(2, largest, 0, False, **variables)
    assert min(lost[::2]) > 1


def test_buffers_below_the_threshold_are_sent_whole() -> None:
    (found, _) = run(2, largest, 0, True, LIGHT_TOPK_ALLREDUCE="1",
                     LIGHT_TOPK_THRESHOLD=str(4 * SIZE + 1))  # fmt: skip
    assert max(found[::2]) < 1e-5 and min(found[1::2]) > 900


def alone_later() -> tuple[float, bool, bool]:
    """A parameter comes to a bucket below the threshold after a step of top-k. The error of what it
    has sent, and whether it and the other parameter have residuals."""
    import torch

    from harp.light import State

    state, middle = State(), 400
    one, two = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    flat = gradient(0)
    total = flat[:middle] + gradient(1)[:middle]
    state.submit(flat, [(one, flat[:middle]), (two, flat[middle:])]).wait()
    small = gradient(1)[:middle].clone()
    state.submit(small, [(one, small)]).wait()
    error = float((flat[:middle] + small - total).abs().max())
    return error, one in state.residuals, two in state.residuals


def test_residual_leaves_with_a_bucket_that_is_sent_whole() -> None:
    ((error, one, two),) = run(1, alone_later, LIGHT_TOPK_ALLREDUCE="1",
                               LIGHT_TOPK_THRESHOLD=str(4 * SIZE))  # fmt: skip
    assert error < 1e-6 and not one and two


def test_warm_up_sends_less_with_each_step() -> None:
    from harp.light.topk import ratio_at

    assert [ratio_at(0.01, step, 2) for step in range(4)] == [0.25, 0.05, 0.01, 0.01]
    assert ratio_at(0.5, 0, 2) == 0.5
    (found, _) = run(2, largest, 2, True, LIGHT_TOPK_ALLREDUCE="1", LIGHT_TOPK_THRESHOLD="0")
    counts = found[1::2]
    assert counts[0] > counts[1] > counts[2] and counts[0] >= 251 and counts[3] <= 22


def infinite() -> tuple[bool, bool]:
    import torch
    import torch.distributed as dist

    from harp.light import State

    state = State()
    parameter = torch.nn.Parameter(torch.zeros(SIZE))
    flat = gradient(dist.get_rank())
    if dist.get_rank() == 0:
        flat[:40] = torch.inf
        flat[40] = torch.nan
    state.submit(flat, [(parameter, flat)]).wait()
    return bool(flat.isfinite().all()), bool(state.residuals[parameter].isfinite().all())


def test_infinities_reach_all_ranks_and_do_not_stay() -> None:
    for fp16 in ("0", "1"):
        found = run(2, infinite, LIGHT_TOPK_ALLREDUCE="1", LIGHT_TOPK_THRESHOLD="0",
                    LIGHT_TOPK_FP16=fp16)  # fmt: skip
        assert found == [(False, True)] * 2


def failing() -> list[str]:
    import torch

    from harp.light import State

    state = State()
    texts = []
    wrong = torch.zeros(3)
    for parts in ([(torch.zeros(1), wrong[:1])], []):
        if parts:
            state.residuals[parts[0][0]] = torch.zeros(2)  # does not fit
        try:
            state.submit(wrong, parts).wait()
        except RuntimeError as error:
            texts.append(str(error))
    return texts


def test_failure_reaches_the_caller_and_ends_the_lane() -> None:
    (texts,) = run(1, failing)
    assert len(texts) == 2 and "an earlier reduction failed" in texts[1]


ENDS_EARLY = """
import threading, torch
from harp.light.lane import Lane
lane = Lane()
lane.submit(threading.Event().wait, torch.zeros(1))
"""


def test_a_rank_ends_without_waiting_for_the_others() -> None:
    subprocess.run([sys.executable, "-c", ENDS_EARLY], check=True, timeout=60)


def threads() -> list[str]:
    import gc
    import threading
    import time

    from harp.light import State

    State()
    gc.collect()
    limit = time.monotonic() + 30
    while time.monotonic() < limit and threading.active_count() > 1:
        time.sleep(0.01)
    return [one.name for one in threading.enumerate() if one.name == "harp-light"]


def test_a_reducer_without_users_leaves_no_thread() -> None:
    assert run(1, threads) == [[]]
