//! Requests that must be refused, with the error that gives the reason.

use portolan::addr::{Iova, IovaRange};
use portolan::inval::Gather;
use portolan::table::format::Format;
use portolan::table::{Segment, SplitError, TableMapError, TableUnmapError};

use super::ground::{BOTH, Ground, pa, range};

impl<F: Format> Ground<'_, F> {
    pub(super) fn refuse_map(&mut self) {
        // On an empty table, and with a neighbour in the same leaf table.
        self.refuse_requests();
        let granule = F::GRANULE.bytes();
        self.map(granule, granule, granule, BOTH);
        self.refuse_requests();
        self.subject.clear();
        self.refuse_overlaps();
        self.refuse_in_a_full_table();
        self.refuse_over_a_border();
    }

    #[track_caller]
    fn refuse_one(&mut self, iova: u64, to: u64, bytes: u64, wanted: TableMapError) {
        let error = self.refused(|s| s.map(iova, to, bytes, BOTH));
        assert_eq!(error, wanted, "{bytes:#x} bytes at {iova:#x} to {to:#x}");
        // The same at the end of a list that is good so far.
        let good = Segment { pa: pa(0), bytes: F::GRANULE.bytes() };
        let bad = Segment { pa: pa(to), bytes };
        if matches!(
            wanted,
            TableMapError::UnalignedMemory { .. } | TableMapError::MemoryOutOfRange { .. }
        ) {
            let error = self.refused(|s| s.map_sg(Iova::new(0), &[good, bad], BOTH));
            assert_eq!(error, wanted, "{bad:x?} at the end of a list");
        }
    }

    fn refuse_requests(&mut self) {
        let granule = F::GRANULE.bytes();
        let at = 8 * granule;
        for off in [1, granule / 2, granule - 1] {
            let iova = Iova::new(at + off);
            self.refuse_one(at + off, at, granule, TableMapError::UnalignedIova { iova });
            for (to, bytes) in [(at + off, granule), (at, granule + off), (at, off)] {
                let wanted = TableMapError::UnalignedMemory { pa: pa(to), bytes };
                self.refuse_one(at, to, bytes, wanted);
            }
        }
        let iova = Iova::new(at);
        self.refuse_one(at, at, 0, TableMapError::Empty { iova });
        let empty = self.refused(|s| s.map_sg(iova, &[], BOTH));
        assert_eq!(empty, TableMapError::Empty { iova });

        let (input, output) = (self.input(), self.output());
        let top = !(granule - 1);
        for (iova, bytes) in
            [(input, granule), (input - granule, 2 * granule), (top, granule), (top, 2 * granule)]
        {
            let wanted = TableMapError::IovaOutOfRange { iova: Iova::new(iova) };
            self.refuse_one(iova, at, bytes, wanted);
        }
        for (to, bytes) in [
            (output, granule),
            (output - granule, 2 * granule),
            (top, granule),
            (top, 2 * granule),
            (0, top),
        ] {
            let wanted = TableMapError::MemoryOutOfRange { pa: pa(to), bytes };
            self.refuse_one(at, to, bytes, wanted);
        }
        for leaf in self.leaves() {
            let bytes = leaf.size.bytes();
            let iova = input - bytes + granule;
            let wanted = TableMapError::IovaOutOfRange { iova: Iova::new(iova) };
            self.refuse_one(iova, 0, bytes, wanted);
        }
    }

    /// Something is mapped at the first, a middle or the last page of the request.
    fn refuse_overlaps(&mut self) {
        let leaves = self.leaves();
        for victim in &leaves {
            for wanted in &leaves {
                let (size, wanted) = (victim.size.bytes(), wanted.size.bytes());
                let unit = size.max(wanted);
                let request = range(unit, 3 * unit);
                for mapped in [unit, 2 * unit, 4 * unit - size] {
                    self.map(mapped, 12 * unit, size, BOTH);
                    // Aligned so that just the wanted size fits.
                    let to = 20 * unit + if wanted < unit { wanted } else { 0 };
                    self.refuse_overlap(request, to);
                    self.subject.clear();
                }
                // A request inside a block.
                for offset in [0, (size / 2) & !(wanted - 1), size.saturating_sub(wanted)] {
                    self.map(unit, 12 * unit, size, BOTH);
                    self.refuse_overlap(range(unit + offset, wanted), 20 * unit);
                    self.subject.clear();
                }
            }
        }
    }

    #[track_caller]
    fn refuse_overlap(&mut self, request: IovaRange, to: u64) {
        let bytes = request.len_minus_one() + 1;
        let error = self.refused(|s| s.map(request.start().get(), to, bytes, BOTH));
        let TableMapError::AlreadyMapped { iova } = error else {
            panic!("{request:x?} to {to:#x}: {error}");
        };
        assert!(request.contains(iova), "{iova} is not in {request:x?}");
        let mapped = self.subject.oracle.find(iova);
        assert!(mapped.is_some(), "{iova} is not mapped, whatever the error says");
    }

    /// A leaf table with one free page, and a request for two.
    fn refuse_in_a_full_table(&mut self) {
        let granule = F::GRANULE.bytes();
        let table = granule << F::INDEX_LG2;
        // Out of step, so that it stays pages.
        self.map(granule, 2 * table, table - granule, BOTH);
        self.refuse_overlap(range(0, 2 * granule), 4 * table);
        self.subject.clear();
        self.map(0, 2 * table, table - granule, BOTH);
        self.refuse_overlap(range(table - 2 * granule, 2 * granule), 4 * table);
        self.refuse_overlap(range(table - 2 * granule, table), 4 * table + granule);
        self.subject.clear();
    }

    /// Checks a request that begins in one leaf table, with room, and is refused in another.
    fn refuse_over_a_border(&mut self) {
        let granule = F::GRANULE.bytes();
        let table = granule << F::INDEX_LG2;
        for tables in 1..4 {
            let last = tables * table;
            self.map(table - 4 * granule, 0, granule, BOTH);
            self.map(last + granule, granule, granule, BOTH);
            let request = range(table - 2 * granule, last - table + 4 * granule);
            for to in [8 * table, 8 * table + granule, 8 * table - 2 * granule] {
                self.refuse_overlap(request, to);
            }
            self.subject.clear();
        }
    }

    pub(super) fn refuse_unmap(&mut self) {
        let granule = F::GRANULE.bytes();
        for mapped in [0, granule] {
            if mapped != 0 {
                self.map(0, 0, mapped, BOTH);
            }
            self.refuse_ranges();
        }
        self.subject.clear();
        self.refuse_splits();
    }

    fn refuse_ranges(&mut self) {
        let granule = F::GRANULE.bytes();
        for (start, bytes) in [
            (0, granule - 1),
            (0, granule + 1),
            (0, 1),
            (1, granule),
            (1, granule - 1),
            (granule / 2, granule),
        ] {
            let range = range(start, bytes);
            let error = self.refused(|s| s.unmap(range));
            assert_eq!(error, TableUnmapError::Unaligned { range });
        }
        let input = self.input();
        let top = !(granule - 1);
        for (start, last) in [
            (input, input + granule - 1),
            (input - granule, input + granule - 1),
            (top, u64::MAX),
            (0, u64::MAX),
        ] {
            let range = IovaRange::new(Iova::new(start), Iova::new(last)).expect("in order");
            let error = self.refused(|s| s.unmap(range));
            assert_eq!(error, TableUnmapError::OutOfRange { range });
        }
        for leaf in self.leaves() {
            let bytes = leaf.size.bytes();
            for iova in [bytes, self.input() - bytes] {
                let error = self.refused(|s| s.unmap(range(iova, bytes)));
                let iova = Iova::new(iova);
                assert_eq!(error, TableUnmapError::NotMapped { iova });
            }
        }
    }

    fn refuse_splits(&mut self) {
        let granule = F::GRANULE.bytes();
        self.map(0, granule, granule, BOTH);
        for iova in [0, granule, self.input() - 1, self.input(), u64::MAX].map(Iova::new) {
            let error = self.refused(|s| {
                let mut gather = Gather::new();
                let split = s.table.split(iova, &mut gather);
                assert!(gather.is_empty());
                split
            });
            assert_eq!(error, SplitError::NoBlock { iova });
        }
        self.subject.clear();
    }
}
