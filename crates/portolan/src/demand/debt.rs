//! Invalidations that the hardware did not complete: one debt, in generations.
//!
//! A debt that was not paid joins the open *generation*, and its debtor remembers that generation:
//! it is quiet only once that generation is. One CPU at a time pays the shared debt: it closes the
//! generation, pays without the lock, and says that the generation is quiet, or puts all of it back
//! into the open one. So a later generation never becomes quiet before an earlier one.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::inval::{Flushed, Gather};
use crate::iommu::{Domain, IommuError};
use crate::platform::{Cpus, Guarded, Nanos, poll};

/// Time at which a debt that was not paid joined the shared one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Generation(NonZeroU64);

impl Generation {
    const FIRST: Self = Self(NonZeroU64::MIN);

    fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Reason for which a debt was not paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnpaidReason {
    /// The hardware did not complete.
    Iommu(IommuError),
    /// Another CPU pays a debt that comes before, and did not finish in time.
    Turn { waited: Nanos },
}

/// A debt that was not paid: it joined this generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unpaid {
    pub(super) cause: UnpaidReason,
    pub(super) generation: Generation,
}

/// State of the shared debt: a caller pays it, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Free,
    Taken,
}

#[derive(Debug)]
struct Book {
    /// The debt of the open generation.
    debt: Gather,
    open: Generation,
    /// The last generation that is quiet.
    quiet: Option<Generation>,
    /// The last generation that something joined.
    joined: Option<Generation>,
    turn: Turn,
}

impl Book {
    fn is_quiet(&self, generation: Generation) -> bool {
        self.quiet >= Some(generation)
    }

    /// The last generation that is owed, or is being paid.
    fn owed(&self) -> Option<Generation> {
        self.joined.filter(|joined| !self.is_quiet(*joined))
    }
}

/// Debts of one container.
#[derive(Debug)]
pub(super) struct Debts<P: Cpus> {
    book: Guarded<P, Book>,
    /// Set if the book is worth a look. A caller that finds it out of date pays its own debt alone.
    owes: AtomicBool,
}

impl<P: Cpus> Debts<P> {
    /// Nothing owed.
    pub(super) fn new() -> Self {
        Self {
            book: Guarded::new(Book {
                debt: Gather::new(),
                open: Generation::FIRST,
                quiet: None,
                joined: None,
                turn: Turn::Free,
            }),
            owes: AtomicBool::new(false),
        }
    }

    /// The last generation that is not quiet; `None` if nothing is owed.
    pub(super) fn newest(&self) -> Option<Generation> {
        self.book.with(|book| book.owed())
    }

    /// Pays `owed`, and older debts if no other caller does. When this returns `Ok`, `needs` is
    /// quiet as well; for that it waits up to `timeout` for another caller that pays it.
    ///
    /// # Errors
    /// [`Unpaid`]: `owed` is kept.
    pub(super) fn settle(
        &self,
        cpus: &P,
        timeout: Nanos,
        domain: &impl Domain,
        owed: Gather,
        needs: Option<Generation>,
    ) -> Result<(), Unpaid> {
        let mut payment = Payment { debts: self, domain, owed, closes: None };
        if needs.is_some() || self.owes.load(Ordering::Relaxed) {
            let look = || self.book.with(|book| payment.join(book, needs).then_some(()));
            if let Err(waited) = poll(cpus, timeout, look) {
                let cause = UnpaidReason::Turn { waited };
                let generation = payment.keep();
                return Err(Unpaid { cause, generation });
            }
        }
        match domain.sync(&mut payment.owed) {
            Ok(flushed) => {
                payment.quiet(flushed);
                Ok(())
            }
            Err(error) => {
                let cause = UnpaidReason::Iommu(error.into());
                let generation = payment.keep();
                Err(Unpaid { cause, generation })
            }
        }
    }
}

/// A debt that is being paid. Dropped before that has ended, by unwinding, it is kept.
struct Payment<'a, P: Cpus, D: Domain> {
    debts: &'a Debts<P>,
    domain: &'a D,
    owed: Gather,
    /// The generation whose debt is in it.
    closes: Option<Generation>,
}

impl<P: Cpus, D: Domain> Payment<'_, P, D> {
    /// Takes the shared debt in, if no other caller pays it; `false` if `needs` has to be waited
    /// for.
    fn join(&mut self, book: &mut Book, needs: Option<Generation>) -> bool {
        let needs = needs.filter(|needs| !book.is_quiet(*needs));
        match (book.turn, needs) {
            (Turn::Taken, Some(_)) => return false,
            (Turn::Taken, None) => return true,
            (Turn::Free, _) if book.owed().is_none() => return true,
            (Turn::Free, _) => {}
        }
        // Both are of this domain.
        let _ = self.domain.absorb(&mut self.owed, &mut book.debt);
        self.closes = Some(book.open);
        book.open = book.open.next();
        book.turn = Turn::Taken;
        true
    }

    /// All of it was paid.
    fn quiet(&mut self, _: Flushed) {
        if let Some(closed) = self.closes.take() {
            self.debts.book.with(|book| {
                book.quiet = Some(closed);
                book.turn = Turn::Free;
                let owes = book.owed().is_some();
                self.debts.owes.store(owes, Ordering::Relaxed);
            });
        }
    }

    /// None of it was: it joins the open generation.
    fn keep(&mut self) -> Generation {
        let (debts, domain) = (self.debts, self.domain);
        debts.book.with(|book| {
            // Both are of this domain.
            let _ = domain.absorb(&mut book.debt, &mut self.owed);
            book.joined = Some(book.open);
            if self.closes.take().is_some() {
                book.turn = Turn::Free;
            }
            debts.owes.store(true, Ordering::Relaxed);
            book.open
        })
    }
}

impl<P: Cpus, D: Domain> Drop for Payment<'_, P, D> {
    fn drop(&mut self) {
        if self.closes.is_some() || !self.owed.is_empty() {
            self.keep();
        }
    }
}
