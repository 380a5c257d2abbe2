//! Features of a unit (version, capabilities, extended capabilities), its settings, and chipsets whose
//! units have errors.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 11.4.1 to
//! 11.4.3. Impossible values are refused with the register and its value; reserved ones are
//! ignored.

use crate::chassis::Present;
use crate::interrupt::Remapping;
use crate::reservations::Reservations;
use portolan::addr::{PageSize, PageSizes};
use portolan::dma::{DeviceTlbPresence, PolicyInputs, Shadowing, TrapCost};
use portolan::inval::{
    Caching, Capabilities, CombineOptions, LeafOnly, PageForm, Quirks as PlanQuirks, RangeForm,
    Walker, WriteBuffer,
};
use portolan::iommu::{IommuError, Stage};
use portolan::platform::{AllMemory, Mmio, Nanos};
use portolan::table::format::{DirtyTracking, VtdFirstLevels, VtdLevels};
use portolan_spec::vtd::Bits;
use portolan_spec::vtd::reg::{self, cap, ecap};
pub use portolan_spec::vtd::{INTEL, tylersburg};

/// Declares flags by their numbers, and the fields of the capability registers that say so.
macro_rules! has {
    (
        cap {$($cap:ident = $cap_bit:literal: $($in_cap:ident)+ => $cap_text:literal;)*}
        ecap {$($ecap:ident = $ecap_bit:literal: $in_ecap:ident => $ecap_text:literal;)*}
        version {$($ver:ident = $ver_bit:literal => $ver_text:literal;)*}
    ) => {
        bitflags::bitflags! {
            /// Features that a unit has.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct VtdFeature: u32 {
                $(#[doc = $cap_text] const $cap = 1 << $cap_bit;)*
                $(#[doc = $ecap_text] const $ecap = 1 << $ecap_bit;)*
                $(#[doc = $ver_text] const $ver = 1 << $ver_bit;)*
            }
        }

        const CAP_FLAGS: &[(VtdFeature, Bits)] = &[$($((VtdFeature::$cap, cap::$in_cap)),+),*];
        const ECAP_FLAGS: &[(VtdFeature, Bits)] = &[$((VtdFeature::$ecap, ecap::$in_ecap)),*];
    };
}

has! {
    cap {
        FIRST_FIVE = 10: FS5LP => "First stage with five levels.";
        FIRST_1G = 11: FS1GP => "First-stage pages of 1 GiB.";
        SECOND_2M = 12: SS2M => "Second-stage pages of 2 MiB.";
        SECOND_1G = 13: SS1G => "Second-stage pages of 1 GiB.";
        CACHING_MODE = 16: CM => "Entries that are not present are cached.";
        WRITE_BUFFER = 17: RWBF => "A write buffer that has to be flushed.";
        PROTECTED_MEMORY = 18: PLMR PHMR => "Protected memory regions.";
        PAGE_SELECTIVE = 19: PSI => "Page-selective invalidation.";
        DRAIN_WRITES = 20: DWD => "Drain of writes.";
        DRAIN_READS = 21: DRD => "Drain of reads.";
        ROOT_INVALIDATES = 22: ESRTPS
            => "Setting the root table pointer invalidates all that hangs on it.";
        POSTED_INTERRUPTS = 29: PI => "Interrupts are posted to descriptors of virtual CPUs.";
        INTERRUPT_ROOT_INVALIDATES = 23: ESIRTPS
            => "Setting the interrupt table pointer invalidates all that hangs on it.";
    }
    ecap {
        QUEUE = 0: QI => "Queued invalidation.";
        DEVICE_TLB = 1: DT => "Device TLBs.";
        INTERRUPT_REMAPPING = 2: IR => "Interrupt remapping.";
        PASS_THROUGH = 3: PT => "Pass-through.";
        NESTED = 4: NEST => "Nested translation.";
        PAGE_REQUESTS = 5: PRS => "Page requests.";
        PASID = 6: PASID => "PASIDs.";
        SCALABLE = 7: SMTS => "Scalable mode, which includes queued invalidation.";
        SECOND_MARKS = 28: SSADS => "Accessed and dirty bits in the second stage.";
        SCALABLE_SECOND = 8: SSTS => "Second stage in scalable mode.";
        FIRST = 9: FSTS => "First stage.";
        SNOOPS = 14: C => "Structures are snooped, and legacy page walks.";
        SCALABLE_SNOOPS = 15: SMPWC => "Page walks in scalable mode can snoop.";
        DEVICE_TLB_THROTTLE = 25: DIT
            => "Device-TLB invalidations name the physical function, by which they are throttled.";
        PAGE_REQUEST_DRAIN = 26: PDS => "Page requests on their way can be drained.";
        X2APIC = 27: EIM
            => "Interrupt remapping for local interrupt controllers with identifiers of 32 bits.";
    }
    version {
        REGISTERS = 24 => "Invalidation through registers.";
    }
}

/// End of the registers at fixed places, which those at discovered ones may not overlap.
const FIXED_END: usize = 0xf0;
/// Last major version with invalidation through registers (6.5).
const LAST_WITH_REGISTERS: u64 = 5;
/// Narrowest address width that makes sense: that of one leaf of the largest size.
const MIN_WIDTH: u32 = 30;
/// Widest: five levels.
const MAX_WIDTH: u32 = 57;

/// Features of a unit, checked.
///
/// *Context.* Interrupt, all methods: it is a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Flags.
    pub has: VtdFeature,
    /// Width of domain identifiers in bits.
    pub domain_bits: u32,
    /// Width of PASIDs in bits; 0 without.
    pub pasid_bits: u32,
    /// Width of the addresses that devices may use, in bits.
    pub width: u32,
    /// Largest address mask of an invalidation, an exponent of pages.
    pub max_mask: u8,
    /// Largest index mask of an invalidation of interrupt entries, an exponent of entries.
    pub max_index_mask: u8,
    /// Offset of the fault records.
    pub faults: usize,
    /// Their number.
    pub fault_count: usize,
    /// Offset of the IOTLB registers.
    pub iotlb: usize,
    /// Supported second-stage levels, as `CAP.SAGAW` has them.
    pub(super) agaw: u8,
}

fn nonsense(offset: usize, value: u64) -> IommuError {
    IommuError::Nonsense { offset, value }
}

impl Features {
    /// Reads and checks the identification registers. Changes nothing.
    ///
    /// # Errors
    /// [`IommuError::Gone`], or [`IommuError::Nonsense`] with the register.
    pub fn read(regs: &impl Mmio) -> Result<Self, IommuError> {
        let version = regs.present32(reg::VER)?;
        let (cap_word, ecap_word) = (regs.present64(reg::CAP)?, regs.present64(reg::ECAP)?);
        let major = reg::ver::MAJOR.of(version.into());
        if major == 0 {
            return Err(nonsense(reg::VER, version.into()));
        }
        let mut features = Self::check(cap_word, ecap_word)?;
        let registers = major <= LAST_WITH_REGISTERS;
        features.has.set(VtdFeature::REGISTERS, registers);
        Ok(features)
    }

    /// Checks the two capability registers, of a unit whose version has [`VtdFeature::REGISTERS`].
    ///
    /// # Errors
    /// [`IommuError::Nonsense`].
    pub fn check(cap_word: u64, ecap_word: u64) -> Result<Self, IommuError> {
        let has = flags(cap_word, ecap_word);
        let field = |bits: Bits| bits.of(cap_word);
        let features = Self {
            has,
            domain_bits: 4 + 2 * field(cap::ND) as u32,
            pasid_bits: if has.contains(VtdFeature::PASID) {
                ecap::PSS.of(ecap_word) as u32 + 1
            } else {
                0
            },
            width: field(cap::MGAW) as u32 + 1,
            max_mask: field(cap::MAMV).min(52) as u8,
            max_index_mask: ecap::MHMV.of(ecap_word) as u8,
            faults: field(cap::FRO) as usize * 16,
            fault_count: field(cap::NFR) as usize + 1,
            iotlb: ecap::IRO.of(ecap_word) as usize * 16,
            agaw: (field(cap::SAGAW) & 0b1110) as u8,
        };
        let faults_end = features.faults + features.fault_count * 16;
        let apart = faults_end <= features.iotlb || features.iotlb + 16 <= features.faults;
        if features.domain_bits > 16
            || !(MIN_WIDTH..=MAX_WIDTH).contains(&features.width)
            || features.faults < FIXED_END
        {
            return Err(nonsense(reg::CAP, cap_word));
        }
        if features.pasid_bits > 20 || features.iotlb < FIXED_END || !apart {
            return Err(nonsense(reg::ECAP, ecap_word));
        }
        Ok(features)
    }

    /// The second-stage depths that the unit has, from the smallest.
    pub fn second_levels(&self) -> impl Iterator<Item = VtdLevels> + use<> {
        let agaw = self.agaw;
        [VtdLevels::Three, VtdLevels::Four, VtdLevels::Five]
            .into_iter()
            .filter(move |&levels| agaw >> width_code(levels) & 1 == 1)
    }

    /// The smallest second-stage depth that covers all addresses, or the largest that there is.
    pub fn best_second_levels(&self) -> Option<VtdLevels> {
        let covers = |levels: &VtdLevels| 30 + 9 * width_code(*levels) as u32 >= self.width;
        self.second_levels().find(covers).or(self.second_levels().last())
    }

    /// Tells if the unit translates at all. One that does not may remap interrupts all the same,
    /// and devices behind it reach all memory (chips with a disabled graphics unit; QEMU's
    /// `dma-translation=off`).
    pub fn translates(&self) -> bool {
        self.agaw != 0 || self.has.contains(VtdFeature::FIRST)
    }

    /// Page sizes of second-stage tables.
    pub fn second_sizes(&self) -> PageSizes {
        self.sizes(VtdFeature::SECOND_2M, VtdFeature::SECOND_1G)
    }

    /// Page sizes of first-stage tables, which have pages of 2 MiB always.
    pub fn first_sizes(&self) -> PageSizes {
        self.sizes(VtdFeature::empty(), VtdFeature::FIRST_1G)
    }

    /// Pages of 4 KiB, and each larger size that the unit has together with the one below: blocks are
    /// split into those.
    fn sizes(&self, has_2m: VtdFeature, has_1g: VtdFeature) -> PageSizes {
        let mut sizes = PageSizes::default().with(PageSize::SIZE_4K);
        if self.has.contains(has_2m) {
            sizes = sizes.with(PageSize::SIZE_2M);
            if self.has.contains(has_1g) {
                sizes = sizes.with(PageSize::SIZE_1G);
            }
        }
        sizes
    }

    /// Tells if the unit has first-stage tables of `levels`.
    pub fn has_first(&self, levels: VtdFirstLevels) -> bool {
        let needed = match levels {
            VtdFirstLevels::Four => VtdFeature::FIRST,
            VtdFirstLevels::Five => VtdFeature::FIRST | VtdFeature::FIRST_FIVE,
        };
        self.has.contains(needed)
    }

    /// Capabilities for the invalidation plan, for second-stage tables.
    pub fn second_capabilities(&self, walker: Walker) -> Capabilities {
        let caching = if self.has.contains(VtdFeature::CACHING_MODE) {
            Caching::NotPresentToo
        } else {
            Caching::PresentOnly
        };
        self.capabilities(walker, caching)
    }

    /// Capabilities for the invalidation plan, for first-stage tables: addresses without a mapping
    /// are not cached, caching mode or not (6.1).
    pub fn first_capabilities(&self, walker: Walker) -> Capabilities {
        self.capabilities(walker, Caching::PresentOnly)
    }

    /// Tells if written pages of a domain with tables of `stage` can be marked in `mode`. The first stage marks them
    /// always. Marks are exchanged with the CPU's in one step only where walks snoop.
    pub fn marks(&self, mode: Mode, stage: Stage) -> bool {
        let needed = match stage {
            Stage::First => VtdFeature::FIRST,
            Stage::Second => VtdFeature::SCALABLE_SECOND | VtdFeature::SECOND_MARKS,
        };
        mode == Mode::Scalable && self.has.contains(needed | VtdFeature::SCALABLE_SNOOPS)
    }

    /// Way in which a hypervisor follows second-stage tables: virtual units have caching mode.
    pub fn shadowing(&self) -> Shadowing {
        if self.has.contains(VtdFeature::CACHING_MODE) {
            Shadowing::CachingMode
        } else {
            Shadowing::None
        }
    }

    /// `known` with the unit's own facts when it is used in `mode`: in scalable mode the first
    /// stage is used where there is one. Virtual units have caching mode, and there an invalidation
    /// is an exit.
    pub fn facts(&self, mode: Mode, known: PolicyInputs) -> PolicyInputs {
        let first = mode == Mode::Scalable && self.has.contains(VtdFeature::FIRST);
        let (shadowing, exits) = match self.shadowing() {
            Shadowing::None => (known.shadowing, known.exits),
            shadowing => (shadowing, TrapCost::Expensive),
        };
        PolicyInputs {
            stage: if first { Stage::First } else { Stage::Second },
            shadowing,
            exits,
            device_tlb: if self.has.contains(VtdFeature::DEVICE_TLB) {
                known.device_tlb
            } else {
                DeviceTlbPresence::Absent
            },
            ..known
        }
    }

    fn capabilities(&self, walker: Walker, caching: Caching) -> Capabilities {
        let max_lg2_pages = self.max_mask;
        let (page, range, leaf_only) = if self.has.contains(VtdFeature::PAGE_SELECTIVE) {
            (PageForm::Whole, RangeForm::PowerOfTwo { max_lg2_pages }, LeafOnly::Present)
        } else {
            (PageForm::Absent, RangeForm::Absent, LeafOnly::Absent)
        };
        Capabilities {
            granule: PageSize::SIZE_4K,
            page,
            range,
            leaf_only,
            walker,
            caching,
            write_buffer: if self.has.contains(VtdFeature::WRITE_BUFFER) {
                WriteBuffer::MustFlush
            } else {
                WriteBuffer::Absent
            },
        }
    }
}

fn flags(cap_word: u64, ecap_word: u64) -> VtdFeature {
    let mut has = VtdFeature::REGISTERS;
    for &(flag, bit) in CAP_FLAGS {
        has.set(flag, has.contains(flag) || bit.of(cap_word) != 0);
    }
    for &(flag, bit) in ECAP_FLAGS {
        has.set(flag, bit.of(ecap_word) != 0);
    }
    // Scalable mode hangs on the queue (6.5), and the rest of it on scalable mode.
    if !has.contains(VtdFeature::SCALABLE | VtdFeature::QUEUE) {
        has.remove(
            VtdFeature::SCALABLE
                | VtdFeature::SCALABLE_SECOND
                | VtdFeature::SECOND_MARKS
                | VtdFeature::FIRST
                | VtdFeature::PASID
                | VtdFeature::NESTED,
        );
    }
    if !has.contains(VtdFeature::QUEUE) {
        has.remove(VtdFeature::DEVICE_TLB);
    }
    if !has.contains(VtdFeature::DEVICE_TLB | VtdFeature::SCALABLE) {
        has.remove(VtdFeature::PAGE_REQUESTS | VtdFeature::PAGE_REQUEST_DRAIN);
    }
    if !has.contains(VtdFeature::FIRST | VtdFeature::SCALABLE_SECOND) {
        has.remove(VtdFeature::NESTED);
    }
    has
}

/// The depth as `CAP.SAGAW` numbers its bits and entries encode it: 1 for three levels.
pub(super) const fn width_code(levels: VtdLevels) -> u64 {
    match levels {
        VtdLevels::Three => 1,
        VtdLevels::Four => 2,
        VtdLevels::Five => 3,
    }
}

/// Settings of a unit.
///
/// ```no_run
/// # use portolan::iommu::IommuError;
/// # use portolan::platform::{Nanos, UnitPlatform};
/// # use portolan_hw::vtd::{Config, Mode, Vtd};
/// /// A unit with PASIDs, that is waited for no longer than a tenth of a second.
/// fn open<P: UnitPlatform>(
///     registers: P::Registers, memory: P::Memory, cpus: P,
/// ) -> Result<Vtd<P>, IommuError> {
///     let mut config = Config::default();
///     config.mode = Mode::Scalable;
///     config.limit = Nanos::from_millis(100);
///     Vtd::enable(registers, memory, cpus, config)
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Longest wait for the hardware, each time.
    pub limit: Nanos,
    /// Pages of the invalidation queue as an exponent, 7 at most.
    pub queue_lg2_pages: u32,
    /// Structures by which devices are found.
    /// [`Unsupported`](portolan::iommu::IommuError::Unsupported) if the unit cannot.
    pub mode: Mode,
    /// Way in which invalidations are submitted.
    pub invalidation: Invalidation,
    /// Width of physical addresses in bits.
    pub output_lg2: u32,
    /// Widest PASID that will be used, in bits; cut off at the unit's own.
    pub pasid_bits: u32,
    /// Quirks that the invalidation plans respect, beyond the hardware's own word.
    pub quirks: PlanQuirks,
    /// Makes CPUs that invalidate at the same time submit together; each submits its own where it
    /// is `None`. See [`Combiner`](portolan::inval::Combiner) for a caller's wait then.
    pub combining: Option<CombineOptions>,
    /// Errors of the unit beyond its own word: the quirks of all PCI devices that are part of the
    /// machine ([`Quirks::of`]); [`Quirks::KEEP_TRANSLATION`] for the unit of the graphics
    /// alone.
    pub chip: Quirks,
    /// Memory that devices reach while the unit is taken over from a previous owner.
    pub takeover: Takeover,
    /// Memory that devices go on reaching at its own addresses, beside their other mappings:
    /// regions that firmware lists as reserved (RMRR:
    /// [`Dmar::reserved`](portolan_tables::dmar::Dmar::reserved)).
    pub reserved: Reservations,
    /// Interrupt remapping by the driver; `None` leaves all of that as it is found, for an embedder
    /// with a table of its own. [`Unsupported`](portolan::iommu::IommuError::Unsupported) if the
    /// unit cannot, or without a queue.
    pub interrupts: Option<Remapping>,
    /// Marks of the pages that devices write, in each domain of a stage that the unit marks
    /// ([`Features::marks`]); other domains are refused.
    /// [`Unsupported`](portolan::iommu::IommuError::Unsupported) if it marks neither.
    pub dirty: DirtyTracking,
}

/// Way in which invalidations are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Through the queue if there is one, else through registers.
    Best,
    /// Through registers, in legacy mode only.
    Registers,
}

/// Memory that devices reach while a unit whose translation is on is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// The old mappings, and from the moment on at which the unit changes to the new tables those
    /// of these: translation stays on. The tables have to be of the same mode as those of before,
    /// as a unit changes modes only while translation is off (11.4.5): with another one,
    /// [`Unsupported`](portolan::iommu::IommuError::Unsupported).
    Translated,
    /// All memory, at its own addresses, for a moment: DMA that is under way with the old addresses
    /// lands anywhere. For machines on which no device is at work, and for changing modes.
    Bypass(AllMemory),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: Nanos::from_millis(1000),
            queue_lg2_pages: 0,
            mode: Mode::Legacy,
            invalidation: Invalidation::Best,
            output_lg2: 52,
            pasid_bits: 13,
            quirks: PlanQuirks::default(),
            combining: None,
            chip: Quirks::empty(),
            takeover: Takeover::Translated,
            reserved: Reservations::default(),
            interrupts: None,
            dirty: DirtyTracking::Off,
        }
    }
}

/// Structures by which devices are found.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Requester id to second stage.
    Legacy,
    /// Requester id and PASID to either stage, or both.
    Scalable,
}

/// Base class of display controllers in PCI configuration space.
const DISPLAY: u8 = 0x03;

bitflags::bitflags! {
    /// Errors of the units of a chipset.
    ///
    /// A unit has no identification of its own beyond its capabilities: a chipset is known by its PCI
    /// devices, which firmware's layer or the embedder has to look up. The lists are those of Linux
    /// 6.12 (`drivers/iommu/intel/iommu.c`), facts that no document of Intel's gathers.
    ///
    /// *Context.* Interrupt: a value.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Quirks: u32 {
        /// The write buffer has to be flushed, although `CAP.RWBF` is 0.
        const WRITE_BUFFER = 1;
        /// Graphics of the processor or the chipset do not work translated: they may be passed
        /// through or blocked, and not be attached.
        const GRAPHICS_UNTRANSLATED = 1 << 1;
        /// A unit of graphics alone hangs when translation is turned off while they are at work:
        /// it is left on when the unit is released.
        const KEEP_TRANSLATION = 1 << 2;
        /// The sound controller of the chipset (Azalia) hangs when it is translated: it may be passed
        /// through or blocked, and not be attached. See
        /// [`isochronous_entries`](tylersburg::isochronous_entries).
        const AZALIA_UNTRANSLATED = 1 << 3;
    }
}

/// An identity of a PCI device, as its configuration space has it.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciIdentity {
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Base class.
    pub base_class: u8,
}

/// 4 Series chipsets, desktop and mobile, by host bridge.
const SERIES_4: [u16; 7] = [0x2a40, 0x2e00, 0x2e10, 0x2e20, 0x2e30, 0x2e40, 0x2e90];

/// Chipsets of the first Core generation, by host bridge. Linux translates the graphics of some
/// where firmware sets memory aside for it, with an invalidation at each unmap while they are idle;
/// nothing here knows when they are, so none is translated.
const IRONLAKE: [u16; 4] = [0x0040, 0x0044, 0x0062, 0x006a];

/// Graphics of Broadwell: 0x16, a variant of 0 to 3, and one of these.
const BROADWELL: [u16; 6] = [0x2, 0x6, 0xa, 0xb, 0xd, 0xe];

/// High bytes of graphics whose unit may not be turned off.
const KEPT_ON: [u16; 9] = [0x45, 0x46, 0x4c, 0x4e, 0x7d, 0x8a, 0x98, 0x9a, 0xa7];

impl Quirks {
    /// Quirks of a chipset by the presence of a device. Only of devices that are part of the
    /// machine: one that was plugged in can claim any identity.
    pub fn of(pci: PciIdentity) -> Self {
        let mut quirks = Self::empty();
        let device = pci.device;
        if pci.vendor != INTEL {
            return quirks;
        }
        if SERIES_4.contains(&device) {
            quirks |= Self::WRITE_BUFFER | Self::GRAPHICS_UNTRANSLATED;
        }
        let broadwell = device & 0xffc0 == 0x1600 && BROADWELL.contains(&(device & 0xf));
        if IRONLAKE.contains(&device) || broadwell {
            quirks |= Self::GRAPHICS_UNTRANSLATED;
        }
        if pci.base_class == DISPLAY && KEPT_ON.contains(&(device >> 8)) {
            quirks |= Self::KEEP_TRANSLATION;
        }
        quirks
    }
}
