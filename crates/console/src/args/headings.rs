//! Headings of `--help` for commands with many flags.

use clap::{Arg, Command};

/// A command with fewer flags has one list.
const FLAGS_MIN: usize = 18;

const HEADINGS: [(&str, &[&str]); 9] = [
    (
        "Prompt and answer",
        &["prompt", "chat", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos"],
    ),
    (
        "Measurement",
        &[
            "max_tokens",
            "region_size",
            "lengths",
            "hits",
            "repeat",
            "against",
            "python",
            "trace",
            "format",
            "seed",
            "requests",
            "tokens_per_id",
            "share",
            "prompt_tokens",
            "answer_tokens",
            "rate",
            "repeats",
            "calibration",
        ],
    ),
    ("Model", &["model", "model_name", "dtype", "max_model_len", "engram_tables", "tenant_salt"]),
    ("Codecs", &["codec", "cold_codec", "profile", "codec_table", "kl_max"]),
    (
        "Several hosts",
        &[
            "host_slot",
            "host_timeout",
            "quarantine",
            "max_hosts",
            "flush",
            "hosts_lock",
            "peers",
            "peer_key_file",
            "nixl",
        ],
    ),
    (
        "Region",
        &[
            "region",
            "host_slot",
            "region_size",
            "cold",
            "no_pool",
            "numa_node",
            "no_huge_pages",
            "size",
            "chunk_size",
            "min_block",
            "mode",
            "prefault",
            "hash_seed",
            "seal",
            "seal_slowly",
            "seal_key_file",
            "seal_key_command",
            "force",
            "design",
            "eviction",
            "pins_per_worker",
            "events",
            "removals",
            "requests",
        ],
    ),
    (
        "Engine",
        &[
            "threads",
            "block_tokens",
            "kv_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_waiting",
            "watermark",
            "spill",
            "near_size",
            "mover_threads",
            "sparse_pages",
            "sparse_hot_pages",
            "sparse_predictor",
            "swap",
            "always_swap",
            "log_misses",
            "swap_trace",
            "cold",
        ],
    ),
    ("Worker processes", &["prefill", "decode"]),
    (
        "HTTP",
        &[
            "host",
            "port",
            "api_key",
            "api_key_file",
            "tenants",
            "request_timeout",
            "max_connections",
            "idle_timeout",
            "body_memory",
            "drain_timeout",
        ],
    ),
];

/// Puts the flags of commands with many flags under headings. A flag that has a heading keeps it.
pub fn with_headings(command: Command) -> Command {
    let all: Vec<String> = command.get_arguments().map(|flag| flag.get_id().to_string()).collect();
    let is_long = all.len() >= FLAGS_MIN;
    let command = command.mut_args(|flag: Arg| {
        let id = flag.get_id().as_str();
        // A heading over one flag repeats the flag, so the next heading takes the flag.
        let is_used = |ids: &[&str]| all.iter().filter(|id| ids.contains(&id.as_str())).count() > 1;
        let heading = HEADINGS.iter().find(|(_, ids)| ids.contains(&id) && is_used(ids)).map(|(heading, _)| *heading);
        if is_long && flag.get_help_heading().is_none() { flag.help_heading(heading) } else { flag }
    });
    command.mut_subcommands(with_headings)
}
