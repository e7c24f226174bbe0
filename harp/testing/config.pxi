# SPDX-License-Identifier: Apache-2.0
# Shared by the bindings: the configuration of a stack from keywords, its counters, and errors.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "<sys/uio.h>":
    struct iovec:
        void *iov_base
        size_t iov_len


cdef extern from "harp/stack.h":
    struct harp_stack:
        pass

    struct harp_stack_config:
        size_t size
        int link
        uint8_t mac[6]
        uint32_t address
        uint8_t prefix
        uint32_t gateway
        uint16_t mtu
        uint64_t seed[2]
        uint32_t max_connections
        uint32_t packets
        uint32_t initial_window
        uint32_t rto_initial_us
        uint32_t rto_min_us
        uint32_t rto_max_us
        uint32_t delayed_ack_us
        int timestamps
        int sack
        int window_scale
        uint32_t sndbuf
        uint32_t rcvbuf
        const char *cc

    void harp_stack_config_default(harp_stack_config *config)


cdef extern from "harp/counters.h":
    struct harp_counter_info:
        const char *name
    harp_counter_info harp_counters "harp_counter_info"[1]
    enum:
        HARP_COUNTERS


cdef extern from "harp/stack/flow.h":
    uint64_t *harp_stack_counters(harp_stack *stack)


cdef dict _counters(harp_stack *stack):
    """The counters of a stack that are not zero, by name."""
    cdef uint64_t *values = harp_stack_counters(stack)
    return {harp_counters[i].name.decode(): values[i] for i in range(HARP_COUNTERS) if values[i]}


cdef uint32_t _address(text) except? 0:
    """A dotted quad in network order. Raises OSError for another text."""
    cdef bytes raw = _socket.inet_aton(text)
    cdef const char *data = raw
    cdef uint32_t value
    memcpy(&value, data, 4)
    return value


cdef _check(str call, ssize_t result):
    if result < 0:
        raise OSError(-result, f"{call}: {os.strerror(-result)}")
    return result


cdef int _fill(harp_stack_config *config, dict fields) except -1:
    cdef bytes raw
    cdef const char *data
    for name, value in fields.items():
        if name == "link":
            config.link = value
        elif name == "mac":
            raw = bytes.fromhex(value.replace(":", ""))
            if len(raw) != 6:
                raise ValueError(f"mac {value!r}: six bytes in hex are needed, aa:bb:cc:dd:ee:ff")
            data = raw
            memcpy(config.mac, data, 6)
        elif name == "address":
            config.address = _address(value)
        elif name == "prefix":
            config.prefix = value
        elif name == "gateway":
            config.gateway = _address(value)
        elif name == "mtu":
            config.mtu = value
        elif name == "seed":
            config.seed[0], config.seed[1] = value
        elif name == "max_connections":
            config.max_connections = value
        elif name == "packets":
            config.packets = value
        elif name == "initial_window":
            config.initial_window = value
        elif name == "rto_initial_us":
            config.rto_initial_us = value
        elif name == "rto_min_us":
            config.rto_min_us = value
        elif name == "rto_max_us":
            config.rto_max_us = value
        elif name == "delayed_ack_us":
            config.delayed_ack_us = value
        elif name == "timestamps":
            config.timestamps = value
        elif name == "sack":
            config.sack = value
        elif name == "window_scale":
            config.window_scale = value
        elif name == "sndbuf":
            config.sndbuf = value
        elif name == "rcvbuf":
            config.rcvbuf = value
        else:
            raise TypeError(f"{name!r} is no field of struct harp_stack_config")
    return 0
