# SPDX-License-Identifier: Apache-2.0
"""Python binding of the engine's statistics file, trace and log, for tests without a process that
uses HARP."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset


cdef extern from "harp/engine/statfile.h" nogil:
    struct harp_stat_identity:
        unsigned instances
        const char *device
        const char *address
        const char *config
        const char *about
        int rank
        const char *gpu
        int world_size
        const char *job

    struct harp_stat_flow:
        uint32_t generation
        uint32_t state
        uint32_t link
        uint16_t flow
        uint8_t instance
        uint8_t direction
        uint32_t local_address
        uint32_t peer_address
        uint16_t local_port
        uint16_t peer_port
        uint32_t mss
        uint32_t cwnd
        uint32_t srtt_us
        uint32_t rto_us
        uint32_t retransmits
        uint64_t bytes_in
        uint64_t bytes_out
        uint32_t min_rtt_us
        uint64_t opened_ns
        uint32_t ack_wait_ms
        uint32_t device_wait_ms
        uint32_t receive_wait_ms
        uint32_t window_wait_ms
        uint64_t message_time_ns
        uint32_t message_times[24]

    struct harp_statfile:
        int fd
        char path[512]

    int harp_statfile_open(harp_statfile *file, const harp_stat_identity *identity)
    void harp_statfile_close(harp_statfile *file)
    void harp_statfile_forget(harp_statfile *file)
    uint64_t *harp_statfile_counters(const harp_statfile *file, unsigned instance)
    harp_stat_flow *harp_statfile_flow(const harp_statfile *file, unsigned index)
    unsigned harp_stat_bucket(uint64_t ns)
    void harp_statfile_flow_write(harp_stat_flow *entry, const harp_stat_flow *values)


cdef extern from "harp/engine/rank_topology.h" nogil:
    struct harp_rank_topology:
        int rank
        int local_rank
        int local_size
        char gpu[16]
        int world_size
        char job[124]

    void harp_rank_topology_find(harp_rank_topology *place, const char *root)


cdef extern from "harp/engine/claim.h" nogil:
    enum:
        HARP_CLAIM_ERROR_SIZE

    struct harp_config:
        char path[4096]
        uint32_t instances

    struct harp_claim:
        unsigned device
        harp_config config

    struct harp_claims:
        unsigned count
        harp_claim *claims "of"

    int harp_claims_take_below(harp_claims *claims, const char *root, char *error)
    void harp_claims_release(harp_claims *claims)


cdef extern from "harp/engine/trace.h" nogil:
    struct harp_trace_t "harp_trace":
        uint64_t head

    int harp_trace_create(harp_trace_t *trace, size_t entries)
    void harp_trace_destroy(harp_trace_t *trace)
    void record "harp_trace"(harp_trace_t *trace, uint64_t now_ns, unsigned flow, int event,
                             uint32_t a, uint32_t b)
    struct harp_trace_copy:
        pass

    int harp_trace_take(harp_trace_copy **copy, const harp_trace_t *const *traces,
                        unsigned count, const char *device, const char *reason,
                        uint64_t now_ns)
    int harp_trace_write(const harp_trace_copy *copy, char *path)
    void harp_trace_copy_free(harp_trace_copy *copy)


cdef extern from "harp/engine/log.h":
    enum:
        HARP_LOG_WARN
        HARP_LOG_INFO
        HARP_LOG_QUEUE
        HARP_LOG_BURST

    void harp_log_post(int level, const char *format, ...)
    void harp_log_drain(void (*write)(int level, const char *line, void *user) noexcept,
                        void *user)
    uint64_t harp_log_dropped()
    void harp_log_forget()


cdef extern from "harp/engine/config.h" nogil:
    enum:
        HARP_CONFIG_ERROR_SIZE

    struct harp_config:
        pass

    int harp_config_parse(const char *text, size_t length, const char *name, harp_config *config,
                          char *error)


cdef extern from "harp/engine/poll_threads.h" nogil:
    struct harp_poll_threads:
        bint callers
        unsigned cpus
        unsigned wanted

    unsigned harp_instances_choose(const harp_config *config, unsigned nics, unsigned cpus,
                                   const char *root)
    void harp_poll_threads_choose(harp_poll_threads *threads, const harp_config *config,
                                  const char *root)


def place(bytes root):
    """(local rank or -1, local size or 0, PCI id of the GPU or ""). `root` replaces / in the path
    of the driver's folder."""
    cdef harp_rank_topology found
    harp_rank_topology_find(&found, root)
    return found.local_rank, found.local_size, (<bytes>found.gpu).decode()


def job_rank():
    """The process's rank in its job, -1 if the launcher does not set it."""
    cdef harp_rank_topology found
    harp_rank_topology_find(&found, b"")
    return found.rank


def job():
    """(name of the job or "", number of its ranks or 0)."""
    cdef harp_rank_topology found
    harp_rank_topology_find(&found, b"")
    return (<bytes>found.job).decode(), found.world_size


cdef class Claims:
    """What a process claims by this process's environment: the ztcp*.conf of its home NIC first,
    then those of the other NICs. `root` replaces / in the paths of /proc/driver and /sys. Raises
    RuntimeError with the message if HARP declines."""

    cdef harp_claims _claims

    def __cinit__(self, bytes root=b""):
        cdef char error[HARP_CLAIM_ERROR_SIZE]
        if harp_claims_take_below(&self._claims, root, error):
            raise RuntimeError((<bytes>error).decode())

    def files(self):
        """[(path, index of its device)], the home NIC's first."""
        return [
            ((<bytes>self._claims.claims[i].config.path).decode(), self._claims.claims[i].device)
            for i in range(self._claims.count)
        ]

    def release(self):
        harp_claims_release(&self._claims)

    def __dealloc__(self):
        harp_claims_release(&self._claims)


def claim_below(bytes root):
    """Claims the ztcp*.conf of the home NIC, releases it, and returns its path."""
    claims = Claims(root)
    path = claims.files()[0][0]
    claims.release()
    return path


QUEUE = HARP_LOG_QUEUE
BURST = HARP_LOG_BURST


cdef class StatFile:
    """A statistics file; close() or the end of the object closes and removes it."""

    cdef harp_statfile _file
    cdef bint _open

    def __cinit__(self, unsigned instances=1, bytes device=b"packet:eth0",
                  bytes address=b"10.0.0.1/24", bytes config=b"/etc/ztcp0.conf",
                  bytes about=b"test", int rank=-1, bytes gpu=b"", int world_size=0,
                  bytes job=b""):
        cdef harp_stat_identity identity
        identity.instances = instances
        identity.device = device
        identity.address = address
        identity.config = config
        identity.about = about
        identity.rank = rank
        identity.gpu = gpu
        identity.world_size = world_size
        identity.job = job
        cdef int rc = harp_statfile_open(&self._file, &identity)
        if rc:
            raise OSError(-rc, "harp_statfile_open")
        self._open = True

    @property
    def path(self):
        """The file's path; "" if the counters are in plain memory."""
        return (<bytes>self._file.path).decode()

    def set(self, unsigned instance, unsigned counter, uint64_t value):
        harp_statfile_counters(&self._file, instance)[counter] = value

    def flow(self, unsigned index, **fields):
        """Publishes a flow. Without fields, it frees the entry."""
        cdef harp_stat_flow values
        memset(&values, 0, sizeof(values))
        values.state = fields.get("state", 0)
        values.link = fields.get("link", 0)
        values.flow = fields.get("flow", 0)
        values.instance = fields.get("instance", 0)
        values.direction = ord(fields.get("direction", "\0"))
        values.local_address = fields.get("local_address", 0)
        values.peer_address = fields.get("peer_address", 0)
        values.local_port = fields.get("local_port", 0)
        values.peer_port = fields.get("peer_port", 0)
        values.mss = fields.get("mss", 0)
        values.cwnd = fields.get("cwnd", 0)
        values.srtt_us = fields.get("srtt_us", 0)
        values.rto_us = fields.get("rto_us", 0)
        values.retransmits = fields.get("retransmits", 0)
        values.bytes_in = fields.get("bytes_in", 0)
        values.bytes_out = fields.get("bytes_out", 0)
        values.min_rtt_us = fields.get("min_rtt_us", 0)
        values.opened_ns = fields.get("opened_ns", 0)
        values.ack_wait_ms = fields.get("ack_wait_ms", 0)
        values.window_wait_ms = fields.get("window_wait_ms", 0)
        values.device_wait_ms = fields.get("device_wait_ms", 0)
        values.receive_wait_ms = fields.get("receive_wait_ms", 0)
        for ns in fields.get("message_times_ns", ()):
            values.message_time_ns += ns
            values.message_times[harp_stat_bucket(ns)] += 1
        harp_statfile_flow_write(harp_statfile_flow(&self._file, index), &values)

    def forget(self):
        """Forgets the file, as a forked child does."""
        harp_statfile_forget(&self._file)

    def close(self):
        if self._open:
            harp_statfile_close(&self._file)
        self._open = False

    def __dealloc__(self):
        self.close()


cdef class Trace:
    """The trace ring of an instance."""

    cdef harp_trace_t _trace
    cdef bint _made

    def __cinit__(self, size_t entries):
        cdef int rc = harp_trace_create(&self._trace, entries)
        if rc:
            raise OSError(-rc, "harp_trace_create")
        self._made = True

    def record(self, uint64_t now_ns, unsigned flow, int event, uint32_t a, uint32_t b):
        record(&self._trace, now_ns, flow, event, a, b)

    def __dealloc__(self):
        if self._made:
            harp_trace_destroy(&self._trace)


def dump(list traces, bytes reason, uint64_t now_ns, bytes device=b"wire:test"):
    """Writes the rings to a file. Returns its path. Raises OSError."""
    cdef const harp_trace_t *rings[16]
    cdef char path[512]
    cdef Trace trace
    for i, trace in enumerate(traces[:16]):
        rings[i] = &trace._trace
    cdef harp_trace_copy *copy
    cdef int rc = harp_trace_take(&copy, rings, len(traces), device, reason, now_ns)
    if rc == 0:
        rc = harp_trace_write(copy, path)
        harp_trace_copy_free(copy)
    if rc:
        raise OSError(-rc, "harp_trace_write")
    return (<bytes>path).decode()


def post(bytes text, bint warn=False):
    harp_log_post(HARP_LOG_WARN if warn else HARP_LOG_INFO, "%s", <const char *>text)


cdef void _append_line(int level, const char *line, void *user) noexcept:
    (<list>user).append(("WARN" if level == HARP_LOG_WARN else "INFO", (<bytes>line).decode()))


def drain():
    """The queued log lines: (level, line), the oldest first."""
    lines = []
    harp_log_drain(_append_line, <void *>lines)
    return lines


def dropped():
    return harp_log_dropped()


def forget_log():
    harp_log_forget()


cdef harp_config parsed(bytes text) except *:
    cdef harp_config config
    cdef char error[HARP_CONFIG_ERROR_SIZE]
    if harp_config_parse(text, len(text), b"", &config, error):
        raise ValueError((<bytes>error).decode())
    return config


def instances(bytes text, unsigned nics, unsigned cpus, bytes root):
    """The number of instances of a NIC with this configuration, in a process with so many NICs and
    usable CPUs. `root` replaces / in the paths of /proc and /sys. Raises ValueError if the text is
    invalid."""
    cdef harp_config config = parsed(text)
    return harp_instances_choose(&config, nics, cpus, root)


def poll_threads(bytes text, bytes root):
    """(whether callers poll, usable CPUs, wanted CPUs) for a configuration; without a number of
    instances it has one. `root` replaces / in the paths of /proc and /sys. Raises ValueError if the
    text is invalid."""
    cdef harp_config config = parsed(text)
    cdef harp_poll_threads threads
    config.instances = config.instances or 1
    harp_poll_threads_choose(&threads, &config, root)
    return bool(threads.callers), threads.cpus, threads.wanted
