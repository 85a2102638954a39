//! `cargo xtask wheel arm`: the package for Arm, built here, and its command under an emulator of the processor.
//! The kernel is this machine's, so pages have its size; tests of `crates/mem` fake larger ones.

use crate::debian::{self, Tree};
use crate::process::{make_empty, output};
use crate::python;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub const TARGET: &str = "aarch64-unknown-linux-gnu";
const PLACE: &str = "target/arm";
/// The emulator, and the C library with which the command runs.
const PACKAGES: [&str; 3] = ["qemu-user", "libc6-arm64-cross", "libgcc-s1-arm64-cross"];
/// An emulated command takes some thirty times as long.
const LIMIT: Duration = Duration::from_secs(900);

/// Builds the wheel, and tries its command.
///
/// # Errors
/// Names the failed step.
pub fn run(root: &Path) -> Result<(), String> {
    let has_library = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    let folder = has_library.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned()).unwrap_or_default();
    if folder.is_empty() || !Path::new(&folder).is_dir() {
        return Err(format!("the compiler's library for Arm is missing; `rustup target add {TARGET}` brings it"));
    }
    let (wheel, command) = python::arm_wheel(root)?;
    let place = root.join(PLACE);
    let tree = Tree::prepare(&place, debian::SUITE, &PACKAGES)?;
    let scratch = place.join("scratch");
    make_empty(&scratch)?;
    let arm = Emulated { tree, command, scratch };
    arm.try_out()?;
    println!("{}", wheel.display());
    Ok(())
}

/// The command under the emulator.
struct Emulated {
    tree: Tree,
    command: PathBuf,
    scratch: PathBuf,
}

impl Emulated {
    /// A region is made, a prompt computed and then found in it, as the processor's own instructions have it.
    fn try_out(&self) -> Result<(), String> {
        let region = format!("shm:cenote-arm-{}", std::process::id());
        let version = self.output(&["--version"])?;
        println!("emulated: {}", version.trim());
        let worked = self.serve_a_prompt(&region);
        let destroyed = self.output(&["pool", "destroy", "--region", &region]);
        worked?;
        destroyed.map(|_| ())
    }

    fn serve_a_prompt(&self, region: &str) -> Result<(), String> {
        const PROMPT: &str = "The cave lies at the foot of a limestone cliff, and only a boat can reach its entrance";
        self.output(&["pool", "create", "--region", region, "--size", "64MiB"])?;
        let generate = ["generate", "--region", region, "--max-tokens", "4", "--prompt", PROMPT];
        let cold = self.output(&generate)?;
        let warm = self.output(&generate)?;
        self.output(&["pool", "check", "--region", region])?;
        let text = |answer: &str| answer.lines().next().unwrap_or_default().to_owned();
        if !cold.contains(", 0 from the region") || warm.contains(", 0 from the region") || text(&cold) != text(&warm) {
            return Err(format!("a prompt was not found again:\n{cold}\n{warm}"));
        }
        println!("emulated: a prompt was computed, and found in the region: {}", text(&warm));
        Ok(())
    }

    fn output(&self, arguments: &[&str]) -> Result<String, String> {
        // The emulator is linked statically.
        let mut emulator = Command::new(self.tree.folder.join("usr/bin/qemu-aarch64"));
        emulator.arg("-L").arg(self.tree.folder.join("usr/aarch64-linux-gnu")).arg(&self.command).args(arguments);
        output(&mut emulator, &format!("cenote {}", arguments.join(" ")), &self.scratch.join("last.txt"), LIMIT)
    }
}
