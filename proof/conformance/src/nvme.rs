//! QEMU's NVMe controller as the scenarios' disk, wherever its registers and memory are.

use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan::addr::{Iova, PhysAddr};
use portolan::platform::Mmio;
use portolan_qemu::dma::{Direction, DmaArea};
use portolan_qemu::nvme::{BLOCK, Nvme, NvmeQueues, Prp, QueueMemory};

use crate::conformance::{SharedPage, Transfer};

/// Longest time that a command may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Bytes from the start of the page of I/O completions to the spare blocks, behind the end of the queue.
const SPARE: u64 = 1024;
const SPARE_BLOCKS: u64 = 6;

/// A controller that runs, one command at a time.
pub(crate) struct Running<R, M> {
    nvme: Nvme<R, M>,
    memory: M,
    /// Memory for lists of addresses.
    list: SharedPage,
    /// Memory that stays mapped and that no queue is in.
    spare: SharedPage,
}

fn direction(way: Transfer) -> Direction {
    match way {
        Transfer::Write => Direction::ToDevice,
        Transfer::Read => Direction::FromDevice,
    }
}

impl<R: Mmio, M: QueueMemory + Clone> Running<R, M> {
    /// Starts it with [`Disk::start`](crate::conformance::Disk::start)'s pages.
    pub(crate) fn start(registers: R, memory: M, pages: [SharedPage; 5]) -> Result<Self, String> {
        let [queues @ .., list] = pages;
        let [admin_submission, admin_completion, io_submission, io_completion] =
            queues.map(|page| DmaArea::new(page.pa, page.iova));
        let queues =
            NvmeQueues { admin_submission, admin_completion, io_submission, io_completion };
        let nvme = Nvme::on(registers, memory.clone(), &queues, LIMIT);
        let spare = SharedPage {
            pa: PhysAddr::new(io_completion.phys.get() + SPARE),
            iova: Iova::new(io_completion.iova.get() + SPARE),
        };
        Ok(Self {
            nvme: nvme.map_err(|error| format!("starting the disk: {error}"))?,
            memory,
            list,
            spare,
        })
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
        let at = |page: Iova| Iova::new(page.get() + offset);
        let data = match pages {
            [] => return Err("no page".to_owned()),
            [one] => Prp::One(at(*one)),
            [one, two] => Prp::Two(at(*one), *two),
            [one, rest @ ..] => {
                let words = self
                    .memory
                    .words(self.list.pa, rest.len())
                    .map_err(|error| error.to_string())?;
                for (word, page) in words.iter().zip(rest) {
                    word.store(page.get(), Ordering::Release);
                }
                Prp::List(at(*one), self.list.iova)
            }
        };
        let done = self.nvme.transfer(direction(way), first, blocks, data);
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
            let words = self
                .memory
                .words(self.spare.pa, piece.len() / 8)
                .map_err(|error| error.to_string())?;
            let (bytes, _) = piece.as_chunks_mut::<8>();
            if way == Transfer::Write {
                for (word, bytes) in words.iter().zip(&*bytes) {
                    word.store(u64::from_le_bytes(*bytes), Ordering::Release);
                }
            }
            let blocks = bytes.len() as u64 * 8 / BLOCK;
            let data = Prp::One(self.spare.iova);
            let moved = self.nvme.transfer(direction(way), first, blocks as u32, data);
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
