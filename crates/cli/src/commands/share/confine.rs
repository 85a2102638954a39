//! Calls of the kernel that the process with a shared region's memory may not make. A peer that writes the memory of
//! that process, as UCX allows over TCP, may make it do anything: so it starts no program, looks into no other
//! process, and takes no rights.

use cenote_console::failure::Failure;
use libc::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};
use std::collections::BTreeMap;

/// Programs, other processes' memory, rights, keys, mounts, namespaces, the kernel's own code, and what would go past
/// this filter. Rings of io_uring do.
const REFUSED: &[c_long] = &[
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
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

/// Of calls of this process only: UCX asks with these whether it can use them.
const ON_ITSELF: [c_long; 2] = [SYS_process_vm_readv, SYS_process_vm_writev];
/// They put words into a terminal, whose reader would obey them.
const TYPING: [c_ulong; 2] = [TIOCSTI, TIOCLINUX];

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
    #[cfg(target_arch = "x86_64")]
    seccompiler::apply_filter(&of_x32()).map_err(|error| failed(&error))?;
    let rule = |argument, length, comparison, value| {
        SeccompCondition::new(argument, length, comparison, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
            .map_err(|error| failed(&error))
    };
    let mut rules: BTreeMap<_, _> = REFUSED.iter().chain(REFUSED_HERE).map(|&call| (call, Vec::new())).collect();
    // Without this flag it starts a process.
    let thread = u64::from(CLONE_THREAD.unsigned_abs());
    rules.insert(SYS_clone, vec![rule(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), 0)?]);
    let own = u64::from(std::process::id());
    for call in ON_ITSELF {
        rules.insert(call, vec![rule(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, own)?]);
    }
    let typing = TYPING.map(|request| rule(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request));
    rules.insert(SYS_ioctl, typing.into_iter().collect::<Result<_, _>>()?);
    install(rules, EPERM)
}

/// Refuses calls by the numbers of x32, which no rule of the others would match.
#[cfg(target_arch = "x86_64")]
fn of_x32() -> BpfProgram {
    const X32: u32 = 0x4000_0000;
    let [load, compare, end] = [BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JGE | BPF_K, BPF_RET | BPF_K];
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    vec![
        // The call's number is the first word.
        step(load, 0, 0, 0),
        step(compare, 0, 1, X32),
        step(end, 0, 0, SECCOMP_RET_ERRNO | ENOSYS.unsigned_abs()),
        step(end, 0, 0, SECCOMP_RET_ALLOW),
    ]
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
            // Of a terminal, and of what is none: the filter comes first.
            let typed = rustix::termios::tcgetwinsize(std::io::stdin()).err();
            (inner, error.kind(), typed == Some(rustix::io::Errno::PERM))
        });
        let refused = refused.join().expect("it ends");
        assert_eq!(refused, (7, std::io::ErrorKind::PermissionDenied, false), "other requests of terminals are free");
        assert!(std::process::Command::new("true").status().is_ok_and(|status| status.success()), "others are free");
    }
}
