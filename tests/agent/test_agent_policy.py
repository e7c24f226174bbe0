# SPDX-License-Identifier: Apache-2.0
"""Who may ask for what: the policy alone, and through the agent's socket."""

from __future__ import annotations

import grp
import ipaddress
import pwd

import pytest

from harp.agent.complaints import MOST, SPAN_S, USERS, Complaints
from harp.agent.policy import Denied, Policy
from harp.agent.request import Device

NOBODY = pwd.getpwnam("nobody")
GROUP = grp.getgrgid(NOBODY.pw_gid).gr_name
ETH0 = Device("packet", "eth0")
STRANGER = 54321  # a number without a name on this host


@pytest.mark.parametrize(
    "allow",
    ["nobody", str(NOBODY.pw_uid), f"@{GROUP}", f"@{NOBODY.pw_gid}"],
    ids=["user", "uid", "group", "gid"],
)
def test_allowed_user_may_ask(allow: str) -> None:
    Policy(["daemon", allow]).check_client(NOBODY.pw_uid, NOBODY.pw_gid)


@pytest.mark.parametrize(
    "allow", [[], ["daemon"], ["@daemon"], ["@nobody"], [GROUP], ["nobody "], ["*"]]
)
def test_other_user_may_not_ask(allow: list[str]) -> None:
    with pytest.raises(Denied):
        Policy(allow).check_client(NOBODY.pw_uid, NOBODY.pw_gid)


def test_root_may_always_ask() -> None:
    Policy().check_client(0, 0)
    with pytest.raises(Denied):
        Policy().check_client(STRANGER, 0)  # of root's group


def test_group_of_process_counts() -> None:
    Policy([f"@{STRANGER}"]).check_client(NOBODY.pw_uid, STRANGER)


def test_groups_of_user_count(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = grp.struct_group(("helpers", "x", STRANGER, ["nobody"]))
    monkeypatch.setattr(grp, "getgrall", lambda: [extra])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: {STRANGER: extra}[gid])
    Policy(["@helpers"]).check_client(NOBODY.pw_uid, NOBODY.pw_gid)
    with pytest.raises(Denied):
        Policy(["@helpers"]).check_client(1, 1)


def test_denial_names_user_group_and_remedy() -> None:
    with pytest.raises(Denied) as denied:
        Policy(["daemon"]).check_client(NOBODY.pw_uid, NOBODY.pw_gid)
    line = str(denied.value)
    assert f"user nobody (uid {NOBODY.pw_uid})" in line
    assert f"group {GROUP} (gid {NOBODY.pw_gid})" in line
    assert "it serves: daemon" in line and "--allow nobody" in line and "\n" not in line
    with pytest.raises(Denied, match=f"user {STRANGER} .*root only.*--allow {STRANGER}"):
        Policy().check_client(STRANGER, STRANGER)


def test_devices_and_addresses() -> None:
    networks = [ipaddress.IPv4Network("10.0.0.0/30"), ipaddress.IPv4Network("10.9.0.1/32")]
    policy = Policy([], ["eth0"], networks)
    policy.check_device(ETH0)
    with pytest.raises(Denied, match="serves only eth0; .*--device eth1"):
        policy.check_device(Device("packet", "eth1"))
    Policy().check_device(Device("packet", "eth1"))
    for good in ("kernel", "10.0.0.3", "10.9.0.1"):
        policy.check_address(ETH0, good, "")
    for bad in ("10.0.0.4", "10.9.0.2", "192.168.0.1"):
        with pytest.raises(Denied, match=f"{bad};.*--address {bad}/32"):
            policy.check_address(ETH0, bad, "")
    with pytest.raises(Denied):
        Policy().check_address(ETH0, "10.0.0.1", "")
    with pytest.raises(Denied, match="mac cannot be used"):
        policy.check_address(ETH0, "kernel", "02:00:00:00:00:01")


def test_quota() -> None:
    Policy(quota=2).check_quota(7, 1)
    with pytest.raises(Denied, match="quota.*--quota 4"):
        Policy(quota=2).check_quota(7, 2)


# -- the log


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_log_lines_of_a_user_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    complaints = Complaints(clock)
    for _ in range(1000):
        complaints.add(7, "seven")
    complaints.add(8, "eight")
    assert [record.message for record in caplog.records] == ["seven"] * MOST + ["eight"]
    caplog.clear()
    clock.now = SPAN_S
    complaints.add(7, "again")
    told = [record.message for record in caplog.records]
    assert told == [f"{1000 - MOST} more lines about clients of uid 7", "again"]


def test_many_users_need_bounded_memory(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(Clock())
    for uid in range(3 * USERS):
        complaints.add(uid, "line")
    assert len(caplog.records) == USERS + MOST
    complaints.flush()
    assert "further users" in caplog.records[-1].message
