//! Features of a unit: identification registers into a checked value.
//!
//! IHI 0062, `SMMU_IDR0` to `SMMU_IDR2`. Units that walk no AArch64 tables are refused.
//!
//! *Context.* Interrupt: [`Features::read`] reads three registers, all else is a value.

use crate::chassis::arm;
use portolan_spec::Bits32;
use portolan_spec::smmuv2::global::{self, id0, id1, id2};

use crate::chassis::Present;
use portolan::addr::{PageSize, PageSizes};
use portolan::inval::{Caching, Capabilities, LeafOnly, PageForm, RangeForm, WriteBuffer};
use portolan::iommu::IommuError;
use portolan::platform::Mmio;
use portolan_tables::overrides::CoherencyOverride;

/// Way in which accesses find their stream-to-context register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selection {
    /// By stream match registers.
    Matching,
    /// By the stream's number.
    Indexing,
}

/// Features of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Stage 1.
    pub stage1: bool,
    /// Stage 2.
    pub stage2: bool,
    /// Tables are read through the processors' caches, as the unit says or as firmware knows
    /// better.
    pub coherent: bool,
    /// Selection of the register of a stream.
    pub selection: Selection,
    /// Stream-to-context registers.
    pub streams: u32,
    /// Context banks.
    pub banks: u32,
    /// Of those, the first so many are of stage 2 only.
    pub banks_of_stage2: u32,
    /// Exponent of the size of a page of registers.
    pub page_lg2: u32,
    /// Pages of each half of the window.
    pub pages: usize,
    /// Bits of an address that comes in, with AArch64 tables at most 48.
    pub input_lg2: u32,
    /// Bits of an address between the stages.
    pub middle_lg2: u32,
    /// Bits of an address that goes out.
    pub output_lg2: u32,
    /// Granules.
    pub granules: PageSizes,
}

/// Address sizes by their code.
const SIZES: [u32; 6] = [32, 36, 40, 42, 44, 48];
/// The code that only [`id2::UBS`] has: 64 bits, of which tables translate 48.
const UPSTREAM_64: u32 = 0xf;

impl Features {
    /// Reads and checks the identification registers.
    ///
    /// # Errors
    /// [`IommuError::Gone`], [`IommuError::Nonsense`] with the register, or
    /// [`IommuError::Unsupported`].
    pub fn read(registers: &impl Mmio) -> Result<Self, IommuError> {
        let read = |offset| registers.present32(offset);
        Self::decode(read(global::ID0)?, read(global::ID1)?, read(global::ID2)?)
    }

    /// Checks the values of ID0, ID1 and ID2.
    ///
    /// # Errors
    /// As [`Features::read`].
    pub fn decode(id0: u32, id1: u32, id2: u32) -> Result<Self, IommuError> {
        let nonsense = |offset, value: u32| IommuError::Nonsense { offset, value: value.into() };
        let [bad0, bad1, bad2] =
            [nonsense(global::ID0, id0), nonsense(global::ID1, id1), nonsense(global::ID2, id2)];
        let has = |field: Bits32| field.of(id0) != 0;
        let (stage1, stage2) = (has(id0::S1TS), has(id0::S2TS));
        if !stage1 && !stage2 {
            return Err(bad0);
        }
        let (selection, streams) = match id0::SMS.of(id0) {
            0 => (Selection::Indexing, 1 << id0::NUMSIDB.of(id0)),
            // The field counts further than there are registers, and chips of Qualcomm's do.
            _ => (Selection::Matching, id0::NUMSMRG.of(id0).min(global::MOST_STREAMS)),
        };
        if streams == 0 || streams > global::MOST_STREAMS {
            return Err(bad0);
        }
        let pages = 2usize << id1::NUMPAGENDXB.of(id1);
        let (banks, banks_of_stage2) = (id1::NUMCB.of(id1), id1::NUMS2CB.of(id1));
        if banks == 0 || banks > 128 || banks as usize > pages || banks_of_stage2 > banks {
            return Err(bad1);
        }
        let size = |code: u32| SIZES.get(code as usize).copied().ok_or(bad2);
        let input_lg2 = match id2::UBS.of(id2) {
            UPSTREAM_64 => 48,
            code => size(code)?,
        };
        let (middle_lg2, output_lg2) = (size(id2::IAS.of(id2))?, size(id2::OAS.of(id2))?);
        let formats = [id2::PTFSV8_4K, id2::PTFSV8_16K, id2::PTFSV8_64K];
        let formats = formats.map(|field| field.of(id2) != 0);
        let granules = arm::granules(formats).ok_or(IommuError::Unsupported)?;
        Ok(Self {
            stage1,
            stage2,
            coherent: has(id0::CTTW),
            selection,
            streams,
            banks,
            banks_of_stage2,
            page_lg2: if id1::PAGESIZE.of(id1) == 0 { 12 } else { 16 },
            pages,
            input_lg2,
            middle_lg2,
            output_lg2,
            granules,
        })
    }

    /// Checks that the registers up to those of the last context bank are within `bytes`.
    ///
    /// # Errors
    /// [`IommuError::Nonsense`] with the pages of each half in ID1.
    pub(crate) const fn fits(&self, bytes: u64) -> Result<(), IommuError> {
        let needed = (self.pages as u64 + self.banks as u64) << self.page_lg2;
        if needed <= bytes {
            return Ok(());
        }
        let (offset, value) = (global::ID1, self.pages as u64);
        Err(IommuError::Nonsense { offset, value })
    }

    /// The same with firmware's word on coherency, which counts for more than `CTTW`: the unit does
    /// not know its own wiring.
    #[must_use]
    pub fn with_coherency(self, firmware: CoherencyOverride) -> Self {
        let coherent = arm::is_coherent(firmware.apply(arm::walker(self.coherent)));
        Self { coherent, ..self }
    }

    /// Capabilities that invalidation plans may use, for tables with `granule`.
    pub fn capabilities(&self, granule: PageSize) -> Capabilities {
        Capabilities {
            granule,
            page: PageForm::Granule,
            range: RangeForm::Absent,
            leaf_only: LeafOnly::Present,
            walker: arm::walker(self.coherent),
            caching: Caching::PresentOnly,
            write_buffer: WriteBuffer::Absent,
        }
    }

    /// The code of an output width.
    pub(super) fn size_code(lg2: u32) -> u32 {
        let wide_enough = SIZES.iter().position(|size| *size >= lg2);
        wide_enough.unwrap_or(SIZES.len() - 1) as u32
    }
}
