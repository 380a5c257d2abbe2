//! Devices that the kernel hands to this process, as a machine for the scenarios.
//!
//! One or two of QEMU's `edu` write memory when they are told to; random transfers go to a disk of QEMU's NVMe. The
//! unit is the kernel's: a scenario's maps and unmaps are system calls. [`left_out`] leaves one of them out, which
//! scenarios have to notice. Not supported: other devices, reads by a device.

pub mod left_out;

mod disk;
mod host;

use std::collections::BTreeMap;
use std::fmt;

use portolan::addr::PciFunction;
use portolan_linux::vfio::{self, DeviceName, Interface, OpenError, VfioError};
use thiserror::Error;

use crate::conformance::{Abilities, Has, Line, Outcome, Rig, run};
use host::ProcessHost;
use left_out::{LeftOut, Space, Unit};

/// Functions of this machine that are checked together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    interface: Interface,
    functions: Vec<PciFunction>,
}

/// A text that is not a list of functions.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} names no functions as `lspci -D` does; wanted are {form}", form = Devices::FORM)]
pub struct NoDevices(String);

/// Reason why devices are no machine for scenarios.
#[derive(Debug, Error)]
pub enum DevicesError {
    /// The kernel does not hand them out.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A device does not answer.
    #[error(transparent)]
    Device(#[from] VfioError),
    /// The list has no device that can be told to write.
    #[error("none of the functions is QEMU's edu (1234:11e8), which writes when it is told to")]
    NoEdu,
    /// A device that no scenario uses.
    #[error("{function} is {vendor:04x}:{device:04x}: neither QEMU's edu nor its NVMe")]
    Unknown {
        /// The function.
        function: DeviceName,
        /// Vendor id.
        vendor: u16,
        /// Device id.
        device: u16,
    },
    /// An edu does not work.
    #[error("{function} is an edu that does not write where it is told to: {why}")]
    Edu {
        /// The function.
        function: DeviceName,
        /// Description of the failure.
        why: String,
    },
    /// There is no memory for them.
    #[error("no memory for the devices: {0}")]
    Memory(#[from] std::io::Error),
}

/// The kernel's unit and the devices behind it.
pub type OnKernel = Rig<Unit, Space, ProcessHost>;

impl Devices {
    /// Form of their names on the command line.
    pub const FORM: &str =
        "vfio:FUNCTION[,FUNCTION...] (type 1) and iommufd:FUNCTION[,FUNCTION...]";

    /// Devices that `name` names; `None` if it is not a name of devices.
    pub fn named(name: &str) -> Option<Result<Self, NoDevices>> {
        let (before, list) = name.split_once(':')?;
        let mut all = INTERFACES.into_iter();
        let (interface, _) = all.find(|(_, word)| *word == before)?;
        let functions: Result<_, _> = list.split(',').map(str::parse).collect();
        let devices = functions.map(|functions| Self { interface, functions });
        Some(devices.map_err(|_| NoDevices(name.to_owned())))
    }

    /// Takes them from the drivers that they have.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn bind(&self) -> Result<(), VfioError> {
        self.functions.iter().copied().try_for_each(vfio::bind)
    }

    /// Checks that scenarios can run on them.
    ///
    /// # Errors
    /// The obstacle, and the way to remove it.
    pub fn ready(&self) -> Result<(), DevicesError> {
        self.open(LeftOut::Nothing).map(drop)
    }

    /// Runs all scenarios, and tells `progress` of each.
    pub fn run(&self, progress: &mut dyn FnMut(&Line)) -> Vec<Line> {
        run(|| self.machine(LeftOut::Nothing), progress)
    }

    /// Opens them anew.
    ///
    /// # Errors
    /// [`Outcome::Fail`] if that is not possible.
    pub fn machine(&self, left_out: LeftOut) -> Result<OnKernel, Outcome> {
        let opened = self.open(left_out);
        opened.map_err(|error| Outcome::Fail(error.to_string()))
    }

    fn open(&self, left_out: LeftOut) -> Result<OnKernel, DevicesError> {
        let opened = vfio::open_by(self.interface, &self.functions)?;
        let host = ProcessHost::new(&opened)?;
        let abilities = Abilities { second: host.second(), ..ABILITIES };
        let unit = Unit::new(opened.unit, left_out);
        let rig = Rig::new(
            unit,
            host,
            |unit| Ok(unit.domain()),
            |unit| {
                let counts = unit.counts();
                let counts = [("map", counts.map), ("unmap", counts.unmap)];
                BTreeMap::from(counts.map(|(name, count)| (name.to_owned(), count)))
            },
        );
        Ok(Rig { abilities, ..rig })
    }
}

/// The kernel's interfaces, and the words for them.
const INTERFACES: [(Interface, &str); 2] =
    [(Interface::Type1, "vfio"), (Interface::Iommufd, "iommufd")];

const UNTOLD: Has = Has::No("the kernel tells a process of no faults");
const ABILITIES: Abilities = Abilities {
    // Unmapped pages stay in the cache until the debt is paid.
    caches: Has::Yes,
    page_exact: Has::No("one call unmaps all neighbours that are not wanted any more"),
    records: UNTOLD,
    reasons: UNTOLD,
    details_of_blocked: UNTOLD,
    pass_through: Has::No("the kernel passes no device of a process through"),
    blocks: Has::No("the kernel does not cut what was mapped as one"),
    reads: Has::No("what an edu reads it keeps to itself"),
    ..Abilities::ALL
};

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = INTERFACES.into_iter();
        let named = all.find(|(interface, _)| *interface == self.interface);
        f.write_str(named.map_or("", |(_, word)| word))?;
        for (n, function) in self.functions.iter().enumerate() {
            let before = if n == 0 { ":" } else { "," };
            write!(f, "{before}{function}")?;
        }
        Ok(())
    }
}
