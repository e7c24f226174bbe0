# SPDX-License-Identifier: Apache-2.0
"""Files that complete the words of the commands in bash, zsh and fish.

A shell loads such a file when a user first completes a word of the command. The file asks the
command for the rest: click answers from the command's declaration. So no file changes with a
command.
"""

from __future__ import annotations

from collections.abc import Iterator

_HEAD = "# SPDX-License-Identifier: Apache-2.0\n"

# Place below share/, and text. zsh runs its file for the first completion, too.
_SHELLS = {
    "bash-completion/completions/{program}":
        _HEAD + 'eval "$({variable}=bash_source {program})"\n',
    "zsh/site-functions/_{program}":
        "#compdef {program}\n" + _HEAD
        + 'eval "$({variable}=zsh_source {program})"\n{function} "$@"\n',
    "fish/vendor_completions.d/{program}.fish":
        _HEAD + "{variable}=fish_source {program} | source\n",
}  # fmt: skip


def files() -> Iterator[tuple[str, str]]:
    """The place of each file below share/, and its text."""
    for program in ("harp", "harp-setup"):
        name = program.replace("-", "_")
        words = {
            "program": program,
            "variable": f"_{name.upper()}_COMPLETE",
            "function": f"_{name}_completion",
        }
        for place, text in _SHELLS.items():
            yield place.format(**words), text.format(**words)
