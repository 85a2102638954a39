//! Flags of a worker process, and the settings that its front passes to it.

use super::connections;
use cenote_console::args::{EngineArgs, RegionArgs, WatchArgs};
use cenote_console::failure::Failure;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Role of a worker process.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleArg {
    Prefill,
    Decode,
}

#[derive(Args, Debug)]
pub struct WorkerArgs {
    #[arg(long, value_enum)]
    pub role: RoleArg,
    #[arg(long)]
    pub index: usize,
    #[arg(long)]
    pub drain_timeout: u64,
    /// Maximum open connections of this worker's port
    #[arg(long, value_name = "N", env = "CENOTE_WORKER_MAX_CONNECTIONS", default_value_t = 4096, value_parser = connections)]
    pub max_connections: usize,
}

/// A worker's settings, which are its front's. A setting of the front that is not here has no effect
/// on its workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSettings {
    pub engine: EngineArgs,
    pub region: RegionArgs,
    pub watch: WatchArgs,
}

impl WorkerSettings {
    /// The variable that has them in a worker. Other users can read arguments, but not the
    /// environment.
    pub const ENVIRONMENT: &str = "CENOTE_WORKER_SETTINGS";

    /// The variable's value.
    pub fn to_text(&self) -> Result<String, Failure> {
        serde_json::to_string(self)
            .map_err(|error| Failure::new(format!("settings cannot be passed to workers: {error}")))
    }

    fn from_text(text: &str) -> Result<Self, Failure> {
        // The parser's error may show a value, and some are secrets.
        serde_json::from_str(text).map_err(|error| {
            let place = format!("line {}, column {}", error.line(), error.column());
            Failure::new(format!("{}: not the settings of a worker ({place})", Self::ENVIRONMENT))
                .hint("start workers with `cenote serve` of the same version")
        })
    }

    /// The settings from the front.
    pub fn from_environment() -> Result<Self, Failure> {
        let text = std::env::var(Self::ENVIRONMENT)
            .map_err(|_| Failure::new(format!("{}: not set; workers are started by their front", Self::ENVIRONMENT)))?;
        Self::from_text(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, CommandFactory, Parser};
    use std::collections::BTreeSet;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    /// The flags of a front that concern its workers.
    #[derive(Parser)]
    struct Front {
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        region: RegionArgs,
        #[command(flatten)]
        watch: WatchArgs,
    }

    fn front(flags: &[String]) -> WorkerSettings {
        let line = std::iter::once("front").chain(flags.iter().map(String::as_str));
        let Front { engine, region, watch } = Front::try_parse_from(line).expect("these flags are right");
        WorkerSettings { engine, region, watch }
    }

    fn in_worker(front: &WorkerSettings) -> WorkerSettings {
        WorkerSettings::from_text(&front.to_text().expect("settings are text")).expect("the front's settings")
    }

    /// A value of the flag that is not its default, and the flags without which it is refused.
    fn sample(id: &str) -> (&str, &[&str]) {
        let value = match id {
            "model" | "profile" | "codec_table" | "swap_trace" | "seal_key_file" | "peer_key_file" | "nixl" => {
                "/a folder/é"
            }
            "peers" => return ("10.0.0.2:7411,[::1]:7,deadline=0.25", &["--peer-key-file=/k"]),
            "model_name" | "engram_tables" | "tenant_salt" => "a \"name\"\n",
            "dtype" => "bf16",
            "threads" | "max_model_len" | "block_tokens" | "max_num_seqs" | "max_num_batched_tokens" => "33",
            "max_waiting" | "mover_threads" | "sparse_pages" | "numa_node" | "host_slot" => "3",
            "kv_size" | "spill" | "near_size" | "swap" => "12345679",
            "watermark" => "opt:0.123",
            "sparse_hot_pages" => return ("7", &["--sparse-pages=3"]),
            "sparse_predictor" => "neighbor:2",
            "always_swap" | "log_misses" | "no_huge_pages" => "",
            "codec" => "0-1=int8,qpack:0.5",
            "cold_codec" => "auto",
            "kl_max" => "0.1234567890123456",
            "cold" => "s3://bucket/kv,size=3GiB,write=cold,deadline=0.25",
            "region" => "shm:a-region",
            "seal_key_command" => "print-keys --token secret",
            "host_timeout" | "quarantine" => "7.5",
            other => panic!("--{other} is new: give it a value here, so that this test covers it"),
        };
        (value, &[])
    }

    fn flags() -> Vec<Arg> {
        let mut command = Front::command();
        command.build();
        command.get_arguments().filter(|flag| flag.get_id() != "help").cloned().collect()
    }

    /// Earlier each setting was listed by hand: seven of them were lost on the way.
    #[test]
    fn every_flag_of_a_front_changes_the_settings_of_its_workers() {
        for flag in flags() {
            let id = flag.get_id().as_str();
            let (value, needed) = sample(id);
            let long = flag.get_long().expect("a long flag");
            let given = if value.is_empty() { format!("--{long}") } else { format!("--{long}={value}") };
            let mut line: Vec<String> = needed.iter().map(ToString::to_string).collect();
            let before = front(&line);
            line.push(given);
            let changed = front(&line);
            let worker = in_worker(&changed);
            assert_eq!(format!("{worker:?}"), format!("{changed:?}"), "--{long}");
            assert_ne!(format!("{worker:?}"), format!("{before:?}"), "--{long} changes nothing in a worker");
        }
    }

    /// The fields that no flag sets are as few as this list, and travel as well.
    #[test]
    fn fields_without_a_flag_travel_as_well() {
        let settings = front(&[]);
        let value = serde_json::to_value(&settings).expect("settings are JSON");
        let mut fields = BTreeSet::new();
        for part in ["engine", "region", "watch"] {
            fields.extend(value[part].as_object().expect("a struct").keys().cloned());
        }
        assert!(fields.remove("keys"), "a group of flags");
        fields.extend(value["region"]["keys"].as_object().expect("a struct").keys().cloned());
        let flags: BTreeSet<String> = flags().iter().map(|flag| flag.get_id().to_string()).collect();
        assert_eq!(flags.difference(&fields).collect::<Vec<_>>(), [""; 0], "flags that do not travel");
        assert_eq!(fields.difference(&flags).collect::<Vec<_>>(), ["decode_first"], "change these below, too");
        let engine = EngineArgs { decode_first: true, ..settings.engine.clone() };
        assert!(in_worker(&WorkerSettings { engine, ..settings }).engine.decode_first);
    }

    #[test]
    fn a_path_that_is_no_text_arrives_whole() {
        let mut settings = front(&[]);
        settings.engine.model = Some(PathBuf::from(OsStr::from_bytes(b"/models/\xff")));
        assert_eq!(in_worker(&settings).engine.model, settings.engine.model);
    }

    #[test]
    fn wrong_settings_are_refused_without_showing_them() {
        let text = front(&["--tenant-salt=a secret".to_owned()]).to_text().expect("settings are text");
        for (from, to) in [("\"tenant_salt\":", "\"block_tokens\":"), ("\"spill\":", "\"spilt\":")] {
            let wrong = text.replacen(from, to, 1);
            assert_ne!(wrong, text);
            let failure = WorkerSettings::from_text(&wrong).expect_err("they are wrong").to_string();
            assert!(failure.contains(WorkerSettings::ENVIRONMENT) && !failure.contains("a secret"), "{failure}");
        }
    }
}
