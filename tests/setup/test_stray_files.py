# SPDX-License-Identifier: Apache-2.0
"""harp setup beside files that no longer fit the host: of a renamed interface, or removed by
hand."""

from __future__ import annotations

from typing import Any

import pytest

Host = Any  # conftest's SetUpHost


def test_file_of_a_renamed_interface_is_named(host: Host) -> None:
    """A new file serves the new name. Ranks that begin with the old file still decline."""
    host.harp("setup", "--yes")
    path = host.conf / "ztcp0.conf"
    missing = "ztcp0.conf names eth0, which is not in this network namespace"
    host.host.run(["ip", "link", "set", "eth0", "down"])
    host.host.run(["ip", "link", "set", "eth0", "name", "ens5"])
    host.host.run(["ip", "link", "set", "ens5", "up"])
    try:
        error = host.harp("setup", "apply", code=1).stderr
        assert missing in error
        assert f"remove the file (rm {path}, or harp setup undo)" in error
        assert error.rstrip().endswith("usable interfaces: ens5")
        assert sorted(host.conf.glob("ztcp*.conf")) == [path]
        asked = ("setup", "--yes", "--device", "packet:ens5")
        for _ in range(2):  # the note also comes when there is nothing to change
            said = host.harp(*asked).stdout
            assert f"note: {missing}: ranks whose home NIC it is decline" in said
            assert f"remove the file: rm {path}" in said and "stays in use" not in said
        assert "device = packet:ens5" in (host.conf / "ztcp1.conf").read_text()
        path.unlink()
        assert "note:" not in host.harp("setup", "--yes").stdout
        host.harp("setup", "status")
        host.harp("setup", "undo")
    finally:
        host.host.run(["ip", "link", "set", "ens5", "down"])
        host.host.run(["ip", "link", "set", "ens5", "name", "eth0"])
        host.host.run(["ip", "link", "set", "eth0", "up"])


def test_file_of_a_missing_nic_does_not_stop_another_one(host: Host) -> None:
    host.harp("setup", "--yes")
    other = host.conf / "ztcp1.conf"
    other.write_text("device = packet:eth7\naddress = kernel\n")
    said = host.harp("setup", "apply", "--device", "packet:eth0", "--set", "mtu=1400").stdout
    assert "note: ztcp1.conf names eth7, which is not in this network namespace" in said
    assert "mtu = 1400" in (host.conf / "ztcp0.conf").read_text()


def test_file_that_stays_beside_a_new_one_is_noted(host: Host) -> None:
    host.conf.mkdir(parents=True)
    (host.conf / "ztcp0.conf").write_text("device = wire:/x\naddress = 10.0.0.1/24\n")
    noted = "note: ztcp0.conf (wire:/x) stays in use; remove it to drop that NIC"
    asked = ("setup", "apply", "--device", "packet:eth0")
    assert noted in host.harp(*asked).stdout.splitlines()
    assert "note:" not in host.harp(*asked, "--set", "mtu=1400").stdout  # changes its file only


@pytest.mark.parametrize("there", ["new", "before"])
def test_file_removed_by_hand_is_forgotten(there: str, host: Host) -> None:
    """Status must not fail for ever. Undo still restores a file that was there before set-up."""
    host.conf.mkdir(parents=True)
    path = host.conf / "ztcp1.conf"
    other = "device = packet:eth0\naddress = 10.77.0.103/24\n"
    if there == "before":
        path.write_text(other)
    before = host.state()
    asked = ("--device", "packet:eth0", "--address")
    both = (*asked, "10.77.0.102/24", *asked, "10.77.0.103/24")
    host.harp("setup", "apply", *both, "--set", "mtu=1400")
    path.unlink()
    assert "nothing to change" in host.harp("setup", "--yes").stdout
    status = host.harp("setup", "status").stdout
    assert "missing" not in status
    said = f"{path} was removed by hand; harp setup undo restores it as it was before set-up"
    assert (said in status) == (there == "before")
    host.harp("setup", "undo")
    assert host.state() == before


def test_run_folder_of_one_user_is_opened_to_all(host: Host) -> None:
    """Jobs log that they cannot write to it, and to run harp setup."""
    host.run_dir.mkdir(parents=True)
    host.run_dir.chmod(0o755)
    assert f"chmod 1777 {host.run_dir} (now 755)" in host.harp("setup", "--yes").stdout
    assert host.run_dir.stat().st_mode & 0o7777 == 0o1777
    assert "nothing to change" in host.harp("setup", "--yes").stdout
    host.harp("setup", "status")
    assert f"chmod 755 {host.run_dir}" in host.harp("setup", "undo").stdout
    assert host.run_dir.stat().st_mode & 0o7777 == 0o755
    for mode in (0o2775, 0o777, 0o700):  # somebody has chosen these users
        host.run_dir.chmod(mode)
        assert "chmod" not in host.harp("setup", "plan").stdout


def test_run_folder_with_files_of_other_programs_stays_closed(host: Host) -> None:
    """HARP_RUN_DIR=/run must not let all users write to /run."""
    host.run_dir.mkdir(parents=True)
    host.run_dir.chmod(0o755)
    for name in ("0123456789abcdef.stat", "0123456789abcdef-0.capture"):
        (host.run_dir / name).touch()
    assert f"chmod 1777 {host.run_dir}" in host.harp("setup", "plan").stdout
    (host.run_dir / "sshd.pid").touch()
    said = host.harp("setup", "--yes").stdout
    assert "chmod" not in said
    assert f"note: {host.run_dir} has other files than HARP's" in said
    assert host.run_dir.stat().st_mode & 0o7777 == 0o755


def test_files_that_repeat_an_address_are_named(host: Host) -> None:
    host.conf.mkdir(parents=True)
    for number in range(2):
        (host.conf / f"ztcp{number}.conf").write_text("device = packet:eth0\naddress = kernel\n")
    error = host.harp("setup", "apply", "--device", "packet:eth0", code=2).stderr
    assert "ztcp1.conf (kernel); remove those that repeat an address" in error


def test_folder_named_by_another_path_keeps_its_files(host: Host) -> None:
    host.harp("setup", "--yes")
    path = host.conf / "ztcp0.conf"
    text = path.read_text()
    alias = host.tools / "alias"
    alias.symlink_to(host.conf)
    host.environment["HARP_CONF_DIR"] = str(alias)
    assert "nothing to change" in host.harp("setup", "--yes").stdout
    assert path.read_text() == text
    host.harp("setup", "status")
    assert f"removed {path}" in host.harp("setup", "undo").stdout


def test_mode_that_was_changed_by_hand_is_forgotten(host: Host) -> None:
    host.run_dir.mkdir(parents=True)
    host.run_dir.chmod(0o755)
    host.harp("setup", "--yes")
    host.run_dir.chmod(0o2775)
    assert "nothing to change" in host.harp("setup", "--yes").stdout
    assert str(host.run_dir) not in host.harp("setup", "status").stdout
    host.harp("setup", "undo")
    assert host.run_dir.stat().st_mode & 0o7777 == 0o2775


def test_plan_shows_the_configuration_folder_beside_a_run_folder(host: Host) -> None:
    host.run_dir.mkdir(parents=True)
    host.run_dir.chmod(0o755)
    lines = host.harp("setup", "plan").stdout.splitlines()
    assert f"  make the folder {host.conf}" in lines
    assert f"  chmod 1777 {host.run_dir} (now 755)" in lines
