"""Benchmark of Cenote and its rivals on one machine, with checked contents and return codes.

`cargo xtask peers` runs it. See docs/evidence/peers.md."""
