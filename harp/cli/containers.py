# SPDX-License-Identifier: Apache-2.0
"""The option --containers of the commands that read statistics."""

import click

containers_option = click.option(
    "--containers",
    is_flag=True,
    help="Also find processes in containers by their open files, with no folder in common with "
    "this host. Needs root.",
)
