//! From firmware's tables to devices: the units, the one that serves a PCI function with the
//! function's stream, and the addresses reserved for it.
//!
//! * [`Topology`]: the tables: DMAR (VT-d), IORT (SMMUv2 and SMMUv3), IVRS (AMD-Vi), VIOT (virtio-iommu), RIMT
//!   (RISC-V IOMMU), or a device tree (SMMUv3, RISC-V IOMMU).
//! * [`pci`]: the PCI functions, the identifiers that their accesses carry, and groups.
//! * [`Survey`]: both put together, with remarks on entries that make no sense.
//! * [`Iommus`]: the units, enabled; [`Iommus::trusted_device`] opens a device.
//!
//! Sources: those of [`crate::firmware`]. Not supported: SMMUv2 by a device
//! tree (an embedder enables it by its driver, which is an [`IommuDomains`]), and devices that are not PCI functions.

mod check;
mod claim;
mod dmar;
mod error;
mod external;
mod interrupts;
mod iommus;
mod iort;
mod ivrs;
mod madt;
pub mod pci;
mod remark;
mod rimt;
mod riscv;
mod survey;
#[cfg(test)]
mod tests;
mod tree;
mod viot;

pub use claim::{Claim, ClaimUid};
pub use error::{EnableError, OpenError, SenderError, TopologyError};
pub use interrupts::{Controller, FaultInterrupt, Sender};
pub use iommus::{DeviceOptions, Iommus};
pub use remark::Remark;
pub use survey::{Place, ReachedBy, Served, Survey, SurveyedUnit, UnitKind};
pub use tree::Wire;

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PageSize, PciFunction, PhysAddr, PhysRange, StreamId};
use portolan::inval::CombineOptions;
use portolan::iommu::{IommuDomains, IommuError, ReservedRegion};
use portolan::platform::{Platform, RawMemory};

use crate::interrupt::Remapping;
use crate::promise::{self, TrustedDescription};
use crate::reservations::Reserved;
use crate::virtio::Transport;
use external::External;
use madt::IoApics;
use pci::{PciOverrides, PciTree};
use portolan_tables::TableError;
use portolan_tables::sdt::Sdt;
use portolan_tables::viot::Viommu;

/// Options of enabling units.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Options {
    /// Memory that firmware's own devices use.
    pub reserved: FirmwareMemory,
    /// Interrupt remapping of the units: not more than [`Topology::interrupt_remapping`] offers.
    /// Then only interrupts pass of which [`IommuDomains::interrupts`] was told.
    pub interrupts: Option<Remapping>,
    /// Properties of PCI functions that their configuration space does not tell.
    pub pci: PciOverrides,
    /// Has CPUs that invalidate at the same time submit together, at each unit; each submits its own
    /// where it is `None`. A virtio-iommu has nothing to combine: its requests are those of one caller.
    pub combining: Option<CombineOptions>,
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

/// Kind of table: a machine has units of one architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Dmar,
    Iort,
    Ivrs,
    Viot,
    Rimt,
    Tree,
}

/// Firmware's description of a machine's units. It holds a copy of the table, or of the device
/// tree.
///
/// *Context.* Task.
#[derive(Clone, Debug)]
pub struct Topology {
    kind: Kind,
    table: Vec<u8>,
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
            let kind = match table.get(..4) {
                Some(b"DMAR") => Kind::Dmar,
                Some(b"IORT") => Kind::Iort,
                Some(b"IVRS") => Kind::Ivrs,
                Some(b"VIOT") => Kind::Viot,
                Some(b"RIMT") => Kind::Rimt,
                Some(b"APIC") => {
                    io_apics = Some(IoApics::of(table));
                    continue;
                }
                _ => continue,
            };
            match found {
                None => found = Some(Self::of(kind, table)?),
                Some(_) => return Err(TopologyError::TwoTables),
            }
        }
        let found = found.ok_or(TopologyError::NoTable)?;
        Ok(Self { io_apics, ..found })
    }

    /// The topology that a flattened device tree describes.
    ///
    /// # Errors
    /// If it is none, or has neither an SMMU of version 3 nor a RISC-V IOMMU.
    pub fn from_device_tree(tree: &[u8]) -> Result<Self, TopologyError> {
        Self::of(Kind::Tree, tree)
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

    /// The topology of one table, of which a copy is made.
    fn of(kind: Kind, table: &[u8]) -> Result<Self, TopologyError> {
        let length = table.len();
        if length > MOST_BYTES {
            let offset = 0;
            return Err(TableError::Length { offset, length }.into());
        }
        let units = match kind {
            Kind::Dmar => dmar::count(table),
            Kind::Iort => iort::count(table),
            Kind::Ivrs => ivrs::count(table),
            Kind::Viot => viot::count(table),
            Kind::Rimt => rimt::count(table),
            Kind::Tree => tree::count(table),
        };
        match units? {
            0 => return Err(TopologyError::NoUnit),
            1..=MOST_UNITS => {}
            _ => {
                let (offset, most) = (0, MOST_UNITS as u32);
                return Err(TableError::TooMany { offset, most }.into());
            }
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(length).map_err(|_| TopologyError::Memory)?;
        copy.extend_from_slice(table);
        Ok(Self {
            kind,
            table: copy,
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
        let described = match self.kind {
            Kind::Dmar => dmar::survey(&self.table, &read, &mut survey),
            Kind::Iort => iort::survey(&self.table, &mut survey),
            Kind::Ivrs => ivrs::survey(&self.table, &mut survey),
            Kind::Viot => viot::survey(&self.table, &mut survey),
            Kind::Rimt => rimt::survey(&self.table, &mut survey),
            Kind::Tree => tree::survey(&self.table, &mut survey),
        };
        survey.note(described);
        if self.kind != Kind::Tree {
            let summed = Sdt::parse(&self.table).map(drop);
            survey.note(summed.map_err(TopologyError::from));
        }
        let find = |tree: &_, function| self.find(tree, &read, function).ok().flatten();
        survey.complete(overrides, &read, find);
        for &(function, region) in &self.added {
            let found = self.find(survey.tree(), &read, function).ok().flatten();
            match found {
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
    /// reason of the first. A virtio-iommu needs [`Topology::enable_with`].
    pub fn enable<P: Platform>(
        self,
        platform: P,
        options: Options,
        description: TrustedDescription,
    ) -> Result<Iommus<P>, EnableError> {
        self.offers(options, |of, at| platform.pci_config(of, at))?;
        let survey = self.survey(options.pci, |of, at| platform.pci_config(of, at));
        let by = &Enabling { platform: &platform, options, description, survey: &survey };
        let units = match self.kind {
            Kind::Dmar => dmar::enable(&self.table, by)?,
            Kind::Iort => iort::enable(&self.table, by)?,
            Kind::Ivrs => ivrs::enable(&self.table, by)?,
            Kind::Viot => viot::without_transport(&self.table, &survey)?,
            Kind::Rimt => rimt::enable(&self.table, by)?,
            Kind::Tree => tree::enable(&self.table, by)?,
        };
        Iommus::new(self, survey, platform, units)
    }

    /// As [`Topology::enable`], also of machines whose units are virtio-iommu devices: `transport`
    /// starts the queues of the device at that place.
    ///
    /// ```no_run
    /// # use portolan::platform::Platform;
    /// # use portolan::iommu::IommuError;
    /// # use portolan_hw::TrustedDescription;
    /// # use portolan_tables::viot::Viommu;
    /// # use portolan_hw::topology::{EnableError, Iommus, Options, Topology};
    /// # use portolan_hw::virtio::Transport;
    /// # fn of<K: Platform, Q: Transport + Send + Sync + 'static>(
    /// #     kernel: K, tables: &[&[u8]], start: fn(Viommu) -> Result<Q, IommuError>, described: TrustedDescription,
    /// # ) -> Result<Iommus<K>, EnableError> {
    /// let topology = Topology::from_acpi(tables.iter().copied())?;
    /// topology.enable_with(kernel, Options::default(), described, start)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Topology::enable`], and the error of `transport`.
    pub fn enable_with<P: Platform, T: Transport + Send + Sync + 'static>(
        self,
        platform: P,
        options: Options,
        description: TrustedDescription,
        transport: impl Fn(Viommu) -> Result<T, IommuError>,
    ) -> Result<Iommus<P>, EnableError> {
        if self.kind != Kind::Viot {
            return self.enable(platform, options, description);
        }
        self.offers(options, |of, at| platform.pci_config(of, at))?;
        let survey = self.survey(options.pci, |of, at| platform.pci_config(of, at));
        let units = viot::enable(&self.table, &platform, transport, &survey)?;
        Iommus::new(self, survey, platform, units)
    }

    /// The number of the unit, in the order of the table, that serves `function`, and its stream
    /// there; `None` if no unit does.
    fn find(
        &self,
        tree: &PciTree,
        read: ConfigSpace<'_>,
        function: PciFunction,
    ) -> Result<Option<(usize, StreamId)>, TopologyError> {
        let mut moved = self.moved.iter().rev();
        if let Some((_, to)) = moved.find(|(of, _)| *of == function) {
            return Ok(Some(*to));
        }
        match self.kind {
            Kind::Dmar => {
                let named_by = tree.named_by(function, read);
                let named_by = named_by.map_err(TopologyError::VirtualFunctions)?;
                dmar::find(&self.table, read, function, named_by)
            }
            // The others name requester identifiers, of virtual functions too.
            Kind::Iort => iort::find(&self.table, function),
            Kind::Ivrs => ivrs::find(&self.table, function),
            Kind::Viot => viot::find(&self.table, function),
            Kind::Rimt => rimt::find(&self.table, function),
            Kind::Tree => tree::find(&self.table, function),
        }
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
        let reach = self.reach(function)?;
        reach.ok_or(OpenError::NoAddress { function })
    }

    /// The addresses of `function` that arrive at its unit: buses and bridges on the way pass fewer on
    /// than the unit could translate. `None` if those are none.
    fn reach(&self, function: PciFunction) -> Result<Option<IovaRange>, TopologyError> {
        match self.kind {
            Kind::Iort => iort::reach(&self.table, function),
            Kind::Tree => tree::reach(&self.table, function),
            // They say nothing of it.
            Kind::Dmar | Kind::Ivrs | Kind::Viot | Kind::Rimt => {
                Ok(IovaRange::new(Iova::new(0), Iova::new(u64::MAX)))
            }
        }
    }
}

/// Width of the numbers of streams up to `last`.
fn streams_lg2(last: u32) -> u32 {
    u32::BITS - last.leading_zeros()
}

/// Arguments with which units are enabled.
struct Enabling<'p, P> {
    platform: &'p P,
    options: Options,
    description: TrustedDescription,
    survey: &'p Survey,
}

/// A unit that is enabled.
type Enabled = Arc<dyn IommuDomains>;

/// A unit of the table, or why it was not enabled.
type Outcome = Result<Enabled, EnableError>;

/// All `units` of a table, each enabled by `enable`, which is told of the embedder's additions to
/// its reservations. A unit in whose place the survey shows another is not enabled.
fn enable_all<U>(
    units: impl Iterator<Item = Result<U, TopologyError>>,
    survey: &Survey,
    enable: impl Fn(U, &[Reserved]) -> Outcome,
) -> Result<Vec<Outcome>, EnableError> {
    let mut outcomes = Vec::new();
    for (number, unit) in units.enumerate() {
        outcomes.try_reserve(1).map_err(|_| EnableError::Memory)?;
        outcomes.push(match (unit, survey.in_place_of(number)) {
            (Ok(unit), None) => enable(unit, survey.added(number)),
            (Ok(_), Some(shared)) => Err(shared),
            (Err(error), _) => Err(error.into()),
        });
    }
    Ok(outcomes)
}

/// The unit whose registers are at `window`, enabled by `enable` of its driver.
fn enable_at<P: Platform, U: IommuDomains + 'static>(
    by: &Enabling<'_, P>,
    window: PhysRange,
    enable: impl FnOnce(P::Registers, RawMemory<P>, P) -> Result<U, IommuError>,
) -> Outcome {
    let platform = by.platform;
    let registers = promise::registers_of_unit(platform, window, by.description);
    let registers = registers.ok_or(EnableError::NoRegisters { window })?;
    let unit = enable(registers, promise::for_driver(platform), platform.clone());
    let unit = unit.map_err(|error| EnableError::Iommu { window, error })?;
    Ok(Arc::new(unit))
}

/// The registers of a unit: `bytes` from `base` on. They begin with a page, and not with the first one.
fn window(base: PhysAddr, bytes: u64) -> Result<PhysRange, EnableError> {
    let page = base.get() % PageSize::SIZE_4K.bytes() == 0 && base.get() != 0;
    let found = PhysRange::from_len(base, bytes).filter(|_| page);
    let window = PhysRange::page(base, PageSize::of_lg2(0));
    found.ok_or(EnableError::NoRegisters { window })
}
