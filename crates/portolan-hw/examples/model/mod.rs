//! Memory that a buffer owns on the machine of the model, and the other side of a network card there.

use std::error::Error;
use std::ptr::NonNull;
use std::sync::Arc;

use portolan::addr::{Iova, PageSize, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Pieces};
use portolan::platform::TableMem;
use portolan_chips::memory::ModelMemory;
use portolan_chips::vtd::VtdRegisters;
use portolan_sim::decode::AccessKind;

use super::machine::{DEVICE, Machine};

/// Memory of the machine, which it owns.
pub(crate) struct Frames {
    memory: Arc<ModelMemory>,
    at: PhysAddr,
    size: PageSize,
}

impl Frames {
    pub(crate) fn new(memory: &Arc<ModelMemory>, size: PageSize) -> Result<Self, Box<dyn Error>> {
        let at = TableMem::alloc(&**memory, size)?;
        Ok(Self { memory: memory.clone(), at, size })
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        TableMem::free(&*self.memory, self.at, self.size);
    }
}

// SAFETY: the memory stays where it is until the value is dropped, and nothing else owns it.
unsafe impl Buffer for Frames {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(PhysRange::page(self.at, self.size))
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        let words = NonNull::from(TableMem::table(&*self.memory, self.at, self.size));
        Some(NonNull::slice_from_raw_parts(words.cast(), self.size.bytes() as usize))
    }
}

/// The card: reads descriptors from a ring and writes packets, by DMA.
pub(crate) struct Wire {
    unit: Arc<VtdRegisters>,
    memory: Arc<ModelMemory>,
    ring: Iova,
}

impl Wire {
    pub(crate) fn new(machine: &Machine<VtdRegisters>, ring: Iova) -> Self {
        Self { unit: machine.unit.clone(), memory: machine.memory.clone(), ring }
    }

    /// Memory that the card reaches at `at`.
    pub(crate) fn reach(&self, at: Iova, access: AccessKind) -> Result<PhysAddr, Box<dyn Error>> {
        let stream = DEVICE.requester.stream();
        let pieces = self.unit.dma(stream, None, at, access, 8);
        let pieces = pieces.map_err(|fault| format!("refused: {fault:?}"))?;
        Ok(pieces.first().ok_or("no memory")?.pa)
    }

    /// A packet of eight bytes arrives for descriptor `slot`: where the card wrote it.
    pub(crate) fn packet(&self, slot: usize, number: u64) -> Result<Iova, Box<dyn Error>> {
        let descriptor = self.ring.checked_add(8 * slot as u64).ok_or("no descriptor")?;
        let mut at = [0; 8];
        let found = self.reach(descriptor, AccessKind::Read)?;
        self.memory.read(found, &mut at).ok_or("no memory")?;
        let at = Iova::new(u64::from_le_bytes(at));
        let found = self.reach(at, AccessKind::Write)?;
        self.memory.write(found, &number.to_le_bytes()).ok_or("no memory")?;
        Ok(at)
    }
}
