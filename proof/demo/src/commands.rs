//! Commands that the IOMMUs were given.

use alloc::vec::Vec;

use portolan::platform::Platform;
use portolan_hw::topology::Iommus;

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
