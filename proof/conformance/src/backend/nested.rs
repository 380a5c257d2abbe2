//! Drivers with a guest's tables over each of their domains: the SMMUv3's first stage over the second, AMD-Vi's guest
//! tables over host tables.
//!
//! At first the guest's tables leave addresses as they are: a table of 512 blocks of 1 GiB with what leads to it, all
//! of which lies behind the domain. For the SMMUv3 that is one context descriptor (DDI 0487, section D8.3; IHI 0070,
//! section 5.4), for AMD-Vi a GCR3 table and the table above (48882, section 2.2.6). Scenarios may write others.

use crate::promise::promised;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::conformance::{GuestStage, Layout};
use portolan::addr::{Iova, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Domain, FaultEvent, Iommu, IommuError, ReservedRegion};
use portolan::platform::{AllMemory, TableMem, UnitPlatform};
use portolan::table::Access;
use portolan::table::format::AmdV2Levels;
use portolan_hw::amd::{AmdDomain, AmdVi, GuestRoots, WithoutPasid};
use portolan_hw::smmuv3::{GuestContexts, GuestFormat, SecondStage, Smmu, WithoutSubstream};

/// Addresses of the guest's own structures, as the guest sees them: what leads to its tables, and those.
const ROOT: Iova = Iova::new(0x10_0000_0000);
const TABLE: Iova = Iova::new(0x10_0000_1000);
const UPPER: Iova = Iova::new(0x10_0000_2000);
const PAGE: PageSize = PageSize::SIZE_4K;

/// Lowest word of the descriptor: 39 bits, pages of 4 KiB, cacheable walks, the lower half only, valid; 44 bits out,
/// AArch64, faults recorded and ended, ASID 1 of its own.
const DESCRIPTOR_WORD: u64 = 25
    | 1 << 8
    | 1 << 10
    | 3 << 12
    | 1 << 30
    | 1 << 31
    | 4 << 32
    | 1 << 41
    | 1 << 45
    | 1 << 46
    | 1 << 47
    | 1 << 48;
/// Bit of that word: faults wait (S).
const STALLS: u64 = 1 << 44;
/// A block: readable and writable by all, shareable, accessed, of its address space.
const BLOCK: u64 = 1 | 1 << 6 | 3 << 8 | 1 << 10 | 1 << 11;
/// Attribute 0: write-back.
const MAIR: u64 = 0xff;

/// Entries of AMD-Vi's guest tables: present, writable, for all, accessed; of a block, written and large as well.
const GUEST_TABLE: u64 = 0x27;
const GUEST_BLOCK: u64 = 0xe7;

/// A driver whose domains with such tables all carry a guest.
pub struct Nested<U> {
    pub(super) unit: U,
    memory: Arc<dyn TableMem<AtomicU64>>,
    /// Addresses of the guest's structures and their memory, the root first.
    pages: Vec<(Iova, PhysAddr)>,
}

impl<U> Nested<U> {
    /// With a page of `memory` for each of `places`.
    fn with(
        unit: U,
        memory: Arc<dyn TableMem<AtomicU64>>,
        places: &[Iova],
    ) -> Result<Self, IommuError> {
        let page = |at: &Iova| Ok((*at, memory.alloc(PAGE)?));
        let pages: Result<_, IommuError> = places.iter().map(page).collect();
        Ok(Self { unit, pages: pages?, memory })
    }

    /// Writes words from the beginning of one of the pages on.
    fn write(&self, place: Iova, words: impl Iterator<Item = u64>) {
        let page = self.pages.iter().find(|(at, _)| *at == place);
        if let Some((_, page)) = page {
            for (word, value) in self.memory.table(*page, PAGE).iter().zip(words) {
                word.store(value, Ordering::Release);
            }
        }
    }

    /// Maps the guest's structures in a domain.
    fn behind(&self, domain: &dyn Domain) -> Result<(), AttachError> {
        let access = Access::READ | Access::WRITE;
        for (iova, pa) in &self.pages {
            if domain.translate(*iova).is_none() {
                let mut owed = Gather::new();
                let mapped = domain.map(*iova, promised(*pa, PAGE.bytes()), access, &mut owed);
                mapped.map_err(|_| AttachError::Mismatch)?;
                domain.sync(&mut owed).map_err(IommuError::from)?;
            }
        }
        Ok(())
    }
}

impl<P: UnitPlatform> Nested<Smmu<P>> {
    /// Writes the guest's structures to `memory`.
    ///
    /// # Errors
    /// Without memory for them.
    pub fn new(smmu: Smmu<P>, memory: Arc<dyn TableMem<AtomicU64>>) -> Result<Self, IommuError> {
        let nested = Self::with(smmu, memory, &[ROOT, TABLE])?;
        nested.write(ROOT, [DESCRIPTOR_WORD, TABLE.get(), 0, MAIR].into_iter());
        nested.write(TABLE, (0..512).map(|gib| gib << 30 | BLOCK));
        Ok(nested)
    }

    /// Makes faults of the guest's stage wait from the next attachment on. An entry without stalls refuses such a
    /// descriptor.
    pub(super) fn stall(&self) {
        self.write(ROOT, std::iter::once(DESCRIPTOR_WORD | STALLS));
    }

    /// Its guests' first stage.
    pub(super) fn guest(&self) -> Option<GuestStage> {
        Some(GuestStage {
            layout: Layout { levels: 3, ..Layout::ARMV8 },
            memory: self.memory.clone(),
            root: self.pages.get(1).map(|(iova, pa)| (*pa, *iova))?,
        })
    }
}

impl<P: UnitPlatform> Nested<AmdVi<P>> {
    /// Writes the guest's structures to `memory`.
    ///
    /// # Errors
    /// Without memory for them.
    pub fn over_amd(
        unit: AmdVi<P>,
        memory: Arc<dyn TableMem<AtomicU64>>,
    ) -> Result<Self, IommuError> {
        let nested = Self::with(unit, memory, &[ROOT, UPPER, TABLE])?;
        nested.write(ROOT, std::iter::once(UPPER.get() | 1));
        nested.write(UPPER, std::iter::once(TABLE.get() | GUEST_TABLE));
        nested.write(TABLE, (0..512).map(|gib| gib << 30 | GUEST_BLOCK));
        Ok(nested)
    }
}

impl<U: Iommu> Iommu for Nested<U> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.unit.block(stream)
    }

    fn pass_through(&self, stream: StreamId, all: AllMemory) -> Result<(), AttachError> {
        self.unit.pass_through(stream, all)
    }

    fn suspend(&self) -> Result<(), IommuError> {
        self.unit.suspend()
    }

    fn resume(&self) -> Result<(), IommuError> {
        self.unit.resume()
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        self.unit.next_fault()
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.unit.reserved(stream, each);
    }
}

impl<P: UnitPlatform> Attach<SecondStage<12, P>> for Nested<Smmu<P>> {
    fn attach(
        &self,
        stream: StreamId,
        domain: &Arc<SecondStage<12, P>>,
    ) -> Result<(), AttachError> {
        self.behind(&**domain)?;
        let guest = GuestContexts {
            table: ROOT,
            format: GuestFormat::Linear,
            lg2: 0,
            without: WithoutSubstream::First,
        };
        self.unit.attach_nested(stream, domain, &guest)
    }
}

impl<P: UnitPlatform> Attach<AmdDomain<P>> for Nested<AmdVi<P>> {
    fn attach(&self, stream: StreamId, domain: &Arc<AmdDomain<P>>) -> Result<(), AttachError> {
        self.behind(&**domain)?;
        let guest = GuestRoots {
            table: ROOT,
            levels: 1,
            paging: AmdV2Levels::Four,
            without: WithoutPasid::Default,
        };
        self.unit.attach_nested(stream, domain, &guest)
    }
}
