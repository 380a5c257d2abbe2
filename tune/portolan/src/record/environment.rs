//! Things that close the kernel's tracing to a recorder: lockdown, a container, SELinux, or a user other than root.
//!
//! Read from `/proc` and `/sys` once something was refused: Linux, Documentation/ABI/testing/securityfs-secdata is not
//! needed, `/sys/kernel/security/lockdown` (kernel_lockdown(7)), `/sys/fs/selinux/enforce`, capabilities(7). Not
//! supported: other security modules by name.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// CAP_SYS_ADMIN in a set of capabilities.
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// All users of a machine, as `/proc/self/uid_map` has them outside of user namespaces.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

/// Reason why tracing is refused, with advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel gives nothing away, not even to root.
    LockedDown,
    /// A container, by its kind.
    Container(String),
    /// The user is not root.
    NotRoot,
    /// SELinux enforces its policy, and the user is root.
    SeLinux,
    /// The user is root, and the reason is unknown.
    Unknown,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LockedDown => f.write_str(
                "the kernel is locked down (`cat /sys/kernel/security/lockdown`: confidentiality), which closes \
                 tracing to root as well: boot with lockdown=integrity on the kernel's command line",
            ),
            Self::Container(kind) => write!(
                f,
                "this is a container ({kind}), which may not trace the kernel: run this on the host"
            ),
            Self::NotRoot => f.write_str("run this as root (`sudo portolan ...`)"),
            Self::SeLinux => f.write_str(
                "SELinux is enforcing, and refuses tracefs to this shell's domain although it is root's: run this \
                 from an unconfined one (`id -Z`); `ausearch -m avc -ts recent` has what was refused",
            ),
            Self::Unknown => f.write_str(
                "this is root: a security module may refuse it, and the kernel's log (`dmesg`) may say which",
            ),
        }
    }
}

/// The files of a machine that say so; tests have others.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    root: PathBuf,
}

impl Environment {
    /// Environment of the machine whose root folder is `root`.
    pub(super) fn of(root: &Path) -> Self {
        let root = root.to_owned();
        Self { root }
    }

    /// A file below the machine's root folder.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_default()
    }

    /// The most likely reason for a refusal; reasons that no user can change come first.
    pub(super) fn refusal(&self) -> Refusal {
        if self.is_locked_down() {
            return Refusal::LockedDown;
        }
        if let Some(kind) = self.container() {
            return Refusal::Container(kind);
        }
        if self.status("Uid:").and_then(|ids| ids.get(1).cloned()) != Some("0".to_owned()) {
            return Refusal::NotRoot;
        }
        match self.text("sys/fs/selinux/enforce").trim() {
            "1" => Refusal::SeLinux,
            _ => Refusal::Unknown,
        }
    }

    /// Tells if the kernel keeps its secrets even from root.
    pub(super) fn is_locked_down(&self) -> bool {
        let lockdown = self.text("sys/kernel/security/lockdown");
        lockdown.contains("[confidentiality]")
    }

    /// Kind of container around this process, if it can be detected.
    pub(super) fn container(&self) -> Option<String> {
        let named = self.text("run/systemd/container");
        if !named.trim().is_empty() {
            return Some(named.trim().to_owned());
        }
        for (file, kind) in [("run/.containerenv", "podman"), (".dockerenv", "docker")] {
            if self.at(file).exists() {
                return Some(kind.to_owned());
            }
        }
        let users = self.text("proc/self/uid_map");
        let users: Vec<&str> = users.split_whitespace().collect();
        if !users.is_empty() && users != ALL_USERS {
            return Some("a user namespace".to_owned());
        }
        let is_root = self.status("Uid:").is_some_and(|ids| ids.get(1).is_some_and(|id| id == "0"));
        let capabilities = self.status("CapEff:")?;
        let capabilities = u64::from_str_radix(capabilities.first()?, 16).ok()?;
        let lacks = is_root && capabilities & CAP_SYS_ADMIN == 0;
        lacks.then(|| "root without CAP_SYS_ADMIN".to_owned())
    }

    /// The words of a line of `/proc/self/status`.
    fn status(&self, key: &str) -> Option<Vec<String>> {
        let status = self.text("proc/self/status");
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.split_whitespace().map(str::to_owned).collect())
    }

    /// The kernel's release.
    pub(super) fn release(&self) -> String {
        self.text("proc/sys/kernel/osrelease").trim().to_owned()
    }
}
