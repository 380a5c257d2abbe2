//! The SMMUv3 driver with a guest's first stage over each of its second-stage domains.
//!
//! At first the guest's stage leaves addresses as they are: one table of 512 blocks of 1 GiB (DDI 0487,
//! section D8.3) and one context descriptor (IHI 0070, section 5.4), both of which lie behind the
//! second stage. Scenarios may write others.

use crate::promise::promised;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::conformance::{GuestStage, Layout};
use portolan::addr::{Iova, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{
    Attach, AttachError, Domain as _, FaultEvent, Iommu, IommuError, ReservedRegion,
};
use portolan::platform::{AllMemory, TableMem, UnitPlatform};
use portolan::table::Access;
use portolan_hw::smmuv3::{GuestContexts, GuestFormat, SecondStage, Smmu, WithoutSubstream};

/// Address of the guest's own structures, as the guest sees them.
const DESCRIPTOR: Iova = Iova::new(0x10_0000_0000);
const TABLE: Iova = Iova::new(0x10_0000_1000);
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

/// A driver whose second-stage domains all carry a guest.
pub struct Nested<P: UnitPlatform> {
    pub(super) smmu: Smmu<P>,
    memory: Arc<dyn TableMem<AtomicU64>>,
    descriptor: PhysAddr,
    table: PhysAddr,
}

fn write(memory: &dyn TableMem<AtomicU64>, page: PhysAddr, words: impl Iterator<Item = u64>) {
    for (word, value) in memory.table(page, PAGE).iter().zip(words) {
        word.store(value, Ordering::Release);
    }
}

impl<P: UnitPlatform> Nested<P> {
    /// Writes the guest's structures to `memory`.
    ///
    /// # Errors
    /// Without memory for them.
    pub fn new(smmu: Smmu<P>, memory: Arc<dyn TableMem<AtomicU64>>) -> Result<Self, IommuError> {
        let (descriptor, table) = (memory.alloc(PAGE)?, memory.alloc(PAGE)?);
        let words = [DESCRIPTOR_WORD, TABLE.get(), 0, MAIR];
        write(&*memory, descriptor, words.into_iter());
        write(&*memory, table, (0..512).map(|gib| gib << 30 | BLOCK));
        Ok(Self { smmu, memory, descriptor, table })
    }

    /// Makes faults of the guest's stage wait from the next attachment on. An entry without stalls refuses such a
    /// descriptor.
    pub(super) fn stall(&self) {
        let words = std::iter::once(DESCRIPTOR_WORD | STALLS);
        write(&*self.memory, self.descriptor, words);
    }

    /// Its guests' first stage.
    pub(super) fn guest(&self) -> GuestStage {
        GuestStage {
            layout: Layout { levels: 3, ..Layout::ARMV8 },
            memory: self.memory.clone(),
            root: (self.table, TABLE),
        }
    }
}

impl<P: UnitPlatform> Iommu for Nested<P> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.smmu.block(stream)
    }

    fn pass_through(&self, stream: StreamId, all: AllMemory) -> Result<(), AttachError> {
        self.smmu.pass_through(stream, all)
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        self.smmu.next_fault()
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.smmu.reserved(stream, each);
    }
}

impl<P: UnitPlatform> Attach<SecondStage<12, P>> for Nested<P> {
    fn attach(
        &self,
        stream: StreamId,
        domain: &Arc<SecondStage<12, P>>,
    ) -> Result<(), AttachError> {
        let access = Access::READ | Access::WRITE;
        for (iova, pa) in [(DESCRIPTOR, self.descriptor), (TABLE, self.table)] {
            if domain.translate(iova).is_none() {
                let mut owed = Gather::new();
                let mapped = domain.map(iova, promised(pa, PAGE.bytes()), access, &mut owed);
                mapped.map_err(|_| AttachError::Mismatch)?;
                domain.sync(&mut owed).map_err(IommuError::from)?;
            }
        }
        let guest = GuestContexts {
            table: DESCRIPTOR,
            format: GuestFormat::Linear,
            lg2: 0,
            without: WithoutSubstream::First,
        };
        self.smmu.attach_nested(stream, domain, &guest)
    }
}
