# SPDX-License-Identifier: Apache-2.0
"""How many instances there are, and which threads poll: by the keys, the affinity mask, cgroup
quotas, local ranks and NICs."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from harp.testing._engine import instances, poll_threads

FILE = "device = packet:eth0\n"
CPUS = len(os.sched_getaffinity(0))
FILES = 8600  # a limit of open files with room for all ports that a process can hold


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HARP_AGENT", "")


def limit_files(most: int) -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )


@pytest.fixture(autouse=True)
def usual_limit_of_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit_files(1024)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def choose(root: Path, text: str = "") -> tuple[bool, int, int]:
    return poll_threads((FILE + text).encode(), str(root).encode())


def host(root: Path, cgroup: str, **files: str) -> Path:
    """A root folder with this /proc/self/cgroup, and with files below /sys/fs/cgroup. "__" stands
    for "/" in a name, "_dot_" for "."."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_host_without_cgroups_has_the_cpus_of_its_mask(tmp_path: Path) -> None:
    assert choose(tmp_path)[1:] == (CPUS, 4)


def test_affinity_mask_limits_cpus(tmp_path: Path) -> None:
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        assert choose(tmp_path) == (True, 1, 4)
    finally:
        os.sched_setaffinity(0, mask)


@pytest.mark.skipif(CPUS < 2, reason="a quota below the mask needs two CPUs")
@pytest.mark.parametrize(
    "cgroup, files",
    [
        ("0::/job\n", {"job__cpu_dot_max": "100000 100000\n"}),
        ("0::/\n", {"cpu_dot_max": "150000 100000\n"}),
        ("0::/a/b\n", {"a__cpu_dot_max": "100000 100000\n", "a__b__cpu_dot_max": "max 100000\n"}),
        ("0::/not/visible\n", {"cpu_dot_max": "50000 100000\n"}),
        (
            "4:memory:/m\n2:cpu,cpuacct:/job\n",
            {
                "cpu__job__cpu_dot_cfs_quota_us": "100000",
                "cpu__job__cpu_dot_cfs_period_us": "100000",
            },
        ),
    ],
)
def test_cgroup_quota_limits_cpus(tmp_path: Path, cgroup: str, files: dict[str, str]) -> None:
    assert choose(host(tmp_path, cgroup, **files))[1] == 1


@pytest.mark.parametrize(
    "cgroup, files",
    [
        ("0::/job\n", {"job__cpu_dot_max": "max 100000\n"}),
        ("0::/job\n", {"job__cpu_dot_max": "100000 0\n"}),
        ("0::/job\n", {"job__cpu_dot_max": "-5 100000\n"}),
        ("0::/job\n", {"job__cpu_dot_max": "nonsense"}),
        ("garbage\n:\n::\n0:\n", {"cpu_dot_max": ""}),
        (
            "2:cpuset:/job\n",
            {"cpu__job__cpu_dot_cfs_quota_us": "1", "cpu__job__cpu_dot_cfs_period_us": "1"},
        ),
        (
            "2:cpu:/job\n",
            {"cpu__job__cpu_dot_cfs_quota_us": "-1", "cpu__job__cpu_dot_cfs_period_us": "100000"},
        ),
        ("0::" + "/x" * 4000 + "\n", {}),
    ],
)
def test_absent_quota_does_not_limit_cpus(
    tmp_path: Path, cgroup: str, files: dict[str, str]
) -> None:
    assert choose(host(tmp_path, cgroup, **files))[1] == CPUS


def test_local_ranks_and_instances_need_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "8")
    assert choose(tmp_path, "instances = 2\n")[2] == 26


@pytest.mark.parametrize("threads, callers", [("caller", True), ("worker", False)])
def test_key_sets_choice(tmp_path: Path, threads: str, callers: bool) -> None:
    assert choose(tmp_path, f"threads = {threads}\n")[0] is callers


def test_auto_compares_cpus_with_demand(tmp_path: Path) -> None:
    assert choose(tmp_path, "threads = auto\n")[0] is (CPUS < 4)


def test_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads.*auto, caller, worker"):
        choose(tmp_path, "threads = both\n")


@pytest.mark.parametrize(
    "nics, cpus, ranks, count",
    [
        (1, 14, 1, 4),
        (1, 13, 1, 2),
        (1, 5, 1, 2),
        (1, 4, 1, 1),
        (2, 64, 1, 2),
        (2, 5, 1, 2),
        (3, 64, 1, 1),
        (1, 8, 2, 2),
        (1, 7, 2, 1),
        (1, 64, 3, 1),
        (2, 64, 2, 1),
    ],
)
def test_packet_device_has_several_instances_on_a_host_with_free_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nics: int, cpus: int, ranks: int, count: int
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert instances(FILE.encode(), nics, cpus, str(tmp_path).encode()) == count


@pytest.mark.parametrize(
    "text, count",
    [
        ("device = packet:eth0\ninstances = 3\n", 3),
        ("device = packet:eth0\ninstances = 1\n", 1),
        ("device = packet:eth0\ncores = 0-3\n", 4),
        ("device = packet:eth0\nthreads = caller\n", 1),
        ("device = packet:eth0\nflows = 1\n", 1),  # flow i of a link is on instance i
        ("device = packet:eth0\nflows = 3\n", 2),
        ("device = packet:eth0\nflows = 4\n", 4),
        ("device = packet:eth0\nflows = 1\ninstances = 2\n", 2),
        ("device = packet:eth0\nthreads = worker\n", 4),
        ("device = fault:drop=0.1|packet:eth0\n", 4),
        ("device = xdp:eth0\n", 1),
        ("device = dpdk:0000:03:00.0\naddress = 10.0.3.7/24\n", 1),
    ],
)
def test_keys_and_device_decide_about_instances(tmp_path: Path, text: str, count: int) -> None:
    assert instances(text.encode(), 1, 64, str(tmp_path).encode()) == count


OWN = FILE + "address = 10.0.3.7/24\n"


@pytest.mark.parametrize(
    "text, ranks, count",
    [
        (FILE, 0, 4),  # the job's size is unknown
        (FILE, 8, 4),
        (FILE, 9, 2),
        (FILE, 24, 2),
        (FILE, 25, 1),
        (OWN, 25, 4),  # ports at an own address are no files
        (OWN, 504, 4),  # 4 * (64 + 8 * 504) is the size of the range 49152-65535
        (OWN, 505, 2),
        (OWN, 1017, 1),
        (FILE + "tcp_ports = 50000-50319\n", 2, 4),
        (FILE + "tcp_ports = 50000-50318\n", 2, 2),
        (FILE + "tcp_ports = 50000-50063\n", 2, 1),
        (OWN + "tcp_ports = 50000-50063\n", 2, 1),
        (FILE + "instances = 4\ntcp_ports = 50000-50063\n", 2, 4),
    ],
)
def test_narrow_ports_and_few_files_leave_fewer_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, ranks: int, count: int
) -> None:
    if ranks:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
    assert instances(text.encode(), 1, 64, str(tmp_path).encode()) == count


@pytest.mark.parametrize(
    "text, offered, local, ranks, count",
    [
        (FILE, "32768\t60999", 1, 242, 4),  # 4 * (64 + 8 * 242) is 8000, which a process can hold
        (FILE, "32768\t60999", 1, 243, 2),
        (FILE, "32768\t60999", 1, 493, 1),
        (FILE, "50000\t50319", 1, 2, 4),
        (FILE, "50001\t50319", 1, 2, 2),
        (FILE, "50000\t50319", 2, 2, 2),  # the ranks of a host share its ports
        (FILE, "50001\t50319", 2, 2, 1),
        (FILE + "tcp_ports = 50000-50319\n", "32768\t60999", 2, 2, 2),
        (FILE + "tcp_ports = 50001-50319\n", "32768\t60999", 2, 2, 1),
        (OWN + "tcp_ports = 50001-50319\n", "1024\t1025", 2, 2, 2),
    ],
)
def test_ports_of_the_host_leave_fewer_instances(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    offered: str,
    local: int,
    ranks: int,
    count: int,
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < FILES:
        pytest.skip(f"the limit of open files is below {FILES}")
    limit_files(FILES)
    (tmp_path / "proc/sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "proc/sys/net/ipv4/ip_local_port_range").write_text(offered + "\n")
    for name, value in (("LOCAL_WORLD_SIZE", local), ("WORLD_SIZE", ranks)):
        monkeypatch.setenv(name, str(value))
        monkeypatch.setenv(name.replace("WORLD_SIZE", "RANK"), "0")
    assert instances(text.encode(), 1, 64, str(tmp_path).encode()) == count


def test_block_of_the_agent_leaves_fewer_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_files(4096 if resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 4096 else 1024)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "9")
    monkeypatch.setenv("HARP_AGENT", str(tmp_path / "agent.sock"))
    assert instances(FILE.encode(), 1, 64, str(tmp_path).encode()) == 2
