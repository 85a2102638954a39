"""A server process that computes prompts until it is killed.

Arguments: region, number of prompts, fault point at which it dies, and at which passing of it (0: none)."""

import sys

import servers
from test_faults import prompt

import cenote

region, prompts, dies_at, dies_in = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
with servers.published(served_model_name="demo"):
    server = servers.Server(region)
    if dies_in:
        cenote._native._kill_at(dies_at, dies_in)
    for number in range(prompts):
        server.compute(prompt(number))
    print("computed", flush=True)
    sys.stdin.read()
