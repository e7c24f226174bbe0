# SPDX-License-Identifier: Apache-2.0
"""The NICs, drivers, memory and files that set-up chooses for dpdk devices, on fake hosts.
tests/vm applies and undoes such plans in a virtual machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from fake_host import GIB_KB, ID, POOL, FakeHost

from harp import _tables, loader, nccl_plugin_path
from harp.setup import bootline, command, host, nics, pages, pci, use
from harp.setup.bind import Bind
from harp.setup.dpdk import Choice, advice, resolved
from harp.setup.plan import plan
from harp.setup.request import PlanError, Request
from harp.setup.steps import Step, WriteFile

LARGE_POOL = "sys/kernel/mm/hugepages/hugepages-1048576kB"


def steps_for(*devices: str, journal: tuple[Step, ...] = (), **options: Any) -> list[Step]:
    keys = options.pop("keys", {})
    requests = [Request({"device": device, **keys}) for device in devices]
    return plan(requests, Choice(**options), journal)


def refusal(*devices: str, **options: Any) -> str:
    with pytest.raises(PlanError) as caught:
        steps_for(*devices, **options)
    return str(caught.value)


def described(steps: list[Step]) -> list[str]:
    return [step.describe() for step in steps]


def settings_of(steps: list[Step]) -> list[dict[str, str]]:
    """The settings of each planned file."""
    files = [step for step in steps if isinstance(step, WriteFile)]
    lines = [step.text.splitlines()[1:] for step in files]
    return [dict(line.split(" = ") for line in one) for one in lines]


# -- the choice of NICs


def ipv6_default(interface: str) -> str:
    """The route that a router advertisement makes."""
    return f"default via fe80::1 dev {interface} proto ra metric 1024 pref medium"


def test_only_unused_nic_is_free(fake: FakeHost) -> None:
    fake.add_device("pci0000:00/0000:00:01.0", "0x010000", "virtio-pci")  # a disk
    found = nics.all_nics()
    assert [(nic.name, nic.is_free) for nic in found] == [("eth0", False), ("eth1", True)]
    assert "it carries the default route" in found[0].describe()
    assert found[1].describe().endswith("10.0.3.7/24: free")


def test_default_is_to_share_the_default_route_interface(fake: FakeHost) -> None:
    """The default route's interface is shared, although eth1 is free."""
    assert [one.device for one in command.unnamed(False)] == ["packet:eth0"]
    assert [one.device for one in command.unnamed(True)] == [f"dpdk:{ID}"]
    fake.default_routes = []
    with pytest.raises(click.UsageError, match="several NICs are usable"):
        command.unnamed(False)


@pytest.mark.parametrize("by_parent", [False, True])
@pytest.mark.parametrize("here", ["10.0.3.7", "10.9.9.9"])
def test_ssh_nic_is_never_given_away(here: str, by_parent: bool, fake: FakeHost) -> None:
    fake.work_over_ssh("10.0.7.7", here, by_parent)
    if here == "10.9.9.9":  # not an address of this host: the client's route decides
        fake.towards["10.0.7.7"] = "10.0.7.7 via 10.0.3.1 dev eth1 src 10.0.3.7"
    said = refusal(f"dpdk:{ID}", even_if_used=True)
    assert "HARP may not take over eth1: it carries the ssh session" in said


@pytest.mark.parametrize("here", ["fd00:3::7", "fe80::7%eth1"])
def test_nic_of_an_ssh_session_over_ipv6_is_never_given_away(here: str, fake: FakeHost) -> None:
    """The local address suffices, also without a route to the client."""
    fake.addresses["eth1"] += ["fd00:3::7/64", "fe80::7/64"]
    fake.work_over_ssh("fe80::1%eth1" if "%" in here else "fd00:7::7", here)
    fake.towards["fe80::1"] = "fe80::1 dev eth0 src fe80::9"  # of a host with the same address
    said = refusal(f"dpdk:{ID}", even_if_used=True)
    assert "HARP may not take over eth1: it carries the ssh session" in said
    assert not use.never("eth0").startswith("it carries the ssh")


def test_nic_of_the_ipv6_default_route_is_in_use(fake: FakeHost) -> None:
    """Beside IPv4's on another NIC, whose interface jobs still share by default. Without IPv4's, it
    is never given away."""
    fake.default_routes.append(ipv6_default("eth1"))
    assert "eth1 is in use: it carries the IPv6 default route. " in refusal(f"dpdk:{ID}")
    steps_for(f"dpdk:{ID}", even_if_used=True)
    assert use.never("eth0") == "it carries the default route"
    assert [one.device for one in command.unnamed(False)] == ["packet:eth0"]
    fake.default_routes.pop(0)
    assert [one.device for one in command.unnamed(False)] == ["packet:eth1"]
    said = refusal(f"dpdk:{ID}", even_if_used=True)
    assert said.endswith("HARP may not take over eth1: it carries the IPv6 default route")


def test_ipv6_default_routes_of_several_nics(fake: FakeHost) -> None:
    """Router advertisements give one to each NIC, so that it says little."""
    fake.default_routes += [ipv6_default("eth0"), ipv6_default("eth1")]
    assert use.never("eth1") == ""
    assert [nic.name for nic in nics.all_nics() if nic.is_free] == ["eth1"]
    fake.default_routes.pop(0)  # now they are the host's only ways out
    assert [nic.name for nic in nics.all_nics() if nic.is_free] == []
    assert "eth1 is in use: it carries the IPv6 default route. " in refusal(f"dpdk:{ID}")
    steps_for(f"dpdk:{ID}", even_if_used=True)


def test_default_route_nic_is_never_given_away(fake: FakeHost) -> None:
    said = refusal("dpdk:0000:00:04.0", even_if_used=True)
    assert said == "dpdk:0000:00:04.0: HARP may not take over eth0: it carries the default route"


def test_lowest_metric_is_the_default_route(fake: FakeHost) -> None:
    fake.default_routes.append("default via 10.0.3.1 dev eth1 proto dhcp metric 200")
    steps_for(f"dpdk:{ID}")
    fake.default_routes.append("default via 10.0.3.1 dev eth1 metric 50")
    assert "default route" in refusal(f"dpdk:{ID}")
    steps_for(
        "dpdk:0000:00:04.0", even_if_used=True
    )  # the default route is gone, so the NIC may be taken
    fake.default_routes = ["default metric 50 ", "\tnexthop via 10.0.0.1 dev eth0 weight 1",
                           "\tnexthop via 10.0.3.1 dev eth1 weight 1"]  # fmt: skip
    assert "default route" in refusal(f"dpdk:{ID}")
    assert "default route" in refusal("dpdk:0000:00:04.0")


def test_interface_that_vanishes_is_skipped(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interface of a container that ends, between the listing and the question for it."""
    fake.add_nic("veth7", "pci0000:00/0000:00:07.0")
    known = fake.ip

    def ip(*args: str) -> str:
        if args[-1] == "veth7":
            (fake.root / "sys/class/net/veth7").unlink(missing_ok=True)
            raise host.HostError('Device "veth7" does not exist.')
        return known(*args)

    monkeypatch.setattr(host, "ip", ip)
    assert [one.name for one in host.interfaces()] == ["eth0", "eth1"]
    assert host.interface("veth7") is None

    def refuse(*args: str) -> str:
        raise host.HostError("the kernel refuses")

    monkeypatch.setattr(host, "ip", refuse)
    with pytest.raises(host.HostError, match="the kernel refuses"):
        host.interfaces()


def interface(fake: FakeHost, name: str) -> Path:
    return (fake.root / "sys/class/net" / name).resolve()


def in_a_bridge(fake: FakeHost) -> None:
    (fake.root / "sys/class/net/br0").mkdir()
    (interface(fake, "eth1") / "master").symlink_to(fake.root / "sys/class/net/br0")
    (interface(fake, "eth1") / "upper_br0").mkdir()


def under_a_vlan(fake: FakeHost) -> None:
    (interface(fake, "eth1") / "upper_eth1.7").mkdir()


def with_a_route(fake: FakeHost) -> None:
    fake.routes["eth1"] = ["10.7.0.0/16 via 10.0.3.1 proto static"]


def with_a_connection(fake: FakeHost) -> None:
    # An established socket of 10.0.3.7, one as IPv4-mapped IPv6, and sockets that do not count.
    head = "  sl  local_address rem_address   st\n"
    own, mapped = "0703000A:1F90", "0000000000000000FFFF00000703000A:1F90"
    fake.write("proc/net/tcp", f"{head} 0: {own} 01 01\n 1: 0903000A:0016 0 01\n 2: {own} 0 06\n")
    fake.write("proc/net/tcp6", f"{head} 0: {mapped} 0 0A\n")


def with_an_ipv6_connection(fake: FakeHost) -> None:
    fake.addresses["eth1"] += ["fd00:3::7/64", "fe80::7/64"]
    own = "030000FD" + "0" * 16 + "07000000:1F90"
    fake.write("proc/net/tcp6", f"  sl  local_address rem_address   st\n 0: {own} 0 01\n")


def with_a_capture(fake: FakeHost) -> None:
    fake.write("proc/net/packet", "sk RefCnt Type Proto Iface R\nff 3 3 0003 1 1\nff 3 3 3 0 1\n")


def with_two_addresses(fake: FakeHost) -> None:
    fake.addresses["eth1"].append("10.0.3.8/24")


def with_virtual_functions(fake: FakeHost) -> None:
    (fake.root / f"sys/bus/pci/devices/{ID}/sriov_numvfs").write_text("2\n")


USES: dict[str, tuple[Callable[[FakeHost], None], str]] = {
    "bridge": (in_a_bridge, "it is a member of br0. "),
    "vlan": (under_a_vlan, "eth1.7 runs over it. "),
    "route": (with_a_route, "the route 10.7.0.0/16 via 10.0.3.1 proto static. "),
    "tcp": (with_a_connection, "2 TCP sockets on its address. "),
    "tcp6": (with_an_ipv6_connection, "1 TCP socket on its address. "),
    "capture": (with_a_capture, "1 packet socket. "),
    "addresses": (with_two_addresses, "it has 2 IPv4 addresses"),
    "functions": (with_virtual_functions, "it has virtual functions. "),
}


@pytest.mark.parametrize("use", USES)
def test_nic_in_use_needs_even_if_used(use: str, fake: FakeHost) -> None:
    prepare, said = USES[use]
    prepare(fake)
    assert not any(nic.is_free for nic in nics.all_nics())
    text = refusal(f"dpdk:{ID}")
    assert f"eth1 is in use: {said}" in text and "--even-if-used" in text
    assert any(isinstance(step, Bind) for step in steps_for(f"dpdk:{ID}", even_if_used=True))


def test_nic_without_address_needs_address_option(fake: FakeHost) -> None:
    fake.addresses["eth1"] = ["fe80::1/64"]
    assert not any(nic.is_free for nic in nics.all_nics())
    assert "--address ADDRESS/PREFIX" in refusal(f"dpdk:{ID}")
    steps = steps_for(f"dpdk:{ID}", keys={"address": "10.0.4.1/24"})
    assert settings_of(steps)[0]["address"] == "10.0.4.1/24"


def test_unsupported_or_hidden_nic_is_refused(fake: FakeHost) -> None:
    fake.add_nic("eth2", "pci0000:00/0000:00:06.0", "e1000", ("10.0.4.7/24",))
    fake.add_device("pci0000:00/0000:00:07.0", "0x020000", "ena")
    assert "has no driver for a NIC of e1000; share it" in refusal("dpdk:0000:00:06.0")
    assert "not in this network namespace" in refusal("dpdk:0000:00:07.0")
    said = refusal("dpdk:0000:00:66.0")
    assert "there is no NIC 0000:00:66.0; this host's NICs:" in said and ID in said


def test_interface_name_resolves_to_pci_id(fake: FakeHost) -> None:
    assert resolved("dpdk:eth1") == f"dpdk:{ID}"
    assert resolved("fault:drop=0.1|dpdk:eth1") == f"fault:drop=0.1|dpdk:{ID}"
    assert resolved("packet:eth1") == "packet:eth1"
    assert resolved(f"dpdk:{ID},x=1") == f"dpdk:{ID},x=1"
    assert resolved("dpdk:00:05.0;tso=0") == f"dpdk:{ID};tso=0"
    assert resolved("dpdk:eth1;tso=0") == f"dpdk:{ID};tso=0"
    (fake.root / "sys/devices/virtual/net/tun0").mkdir(parents=True)
    (fake.root / "sys/class/net/tun0").symlink_to(fake.root / "sys/devices/virtual/net/tun0")
    with pytest.raises(PlanError, match="tun0 is not on the PCI bus"):
        resolved("dpdk:tun0")


# -- the file


def test_file_takes_over_kernel_settings(fake: FakeHost) -> None:
    folder = interface(fake, "eth1")
    (folder / "mtu").write_text("9001\n")
    (folder / "speed").write_text("100000\n")
    (folder / "addr_assign_type").write_text("3\n")
    (folder / "address").write_text("02:00:00:00:00:77\n")
    fake.routes["eth1"] = ["default via 10.0.3.1 table 101"]
    steps = steps_for(f"dpdk:{ID}")
    assert settings_of(steps) == [{
        "device": f"dpdk:{ID}", "address": "10.0.3.7/24", "gateway": "10.0.3.1", "mtu": "9001",
        "mac": "02:00:00:00:00:77", "speed_mbps": "100000",
        "pci_path": f"{fake.root}/sys/devices/pci0000:00/{ID}",
    }]  # fmt: skip
    bind = next(step for step in steps if isinstance(step, Bind))
    assert bind.interface is not None and bind.interface["routes"] == [
        "-4 default via 10.0.3.1 table 101"
    ]
    _tables.parse(next(step for step in steps if isinstance(step, WriteFile)).text.encode())


def test_address_with_prefix_32_needs_gateway(fake: FakeHost) -> None:
    fake.addresses["eth1"] = ["10.0.3.7/32"]
    assert "add a --gateway" in refusal(f"dpdk:{ID}")
    fake.routes["eth1"] = ["10.0.3.1 scope link", "default via 10.0.3.1 proto dhcp metric 200"]
    assert settings_of(steps_for(f"dpdk:{ID}"))[0]["gateway"] == "10.0.3.1"
    # The interface's gateway is not used with another address.
    other = steps_for(f"dpdk:{ID}", keys={"address": "10.0.9.7/24"})
    assert "gateway" not in settings_of(other)[0]


def test_addresses_are_checked(fake: FakeHost) -> None:
    assert "address = kernel needs a packet or xdp device" in refusal(
        f"dpdk:{ID}", keys={"address": "kernel"}
    )
    fake.towards["10.0.0.9"] = "local 10.0.0.9 dev lo src 10.0.0.9"
    assert "has 10.0.0.9 on another" in refusal(f"dpdk:{ID}", keys={"address": "10.0.0.9/24"})


def test_each_nic_serves_nearest_gpu(fake: FakeHost) -> None:
    expected = {}
    for i in range(8):
        switch = f"pci0000:{i // 4}0/0000:{i // 4}0:01.0/0000:{i}1:00.0"
        port = f"{switch}/0000:{i}2:00.0"
        nic = fake.add_nic(
            f"nic{i}", f"{port}/0000:{i}3:00.0", addresses=(f"10.{i}.0.2/24",), node=str(i // 4)
        )
        # GPUs are in another order than NICs; two NICs of its root complex are nearest to each.
        gpu = fake.add_gpu(f"{switch}/0000:{i}4:00.0/0000:{i}5:00.0")
        expected[f"dpdk:{nic}"] = gpu
    steps = steps_for(*reversed(expected))
    found = settings_of(steps)
    assert {one["device"]: one["gpu"] for one in found} == expected
    files = [step for step in steps if isinstance(step, WriteFile)]
    assert [Path(step.path).name for step in files] == [f"ztcp{i}.conf" for i in range(8)]


def test_surplus_nic_serves_no_gpu(fake: FakeHost) -> None:
    gpu = fake.add_gpu("pci0000:40/0000:40:01.0")
    near = fake.add_nic("eth2", "pci0000:40/0000:40:02.0", addresses=("10.0.4.7/24",))
    found = settings_of(steps_for(f"dpdk:{ID}", f"dpdk:{near}"))
    assert [one.get("gpu") for one in found] == [None, gpu]


def test_nic_shared_by_other_file_is_refused(fake: FakeHost, tmp_path: Path) -> None:
    (tmp_path / "conf/ztcp0.conf").write_text("device = packet:eth1\naddress = kernel\n")
    assert "ztcp0.conf shares eth1 with the kernel" in refusal(f"dpdk:{ID}")


def test_virtual_device_changes_only_the_file(fake: FakeHost) -> None:
    device = "dpdk:virtio_user0,path=/run/x;tso=0"
    steps = steps_for(device, keys={"address": "10.0.9.1/24"})
    assert [step.kind for step in steps] == ["file"]
    assert settings_of(steps) == [{"device": device, "address": "10.0.9.1/24"}]


@pytest.mark.parametrize("name", nics.SOFTWARE)
def test_plugin_contains_virtual_devices(name: str) -> None:
    plugin = nccl_plugin_path()
    if loader.lacks_dpdk(plugin):
        pytest.skip("built without DPDK")
    assert f"{name}\0".encode() in plugin.read_bytes()


def test_device_options_do_not_change_file_identity(fake: FakeHost, tmp_path: Path) -> None:
    steps = steps_for(f"dpdk:{ID};tso=0")
    assert settings_of(steps)[0]["device"] == f"dpdk:{ID};tso=0"
    file = next(step for step in steps if isinstance(step, WriteFile))
    (tmp_path / "conf/ztcp0.conf").write_text(file.text)
    steps = steps_for(f"dpdk:{ID}")  # the same NIC changes the same file
    assert [step.path for step in steps if isinstance(step, WriteFile)] == [file.path]
    (tmp_path / "conf/ztcp0.conf").write_text(file.text.replace(ID, ID[5:]))
    assert [
        step.path
        for step in steps_for(f"dpdk:{ID}", keys={"mtu": "1400"})
        if isinstance(step, WriteFile)
    ] == [file.path]  # the short id names the same file
    assert settings_of(steps)[0]["device"] == f"dpdk:{ID}"


# -- drivers


def drivers(*devices: str, **options: Any) -> list[str]:
    return [step.driver for step in steps_for(*devices, **options) if isinstance(step, Bind)]


def test_iommu_selects_vfio_pci(fake: FakeHost) -> None:
    fake.join_group(ID, "7")
    assert drivers(f"dpdk:{ID}") == ["vfio-pci"]
    assert "cannot map memory" in refusal(f"dpdk:{ID}", driver="uio_pci_generic")


def test_vfio_noiommu_is_used_where_allowed(fake: FakeHost) -> None:
    fake.vfio_parameters = "enable_unsafe_noiommu_mode:Enable UNSAFE, no-IOMMU mode."
    said = described(steps_for(f"dpdk:{ID}"))
    assert said[:4] == ["modprobe vfio",
                        "echo Y > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
                        "modprobe vfio_iommu_type1", "modprobe vfio-pci"]  # fmt: skip
    assert drivers(f"dpdk:{ID}", driver="uio_pci_generic") == ["uio_pci_generic"]


def test_uio_pci_generic_is_used_without_vfio(fake: FakeHost) -> None:
    assert drivers(f"dpdk:{ID}") == ["uio_pci_generic"]
    assert "needs an IOMMU" in refusal(f"dpdk:{ID}", driver="vfio-pci")


def test_missing_drivers_are_refused(fake: FakeHost) -> None:
    fake.modules.clear()
    said = refusal(f"dpdk:{ID}")
    assert "neither vfio-pci nor uio_pci_generic" in said and "packet:eth1" in said


def test_iommu_group_must_be_given_as_a_whole(fake: FakeHost) -> None:
    other = fake.add_nic("eth2", "pci0000:00/0000:00:06.0", addresses=("10.0.4.7/24",), group="7")
    bridge = fake.add_device("pci0000:00/0000:00:08.0", "0x060400", "pcieport")
    fake.join_group(ID, "7")
    fake.join_group(bridge, "7")
    assert f"shares IOMMU group 7 with {other} (ena)" in refusal(f"dpdk:{ID}")
    assert drivers(f"dpdk:{ID}", f"dpdk:{other}") == ["vfio-pci"] * 2


def test_nics_of_one_group_serve_one_process(fake: FakeHost) -> None:
    bound = []
    for number in (6, 7):
        place = f"pci0000:00/0000:00:0{number}.0"
        bound.append(fake.add_device(place, "0x020000", "vfio-pci"))
        fake.join_group(bound[-1], "9")
    binds = [Bind(one, "vfio-pci", "ena", "", None, "this-boot") for one in bound]
    said = advice(binds)
    assert f"{bound[0]} and {bound[1]} share IOMMU group 9" in said[0]
    assert not any("no IOMMU" in line for line in said)


def test_nic_given_away_before_needs_only_a_file(fake: FakeHost) -> None:
    pci_id = fake.add_device("pci0000:00/0000:00:06.0", "0x020000", "vfio-pci")
    fake.set_pages(POOL, 128, 128)
    steps = steps_for(f"dpdk:{pci_id}", keys={"address": "10.0.5.1/24"})
    assert [step.kind for step in steps] == ["file"]


def test_journal_restores_address_after_crash(fake: FakeHost) -> None:
    settings = {"name": "eth2", "mtu": 1400, "mac": "", "up": True, "routes": [],
                "addresses": ["10.0.6.7/24 brd 10.0.6.255 scope global"]}  # fmt: skip
    pci_id = fake.add_device("pci0000:00/0000:00:06.0", "0x020000")  # a NIC without a driver
    begun = Bind(pci_id, "uio_pci_generic", "ena", "", settings, "this-boot")
    steps = steps_for(f"dpdk:{pci_id}", journal=(begun,))
    assert settings_of(steps)[0]["address"] == "10.0.6.7/24"
    again = next(step for step in steps if isinstance(step, Bind))
    again.follow(begun)
    assert (again.earlier, again.interface) == ("ena", settings)
    stale = Bind(pci_id, "uio_pci_generic", "ena", "", settings, "an earlier boot")
    assert "has no IPv4 address" in refusal(f"dpdk:{pci_id}", journal=(stale,))


# -- memory


@pytest.mark.parametrize("cards, gib", [(1, 15), (2, 20), (4, 30), (7, 45), (8, 50), (9, 55)])
def test_gibibytes_follow_number_of_gpus(cards: int, gib: int) -> None:
    assert pages.gibibytes(cards) == gib


def page_steps(*devices: str, **options: Any) -> list[str]:
    return [step.describe() for step in steps_for(*devices, **options) if step.kind == "pages"]


def test_small_hugepages_are_reserved(fake: FakeHost) -> None:
    assert page_steps(f"dpdk:{ID}") == [f"echo 128 > /{POOL}/nr_hugepages (it was 0)"]
    assert page_steps(f"dpdk:{ID}", hugepages=51) == [f"echo 26 > /{POOL}/nr_hugepages (it was 0)"]
    assert page_steps(f"dpdk:{ID}", hugepages=0) == []
    fake.set_pages(POOL, 200, 100)  # another program uses a hundred
    assert page_steps(f"dpdk:{ID}") == [f"echo 228 > /{POOL}/nr_hugepages (it was 200)"]
    fake.set_pages(POOL, 300, 128)
    assert page_steps(f"dpdk:{ID}") == []
    fake.set_pages(POOL, 0, 0)
    fake.set_pages(LARGE_POOL, 15, 0)  # a job uses the 1 GiB pages
    assert page_steps(f"dpdk:{ID}") == []


def test_small_hugepages_are_reserved_once(fake: FakeHost) -> None:
    first = next(step for step in steps_for(f"dpdk:{ID}") if isinstance(step, pages.Pages))
    first.do()
    fake.set_pages(POOL, 128, 0)  # a job uses them
    assert page_steps(f"dpdk:{ID}", journal=(first,)) == []
    assert page_steps(f"dpdk:{ID}") != []  # without the journal they count as another program's
    assert first.undo() and pages.total(POOL) == 0 and first.undo() == ""


def test_undo_keeps_hugepages_of_others(fake: FakeHost) -> None:
    step = next(step for step in steps_for(f"dpdk:{ID}") if isinstance(step, pages.Pages))
    step.do()
    fake.set_pages(POOL, 300, 300)
    assert "more were added after set-up" in step.undo() and pages.total(POOL) == 300
    fake.write("proc/sys/kernel/random/boot_id", "another boot")
    fake.set_pages(POOL, 100, 100)
    assert step.undo() == "" and pages.total(POOL) == 100


def test_small_hugepages_are_reserved_on_nic_node(fake: FakeHost) -> None:
    devices = []
    for i, node in enumerate("011"):
        pool = f"sys/devices/system/node/node{node}/hugepages/hugepages-2048kB"
        fake.set_pages(pool, 0, 0)
        place = f"pci0000:50/0000:50:0{i}.0"
        devices.append(
            "dpdk:" + fake.add_nic(f"nic{i}", place, addresses=(f"10.{i}.0.2/24",), node=node)
        )
    assert [line.split()[1] for line in page_steps(*devices)] == ["128", "256"]


@pytest.fixture
def grub(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    fake.write("etc/default/grub", "GRUB_TIMEOUT=0\n")
    fake.write("boot/grub/grub.cfg", "plain")
    fake.write("proc/meminfo", f"MemTotal: {100 * GIB_KB} kB\n")
    (fake.root / "etc/default/grub.d").mkdir()
    monkeypatch.setattr(
        shutil, "which", lambda name: "/usr/sbin/update-grub" if name == "update-grub" else None
    )
    return fake


def boot_step(**options: Any) -> bootline.BootPages:
    steps = steps_for(f"dpdk:{ID}", page_size="1G", **options)
    return next(step for step in steps if isinstance(step, bootline.BootPages))


def test_large_hugepages_need_reboot(grub: FakeHost) -> None:
    for i in range(2):
        grub.add_gpu(f"pci0000:60/0000:60:0{i}.0")
    step = boot_step()
    args = "default_hugepagesz=1G hugepagesz=1G hugepages=20"
    assert args in step.describe()
    drop_in = grub.root / "etc/default/grub.d/harp.cfg"
    step.do()
    assert args in drop_in.read_text() and step.in_place()
    assert advice([step]) == ["reboot to get 20 hugepages of 1 GiB"]
    with pytest.raises(StopIteration):
        boot_step()  # raises: the step is in place
    grub.write("proc/cmdline", f"quiet {args}\n")
    assert bootline.told() == 20 and advice([step]) == []
    assert "from the kernel's command line" in step.undo()
    assert not drop_in.exists() and not step.in_place() and step.undo() == ""


def test_large_hugepages_need_memory_and_boot_loader(
    grub: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    grub.write("proc/meminfo", f"MemTotal: {16 * GIB_KB} kB\n")
    assert "15 GiB of hugepages for 1 card" in refusal(f"dpdk:{ID}", page_size="1G")
    grub.write("proc/meminfo", f"MemTotal: {100 * GIB_KB} kB\n")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "add by hand: default_hugepagesz=1G" in refusal(f"dpdk:{ID}", page_size="1G")


def test_large_hugepages_by_grubby(grub: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    line: set[str] = set()

    def grubby(*command: str) -> tuple[bool, str]:
        for word in command[1:]:
            option, _, arguments = word.partition("=")
            if option == "--args":
                line.update(arguments.split())
            elif option == "--remove-args":
                line.difference_update(arguments.split())
        return True, " ".join(sorted(line))

    monkeypatch.setattr(bootline, "run_tool", grubby)
    first = bootline.BootPages(15, "grubby")
    first.do()
    second = bootline.BootPages(20, "grubby")
    second.follow(first)
    second.do()
    assert line == {"default_hugepagesz=1G", "hugepagesz=1G", "hugepages=20"}
    second.undo()
    assert line == set()


def test_pci_distance_grows_with_topology() -> None:
    def at(place: str, node: int = 0) -> pci.PciDevice:
        return pci.PciDevice(place, Path("/sys/devices") / place, 0, 0, "", (), "", node)

    nic = at("pci0000:00/0000:00:01.0/0000:01:00.0")
    places = ["pci0000:00/0000:00:01.0/0000:01:00.1", "pci0000:00/0000:00:02.0/0000:02:00.0"]
    near, same_root = map(at, places)
    far, further = at("pci0000:40/0000:40:00.0"), at("pci0000:80/0000:80:00.0", 1)
    found = [pci.distance(nic, other) for other in (near, same_root, far, further)]
    assert found == sorted(found) and len(set(found)) == 4


def test_hanging_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ip").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(host, "_IP_S", 0.2)
    with pytest.raises(host.HostError, match="ip -o addr did not end within 0 s; try again"):
        host.ip("-o", "addr")
