# SPDX-License-Identifier: Apache-2.0
"""Two hosts with fresh systems by debootstrap, each in a network namespace, joined by a veth pair.

A system is unpacked once for each suite, into a folder of its name, with what HARP's package needs.
Each host writes to a layer of its own over it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from harp.setup.folders import make_folder

SYSTEMS = Path("/var/tmp/harp-clean-systems")  # kept for the next run
NOTHING: Mapping[str, str] = MappingProxyType({})
NEEDS = ("python3", "python3-click", "python3-pip", "iproute2")

# What apt, dpkg and rpm write about their own work.
OF_APT = ("root/.rpmdb/", "var/log/", "var/lib/dpkg/", "var/lib/apt/", "var/cache/apt/",
          "var/cache/ldconfig/", "etc/ld.so.cache", "etc/hosts")  # fmt: skip

# Mounts end with the process: ip netns exec makes a mount namespace. The host sees no processes and
# no shared memory of this machine.
_ENTER = """
mount -t proc proc "$1/proc"; mount -t sysfs sysfs "$1/sys"; mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/dev/shm"
root=$1; shift; exec chroot "$root" "$@"
"""


def run(*args: str | Path, timeout: float = 900, more: Mapping[str, str] = NOTHING) -> str:
    """The output. An error holds the output of a command that failed. more: added to the
    environment."""
    done = subprocess.run(
        args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=timeout, env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **more})  # fmt: skip
    assert done.returncode == 0, f"{' '.join(map(str, args))}\n{done.stdout}"
    return done.stdout


def make_system(suite: str, folder: Path, needs: Sequence[str] = NEEDS) -> Path:
    """The system of SUITE or SUITE@MIRROR with some packages, made if it or a package is missing.
    Only root may enter `folder`. Needs root and debootstrap. Raises FolderError if another user
    made it."""
    make_folder(str(folder), 0o700)
    suite, _, mirror = suite.partition("@")
    root = folder / suite
    present = root / "var/lib/dpkg/info"
    if not all((present / f"{name}.list").is_file() for name in ("base-files", *needs)):
        run("rm", "-rf", root)
        new = folder / f".{suite}.new"
        run("rm", "-rf", new)
        new.mkdir(parents=True)
        # python3-click is in universe on Ubuntu, and Debian ignores a component that it lacks.
        run("debootstrap", "--variant=minbase", "--components=main,universe", suite, new,
            *([mirror] if mirror else []))  # fmt: skip
        run("chroot", new, "apt-get", "-qq", "update")
        run("chroot", new, "apt-get", "-qq", "-y", "--no-install-recommends", "install", *needs)
        new.rename(root)
    return root


def snapshot(root: Path) -> dict[str, tuple[int, int, str]]:
    """Mode, owner, and content or target of every file below a folder."""
    found = {}
    for path, folders, files in os.walk(root):
        for name in (*folders, *files):
            file = Path(path) / name
            place = str(file.relative_to(root))
            if place.startswith(OF_APT):
                continue
            status = file.lstat()
            text = ""
            if stat.S_ISLNK(status.st_mode):
                text = os.readlink(file)
            elif stat.S_ISREG(status.st_mode):
                text = hashlib.sha256(file.read_bytes()).hexdigest()
            found[place] = (status.st_mode, status.st_uid, text)
    return found


def difference(before: dict[str, tuple[int, int, str]],
               after: dict[str, tuple[int, int, str]]) -> list[str]:  # fmt: skip
    """A line for each file that is new, gone, or changed."""
    return [
        f"{'gone' if place not in after else 'changed' if place in before else 'new'}: {place}"
        for place in sorted(before.keys() | after.keys())
        if before.get(place) != after.get(place)
    ]


class CleanHost:
    """A host: its root folder and its network namespace."""

    def __init__(self, root: Path, namespace: str) -> None:
        self.root = root
        self.namespace = namespace

    def args(self, *command: str) -> list[str | Path]:
        """The command line that runs a command on this host."""
        return ["ip", "netns", "exec", self.namespace, "unshare", "--pid", "--fork",
                "--kill-child", "sh", "-ec", _ENTER, "enter", self.root, *command]  # fmt: skip

    def run(self, *command: str) -> str:
        return run(*self.args(*command))


@contextmanager
def two_hosts(system: Path, folder: Path) -> Iterator[tuple[CleanHost, CleanHost]]:
    """Two hosts, 10.77.0.1 and 10.77.0.2 on eth0. `folder` is for their layers."""
    with ExitStack() as stack:
        hosts = []
        for i in range(2):
            namespace = f"clean{os.getpid()}-{i}"
            root, upper, work = (folder / f"{name}{i}" for name in ("root", "upper", "work"))
            for one in (root, upper, work):
                one.mkdir()
            stack.callback(run, "rm", "-rf", upper, work)
            options = f"lowerdir={system},upperdir={upper},workdir={work}"
            run("mount", "-t", "overlay", "overlay", "-o", options, root)
            stack.callback(run, "umount", root)
            run("ip", "netns", "add", namespace)
            stack.callback(run, "ip", "netns", "delete", namespace)
            hosts.append(CleanHost(root, namespace))
        run("ip", "link", "add", "eth0", "netns", hosts[0].namespace, "type", "veth",
            "peer", "name", "eth0", "netns", hosts[1].namespace)  # fmt: skip
        for i, host in enumerate(hosts):
            for args in (["addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0"],
                          ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):  # fmt: skip
                run("ip", "-n", host.namespace, *args)
        yield hosts[0], hosts[1]
