# SPDX-License-Identifier: Apache-2.0
"""harp capture records the frames of a process's flows, and no others."""

from __future__ import annotations

import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import pytest
from scapy.all import IP, TCP, rdpcap

from harp.cli.capture import Capture, Narrowed
from harp.observe import pcap_filter
from harp.observe.capture_files import CaptureFiles
from harp.observe.capture_filter import Target, program
from harp.observe.packet_ring import Frame, attach
from tools.hosts.lab import Host, Lab

# Publishes flows like a process that opens and closes flows. A line has a local port, and
# optionally link, flow, peer and the peer's port.
PUBLISHER = """
import socket, struct, sys
from harp.testing import _engine
def ip(text): return struct.unpack("=I", socket.inet_aton(text))[0]
file = _engine.StatFile(device=sys.argv[1].encode(), address=sys.argv[2].encode())
print("ready", flush=True)
for number, line in enumerate(sys.stdin):
    port, link, flow, peer, peer_port = [*line.split(), "0", "0", "0.0.0.0", "0"][:5]
    file.flow(number, state=1, local_address=ip(sys.argv[2].split("/")[0]), local_port=int(port),
              link=int(link), flow=int(flow), peer_address=ip(peer), peer_port=int(peer_port))
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


# Receives on port 5001, one connection after the other.
SINK = """
import socket
listener = socket.create_server(("", 5001))
print("ready", flush=True)
memory = bytearray(1 << 20)
while True:
    connection, _ = listener.accept()
    while connection.recv_into(memory):
        pass
"""


class Publisher:
    def __init__(self, host: Host, device: str, address: str) -> None:
        self.process = host.popen(
            [sys.executable, "-c", PUBLISHER, device, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._expect("ready")

    def _expect(self, word: str) -> None:
        assert self.process.stdout and self.process.stdout.readline().strip() == word

    def flow(self, port: int, *more: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, [port, *more])) + "\n")
        self.process.stdin.flush()
        self._expect("published")

    def close(self) -> None:
        self.process.communicate()


def start_capture(
    host: Host, path: Path, *args: str, stdout: Optional[Any] = None, prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """stdout: of the capture, apart from its errors [both together]. prefix: of its command."""
    command = [sys.executable, "-m", "harp", "capture", "-w", path]
    process = host.popen(
        [*prefix, *command, *(args or ["--seconds", "7"])],
        stdout=stdout or subprocess.PIPE,
        stderr=subprocess.PIPE if stdout else subprocess.STDOUT,
    )
    for _ in range(400):  # its packet socket in /proc is bound and running once it captures
        sockets = [line.split() for line in host.read("/proc/net/packet").splitlines()[1:]]
        if any(columns[4] != "0" and columns[5] == "1" for columns in sockets):
            return process
        if process.poll() is not None:
            raise AssertionError(process.communicate()[0])
    raise AssertionError("it does not listen")


def end(process: subprocess.Popen[str], number: int = signal.SIGINT) -> str:
    """Ends it by Ctrl-C. Returns its output."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "Aborted" not in output, output
    return output


def lengths(path: Path) -> list[tuple[int, int]]:
    """For each frame: the bytes kept, and its length."""
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind == 6:  # an enhanced packet block
            found.append(struct.unpack_from("<II", data, at + 20))
        at += size
    return found


def connect(client: Host, address: str, *ports: int) -> None:
    code = (
        "import socket, sys\nfor p in sys.argv[2:]:\n"
        " s = socket.create_connection((sys.argv[1], int(p)), 5); s.sendall(b'x' * 5000)\n"
    )
    client.run([sys.executable, "-c", code, address, *map(str, ports)])


@pytest.mark.slow
def test_capture_of_kernel_address_takes_only_flow_ports(lab: Lab, folders: Path) -> None:
    server, client = lab.hosts
    sockets = server.popen(
        [sys.executable, "-c", SERVER, "5001", "5002", "5003"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert sockets.stdout and sockets.stdout.readline()
    publisher = Publisher(server, "packet:eth0", f"{server.address}/24")
    publisher.flow(5001)
    path = folders / "out.pcapng"
    process = start_capture(server, path)
    connect(client, server.address, 5001, 5002)
    publisher.flow(5003)
    subprocess.run(["sleep", "3"])  # capture reads the flows once a second
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


@pytest.mark.slow
def test_capture_of_own_address_takes_all_its_frames(lab: Lab, folders: Path) -> None:
    server, client = lab.hosts
    publisher = Publisher(server, "fault:drop=0|packet:eth0", f"{server.own_address}/24")
    path = folders / "out.pcapng"
    process = start_capture(server, path)
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.sendto(b'x', (sys.argv[1], 9))\ns.sendto(b'x', (sys.argv[2], 9))\n"
    )
    client.run(["ip", "neigh", "replace", server.own_address, "lladdr", server.mac, "dev", "eth0"])
    client.run([sys.executable, "-c", code, server.own_address, server.address])
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    destinations = {packet[IP].dst for packet in rdpcap(str(path)) if IP in packet}
    assert destinations == {server.own_address}
    publisher.close()


def test_invalid_requests_are_refused(lab: Lab, folders: Path) -> None:
    host = lab.hosts[0]

    def refused(*args: str, code: int = 1) -> str:
        done = host.run(
            [sys.executable, "-m", "harp", "capture", "-w", str(folders / "out.pcapng"), *args],
            check=False,
        )
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
        return done.stderr

    assert "no process with HARP runs here" in refused()
    wire = Publisher(host, "wire:/x", "10.0.0.1/24")
    assert f"No such file or directory; pid {wire.process.pid} has just ended" in refused()
    gone = Publisher(host, "packet:eth9", "10.0.0.1/24")
    text = refused(code=2)
    assert "--id " in text
    assert f"--pid {wire.process.pid} " in text and f"--pid {gone.process.pid} " in text
    assert "No such device" in refused("--pid", str(gone.process.pid))
    wire.close()
    gone.close()


def test_filter_holds_all_ports_of_statistics_file() -> None:
    wanted = Target("lo", "127.0.0.1", frozenset(range(1000, 1511)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        attach(any_socket, program(wanted, 65535))  # the kernel checks the program


@pytest.fixture
def served(lab: Lab, folders: Path) -> Iterator[Publisher]:
    """The first host has sockets on ports 5001 to 5003. Its statistics file lists them as flows 0
    and 1 of link 4, and as link 5."""
    server = lab.hosts[0]
    sockets = server.popen(
        [sys.executable, "-c", SERVER, "5001", "5002", "5003"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert sockets.stdout and sockets.stdout.readline()
    publisher = Publisher(server, "packet:eth0", f"{server.address}/24")
    for port, link, flow in ((5001, 4, 0), (5002, 4, 1), (5003, 5, 0)):
        publisher.flow(port, link, flow, lab.hosts[1].address, port + 1000)
    yield publisher
    publisher.close()
    sockets.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_capture_with_summary(
    lab: Lab, folders: Path, served: Publisher, number: int
) -> None:
    server, client = lab.hosts
    path = folders / "out.pcapng"
    process = start_capture(server, path, "-c", "100000")
    connect(client, server.address, 5001)
    output = end(process, number)
    assert f"{path}: {len(rdpcap(str(path)))} frames, 0 lost" in output
    assert sum(length for _, length in lengths(path)) > 5000


# Sends no frame of HARP's.
UNRELATED = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"x", (sys.argv[1], 5002))
"""

# Sends from a source port that is 1000 above the destination port.
FROM_A_PORT = """
import socket, sys
for port in map(int, sys.argv[2:]):
    s = socket.create_connection((sys.argv[1], port), 5, ("", port + 1000)); s.sendall(b"x" * 5000)
    s.shutdown(socket.SHUT_WR)
"""


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "args, ports, sources",
    [
        (["--port", "5002"], {5002}, None),
        (["--port", "6002", "--port", "5003"], {5002, 5003}, None),
        (["--flow", "4"], {5001, 5002}, None),
        (["--flow", "4.1"], {5002}, None),
        (["--flow", "4.1", "--flow", "5"], {5002, 5003}, None),
        (["--flow", "4", "--port", "5002"], {5002}, None),
        (["--direction", "in"], {5001, 5002, 5003}, 1),
        (["--direction", "out", "--flow", "5.0"], {5003}, 0),
        (["--host", "HOST"], {5001, 5002, 5003}, None),
        (["--host", "203.0.113.9"], set(), None),
        (["--host", "203.0.113.9", "--host", "HOST", "--port", "5001"], {5001}, None),
    ],
)
def test_filters_select_frames(
    lab: Lab,
    folders: Path,
    served: Publisher,
    args: list[str],
    ports: set[int],
    sources: Optional[int],
) -> None:
    """`sources`: the only host that sends the captured frames; None: both."""
    server, client = lab.hosts
    path = folders / "out.pcapng"
    process = start_capture(
        server, path, *(client.address if word == "HOST" else word for word in args)
    )
    client.run([sys.executable, "-c", FROM_A_PORT, server.address, "5001", "5002", "5003"])
    end(process)
    frames = rdpcap(str(path))
    assert {min(frame[TCP].sport, frame[TCP].dport) for frame in frames} == ports
    both = {host.address for host in lab.hosts} if ports else set()
    assert {frame[IP].src for frame in frames} == (
        both if sources is None else {lab.hosts[sources].address}
    )


def has_libpcap() -> bool:
    try:
        return bool(pcap_filter.compiled("tcp"))
    except LookupError:
        return False


needs_libpcap = pytest.mark.skipif(not has_libpcap(), reason="libpcap is not installed")


@needs_libpcap
@pytest.mark.parametrize(
    "expression, ports",
    [
        ("port 5002 or port 6003", {5002, 5003}),
        ("host 203.0.113.9", set()),
        ("tcp[tcpflags] & tcp-syn != 0 and dst port 5001", {5001}),
    ],
)
def test_expression_selects_frames(
    lab: Lab, folders: Path, served: Publisher, expression: str, ports: set[int]
) -> None:
    """Together with an option. Frames of other programs are left out as ever."""
    server, client = lab.hosts
    path = folders / "out.pcapng"
    process = start_capture(server, path, "--direction", "in", *expression.split())
    client.run([sys.executable, "-c", FROM_A_PORT, server.address, "5001", "5002", "5003"])
    client.run([sys.executable, "-c", UNRELATED, server.address])
    end(process)
    frames = rdpcap(str(path))
    assert {min(frame[TCP].sport, frame[TCP].dport) for frame in frames} == ports
    assert {frame[IP].src for frame in frames} <= {client.address}
    if "tcp-syn" in expression:
        assert [frame[TCP].flags for frame in frames] == ["S"]


def test_missing_libpcap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcap_filter, "_NAMES", ("libpcap.so.none",))
    with pytest.raises(LookupError, match="install libpcap0.8"):
        pcap_filter.compiled("tcp")


def test_failed_write_is_one_line(lab: Lab, folders: Path, served: Publisher) -> None:
    """Of the head, and of frames behind it: 512 bytes hold the head and few frames."""
    server, client = lab.hosts
    full = server.run([sys.executable, "-m", "harp", "capture", "-w", "/dev/full"], check=False)
    assert full.returncode == 1
    assert full.stderr == "Error: /dev/full: [Errno 28] No space left on device\n"
    path = folders / "out.pcapng"
    limited = ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh"]
    process = start_capture(server, path, "-c", "100000", prefix=limited)
    connect(client, server.address, 5001)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said == f"Error: {path}: [Errno 27] File too large\n"


def test_standard_output_is_a_stream_of_packets(lab: Lab, folders: Path, served: Publisher) -> None:
    """The summary is on standard error. A reader that ends also ends the capture, without an
    error."""
    server, client = lab.hosts
    path = folders / "out.pcapng"
    with open(path, "wb") as out:
        process = start_capture(server, Path("-"), "-c", "100000", stdout=out)
        connect(client, server.address, 5001)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert f"-: {len(rdpcap(str(path)))} frames, 0 lost" in said
    process = start_capture(server, Path("-"), "-c", "100000", stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    connect(client, server.address, 5001)
    assert process.stderr
    said = process.stderr.read()
    assert process.wait(timeout=30) == 0 and "Traceback" not in said, said


@needs_libpcap
def test_wrong_expression_exits_2(harp: Any) -> None:
    said = harp("capture", "-w", "x", "port", "5001", "nonsense", code=2).stderr
    assert "'port 5001 nonsense': " in said and "syntax error" in said


def test_wrong_usage_exits_2(harp: Any, folders: Path) -> None:
    for args in (
        ["--flow", "1.2.3"],
        ["--host", "nobody"],
        ["--files", "3"],
        ["--port", "0"],
        ["--direction", "up"],
    ):
        assert "Usage" in harp("capture", "-w", str(folders / "x"), *args, code=2).stderr
    said = harp("capture", "-w", "-", "--file-size", "1", code=2).stderr
    assert "standard output has no end" in said


def test_unknown_flow_is_refused(lab: Lab, folders: Path, served: Publisher) -> None:
    done = lab.hosts[0].run(
        [sys.executable, "-m", "harp", "capture", "-w", str(folders / "x.pcapng"), "--flow", "9"],
        check=False,
    )
    assert done.returncode == 1 and "no such flow" in done.stderr


def test_snaplen_truncates_frames(lab: Lab, folders: Path, served: Publisher) -> None:
    server, client = lab.hosts
    path = folders / "out.pcapng"
    process = start_capture(server, path, "--snaplen", "100")
    connect(client, server.address, 5001)
    assert "0 lost" in end(process)
    found = lengths(path)
    assert max(kept for kept, _ in found) == 100 and sum(length for _, length in found) > 5000
    assert rdpcap(str(path))[-1][IP].dst  # other programs can read the file


def test_file_ring_keeps_newest_frames(lab: Lab, folders: Path, served: Publisher) -> None:
    server, client = lab.hosts
    path = folders / "out.pcapng"
    process = start_capture(
        server, path, "--file-size", "0.02", "--files", "3", "--snaplen", "1000"
    )
    connect(client, server.address, *[5001] * 60)
    output = end(process)
    names = sorted(file.name for file in folders.glob("out*"))
    assert names == ["out-0.pcapng", "out-1.pcapng", "out-2.pcapng"]
    total = int(re.search(r" ([0-9]+) frames", output)[1])  # type: ignore[index]
    assert all((folders / name).stat().st_size <= 20_000 for name in names)
    kept = sum(len(rdpcap(str(folders / name))) for name in names)
    assert 0 < kept < total
    first, last = re.search(r"(out-[0-9].pcapng) to (out-[0-9].pcapng)", output).groups()
    times = [rdpcap(str(folders / name))[0].time for name in (first, last)]
    assert times[0] < times[1]


MANY = """
import socket, sys
s = socket.create_connection((sys.argv[1], 5001), 5)
for _ in range(200): s.sendall(bytes(1 << 20))
"""


def test_stopped_reader_loses_no_frame_or_reports_loss(lab: Lab, folders: Path) -> None:
    """200 MB of large frames arrive while capture is stopped. Without room, it reports the loss."""
    server, client = lab.hosts
    sink = server.popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE)
    assert sink.stdout and sink.stdout.readline()
    publisher = Publisher(server, "packet:eth0", f"{server.address}/24")
    publisher.flow(5001)
    path = folders / "out.pcapng"
    for args in (["--snaplen", "200"], ["--buffer", "2"]):
        process = start_capture(server, path, *args, "--direction", "in")
        process.send_signal(signal.SIGSTOP)
        client.run([sys.executable, "-c", MANY, server.address])
        process.send_signal(signal.SIGCONT)
        output = end(process)
        taken, lost = map(
            int,
            re.search(
                r" ([0-9]+) frames, ([0-9]+) lost",  # type: ignore
                output,
            ).groups(),
        )
        seen = sum(length for _, length in lengths(path))
        assert taken == len(lengths(path))
        assert (seen >= 200 << 20) == (lost == 0) == (args[0] == "--snaplen"), output
        assert ("or a larger --buffer" in output) == (lost > 0)
    publisher.close()
    sink.kill()
    sink.communicate(timeout=20)


class Ring:
    """A fake ring of 16 blocks, `waiting` of them ready. A block has a frame of 10,000 bytes,
    truncated by the filter."""

    size = 16

    def __init__(self, waiting: list[int]) -> None:
        self.waiting = waiting
        self.kept = [10_000]

    def blocks(self, timeout: float) -> Iterator[list[Frame]]:
        data = memoryview(bytes(min(self.kept[-1], 10_000)))
        yield [Frame(0, True, 10_000, data)] if self.kept[-1] else []
        if len(self.waiting) > 1:
            del self.waiting[0]

    def holds(self, blocks: int) -> bool:
        return self.waiting[0] >= blocks

    def filter(self, code: list[tuple[int, int, int, int]]) -> None:
        self.kept.append(code[-1][3])


def test_full_ring_truncates_frames_to_headers(tmp_path: Path) -> None:
    wanted = Target("eth0", "10.0.0.1", None)
    process: Any = None  # only a capture that lasts for a second looks at it
    one = Capture(process, Narrowed(), wanted, 262144, 1 << 20, 8, 0.0)
    ring = Ring([1, 3, 4, 9, 1, 0, 0, 0])
    with CaptureFiles(tmp_path / "x.pcapng", "", 262144, 0, 0) as files:
        one._record(ring, files)  # type: ignore[arg-type]
    assert ring.kept == [10_000, 256, 262144, 0]  # the last filter rejects all frames
    kept = [kept for kept, length in lengths(tmp_path / "x.pcapng")]
    assert (one.taken, kept.count(256), one.cut) == (8, 2, 2)


def test_head_is_written_before_the_first_frame(tmp_path: Path) -> None:
    """A program behind a pipe then sees that the capture has begun."""
    path = tmp_path / "x.pcapng"
    with CaptureFiles(path, "", 262144, 0, 0):
        assert path.stat().st_size > 0


@pytest.mark.slow
def test_most_frames_are_captured_at_full_rate(lab: Lab, folders: Path) -> None:
    server, client = lab.hosts
    sink = server.popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE)
    assert sink.stdout and sink.stdout.readline()
    publisher = Publisher(server, "packet:eth0", f"{server.address}/24")
    publisher.flow(5001)
    path = folders / "out.pcapng"
    for _ in range(3):  # a busy machine may have no core for the capture
        process = start_capture(server, path)
        for _ in range(4):
            client.run([sys.executable, "-c", MANY, server.address])
        output = end(process)
        found = re.search(r" ([0-9]+) frames, ([0-9]+) lost", output)
        assert found, output
        taken, lost = map(int, found.groups())
        if taken > 9 * lost:
            break
        path.unlink()
    assert taken > 9 * lost, output
    assert lost or sum(length for _, length in lengths(path)) > 800 << 20
    publisher.close()
    sink.kill()
    sink.communicate(timeout=20)
