"""What the region's event log says of blocks that vLLM stores."""

import models
from engines import BLOCK, Engine, in_child

import cenote

PROMPT = 10 * BLOCK + 5


def test_the_region_is_named_as_vllm_names_blocks(tiny: str, region: str) -> None:
    in_child(lambda _: Engine(tiny, region).ask(models.prompt(PROMPT, 4), 2).tokens)
    with cenote.Region.open(region) as look:
        events, resync = look.follow().poll()
    assert (len(events), resync) == (10, "begun")
    names = {depth: (name, parent) for kind, _, _, name, parent, depth in events if kind == "stored"}
    assert names[0][1] == 0
    assert all(names[depth][1] == names[depth - 1][0] != 0 for depth in range(1, 10))
