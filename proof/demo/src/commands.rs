//! Commands that the IOMMUs were given.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use portolan::dma::Trust;
use portolan::platform::Platform;
use portolan_bare::Machine;
use portolan_bare::pci::Function;
use portolan_hw::topology::{DeviceOptions, Iommus};

use crate::say;

/// Number of commands of each kind that all units were given.
pub struct Commands(Vec<(&'static str, u64)>);

impl Commands {
    pub fn of<P: Platform>(iommus: &Iommus<P>) -> Self {
        let mut all: Vec<(&'static str, u64)> = Vec::new();
        for unit in iommus.units().iter().flatten() {
            let mut add = |kind, count| match all.iter_mut().find(|(of, _)| *of == kind) {
                Some((_, sum)) => *sum += count,
                None => all.push((kind, count)),
            };
            unit.commands(&mut add);
        }
        Self(all)
    }

    /// Commands of each kind since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.0.iter().zip(&earlier.0);
        Self(pairs.map(|((kind, now), (_, then))| (*kind, now - then)).collect())
    }

    /// Number of commands of all kinds.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Prints one line for each kind.
    pub fn print(&self) {
        for (kind, count) in self.0.iter().filter(|(_, count)| *count != 0) {
            say!("commands in all: {count} {kind}");
        }
    }

    /// Prints one line for each kind, with the number for each of `requests`.
    pub fn print_for(&self, requests: u64) {
        for (kind, count) in self.0.iter().filter(|(_, count)| *count != 0) {
            let (whole, tenth) = (count / requests, count * 10 / requests % 10);
            say!("  commands: {count} {kind}, {whole}.{tenth} a request");
        }
    }
}

/// The trust that a device can be opened with: without an IOMMU nothing keeps it from memory, so it has to be
/// trusted.
pub fn trust(iommus: &Iommus<Machine>, wanted: Trust) -> Trust {
    match iommus.units().is_empty() {
        true => Trust::Trusted,
        false => wanted,
    }
}

/// The policy of a device that is opened with `options`, and the reason for it.
pub fn policy(
    iommus: &Iommus<Machine>,
    function: &Function,
    options: &DeviceOptions,
) -> (String, &'static str) {
    let trust = options.constraints.trust;
    match iommus.unit_of(function.at()) {
        Ok((unit, _)) => {
            let decision = iommus.decide(&**unit, options);
            (format!("{:?}, {trust:?}", decision.policy), decision.reason)
        }
        Err(_) => (format!("Direct, {trust:?}"), "No IOMMU serves the device."),
    }
}
