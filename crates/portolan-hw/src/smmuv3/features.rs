//! Features of a unit: identification registers into a checked value.
//!
//! IHI 0070, section 6.3.1 and following (IDR0, IDR1, IDR3, IDR5, IIDR). Units that only walk 32-bit or
//! big-endian tables, whose tables or queues are preset, or that insist on stalls are refused.
//!
//! *Context.* Interrupt: everything here is a value; [`Features::read`] reads five registers.

use super::quirks::{Errata, Implementation};
use crate::chassis::Present;
use crate::chassis::arm;
use portolan::addr::{PageSize, PageSizes};
use portolan::inval::{
    Caching, Capabilities, Granules, LeafOnly, PageForm, RangeForm, Ranges, WriteBuffer,
};
use portolan::iommu::IommuError;
use portolan::platform::Mmio;
use portolan::table::format::SplitRule;
use portolan_spec::smmuv3::reg;
use portolan_tables::overrides::CoherencyOverride;

/// Treatments of faulting accesses that the unit offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StallModel {
    /// They wait for software, or end.
    Either,
    /// They end.
    Terminate,
}

/// State that the hardware updates in table entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableUpdate {
    /// Nothing.
    None,
    /// The access flag.
    Access,
    /// The access flag and dirty state.
    Dirty,
}

/// Features of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Stage 1.
    pub stage1: bool,
    /// Stage 2.
    pub stage2: bool,
    /// Tables and queues are read through the processors' caches.
    pub coherent: bool,
    /// Hardware update of entries.
    pub update: TableUpdate,
    /// EL2 contexts, whose translations are invalidated when the unit is taken over.
    pub hyp: bool,
    /// Address translation service.
    pub ats: bool,
    /// Page requests.
    pub pri: bool,
    /// Messages on completion.
    pub msi: bool,
    /// Two-level context descriptor tables.
    pub two_level_cd: bool,
    /// Two-level stream tables.
    pub two_level_streams: bool,
    /// Replacement of the memory types and the shareability of accesses.
    pub attribute_override: bool,
    /// Stalls.
    pub stalls: StallModel,
    /// Bits of an ASID.
    pub asid_lg2: u32,
    /// Bits of a VMID.
    pub vmid_lg2: u32,
    /// Bits of a stream number.
    pub stream_lg2: u32,
    /// Bits of a substream number; 0 without substreams.
    pub pasid_lg2: u32,
    /// Exponent of the largest command queue.
    pub command_queue_lg2: u32,
    /// Exponent of the largest event queue.
    pub event_queue_lg2: u32,
    /// Exponent of the largest page-request queue.
    pub page_request_queue_lg2: u32,
    /// Range invalidation and level hints.
    pub range: bool,
    /// Way in which blocks may be replaced by tables.
    pub split: SplitRule,
    /// Output address bits.
    pub output_lg2: u32,
    /// Bits of an input address of stage 1 with 64 KiB pages; 48 with the others.
    pub input_lg2: u32,
    /// Granules.
    pub granules: PageSizes,
    /// Errata of this implementation that the driver works around.
    pub errata: Errata,
}

/// Output sizes by their code.
const SIZES: [u32; 8] = [32, 36, 40, 42, 44, 48, 52, 56];

/// Largest exponents that the architecture allows.
const MAX_QUEUE_LG2: u64 = 19;
const MAX_STREAM_LG2: u64 = 32;
const MAX_PASID_LG2: u64 = 20;

impl Features {
    /// Reads and checks the identification registers.
    ///
    /// # Errors
    /// [`IommuError::Gone`], [`IommuError::Nonsense`] with the register, or
    /// [`IommuError::Unsupported`].
    pub fn read(registers: &impl Mmio) -> Result<Self, IommuError> {
        let read = |offset| registers.present32(offset).map(u64::from);
        let idr = [reg::IDR0, reg::IDR1, reg::IDR3, reg::IDR5].map(read);
        let errata = Implementation::of(registers.read32(reg::IIDR)).errata();
        Ok(Self { errata, ..Self::decode(idr[0]?, idr[1]?, idr[2]?, idr[3]?)? })
    }

    /// The same unit on a board whose firmware says `coherency`, and lets it update no more than `update` in entries.
    #[must_use]
    pub fn on_board(self, coherency: CoherencyOverride, update: Option<TableUpdate>) -> Self {
        let coherent = arm::is_coherent(coherency.apply(arm::walker(self.coherent)));
        let update = update.map_or(self.update, |told| told.min(self.update));
        Self { coherent, update, ..self }
    }

    /// Checks the values of IDR0, IDR1, IDR3 and IDR5, of an implementation without errata.
    ///
    /// # Errors
    /// As [`Features::read`].
    pub fn decode(idr0: u64, idr1: u64, idr3: u64, idr5: u64) -> Result<Self, IommuError> {
        use reg::{idr0 as r0, idr1 as r1, idr3 as r3, idr5 as r5};
        Self::supported(idr0, idr1)?;
        let nonsense = |offset, value| Err(IommuError::Nonsense { offset, value });
        let width = |lg2: u64, most| u32::try_from(lg2).ok().filter(|_| lg2 <= most);
        let idr1_bad = IommuError::Nonsense { offset: reg::IDR1, value: idr1 };
        let queue = |field: portolan_spec::smmuv3::Field| {
            width(field.of(idr1), MAX_QUEUE_LG2).ok_or(idr1_bad)
        };
        let output_lg2 = SIZES[r5::OAS.of(idr5) as usize % SIZES.len()];
        let granules = [r5::GRAN4K, r5::GRAN16K, r5::GRAN64K];
        let granules = arm::granules(granules.map(|field| field.of(idr5) != 0));
        let Some(granules) = granules.filter(|_| r5::VAX.of(idr5) <= 2) else {
            return nonsense(reg::IDR5, idr5);
        };
        if r3::BBML.of(idr3) > 2 {
            return nonsense(reg::IDR3, idr3);
        }
        let sixteen =
            |field: portolan_spec::smmuv3::Field| if field.of(idr0) == 0 { 8 } else { 16 };
        let has = |field: portolan_spec::smmuv3::Field| field.of(idr0) != 0;
        Ok(Self {
            stage1: has(r0::S1P),
            stage2: has(r0::S2P),
            coherent: has(r0::COHACC),
            update: match r0::HTTU.of(idr0) {
                0 => TableUpdate::None,
                1 => TableUpdate::Access,
                // 3 adds access flags of tables, which are left off.
                _ => TableUpdate::Dirty,
            },
            hyp: has(r0::HYP),
            ats: has(r0::ATS),
            pri: has(r0::PRI),
            msi: has(r0::MSI),
            two_level_cd: has(r0::CD2L),
            two_level_streams: has(r0::ST_LEVEL),
            attribute_override: r1::ATTR_TYPES_OVR.of(idr1) != 0,
            stalls: match r0::STALL_MODEL.of(idr0) {
                0 => StallModel::Either,
                _ => StallModel::Terminate,
            },
            asid_lg2: sixteen(r0::ASID16),
            vmid_lg2: sixteen(r0::VMID16),
            stream_lg2: width(r1::SIDSIZE.of(idr1), MAX_STREAM_LG2).ok_or(idr1_bad)?,
            pasid_lg2: width(r1::SSIDSIZE.of(idr1), MAX_PASID_LG2).ok_or(idr1_bad)?,
            command_queue_lg2: queue(r1::CMDQS)?,
            event_queue_lg2: queue(r1::EVENTQS)?,
            page_request_queue_lg2: queue(r1::PRIQS)?,
            range: r3::RIL.of(idr3) != 0,
            split: match r3::BBML.of(idr3) {
                2 => SplitRule::Direct,
                _ => SplitRule::BreakBeforeMake,
            },
            output_lg2,
            // 2 is for tables of 128-bit descriptors, and includes 1.
            input_lg2: if r5::VAX.of(idr5) == 0 { 48 } else { 52 },
            granules,
            errata: Errata::empty(),
        })
    }

    /// Refuses registers that make no sense and units that this driver cannot drive.
    fn supported(idr0: u64, idr1: u64) -> Result<(), IommuError> {
        use reg::{idr0 as r0, idr1 as r1};
        let ttf = r0::TTF.of(idr0);
        let endian = r0::TTENDIAN.of(idr0);
        let stall = r0::STALL_MODEL.of(idr0);
        let no_stage = r0::S1P.of(idr0) == 0 && r0::S2P.of(idr0) == 0;
        // Reserved encodings.
        if no_stage || ttf == 0 || endian == 1 || stall == 3 || r0::ST_LEVEL.of(idr0) > 1 {
            return Err(IommuError::Nonsense { offset: reg::IDR0, value: idr0 });
        }
        let preset = r1::QUEUES_PRESET.of(idr1) | r1::TABLES_PRESET.of(idr1);
        if ttf == 1 || endian == 3 || stall == 2 || preset != 0 {
            return Err(IommuError::Unsupported);
        }
        Ok(())
    }

    /// The code of the output size: of tables of 64 KiB pages up to 52 bits, of others up to 48.
    pub fn output_code(&self, lg2: u32) -> u64 {
        SIZES.iter().rposition(|&size| size <= lg2).unwrap_or(0) as u64
    }

    /// Capabilities for the invalidation plan, for tables of `granule`.
    pub fn capabilities(&self, granule: PageSize) -> Capabilities {
        Capabilities {
            granule,
            page: PageForm::Granule,
            range: match self.range {
                // The fields hold the multiplier less one in five bits; the exponent's field has
                // six, of which five are enough for any range that is not better dropped whole.
                true => RangeForm::NumScale { max_num: 32, max_scale: 31 },
                false => RangeForm::Absent,
            },
            leaf_only: LeafOnly::Present,
            walker: arm::walker(self.coherent),
            caching: Caching::PresentOnly,
            write_buffer: WriteBuffer::Absent,
        }
    }

    /// Its range commands, for any granule of the tables.
    pub(super) fn ranges(&self) -> Ranges {
        Ranges { form: self.capabilities(PageSize::SIZE_4K).range, granules: Granules::Armv8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a published virtual unit says it.
    const GOOD: [u64; 4] = [0x0d40_101a, 0x0273_0010, 0x1404, 0x74];

    fn with(register: usize, clear: u64, set: u64) -> Result<Features, IommuError> {
        let mut idr = GOOD;
        idr[register] = idr[register] & !clear | set;
        Features::decode(idr[0], idr[1], idr[2], idr[3])
    }

    #[test]
    fn an_interconnect_without_atomics_updates_no_entries_whatever_the_unit_says() {
        // HTTU of IDR0: access flag and dirty state.
        let unit = with(0, 3 << 6, 2 << 6).unwrap();
        let told = |update| unit.on_board(CoherencyOverride::AsRegistersSay, update).update;
        assert_eq!(told(None), TableUpdate::Dirty);
        for update in [TableUpdate::None, TableUpdate::Access, TableUpdate::Dirty] {
            assert_eq!(told(Some(update)), update);
        }
        let less = with(0, 3 << 6, 1 << 6).unwrap();
        let more = less.on_board(CoherencyOverride::AsRegistersSay, Some(TableUpdate::Dirty));
        assert_eq!(more.update, TableUpdate::Access);
    }

    #[test]
    fn reads_what_is_there() {
        let features = with(0, 0, 0).unwrap();
        assert_eq!((features.stage1, features.stage2), (true, false));
        assert_eq!((features.asid_lg2, features.vmid_lg2), (16, 8));
        assert_eq!((features.stream_lg2, features.pasid_lg2), (16, 0));
        assert_eq!((features.command_queue_lg2, features.event_queue_lg2), (19, 19));
        assert_eq!((features.output_lg2, features.input_lg2), (44, 48));
        assert_eq!(features.granules.bits(), 1 << 12 | 1 << 14 | 1 << 16);
        assert_eq!((features.range, features.split), (true, SplitRule::Direct));
        assert_eq!((features.coherent, features.msi, features.ats), (true, false, false));
        assert!(features.two_level_streams);
        assert_eq!(features.output_code(44), 4);
        assert_eq!(features.output_code(45), 4);
    }

    #[test]
    fn nonsense_names_the_register() {
        let cases = [
            (0, 3, 0, reg::IDR0),
            (0, 3 << 2, 0, reg::IDR0),
            (0, 3 << 21, 1 << 21, reg::IDR0),
            (0, 3 << 24, 3 << 24, reg::IDR0),
            (0, 3 << 27, 2 << 27, reg::IDR0),
            (1, 0x3f, 33, reg::IDR1),
            (1, 0x1f << 6, 21 << 6, reg::IDR1),
            (1, 0x1f << 21, 20 << 21, reg::IDR1),
            (1, 0x1f << 16, 20 << 16, reg::IDR1),
            (2, 3 << 11, 3 << 11, reg::IDR3),
            (3, 7 << 4, 0, reg::IDR5),
            (3, 3 << 10, 3 << 10, reg::IDR5),
        ];
        for (register, clear, set, at) in cases {
            let found = with(register, clear, set);
            let nonsense =
                matches!(found, Err(IommuError::Nonsense { offset, .. }) if offset == at);
            assert!(nonsense, "{register} {clear:#x} {set:#x}: {found:?}");
        }
    }

    #[test]
    fn units_of_later_versions_are_driven() {
        let tables = with(0, 3 << 6, 3 << 6).unwrap();
        assert_eq!(tables.update, TableUpdate::Dirty);
        let output = with(3, 7, 7).unwrap();
        // Entries and descriptors have no code for more than 52 bits.
        assert_eq!((output.output_lg2, output.output_code(52)), (56, 6));
        let input = with(3, 3 << 10, 2 << 10).unwrap();
        assert_eq!(input.input_lg2, 52);
    }

    #[test]
    fn refuses_what_cannot_be_driven() {
        let cases = [(0, 3 << 2, 1 << 2), (0, 3 << 21, 3 << 21), (0, 3 << 24, 2 << 24)];
        for (register, clear, set) in cases.into_iter().chain([(1, 0, 1 << 29), (1, 0, 1 << 30)]) {
            assert_eq!(with(register, clear, set), Err(IommuError::Unsupported));
        }
    }

    #[test]
    fn no_value_panics() {
        let seed = 0x5eed;
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20_000 {
            let idr = [(); 4].map(|()| u64::from(random.u32(..)));
            if let Ok(features) = Features::decode(idr[0], idr[1], idr[2], idr[3]) {
                assert!(features.command_queue_lg2 <= 19 && features.stream_lg2 <= 32, "{seed}");
            }
        }
    }
}
