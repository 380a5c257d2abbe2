//! The model's memory, and devices that are nothing but a stream number.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan::addr::{Iova, PageSize, Pasid, PhysAddr, StreamId};
use portolan::inval::{Command, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{IommuError, MsiMessage};
use portolan::iopf::{RawPageRequest, ReplyTo, Response};
use portolan::platform::{Nanos, TableMem};
use portolan_chips::Transfer;
use portolan_chips::memory::ModelMemory;
use portolan_sim::decode::AccessKind;

use super::behind::{Access, UnitModel};
use crate::conformance::{Asker, FaultSource, Has, Host, MARK, Raised, Wrote};

/// Address of the model's memory, and its number of pages.
pub(super) const MEMORY: (PhysAddr, u32) = (PhysAddr::new(0x8000_0000), 1 << 12);
/// Virtual nanoseconds between two looks of a waiting driver.
pub(super) const LOOK_NS: u64 = 100;
/// Longest wait of a driver on the model, in virtual time. Responses come at once or never.
pub(super) const LIMIT: Nanos = Nanos::from_millis(5);

/// Memory and devices around a unit of the model.
pub struct ModelHost<B: UnitModel> {
    pub(super) unit: Arc<B>,
    pub(super) memory: Arc<ModelMemory<B::Word>>,
    devices: [StreamId; 2],
}

impl<B: UnitModel> ModelHost<B> {
    /// The unit.
    pub fn unit(&self) -> &B {
        &self.unit
    }

    /// The memory.
    pub fn ram(&self) -> &Arc<ModelMemory<B::Word>> {
        &self.memory
    }

    /// Address that an access reaches; `None` if it is refused.
    fn reach(&self, of: Access) -> Option<PhysAddr> {
        let pieces = self.unit.pieces(of)?;
        pieces.first().map(|piece| piece.pa)
    }

    fn write(&self, device: StreamId, pasid: Option<Pasid>, iova: Iova, value: u32) {
        let of = Access { device, pasid, iova, kind: AccessKind::Write };
        if let Some(pa) = self.reach(of) {
            let _ = self.memory.write_u32(pa, value);
        }
    }

    /// Makes the unit refuse one command, sends it, and returns the driver's result.
    ///
    /// # Errors
    /// The driver's, which has to be one.
    pub fn refuse_one<Q>(&self, queue: &Q) -> Result<(), IommuError>
    where
        Q: InvalidationQueue<Error = IommuError>,
    {
        self.unit.refuse(Some(1));
        let steps = [Step::Invalidate(Command::Global), Step::Sync];
        let answer = queue.pay(&mut steps.into_iter(), TablesLeft::ByDepth);
        self.unit.refuse(None);
        answer
    }

    /// Two devices behind `unit`.
    pub fn new(unit: Arc<B>, memory: Arc<ModelMemory<B::Word>>, devices: [StreamId; 2]) -> Self {
        Self { unit, memory, devices }
    }
}

impl<B: UnitModel> Host for ModelHost<B> {
    const BASE: Iova = B::BASE;

    fn devices(&self) -> [StreamId; 2] {
        self.devices
    }

    fn device_write(&self, device: StreamId, iova: Iova, value: u32) {
        self.write(device, None, iova, value);
    }

    fn device_write_as(&self, device: StreamId, pasid: Pasid, iova: Iova, value: u32) {
        self.write(device, Some(pasid), iova, value);
    }

    fn asker(&self) -> Option<&dyn Asker> {
        self.unit.asks().map(|_| self as &dyn Asker)
    }

    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        self.unit.raise(device, message)
    }

    fn raise_throughout(&self, device: StreamId, message: Option<MsiMessage>) {
        let unit = self.unit.clone();
        self.memory.during_pairs(message.map(|message| {
            Box::new(move || {
                unit.evict_interrupts();
                let _ = unit.raise(device, message);
            }) as _
        }));
    }

    fn let_loose(&self, device: StreamId, iova: Iova) -> Has {
        self.unit.let_loose(device, iova);
        Has::Yes
    }

    fn reached(&self) -> Vec<Vec<Option<PhysAddr>>> {
        self.unit.reached()
    }

    fn change_hands(&self) {
        self.memory.stop_checking();
    }

    fn cut_power(&self) -> Has {
        self.unit.power_cycle();
        Has::Yes
    }

    fn complaints(&self) -> Vec<String> {
        let violations = self.unit.violations().into_iter();
        let mut all: Vec<String> = violations.map(|what| format!("{what:?}")).collect();
        let reads = self.memory.reads_of_freed_pages();
        if reads != 0 {
            all.push(format!("{reads} reads of tables that were given back"));
        }
        all
    }

    fn device_read(&self, device: StreamId, iova: Iova) -> Option<u32> {
        let of = Access { device, pasid: None, iova, kind: AccessKind::Read };
        Some(self.peek(self.reach(of)?))
    }

    fn memory(&self, bytes: u64) -> PhysAddr {
        let lg2 = bytes.max(1).next_power_of_two().trailing_zeros();
        let block = TableMem::alloc(&*self.memory, PageSize::of_lg2(lg2));
        block.unwrap_or(PhysAddr::new(0))
    }

    fn peek(&self, pa: PhysAddr) -> u32 {
        let mut bytes = [0xff; 4];
        let _ = self.memory.read(pa, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn poke(&self, pa: PhysAddr, value: u32) {
        let _ = self.memory.write_u32(pa, value);
    }

    fn refuse(&self, nth: Option<u64>) -> Has {
        self.unit.refuse(nth)
    }

    fn witnessed(&self) -> Option<BTreeMap<String, u64>> {
        Some(self.unit.commands())
    }
}

impl<B: UnitModel> ModelHost<B> {
    fn mark(&self, pa: PhysAddr) -> Wrote {
        match self.memory.write_u32(pa, MARK) {
            Some(()) => Wrote::There,
            None => Wrote::Refused,
        }
    }

    /// Result of a transfer, after its data has arrived in memory.
    fn arrive(&self, transfer: Transfer) -> Wrote {
        match transfer {
            Transfer::Done(pieces) => {
                pieces.first().map_or(Wrote::Refused, |piece| self.mark(piece.pa))
            }
            Transfer::Refused(_) => Wrote::Refused,
            Transfer::Stalled(_) => Wrote::Waits,
        }
    }
}

impl<B: UnitModel> Asker for ModelHost<B> {
    fn write(&self, way: FaultSource, device: StreamId, pasid: Option<Pasid>, iova: Iova) -> Wrote {
        let Some(unit) = self.unit.asks() else {
            return Wrote::Refused;
        };
        match way {
            FaultSource::Stalls => self.arrive(unit.transfer(device, pasid, iova)),
            FaultSource::Requests => {
                let kept = unit.kept(device, pasid, iova);
                kept.map_or(Wrote::Missing, |pa| self.mark(pa))
            }
        }
    }

    fn settled(&self) -> Vec<Wrote> {
        let finished = self.unit.asks().map(|unit| unit.finished()).into_iter().flatten();
        finished.map(|transfer| self.arrive(transfer)).collect()
    }

    fn ask(&self, raw: RawPageRequest) {
        if let Some(unit) = self.unit.asks() {
            unit.ask(raw);
        }
    }

    fn told(&self) -> Vec<(ReplyTo, Response)> {
        self.unit.asks().map(|unit| unit.told()).unwrap_or_default()
    }

    fn unanswered(&self) -> usize {
        self.unit.asks().map_or(0, |unit| unit.unanswered())
    }

    fn strays(&self) -> u64 {
        self.unit.asks().map_or(0, |unit| unit.strays_and_lost().0)
    }

    fn lost(&self) -> u64 {
        self.unit.asks().map_or(0, |unit| unit.strays_and_lost().1)
    }

    fn reset(&self, device: StreamId) {
        if let Some(unit) = self.unit.asks() {
            unit.reset(device);
        }
    }
}
