# SPDX-License-Identifier: Apache-2.0
"""What is given away loads on a C library of 2.27; plugins show NCCL's symbols alone."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

elffile = pytest.importorskip("elftools.elf.elffile")

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build")
PLUGINS = ("plugin/libnccl-net.so", "harp/bench/kernel/libnccl-net-kernel.so")
# The rest of the package that is machine code.
GIVEN_AWAY = (
    "harp/_tables*.so", "harp/bench/harp-perf", "harp/collectives/libharp-collectives.so",
    "harp/nc/harp-nc", "harp/testing/_engine*.so",
    "harp/testing/_fault*.so", "harp/testing/_flow*.so", "harp/testing/_stack*.so",
)  # fmt: skip

# The C library's own files as they were when it still came in several.
C_LIBRARY = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
             "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # fmt: skip
EXPORTS = re.compile(r"nccl\w*Plugin_v\d+")
FLOOR = (2, 27)
EXECUTABLE = 0x1  # of a segment
BIND_NOW = 0x8  # in DT_FLAGS; in DT_FLAGS_1:
NOW_1 = 0x1
PIE_1 = 0x08000000


class Library:
    """What the dynamic loader sees of a shared object."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            elf = elffile.ELFFile(file)
            dynamic = elf.get_section_by_name(".dynamic")
            self.needed = {t.needed for t in dynamic.iter_tags("DT_NEEDED")}
            self.own_names = [t.soname for t in dynamic.iter_tags("DT_SONAME")]
            self.flags_1 = sum(t["d_val"] for t in dynamic.iter_tags("DT_FLAGS_1"))
            self.search = [t for t in dynamic.iter_tags()
                           if t["d_tag"] in ("DT_RPATH", "DT_RUNPATH")]  # fmt: skip
            self.exports = {
                s.name
                for s in elf.get_section_by_name(".dynsym").iter_symbols()
                if s.name and s.entry.st_shndx != "SHN_UNDEF"
                and s.entry.st_info.bind in ("STB_GLOBAL", "STB_WEAK", "STB_LOOS")
            }  # fmt: skip
            self.asks = {
                s.name for s in elf.get_section_by_name(".dynsym").iter_symbols()
                if s.entry.st_shndx == "SHN_UNDEF"
            }  # fmt: skip
            self.versions = self._versions(elf)
            self.flags = sum(t["d_val"] for t in dynamic.iter_tags("DT_FLAGS"))
            self.segments = {s["p_type"]: s["p_flags"] for s in elf.iter_segments()}

    def open_to_attack(self) -> list[str]:
        """What an attacker could use that the usual flags would have taken away."""
        bad = []
        if self.segments.get("PT_GNU_STACK", EXECUTABLE) & EXECUTABLE:
            bad.append("the stack is executable")
        if "PT_GNU_RELRO" not in self.segments:
            bad.append("relocated tables stay writable")
        if not (self.flags & BIND_NOW or self.flags_1 & NOW_1):
            bad.append("functions are bound when they are first called: their table stays writable")
        if "PT_INTERP" in self.segments and not self.flags_1 & PIE_1:
            bad.append("the program lies at a fixed address")
        return bad

    @staticmethod
    def _versions(elf) -> set[tuple[str, str]]:
        """(file, version) of every version that is needed."""
        section = elf.get_section_by_name(".gnu.version_r")
        if section is None:
            return set()
        return {(need.name, aux.name) for need, auxes in section.iter_versions() for aux in auxes}


def too_new(versions: set[tuple[str, str]]) -> list[str]:
    """The needed versions above the floor, or of no number that could be compared."""
    bad = []
    for file, version in sorted(versions):
        number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
        if not number or (int(number[1]), int(number[2])) > FLOOR:
            bad.append(f"{version} of {file}")
    return bad


@pytest.fixture(params=PLUGINS, ids=lambda path: Path(path).name)
def library(request: pytest.FixtureRequest) -> Library:
    path = BUILD / request.param
    if not path.exists():
        pytest.skip(f"{path} is not built: meson setup build && meson compile -C build")
    loaded = Library(path)
    if any(name.startswith(("libasan", "libubsan")) for name in loaded.needed):
        pytest.skip("a build with sanitizers needs their run time")
    return loaded


def test_needs_only_the_c_library(library: Library) -> None:
    assert library.needed <= C_LIBRARY
    assert not library.search, "a search path for libraries points to the build machine"


def test_plugin_exports_only_nccl_symbols(library: Library) -> None:
    assert library.exports
    assert {name for name in library.exports if not EXPORTS.fullmatch(name)} == set()


def test_symbol_versions_are_old_enough(library: Library) -> None:
    assert library.versions
    assert not too_new(library.versions)


@pytest.fixture(params=GIVEN_AWAY)
def given_away(request: pytest.FixtureRequest) -> Library:
    found = sorted(BUILD.glob(request.param))
    if not found:
        pytest.skip(f"{BUILD / request.param} is not built: meson compile -C build")
    loaded = Library(found[0])
    if any(name.startswith(("libasan", "libubsan")) for name in loaded.needed):
        pytest.skip("a build with sanitizers needs their run time")
    return loaded


def test_packaged_files_need_only_old_symbol_versions(given_away: Library) -> None:
    """One file that asks for more would keep the whole package off old hosts."""
    assert given_away.needed <= C_LIBRARY
    assert not given_away.search
    assert given_away.versions
    assert not too_new(given_away.versions)


def test_plugin_names_libpthread_and_libdl(library: Library) -> None:
    """Up to 2.33 these lived in files of their own; a version need there names the file."""
    assert {"libpthread.so.0", "libdl.so.2"} <= library.needed


def test_ldconfig_makes_no_link_to_plugin() -> None:
    """The link would be libnccl-net.so in a system folder, and each NCCL of the host would load
    HARP."""
    assert not Library(BUILD / PLUGINS[0]).own_names


def test_name_for_ldconfig_is_detected(tmp_path: Path) -> None:
    library = make_library(tmp_path, "int ncclNetPlugin_v4;", "-Wl,-soname,libnccl-net.so")
    assert library.own_names == ["libnccl-net.so"]


def test_a_plugin_is_hardened(library: Library) -> None:
    assert not library.open_to_attack()
    assert "__stack_chk_fail" in library.asks, "no stack protector"
    assert "__snprintf_chk" in library.asks, "nothing is fortified"


def test_packaged_files_are_hardened(given_away: Library) -> None:
    assert not given_away.open_to_attack()


def test_plugin_stays_mapped_after_dlclose(library: Library) -> None:
    """NCCL closes the library while threads may still be on their way out of it."""
    assert library.flags_1 & 0x8, "link with -z nodelete"


# The checks themselves, on libraries made wrong on purpose.


def make_library(tmp_path: Path, code: str, *options: str) -> Library:
    source, target = tmp_path / "wrong.c", tmp_path / "libwrong.so"
    source.write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(target), str(source), *options], check=True)
    return Library(target)


def test_foreign_library_is_detected(tmp_path: Path) -> None:
    make_library(tmp_path, "int other(void) { return 1; }")
    (tmp_path / "libwrong.so").rename(tmp_path / "libother.so")
    code = "int other(void); int ncclNetPlugin_v4(void) { return other(); }"
    library = make_library(tmp_path, code, f"-L{tmp_path}", "-lother", "-Wl,-rpath,/tmp")
    assert "libother.so" in library.needed - C_LIBRARY
    assert library.search


def test_stray_symbol_is_detected(tmp_path: Path) -> None:
    library = make_library(tmp_path, "int ncclNetPlugin_v4; int stray;")
    assert {name for name in library.exports if not EXPORTS.fullmatch(name)} == {"stray"}


def test_new_symbol_version_is_detected(tmp_path: Path) -> None:
    code = """#include <dlfcn.h>
    void *ncclNetPlugin_v4(void) { return dlopen("x", RTLD_NOW); }"""
    library = make_library(tmp_path, code)
    here = os.confstr("CS_GNU_LIBC_VERSION") or ""
    if here < "glibc 2.34":
        pytest.skip(f"{here} has no newer dlopen to be caught")
    assert too_new(library.versions) == ["GLIBC_2.34 of libc.so.6"]


@pytest.mark.parametrize("options, problem", [
    (("-Wl,-z,execstack", "-Wl,-z,relro,-z,now"), "the stack is executable"),
    (("-Wl,-z,norelro,-z,now",), "relocated tables stay writable"),
    (("-Wl,-z,relro,-z,lazy",), "functions are bound when they are first called"),
])  # fmt: skip
def test_missing_hardening_is_detected(
    tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    library = make_library(tmp_path, "int ncclNetPlugin_v4;", *options)
    assert [bad for bad in library.open_to_attack() if bad.startswith(problem)]


def test_fixed_address_program_is_detected(tmp_path: Path) -> None:
    source, target = tmp_path / "fixed.c", tmp_path / "fixed"
    source.write_text("int main(void) { return 0; }")
    subprocess.run(["cc", "-no-pie", "-Wl,-z,relro,-z,now", "-o", target, source], check=True)
    assert Library(target).open_to_attack() == ["the program lies at a fixed address"]
