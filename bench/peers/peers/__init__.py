"""Cenote beside its rivals, on one machine, with contents and return codes checked. `cargo xtask peers` runs it; docs/peers.md."""
