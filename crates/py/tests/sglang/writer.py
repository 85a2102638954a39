"""A server process that computes prompts until it is killed.

Arguments: region, number of prompts, number of the publish in which it dies (0: none)."""

import sys

import servers
from test_faults import prompt

import cenote

region, prompts, dies_in = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with servers.published(served_model_name="demo"):
    server = servers.Server(region)
    if dies_in:
        cenote._native._kill_at("publish.payload", dies_in)
    for number in range(prompts):
        server.compute(prompt(number))
    print("computed", flush=True)
    sys.stdin.read()
