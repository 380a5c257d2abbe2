//! The operations of a round: map, unmap with splits, and requests that have to be refused.

use std::mem::take;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;
use portolan::table::format::{Format, SplitRule};
use portolan::table::{Access, Segment, SplitError, TableMapError, TableUnmapError};

use super::round::{Checked, Debt, TableRound};
use super::sabotage::Side;

/// Open map debts at most.
const UNPAID: usize = 4;
/// Open unmap debts at most.
const DEBTS: usize = 8;
/// Memory addresses used: below this and below the format's output addresses.
const MEMORY_LG2: u32 = 42;
/// Number of mapped pieces from which unmapping is preferred.
const CROWDED: usize = 48;

impl<F: Format> TableRound<'_, F> {
    pub(super) fn map(&mut self) -> Checked {
        if self.subject.oracle.pieces().count() > CROWDED {
            return self.unmap();
        }
        let Some((range, list)) = self.request() else {
            return Ok(());
        };
        if !self.owed.is_free(range) || !self.quiet.is_free(range) {
            return Ok(());
        }
        let access = [
            Access::READ,
            Access::READ | Access::WRITE,
            Access::WRITE,
            Access::READ | Access::WRITE | Access::DEVICE,
        ][self.rng.usize(..4)];
        let fail = if self.rng.u8(..32) == 0 { self.rng.u64(1..=3) } else { 0 };
        let (pages, free) = (self.subject.table.pages(), self.subject.oracle.is_free(range));
        self.subject.memory.fail_at(fail);
        let outcome = self.subject.map_sg(range.start(), &list, access);
        self.subject.memory.fail_at(0);
        match outcome {
            Ok(mapped) if free && mapped == range => self.note_map(range),
            Err(TableMapError::AlreadyMapped { iova }) if !free => {
                self.tally.count("refused_maps");
                if self.subject.oracle.find(iova).is_none() && !range.contains(iova) {
                    return Err(format!("{iova} is named as taken and is not"));
                }
                self.unchanged(pages)
            }
            Err(TableMapError::Memory(_)) => {
                self.tally.count("out_of_memory");
                self.unchanged(pages)?;
                self.drain()
            }
            other => Err(format!("mapping {range:x?} (free: {free}) gives {other:?}")),
        }
    }

    /// Checks that a refused request left `pages` pages, as there were, and no debt.
    fn unchanged(&mut self, pages: usize) -> Checked {
        let (now, owed) = (self.subject.table.pages(), &self.subject.owed);
        match now == pages && owed.is_empty() {
            true => Ok(()),
            false => Err(format!("a refused request left {now} pages of {pages}, and {owed:?}")),
        }
    }

    fn note_map(&mut self, range: IovaRange) -> Checked {
        self.tally.count("maps");
        self.unpaid.push((take(&mut self.subject.owed), range));
        if self.unpaid.len() > UNPAID || self.rng.u8(..4) != 0 {
            self.pay_map(self.unpaid.len() - 1)?;
        }
        Ok(())
    }

    pub(super) fn pay_one_map(&mut self) -> Checked {
        match self.unpaid.len() {
            0 => Ok(()),
            open => {
                let at = self.rng.usize(..open);
                self.pay_map(at)
            }
        }
    }

    fn pay_map(&mut self, at: usize) -> Checked {
        let (gather, range) = self.unpaid.swap_remove(at);
        let quiesced = self.pay(gather, Side::Map)?;
        self.subject.table.reclaim(quiesced).expect("a proof of this table");
        self.visit(range)
    }

    /// A random place and length with a random list for it.
    fn request(&mut self) -> Option<(IovaRange, Vec<Segment>)> {
        let granule = self.granule();
        let slot = self.subject.model.span(1);
        let large = self.large();
        let window = self.windows[self.rng.usize(..self.windows.len())];
        let (offset, bytes) = match self.rng.u8(..20) {
            0 => (self.rng.u64(..4) * slot.bytes(), slot.bytes() * self.rng.u64(1..=2)),
            1 => (self.rng.u64(..4) * slot.bytes(), large.bytes()),
            2 => {
                let pages = self.rng.u64(1..=(slot.bytes() >> granule.lg2()).min(600));
                (self.random_page(4 * slot.bytes()), pages << granule.lg2())
            }
            _ => {
                let pages = self.rng.u64(1..=12);
                (self.random_page(2 * slot.bytes()), pages << granule.lg2())
            }
        };
        let mut iova = window.checked_add(offset)?;
        if bytes >= large.bytes() {
            iova &= !(large.bytes() - 1);
        }
        let range = IovaRange::from_len(Iova::new(iova), bytes)?;
        if !self.subject.table.input_range().covers(range) {
            return None;
        }
        Some((range, self.list(iova, bytes)))
    }

    fn random_page(&mut self, within: u64) -> u64 {
        let lg2 = self.granule().lg2();
        self.rng.u64(..within >> lg2) << lg2
    }

    /// Size of the largest leaf, or of a slot if the format has no blocks.
    fn large(&self) -> PageSize {
        let sizes = self.subject.table.format().page_sizes();
        let largest = sizes.iter().last().unwrap_or(F::GRANULE);
        largest.max(self.subject.model.span(1))
    }

    /// A random list for `bytes` bytes: in one piece, cut into runs, or page by page.
    fn list(&mut self, iova: u64, bytes: u64) -> Vec<Segment> {
        let slot = self.subject.model.span(1).bytes();
        let pages = bytes >> self.granule().lg2();
        let cut = self.rng.u8(..4);
        if bytes >= slot && (cut != 0 || bytes > 2 * slot) {
            // Aligned like the address, so that blocks fit.
            let large = self.large().bytes();
            let pa = self.random_memory(bytes + large) & !(large - 1) | iova & (large - 1);
            return vec![segment(pa, bytes)];
        }
        let mut list = Vec::new();
        let mut left = pages;
        let mut next = self.random_memory(bytes);
        while left > 0 {
            let most = match cut {
                0 => 1,
                _ => left,
            };
            let run = self.rng.u64(1..=most);
            let len = run << self.granule().lg2();
            if self.rng.u8(..3) != 0 {
                next = self.random_memory(len);
            }
            if self.rng.u8(..16) == 0 {
                list.push(segment(self.random_memory(0), 0));
            }
            let top = 1u64 << self.memory_lg2();
            if next + len > top {
                next = self.random_memory(len);
            }
            list.push(segment(next, len));
            next += len;
            left -= run;
        }
        list
    }

    fn memory_lg2(&self) -> u32 {
        self.subject.table.format().output_lg2().min(MEMORY_LG2)
    }

    fn random_memory(&mut self, bytes: u64) -> u64 {
        let lg2 = self.granule().lg2();
        let top = (1u64 << self.memory_lg2()) - bytes;
        self.rng.u64(..top >> lg2) << lg2
    }

    pub(super) fn unmap(&mut self) -> Checked {
        let Some(range) = self.mapped_range() else {
            return Ok(());
        };
        self.unmap_range(range)
    }

    /// A random range that is mapped: a piece, a part of one, or more than one.
    fn mapped_range(&mut self) -> Option<IovaRange> {
        let count = self.subject.oracle.pieces().count();
        if count == 0 {
            return None;
        }
        let piece = self.subject.oracle.pieces().nth(self.rng.usize(..count))?;
        let mut range = piece.range;
        let lg2 = self.granule().lg2();
        match self.rng.u8(..4) {
            0 => {
                let pages = range.pages(self.granule());
                let first = self.rng.u64(..pages);
                let last = self.rng.u64(first..pages.min(first + 40));
                let start = range.start().get() + (first << lg2);
                range = IovaRange::from_len(Iova::new(start), (last - first + 1) << lg2)?;
            }
            1 => {
                while let Some(next) = range.last().checked_add(1) {
                    let Some(more) = self.subject.oracle.find(next) else {
                        break;
                    };
                    range = range.hull(more.range);
                }
            }
            _ => {}
        }
        Some(range)
    }

    /// Unmaps a range that is mapped, through splits if need be.
    pub(super) fn unmap_range(&mut self, range: IovaRange) -> Checked {
        while let Some(at) = self.unpaid.iter().position(|(_, open)| open.overlaps(range)) {
            self.pay_map(at)?;
        }
        let pages = self.subject.table.pages();
        // Taking back needs no memory.
        self.subject.memory.fail_at(1);
        let outcome = self.subject.unmap(range);
        self.subject.memory.fail_at(0);
        match outcome {
            Ok(()) => self.note_unmap(range),
            Err(TableUnmapError::NeedsSplit { block }) => {
                self.unchanged(pages)?;
                if self.split_block(block)? {
                    self.unmap_range(range)?;
                }
                Ok(())
            }
            Err(other) => Err(format!("unmapping {range:x?} gives {other:?}")),
        }
    }

    fn note_unmap(&mut self, range: IovaRange) -> Checked {
        self.tally.count("unmaps");
        self.owed.map(range, PhysAddr::new(0), Access::empty());
        let new = Debt { gather: take(&mut self.subject.owed), ranges: vec![range] };
        let join = self.rng.bool();
        let at = self.rng.choice(0..self.debts.len()).filter(|_| join);
        match at.and_then(|at| self.debts.get_mut(at)) {
            Some(debt) => debt.absorb(&self.subject.table, new),
            None => self.debts.push(new),
        }
        if self.debts.len() > DEBTS {
            self.drain()?;
        }
        Ok(())
    }

    /// Splits `block`; returns if there was memory for it.
    fn split_block(&mut self, block: IovaRange) -> Checked<bool> {
        let pages = self.subject.table.pages();
        let fail = if self.rng.u8(..32) == 0 { 1 } else { 0 };
        self.subject.memory.fail_at(fail);
        let split = self.subject.table.split(block.start(), &mut self.subject.owed);
        self.subject.memory.fail_at(0);
        let pending = match split {
            Ok(pending) => pending,
            Err(SplitError::Memory(_)) => {
                self.tally.count("out_of_memory");
                self.unchanged(pages)?;
                self.drain()?;
                return Ok(false);
            }
            Err(other) => return Err(format!("splitting {block:x?} gives {other:?}")),
        };
        self.tally.count("breaks");
        let gather = take(&mut self.subject.owed);
        let quiesced = self.pay(gather, Side::Unmap)?;
        if self.subject.table.format().split_rule() == SplitRule::BreakBeforeMake {
            self.must_fault(block.start())?;
            self.must_fault(block.last())?;
        }
        let mut made = Gather::new();
        let completed = self.subject.table.complete_split(pending, &quiesced, &mut made);
        completed.map_err(|wrong| wrong.to_string())?;
        self.subject.table.reclaim(quiesced).expect("a proof of this table");
        let quiesced = self.pay(made, Side::Map)?;
        self.subject.table.reclaim(quiesced).expect("a proof of this table");
        self.visit(block)?;
        Ok(true)
    }

    /// Makes a request that must be refused and change nothing.
    pub(super) fn refused(&mut self) -> Checked {
        let pages = self.subject.table.pages();
        let granule = self.granule();
        let top = self.subject.table.input_range().last();
        let inside = Iova::new(self.rng.u64(..) & top.get()).align_down(granule);
        let mut map =
            |at: Iova, pa, bytes| self.subject.map(at.get(), pa, bytes, Access::READ).is_err();
        let refused = match self.rng.u8(..5) {
            0 => map(inside, granule.bytes() / 2, granule.bytes()),
            1 => map(inside, 0, 0),
            2 => map(top.align_down(granule), 0, granule.bytes().saturating_mul(2)),
            3 => {
                let range = IovaRange::from_len(inside, granule.bytes() / 2);
                range.is_none_or(|range| self.subject.unmap(range).is_err())
            }
            _ => {
                self.subject.oracle.find(inside).is_some()
                    || self.subject.unmap(IovaRange::page(inside, granule)).is_err()
            }
        };
        self.tally.count("refused_unmaps");
        if !refused {
            return Err(format!("a senseless request at {inside} was accepted"));
        }
        self.unchanged(pages)
    }
}

fn segment(pa: u64, bytes: u64) -> Segment {
    Segment { pa: PhysAddr::new(pa), bytes }
}
