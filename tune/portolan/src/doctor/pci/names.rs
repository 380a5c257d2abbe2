//! Names that drivers gave the functions: network interfaces, disks, displays.

use std::collections::BTreeMap;

use portolan::addr::PciFunction;

use super::function::name;
use super::{Files, KnownFunction};

/// Folders of `/sys` with links to devices below their functions.
const CLASSES: [&str; 4] =
    ["sys/class/net", "sys/class/nvme", "sys/class/drm", "sys/class/infiniband"];
/// Names of a class that are looked at.
const MOST_NAMES: usize = 1 << 12;

/// Adds the names to `functions`.
pub(super) fn add(files: &Files, functions: &mut BTreeMap<PciFunction, KnownFunction>) {
    for class in CLASSES {
        let names = files.names(class).found().unwrap_or_default();
        // Displays have a name for each connector as well: card1-HDMI-A-1.
        let names = names.iter().filter(|name| !name.contains('-'));
        for found in names.take(MOST_NAMES) {
            let target = files.link(&format!("{class}/{found}")).found();
            let one = target.and_then(|target| nearest(&target));
            if let Some(one) = one.and_then(|at| functions.get_mut(&at)) {
                one.names.push(name(found));
            }
        }
    }
}

/// The function nearest to the end of a link into `/sys/devices`.
pub fn nearest(target: &str) -> Option<PciFunction> {
    target.rsplit('/').find_map(|part| part.parse().ok())
}

/// The function of the disk `name` (`sda`, `nvme0n1p2`).
pub(super) fn disk(files: &Files, name: &str) -> Option<PciFunction> {
    let plain = |one: char| one.is_ascii_alphanumeric() || "_-".contains(one);
    let is_name = !name.is_empty() && name.chars().all(plain);
    let target = is_name.then(|| files.link(&format!("sys/class/block/{name}")).found());
    target.flatten().and_then(|target| nearest(&target))
}
