# SPDX-License-Identifier: Apache-2.0
"""harp capture: the frames of a process's flows, and no others."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from scapy.all import IP, TCP, rdpcap

from harp.capture import Target, _attach
from harp.testing.lab import Host, Lab

# Publishes a flow, and later a second one, as a process would whose flows come and go.
PUBLISHER = """
import socket, struct, sys
from harp.testing import _engine
def ip(text): return struct.unpack("=I", socket.inet_aton(text))[0]
file = _engine.StatFile(device=sys.argv[1].encode(), address=sys.argv[2].encode())
print("ready", flush=True)
for number, line in enumerate(sys.stdin):
    file.flow(number, state=1, local_address=ip(sys.argv[2].split("/")[0]), local_port=int(line))
    print("published", flush=True)
"""

SERVER = """
import socket, sys
for port in sys.argv[1:]:
    listener = socket.create_server(("", int(port)))
    globals()[f"l{port}"] = listener
print("ready", flush=True)
sys.stdin.read()
"""


class Publisher:
    def __init__(self, host: Host, device: str, address: str) -> None:
        self.process = host.popen([sys.executable, "-c", PUBLISHER, device, address],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._expect("ready")

    def _expect(self, word: str) -> None:
        assert self.process.stdout and self.process.stdout.readline().strip() == word

    def flow(self, port: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{port}\n")
        self.process.stdin.flush()
        self._expect("published")

    def close(self) -> None:
        self.process.communicate()


def start_capture(host: Host, path: Path) -> subprocess.Popen[str]:
    process = host.popen([sys.executable, "-m", "harp", "capture", "-w", path, "--seconds", "7"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for _ in range(200):  # its packet socket shows that it listens
        if "\n" in host.read("/proc/net/packet").strip():
            return process
    raise AssertionError("it does not listen")


def connect(client: Host, address: str, *ports: int) -> None:
    code = "import socket, sys\nfor p in sys.argv[2:]:\n" \
           " s = socket.create_connection((sys.argv[1], int(p)), 5); s.sendall(b'x' * 5000)\n"
    client.run([sys.executable, "-c", code, address, *map(str, ports)])


def test_the_kernels_address_only_the_flows_ports(lab: Lab, folders: Path) -> None:
    server, client = lab.hosts
    sockets = server.popen([sys.executable, "-c", SERVER, "5001", "5002", "5003"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert sockets.stdout and sockets.stdout.readline()
    publisher = Publisher(server, "packet:eth0", f"{server.address}/24")
    publisher.flow(5001)
    path = folders / "out.pcapng"
    process = start_capture(server, path)
    connect(client, server.address, 5001, 5002)
    publisher.flow(5003)
    subprocess.run(["sleep", "3"])  # flows are looked up once a second
    connect(client, server.address, 5003, 5002)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    frames = rdpcap(str(path))
    assert f"{path}: {len(frames)} frames, 0 lost" in output
    ports = {packet[TCP].sport for packet in frames} | {packet[TCP].dport for packet in frames}
    assert {5001, 5003} <= ports and 5002 not in ports
    assert {packet[IP].src for packet in frames} == {server.address, client.address}
    payload = sum(len(packet[TCP].payload) for packet in frames if packet[TCP].dport == 5001)
    assert payload >= 5000
    publisher.close()
    sockets.communicate()


def test_an_own_address_everything_of_it(lab: Lab, folders: Path) -> None:
    server, client = lab.hosts
    publisher = Publisher(server, "fault:drop=0|packet:eth0", f"{server.own_address}/24")
    path = folders / "out.pcapng"
    process = start_capture(server, path)
    code = ("import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "s.sendto(b'x', (sys.argv[1], 9))\ns.sendto(b'x', (sys.argv[2], 9))\n")
    client.run(["ip", "neigh", "replace", server.own_address, "lladdr", server.mac, "dev", "eth0"])
    client.run([sys.executable, "-c", code, server.own_address, server.address])
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    destinations = {packet[IP].dst for packet in rdpcap(str(path)) if IP in packet}
    assert destinations == {server.own_address}
    publisher.close()


def test_refusals(lab: Lab, folders: Path) -> None:
    host = lab.hosts[0]

    def refused(*words: str, code: int = 1) -> str:
        done = host.run([sys.executable, "-m", "harp", "capture", "-w",
                         str(folders / "out.pcapng"), *words], check=False)
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
        return done.stderr

    assert "no process with HARP publishes" in refused()
    wire = Publisher(host, "wire:/x", "10.0.0.1/24")
    assert "its frames pass no packet socket" in refused()
    gone = Publisher(host, "packet:eth9", "10.0.0.1/24")
    text = refused(code=2)
    assert f"--pid {wire.process.pid}" in text and f"--pid {gone.process.pid}" in text
    assert "No such device" in refused("--pid", str(gone.process.pid))
    wire.close()
    gone.close()


def test_the_filter_takes_a_hundred_ports() -> None:
    wanted = Target("lo", "127.0.0.1", frozenset(range(1000, 1100)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _attach(any_socket, wanted)  # the kernel checks the program
