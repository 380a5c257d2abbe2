//! Groups of devices, and the policy that each has at the moment: its type in sysfs may be changed while it is in use.
//!
//! Linux, Documentation/ABI/testing/sysfs-kernel-iommu_groups (`type`).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::facts::{DeviceFacts, Facts};

/// Device of events that name none.
const UNNAMED: &str = "iommu";
/// Devices without a group that are remembered as such; no more are looked for.
const MOST_WITHOUT: usize = 4096;

/// Policy of a device's group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupPolicy {
    /// Each unmap waits until the device cannot reach the memory any more.
    Strict,
    /// Unmaps wait for none: the device can reach the memory until the next flush, for some milliseconds.
    Lazy,
    /// The IOMMU lets the device reach all memory.
    Identity,
    /// No IOMMU stands before the device.
    None,
    /// The group's type is not known, or the devices' types differ.
    #[default]
    Unknown,
}

impl GroupPolicy {
    fn of_type(word: &str) -> Self {
        match word {
            "DMA" => Self::Strict,
            "DMA-FQ" => Self::Lazy,
            "identity" => Self::Identity,
            _ => Self::Unknown,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Lazy => "lazy",
            Self::Identity => "identity",
            Self::None => "none",
            Self::Unknown => "unknown",
        }
    }

    /// Tells if page tables stand between the device and memory.
    pub(super) fn is_translated(self) -> bool {
        matches!(self, Self::Strict | Self::Lazy)
    }
}

/// State of a device's group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupState {
    pub(super) policy: GroupPolicy,
    /// The group's type, as sysfs has it.
    pub(super) kind: Option<String>,
    pub(super) driver: Option<String>,
}

/// The groups of a machine.
pub(super) struct Groups {
    root: PathBuf,
    /// Policy of all groups; `None` if they differ.
    strict: Option<bool>,
    known: HashMap<String, DeviceFacts>,
    /// Devices that have no group.
    without: HashSet<String>,
}

impl Groups {
    /// Groups of the machine whose root folder is `root`, and that `facts` are about.
    pub(super) fn new(root: &Path, facts: &Facts) -> Self {
        let mut groups = Self {
            root: root.to_owned(),
            strict: facts.is_strict(&[]),
            known: HashMap::new(),
            without: HashSet::new(),
        };
        groups.learn(facts);
        groups
    }

    fn learn(&mut self, facts: &Facts) {
        let named = facts.devices.iter().map(|device| (device.name.clone(), device.clone()));
        self.known = named.collect();
    }

    /// State of the group of the device called `name`, at this moment.
    pub(super) fn of(&mut self, name: &str) -> GroupState {
        if name == UNNAMED {
            let policy = match self.strict {
                Some(true) => GroupPolicy::Strict,
                Some(false) => GroupPolicy::Lazy,
                None => GroupPolicy::Unknown,
            };
            return GroupState { policy, ..GroupState::default() };
        }
        let is_new = !self.known.contains_key(name) && !self.without.contains(name);
        if is_new && self.without.len() < MOST_WITHOUT {
            // It may have been plugged in since.
            self.learn(&Facts::read(&self.root));
            if !self.known.contains_key(name) {
                self.without.insert(name.to_owned());
            }
        }
        let Some(device) = self.known.get(name) else {
            return GroupState { policy: GroupPolicy::None, ..GroupState::default() };
        };
        let file = format!("sys/kernel/iommu_groups/{}/type", device.group);
        let kind = fs::read_to_string(self.root.join(file)).ok();
        let kind = kind.map(|kind| kind.trim().to_owned()).or_else(|| device.group_kind.clone());
        GroupState {
            policy: kind.as_deref().map_or(GroupPolicy::Unknown, GroupPolicy::of_type),
            kind,
            driver: device.driver.clone(),
        }
    }
}
