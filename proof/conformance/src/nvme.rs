//! QEMU's NVMe controller as the scenarios' disk, wherever its registers and memory are.

use std::sync::atomic::Ordering;

use portolan::addr::Iova;
use portolan::platform::{Mmio, Nanos};
use portolan_qemu::nvme::{BLOCK, Nvme, Operation, RingMemory};

use crate::conformance::Transfer;

/// Longest time that a command may take.
const LIMIT: Nanos = Nanos::from_millis(5_000);
/// Bytes from the start of the page of I/O completions to the spare blocks, behind the end of the queue.
const SPARE: u64 = 1024;
const SPARE_BLOCKS: u64 = 6;

/// A controller that runs, one command at a time.
pub(crate) struct Running<R, M> {
    nvme: Nvme<R, M>,
    /// Memory for lists of addresses.
    list: M,
    /// I/O completions, which stay mapped.
    completions: M,
}

fn operation(way: Transfer) -> Operation {
    match way {
        Transfer::Write => Operation::Write,
        Transfer::Read => Operation::Read,
    }
}

impl<R: Mmio + Clone, M: RingMemory + Clone> Running<R, M> {
    /// Starts it with [`Disk::start`](crate::conformance::Disk::start)'s pages.
    pub(crate) fn start(registers: R, pages: [M; 5]) -> Result<Self, String> {
        let [queues @ .., list] = pages;
        let completions = queues[3].clone();
        let nvme = Nvme::start(registers, queues, LIMIT);
        let nvme = nvme.map_err(|error| format!("starting the disk: {error}"))?;
        Ok(Self { nvme, list, completions })
    }

    /// See [`Disk::transfer`](crate::conformance::Disk::transfer).
    pub(crate) fn transfer(
        &mut self,
        way: Transfer,
        first: u64,
        blocks: u32,
        pages: &[Iova],
        offset: u64,
    ) -> Result<(), String> {
        let [one, rest @ ..] = pages else {
            return Err("no page".to_owned());
        };
        let second = match rest {
            [] => Iova::new(0),
            [two] => *two,
            more => {
                let words = self.list.words();
                if words.len() < more.len() {
                    return Err("no room for a list of pages".to_owned());
                }
                for (word, page) in words.iter().zip(more) {
                    word.store(page.get(), Ordering::Release);
                }
                self.list.iova()
            }
        };
        let data = [Iova::new(one.get() + offset), second];
        let done = self.nvme.transfer(operation(way), first, blocks, data);
        done.map_err(|error| error.to_string())
    }

    /// Moves blocks from `first` on through memory that stays mapped: a way to the data for callers that have
    /// no other.
    pub(crate) fn aside(
        &mut self,
        way: Transfer,
        mut first: u64,
        data: &mut [u8],
    ) -> Result<(), String> {
        for piece in data.chunks_mut((SPARE_BLOCKS * BLOCK) as usize) {
            let words = self.completions.words().get(SPARE as usize / 8..).unwrap_or_default();
            let (bytes, _) = piece.as_chunks_mut::<8>();
            if way == Transfer::Write {
                for (word, bytes) in words.iter().zip(&*bytes) {
                    word.store(u64::from_le_bytes(*bytes), Ordering::Release);
                }
            }
            let blocks = bytes.len() as u64 * 8 / BLOCK;
            let data = [Iova::new(self.completions.iova().get() + SPARE), Iova::new(0)];
            let moved = self.nvme.transfer(operation(way), first, blocks as u32, data);
            moved.map_err(|error| error.to_string())?;
            if way == Transfer::Read {
                for (word, bytes) in words.iter().zip(bytes) {
                    *bytes = word.load(Ordering::Acquire).to_le_bytes();
                }
            }
            first += blocks;
        }
        Ok(())
    }
}
