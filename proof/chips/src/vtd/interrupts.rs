//! Interrupt messages: sections 5.1 and 5.2 (posting), and the entries and descriptors of 9.10 and 9.11.

use portolan::addr::{PhysAddr, StreamId};

use super::faults::{FaultProcessing, VtdRefusal, reason};
use super::{State, VtdFault, VtdRegisters};
use portolan_sim::decode::WalkMemory;

/// Interrupt that arrives at the CPUs' interrupt controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrived {
    /// The vector.
    pub vector: u8,
    /// The identifier, or the logical address.
    pub destination: u32,
    /// Delivery mode in the message: 0 fixed, 1 lowest priority.
    pub mode: u8,
    /// Kind of the destination.
    pub addressing: Addressing,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivered {
    /// An interrupt arrives: the message's, or a notification of a descriptor's.
    Arrived(Arrived),
    /// It is pending in a descriptor, and no notification is sent.
    Pending,
}

/// Kind of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// An identifier.
    Physical,
    /// A logical address.
    Logical,
}

impl Addressing {
    fn of(bit: u64) -> Self {
        match bit {
            0 => Self::Physical,
            _ => Self::Logical,
        }
    }
}

/// A cached entry, or the reason why there is none.
pub(super) type CachedEntry = Result<[u64; 2], VtdRefusal>;

/// `GCMD.IRE` and `GCMD.CFI`.
const REMAPS: u32 = 1 << 25;
const COMPATIBLE: u32 = 1 << 23;
/// `IRTA.EIME`.
const EXTENDED: u64 = 1 << 11;

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

/// Interrupt of a message that chooses CPU and vector itself.
fn plain(address: u64, data: u32) -> Arrived {
    let data = u64::from(data);
    Arrived {
        vector: field(data, 0, 8) as u8,
        destination: field(address, 12, 8) as u32,
        mode: field(data, 8, 3) as u8,
        addressing: Addressing::of(field(address, 2, 1)),
    }
}

/// Fails if an entry does not let `source` in.
fn verified(high: u64, source: u16) -> Result<(), u8> {
    let id = field(high, 0, 16) as u16;
    let matches = match field(high, 18, 2) {
        0 => true,
        1 => {
            let ignored = [0, 0b100, 0b110, 0b111][field(high, 16, 2) as usize];
            (id ^ source) & !ignored == 0
        }
        2 => (id >> 8..=id & 0xff).contains(&(source >> 8)),
        _ => return Err(reason::INTERRUPT_ENTRY_RESERVED),
    };
    if matches { Ok(()) } else { Err(reason::INTERRUPT_SOURCE) }
}

impl VtdRegisters {
    /// Lets the device with source identifier `stream` (its low 16 bits) write `data` to `address` in the window of
    /// interrupt messages. Returns the interrupt that arrives.
    ///
    /// # Errors
    /// The fault reason, if the unit refuses it.
    pub fn message(&self, stream: StreamId, address: u64, data: u32) -> Result<Arrived, u8> {
        match self.deliver(stream, address, data)? {
            Delivered::Arrived(arrived) => Ok(arrived),
            Delivered::Pending => Err(0),
        }
    }

    /// The same, of which no interrupt may come of itself: then it is pending ([`VtdRegisters::message`] has reason 0).
    ///
    /// # Errors
    /// The fault reason, if the unit refuses it.
    pub fn deliver(&self, stream: StreamId, address: u64, data: u32) -> Result<Delivered, u8> {
        let mut state = self.lock();
        self.go_on(&mut state);
        let source = stream.get() as u16;
        let named = self.remap(&mut state, source, address, data);
        named.map_err(|(index, refusal)| {
            state.counts.faults += 1;
            if refusal.recorded == FaultProcessing::Faults {
                let high = u64::from(refusal.reason) << 32 | u64::from(source);
                let words = [u64::from(index) << 48, high];
                state.own.records.push(VtdFault { words });
                self.enter(&mut state, words);
            }
            refusal.reason
        })
    }

    /// Drops all copies of entries, as a cache with little room does at any time.
    pub fn evict_interrupts(&self) {
        self.lock().own.interrupts.clear();
    }

    fn remap(
        &self,
        state: &mut State,
        source: u16,
        address: u64,
        data: u32,
    ) -> Result<Delivered, (u16, VtdRefusal)> {
        let registers = &state.own.registers;
        let recorded = VtdRefusal::recorded;
        if registers.gsts & REMAPS == 0 {
            return Ok(Delivered::Arrived(plain(address, data)));
        }
        let extended = registers.interrupt_table & EXTENDED != 0;
        if field(address, 4, 1) == 0 {
            if registers.gsts & COMPATIBLE == 0 || extended {
                return Err((0, recorded(reason::INTERRUPT_COMPATIBLE)));
            }
            return Ok(Delivered::Arrived(plain(address, data)));
        }
        let sub = match field(address, 3, 1) {
            0 if data != 0 => return Err((0, recorded(reason::INTERRUPT_RESERVED))),
            0 => 0,
            _ => data & 0xffff,
        };
        let handle = field(address, 5, 15) as u32 | (field(address, 2, 1) as u32) << 15;
        let index = handle + sub;
        let size = 2u32 << field(registers.interrupt_table, 0, 4);
        let Some(index) = u16::try_from(index).ok().filter(|_| index < size) else {
            return Err((index as u16, recorded(reason::INTERRUPT_BEYOND)));
        };
        let [low, high] = self.interrupt_entry(state, index).map_err(|of| (index, of))?;
        verified(high, source).map_err(|reason| (index, recorded(reason)))?;
        if field(low, 15, 1) != 0 {
            let refused = |reason| (index, recorded(reason));
            return self.post([low, high], extended).ok_or(refused(reason::DESCRIPTOR_UNREADABLE));
        }
        let destination = if extended { field(low, 32, 32) } else { field(low, 40, 8) };
        Ok(Delivered::Arrived(Arrived {
            vector: field(low, 16, 8) as u8,
            destination: destination as u32,
            mode: field(low, 5, 3) as u8,
            addressing: Addressing::of(field(low, 2, 1)),
        }))
    }

    /// Posts the interrupt of an entry (5.2.3); none without its descriptor.
    fn post(&self, [low, high]: [u64; 2], extended: bool) -> Option<Delivered> {
        let descriptor = high & 0xffff_ffff_0000_0000 | field(low, 38, 26) << 6;
        let vector = field(low, 16, 8);
        let word = PhysAddr::new(descriptor + vector / 64 * 8);
        let requests = self.memory.read_u64(word)?;
        self.memory.write_u64(word, requests | 1 << (vector % 64))?;
        let at = PhysAddr::new(descriptor + 32);
        let control = self.memory.read_u64(at)?;
        let (outstanding, suppressed) = (control & 1 != 0, control & 2 != 0);
        let urgent = field(low, 14, 1) != 0;
        if outstanding || suppressed && !urgent {
            return Some(Delivered::Pending);
        }
        self.memory.write_u64(at, control | 1)?;
        let destination = if extended { control >> 32 } else { field(control, 40, 8) };
        Some(Delivered::Arrived(Arrived {
            vector: field(control, 16, 8) as u8,
            destination: destination as u32,
            mode: 0,
            addressing: Addressing::Physical,
        }))
    }

    /// An entry, cached or from memory. In caching mode absence is cached too.
    fn interrupt_entry(&self, state: &mut State, index: u16) -> CachedEntry {
        if let Some(cached) = state.own.interrupts.get(&index) {
            return *cached;
        }
        let table = state.own.registers.interrupt_table;
        let at = (table & !0xfff).wrapping_add(u64::from(index) * 16);
        let found = self.read_interrupt(PhysAddr::new(at), table & EXTENDED != 0);
        if found.is_ok() || self.setup.identification.caches_absence() {
            state.own.interrupts.insert(index, found);
        }
        found
    }

    fn read_interrupt(&self, at: PhysAddr, extended: bool) -> CachedEntry {
        let refused = |reason| Err(VtdRefusal::recorded(reason));
        let Some([low, high]) = self.words(at) else {
            return refused(reason::INTERRUPT_UNREADABLE);
        };
        if field(low, 0, 1) == 0 {
            let recorded = super::entries::records(field(low, 1, 1));
            let reason = reason::INTERRUPT_ABSENT;
            return Err(VtdRefusal { reason, recorded });
        }
        let destination = if extended { 0 } else { field(low, 32, 8) | field(low, 48, 16) };
        let posts = self.setup.identification.cap >> 59 & 1 != 0;
        let reserved = match field(low, 15, 1) {
            0 => field(low, 12, 3) | field(low, 24, 8) | destination | high >> 20,
            1 if posts => {
                field(low, 2, 6) | field(low, 12, 2) | field(low, 24, 14) | field(high, 20, 12)
            }
            _ => 1,
        };
        if reserved != 0 {
            return refused(reason::INTERRUPT_ENTRY_RESERVED);
        }
        Ok([low, high])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::{ModelMemory, Visibility};
    use crate::vtd::{VtdIdentification, VtdSetup};
    use portolan::platform::{Mmio as _, TableMem, Word};

    const SOURCE: StreamId = StreamId::new(0x0310);

    /// A unit with queue and interrupt remapping, and a table of 256 entries.
    fn unit(caching: u64) -> (VtdRegisters, u64) {
        let memory = ModelMemory::new(PhysAddr::new(0x10_0000), 16, Visibility::AtOnce);
        let memory = Arc::new(memory);
        let table = TableMem::<std::sync::atomic::AtomicU64>::alloc(
            &*memory,
            portolan::addr::PageSize::SIZE_4K,
        )
        .unwrap()
        .get();
        let id = VtdIdentification::default();
        let identification =
            VtdIdentification { cap: id.cap | caching << 7, ecap: id.ecap | 1 << 3 | 1 << 4, ..id };
        let setup = VtdSetup { identification, ..VtdSetup::default() };
        let unit = VtdRegisters::new(setup, memory);
        unit.write64(0xb8, table | 7);
        unit.write32(0x18, 1 << 24);
        (unit, table)
    }

    fn set(unit: &VtdRegisters, at: u64, value: u64) {
        let size = portolan::addr::PageSize::SIZE_4K;
        let page = PhysAddr::new(at & !0xfff);
        let words: &[std::sync::atomic::AtomicU64] = unit.memory().table(page, size);
        Word::store(&words[at as usize % 0x1000 / 8], value);
    }

    #[test]
    fn an_entry_says_what_arrives_and_who_may_send_it() {
        let (unit, table) = unit(0);
        let plain = unit.message(SOURCE, 0xfee0_3000, 0x41).unwrap();
        assert_eq!((plain.vector, plain.destination), (0x41, 3));
        unit.write32(0x18, REMAPS);
        assert_eq!(unit.message(SOURCE, 0xfee0_3000, 0x41), Err(0x25));
        // Entry 2: vector 0x52 at CPU 5, for the source.
        set(&unit, table + 32, 0x0000_0500_0052_0001);
        set(&unit, table + 40, 0x0004_0310);
        let arrived = unit.message(SOURCE, 0xfee0_0050, 0).unwrap();
        assert_eq!((arrived.vector, arrived.destination), (0x52, 5));
        let other = StreamId::new(0x0311);
        assert_eq!(unit.message(other, 0xfee0_0050, 0), Err(0x26));
        let last = unit.faults().pop().unwrap();
        assert_eq!(last.words, [2 << 48, 0x26 << 32 | 0x0311]);
        // Without the function's bits, by bus, and beyond.
        let cases = [
            (0x7_0310, 0x0317, true),
            (0x7_0310, 0x0318, false),
            (0x8_0204, 0x0410, true),
            (0x8_0204, 0x0510, false),
        ];
        for (high, source, let_in) in cases {
            let (unit, table) = self::unit(0);
            unit.write32(0x18, REMAPS);
            set(&unit, table + 32, 0x0052_0001);
            set(&unit, table + 40, high);
            let sent = unit.message(StreamId::new(source), 0xfee0_0050, 0);
            assert_eq!(sent.is_ok(), let_in, "{high:#x} {source:#x}");
        }
        assert_eq!(unit.message(SOURCE, 0xfee0_2010, 0), Err(0x21));
        assert_eq!(unit.message(SOURCE, 0xfee0_0030, 0), Err(0x22));
        assert_eq!(unit.message(SOURCE, 0xfee0_0050, 1), Err(0x20));
    }

    #[test]
    fn what_was_read_stays_until_told_and_absence_in_caching_mode_alone() {
        for caching in [0, 1] {
            let (unit, table) = unit(caching);
            unit.write32(0x18, REMAPS);
            assert_eq!(unit.message(SOURCE, 0xfee0_0050, 0), Err(0x22));
            set(&unit, table + 32, 0x0052_0001);
            set(&unit, table + 40, 0x0004_0310);
            let sent = unit.message(SOURCE, 0xfee0_0050, 0);
            assert_eq!(sent.is_ok(), caching == 0);
            super::super::forget::invalidate(
                &mut unit.lock(),
                super::super::descriptors::VtdInvalidation::Interrupts { first: 2, last: 2 },
            );
            assert!(unit.message(SOURCE, 0xfee0_0050, 0).is_ok());
            set(&unit, table + 32, 0);
            assert!(unit.message(SOURCE, 0xfee0_0050, 0).is_ok());
            super::super::forget::invalidate(
                &mut unit.lock(),
                super::super::descriptors::VtdInvalidation::Interrupts { first: 0, last: 1 },
            );
            assert!(unit.message(SOURCE, 0xfee0_0050, 0).is_ok());
        }
    }
}
