//! Uses that the host makes of a group's devices: file systems, swap, the default route, the display of the boot.

use portolan::addr::PciFunction;

use super::DeviceCase;
use super::group::listed;
use crate::doctor::pci::{KnownFunction, nearest};
use crate::doctor::{Files, Finding};

/// Lines of a table that are read.
const MOST_LINES: usize = 1024;
/// Names that are looked at on the way from one to the functions below it.
const MOST_VISITED: usize = 64;
/// Holders of firmware's frame buffer in `/proc/iomem`.
const FRAME_BUFFERS: [&str; 5] = ["BOOTFB", "efifb", "simplefb", "simpledrm", "vesafb"];

/// A use of a function.
pub struct HostUse {
    /// The function.
    pub at: PciFunction,
    /// The use, as a clause.
    what: String,
}

/// Uses of the group's devices.
pub fn of(case: &DeviceCase<'_>) -> Vec<HostUse> {
    let files = &case.subject.files;
    let mut uses = mounts(files);
    uses.extend(routes(files));
    uses.extend(frame_buffers(files));
    uses.retain(|one| case.endpoints().any(|member| member.at == one.at));
    uses
}

/// Answers if the host needs a device of the group; nothing if no file of the host's uses is there.
pub fn finding(case: &DeviceCase<'_>, uses: &[HostUse]) -> Option<Finding> {
    let what = "in use here";
    let files = &case.subject.files;
    let title = |at| case.pci.function(at).map_or(at.to_string(), KnownFunction::title);
    let said = uses.iter().map(|one| format!("{}: {}", title(one.at), one.what));
    let said = listed(said);
    if !said.is_empty() {
        let why = format!("The host needs devices of the group. {said}.");
        let act = "Keep the group with the host, or part it first. A frame buffer's holder is unbound by its \
                   driver's file (simpledrm: echo simple-framebuffer.0 > \
                   /sys/bus/platform/drivers/simple-framebuffer/unbind).";
        return Some(Finding::problem(what, why).act(act));
    }
    let displays = case.endpoints().filter(|one| one.boot_display);
    let displays = listed(displays.map(|one| one.at.to_string()));
    if !displays.is_empty() {
        let why =
            format!("{displays} is the display of the boot: the host's console goes dark with it.");
        return Some(Finding::good(what, why));
    }
    files.text("proc/mounts").found()?;
    Some(Finding::good(
        what,
        "No file system, swap or default route of the host is on the group's devices.",
    ))
}

/// File systems and swap.
fn mounts(files: &Files) -> Vec<HostUse> {
    let mut found = Vec::new();
    let mut add = |source: &str, what: String| {
        let Some(name) = source.strip_prefix("/dev/") else { return };
        let disks = match name.strip_prefix("mapper/") {
            Some(mapped) => mapper(files, mapped).map(|name| disks(files, &name)),
            None => Some(disks(files, name)),
        };
        for at in disks.unwrap_or_default() {
            found.push(HostUse { at, what: what.clone() });
        }
    };
    let lines = files.text("proc/mounts").found().unwrap_or_default();
    for line in lines.lines().take(MOST_LINES) {
        let mut words = line.split(' ');
        if let (Some(source), Some(target)) = (words.next(), words.next()) {
            add(
                source,
                match target {
                    "/" => "the root file system is on it".to_owned(),
                    target => format!("{} is on it", target.chars().take(64).collect::<String>()),
                },
            );
        }
    }
    let lines = files.text("proc/swaps").found().unwrap_or_default();
    for line in lines.lines().skip(1).take(MOST_LINES) {
        add(line.split_whitespace().next().unwrap_or_default(), "swap is on it".to_owned());
    }
    found.dedup_by(|one, before| one.at == before.at && one.what == before.what);
    found
}

/// The block device (`dm-1`) that is mapped under a name.
fn mapper(files: &Files, mapped: &str) -> Option<String> {
    let all = files.names("sys/class/block").found()?;
    let mut all = all.into_iter().filter(|name| name.starts_with("dm-")).take(MOST_LINES);
    all.find(|name| {
        let own = files.text(&format!("sys/class/block/{name}/dm/name")).found();
        own.is_some_and(|own| own.trim() == mapped)
    })
}

/// The functions that `name` is on, or that the devices are on of which it is made: `class` is its folder, and `below`
/// gives the names that the folder of a name leads to.
fn functions(
    files: &Files,
    class: &str,
    name: &str,
    below: impl Fn(&str) -> Vec<String>,
) -> Vec<PciFunction> {
    let (mut found, mut open) = (Vec::new(), vec![name.to_owned()]);
    for _ in 0..MOST_VISITED {
        let Some(name) = open.pop() else { break };
        let path = format!("{class}/{name}");
        match files.link(&path).found().and_then(|target| nearest(&target)) {
            Some(at) => found.push(at),
            None => open.extend(below(&path).into_iter().take(MOST_VISITED)),
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The functions that a block device is on.
fn disks(files: &Files, name: &str) -> Vec<PciFunction> {
    let below = |path: &str| files.names(&format!("{path}/slaves")).found().unwrap_or_default();
    functions(files, "sys/class/block", name, below)
}

/// Interfaces of the default route.
fn routes(files: &Files) -> Vec<HostUse> {
    let lines = files.text("proc/net/route").found().unwrap_or_default();
    let mut found = Vec::new();
    for line in lines.lines().take(MOST_LINES) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, "00000000", ..] = words.as_slice() {
            for at in interfaces(files, name) {
                let name: String = name.chars().take(16).collect();
                found.push(HostUse { at, what: format!("{name} carries the default route") });
            }
        }
    }
    found
}

/// The functions that a network interface is on, or the ports of a bridge or bond.
fn interfaces(files: &Files, name: &str) -> Vec<PciFunction> {
    functions(files, "sys/class/net", name, |path| {
        let mut ports = files.names(&format!("{path}/brif")).found().unwrap_or_default();
        let lower = files.names(path).found().unwrap_or_default();
        ports
            .extend(lower.iter().filter_map(|name| name.strip_prefix("lower_")).map(str::to_owned));
        ports
    })
}

/// Frame buffers of firmware's that a driver holds in a function's window.
fn frame_buffers(files: &Files) -> Vec<HostUse> {
    let lines = files.text("proc/iomem").found().unwrap_or_default();
    let mut window: Option<(usize, PciFunction)> = None;
    let mut found: Vec<HostUse> = Vec::new();
    for line in lines.lines().take(MOST_LINES) {
        let depth = line.len() - line.trim_start().len();
        let Some((_, name)) = line.split_once(" : ") else { continue };
        if window.is_some_and(|(outer, _)| depth <= outer) {
            window = None;
        }
        match (name.parse(), window) {
            (Ok(at), _) => window = Some((depth, at)),
            (Err(_), Some((_, at))) if FRAME_BUFFERS.contains(&name) => {
                found.push(HostUse {
                    at,
                    what: format!("{name} holds the display of the boot in its window"),
                });
            }
            _ => {}
        }
    }
    found
}
