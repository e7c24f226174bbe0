# SPDX-License-Identifier: Apache-2.0
"""Reads Linux's struct tcp_info, as many fields as a stack filled."""

from __future__ import annotations

import struct

# Name and format of each field in the kernel's order. unpack_tcp_info splits the two bytes of
# bit-fields after `options`.
_BYTES = ("state", "ca_state", "retransmits", "probes", "backoff", "options")
_FIELDS = tuple(
    (name, "I")
    for name in (
        "rto ato snd_mss rcv_mss unacked sacked lost retrans fackets last_data_sent "
        "last_ack_sent last_data_recv last_ack_recv pmtu rcv_ssthresh rtt rttvar snd_ssthresh "
        "snd_cwnd advmss reordering rcv_rtt rcv_space total_retrans"
    ).split()
) + (
    ("pacing_rate", "Q"),
    ("max_pacing_rate", "Q"),
    ("bytes_acked", "Q"),
    ("bytes_received", "Q"),
    ("segs_out", "I"),
    ("segs_in", "I"),
    ("notsent_bytes", "I"),
    ("min_rtt", "I"),
    ("data_segs_in", "I"),
    ("data_segs_out", "I"),
    ("delivery_rate", "Q"),
    ("busy_time", "Q"),
    ("rwnd_limited", "Q"),
    ("sndbuf_limited", "Q"),
    ("delivered", "I"),
    ("delivered_ce", "I"),
    ("bytes_sent", "Q"),
    ("bytes_retrans", "Q"),
    ("dsack_dups", "I"),
    ("reord_seen", "I"),
    ("rcv_ooopack", "I"),
    ("snd_wnd", "I"),
    ("rcv_wnd", "I"),
    ("rehash", "I"),
    ("total_rto", "H"),
    ("total_rto_recoveries", "H"),
    ("total_rto_time", "I"),
)

# The names of tcpi_state, by the kernel's numbers.
STATES = (
    "NONE ESTABLISHED SYN_SENT SYN_RECV FIN_WAIT1 FIN_WAIT2 TIME_WAIT CLOSE CLOSE_WAIT "
    "LAST_ACK LISTEN CLOSING"
).split()


def unpack_tcp_info(data: bytes) -> dict[str, int]:
    """The fields present in `data`, by name without `tcpi_`, in the kernel's units.

    Times are microseconds (rto, ato, rtt, rttvar, rcv_rtt, min_rtt) or
    milliseconds (last_*). Fields beyond the end of `data` are left out.
    """
    info: dict[str, int] = {}
    if len(data) < 8:
        return info
    info.update(zip(_BYTES, data))
    info["snd_wscale"] = data[6] & 0xF
    info["rcv_wscale"] = data[6] >> 4
    info["delivery_rate_app_limited"] = data[7] & 1
    offset = 8
    for name, form in _FIELDS:
        size = struct.calcsize(form)
        if offset + size > len(data):
            break
        (info[name],) = struct.unpack_from("=" + form, data, offset)
        offset += size
    return info


def state_name(info: dict[str, int]) -> str:
    """tcpi_state as a word, e.g. "ESTABLISHED"."""
    return STATES[info["state"]]
