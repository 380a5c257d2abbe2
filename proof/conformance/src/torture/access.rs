//! Accesses of the device in a round, and the results that they must have.

use portolan::addr::{Iova, IovaRange};
use portolan::table::Access;
use portolan::table::format::Format;
use portolan_sim::decode::AccessKind;
use portolan_sim::device::Reached;

use super::round::{Checked, TableRound};

/// Addresses of a range that are tried after its sync.
const TRIED: u64 = 6;

impl<F: Format> TableRound<'_, F> {
    /// Uses a random mapping whose debt is paid, or an address where nothing is.
    pub(super) fn use_live(&mut self) -> Checked {
        let count = self.subject.oracle.pieces().count();
        if count == 0 || self.rng.u8(..6) == 0 {
            return self.use_nothing();
        }
        let Some(piece) = self.subject.oracle.pieces().nth(self.rng.usize(..count)) else {
            return Ok(());
        };
        self.visit(piece.range)
    }

    fn use_nothing(&mut self) -> Checked {
        let window = self.windows[self.rng.usize(..self.windows.len())];
        let offset = self.rng.u64(..2 * self.subject.model.span(1).bytes());
        let iova = Iova::new(
            window.saturating_add(offset) & self.subject.table.input_range().last().get(),
        );
        if self.subject.oracle.find(iova).is_some() || self.owed.find(iova).is_some() {
            return Ok(());
        }
        self.must_fault(iova)
    }

    /// Tries a few addresses of `range`, which is mapped completely.
    pub(super) fn visit(&mut self, range: IovaRange) -> Checked {
        self.must_reach(range.start())?;
        self.must_reach(range.last())?;
        for _ in 0..2 {
            let offset = self.rng.u64(..=range.len_minus_one());
            self.must_reach(Iova::new(range.start().get() + offset))?;
        }
        Ok(())
    }

    /// Reads and writes at `iova`, if it is mapped and its map is paid for; the result must be the oracle's.
    fn must_reach(&mut self, iova: Iova) -> Checked {
        if self.unpaid.iter().any(|(_, open)| open.contains(iova)) {
            return Ok(());
        }
        let Some((pa, access)) = self.subject.oracle.translate(iova) else {
            return Ok(());
        };
        self.tally.add("accesses", 2);
        for (kind, right) in [(AccessKind::Read, Access::READ), (AccessKind::Write, Access::WRITE)]
        {
            let outcome = match kind {
                AccessKind::Read => self.device.read(iova, 1),
                AccessKind::Write => self.device.write(iova, 1),
            };
            let found = outcome.map(|places| places.first().map(|place| place.pa));
            match (found, access.contains(right)) {
                (Ok(Some(at)), true) if at == pa => {}
                (Err(_), false) => {}
                (found, allowed) => {
                    return Err(format!(
                        "{kind:?} of {iova}, mapped to {pa} (allowed: {allowed}), gives {found:x?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that no access to `iova` succeeds.
    pub(super) fn must_fault(&mut self, iova: Iova) -> Checked {
        self.tally.count("accesses");
        match self.iommu.translate(self.stream(), iova, AccessKind::Read) {
            Err(_) => Ok(()),
            Ok(at) => Err(format!("{iova} leads to {at:x?}, and nothing is mapped there")),
        }
    }

    /// After a sync: tries the translations that the device remembers and a few addresses that were unmapped.
    pub(super) fn retry(&mut self, ranges: &[IovaRange]) -> Checked {
        let (oracle, owed) = (&self.subject.oracle, &self.owed);
        let allowed = |place: &Reached| {
            if owed.find(place.iova).is_some() {
                return true;
            }
            let right = match place.access {
                AccessKind::Read => Access::READ,
                AccessKind::Write => Access::WRITE,
            };
            let mapped = oracle.translate(place.iova);
            mapped.is_some_and(|(pa, access)| pa == place.pa && access.contains(right))
        };
        self.tally.add("retries", self.device.reached().count() as u64);
        let stale = self.device.try_stale(allowed);
        if let Some(place) = stale.first() {
            return Err(format!("after a sync the old address still answers: {place:x?}"));
        }
        for range in ranges {
            for _ in 0..TRIED.min(range.pages(F::GRANULE)) {
                let offset = self.rng.u64(..=range.len_minus_one());
                self.must_fault(Iova::new(range.start().get() + offset))?;
            }
        }
        Ok(())
    }
}
