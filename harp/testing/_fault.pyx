# SPDX-License-Identifier: Apache-2.0
"""Python binding of the fault port's lanes (dpdk_glue/fault), for wires in virtual time."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport strlen

import collections


cdef extern from *:
    ctypedef bint cbool "_Bool"


cdef extern from "harp/frame.h":
    struct harp_rx_frame:
        const uint8_t *header
        uint32_t header_length
        const uint8_t *payload
        uint32_t payload_length
        uint16_t segment_size
        uint8_t checksum_good


cdef extern from "dpdk_glue/port.h":
    enum:
        HARP_PORT_ERROR_SIZE


cdef extern from "harp/headers.h":
    enum:
        ETH_HEADER


cdef extern from "dpdk_glue/fault/fault_spec.h":
    struct fault_spec:
        uint64_t seed

    void harp_fault_spec_default(fault_spec *spec)
    int harp_fault_spec_parse(fault_spec *spec, const char *text, size_t length, cbool running,
                              char *error)


cdef extern from "dpdk_glue/fault/fault_lane.h":
    struct fault_frame:
        uint8_t *bytes

    struct fault_lane:
        pass

    struct fault_verdict:
        cbool drop
        cbool corrupt
        cbool duplicate
        cbool late
        uint64_t corrupt_at

    void harp_fault_lane_init(fault_lane *lane, uint64_t seed, unsigned number)
    fault_verdict harp_fault_judge(fault_lane *lane, const fault_spec *spec, uint32_t length,
                                   uint64_t now_ns)
    fault_frame *harp_fault_copy_rx(const harp_rx_frame *frame)
    void harp_fault_corrupt(fault_frame *frame, uint64_t choice)


# choice: a random number of 64 bits.
Verdict = collections.namedtuple("Verdict", "drop duplicate corrupt late choice")


cdef class Lane:
    """Decides the faults of one frame after the other. faults: "drop=0.01,seed=7"."""

    cdef fault_lane lane
    cdef fault_spec spec

    def __init__(self, str faults):
        cdef char error[HARP_PORT_ERROR_SIZE]
        text = faults.encode()
        harp_fault_spec_default(&self.spec)
        if harp_fault_spec_parse(&self.spec, text, strlen(text), False, error) < 0:
            raise ValueError((<bytes>error).decode())
        harp_fault_lane_init(&self.lane, self.spec.seed, 0)

    def judge(self, bytes frame):
        """The faults of the next frame."""
        cdef fault_verdict verdict = harp_fault_judge(&self.lane, &self.spec, <uint32_t>len(frame),
                                                      0)
        return Verdict(verdict.drop, verdict.duplicate, verdict.corrupt, verdict.late,
                       verdict.corrupt_at)


def corrupted(bytes frame, choice):
    """The frame with one bit flipped; choice: a random number that selects it."""
    cdef uint8_t header[ETH_HEADER]  # never flipped
    cdef harp_rx_frame whole
    whole.header = header
    whole.header_length = ETH_HEADER
    whole.payload = <const uint8_t *><const char *>frame
    whole.payload_length = <uint32_t>len(frame)
    whole.segment_size = 0
    whole.checksum_good = 0
    cdef fault_frame *copy = harp_fault_copy_rx(&whole)
    if copy == NULL:
        raise MemoryError
    harp_fault_corrupt(copy, choice)
    try:
        return PyBytes_FromStringAndSize(<char *>copy.bytes + ETH_HEADER, len(frame))
    finally:
        free(copy)
