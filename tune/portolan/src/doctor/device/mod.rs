//! One PCI device: its IOMMU and group, who is in the group and why, what has to go along to a guest, what would part
//! them, and what bars the device.
//!
//! The group is Linux's own where `/sys` tells it; the reasons are those of configuration space by the library's tree.
//! Not supported: devices that are not PCI functions, and disks of a ZFS pool.

mod group;
mod obstacles;
mod parting;
#[cfg(test)]
mod tests;
mod uses;

use anyhow::{Result, bail};
use serde::Serialize;

use super::pci::{BarWindow, Extent, GroupMode, KnownFunction, Pci};
pub use group::{listed, services};

use super::{Finding, Subject, finding};
use portolan_cli::display::wrapped;

/// Answers about a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceAnswers {
    /// The device.
    pub device: DeviceSummary,
    /// Its group.
    pub group: GroupFacts,
    /// The answers.
    pub findings: Vec<Finding>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceSummary {
    /// Its place.
    pub function: String,
    /// Names that drivers gave it.
    pub names: Vec<String>,
    /// Vendor and device.
    pub id: String,
    /// Its class in words.
    pub kind: &'static str,
    /// Its driver.
    pub driver: Option<String>,
    /// Its unit, as `/sys/class/iommu` names it.
    pub unit: Option<String>,
    /// Its node of memory.
    pub numa: Option<u32>,
    /// Its windows of memory.
    pub windows: Vec<BarWindow>,
    /// The part of configuration space that was readable.
    pub configuration: Extent,
    /// Ports and bridges above it, the nearest first.
    pub way_up: Vec<String>,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupFacts {
    /// Linux's number.
    pub number: Option<u32>,
    /// Its mode.
    pub mode: GroupMode,
    /// Its functions.
    pub functions: Vec<String>,
}

/// The asked device beside its group, as the rules look at them.
struct DeviceCase<'c> {
    subject: &'c Subject,
    pci: &'c Pci,
    device: &'c KnownFunction,
    /// The group, the device included.
    members: Vec<&'c KnownFunction>,
}

impl<'c> DeviceCase<'c> {
    /// Members that go to a guest or stay with the host by their driver: all but bridges.
    fn endpoints(&self) -> impl Iterator<Item = &'c KnownFunction> {
        self.members.iter().copied().filter(|one| !one.is_bridge())
    }

    /// Endpoints beside the device that are no part of the board's own bridges.
    fn others(&self) -> impl Iterator<Item = &'c KnownFunction> {
        let own = self.device.at;
        self.endpoints().filter(move |one| one.at != own && !one.is_board())
    }
}

impl DeviceAnswers {
    /// Answers about the device that `name` names on `subject`.
    ///
    /// # Errors
    /// If there are no PCI functions, or none of that name.
    pub fn new(subject: &Subject, name: &str) -> Result<Self> {
        let pci = Pci::new(subject);
        let Some(device) = pci.named(&subject.files, name) else {
            match pci.functions().next() {
                None => bail!("no PCI function is known: /sys/bus/pci/devices is not there"),
                Some(first) => bail!(
                    "{name} names none of the PCI functions; one is named by its place, such as {}, or by a \
                     name of its driver's, such as nvme0 or eth0",
                    first.at
                ),
            }
        };
        let case = DeviceCase { subject, pci: &pci, device, members: pci.members(device.at) };
        let uses = uses::of(&case);
        let mut findings = vec![obstacles::iommu(&case), group::finding(&case)];
        findings.extend(parting::finding(&case));
        findings.push(obstacles::drivers(&case, &uses));
        findings.extend(uses::finding(&case, &uses));
        findings.extend(obstacles::reserved(&case));
        findings.extend(obstacles::identifiers(&case));
        findings.extend(obstacles::resets(&case));
        findings.extend(obstacles::addresses(&case));
        Ok(Self { device: case.device_report(), group: case.group_report(), findings })
    }
}

impl DeviceCase<'_> {
    fn device_report(&self) -> DeviceSummary {
        let one = self.device;
        DeviceSummary {
            function: one.at.to_string(),
            names: one.names.clone(),
            id: one.id_text(),
            kind: one.kind_name(),
            driver: one.driver.clone(),
            unit: one.unit.clone(),
            numa: one.numa,
            windows: one.windows.clone(),
            configuration: one.extent,
            way_up: self.pci.way_up(one.at).iter().map(|node| node.at.to_string()).collect(),
        }
    }

    fn group_report(&self) -> GroupFacts {
        GroupFacts {
            number: self.device.group,
            mode: self.pci.mode(&self.subject.files, self.device.at),
            functions: self.members.iter().map(|one| one.at.to_string()).collect(),
        }
    }
}

/// The report as text.
pub fn text(report: &DeviceAnswers, columns: usize) -> String {
    let DeviceSummary { function, names, id, kind, driver, .. } = &report.device;
    let driver =
        driver.as_ref().map_or("no driver".to_owned(), |driver| format!("driver {driver}"));
    let names = names.iter().map(|name| format!(" {name}")).collect::<String>();
    let head = format!("{function}{names}: {kind}, {id}, {driver}\n\n");
    wrapped(&(head + &finding::text(&report.findings)), columns)
}
