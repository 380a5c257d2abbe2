//! Messages of devices, by the entries of MSI page tables: to interrupt files of harts, or into memory-resident ones.
//!
//! RISC-V Advanced Interrupt Architecture, version 1.0, sections "MSI PTE, basic translate mode" and "MSI PTE, MRIF
//! mode". A unit reads both words of an entry in any order: a message that was sent has read the second one, and reads
//! the first as it goes on, at the latest before a fence is complete.

use portolan::addr::{Iova, PhysAddr, StreamId};

use super::contexts::Context;
use super::faults::RiscvRefusal;
use super::{RiscvRegisters, State};
use crate::inject::DmaFault;
use portolan_sim::decode::{AccessKind, WalkMemory as _};
use portolan_sim::request::Request;

/// Bits of the first word in basic translate mode, and in MRIF mode.
const BASIC: u64 = 0xfff_ffff_ffff << 10 | 7;
const FILE: u64 = 0x7fff_ffff_ffff << 7 | 7;
/// Bits of the second word in MRIF mode.
const NOTICE: u64 = 1 << 60 | 0xfff_ffff_ffff << 10 | 0x3ff;

/// Meaning of an entry that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageEntry {
    /// Another page.
    Page(u64),
    /// A file, and the notice: its page and its number.
    File { file: u64, page: u64, number: u32 },
}

/// Place of the entry of a page, and the tag by which it is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedEntry {
    pub tag: u32,
    pub page: u64,
    pub at: PhysAddr,
}

/// A message on its way.
#[derive(Debug)]
pub(super) struct SentMessage {
    of: Request,
    data: u32,
    entry: PlacedEntry,
    second: Option<u64>,
}

/// End of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RiscvDelivered {
    /// The value was written there.
    Written(PhysAddr, u32),
    /// It was stored in a file, and then the notice was written.
    Stored {
        /// The page to which the notice was written.
        page: PhysAddr,
        /// Its number.
        number: u32,
    },
    /// It is no interrupt, and was discarded.
    Discarded,
}

/// The meaning of an entry's words.
fn decode(first: u64, second: u64, has_files: bool) -> Result<MessageEntry, RiscvRefusal> {
    if first & 1 == 0 {
        return Err(RiscvRefusal::NoMessage);
    }
    match first >> 1 & 3 {
        3 if first & !BASIC == 0 => Ok(MessageEntry::Page(first >> 10 << 12)),
        1 if has_files && first & !FILE == 0 && second & !NOTICE == 0 => Ok(MessageEntry::File {
            file: first >> 7 << 9,
            page: (second >> 10 & 0xfff_ffff_ffff) << 12,
            number: (second & 0x3ff | (second >> 60 & 1) << 10) as u32,
        }),
        _ => Err(RiscvRefusal::BadMessage),
    }
}

impl RiscvRegisters {
    /// Lets a device write a message, and goes on with it and with those on their way.
    ///
    /// # Errors
    /// The fault, if it is refused.
    pub fn deliver(
        &self,
        stream: StreamId,
        address: u64,
        data: u32,
    ) -> Result<RiscvDelivered, DmaFault> {
        self.send(stream, address, data);
        let mut state = self.lock();
        self.arrive_all(&mut state);
        state.own.delivered.pop().expect("the message that was sent")
    }

    /// Lets a device write a message, of which the unit reads the second word of its entry, and not yet the first. A
    /// message to a page that is not for messages has arrived.
    pub fn send(&self, stream: StreamId, address: u64, data: u32) {
        let mut state = self.lock();
        self.go_on(&mut state);
        let of = Request::new(stream, None, Iova::new(address), AccessKind::Write);
        let entry = match self.context(&mut state, stream) {
            Ok((Context::Second(tables, Some(messages)), _)) => {
                let page = address >> 12;
                messages.entry(page).map(|at| PlacedEntry { tag: tables.tag, page, at })
            }
            _ => None,
        };
        match entry {
            Some(entry) => {
                let second = self.memory.snooped().read_u64(PhysAddr::new(entry.at.get() + 8));
                state.own.sent.push(SentMessage { of, data, entry, second });
            }
            None => {
                let done = self.translate(&mut state, of);
                let done = done.map(|at| RiscvDelivered::Written(at, data));
                let done = done.map_err(|refusal| self.refuse(&mut state, refusal, of));
                state.own.delivered.push(done);
            }
        }
    }

    /// Takes the ends of messages, oldest first.
    pub fn delivered(&self) -> Vec<Result<RiscvDelivered, DmaFault>> {
        std::mem::take(&mut self.lock().own.delivered)
    }

    /// Goes on with all messages that are on their way.
    pub(super) fn arrive_all(&self, state: &mut State) {
        for message in std::mem::take(&mut state.own.sent) {
            let SentMessage { of, data, entry, second } = message;
            let found = self.message_entry(state, entry, second);
            let done = found.and_then(|entry| self.write_message(entry, of, data));
            let done = done.map_err(|refusal| self.refuse(state, refusal, of));
            state.own.delivered.push(done);
        }
    }

    /// An entry, kept or read: valid ones are kept by the second stage's tag and the page, from any table.
    fn message_entry(
        &self,
        state: &mut State,
        entry: PlacedEntry,
        second: Option<u64>,
    ) -> Result<MessageEntry, RiscvRefusal> {
        let key = (entry.tag, entry.page);
        if let Some(kept) = state.own.messages.get(&key) {
            return Ok(*kept);
        }
        let words = self.memory.snooped().read_u64(entry.at).zip(second);
        let (first, second) = words.ok_or(RiscvRefusal::NoMessageTable)?;
        let found = decode(first, second, self.setup.identification.has_interrupt_files())?;
        state.own.messages.insert(key, found);
        Ok(found)
    }

    /// Writes a message to a file of either kind.
    fn write_message(
        &self,
        entry: MessageEntry,
        of: Request,
        data: u32,
    ) -> Result<RiscvDelivered, RiscvRefusal> {
        let offset = of.iova.get() & 0xfff;
        let (file, page, number) = match entry {
            MessageEntry::Page(page) => {
                return Ok(RiscvDelivered::Written(PhysAddr::new(page | offset), data));
            }
            MessageEntry::File { file, page, number } => (file, page, number),
        };
        if !offset.is_multiple_of(4) {
            return Err(RiscvRefusal::NoSuchMessage);
        }
        // Files of harts here take no messages of the other endianness.
        if offset != 0 || data >> 11 != 0 {
            return Ok(RiscvDelivered::Discarded);
        }
        let word = PhysAddr::new(file + u64::from(data / 64) * 16);
        if !self.set_bit(word, data % 64) {
            return Err(RiscvRefusal::NoMessageFile);
        }
        Ok(RiscvDelivered::Stored { page: PhysAddr::new(page), number })
    }

    /// Sets a bit by an atomic operation (AMOOR); tells if there is memory.
    fn set_bit(&self, word: PhysAddr, bit: u32) -> bool {
        while let Some(old) = self.memory.snooped().read_u64(word) {
            match self.memory.exchange_u64(word, old, old | 1 << bit) {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
        }
        false
    }

    /// Address of an access that is not told to be a message, to the page of an entry.
    pub(super) fn translate_message(
        &self,
        state: &mut State,
        entry: PlacedEntry,
        of: Request,
    ) -> Result<PhysAddr, RiscvRefusal> {
        let second = self.memory.snooped().read_u64(PhysAddr::new(entry.at.get() + 8));
        match self.message_entry(state, entry, second)? {
            MessageEntry::Page(page) => Ok(PhysAddr::new(page | of.iova.get() & 0xfff)),
            MessageEntry::File { .. } => Err(RiscvRefusal::NoSuchMessage),
        }
    }
}
