# SPDX-License-Identifier: Apache-2.0
"""The variables of harp.light, their defaults, and values that are refused."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch

BAD = {
    "LIGHT_2D_ALLREDUCE": ["2", "yes", "-1"],
    "LIGHT_INTRA_SIZE": ["0", "-8", "8.0", "x"],
    "LIGHT_HIERARCHICAL_THRESHOLD": ["-1", "1G", "1e9"],
    "LIGHT_TOPK_ALLREDUCE": ["true", "10"],
    "LIGHT_TOPK_RATIO": ["0", "1.01", "-0.1", "nan", "1%"],
    "LIGHT_TOPK_THRESHOLD": ["-1", "1M"],
    "LIGHT_TOPK_FP16": ["fp16"],
    "HOROVOD_FUSION_THRESHOLD": ["-1", "64MB"],
    "HOROVOD_CYCLE_TIME": ["-1", "nan", "inf", "1ms"],
}


def test_defaults_are_those_of_lightcc() -> None:
    from harp.light import read

    found = read({"LIGHT_TOPK_RATIO": " "})
    assert (found.two_d, found.intra_size, found.two_d_most) == (False, 8, 1073741824)
    assert (found.topk, found.topk_ratio, found.topk_least) == (False, 0.01, 1048576)
    assert not found.topk_fp16


def test_every_variable_is_read() -> None:
    from harp.light import Settings, read

    texts = "1 4 100 1 0.5 200 1 300 2.5".split()
    assert read(dict(zip(BAD, texts))) == Settings(True, 4, 100, True, 0.5, 200, True, 300, 2.5)


def test_all_variables_are_tried() -> None:
    from harp.light.settings import variables

    assert set(variables()) == set(BAD)


@pytest.mark.parametrize("name", BAD)
def test_bad_value_is_an_error_that_names_the_variable(name: str) -> None:
    from harp.light import SettingError, read

    for text in BAD[name]:
        with pytest.raises(SettingError, match=f"^{name}={text} is not "):
            read({name: text})
