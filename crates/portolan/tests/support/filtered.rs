//! Filters of system calls (seccomp), as the tables of the documentation list them.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// Number of a system call.
pub const fn number(name: &str) -> Option<libc::c_long> {
    Some(match name.as_bytes() {
        b"brk" => libc::SYS_brk,
        b"clock_gettime" => libc::SYS_clock_gettime,
        b"clock_nanosleep" => libc::SYS_clock_nanosleep,
        b"close" => libc::SYS_close,
        b"futex" => libc::SYS_futex,
        b"getcpu" => libc::SYS_getcpu,
        b"ioctl" => libc::SYS_ioctl,
        b"madvise" => libc::SYS_madvise,
        b"mmap" => libc::SYS_mmap,
        b"mprotect" => libc::SYS_mprotect,
        b"mremap" => libc::SYS_mremap,
        b"munmap" => libc::SYS_munmap,
        b"openat" => libc::SYS_openat,
        b"ppoll" => libc::SYS_ppoll,
        b"pread64" => libc::SYS_pread64,
        b"pwrite64" => libc::SYS_pwrite64,
        b"read" => libc::SYS_read,
        b"recvfrom" => libc::SYS_recvfrom,
        b"recvmsg" => libc::SYS_recvmsg,
        b"sched_yield" => libc::SYS_sched_yield,
        b"shutdown" => libc::SYS_shutdown,
        b"sendto" => libc::SYS_sendto,
        _ => return None,
    })
}

/// System calls of a row of the table of threads in `page`, and of those above it.
pub fn calls_of(page: &str, row: usize) -> Vec<libc::c_long> {
    let table = page.split_once("| thread | system calls |").unwrap().1;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|')).take(row + 1);
    let calls = |row: &str| {
        let names: Vec<_> = row.split('|').nth(2).unwrap().split('`').collect();
        let numbers = names.iter().skip(1).step_by(2).map(|name| number(name).expect(name));
        numbers.collect::<Vec<_>>()
    };
    rows.flat_map(calls).collect()
}

/// Filters this thread's calls, other than those by which Rust's library ends a process.
pub fn filter(calls: &[libc::c_long]) {
    let rules = calls.iter().chain([&libc::SYS_exit_group, &libc::SYS_sigaltstack]);
    let rules: BTreeMap<i64, _> = rules.map(|call| (*call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let (kill, allow) = (SeccompAction::KillProcess, SeccompAction::Allow);
    let filter: BpfProgram =
        SeccompFilter::new(rules, kill, allow, arch).unwrap().try_into().unwrap();
    apply_filter(&filter).unwrap();
}
