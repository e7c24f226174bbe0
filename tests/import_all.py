# SPDX-License-Identifier: Apache-2.0
"""Imports every module of an installed package: python -I import_all.py FOLDER, with the folder
that holds `harp`. Modules need what is no dependency of the package; these are left out where it is
absent. Prints the number of imported modules."""

import importlib
import importlib.util
import pathlib
import sys

OPTIONAL = {
    "torch": ("harp.light", "harp.torch"),
    "scapy": ("harp.testing.",),
    "pytest": ("harp.testing.",),
}

folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder))
left_out = tuple(
    name
    for needed, names in OPTIONAL.items()
    if importlib.util.find_spec(needed) is None
    for name in names
)
names = []
for path in sorted((folder / "harp").rglob("*.py")):
    name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__") and not name.startswith(left_out):
        names.append(name)
for path in sorted((folder / "harp").rglob("*.so")):
    if not path.name.startswith("lib"):  # an extension module, with the tag of its ABI
        place = path.parent.relative_to(folder)
        names.append(".".join((*place.parts, path.name.partition(".")[0])))
for name in names:
    module = importlib.import_module(name)
    assert module.__file__ and module.__file__.startswith(str(folder)), module.__file__
print(len(names))
