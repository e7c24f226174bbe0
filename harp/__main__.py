# SPDX-License-Identifier: Apache-2.0
"""`python -m harp` is `harp`."""

from harp.cli.main import main

if __name__ == "__main__":
    main()
