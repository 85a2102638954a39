//! One virtual host: its QEMU, its console log, and the memory that it shares with the other.

use super::debian::Debian;
use super::image::Images;
use crate::process::{create, read_lossy};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

/// Options for fast boots and for right clocks on a busy machine, where calibrating a clock makes
/// it run fast.
const KERNEL_WORDS: &str = "console=ttyS0 panic=-1 quiet mitigations=off audit=0 cryptomgr.notests=1 \
     random.trust_cpu=1 tsc=unstable clocksource=hpet no_timer_check";

/// Memory that both guests see as a CXL device. It has no name, so it leaves nothing behind.
pub struct Pool {
    file: File,
    mib: u32,
}

impl Pool {
    pub fn new(mib: u32) -> Result<Self, String> {
        let path = PathBuf::from(format!("/dev/shm/cenote-two-host-{}", std::process::id()));
        let shown = |error| format!("{}: {error}", path.display());
        let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(shown)?;
        fs::remove_file(&path).map_err(shown)?;
        file.set_len(u64::from(mib) << 20).map_err(shown)?;
        Ok(Self { file, mib })
    }
}

/// A running QEMU; dropping it kills it.
pub struct Guest {
    child: Child,
    log: PathBuf,
    complaints: PathBuf,
    start: Instant,
}

impl Guest {
    /// Starts host `name` with its logs in `folder`. `job` is the command that it runs.
    pub fn start(
        debian: &Debian,
        images: &Images,
        initramfs: &Path,
        pool: &Pool,
        cpus: u32,
        name: &str,
        job: &str,
        folder: &Path,
    ) -> Result<Self, String> {
        let (log, complaints) = (folder.join(format!("{name}.log")), folder.join(format!("{name}.qemu.log")));
        create(&log)?;
        let errors = create(&complaints)?;
        let memory = format!("/proc/{}/fd/{}", std::process::id(), pool.file.as_raw_fd());
        let mut command = debian.program("qemu-system-x86_64");
        for firmware in ["qemu", "seabios"] {
            command.arg("-L").arg(debian.tools.folder.join("usr/share").join(firmware));
        }
        // The kernel flushes no caches for a CXL region if it knows that it is a guest.
        command.args(["-accel", "tcg", "-machine", "q35,cxl=on", "-cpu", "max,-hypervisor", "-m", "512M"]);
        command.args(["-smp", &cpus.to_string(), "-nodefaults", "-display", "none", "-no-reboot"]);
        // If this task is killed, QEMU ends too.
        command.args(["-run-with", "exit-with-parent=on"]);
        command.arg("-serial").arg(format!("file:{}", log.display()));
        command.arg("-kernel").arg(&images.kernel).arg("-initrd").arg(initramfs);
        command.arg("-append").arg(format!("{KERNEL_WORDS} -- {job}"));
        command.arg("-object");
        command.arg(format!("memory-backend-file,id=pool,share=on,mem-path={memory},size={}M", pool.mib));
        for device in [
            "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1",
            "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2",
            "cxl-type3,bus=rp0,volatile-memdev=pool,id=cxlmem0,sn=0x1",
        ] {
            command.args(["-device", device]);
        }
        command.args(["-machine", "cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G"]);
        let output = errors.try_clone().map_err(|error| format!("{}: {error}", complaints.display()))?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let child = child.map_err(|error| format!("QEMU cannot be run: {error}"))?;
        Ok(Self { child, log, complaints, start: Instant::now() })
    }

    /// Whether QEMU has ended.
    pub fn has_ended(&mut self) -> Result<bool, String> {
        self.child.try_wait().map(|status| status.is_some()).map_err(|error| format!("waiting for QEMU: {error}"))
    }

    /// SIGKILL: the host stops between two instructions.
    pub fn kill(&mut self) -> Result<(), String> {
        self.child.kill().map_err(|error| format!("killing QEMU: {error}"))?;
        self.child.wait().map(drop).map_err(|error| format!("waiting for QEMU: {error}"))
    }

    /// Output of the host and its QEMU so far.
    pub fn said(&self) -> Result<String, String> {
        Ok(read_lossy(&self.log)? + &read_lossy(&self.complaints)?)
    }

    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
