//! Confines a server once it runs: it gains no privileges, keeps few of root's, runs no programs, and makes only the system
//! calls that servers of this program make.
//!
//! An attacker who takes over such a process through a defect in it finds no `execve` to start a shell with, no `ptrace`, no `mount`, no
//! namespaces, no kernel modules and none of the kernel's interfaces that defects are found in most often (`bpf`, `io_uring`,
//! `userfaultfd`, `perf_event_open`, `keyctl`). This costs a look-up in a compiled table for each system call, in the kernel.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// `clone`'s flags for namespaces (`CLONE_NEW…`).
const NAMESPACES: u64 = 0x7e02_0000;
/// Landlock's rights as of this version of it; older kernels apply those they know.
const LANDLOCK: ABI = ABI::V6;

/// The capabilities of root that a server may keep: ports below 1024, marks and addresses of sockets, and files of any owner.
const KEPT: CapabilitySet = CapabilitySet::NET_BIND_SERVICE
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH);

/// A variable of the environment that switches confinement off, for measurements that write files of their own.
const SWITCH: &str = "EVENKEEL_NO_CONFINEMENT";

/// The paths to which a process may write.
#[derive(Debug, Clone, Copy)]
pub enum Writes<'p> {
    /// Wherever its user may: its configuration names files to write.
    Anywhere,
    /// Below these directories, and to devices such as `/dev/null`.
    Below(&'p [&'p Path]),
}

/// The confinement of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    /// System calls are filtered; or why not.
    pub seccomp: Result<(), String>,
    /// Whether all requested file rules are enforced, or why not.
    pub landlock: Result<Enforced, String>,
    /// The capabilities that are left (`capabilities(7)`); or why others could not be given up.
    pub capabilities: Result<CapabilitySet, String>,
}

impl Confinement {
    /// Whether everything requested is enforced.
    pub fn is_whole(&self) -> bool {
        self.seccomp.is_ok() && self.landlock == Ok(Enforced::Fully) && self.capabilities.is_ok()
    }
}

/// How much of the file rules the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforced {
    /// Every rule.
    Fully,
    /// Only the rules that this kernel knows.
    Partly,
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.seccomp {
            Ok(()) => f.write_str("seccomp=on")?,
            Err(reason) => write!(f, "seccomp=off ({reason})")?,
        }
        match &self.landlock {
            Ok(Enforced::Fully) => f.write_str(" landlock=on")?,
            Ok(Enforced::Partly) => f.write_str(" landlock=partly")?,
            Err(reason) => write!(f, " landlock=off ({reason})")?,
        }
        match &self.capabilities {
            Ok(none) if none.is_empty() => f.write_str(" capabilities=none"),
            Ok(some) => {
                f.write_str(" capabilities=")?;
                let names = some.iter_names().map(|(name, _)| name).collect::<Vec<_>>();
                f.write_str(&names.join(","))
            }
            Err(reason) => write!(f, " capabilities=all ({reason})"),
        }
    }
}

static HELD: OnceLock<Confinement> = OnceLock::new();

/// Returns the confinement of this process; `None`: none was requested.
pub fn held() -> Option<&'static Confinement> {
    HELD.get()
}

/// Describes the confinement, for people.
pub fn describe() -> String {
    held().map_or_else(|| "off".to_owned(), Confinement::to_string)
}

/// Describes the actual state, whoever has set it up, including the capabilities and the user of this process.
pub fn state() -> String {
    let user = rustix::process::geteuid();
    match held() {
        Some(held) => format!("{held} user={user}"),
        None => {
            let capabilities = rustix::thread::capabilities(None).map(|own| own.permitted);
            let landlock = Err("not asked for".to_owned());
            let left = Confinement {
                seccomp: Err("not asked for".to_owned()),
                landlock,
                capabilities: capabilities.map_err(|error| error.to_string()),
            };
            format!("{left} user={user}")
        }
    }
}

/// Confines this process for good, as far as the kernel can, and logs what holds; `None`: it is switched off. Rules about files and
/// capabilities apply to this thread and those that it starts, so call it before there are others.
pub fn confine(writes: Writes<'_>) -> Option<&'static Confinement> {
    if std::env::var_os(SWITCH).is_some() {
        return None;
    }
    let held = HELD.get_or_init(|| {
        // Before the filter, which allows none of the calls that these need.
        let capabilities = limit_capabilities();
        // Without this, only root may install filters; with it, no executed program gains privileges.
        if let Err(error) = nix::sys::prctl::set_no_new_privs() {
            let reason = error.to_string();
            return Confinement { seccomp: Err(reason.clone()), landlock: Err(reason), capabilities };
        }
        let landlock = restrict_files(writes);
        Confinement { seccomp: filter_calls(), landlock, capabilities }
    });
    if held.is_whole() {
        tracing::info!(confinement = %held, "confined");
    } else {
        tracing::warn!(confinement = %held, "confined in part: this kernel or system does not do the rest");
    }
    Some(held)
}

/// Drops all capabilities except those of [`KEPT`] that this process has.
fn limit_capabilities() -> Result<CapabilitySet, String> {
    let limit = || {
        let CapabilitySets { permitted, effective, .. } = rustix::thread::capabilities(None)?;
        let (permitted, effective) = (permitted & KEPT, effective & KEPT);
        rustix::thread::clear_ambient_capability_set()?;
        let inheritable = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?;
        Ok(permitted)
    };
    limit().map_err(|error: rustix::io::Errno| error.to_string())
}

fn restrict_files(writes: Writes<'_>) -> Result<Enforced, String> {
    let mut handled = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock;
    let written: BitFlags<AccessFs> = AccessFs::from_write(LANDLOCK) & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    if matches!(writes, Writes::Below(_)) {
        handled |= written;
    }
    let create = || {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(handled)?
            .scope(Scope::Signal)?
            .create()?;
        if let Writes::Below(directories) = writes {
            for directory in directories.iter().copied().chain([Path::new("/dev")]) {
                // A directory that is not there cannot be written to either.
                if let Ok(directory) = PathFd::new(directory) {
                    rules = rules.add_rule(PathBeneath::new(directory, written))?;
                }
            }
        }
        rules.restrict_self()
    };
    match create().map_err(|error: landlock::RulesetError| error.to_string())?.ruleset {
        RulesetStatus::FullyEnforced => Ok(Enforced::Fully),
        RulesetStatus::PartiallyEnforced => Ok(Enforced::Partly),
        RulesetStatus::NotEnforced => Err("the kernel has no Landlock".to_owned()),
    }
}

fn filter_calls() -> Result<(), String> {
    let text = |error: &dyn fmt::Display| error.to_string();
    let compile = |calls: BTreeMap<i64, Vec<SeccompRule>>, others, these| -> Result<BpfProgram, String> {
        let arch =
            std::env::consts::ARCH.try_into().map_err(|_| format!("no filter for {}", std::env::consts::ARCH))?;
        let filter = SeccompFilter::new(calls, others, these, arch).map_err(|error| text(&error))?;
        filter.try_into().map_err(|error: seccompiler::BackendError| text(&error))
    };
    let errno = |error: i32| SeccompAction::Errno(error.unsigned_abs());
    // The flags of `clone3` are in memory, where a filter cannot read them: the C library falls back to `clone` when `clone3`
    // does not exist.
    let no_clone3 = compile([(libc::SYS_clone3, Vec::new())].into(), SeccompAction::Allow, errno(libc::ENOSYS))?;
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(NAMESPACES), 0);
    let threads = condition.and_then(|condition| SeccompRule::new(vec![condition])).map_err(|error| text(&error))?;
    let mut calls: BTreeMap<i64, Vec<SeccompRule>> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    calls.insert(libc::SYS_clone, vec![threads]);
    let allowed = compile(calls, errno(libc::EPERM), SeccompAction::Allow)?;
    for program in [no_clone3, allowed] {
        seccompiler::apply_filter_all_threads(&program).map_err(|error| text(&error))?;
    }
    Ok(())
}

/// The system calls that servers make: those observed under load, in upgrades and at the end, and their siblings that the C library
/// uses on other kernels.
#[rustfmt::skip]
const CALLS: &[i64] = &[
    // Bytes.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_preadv,
    libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_lseek, libc::SYS_splice, libc::SYS_tee, libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    // Descriptors.
    libc::SYS_close, libc::SYS_close_range, libc::SYS_dup, libc::SYS_dup3, libc::SYS_fcntl, libc::SYS_ioctl, libc::SYS_pipe2,
    libc::SYS_eventfd2, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2,
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime,
    libc::SYS_signalfd4, libc::SYS_memfd_create, libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    libc::SYS_flock,
    // Files.
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_statfs, libc::SYS_fstatfs,
    libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_readlinkat, libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_mkdirat,
    libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_fchmod,
    libc::SYS_fchmodat, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_umask, libc::SYS_ftruncate, libc::SYS_fsync,
    libc::SYS_fdatasync, libc::SYS_sync_file_range, libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_utimensat,
    // Sockets.
    libc::SYS_socket, libc::SYS_socketpair, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4, libc::SYS_connect,
    libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg,
    libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_shutdown, libc::SYS_setsockopt, libc::SYS_getsockopt,
    // Memory.
    libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk, libc::SYS_mincore,
    libc::SYS_msync, libc::SYS_membarrier, libc::SYS_mlock, libc::SYS_munlock,
    // Threads, and the end of the process.
    libc::SYS_futex, libc::SYS_futex_waitv, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_set_tid_address,
    libc::SYS_rseq, libc::SYS_gettid, libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam, libc::SYS_sched_getscheduler, libc::SYS_getcpu, libc::SYS_exit, libc::SYS_exit_group,
    libc::SYS_restart_syscall, libc::SYS_prctl, libc::SYS_clone3,
    // Signals and children.
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigpending,
    libc::SYS_sigaltstack, libc::SYS_timer_create, libc::SYS_timer_settime, libc::SYS_timer_delete, libc::SYS_tgkill, libc::SYS_tkill, libc::SYS_kill, libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal,
    libc::SYS_wait4, libc::SYS_waitid,
    // Who, where, when, how much.
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
    libc::SYS_getresuid, libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_capget, libc::SYS_uname, libc::SYS_sysinfo,
    libc::SYS_getrusage, libc::SYS_prlimit64, libc::SYS_times, libc::SYS_clock_gettime, libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_gettimeofday, libc::SYS_getrandom, libc::SYS_getpriority,
    // Older names, which other machines never had.
    #[cfg(target_arch = "x86_64")] libc::SYS_open, #[cfg(target_arch = "x86_64")] libc::SYS_stat,
    #[cfg(target_arch = "x86_64")] libc::SYS_lstat, #[cfg(target_arch = "x86_64")] libc::SYS_access,
    #[cfg(target_arch = "x86_64")] libc::SYS_poll, #[cfg(target_arch = "x86_64")] libc::SYS_select,
    #[cfg(target_arch = "x86_64")] libc::SYS_epoll_wait, #[cfg(target_arch = "x86_64")] libc::SYS_epoll_create,
    #[cfg(target_arch = "x86_64")] libc::SYS_eventfd, #[cfg(target_arch = "x86_64")] libc::SYS_pipe,
    #[cfg(target_arch = "x86_64")] libc::SYS_dup2, #[cfg(target_arch = "x86_64")] libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")] libc::SYS_rmdir, #[cfg(target_arch = "x86_64")] libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_rename, #[cfg(target_arch = "x86_64")] libc::SYS_link,
    #[cfg(target_arch = "x86_64")] libc::SYS_symlink, #[cfg(target_arch = "x86_64")] libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_chmod, #[cfg(target_arch = "x86_64")] libc::SYS_getrlimit,
    #[cfg(target_arch = "x86_64")] libc::SYS_time, #[cfg(target_arch = "x86_64")] libc::SYS_arch_prctl,
];
