//! Runs the commands of a block as their reader would: with the demo model, small regions, and folders of their own.

use super::shell::Documented;
use crate::process::{GLANCE, create, make_folder, names_in, read_lossy, run, write};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// For one command, or until a server answers.
const LIMIT: Duration = Duration::from_secs(120);

/// Beginnings of commands that need what is not here, and where they are tried.
const ELSEWHERE: &[(&str, &str)] = &[
    ("(cd deploy/kubernetes", "deploy/tests/test_kubernetes.py checks the manifests"),
    ("(umask", "crates/cli/tests/cli/reach.rs makes keys"),
    ("CENOTE_ENGRAM=", "crates/py/tests/vllm reads tables"),
    ("VLLM_CPU_KVCACHE_SPACE=", "crates/py/tests/vllm/test_guide.py"),
    ("c++ ", "xtask install-c and crates/capi"),
    ("cargo ", "tasks and builds: cargo xtask ci, release, vllm and the others"),
    ("cat > connector.yaml", "crates/py/tests/test_tensorrt_llm.py"),
    ("cc ", "xtask install-c and crates/capi"),
    ("cd deploy/prometheus", "deploy/tests/test_prometheus.py"),
    ("cenote pool create --region /dev/dax0.0", "crates/cli/tests/cli/several_hosts.rs"),
    ("cenote pool fence --region /dev/dax0.0", "crates/cli/tests/cli/several_hosts.rs"),
    ("cenote pool share", "cargo xtask reach"),
    ("cenote serve --codec auto", "crates/lab/tests/lab/codecs.rs"),
    ("cenote serve --model DIR --codec auto", "crates/lab/tests/lab/codecs.rs"),
    ("cenote serve --model DIR --region /dev/dax0.0", "crates/cli/tests/cli/several_hosts.rs"),
    ("cenote serve --region shm:kv --peers", "cargo xtask reach"),
    ("cenote top", "crates/cli/tests/cli/top.rs, at a terminal"),
    ("cenote serve --region shm:kv --region-size 8GiB --cold 'redis", "crates/cli/tests/cli/cold.rs"),
    ("cenote serve --region shm:kv --region-size 8GiB --cold redis", "crates/cli/tests/cli/cold.rs"),
    ("cenote-lab ", "the lab's own tests; here its flags are checked"),
    ("curl -s http://127.0.0.1:9470", "deploy/tests"),
    ("docker ", "deploy/tests/test_packages.py runs the image's content"),
    ("echo 'd /dev/shm/cenote", "deploy/tests/test_kubernetes.py"),
    ("export ", "a setting for the commands after it"),
    ("for pod in", "a loop over pods"),
    ("helm ", "deploy/tests/test_chart.py"),
    ("install -D", "cargo xtask wheel"),
    ("kubectl ", "deploy/tests/test_kubernetes.py checks the manifests"),
    ("lmcache ", "crates/py/tests/test_lmcache.py"),
    ("maturin ", "cargo xtask wheel"),
    ("pip ", "cargo xtask wheel and reach"),
    ("promtool ", "deploy/tests/test_prometheus.py"),
    ("python -m", "crates/py/tests"),
    ("rustup ", "a part of the compiler"),
    ("sed -i", "an address of the reader's"),
    ("sglang ", "crates/py/tests/sglang"),
    ("sudo ", "deploy/tests/test_packages.py"),
    ("systemd-tmpfiles", "a node's own program"),
    ("trtllm-serve", "crates/py/tests/test_tensorrt_llm.py"),
    ("vllm ", "crates/py/tests/vllm"),
];

/// What stands for what in a page, in this order.
const STAND_INS: &[(&str, &str)] = &[
    ("cargo run --release -- serve", "cenote serve"),
    ("target/models/smollm2", "ROOT/models/demo"),
    ("models/demo/", "ROOT/models/demo/"),
    ("./MODEL", "ROOT/models/demo"),
    ("--model DIR", "--model ROOT/models/demo"),
    ("--text FILE", "--text ROOT/models/demo/demo.txt"),
    ("DeepSeek-V4.1-Flash", "ROOT/models/demo-engram"),
    ("--model-config FILE", "--model-config ROOT/models/demo-engram/config.json"),
    ("--model-config config.json", "--model-config ROOT/models/demo-engram/config.json"),
    ("--tokenizer FILE", "--tokenizer ROOT/models/demo-engram/tokenizer.json"),
    ("--tokenizer tokenizer.json", "--tokenizer ROOT/models/demo-engram/tokenizer.json"),
    ("--tokens FILE", "--tokens tokens.json"),
    ("--rows FILE", "--rows rows.json"),
    ("--size 16GiB FILE", "--size 16GiB kv.snapshot"),
    ("0 3f1c22a09be4", "0 1"),
    ("/var/cache/cenote", "HERE/cold"),
    ("/backup/", "HERE/"),
    ("~/", "HERE/"),
    ("llama-8b", "demo"),
    ("--seconds 600", "--seconds 1"),
    ("--port 8000", ""),
    ("--port 8001", ""),
    ("cenote ui ", "cenote ui --listen 127.0.0.1:0 "),
    // An answer that is an error fails the command.
    ("curl ", "curl --fail-with-body "),
    ("http://127.0.0.1:8000", "ADDRESS"),
    ("localhost:8000", "ADDRESS"),
    ("\"smollm2\"", "\"demo\""),
];

/// Beginnings of commands that run until they are ended, with what they print when they work; some print nothing
/// as long as nothing happens.
const LASTING: &[(&str, &str)] = &[
    ("cenote serve", "serving "),
    ("cenote ui", "http://"),
    ("cenote stat", "\n"),
    ("cenote pool events", ""),
    ("cenote pool history --region REGION -f", ""),
];

/// Begins the names of regions; then come the process and the block.
const REGIONS: &str = "cenote-documented-";

/// Words of commands that need a region with blocks.
const FILLED: &[&str] = &["pool quota", "pool diff", "pool explain", "pool whatif", "pool snapshot"];

const PROMPT: &str = "The cave lies at the foot of a limestone cliff, and only a boat can reach its entrance";

/// Runs the commands of blocks.
pub struct Play {
    root: PathBuf,
    programs: PathBuf,
    place: PathBuf,
    blocks: usize,
    used: BTreeSet<&'static str>,
}

impl Play {
    pub fn new(root: &Path, programs: &Path, place: &Path) -> Self {
        remove_regions_of_the_dead();
        let (root, programs, place) = (root.to_owned(), programs.to_owned(), place.to_owned());
        Self { root, programs, place, blocks: 0, used: BTreeSet::new() }
    }

    /// Entries of the tables above that no page needs.
    pub fn unused(&self) -> Vec<String> {
        let names = ELSEWHERE.iter().chain(STAND_INS).chain(LASTING).map(|(name, _)| *name);
        names.filter(|name| !self.used.contains(name)).map(|name| format!("no page has `{name}`")).collect()
    }

    /// Runs a block's commands; returns how many. What fails goes into `wrong`.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub fn run(&mut self, block: &[Documented], wrong: &mut Vec<String>) -> Result<usize, String> {
        self.blocks += 1;
        let here = self.place.join(self.blocks.to_string());
        make_folder(&here)?;
        let name = format!("{REGIONS}{}-{}", std::process::id(), self.blocks);
        let mut stage = Stage {
            programs: self.programs.clone(),
            here,
            region: format!("shm:{name}"),
            demo: self.root.join("models/demo"),
            servers: Vec::new(),
            is_filled: false,
        };
        let mut played = 0;
        for command in block {
            let is_here = command.text.starts_with("cargo run --release -- serve");
            let elsewhere = ELSEWHERE.iter().find(|(start, _)| command.text.starts_with(start) && !is_here);
            if let Some((start, _)) = elsewhere {
                self.used.insert(start);
                continue;
            }
            let text = self.with_stand_ins(&command.text, &stage);
            played += 1;
            if let Err(reason) = stage.act(&text, &mut self.used) {
                wrong.push(format!("{}: `{text}`: {reason}", command.place()));
            }
        }
        wrong.extend(stage.end());
        Ok(played)
    }

    fn with_stand_ins(&mut self, text: &str, stage: &Stage) -> String {
        let mut text = text.to_owned();
        for (name, stand_in) in STAND_INS {
            if text.contains(name) {
                self.used.insert(name);
                text = text.replace(name, stand_in);
            }
        }
        for name in ["shm:kv", "shm:try", "shm:tables"] {
            text = text.replace(name, &stage.region);
        }
        let text = text.replace("ROOT", &self.root.display().to_string());
        smaller(&text.replace("HERE", &stage.here.display().to_string()))
    }
}

/// Removes what a run left that was killed.
fn remove_regions_of_the_dead() {
    for name in names_in(Path::new("/dev/shm")).unwrap_or_default() {
        let pid = name.strip_prefix(REGIONS).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }
}

/// Sizes in GiB as 64 MiB each, at most 256.
fn smaller(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("GiB") {
        let (before, after) = (&rest[..at], &rest[at + 3..]);
        let digits = before.chars().rev().take_while(char::is_ascii_digit).count();
        let (kept, number) = before.split_at(at - digits);
        match number.parse::<u64>() {
            Ok(number) => out += &format!("{kept}{}MiB", number.saturating_mul(64).clamp(64, 256)),
            Err(_) => out += &format!("{before}GiB"),
        }
        rest = after;
    }
    out + rest
}

/// Where the commands of one block run.
struct Stage {
    programs: PathBuf,
    here: PathBuf,
    region: String,
    /// The folder of the demo model.
    demo: PathBuf,
    servers: Vec<Server>,
    is_filled: bool,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end();
    }
}

/// A command that runs until it is ended.
struct Server {
    text: String,
    child: Child,
    address: Option<String>,
}

impl Stage {
    fn act(&mut self, text: &str, used: &mut BTreeSet<&'static str>) -> Result<(), String> {
        let text = self.prepare(text)?;
        let of_region = text.replace(&self.region, "REGION");
        let lasting = LASTING.iter().find(|(start, _)| of_region.starts_with(start) && !text.contains(" --for "));
        if let Some((start, sign)) = lasting {
            used.insert(start);
            return self.start(text.trim_end_matches('&'), sign);
        }
        self.shell(&text).map(|_| ())
    }

    /// What the page takes for granted: a region of two models, a prompt, keys, a server, a cold tier.
    fn prepare(&mut self, text: &str) -> Result<String, String> {
        for (file, content) in [
            ("prompt.txt", PROMPT),
            ("prompt.json", "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]"),
            ("tokens.json", "{\"sequences\": [{\"tokens\": [1, 2, 3, 4, 5, 6, 7, 8]}]}"),
            ("rows.json", &format!("{{\"rows\": [\"{}\"]}}", "3c".repeat(132))),
            ("names.txt", "000102030405060708090a0b0c0d0e0f\n"),
        ] {
            write(&self.here.join(file), content)?;
        }
        let region = self.region.clone();
        if text.contains("--seal-key-file") {
            // A new first key to rotate to, and the old one.
            let keys = ["0123456789abcdef", "fedcba9876543210"].map(|digits| digits.repeat(4) + "\n");
            let keys = if text.contains("pool rotate") { keys.concat() } else { keys[1].clone() };
            self.secret("seal.key", &keys)?;
        }
        if text.contains("profile.safetensors") && !text.contains("cenote profile") && !self.has("profile.safetensors")
        {
            self.shell(&format!("cenote profile --text {}", self.demo.join("demo.txt").display()))?;
        }
        if text.contains("pool cold") && !self.has("cold") {
            let cold = self.here.join("cold");
            self.start(
                &format!("cenote serve --region {region} --region-size 64MiB --cold {}", cold.display()),
                "serving ",
            )?;
        }
        let makes_it = ["pool create", "pool restore"].iter().any(|word| text.contains(word));
        let takes_none = makes_it || text.contains("--region-size") || text.contains("pool list");
        if text.contains(&region) && self.has_region() && makes_it {
            self.shell(&format!("cenote pool destroy --region {region}"))?;
        }
        if text.contains(&region) && !self.has_region() && !takes_none {
            self.shell(&format!("cenote pool create --region {region} --size 256MiB --events 1024"))?;
        }
        if FILLED.iter().any(|word| text.contains(word)) && !self.is_filled {
            self.is_filled = true;
            for model in ["demo", "demo-engram"] {
                let model = self.demo.with_file_name(model);
                let generate = format!("cenote generate --region {region} --max-tokens 2 --prompt '{PROMPT}'");
                self.shell(&format!("{generate} --model {}", model.display()))?;
            }
        }
        if text.contains("ADDRESS") && self.servers.is_empty() {
            self.start("cenote serve", "serving ")?;
        }
        let address = self.servers.iter().rev().find_map(|server| server.address.clone());
        Ok(address.map_or_else(|| text.to_owned(), |address| text.replace("ADDRESS", &address)))
    }

    fn has(&self, name: &str) -> bool {
        self.here.join(name).exists()
    }

    fn has_region(&self) -> bool {
        Path::new("/dev/shm").join(self.region.trim_start_matches("shm:")).exists()
    }

    /// A file that only its owner may read.
    fn secret(&self, name: &str, content: &str) -> Result<(), String> {
        let path = self.here.join(name);
        write(&path, content)?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn command(&self, text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-e", "-c", text]).current_dir(&self.here).env("HOME", &self.here);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CENOTE_") {
                command.env_remove(name);
            }
        }
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.programs.display())).env("CENOTE_PORT", "0");
        command
    }

    fn shell(&self, text: &str) -> Result<String, String> {
        let log = self.here.join("last.txt");
        run(&mut self.command(text), "it", &log, LIMIT)?;
        read_lossy(&log)
    }

    /// Starts a command, and waits until it prints `sign`.
    fn start(&mut self, text: &str, sign: &str) -> Result<(), String> {
        let log = self.here.join(format!("server-{}.txt", self.servers.len()));
        let file = create(&log)?;
        let copy = file.try_clone().map_err(|error| error.to_string())?;
        let mut command = self.command(&format!("exec {text}"));
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        let child = child.map_err(|error| format!("it cannot be started: {error}"))?;
        self.servers.push(Server { text: text.to_owned(), child, address: None });
        let server = self.servers.last_mut().expect("just added");
        let start = Instant::now();
        loop {
            let printed = read_lossy(&log)?;
            if printed.contains(sign) {
                let address = printed.split_whitespace().find(|word| word.starts_with("http://"));
                server.address = address.map(|word| word.trim_end_matches("/v1").to_owned());
                return Ok(());
            }
            match server.child.try_wait() {
                Ok(None) if start.elapsed() < LIMIT => sleep(GLANCE),
                Ok(None) => return Err(format!("it did not print {sign:?} within {} s: {printed}", LIMIT.as_secs())),
                Ok(Some(status)) => return Err(format!("it ended ({status}): {printed}")),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Interrupts what still runs, and removes the region.
    fn end(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for mut server in std::mem::take(&mut self.servers) {
            if matches!(server.child.try_wait(), Ok(Some(_))) {
                continue;
            }
            let _ = Command::new("kill").args(["-INT", &server.child.id().to_string()]).status();
            let start = Instant::now();
            while matches!(server.child.try_wait(), Ok(None)) && start.elapsed() < LIMIT {
                sleep(GLANCE);
            }
            if matches!(server.child.try_wait(), Ok(None)) {
                let _ = server.child.kill();
                wrong.push(format!("`{}` does not end when it is interrupted", server.text));
            }
            let _ = server.child.wait();
        }
        if self.has_region() {
            let destroyed = self.shell(&format!("cenote pool destroy --region {}", self.region));
            wrong.extend(destroyed.err().map(|reason| format!("{}: {reason}", self.region)));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_become_small() {
        assert_eq!(smaller("--size 4GiB --cold x,size=200GiB 1TiB GiB"), "--size 256MiB --cold x,size=256MiB 1TiB GiB");
    }
}
