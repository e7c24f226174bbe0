# SPDX-License-Identifier: Apache-2.0
"""Two link layers against a model: messages are queues, whatever befalls the ranks and the wire.

hypothesis makes up what two ranks ask for, how they and their processes pause, end and are
killed, and which connections die; what the model does not allow fails and is reduced to the
shortest sequence that shows it, with its story. HARP_TEST_SEQUENCES: how many (100000 take some
minutes); HARP_TEST_SEED: the first batch's.
"""

from __future__ import annotations

import os

import links_model
import pytest

SEQUENCES = int(os.environ.get("HARP_TEST_SEQUENCES") or 0)
SEED = int(os.environ.get("HARP_TEST_SEED") or 1)
FEW = 1500


TWO_NICS = "flows=2 nics=2,2 instances=1,2 preempt=1"
SENDS = "open 0 0; time 1000; recv 0 2; send 0 60000; send 0 100; time 999000"

# What was once wrong, reduced; and outages of NICs.
KNOWN = {
    "connect is called again late": "flows=1; open 0 0; time 40; away 0 6000000",
    "connect is not called again for long": (
        "flows=1; open 0 0; time 20; away 0 6000000; away 0 6000000; time 9000000; away 0 6000000"
    ),
    "a flow ends while another holds the message": (
        "flows=2 instances=2,2 seed=1; open 0 0; time 1000; send 0 100; time 1000; close 0 0; "
        "hold 1 1 200; recv 0 1"
    ),
    "a flow ends while another completes the last message": (
        "flows=2 instances=2,2 preempt=1 seed=4; open 0 0; time 1000; send 0 100; time 1000; "
        "close 0 0; hold 1 1 40; time 40; recv 0 1"
    ),
    "the peer's kernel resets a finished flow before another is read": (
        "flows=2 instances=2,2 kernel=1 seed=1; open 0 0; time 1000; send 0 0; time 1000; "
        "recv 0 1; hold 1 1 1900000; end 0"
    ),
    "an empty last message": "flows=2; open 0 0; send 0 0; time 999; close 0 0; time 999; recv 0 1",
    "an empty last message, long after": (
        "flows=1; open 0 0; time 1000; send 0 0; end 0; time 9000000; recv 0 1"
    ),
    "a pause on an idle link": "flows=1; open 0 0; time 900000; pause 1 3300000; time 5000000",
    "accept of a link that died half-made": "flows=2 instances=1,2; open 0 0; hold 1 1 6000000",
    "a receive long after the sender has closed": (
        "flows=1; open 0 0; send 0 0; close 0 0; time 5000000; recv 0 1"
    ),
    "a connect that was given up": "flows=1; open 0 0; recv 0 1; time 30; abandon 0",
    "an end behind messages": "flows=1; open 0 0; send 0 100; close 0 0; time 1000; recv 0 2",
    "an end behind an empty message": (
        "flows=1; open 0 0; send 0 0; close 0 0; time 1000; recv 0 2"
    ),
    "an end before all flows are open": "flows=2 delay=1000 loss=300 seed=1; open 0 0; end 1",
    "an end while a flow is being replaced": (
        "flows=2; open 0 0; time 1000000; pause 1 700000; send 0 1; close 0 0; away 1 1900000"
    ),
    "a spread link whose caller comes back late": (
        "flows=1 instances=1,2 nics=2,1 stripe=1 delay=1000; open 0 0; time 300; "
        "away 0 6000000; time 5000000; hold 1 1 1900000"
    ),
    "a NIC of a receiver without receives fails": (
        "flows=1 nics=2,2; open 0 0; time 9000000; send 0 60000; down 1 0 1900000; "
        "time 1200000; down 1 0 3300000"
    ),
    "a close while the flow with a copied message moves": (
        "flows=1 nics=2,2 stripe=1 delay=10 seed=1; open 0 0; recv 0 1; time 2000; "
        "down 1 1 1900000; send 0 2999; close 0 0"
    ),
    "a close between the release of a flow and its new connection": (
        "flows=1 nics=2,2 stripe=1 delay=1000; open 0 0; time 50000; recv 0 1; down 0 1 1900000; "
        "time 52500; hold 0 1 300000; time 2500; close 0 0"
    ),
    "a close long before a held worker has received the message": (
        "flows=1 nics=1,2 stripe=1; open 0 0; time 300000; hold 1 0 3300000; send 0 1; close 0 0"
    ),
    "a closed attempt whose peer has forgotten it": (
        "flows=3 instances=1,1 nics=2,2 stripe=1 callers_poll=1 delay=50 seed=220; open 0 0; "
        "time 1000; send 0 3000; close 0 0; pause 1 1900000; time 9000000; down 0 0 3000; "
        "close 0 1"
    ),
    "an old connection is reset between two attempts to move": (
        "flows=1 nics=2,2 delay=1000; open 0 0; open 1 0; time 100000; down 0 0 1210000; "
        "time 103500; silence 0 1 1120000; time 1000000; send 0 60000"
    ),
    "a welcome, and a held worker that owns the flow": (
        "flows=1 nics=2,2 delay=1000; open 0 0; open 1 0; time 100000; down 0 0 1900000; "
        "time 102500; hold 0 0 1900000"
    ),
    "a held worker, and refusals of each other way": (
        "flows=2 instances=1,2 nics=2,2; open 0 0; open 1 0; time 100000; recv 0 1; "
        "hold 1 1 3300000; send 0 60000"
    ),
    "a held worker refuses the way back, and the sender's own way": (
        "flows=1 nics=2,2 seed=1 kernel=1; open 0 0; time 100000; recv 0 1; send 0 100; "
        "time 1000; down 1 0 3000000; recv 0 1; send 0 1000; time 3000000; time 599180; "
        "hold 1 0 1500000; time 5000000; send 0 9; recv 0 1; time 1000000"
    ),
    "a moved flow ends by FIN and reset before its message is received": (
        "flows=1 nics=2,2 kernel=1 seed=1; open 0 0; time 300000; send 0 60000; recv 0 1; "
        "time 600000; send 0 100; time 300000; down 1 0 1000000; time 9000000; "
        "hold 1 0 1200000; end 0; time 2000000"
    ),
    "a NIC of the sender fails": f"{TWO_NICS}; {SENDS}; down 0 0 2000000; {SENDS}",
    "a NIC of the receiver fails": f"{TWO_NICS}; {SENDS}; down 1 0 2000000; {SENDS}",
    "a NIC of the sender loses its carrier": f"{TWO_NICS}; {SENDS}; unplug 0 0 2000000; {SENDS}",
    "a path to the receiver loses all frames": (
        f"{TWO_NICS} stripe=1; {SENDS}; silence 1 1 2000000; {SENDS}"
    ),
}


@pytest.mark.parametrize("program", KNOWN.values(), ids=KNOWN.keys())
def test_known_link_programs_match_model(program: str) -> None:
    links = links_model.Links()
    try:
        links_model.check(links, program)
    finally:
        links.close()


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.timeout(0)
def test_random_link_programs_match_model() -> None:
    if SEQUENCES:
        links_model.search_many(SEQUENCES, SEED, jobs=os.cpu_count() or 1)
    else:
        links_model.search(FEW)
