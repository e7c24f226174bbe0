# SPDX-License-Identifier: Apache-2.0
"""Who may ask for what: the policy alone, and through the agent's socket."""

from __future__ import annotations

import grp
import ipaddress
import pwd

import pytest

from harp.agent.accounts import UnknownName, overflow_uid
from harp.agent.complaints import MOST, SPAN_S, USERS, Complaints
from harp.agent.policy import Denied, Policy
from harp.agent.request import Device

NOBODY = pwd.getpwnam("nobody")
USER = pwd.getpwnam("daemon")
GROUP = grp.getgrgid(USER.pw_gid).gr_name
ETH0 = Device("packet", "eth0")
UNSERVED_USER = 54321  # a number without a name on this host


def may(allow: list[str], uid: int, *gids: int) -> bool:
    return Policy(allow).permits(uid, gids or (UNSERVED_USER + 1,))


@pytest.mark.parametrize(
    "allow", [USER.pw_name, str(USER.pw_uid), f"@{GROUP}", f"@{USER.pw_gid}"],
    ids=["user", "uid", "group", "gid"],
)  # fmt: skip
def test_allowed_user_may_ask(allow: str) -> None:
    Policy(["mail", allow]).check_client(USER.pw_uid, [USER.pw_gid])


@pytest.mark.parametrize(
    "allow", [[], ["mail"], ["@mail"], [str(UNSERVED_USER)], [f"@{UNSERVED_USER}"]]
)
def test_other_user_may_not_ask(allow: list[str]) -> None:
    with pytest.raises(Denied):
        Policy(allow).check_client(USER.pw_uid, [USER.pw_gid])


@pytest.mark.parametrize("allow", ["nosuch", "@nosuch", "daemon ", "*", "-1", "@"])
def test_unknown_name_is_refused_at_start(allow: str) -> None:
    with pytest.raises(UnknownName, match="there is no .* here; correct it, or give its number"):
        Policy([allow])


def test_root_may_always_ask() -> None:
    assert may([], 0, 0)
    assert not may([], UNSERVED_USER, 0)  # of root's group


def test_each_group_of_process_counts() -> None:
    assert may([f"@{UNSERVED_USER}"], USER.pw_uid, 7, 8, UNSERVED_USER)
    assert not may([f"@{UNSERVED_USER}"], USER.pw_uid, 7, 8)


def test_members_of_group_on_this_host_count(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = grp.struct_group(("helpers", "x", UNSERVED_USER, ["daemon", "has-been-removed"]))
    monkeypatch.setattr(grp, "getgrnam", lambda name: {"helpers": extra}[name])
    assert may(["@helpers"], USER.pw_uid, USER.pw_gid)
    assert not may(["@helpers"], UNSERVED_USER)


def test_unmapped_user_is_served_only_if_it_is_named() -> None:
    """Every user of a user namespace without a number on the node appears as this one."""
    uid = overflow_uid()
    for allow in ([f"@{NOBODY.pw_gid}"], ["daemon"], []):
        with pytest.raises(Denied) as denied:
            Policy(allow).check_client(uid, [NOBODY.pw_gid])
        line = str(denied.value)
        assert "every user of a user namespace without a number on the node" in line
        assert f"user nobody (uid {uid})" in line and "--allow nobody" in line
    assert may(["nobody"], uid) and may([str(uid)], uid)


def test_members_of_a_group_do_not_include_the_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = grp.struct_group(("helpers", "x", UNSERVED_USER, ["nobody"]))
    monkeypatch.setattr(grp, "getgrnam", lambda name: {"helpers": extra}[name])
    assert not may(["@helpers"], NOBODY.pw_uid, NOBODY.pw_gid)


def test_denial_names_user_group_and_remedy() -> None:
    with pytest.raises(Denied) as denied:
        Policy(["mail"]).check_client(USER.pw_uid, [USER.pw_gid])
    line = str(denied.value)
    assert f"user daemon (uid {USER.pw_uid})" in line
    assert f"group {GROUP} (gid {USER.pw_gid})" in line
    assert "it serves: mail" in line and "--allow daemon" in line and "\n" not in line
    with pytest.raises(Denied, match=f"user {UNSERVED_USER} .*root only.*--allow {UNSERVED_USER}"):
        Policy().check_client(UNSERVED_USER, [UNSERVED_USER])


def test_names_are_looked_up_at_start_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name service may take seconds, and the agent's loop would stand still meanwhile."""
    policy = Policy(["daemon", "@mail"])

    def slow(*_: object) -> None:
        raise AssertionError("a name is looked up in the loop")

    for module, names in ((pwd, ("getpwuid", "getpwnam", "getpwall")),
                          (grp, ("getgrgid", "getgrnam", "getgrall"))):  # fmt: skip
        for name in names:
            monkeypatch.setattr(module, name, slow)
    policy.check_client(USER.pw_uid, [USER.pw_gid])
    for uid in (UNSERVED_USER, NOBODY.pw_uid):
        with pytest.raises(Denied):
            policy.check_client(uid, [UNSERVED_USER, NOBODY.pw_gid])
    with pytest.raises(Denied, match="user daemon"):
        policy.check_quota(USER.pw_uid, 64)
    with pytest.raises(Denied, match="user daemon"):
        policy.check_port_quota(ETH0, USER.pw_uid, 4096, 1)


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


def test_port_quota() -> None:
    Policy(port_quota=1024).check_port_quota(ETH0, 7, 512, 512)
    with pytest.raises(Denied, match="has 513 local ports .*512 more.*--port-quota 2048"):
        Policy(port_quota=1024).check_port_quota(ETH0, 7, 513, 512)


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
