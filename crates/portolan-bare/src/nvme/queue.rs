//! Reads and writes of one CPU: many under way at once, each with the mapping of its buffer.
//!
//! NVM Express NVM command set specification 1.0, sections 3.2.4 (Read) and 3.2.6 (Write); base
//! specification 2.0, section 4.1.1 (physical region pages).

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::dma::{Coherent, Device, DmaSegment, Failed, Mapping};

use super::spec::{Command, Operation, PAGE};
use super::{Description, MachineRing, NvmeError};
use crate::{Machine, Pages};

/// A buffer that the controller reaches.
pub type Data = Mapping<Machine, Pages>;

/// Entries of the list of pages that each command has: with the first page, 260 KiB of data.
const LIST: usize = 64;
const LIST_BYTES: usize = LIST * 8;
// The list of a command lies in one page.
const _: () = assert!(PAGE as usize % LIST_BYTES == 0);

/// A queue for the use of one CPU.
pub struct Queue {
    ring: MachineRing,
    lists: Coherent<Machine>,
    description: Description,
    /// Commands under way, by their number: the first block and the data of each.
    under_way: Vec<Option<(u64, Data)>>,
}

impl Queue {
    /// A queue over `ring`, which the controller knows.
    pub(super) fn new(
        device: &Device<Machine>,
        ring: MachineRing,
        description: Description,
    ) -> Result<Self, NvmeError> {
        let room = usize::from(ring.room());
        let lists = device.coherent((room * LIST_BYTES) as u64)?;
        let under_way = (0..room).map(|_| None).collect();
        Ok(Self { ring, lists, description, under_way })
    }

    /// Reads or writes the blocks from `first` on, as many as `data` has room for.
    ///
    /// # Errors
    /// With the data, which the controller was not told of.
    pub fn submit(
        &mut self,
        operation: Operation,
        first: u64,
        data: Data,
    ) -> Result<(), Failed<Data, NvmeError>> {
        let free = self.under_way.iter().position(Option::is_none);
        let free = free.ok_or(NvmeError::Full);
        let command = |slot| Ok((slot, self.command(slot, operation, first, &data)?));
        match free.and_then(command) {
            Ok((slot, command)) => {
                self.under_way[slot] = Some((first, data));
                self.ring.put(slot as u16, &command);
                self.ring.announce();
                Ok(())
            }
            Err(error) => Err(Failed { error, value: data }),
        }
    }

    fn command(
        &self,
        slot: usize,
        operation: Operation,
        first: u64,
        data: &Data,
    ) -> Result<Command, NvmeError> {
        let bytes: u64 = data.segments().map(|segment| segment.bytes.get()).sum();
        let disk = &self.description;
        let blocks = bytes >> disk.block_lg2;
        let after = first.checked_add(blocks);
        let there = after.is_some_and(|after| after <= disk.blocks);
        if bytes == 0 || blocks << disk.block_lg2 != bytes || !there {
            return Err(NvmeError::NoSuchBlocks);
        }
        // The command has sixteen bits for the number of blocks but one.
        if bytes > disk.most_bytes || blocks > 1 << 16 {
            return Err(NvmeError::TooLong);
        }
        let list = self.lists.words().iter().skip(slot * LIST).take(LIST);
        let list_at = self.lists.iova().get() + (slot * LIST_BYTES) as u64;
        let data = pages(data.segments(), list, list_at)?;
        Ok(Command::transfer(operation, first, blocks as u32, data))
    }

    /// Waits for one of the commands that are under way: its first block and its data.
    ///
    /// # Errors
    /// If it failed, none is done in time, or the controller makes no sense: it should be stopped then.
    pub fn wait(&mut self) -> Result<(u64, Data), NvmeError> {
        let completion = self.ring.wait()?;
        let id = completion.id;
        let slot = self.under_way.get_mut(usize::from(id));
        let done = slot.and_then(Option::take).ok_or(NvmeError::Stray { id })?;
        completion.result().map(|_| done)
    }
}

/// The two entries of a command: the first page, and the second one or, for more, where the `list` is of
/// all but the first.
fn pages<'l>(
    segments: impl Iterator<Item = DmaSegment>,
    mut list: impl Iterator<Item = &'l AtomicU64>,
    list_at: u64,
) -> Result<[u64; 2], NvmeError> {
    let (mut data, mut count, mut end) = ([0, 0], 0, 0);
    for DmaSegment { iova, bytes } in segments {
        let mut at = iova.get();
        if count != 0 && (at % PAGE != 0 || end % PAGE != 0) {
            return Err(NvmeError::Gap);
        }
        end = at.checked_add(bytes.get()).ok_or(NvmeError::Gap)?;
        while at < end {
            if count != 0 {
                let entry = list.next().ok_or(NvmeError::TooLong)?;
                entry.store(at.to_le(), Ordering::Relaxed);
            }
            match count {
                0 | 1 => data[count] = at,
                _ => data[1] = list_at,
            }
            count += 1;
            at = (at | (PAGE - 1)).saturating_add(1);
        }
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use core::num::NonZeroU64;
    use portolan::addr::Iova;

    fn of(segments: &[(u64, u64)]) -> Result<([u64; 2], [u64; 2]), NvmeError> {
        let list = [const { AtomicU64::new(0) }; 2];
        let segments = segments.iter().map(|&(at, bytes)| DmaSegment {
            iova: Iova::new(at),
            bytes: NonZeroU64::new(bytes).unwrap(),
        });
        let data = pages(segments, list.iter(), 0x9000)?;
        Ok((data, list.map(|entry| u64::from_le(entry.into_inner()))))
    }

    #[test]
    fn a_command_names_two_pages_or_a_list() {
        let one = of(&[(0x1200, 0x200)]).unwrap();
        assert_eq!(one, ([0x1200, 0], [0, 0]));
        let two = of(&[(0x1200, 0x1000)]).unwrap();
        assert_eq!(two, ([0x1200, 0x2000], [0x2000, 0]));
        let three = of(&[(0x1000, 0x1000), (0x5000, 0x2000)]).unwrap();
        assert_eq!(three, ([0x1000, 0x9000], [0x5000, 0x6000]));
        for (wrong, why) in [
            (&[(0x1000, 0x4000)][..], "the data is too long for one command"),
            (&[(0x1000, 0x800), (0x5000, 0x800)], "the data has a gap inside of a page"),
            (&[(0x1000, 0x1000), (0x5200, 0x800)], "the data has a gap inside of a page"),
        ] {
            assert_eq!(std::format!("{}", of(wrong).unwrap_err()), why);
        }
    }
}
