//! Names of tasks, whose events have their numbers alone.
//!
//! Linux, Documentation/trace/ftrace.rst (`saved_cmdlines`), proc(5) (`/proc/PID/comm`, of a thread as well) and
//! pid_namespaces(7). The kernel saves a task's name at the switch to another task after its event: one that polls its
//! device and leaves its CPU to no other has none there. `/proc` names the tasks that still run, if its numbers are the
//! kernel's.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::tracefs::Tracefs;

/// Names that are remembered.
const MOST_NAMES: usize = 1 << 16;
/// The kernel's word for a task that it does not know.
const UNKNOWN: &str = "<...>";
/// Link of a process in the first namespace of numbers, whose numbers are those of the kernel's events
/// (`PID_NS_INIT_INO`, include/uapi/linux/nsfs.h).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// Names of tasks by their numbers.
pub(crate) struct TaskNames {
    /// The kernel's `saved_cmdlines`.
    saved: PathBuf,
    /// The machine's `/proc`, if its numbers are the kernel's.
    proc: Option<PathBuf>,
    known: HashMap<u32, String>,
    /// Tasks without a name in this round.
    unknown: HashSet<u32>,
}

impl TaskNames {
    /// Those of the kernel that `tracefs` traces.
    pub(crate) fn of(tracefs: &Tracefs) -> Self {
        let proc = tracefs.environment.at("proc");
        let namespace = fs::read_link(proc.join("self/ns/pid"));
        let same = namespace.is_ok_and(|link| link == Path::new(FIRST_NAMESPACE));
        Self {
            saved: tracefs.root.join("saved_cmdlines"),
            proc: same.then_some(proc),
            known: HashMap::from([(0, "<idle>".to_owned())]),
            unknown: HashSet::new(),
        }
    }

    /// Asks again for the tasks that had no name.
    pub(super) fn end_round(&mut self) {
        self.unknown.clear();
    }

    /// The name of a task.
    pub(super) fn of_task(&mut self, pid: u32) -> &str {
        if !self.known.contains_key(&pid) && self.unknown.insert(pid) {
            self.ask(pid);
        }
        self.known.get(&pid).map_or(UNKNOWN, String::as_str)
    }

    fn ask(&mut self, pid: u32) {
        if self.known.len() >= MOST_NAMES {
            self.known.retain(|pid, _| *pid == 0);
        }
        // In this order: the end of a task that is gone from `/proc` was a switch, at which the kernel saved its name.
        if let Some(name) = self.running(pid) {
            self.known.insert(pid, name);
            return;
        }
        let saved = fs::read_to_string(&self.saved).unwrap_or_default();
        let rows = saved.lines().filter_map(|line| line.split_once(' '));
        for (number, name) in rows.filter(|(_, name)| *name != UNKNOWN) {
            if let Ok(number) = number.parse() {
                self.known.entry(number).or_insert_with(|| name.to_owned());
            }
        }
    }

    /// The name of a task that has not ended.
    fn running(&self, pid: u32) -> Option<String> {
        let name = fs::read_to_string(self.proc.as_ref()?.join(format!("{pid}/comm"))).ok()?;
        let name = name.strip_suffix('\n').unwrap_or(&name);
        let plain = !name.is_empty() && !name.contains(char::is_control);
        plain.then(|| name.to_owned())
    }
}
