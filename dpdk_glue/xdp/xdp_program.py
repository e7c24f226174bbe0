# SPDX-License-Identifier: Apache-2.0
"""Makes a C file of the compiled XDP program.

Usage: xdp_program.py OBJECT FILE. The object is an ELF file for the BPF machine (RFC 9669). The
file defines harp_xdp_program of xdp_program.h: the instructions as 64-bit words, and the places of
the map descriptors, which the loader puts in.
"""

from __future__ import annotations

import sys
from pathlib import Path

from elftools.elf.elffile import ELFFile

INSTRUCTION = 8  # bytes
MAPS = ("xdp_ports", "xdp_settings", "xdp_sockets")
R_BPF_64_64 = 1


def read(path: Path) -> tuple[list[int], list[tuple[int, str]]]:
    """The program's instructions, and (index of an instruction, its map). Raises ValueError if the
    object has a function of its own, or refers to something that is no map."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        code = elf.get_section_by_name("xdp").data()
        relocations = elf.get_section_by_name(".relxdp")
        symbols = elf.get_section(relocations["sh_link"])
        places = []
        for relocation in relocations.iter_relocations():
            name = symbols.get_symbol(relocation["r_info_sym"]).name
            if relocation["r_info_type"] != R_BPF_64_64 or name not in MAPS:
                raise ValueError(f"{path}: the program may use only maps, not {name}")
            places.append((relocation["r_offset"] // INSTRUCTION, name))
        if elf.get_section_by_name(".text").data():
            raise ValueError(f"{path}: a function was not inlined")
    words = [
        int.from_bytes(code[at : at + INSTRUCTION], "little")
        for at in range(0, len(code), INSTRUCTION)
    ]
    return words, places


def source(words: list[int], places: list[tuple[int, str]]) -> str:
    lines = [
        "/* Made by xdp_program.py from xdp_program.bpf.c. */",
        '#include "dpdk_glue/xdp/xdp_program.h"',
        "const struct xdp_program harp_xdp_program = {",
        f"    .words = {len(words)},",
        f"    .maps = {len(places)},",
        "    .code = {",
        *(f"        0x{word:016x}," for word in words),
        "    },",
        "    .map = {",
        *(f"        {{{index}, MAP_{name}}}," for index, name in places),
        "    },",
        "};",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    object_file, target = map(Path, sys.argv[1:3])
    target.write_text(source(*read(object_file)))


if __name__ == "__main__":
    main()
