//! Units of a description, each enabled by its driver.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;

use portolan::addr::{PageSize, PciFunction, PhysAddr, PhysRange};
use portolan::iommu::{IommuDomains, IommuError};
use portolan::platform::{Platform, RawMemory};
use portolan_tables::describe::{
    AmdSettings, RiscvSettings, SmmuV3Settings, UnitDescription, UnitSettings, Window,
};
use portolan_tables::iort;
use portolan_tables::viot::Viommu;

use super::chipset::quirks;
use super::join::{implementation, memory_of};
use super::survey::{Place, Survey};
use super::{ConfigSpace, EnableError, FirmwareMemory, Options, Topology};
use crate::amd::{AmdVi, Capability, NotAnIommu};
use crate::interrupt::Remapping;
use crate::promise::{self, TrustedDescription};
use crate::reservations::{Reservations, Reserved};
use crate::riscv::{Messages, RiscvIommu, Signal};
use crate::smmuv2::{Implementation, Inherited, SmmuV2};
use crate::smmuv3::{AtWork, RegisterPages, Smmu, TableUpdate, Want};
use crate::vtd::{Mode, Vtd, VtdFeature};
use crate::{amd, riscv, smmuv2, smmuv3, vtd};

/// Arguments with which units are enabled.
pub(super) struct Enabling<'p, P> {
    pub platform: &'p P,
    pub options: Options,
    pub description: TrustedDescription,
    pub topology: &'p Topology,
    pub survey: &'p Survey,
    /// Context banks of the SMMUs of version 2 so far.
    pub banks: Cell<u16>,
}

/// A unit that is enabled.
pub(super) type Enabled = Arc<dyn IommuDomains>;

/// A unit of the table, or why it was not enabled.
pub(super) type Outcome = Result<Enabled, EnableError>;

/// Offset in configuration space of a function's first window.
const BASE: u16 = 0x10;
/// Bits of that window's word: ports instead of memory; kind of memory; all that are not of the address.
const PORTS: u32 = 1;
const KIND: u32 = 3 << 1;
const KIND_64: u32 = 2 << 1;
const FLAGS: u32 = 0xf;
/// Bytes of a RISC-V unit's registers.
const RISCV_WINDOW: u64 = 0x1000;

impl<P: Platform> Enabling<'_, P> {
    /// All units, each enabled by its driver, or by `virtio`. A unit in whose place the survey shows
    /// another is not enabled.
    pub(super) fn all(
        &self,
        virtio: impl Fn(Viommu) -> Outcome,
    ) -> Result<Vec<Outcome>, EnableError> {
        let mut outcomes = Vec::new();
        for (number, unit) in self.topology.description.units.iter().enumerate() {
            outcomes.try_reserve(1).map_err(|_| EnableError::Memory)?;
            let shared = self.survey.in_place_of(number);
            outcomes.push(match (&unit.settings, shared) {
                (UnitSettings::Damaged(error), _) => Err((*error).into()),
                (_, Some(shared)) => Err(shared),
                (UnitSettings::Virtio(place), None) => virtio(*place),
                (UnitSettings::Vtd { address_lg2 }, None) => self.vtd(number, unit, *address_lg2),
                (UnitSettings::AmdVi(settings), None) => self.amd(number, unit, settings),
                (UnitSettings::Smmu(smmu, _), None) => self.smmu(number, unit, smmu),
                (UnitSettings::SmmuV3(settings), None) => self.smmu_v3(number, unit, settings),
                (UnitSettings::Riscv(settings), None) => self.riscv(number, unit, settings),
                _ => Err(EnableError::NoDriver { kind: unit.kind }),
            });
        }
        Ok(outcomes)
    }

    /// Memory that firmware reserves for the unit's streams, as far as the options let devices reach it.
    fn reserved(&self, unit: &UnitDescription) -> Reservations {
        let mut reserved = self.believed();
        if self.options.reserved == FirmwareMemory::Reached {
            // What makes no sense is left out, and counted there.
            let _ = reserved.read(unit.reserved.iter().copied());
        }
        reserved
    }

    fn believed(&self) -> Reservations {
        let mut reserved = Reservations::default();
        reserved.believe(self.description);
        reserved
    }

    /// Adds the embedder's reservations for streams of a unit.
    fn add_to(&self, number: usize, reserved: &mut Reservations) {
        let added: &[Reserved] = self.survey.added(number);
        let _ = reserved.read(added.iter().copied().map(Ok));
    }

    /// The unit whose registers are at `window`, enabled by `enable` of its driver.
    fn at<U: IommuDomains + 'static>(
        &self,
        window: PhysRange,
        enable: impl FnOnce(P::Registers, RawMemory<P>, P) -> Result<U, IommuError>,
    ) -> Outcome {
        let platform = self.platform;
        let registers = promise::registers_of_unit(platform, window, self.description);
        let registers = registers.ok_or(EnableError::NoRegisters { window })?;
        let unit = enable(registers, promise::for_driver(platform), platform.clone());
        let unit = unit.map_err(|error| EnableError::Iommu { window, error })?;
        Ok(Arc::new(unit))
    }

    fn vtd(&self, number: usize, unit: &UnitDescription, address_lg2: u32) -> Outcome {
        let read: ConfigSpace<'_> = &|of, at| self.platform.pci_config(of, at);
        let segment = unit.segment.unwrap_or_default();
        let mut config = vtd::Config {
            output_lg2: address_lg2,
            chip: quirks(read, segment),
            interrupts: self.options.interrupts,
            combining: self.options.combining,
            reserved: self.believed(),
            ..vtd::Config::default()
        };
        if self.options.reserved == FirmwareMemory::Reached {
            // What makes no sense is left out, and counted there.
            let _ = config.reserved.read(memory_of(&self.topology.description, read, segment));
        }
        self.add_to(number, &mut config.reserved);
        self.at(window_of(unit.place)?, |registers, memory, clock| {
            // First-stage tables are the hardware's own under a hypervisor, too.
            let first = VtdFeature::SCALABLE | VtdFeature::FIRST | VtdFeature::CACHING_MODE;
            config.mode = match vtd::Features::read(&registers)?.has.contains(first) {
                true => Mode::Scalable,
                false => Mode::Legacy,
            };
            Vtd::enable(registers, memory.below(config.output_lg2), clock, config)
        })
    }

    fn amd(&self, number: usize, unit: &UnitDescription, settings: &AmdSettings) -> Outcome {
        let window = window_of(unit.place)?;
        if !settings.host_tables {
            return Err(EnableError::NoHostTables { window });
        }
        let mut capability = capability(self.platform, settings)?;
        capability.physical_lg2 = narrower(capability.physical_lg2, settings.physical_lg2);
        capability.virtual_lg2 = narrower(capability.virtual_lg2, settings.virtual_lg2);
        let mut config = amd::Config {
            interrupts: self.options.interrupts,
            combining: self.options.combining,
            reserved: self.believed(),
            ..amd::Config::default()
        };
        // What makes no sense is left out, and counted there.
        let _ = config.honour(&settings.orders);
        if self.options.reserved == FirmwareMemory::Refused {
            config.reserved = self.believed();
        }
        self.add_to(number, &mut config.reserved);
        self.at(window, |registers, memory, clock| {
            let memory = match capability.physical_lg2 {
                Some(lg2) => memory.below(lg2),
                None => memory,
            };
            AmdVi::enable(registers, memory, clock, capability, config)
        })
    }

    /// Switches the unit on, where firmware says that it is not on of itself.
    fn powered(&self, unit: &UnitDescription, window: PhysRange) -> Result<(), EnableError> {
        if unit.needs_power && !self.platform.power_on(window) {
            return Err(EnableError::NoPower { window });
        }
        Ok(())
    }

    fn smmu_v3(&self, number: usize, unit: &UnitDescription, settings: &SmmuV3Settings) -> Outcome {
        let window = window_of(unit.place)?;
        self.powered(unit, window)?;
        let mut reserved = self.reserved(unit);
        // They pass through until they are opened, as Linux has it.
        let mut at_work = self.at_work(&reserved)?;
        self.add_to(number, &mut reserved);
        if settings.node.is_none() {
            at_work = self.at_work(&reserved)?;
        }
        let mut config = smmuv3::Config {
            coherency: settings.coherency,
            pages: match settings.one_page {
                true => RegisterPages::OnlyFirst,
                false => RegisterPages::Two,
            },
            combining: self.options.combining,
            at_work,
            reserved,
            stream_lg2: unit.last_stream.map_or(smmuv3::Config::default().stream_lg2, lg2_of),
            ..smmuv3::Config::default()
        };
        if let Some(node) = settings.node {
            config.update = Some(update(node.flags));
            // A line without a listener is not heard.
            config.interrupts = Want::IfThere;
            config.stream_lg2 = unit.last_stream.map_or(0, lg2_of);
        }
        self.at(window, |registers, memory, clock| {
            let lg2 = smmuv3::Features::read(&registers)?.output_lg2;
            Smmu::enable(registers, memory.below(lg2), clock, config)
        })
    }

    /// Enables an SMMU of version 2. Those of version 1 are refused by their registers.
    fn smmu(&self, number: usize, unit: &UnitDescription, smmu: &iort::Smmu) -> Outcome {
        let mut reserved = self.reserved(unit);
        let at_work = self.at_work(&reserved)?;
        self.add_to(number, &mut reserved);
        let mut config = smmuv2::Config {
            implementation: implementation(unit, self.banks.get())?,
            coherency: smmu.coherency(),
            at_work,
            reserved,
            ..smmuv2::Config::default()
        };
        let qualcomm = matches!(config.implementation, Implementation::Qualcomm(_));
        if qualcomm && self.options.reserved == FirmwareMemory::Reached {
            // A display: firmware's tables do not name what it uses.
            config.inherited =
                Inherited::PassThrough(promise::of_devices_at_work(self.description));
        }
        let bytes = smmu.registers.len_minus_one().saturating_add(1);
        self.at(window_of(unit.place)?, |registers, memory, clock| {
            let features = smmuv2::Features::read(&registers)?;
            features.fits(bytes)?;
            let memory = memory.below(features.output_lg2);
            let unit = SmmuV2::enable(registers, memory, clock, config)?;
            self.banks.set(self.banks.get().saturating_add(features.banks as u16));
            Ok(unit)
        })
    }

    /// Streams whose devices firmware has at work, with leave for them to pass through until they are opened.
    fn at_work(&self, reserved: &Reservations) -> Result<Vec<AtWork>, EnableError> {
        let all = promise::of_devices_at_work(self.description);
        let streams = reserved.at_work().map_err(|_| EnableError::Memory)?;
        Ok(streams.into_iter().map(|stream| AtWork { stream, all }).collect())
    }

    /// Where a RISC-V IOMMU has no wires, even if the table names some, it does not tell of faults.
    fn riscv(&self, number: usize, unit: &UnitDescription, settings: &RiscvSettings) -> Outcome {
        let window = match unit.place {
            Place::Function(at) => riscv_window(self.platform, at, settings.windows.as_deref())?,
            place => window_of(place)?,
        };
        self.powered(unit, window)?;
        let mut config = riscv::Config {
            combining: self.options.combining,
            reserved: self.reserved(unit),
            ..riscv::Config::default()
        };
        self.add_to(number, &mut config.reserved);
        if let Some(last) = unit.last_stream {
            config.streams_lg2 = lg2_of(last);
        }
        if settings.wired {
            config.signal = Signal::Wired;
        }
        let messages = |wanted: Remapping| {
            let mut messages = Messages::new(settings.files?, self.description);
            messages.lg2_entries = wanted.lg2_entries;
            Some(messages)
        };
        config.interrupts = self.options.interrupts.and_then(messages);
        self.at(window, |registers, memory, clock| {
            if !RiscvIommu::<P>::can_signal(&registers, config.signal)? {
                config.signal = Signal::None;
            }
            let lg2 = riscv::Features::read(&registers)?.output_lg2;
            RiscvIommu::enable(registers, memory.below(lg2), clock, config)
        })
    }
}

/// The registers of a unit.
fn window_of(place: Place) -> Result<PhysRange, EnableError> {
    match place {
        Place::Registers(window) => Ok(window),
        Place::Nowhere(base) => Err(no_registers(base)),
        Place::Function(function) => Err(EnableError::NoWindow { function }),
        _ => Err(no_registers(PhysAddr::new(0))),
    }
}

/// Error of a unit that is said to have its registers from `base` on, where none can be.
pub(super) fn no_registers(base: PhysAddr) -> EnableError {
    let window = PhysRange::page(base, PageSize::of_lg2(0));
    EnableError::NoRegisters { window }
}

/// Width of the numbers of streams up to `last`.
fn lg2_of(last: u32) -> u32 {
    u32::BITS - last.leading_zeros()
}

/// The capability block of a unit of AMD's, in the configuration space of its own PCI function.
fn capability(platform: &impl Platform, settings: &AmdSettings) -> Result<Capability, EnableError> {
    let function = settings.function;
    let word = |number: u16| {
        let offset = settings.capability.checked_add(4 * number)?;
        platform.pci_config(function, offset)
    };
    // An absent function reads as all ones.
    let words = [0, 1, 2, 3, 4].map(|number| word(number).unwrap_or(u32::MAX));
    let no = |error: NotAnIommu| EnableError::NoCapability { function, error };
    Capability::parse(words).map_err(no)
}

/// The narrower of two widths that may both be unknown.
fn narrower(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}

/// State that an SMMU may update in table entries, by the flags of its node (HTTU override).
fn update(flags: u32) -> TableUpdate {
    match flags >> 1 & 3 {
        1 => TableUpdate::Access,
        2 => TableUpdate::Dirty,
        _ => TableUpdate::None,
    }
}

/// The registers of a unit that is the PCI function `at`: its first window, on a bus whose memory
/// processors reach by `windows`.
fn riscv_window(
    platform: &impl Platform,
    at: PciFunction,
    windows: Option<&[Window]>,
) -> Result<PhysRange, EnableError> {
    let none = EnableError::NoWindow { function: at };
    let low = platform.pci_config(at, BASE).ok_or(none)?;
    let high = match low & KIND {
        KIND_64 => platform.pci_config(at, BASE + 4).ok_or(none)?,
        _ => 0,
    };
    let base = u64::from(high) << 32 | u64::from(low & !FLAGS);
    if low & PORTS != 0 || base == 0 {
        return Err(none);
    }
    let base = match windows {
        Some(windows) => windows.iter().find_map(|window| window.reached(base)).ok_or(none)?,
        None => base,
    };
    window_of(Place::of(PhysAddr::new(base), RISCV_WINDOW))
}
