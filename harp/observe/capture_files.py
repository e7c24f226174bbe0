# SPDX-License-Identifier: Apache-2.0
"""The pcapng files of a capture: one file, a ring of files, or standard output."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Optional, Union

from harp.observe import pcapng
from harp.observe.packet_ring import Frame

STDOUT = "-"


class CaptureFiles:
    """Writes frames to `path`. A file ends at `size` bytes (0: no bound) and a new one follows.
    After `count` files (0: no bound) the oldest is overwritten. The file's number precedes the
    suffix: out-0.pcapng, out-1.pcapng. The path "-" is standard output. Raises OSError if a file
    cannot be written."""

    def __init__(self, path: Path, comment: str, snaplen: int, size: int, count: int) -> None:
        self._path = path
        self._head = pcapng.head(True, comment, snaplen)
        self._size = size
        self._count = count
        self._number = 0
        self._pieces: list[pcapng.Bytes] = []
        self._file = self._open()

    def __enter__(self) -> CaptureFiles:
        self.flush()  # the head, which a program behind a pipe waits for
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        where: Optional[TracebackType],
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self._file.close()

    def path_of(self, number: int) -> Path:
        """The path of the file with this number, from 0."""
        if not self._size:
            return self._path
        digits = len(str(self._count - 1)) if self._count else 1
        shown = number % self._count if self._count else number
        return self._path.with_name(f"{self._path.stem}-{shown:0{digits}}{self._path.suffix}")

    @property
    def written(self) -> list[Path]:
        """The existing files, the oldest first."""
        first = max(0, self._number + 1 - self._count) if self._count else 0
        return [self.path_of(number) for number in range(first, self._number + 1)]

    def _open(self) -> BinaryIO:
        path = self.path_of(self._number)
        place: Union[int, Path] = os.dup(1) if str(path) == STDOUT else path
        file = open(place, "wb", buffering=0)
        self._pieces.append(self._head)
        self._begun = len(self._head)  # bytes of this file, including the pieces
        return file

    def add(self, frame: Frame) -> None:
        """Adds a frame. Its bytes must stay valid until the next flush."""
        pieces = pcapng.packet(frame.when, frame.sent, frame.data, frame.length)
        size = sum(map(len, pieces))
        if self._size and self._begun > len(self._head) and self._begun + size > self._size:
            self.flush()
            self._file.close()
            self._number += 1
            self._file = self._open()
        self._pieces += pieces
        self._begun += size

    def flush(self) -> None:
        left = memoryview(b"".join(self._pieces))
        self._pieces.clear()
        while left:
            left = left[self._file.write(left) :]
