//! Interrupt messages: section 2.2.5, with entries of 32 bits.

use portolan::addr::{PhysAddr, StreamId};

use super::{AmdRegisters, State};
use portolan_sim::decode::WalkMemory;

/// Interrupt that arrives at the CPUs' interrupt controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AmdInterrupt {
    /// The vector.
    pub vector: u8,
    /// The identifier, or the logical address.
    pub destination: u8,
}

/// Bit of a record for a refused interrupt.
const INTERRUPT: u64 = 1 << 51;
/// IO_PAGE_FAULT.
const PAGE_FAULT: u64 = 2;

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

impl AmdRegisters {
    /// Lets the device with identifier `stream` (its low 16 bits) write `data` to `address` in the window of
    /// interrupt messages. Returns the interrupt that arrives; `None` if the unit refuses it, which is logged.
    pub fn message(&self, stream: StreamId, address: u64, data: u32) -> Option<AmdInterrupt> {
        let mut state = self.lock();
        self.go_on(&mut state);
        let arrived = self.remap(&mut state, stream.get() as u16, address, data);
        if arrived.is_none() {
            state.counts.faults += 1;
            let low = PAGE_FAULT << 60 | INTERRUPT | u64::from(stream.get() & 0xffff);
            self.log(&mut state, [low, address]);
        }
        arrived
    }

    fn remap(
        &self,
        state: &mut State,
        device: u16,
        address: u64,
        data: u32,
    ) -> Option<AmdInterrupt> {
        let plain = Some(AmdInterrupt { vector: data as u8, destination: (address >> 12) as u8 });
        if !state.own.registers.enabled() {
            return plain;
        }
        let word = self.interrupt_word(state, device)?;
        if word & 1 == 0 {
            return plain;
        }
        // Fixed and arbitrated alone are remapped.
        if field(data.into(), 8, 3) > 1 {
            return None;
        }
        match field(word, 60, 2) {
            1 => return plain,
            2 => {}
            _ => return None,
        }
        let index = field(data.into(), 0, 11) as u16;
        if u64::from(index) >> field(word, 1, 4) != 0 {
            return None;
        }
        let entry = self.interrupt_entry(state, device, word, index)?;
        let reserved = field(entry.into(), 7, 1) | field(entry.into(), 24, 8);
        if entry & 1 == 0 || reserved != 0 {
            return None;
        }
        Some(AmdInterrupt {
            vector: field(entry.into(), 16, 8) as u8,
            destination: field(entry.into(), 8, 8) as u8,
        })
    }

    /// The word of the device's entry on interrupts, kept or from memory.
    fn interrupt_word(&self, state: &mut State, device: u16) -> Option<u64> {
        if let Some(kept) = state.own.interrupt_words.get(&device) {
            return Some(*kept);
        }
        let base = state.own.registers.device_table;
        let offset = u64::from(device) * 32;
        if offset >= ((base & 0x1ff) + 1) << 12 {
            return None;
        }
        let at = (base & 0x000f_ffff_ffff_f000) + offset + 16;
        let word = self.memory.snooped().read_u64(PhysAddr::new(at))?;
        state.own.interrupt_words.insert(device, word);
        Some(word)
    }

    fn interrupt_entry(
        &self,
        state: &mut State,
        device: u16,
        word: u64,
        index: u16,
    ) -> Option<u32> {
        if let Some(kept) = state.own.interrupts.get(&(device, index)) {
            return Some(*kept);
        }
        let at = (word & 0x000f_ffff_ffff_ffc0) + u64::from(index / 2) * 8;
        let both = self.memory.snooped().read_u64(PhysAddr::new(at))?;
        let entry = (both >> (u32::from(index & 1) * 32)) as u32;
        state.own.interrupts.insert((device, index), entry);
        Some(entry)
    }
}
