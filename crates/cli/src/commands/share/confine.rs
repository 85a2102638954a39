//! Calls of the kernel that the process with a shared region's memory may not make. A peer that writes the memory of
//! that process, as UCX allows over TCP, may make it do anything: so it starts no program, looks into no other
//! process, and takes no rights.

use cenote_console::failure::Failure;
use libc::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Programs, other processes' memory, rights, keys, mounts, namespaces, the kernel's own code, and what would go past
/// this filter. Rings of io_uring do.
const REFUSED: &[c_long] = &[
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_kcmp,
    SYS_pidfd_getfd,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_setgroups,
    SYS_capset,
    SYS_personality,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsmount,
    SYS_unshare,
    SYS_setns,
    SYS_open_by_handle_at,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_sethostname,
    SYS_quotactl,
    SYS_acct,
    SYS_syslog,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
];
/// The same of one architecture.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[c_long] = &[SYS_fork, SYS_vfork, SYS_ioperm, SYS_iopl, SYS_kexec_file_load, SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[c_long] = &[];

/// Refuses these calls from now on, for this thread and all that it starts.
///
/// # Errors
/// The kernel has no such filters, or refuses one.
pub fn now() -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(format!("calls of the kernel cannot be refused (seccomp): {error}"))
            .hint("share the region where seccomp is allowed: a container's own profile may refuse it")
    };
    let install = |rules: BTreeMap<c_long, Vec<SeccompRule>>, error: c_int| -> Result<(), Failure> {
        let architecture = std::env::consts::ARCH.try_into().map_err(|error| failed(&error))?;
        let refuse = SeccompAction::Errno(error.unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture);
        let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(|error| failed(&error))?;
        seccompiler::apply_filter(&program).map_err(|error| failed(&error))
    };
    // Its flags are in memory, which a filter cannot see. The C library then starts threads by `clone`.
    install([(SYS_clone3, Vec::new())].into(), ENOSYS)?;
    // Without this flag it starts a process.
    let thread = u64::from(CLONE_THREAD.unsigned_abs());
    let is_process = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), 0)
        .and_then(|condition| SeccompRule::new(vec![condition]))
        .map_err(|error| failed(&error))?;
    let mut rules: BTreeMap<_, _> = REFUSED.iter().chain(REFUSED_HERE).map(|&call| (call, Vec::new())).collect();
    rules.insert(SYS_clone, vec![is_process]);
    install(rules, EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_thread_starts_threads_and_no_programs() {
        // The filter is of a thread, so the other tests' threads are free.
        let refused = std::thread::spawn(|| {
            now().expect("this kernel has filters");
            let inner = std::thread::spawn(|| 7).join().expect("threads are allowed");
            let error = std::process::Command::new("true").spawn().expect_err("programs are not");
            (inner, error.kind())
        });
        assert_eq!(refused.join().expect("it ends"), (7, std::io::ErrorKind::PermissionDenied));
        assert!(std::process::Command::new("true").status().is_ok_and(|status| status.success()), "others are free");
    }
}
