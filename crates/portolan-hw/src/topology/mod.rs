//! From firmware's tables to devices: the units, the one that serves a PCI function with the
//! function's stream, and the addresses reserved for it.
//!
//! * [`Topology`]: the tables: DMAR (VT-d), IORT (SMMUv2 and SMMUv3), IVRS (AMD-Vi), VIOT (virtio-iommu), RIMT
//!   (RISC-V IOMMU), or a device tree (SMMUv3, RISC-V IOMMU, virtio-iommu).
//! * [`pci`]: the PCI functions, the identifiers that their accesses carry, and groups.
//! * [`Survey`]: both put together, with remarks on entries that make no sense.
//! * [`Iommus`]: the units, enabled; [`Iommus::trusted_device`] opens a PCI function,
//!   [`Iommus::platform_device`] a device that is none.
//!
//! Sources: those of [`portolan_tables`]. Not supported: SMMUv2 by a device
//! tree (an embedder enables it by its driver, which is an
//! [`IommuDomains`](portolan::iommu::IommuDomains)), and devices that IORT or RIMT names by paths of the ACPI name
//! space.

mod check;
mod chipset;
mod enable;
mod error;
mod external;
mod handover;
mod interrupts;
mod iommus;
mod join;
pub mod pci;
mod platform_device;
mod power;
mod remark;
mod serve;
mod survey;
#[cfg(test)]
mod tests;
mod unserved;

pub use enable::former::{Adoption, TakenOver};
pub use error::{EnableError, OpenError, SenderError, TopologyError};
pub use handover::HandedOver;
pub use interrupts::{Controller, FaultInterrupt, Sender};
pub use iommus::{DeviceOptions, Iommus, SpaceScope};
pub use platform_device::PlatformDevice;
pub use portolan_tables::claim::{Claim, ClaimUid};
pub use portolan_tables::wires::Wire;
pub use power::PowerError;
pub use remark::Remark;
pub use survey::{Place, ReachedBy, Served, Survey, SurveyedUnit, UnitKind};

use alloc::vec::Vec;
use core::cell::Cell;

use portolan::addr::{IovaRange, PciFunction, StreamId};
use portolan::inval::CombineOptions;
use portolan::iommu::{IommuError, ReservedRegion};
use portolan::platform::Platform;
use portolan_tables::TableError;
use portolan_tables::describe::{Description, TableKind};
use portolan_tables::madt::IoApics;
use portolan_tables::viot::Viommu;

use crate::interrupt::Remapping;
use crate::promise::TrustedDescription;
use crate::reservations::Reserved;
use enable::Enabling;
use enable::former::Former;
use external::External;
use pci::PciOverrides;

/// Options of enabling units.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Options {
    /// Memory that firmware's own devices use.
    pub reserved: FirmwareMemory,
    /// Interrupt remapping of the units: not more than [`Topology::interrupt_remapping`] offers.
    /// Then only interrupts pass of which
    /// [`IommuDomains::interrupts`](portolan::iommu::IommuDomains::interrupts) was told.
    pub interrupts: Option<Remapping>,
    /// Properties of PCI functions that their configuration space does not tell.
    pub pci: PciOverrides,
    /// Has CPUs that invalidate at the same time submit together, at each unit; each submits its own
    /// where it is `None`. A virtio-iommu has nothing to combine: its requests are those of one caller.
    pub combining: Option<CombineOptions>,
    /// Gives each CPU a command queue of its own in SMMUs of version 3 that have enhanced command queues. Their
    /// registers are then mapped as far as the unit says that its control pages reach.
    pub enhanced_queues: bool,
}

/// Treatment of memory that a device goes on using by firmware's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FirmwareMemory {
    /// The device reaches it, at its own addresses.
    #[default]
    Reached,
    /// The device does not reach it: for a machine whose firmware is not trusted.
    Refused,
}

/// Reads 32 bits of a function's configuration space at an offset, all ones or nothing where there is
/// none.
type ConfigSpace<'c> = &'c dyn Fn(PciFunction, u16) -> Option<u32>;

/// Units that a table may have: as many as Linux reads of a DMAR table.
const MOST_UNITS: usize = 1024;
/// Bytes that a table may have. Longer bytes are no table; walks of it end in time.
const MOST_BYTES: usize = 1 << 20;

/// A machine's units as firmware describes them, with the embedder's corrections. It holds no bytes of
/// firmware's.
///
/// *Context.* Task.
#[derive(Clone, Debug)]
pub struct Topology {
    description: Description,
    /// Those that the machine has, if that was said.
    io_apics: Option<IoApics>,
    added: Vec<(PciFunction, ReservedRegion)>,
    moved: Vec<(PciFunction, (usize, StreamId))>,
    external: External,
}

impl Topology {
    /// The topology that one of `tables` describes: whole ACPI tables, of which those of other
    /// signatures are passed over. That of I/O APICs (MADT), if it is among them, decides if
    /// interrupts can be remapped.
    ///
    /// # Errors
    /// If there is none, or the first one found is damaged or has no unit.
    pub fn from_acpi<'t>(
        tables: impl IntoIterator<Item = &'t [u8]>,
    ) -> Result<Self, TopologyError> {
        let mut found: Option<Self> = None;
        let mut io_apics = None;
        for table in tables {
            if table.starts_with(b"APIC") {
                io_apics = Some(IoApics::of(table));
            }
            match (TableKind::of(table), &found) {
                (None, _) => {}
                (Some(_), None) => {
                    is_short(table)?;
                    found = Some(Self::of(Description::of_table(table)?)?);
                }
                (Some(_), Some(_)) => return Err(TopologyError::TwoTables),
            }
        }
        let found = found.ok_or(TopologyError::NoTable)?;
        Ok(Self { io_apics, ..found })
    }

    /// The topology that a flattened device tree describes.
    ///
    /// # Errors
    /// If it is none, or has no SMMU of version 3, RISC-V IOMMU or virtio-iommu.
    pub fn from_device_tree(tree: &[u8]) -> Result<Self, TopologyError> {
        is_short(tree)?;
        Self::of(Description::of_tree(tree).ok_or(TopologyError::NoTree)?)
    }

    /// Adds a region that firmware should have reserved for `function`: memory that it goes on
    /// using and that no table names (Xen's `rmrr=` and `ivmd=`), or addresses that it must not
    /// get. A function that no unit serves is remarked on. It holds with any [`Options::reserved`].
    #[must_use]
    pub fn reserving(mut self, function: PciFunction, region: ReservedRegion) -> Self {
        self.added.push((function, region));
        self
    }

    /// Corrects firmware's entry of `function`: the unit of that number in the table serves it, and
    /// knows it by `stream`.
    #[must_use]
    pub fn behind(mut self, function: PciFunction, unit: usize, stream: StreamId) -> Self {
        self.moved.push((function, (unit, stream)));
        self
    }

    /// The topology by a description.
    fn of(description: Description) -> Result<Self, TopologyError> {
        match description.units.len() {
            0 => return Err(TopologyError::NoUnit),
            1..=MOST_UNITS => {}
            _ => {
                let (offset, most) = (0, MOST_UNITS as u32);
                return Err(TableError::TooMany { offset, most }.into());
            }
        }
        Ok(Self {
            description,
            io_apics: None,
            added: Vec::new(),
            moved: Vec::new(),
            external: External::default(),
        })
    }

    /// Puts the table and the PCI functions together; no unit is touched. `read` gives 32 bits of a
    /// function's configuration space at an offset, all ones or nothing where there is none.
    /// Entries that make no sense are among the remarks.
    ///
    /// ```
    /// # use portolan::addr::PciFunction;
    /// # use portolan_hw::topology::Topology;
    /// # use portolan_hw::topology::pci::PciOverrides;
    /// fn show(topology: &Topology, config: impl Fn(PciFunction, u16) -> Option<u32>) {
    ///     let survey = topology.survey(PciOverrides::KNOWN, config);
    ///     for (number, unit) in survey.units().iter().enumerate() {
    ///         println!("unit {number}: {}, {}", unit.kind.name(), unit.place);
    ///     }
    ///     for remark in survey.remarks() {
    ///         println!("{remark}");
    ///     }
    /// }
    /// ```
    pub fn survey(
        &self,
        overrides: PciOverrides,
        read: impl Fn(PciFunction, u16) -> Option<u32>,
    ) -> Survey {
        let mut survey = Survey::default();
        self.join(&read, &mut survey);
        let find = |survey: &_, function| self.find(survey, &read, function).ok().flatten();
        survey.complete(overrides, &read, find);
        for &(function, region) in &self.added {
            match find(&survey, function) {
                Some((unit, stream)) => survey.add(unit, Reserved::one(stream, region)),
                None => survey.remark(Remark::AddedNowhere { function }),
            }
        }
        self.look_outside(&mut survey);
        survey
    }

    /// Takes all units over and enables them: every stream is blocked until its device is opened.
    /// Devices that firmware has at work, by the memory that it reserves for them, go on with that memory until
    /// then; behind an SMMU with all of memory, as its tables do not name all that such devices use.
    ///
    /// A unit that does not come up takes no other with it: [`Iommus::units`] has its error, and
    /// each device behind it is refused by name. It is as it was found, or as far as it came: it
    /// may let accesses through, so its devices have to stay stopped. Of two units that are said to
    /// have the same registers neither is enabled: one would be enabled over the other.
    ///
    /// `description` is the promise that the table is this machine's. Registers of SMMUs of version 2
    /// have to be written eight bytes at once where the driver writes so many (`Mmio::write64`).
    ///
    /// # Errors
    /// If firmware does not offer a feature that `options` ask for, or no unit comes up: with the
    /// reason of the first. A virtio-iommu needs `enable_with`, which the driver
    /// for it adds.
    pub fn enable<P: Platform>(
        self,
        platform: P,
        options: Options,
        description: TrustedDescription,
    ) -> Result<Iommus<P>, EnableError> {
        self.enable_from(platform, options, description, None)
    }

    /// Enables all units but those of virtio, or takes them over from a former kernel.
    fn enable_from<P: Platform>(
        self,
        platform: P,
        options: Options,
        description: TrustedDescription,
        former: Option<&Former<'_>>,
    ) -> Result<Iommus<P>, EnableError> {
        self.enable_by(platform, options, description, former, |place, _| {
            let error = IommuError::Unsupported;
            Err(match cfg!(feature = "virtio") {
                true => EnableError::Viommu { place, error },
                false => EnableError::NoDriver { kind: UnitKind::Virtio },
            })
        })
    }

    /// Enables all units, those of virtio by `virtio`.
    fn enable_by<P: Platform>(
        self,
        platform: P,
        options: Options,
        description: TrustedDescription,
        former: Option<&Former<'_>>,
        virtio: impl Fn(Viommu, &P) -> enable::Outcome,
    ) -> Result<Iommus<P>, EnableError> {
        self.offers(options, |of, at| platform.pci_config(of, at))?;
        let survey = self.survey(options.pci, |of, at| platform.pci_config(of, at));
        let enabling = Enabling {
            platform: &platform,
            options,
            description,
            topology: &self,
            survey: &survey,
            banks: Cell::new(0),
            former,
        };
        let units = enabling.all(|place| virtio(place, &platform))?;
        let apic = options.interrupts.map(|wanted| wanted.apic);
        Iommus::new(self, survey, platform, apic, units)
    }

    /// The addresses by which a function reaches its unit once that is enabled, as far as firmware and
    /// configuration space tell. `survey` is of this topology.
    ///
    /// # Errors
    /// The reason for which [`Iommus::device_with`] would refuse the function.
    pub fn addresses(&self, survey: &Survey, served: &Served) -> Result<IovaRange, OpenError> {
        let function = served.function;
        let unit = served.unit.ok_or(OpenError::NotServed { function })?;
        if let Some(error) = survey.refused(unit) {
            return Err(OpenError::NotEnabled { function, unit, error });
        }
        let reach = self.reach(survey, function)?;
        reach.ok_or(OpenError::NoAddress { function })
    }
}

/// Checks that bytes may be a table or a tree.
fn is_short(bytes: &[u8]) -> Result<(), TopologyError> {
    let (offset, length) = (0, bytes.len());
    if length > MOST_BYTES {
        return Err(TableError::Length { offset, length }.into());
    }
    Ok(())
}
