"""Cenote beside its rivals on one machine, contents and return codes checked. `cargo xtask peers` runs it; see docs/peers.md."""
