//! Plans against an engine's own counts.

mod vllm;
