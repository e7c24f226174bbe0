# SPDX-License-Identifier: Apache-2.0
"""A virtual machine as a host for tests: Debian's kernel under QEMU, the files of this machine
read-only, and NICs on the PCI bus.

    with Guest(kernel, lab.hosts[0], folder, iommu=True) as guest:
        print(guest.run("uname", "-r").out)

QEMU and the taps of its NICs are in a namespace of a lab and end with it. A guest does not use KVM,
so it runs everywhere, at a tenth of the speed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Optional

from tools.hosts.lab import Host

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VIRTIOFSD = "/usr/lib/qemu/virtiofsd"
# The modules that init needs before it can mount the file systems with the others.
EARLY_MODULES = ("virtiofs", "overlay", "virtio_pci", "virtio_console")
MEMORY_MIB = 1280
DISK_MIB = 32
# HARP's folders: a guest with a disk has this one there.
ON_DISK = "/usr/local/tfabric"
MTU = 1500
# The factor by which a busy machine may be slower than usual.
SLOWNESS = max(1.0, float(os.environ.get("HARP_TEST_VM_MINUTES", "10")) / 10)
BOOT_S = 240.0 * SLOWNESS  # an idle machine boots in 5 s
COMMAND_S = 400.0 * SLOWNESS
TEST_S = 900.0 * SLOWNESS
RESET_S = 60.0 * SLOWNESS
NEWS_S = 15.0  # between two progress lines of a long boot


class GuestError(RuntimeError):
    """The guest did not start, or has ended. The text has the end of its console."""


@dataclass(frozen=True)
class Done:
    """A command that has ended in the guest."""

    args: tuple[str, ...]
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"{' '.join(self.args)}: {self.code}\n{self.out}{self.err}"


@dataclass(frozen=True)
class Nic:
    """A NIC of the guest: its place on the PCI bus, its address, and the address of the tap. The
    guest's kernel names the NICs eth0, eth1, ... in this order."""

    name: str
    pci_id: str
    tap: str
    address: str
    peer: str
    prefix: int = 24


MANAGEMENT = Nic("eth0", "0000:00:04.0", "tap0", "10.79.0.2", "10.79.0.1")
DATA = Nic("eth1", "0000:00:05.0", "tap1", "10.78.0.2", "10.78.0.1")
# Two more NICs behind a conventional PCI bridge: they share an IOMMU group.
TWINS = (
    Nic("eth2", "0000:01:01.0", "tap2", "10.80.0.2", "10.80.0.1"),
    Nic("eth3", "0000:01:02.0", "tap3", "10.81.0.2", "10.81.0.1"),
)


def make_initramfs(kernel: Path, folder: Path) -> Path:
    """Makes an initramfs with busybox, init, and the modules that init needs."""
    release = (kernel / "release").read_text().strip()
    tree = folder / "initramfs"
    for name in ("bin", "lib/modules", "root", "memory", "host", "kernel", "proc", "sys", "dev"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", tree / "bin/busybox")
    shutil.copy(HERE / "init", tree / "init")
    (tree / "init").chmod(0o755)
    files: list[str] = []
    for module in EARLY_MODULES:
        command = ["modprobe", "-d", str(kernel), "-S", release, "--show-depends", module]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        files += [line.split()[1] for line in listed.splitlines() if line.startswith("insmod")]
    for i, file in enumerate(dict.fromkeys(files)):
        shutil.copy(file, tree / f"lib/modules/{i:02}-{Path(file).name}")
    names = subprocess.run(["find", "."], cwd=tree, capture_output=True, check=True).stdout
    archive = folder / "initramfs.cpio"
    with archive.open("wb") as out:
        subprocess.run(
            ["cpio", "--quiet", "-o", "-H", "newc"], cwd=tree, input=names, stdout=out, check=True
        )
    shutil.rmtree(tree)
    return archive


@dataclass(repr=False)
class Guest:
    """A running guest. `kernel` is the folder made by tests/vm/prepare; `host` is the namespace for
    QEMU and the taps; `folder` is for sockets, the disk and the console log; `iommu`: whether the
    guest has one; `say` receives progress lines; `disk`: whether ON_DISK is on a disk. All other
    files that the guest writes are in its memory."""

    kernel: Path
    host: Host
    folder: Path
    iommu: bool
    nics: tuple[Nic, ...] = (MANAGEMENT, DATA)
    say: Callable[[str], None] = lambda text: None
    disk: bool = False
    _processes: "list[subprocess.Popen[Any]]" = field(default_factory=list)
    _socket: Optional[socket.socket] = None
    _received: bytes = b""
    _answers: dict[int, Done] = field(default_factory=dict)
    _commands: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def console(self) -> Path:
        """The log of the guest's console: the output of its kernel and its agent."""
        return self.folder / "console.log"

    # -- lifetime

    def __enter__(self) -> Guest:
        try:
            for nic in self.nics:
                self._make_tap(nic)
            if self.disk:
                make = ["mke2fs", "-q", "-t", "ext4", str(self._disk_file), f"{DISK_MIB}M"]
                subprocess.run(make, capture_output=True, check=True)
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _boot(self) -> None:
        self._serve_files("host", Path("/"))
        self._serve_files("kernel", self.kernel)
        self._start(self.host.popen(self._qemu(), **self._log("qemu")))
        self._read_agent()
        self._configure()

    def reset(self) -> None:
        """Resets the machine without a shutdown, and boots it again. Its memory is lost: only the
        disk is as it was at that moment. The taps remain."""
        self.start("sh", "-c", "echo b > /proc/sysrq-trigger")
        self._processes[-1].wait(RESET_S)  # by -no-reboot, QEMU ends at a reset
        self.close()
        self._received = b""
        self._boot()

    def close(self) -> None:
        """Ends the machine. May be called again."""
        if self._socket:
            self._socket.close()
            self._socket = None
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def _start(self, process: "subprocess.Popen[Any]") -> None:
        self._processes.append(process)

    def _log(self, name: str) -> dict[str, Any]:
        file = (self.folder / f"{name}.log").open("wb")
        return {"stdout": file, "stderr": subprocess.STDOUT}

    def _make_tap(self, nic: Nic) -> None:
        ip = ("ip",)
        self.host.run([*ip, "tuntap", "add", nic.tap, "mode", "tap", "vnet_hdr"])
        self.host.run([*ip, "address", "add", f"{nic.peer}/{nic.prefix}", "dev", nic.tap])
        self.host.run([*ip, "link", "set", nic.tap, "up"])

    @property
    def _disk_file(self) -> Path:
        return self.folder / "disk"

    def _serve_files(self, tag: str, source: Path) -> None:
        path = self.folder / f"{tag}.socket"
        path.unlink(missing_ok=True)  # that of an earlier boot
        # This machine's files do not change, so the guest may cache them.
        options = f"source={source},sandbox=chroot,cache=always"
        args = [VIRTIOFSD, f"--socket-path={path}", "-o", options]
        self._start(self.host.popen(args, **self._log(f"files-{tag}")))
        end = time.monotonic() + 20
        while not path.exists():
            if self._processes[-1].poll() is not None or time.monotonic() > end:
                said = (self.folder / f"files-{tag}.log").read_text(errors="replace")
                raise GuestError(f"{' '.join(args)} did not start:\n{said}")
            time.sleep(0.02)

    def _qemu(self) -> list[str]:
        machine = "q35,memory-backend=memory" + (",kernel-irqchip=off" if self.iommu else "")
        args = ["qemu-system-x86_64", "-accel", "tcg", "-machine", machine, "-cpu", "max"]
        # One CPU each: many machines have only two, for two parallel guests.
        args += ["-smp", "1", "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config"]
        args += ["-display", "none", "-no-reboot", "-serial", f"file:{self.console}"]
        # Shared memory, because other processes serve the files.
        memory = f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on"
        args += ["-object", memory, "-kernel", str(self.kernel / "vmlinuz")]
        args += ["-initrd", str(make_initramfs(self.kernel, self.folder))]
        args += ["-append", self._command_line()]
        if self.iommu:
            args += ["-device", "intel-iommu,intremap=on,device-iotlb=on,aw-bits=48"]
        for tag in ("host", "kernel"):
            args += ["-chardev", f"socket,id={tag},path={self.folder}/{tag}.socket"]
            args += ["-device", f"vhost-user-fs-pci,chardev={tag},tag={tag}"]
        agent = f"socket,id=agent,path={self.folder}/agent.socket,server=on,wait=off"
        args += ["-chardev", agent, "-device", "virtio-serial-pci"]
        args += ["-device", "virtserialport,chardev=agent,nr=1"]
        return args + self._qemu_nics() + (self._qemu_disk() if self.disk else [])

    def _qemu_nics(self) -> list[str]:
        args = []
        if len(self.nics) > 2:
            args += ["-device", "pcie-pci-bridge,id=old,bus=pcie.0,addr=6"]
        for i, nic in enumerate(self.nics):
            _, bus, slot = nic.pci_id.split(":")
            place = f"bus={'pcie.0' if bus == '00' else 'old'},addr={slot}"
            options = f"virtio-net-pci,netdev=n{i},mac=02:78:00:00:00:{i:02x},romfile=,{place}"
            options += f",host_mtu={MTU}"  # the device reports its MTU
            if self.iommu:
                options += ",disable-legacy=on,iommu_platform=on,ats=on"
            args += ["-netdev", f"tap,id=n{i},ifname={nic.tap},script=no,downscript=no,vhost=off"]
            args += ["-device", options]
        return args

    def _qemu_disk(self) -> list[str]:
        device = "virtio-blk-pci,drive=disk,bus=pcie.0,addr=7"
        if self.iommu:
            device += ",disable-legacy=on,iommu_platform=on,ats=on"
        drive = f"file={self._disk_file},if=none,id=disk,format=raw"
        return ["-drive", drive, "-device", device]

    def _command_line(self) -> str:
        # Without the timer check, which may fail on a busy machine.
        args = ["console=ttyS0", "panic=-1", "mitigations=off", "no_timer_check"]
        if self.iommu:
            args += ["intel_iommu=on", "iommu=pt"]
        return " ".join([*args, f"vm.python={sys.executable}", f"vm.agent={HERE / 'agent.py'}"])

    def _read_agent(self) -> None:
        path = self.folder / "agent.socket"
        began = time.monotonic()
        end = began + BOOT_S
        self.say(f"boots; its console: {self.console}")
        while self._socket is None:
            self._check_alive(end)
            fresh = socket.socket(socket.AF_UNIX)
            try:
                fresh.connect(str(path))
                self._socket = fresh
            except OSError:
                fresh.close()
                time.sleep(0.05)
        if self._line(end, self._tell_boot) != b"ready":
            raise GuestError(f"the agent said something else\n{self._console_end()}")
        self.say(f"is up after {time.monotonic() - began:.0f} s")

    def _configure(self) -> None:
        for command in ("harp", "harp-setup", "harprun"):
            entry = {"harp": "main", "harp-setup": "setup_main", "harprun": "run_main"}[command]
            self.write(
                f"/usr/local/bin/{command}",
                f"#!/bin/sh\nexec env PYTHONPATH={ROOT} HARP_BUILD_DIR={build_dir()} "
                f'{sys.executable} -c "from harp.cli.main import {entry} as m; m()" "$@"\n',
                executable=True,
            )
        lines = ["ip link set lo up", "modprobe virtio_net"]
        for nic in self.nics[:2]:
            lines.append(f"ip address add {nic.address}/{nic.prefix} dev {nic.name}")
            lines.append(f"ip link set {nic.name} up")
        lines.append(f"ip route add default via {MANAGEMENT.peer}")
        if self.disk:
            lines += ["modprobe virtio_blk", f"mkdir -p {ON_DISK}", f"mount /dev/vda {ON_DISK}"]
        self.check("sh", "-ec", "\n".join(lines))

    def cpu_s(self) -> float:
        """The CPU time of QEMU so far, in seconds."""
        stat = Path(f"/proc/{self._processes[-1].pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # -- commands

    def _check_alive(self, end: float) -> None:
        if self._processes[-1].poll() is not None:
            said = (self.folder / "qemu.log").read_text(errors="replace")
            raise GuestError(f"QEMU has ended\n{said}{self._console_end()}")
        if time.monotonic() > end:
            raise GuestError(f"the guest did not answer in time\n{self._console_end()}")

    def _console_end(self) -> str:
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return "\n".join(["-- the end of its console:", *text.splitlines()[-40:]])

    def _tell_boot(self) -> None:
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        self.say(f"still boots: {(text.splitlines() or ['nothing said yet'])[-1]}")

    def _line(self, end: float, tell: Callable[[], None] = lambda: None) -> bytes:
        """The next line from the agent; calls `tell` every NEWS_S seconds while there is none."""
        assert self._socket
        self._socket.settimeout(0.5)
        next_news = time.monotonic() + NEWS_S
        while b"\n" not in self._received:
            self._check_alive(end)
            if time.monotonic() > next_news:
                tell()
                next_news += NEWS_S
            try:
                more = self._socket.recv(65536)
            except TimeoutError:
                continue
            if not more:
                time.sleep(0.1)  # QEMU is about to end
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line

    def start(
        self,
        *args: object,
        env: Optional[dict[str, str]] = None,
        input: Optional[str] = None,
        timeout: float = COMMAND_S,
    ) -> int:
        """Starts a command that may take `timeout` seconds. Returns its number for `wait`."""
        assert self._socket
        number = len(self._commands)
        self._commands[number] = tuple(map(str, args))
        request = {"id": number, "args": self._commands[number], "env": env or {}, "input": input}
        request["timeout"] = timeout
        self._socket.settimeout(timeout)
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        return number

    def wait(self, number: int, timeout: float = COMMAND_S + 100) -> Done:
        """Waits for the end of a command. Raises GuestError if the guest does not answer in
        time."""
        end = time.monotonic() + timeout
        while number not in self._answers:
            answer = json.loads(self._line(end))
            args = self._commands[answer["id"]]
            self._answers[answer["id"]] = Done(args, answer["code"], answer["out"], answer["err"])
        return self._answers[number]

    def run(self, *args: object, timeout: float = COMMAND_S, **options: Any) -> Done:
        """Runs a command to its end."""
        return self.wait(self.start(*args, timeout=timeout, **options), timeout + 30)

    def check(self, *args: object, **options: Any) -> str:
        """Runs a command that must succeed. Returns its output."""
        done = self.run(*args, **options)
        assert done.code == 0, str(done)
        return done.out

    def write(self, path: str, text: str, executable: bool = False) -> None:
        """Writes a file in the guest; it is kept only in the guest's memory."""
        mode = "755" if executable else "644"
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        self.check("sh", "-c", script, "sh", path, mode, input=text)

    def read(self, path: str) -> str:
        """The text of a file in the guest."""
        return self.check("cat", path)


def build_dir() -> Path:
    """The build folder, which has the same path in the guest."""
    return Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build").resolve()
