# SPDX-License-Identifier: Apache-2.0
"""The C part's tables and parser: keys of ztcp*.conf, counters, trace events.

Python reads the lists of the C part, so each list exists once.
"""

import os

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset, strerror


cdef extern from "harp/counters.h" nogil:
    enum:
        HARP_COUNTERS
        HARP_COUNTER_ALIASES
        HARP_GAUGE

    struct harp_counter_info_t "harp_counter_info":
        const char *name
        const char *doc
        int kind

    harp_counter_info_t counter_info "harp_counter_info"[]

    struct harp_counter_alias_t "harp_counter_alias":
        const char *name
        int counter

    harp_counter_alias_t counter_alias_table "harp_counter_aliases"[]


cdef extern from "harp/engine/trace.h" nogil:
    enum:
        HARP_TRACE_EVENTS

    struct harp_trace_info_t "harp_trace_info":
        const char *name
        const char *a
        const char *b
        const char *doc

    harp_trace_info_t trace_info "harp_trace_info"[]


cdef extern from "harp/engine/config.h" nogil:
    enum:
        HARP_CONFIG_KEYS
        HARP_CONFIG_ERROR_SIZE
        HARP_FROM_FILE
        HARP_FROM_ENVIRONMENT

    struct harp_config_key_info_t "harp_config_key_info":
        const char *name
        const char *default_meaning
        const char *allowed
        const char *doc
        uint64_t min
        uint64_t max
        bint file_only

    harp_config_key_info_t key_info "harp_config_key_info"[]

    struct harp_config:
        char path[4096]
        uint8_t source[1]

    int harp_config_parse(const char *text, size_t length, const char *name,
                          harp_config *config, char *error)
    int harp_config_load(const char *path, harp_config *config, char *error)
    char *harp_config_format(const harp_config *config, int key, char *out, size_t size)
    const char *harp_config_innermost(const char *device)
    bint harp_config_shareable(const harp_config *config)
    bint harp_config_peer_allowed(const harp_config *config, uint32_t address)


cdef extern from "harp/engine/variables.h":
    enum:
        HARP_VARIABLES

    struct harp_variable_info_t "harp_variable_info":
        const char *name
        const char *doc

    harp_variable_info_t variable_info "harp_variable_info"[]

    void harp_variables_unknown(
        char **environment,
        void (*tell)(const char *name, const char *nearest, void *user) noexcept, void *user)
    const char *harp_variables_nearest_key(const char *name, size_t length)


cdef extern from "unistd.h":
    char **environ


cdef extern from "harp/engine/key_file.h" nogil:
    enum:
        HARP_KEY_FILE_ERROR_SIZE

    struct harp_key_file:
        bint loose

    int harp_key_file_read(harp_key_file *file, const char *path, char *error)


cdef extern from "harp/engine/claim.h" nogil:
    enum:
        HARP_CLAIM_ERROR_SIZE

    struct harp_claim_t "harp_claim":
        int fd
        bint shared
        harp_config config

    int c_claim "harp_claim"(harp_claim_t *claim, char *error)
    void harp_claim_release(harp_claim_t *claim)


cdef extern from "harp/engine/conf_folder.h" nogil:
    struct harp_conf_file:
        harp_config config

    struct harp_conf_folder_t "harp_conf_folder":
        int count
        harp_conf_file *files

    int harp_conf_folder_read(harp_conf_folder_t *folder, const char *path, char *error)
    void harp_conf_folder_close(harp_conf_folder_t *folder)


cdef extern from "harp/engine/devices.h" nogil:
    struct harp_device:
        const char *identity
        const char *pci_path
        uint64_t guid
        uint32_t speed_mbps
        bint speed_known

    struct harp_devices_t "harp_devices":
        unsigned count
        bint one
        harp_device of "of"[]
        uint8_t device_of[]

    int harp_devices_find(harp_devices_t *devices, const harp_conf_folder_t *folder,
                          const char *root, char *error)


cdef extern from "harp/engine/build_facts.h":
    const char *build_commit "harp_build_commit"
    const char *build_dpdk "harp_build_dpdk"
    const char *build_devices "harp_build_devices"


cdef extern from "harp/stack/ip/checksum_vector.h":
    struct harp_summer:
        const char *name
        bint (*there)()

    const harp_summer *summers "harp_summers"


cdef extern from *:
    const char *HARP_VERSION


class ConfigError(ValueError):
    """A ztcp*.conf or its folder has an error. The text says what, where and how to correct it;
    `code` is the C part's negative errno."""

    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


cdef str _text(const char *raw):
    return (<bytes>raw).decode("utf-8", "replace")


def version():
    """The release of the C part."""
    return _text(HARP_VERSION)


def build_facts():
    """What this build holds: release, commit ("unknown": built outside of a clone), dpdk (its
    release; None without DPDK), devices (schemes), and sums: the instructions with which this CPU
    sums ("avx512", "avx2", "neon"; "words" without vectors)."""
    cdef const harp_summer *summer = summers
    while not summer.there():
        summer += 1
    return {
        "release": version(),
        "commit": _text(build_commit),
        "dpdk": _text(build_dpdk) or None,
        "devices": _text(build_devices).split(),
        "sums": _text(summer.name),
    }


def keys():
    """The keys of ztcp*.conf, in the manual's order. Each is a dict: name, default, allowed, doc,
    min, max (None if the value is not a number), file_only."""
    return [
        {
            "name": _text(key_info[i].name),
            "default": _text(key_info[i].default_meaning),
            "allowed": _text(key_info[i].allowed),
            "doc": _text(key_info[i].doc),
            "min": key_info[i].min if key_info[i].max else None,
            "max": key_info[i].max if key_info[i].max else None,
            "file_only": bool(key_info[i].file_only),
        }
        for i in range(HARP_CONFIG_KEYS)
    ]


def variables():
    """The environment variables that are not keys: name, with HARP_, and doc."""
    return [
        {"name": _text(variable_info[i].name), "doc": _text(variable_info[i].doc)}
        for i in range(HARP_VARIABLES)
    ]


cdef void _remember(const char *name, const char *nearest, void *user) noexcept:
    (<list>user).append((_text(name), _text(nearest) if nearest is not NULL else ""))


def unknown_variables():
    """The variables of this process's environment that begin with HARP_ and that HARP does not
    read, each with the nearest known name, "" for none."""
    found = []
    harp_variables_unknown(environ, _remember, <void *>found)
    return sorted(found)


def nearest_key(str name):
    """The key of ztcp*.conf that is most similar to a name, "" for none."""
    raw = name.encode(errors="replace")
    cdef const char *found = harp_variables_nearest_key(raw, len(raw))
    return "" if found is NULL else _text(found)


def check_key_file(path):
    """Checks a file for HARP_KEY_FILE. Returns (error text or "", whether other users of this host
    may read or change the file)."""
    cdef harp_key_file file
    cdef char error[HARP_KEY_FILE_ERROR_SIZE]
    cdef int rc = harp_key_file_read(&file, os.fsencode(path), error)
    loose = bool(file.loose)
    memset(&file, 0, sizeof(file))
    return (_text(error) if rc else "", loose)


def counters():
    """The counters, in the order of the arrays: name, kind ("count" or "gauge"), doc."""
    return [
        {
            "name": _text(counter_info[i].name),
            "kind": "gauge" if counter_info[i].kind == HARP_GAUGE else "count",
            "doc": _text(counter_info[i].doc),
        }
        for i in range(HARP_COUNTERS)
    ]


def counter_aliases():
    """The old names of renamed counters: {old name: name}."""
    return {
        _text(counter_alias_table[i].name): _text(counter_info[counter_alias_table[i].counter].name)
        for i in range(HARP_COUNTER_ALIASES)
    }


def trace_events():
    """The events of the trace: name, a and b (the names of a record's two numbers), doc."""
    return [
        {
            "name": _text(trace_info[i].name),
            "a": _text(trace_info[i].a),
            "b": _text(trace_info[i].b),
            "doc": _text(trace_info[i].doc),
        }
        for i in range(HARP_TRACE_EVENTS)
    ]


cdef dict _values(const harp_config *config):
    cdef char out[4096]
    values = {}
    for i in range(HARP_CONFIG_KEYS):
        source = config.source[i]
        values[_text(key_info[i].name)] = (
            _text(harp_config_format(config, i, out, sizeof(out))),
            "file" if source == HARP_FROM_FILE
            else "environment" if source == HARP_FROM_ENVIRONMENT
            else "default",
        )
    return values


def parse(bytes text, str name="memory"):
    """The values of a file with these bytes, without the environment: {key: (text, source)}. The
    text is "" if the device or a measurement decides. Raises ConfigError."""
    cdef harp_config config
    cdef char error[HARP_CONFIG_ERROR_SIZE]
    cdef int rc = harp_config_parse(text, len(text), name.encode(), &config, error)
    if rc:
        raise ConfigError(_text(error), rc)
    return _values(&config)


def load(path):
    """The values in force for a file: {key: (text, source)}. The source is "file", "environment"
    or "default". Raises ConfigError."""
    cdef harp_config config
    cdef char error[HARP_CONFIG_ERROR_SIZE]
    cdef int rc = harp_config_load(os.fsencode(path), &config, error)
    if rc:
        raise ConfigError(_text(error), rc)
    return _values(&config)


def check_file(path):
    """The error of a file, in one line; None without one."""
    try:
        load(path)
    except ConfigError as wrong:
        return str(wrong)
    return None


def shareable(bytes text):
    """Whether several processes may claim a file with these bytes. Raises ConfigError."""
    cdef harp_config config
    cdef char error[HARP_CONFIG_ERROR_SIZE]
    cdef int rc = harp_config_parse(text, len(text), "memory", &config, error)
    if rc:
        raise ConfigError(_text(error), rc)
    return bool(harp_config_shareable(&config))


def peer_allowed(bytes text, bytes address):
    """Whether the file's key `peers` allows an address (four bytes). Raises ConfigError."""
    cdef harp_config config
    cdef char error[HARP_CONFIG_ERROR_SIZE]
    cdef int rc = harp_config_parse(text, len(text), "memory", &config, error)
    if rc:
        raise ConfigError(_text(error), rc)
    return bool(harp_config_peer_allowed(&config, (<const uint32_t *><const char *>address)[0]))


def innermost(str device):
    """A device without its fault wrappers: "packet:eth0"."""
    raw = device.encode()
    return _text(harp_config_innermost(raw))


def devices(folder, root=""):
    """The devices that NCCL is told of, for the ztcp*.conf of a folder. Each is a dict: name,
    identity (the NIC: PCI function, interface, or the key `device`), pci_path (None: none), guid,
    speed_mbps, speed_known (False: it is assumed), files (paths). `root` replaces / in the path of
    /sys. Raises ConfigError."""
    cdef harp_conf_folder_t read
    cdef harp_devices_t found
    cdef char error[HARP_CONFIG_ERROR_SIZE]
    path, below = os.fsencode(folder), os.fsencode(root)
    cdef int rc = harp_conf_folder_read(&read, path, error)
    if rc:
        raise ConfigError(_text(error), rc)
    rc = harp_devices_find(&found, &read, below, error)
    files = [_text(read.files[i].config.path) for i in range(read.count)]
    harp_conf_folder_close(&read)
    if rc:
        raise ConfigError(_text(error), rc)
    return [
        {
            "name": "HARP" if found.one else f"HARP{i}",
            "identity": _text(found.of[i].identity),
            "pci_path": _text(found.of[i].pci_path) or None,
            "guid": found.of[i].guid,
            "speed_mbps": found.of[i].speed_mbps,
            "speed_known": bool(found.of[i].speed_known),
            "files": [path for j, path in enumerate(files) if found.device_of[j] == i],
        }
        for i in range(found.count)
    ]


cdef class Claim:
    """Claims a ztcp*.conf as a job's process does, by this process's environment. It holds the
    claim until release() or its end; it is a context manager. Raises ConfigError if the claim is
    declined."""

    cdef harp_claim_t _claim

    def __cinit__(self):
        cdef char error[HARP_CLAIM_ERROR_SIZE]
        self._claim.fd = -1
        cdef int rc = c_claim(&self._claim, error)
        if rc:
            raise ConfigError(_text(error), rc)

    @property
    def path(self):
        return _text(self._claim.config.path)

    @property
    def shared(self):
        return bool(self._claim.shared)

    @property
    def values(self):
        return _values(&self._claim.config)

    def release(self):
        harp_claim_release(&self._claim)

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self.release()

    def __dealloc__(self):
        harp_claim_release(&self._claim)
