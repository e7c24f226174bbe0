# SPDX-License-Identifier: Apache-2.0
"""The XDP program: every frame that is not HARP's reaches the kernel."""

from __future__ import annotations

import os
import random
import socket
import subprocess

import pytest
from elftools.elf.elffile import ELFFile
from port_probe import PROBE, Frame, arp_request, icmp_unreachable

OBJECT = PROBE.parent / "xdp_program.o"
MAC, ADDRESS = "02:77:00:00:00:02", "10.77.0.2"
FIRST, LAST = 50000, 50099
FRAMES = 3000
CALL, LOOKUP, REDIRECT = 0x85, 1, 51  # an opcode (RFC 9669), and numbers of kernel functions

pytestmark = pytest.mark.skipif(
    PROBE.exists() and not OBJECT.exists(), reason="this build has no XDP (no clang)"
)


def is_ours(frame: bytes) -> bool:
    """What the program must decide, by the words of its comment."""
    return (
        len(frame) >= 54
        and frame[:6] == bytes.fromhex(MAC.replace(":", ""))
        and frame[12:15] == b"\x08\x00\x45"
        and frame[23] == 6
        and int.from_bytes(frame[20:22], "big") & 0x3FFF == 0
        and frame[30:34] == socket.inet_aton(ADDRESS)
        and FIRST <= int.from_bytes(frame[36:38], "big") <= LAST
    )


def judged(frames: list[bytes]) -> list[str]:
    if os.geteuid() != 0:
        pytest.skip("programs need root")
    done = subprocess.run(
        [PROBE.parent / "xdp_check", MAC, ADDRESS, f"{FIRST}-{LAST}"],
        input="".join(frame.hex() + "\n" for frame in frames),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def segment(dport: int = FIRST, **changes: object) -> bytes:
    return bytes(Frame("10.77.0.1", ADDRESS, 40000, dport, b"x" * 20, dst_mac=MAC, **changes))  # type: ignore[arg-type]


def changed(whole: bytes, chance: random.Random) -> bytes:
    """A segment for HARP with one to three changes in its headers, or cut short."""
    frame = bytearray(whole)
    for _ in range(chance.randint(1, 3)):
        way = chance.randrange(4)
        if way == 0:
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        elif way == 1 and len(frame) > 38:
            frame[36:38] = chance.randint(FIRST - 50, LAST + 50).to_bytes(2, "big")
        elif way == 2:
            frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
        else:
            del frame[chance.randint(14, len(frame)) :]
    return bytes(frame)


def test_random_frames_are_judged_as_documented() -> None:
    chance = random.Random(7)
    frames = [changed(segment(chance.randint(FIRST, LAST)), chance) for _ in range(FRAMES)]
    expected = ["ours" if is_ours(frame) else "kernel" for frame in frames]
    said = judged(frames)
    wrong = [(f.hex(), e, s) for f, e, s in zip(frames, expected, said) if e != s]
    assert not wrong and len(said) == FRAMES
    assert 300 < expected.count("ours") < FRAMES - 300


def test_frames_of_the_kernel_pass() -> None:
    """ARP, ICMP, IPv6, VLANs, fragments, other addresses and other ports are the kernel's."""
    quoted = Frame(ADDRESS, "10.77.0.1", FIRST, 40000)
    tagged = segment()
    options = bytearray(segment())
    options[14] = 0x46
    frames = [
        arp_request("02:77:00:00:00:01", "10.77.0.1", ADDRESS),
        icmp_unreachable("10.77.0.1", ADDRESS, "02:77:00:00:00:01", MAC, quoted),
        segment()[:12] + b"\x86\xdd" + segment()[14:],
        tagged[:12] + b"\x81\x00\x00\x05" + tagged[12:],
        segment(fragment=0x2000),
        segment(fragment=100),
        segment(LAST + 1),
        segment(FIRST - 1),
        bytes(Frame("10.77.0.1", "10.77.0.3", 40000, FIRST, dst_mac=MAC)),
        bytes(Frame("10.77.0.1", ADDRESS, 40000, FIRST, dst_mac="ff:ff:ff:ff:ff:ff")),
        bytes(options),
        segment()[:53],
    ]
    assert judged(frames) == ["kernel"] * len(frames)
    assert judged([segment(), segment(LAST), segment(fragment=0x4000)]) == ["ours"] * 3


def test_program_calls_two_functions_and_has_no_loop() -> None:
    """It may look up maps and redirect. It has no other way to change the host."""
    with OBJECT.open("rb") as file:
        code = ELFFile(file).get_section_by_name("xdp").data()
    instructions = [code[at : at + 8] for at in range(0, len(code), 8)]
    calls = {
        (one[1] >> 4, int.from_bytes(one[4:], "little")) for one in instructions if one[0] == CALL
    }
    assert calls == {(0, LOOKUP), (0, REDIRECT)}
    jumps = [
        int.from_bytes(one[2:4], "little", signed=True)
        for one in instructions
        if one[0] & 7 in (5, 6) and one[0] not in (CALL, 0x95)
    ]
    assert jumps and min(jumps) >= 0, "no jump back"
    stores = [one for one in instructions if one[0] & 7 in (2, 3)]
    assert all(one[1] & 15 == 10 for one in stores), "it writes only to its own stack"
