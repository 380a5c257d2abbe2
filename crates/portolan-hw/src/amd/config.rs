//! Settings of a unit: the embedder's choices, and firmware's knowledge of the machine around the
//! unit.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2.1
//! (fields of an entry), 3.4.5 (the control register) and 5.2 (the IVRS table, in which firmware
//! says this: IVHD of streams, IVMD of memory).
//!
//! *Context.* Interrupt: everything here is a value; cloning a [`Config`] allocates.

use alloc::vec::Vec;

use portolan::inval::{CombineOptions, Quirks};
use portolan::platform::Nanos;
use portolan::table::format::{AmdSizes, DirtyTracking};

use crate::interrupt::Remapping;
use crate::reservations::{Ignored, Reservations};
use portolan_spec::amd::entry;
use portolan_spec::amd::reg::control;
use portolan_tables::ivrs::{
    Devices, HostTranslation, Passes, Settings, SystemManagement, UnitFlags, UnitOrders,
};

/// Settings of a unit.
///
/// ```no_run
/// # use portolan::iommu::IommuError;
/// # use portolan::platform::UnitPlatform;
/// # use portolan_hw::amd::{AmdVi, Capability, Config};
/// /// A unit of one bus, by the capability block in its configuration space.
/// fn open<P: UnitPlatform>(
///     registers: P::Registers, memory: P::Memory, cpus: P, capability: Capability,
/// ) -> Result<AmdVi<P>, IommuError> {
///     let mut config = Config::default();
///     config.streams_lg2 = 8;
///     AmdVi::enable(registers, memory, cpus, capability, config)
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Longest wait for the hardware, each time: for commands, the longest time in which the unit
    /// fetches none.
    pub limit: Nanos,
    /// Commands in the command buffer as an exponent, from 8 to 15.
    pub queue_lg2: u32,
    /// Events in the event log as an exponent, from 8 to 15.
    pub events_lg2: u32,
    /// Streams in the device table as an exponent, from 7 to 16. Others are not of this unit.
    pub streams_lg2: u32,
    /// Width of physical addresses in bits, if the capability block does not say.
    pub output_lg2: u32,
    /// Widest PASID that will be used, in bits; cut off at the unit's own. Up to 9 take one page for each stream that
    /// has guest tables, and each 9 more another page.
    pub pasid_bits: u32,
    /// Quirks that the invalidation plans respect, beyond the hardware's own word.
    pub quirks: Quirks,
    /// Makes CPUs that invalidate at the same time submit together; each submits its own where it
    /// is `None`. See [`Combiner`](portolan::inval::Combiner) for a caller's wait then.
    pub combining: Option<CombineOptions>,
    /// Order and tunnelling of the unit's own traffic, by the flags of firmware's IVHD block.
    /// `None` leaves the control register's value.
    pub flags: Option<UnitFlags>,
    /// Presence of host tables, by firmware's IVHD block. Without them there are domains with guest tables alone, and
    /// [`Config::reserved`] is [`Unsupported`](portolan::iommu::IommuError::Unsupported).
    pub host_translation: HostTranslation,
    /// Interrupts and messages that streams may send, by firmware's IVHD block. A later item
    /// replaces an earlier one of the same stream; streams that none names let nothing special
    /// pass.
    pub streams: Vec<StreamSettings>,
    /// Memory that streams have to reach at its own addresses, from the moment at which the unit is
    /// turned on: memory to which firmware itself does DMA (IVMD blocks).
    pub reserved: Reservations,
    /// Interrupt remapping by the driver; `None` leaves interrupts to an embedder with tables of
    /// its own. [`Unsupported`](portolan::iommu::IommuError::Unsupported) for identifiers of 32
    /// bits without [`AmdFeature::X2APIC`](super::AmdFeature::X2APIC).
    pub interrupts: Option<Remapping>,
    /// Marks of the pages that devices write, in each domain.
    /// [`Unsupported`](portolan::iommu::IommuError::Unsupported) without
    /// [`AmdFeature::MARKS`](super::AmdFeature::MARKS).
    pub dirty: DirtyTracking,
    /// Sizes of the leaves of host tables. With [`AmdSizes::Between`] a part of a mapping that is unmapped alone may
    /// lie in a larger leaf, which has to be split before. Every unit knows all sizes, but with [`Config::dirty`]
    /// there are those of the levels alone.
    pub sizes: AmdSizes,
    /// Page requests in their log as an exponent, from 8 to 15; `None` for no log.
    /// [`Unsupported`](portolan::iommu::IommuError::Unsupported) without
    /// [`AmdFeature::REQUESTS`](super::AmdFeature::REQUESTS).
    pub requests_lg2: Option<u32>,
    /// Interrupts for virtual CPUs that sleep in their log as an exponent, from 9 to 16; `None` if none are posted.
    /// [`Unsupported`](portolan::iommu::IommuError::Unsupported) without
    /// [`AmdFeature::GUEST_APIC`](super::AmdFeature::GUEST_APIC), or without [`Config::interrupts`] with identifiers of
    /// 32 bits.
    pub sleepers_lg2: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: Nanos::from_millis(1000),
            queue_lg2: 8,
            events_lg2: 8,
            streams_lg2: 16,
            output_lg2: 48,
            pasid_bits: 9,
            quirks: Quirks::default(),
            combining: None,
            flags: None,
            host_translation: HostTranslation::Present,
            streams: Vec::new(),
            reserved: Reservations::default(),
            interrupts: None,
            dirty: DirtyTracking::Off,
            sizes: AmdSizes::Levels,
            requests_lg2: None,
            sleepers_lg2: None,
        }
    }
}

impl Config {
    /// Takes over firmware's `orders` for the unit and for the streams of its segment. Memory of a device
    /// with an alias is the alias' as well, whose entry counts.
    ///
    /// # Errors
    /// The first error of the table. All the rest is taken over nevertheless.
    pub fn honour(&mut self, orders: &UnitOrders) -> Result<(), Ignored> {
        self.flags = Some(orders.flags);
        self.host_translation = orders.host_translation;
        let own = self.reserved.read(orders.reserved.iter().copied());
        let of_aliases = self.reserved.read(orders.of_aliases.iter().copied().map(Ok));
        let streams = orders.streams.iter();
        self.streams
            .extend(streams.map(|&(streams, settings)| StreamSettings { streams, settings }));
        let damage = orders.damage.map_or(Ok(()), |error| Err(error.into()));
        own.and(of_aliases).and(damage)
    }
}

/// The bits of the control register for `flags`.
pub(super) fn traffic(flags: UnitFlags) -> u64 {
    let bits = [
        (UnitFlags::HT_TUNNEL, control::TUNNEL),
        (UnitFlags::PASS_POSTED_WRITES, control::PASS_POSTED),
        (UnitFlags::RESPONSES_PASS_POSTED_WRITES, control::RESPONSES_PASS),
        (UnitFlags::ISOCHRONOUS, control::ISOCHRONOUS),
    ];
    let set = bits.into_iter().filter(|(flag, _)| flags.contains(*flag));
    set.fold(0, |all, (_, bit)| all | bit)
}

/// The value of SysMgt for `treatment`.
pub(super) const fn management(treatment: SystemManagement) -> u64 {
    match treatment {
        SystemManagement::Aborted => 0,
        SystemManagement::Posted => 1,
        SystemManagement::Wired => 2,
        SystemManagement::Translated => 3,
    }
}

/// Words 1 and 2 of an entry for `settings`.
pub(super) fn words(settings: Settings) -> [u64; 2] {
    let bits = [
        (Passes::INIT, entry::INIT_PASS),
        (Passes::EXTERNAL, entry::EXTERNAL_PASS),
        (Passes::NMI, entry::NMI_PASS),
        (Passes::LINT0, entry::LINT0_PASS),
        (Passes::LINT1, entry::LINT1_PASS),
    ];
    let passes = settings.passes;
    let set = bits.into_iter().filter(|(flag, _)| passes.contains(*flag));
    let management = entry::SYSTEM_MANAGEMENT.at(management(settings.system_management));
    [management, set.fold(0, |all, (_, bit)| all | bit)]
}

/// Settings of a range of streams, by firmware's IVHD block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// The streams.
    pub streams: Devices,
    /// Interrupts and messages that may pass, and if the device may keep translations once it is
    /// [declared](super::AmdVi::use_device_tlb).
    pub settings: Settings,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_firmware_by_hand() {
        assert_eq!(traffic(UnitFlags::all()), 0xb02);
        let ordered = UnitFlags::PASS_POSTED_WRITES | UnitFlags::ISOCHRONOUS;
        assert_eq!(traffic(ordered), 0x900);
        let settings = |passes, system_management| Settings {
            passes,
            system_management,
            ..Settings::default()
        };
        let all = settings(Passes::all(), SystemManagement::Posted);
        assert_eq!(words(all), [1 << 40, 0xc700_0000_0000_0000]);
        // INIT and LINT1, as an IVHD entry has them.
        let some = Passes::from_bits_truncate(0x81);
        let some = settings(some, SystemManagement::Translated);
        assert_eq!(words(some), [3 << 40, 0x8100_0000_0000_0000]);
        let wired = settings(Passes::empty(), SystemManagement::Wired);
        assert_eq!(words(wired), [2 << 40, 0]);
    }
}
