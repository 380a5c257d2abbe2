//! Several CPUs at once in the same leaf tables.
//!
//! Each thread has every n-th page of a few slots, so that all of them take entries in and out of the
//! same tables. A thread that finds no address of a slot out takes all of them, takes the table
//! out and pays, as a space does, while the others are about to map there. The interleavings are up to
//! the machine; each thread's operations follow from the seed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;
use portolan::platform::TableMem;
use portolan::table::format::{DirtyTracking, Format, SplitRule};
use portolan::table::{Access, PageTable};
use portolan_sim::decode::TableFormat;

use crate::audit::WaitingTables;
use crate::format::{FormatName, Visitor};
use crate::memory::CheckedTables;
use crate::record::{Record, Tally};
use crate::subject::{Subject, any_capabilities, pay};

/// Slots that the threads share.
const SLOTS: u64 = 2;
/// Pages that a thread owns in each slot.
const OWNED: u64 = 3;
/// Pages of table memory.
const MEMORY_PAGES: u32 = 256;

/// Runs `threads` threads of `operations` operations each on one table.
pub fn concurrent(format: FormatName, seed: u64, threads: u64, operations: u64) -> Record {
    let run = Crowd { format, seed, threads: threads.max(1), operations };
    let violations = format.visit(SplitRule::Direct, DirtyTracking::Off, run);
    let tally = Tally::default();
    tally.add("shared_operations", run.threads * operations);
    tally.begin(format!("{format}, {threads} threads, seed {seed}"));
    violations.into_iter().for_each(|what| tally.violation(what));
    tally.record(seed)
}

#[derive(Clone, Copy)]
struct Crowd {
    format: FormatName,
    seed: u64,
    threads: u64,
    operations: u64,
}

impl Visitor for Crowd {
    type Output = Vec<String>;

    fn visit<F: Format>(self, format: F, model: TableFormat) -> Vec<String> {
        let caps = any_capabilities(F::GRANULE);
        let memory = CheckedTables::<F>::new(&format, &caps, MEMORY_PAGES).for_threads();
        let mut found = self.on(Subject::new(self.format, format, model, &memory));
        if memory.live() != 0 || memory.wrong_frees() != 0 {
            let (live, wrong) = (memory.live(), memory.wrong_frees());
            found.push(format!("{live} pages stay, {wrong} were freed wrongly"));
        }
        found
    }
}

/// Addresses that are out, by slot: their number, or all of them.
#[derive(Default)]
struct Addresses([Mutex<AddressesOut>; SLOTS as usize]);

#[derive(Default, PartialEq, Eq)]
enum AddressesOut {
    #[default]
    None,
    Some(u64),
    All,
}

impl Addresses {
    fn out(&self, slot: usize) -> MutexGuard<'_, AddressesOut> {
        self.0[slot].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one address; `false` if all are out.
    fn take(&self, slot: usize) -> bool {
        let mut out = self.out(slot);
        *out = match *out {
            AddressesOut::None => AddressesOut::Some(1),
            AddressesOut::Some(number) => AddressesOut::Some(number + 1),
            AddressesOut::All => return false,
        };
        true
    }

    /// Takes all addresses; `false` if one is out.
    fn take_all(&self, slot: usize) -> bool {
        let mut out = self.out(slot);
        let free = *out == AddressesOut::None;
        if free {
            *out = AddressesOut::All;
        }
        free
    }

    /// Gives back what one call has taken.
    fn give_back(&self, slot: usize) {
        let mut out = self.out(slot);
        *out = match *out {
            AddressesOut::Some(number) if number > 1 => AddressesOut::Some(number - 1),
            _ => AddressesOut::None,
        };
    }
}

impl Crowd {
    fn on<F: Format>(self, mut subject: Subject<'_, F>) -> Vec<String> {
        let table = &subject.table;
        let addresses = &Addresses::default();
        let left: Vec<Result<BTreeMap<u64, u64>, String>> = std::thread::scope(|scope| {
            let cpus: Vec<_> = (0..self.threads)
                .map(|cpu| scope.spawn(move || TableCpu::new(self, cpu, table, addresses).run()))
                .collect();
            cpus.into_iter()
                .map(|cpu| cpu.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
                .collect()
        });
        let mut found = Vec::new();
        for cpu in left {
            match cpu {
                Ok(mapped) => {
                    for (iova, pa) in mapped {
                        let page = IovaRange::page(Iova::new(iova), F::GRANULE);
                        subject.oracle.map(page, PhysAddr::new(pa), Access::READ);
                    }
                }
                Err(what) => found.push(what),
            }
        }
        if !found.is_empty() {
            return found;
        }
        subject.prune();
        found.extend(subject.differences(WaitingTables::Nothing));
        while let Some(piece) = subject.oracle.next_from(Iova::new(0)) {
            if let Err(error) = subject.unmap(piece.range) {
                found.push(format!("at the end: {error}"));
                return found;
            }
            subject.pay();
        }
        subject.prune();
        found.extend(subject.differences(WaitingTables::Nothing));
        if subject.table.pages() != 1 {
            found.push(format!("{} table pages stay at the end", subject.table.pages()));
        }
        found
    }
}

/// A thread.
struct TableCpu<'t, F: Format, M: TableMem<F::Word>> {
    crowd: Crowd,
    number: u64,
    table: &'t PageTable<F, M>,
    addresses: &'t Addresses,
    rng: Rng,
    /// Pages that it has mapped, and the address that each leads to.
    mapped: BTreeMap<u64, u64>,
    /// Debts not paid, with the pages that may not be mapped yet.
    debts: Vec<(Gather, Vec<u64>)>,
}

impl<'t, F: Format, M: TableMem<F::Word>> TableCpu<'t, F, M> {
    fn new(
        crowd: Crowd,
        number: u64,
        table: &'t PageTable<F, M>,
        addresses: &'t Addresses,
    ) -> Self {
        Self {
            crowd,
            number,
            table,
            addresses,
            rng: Rng::with_seed(crowd.seed.wrapping_mul(31).wrapping_add(number)),
            mapped: BTreeMap::new(),
            debts: Vec::new(),
        }
    }

    fn run(mut self) -> Result<BTreeMap<u64, u64>, String> {
        for _ in 0..self.crowd.operations {
            let page = self.own_page();
            if self.mapped.contains_key(&page) {
                self.unmap(page)?;
            } else if self.rng.u8(..4) != 0 {
                self.prune(Self::slot(page));
            } else if !self.debts.iter().any(|(_, pages)| pages.contains(&page)) {
                self.map(page)?;
            }
            if self.rng.u8(..3) == 0 || self.debts.len() > 4 {
                self.settle_one();
            }
            self.check()?;
        }
        while !self.debts.is_empty() {
            self.settle_one();
        }
        Ok(self.mapped)
    }

    /// A page of this thread. Pages of all threads alternate within each slot.
    fn own_page(&mut self) -> u64 {
        let lg2 = F::GRANULE.lg2();
        let slot = self.rng.u64(..SLOTS) << (lg2 + F::INDEX_LG2);
        let page = self.rng.u64(..OWNED) * self.crowd.threads + self.number;
        slot + (page << lg2)
    }

    fn slot(page: u64) -> usize {
        (page >> (F::GRANULE.lg2() + F::INDEX_LG2)) as usize
    }

    /// Takes the table of a slot out if no address there is out.
    fn prune(&self, slot: usize) {
        if !self.addresses.take_all(slot) {
            return;
        }
        let span = PageSize::of_lg2(F::GRANULE.lg2() + F::INDEX_LG2);
        let range = IovaRange::page(Iova::new(slot as u64 * span.bytes()), span);
        // There is none while many pages wait for walks of the others to end.
        if self.table.next_empty_table(range.start()).is_some_and(|empty| empty == range) {
            let mut gather = Gather::new();
            self.table.prune(range, &mut gather).expect("a debt of this table");
            self.table.reclaim(pay(self.table, gather)).expect("a proof of this table");
        }
        self.addresses.give_back(slot);
    }

    fn map(&mut self, page: u64) -> Result<(), String> {
        if !self.addresses.take(Self::slot(page)) {
            return Ok(());
        }
        let pa = self.rng.u64(1..1 << 18) << F::GRANULE.lg2().min(14);
        let pa = pa & !(F::GRANULE.bytes() - 1);
        let mut gather = Gather::new();
        let at = (Iova::new(page), PhysAddr::new(pa));
        let bytes = F::GRANULE.bytes();
        self.table
            .map(at.0, at.1, bytes, Access::READ, &mut gather)
            .map_err(|error| format!("cpu {}: {error}", self.number))?;
        // Nothing is owed that this machine asks for.
        self.table.reclaim(pay(self.table, gather)).expect("a proof of this table");
        self.mapped.insert(page, pa);
        Ok(())
    }

    fn unmap(&mut self, page: u64) -> Result<(), String> {
        let mut gather = Gather::new();
        let range = IovaRange::page(Iova::new(page), F::GRANULE);
        self.table
            .unmap(range, &mut gather)
            .map_err(|error| format!("cpu {}: {error}", self.number))?;
        self.mapped.remove(&page);
        match self.debts.last_mut() {
            Some((debt, pages)) if self.rng.bool() => {
                self.table.absorb(debt, &mut gather).expect("debts of this table");
                pages.push(page);
            }
            _ => self.debts.push((gather, vec![page])),
        }
        Ok(())
    }

    fn settle_one(&mut self) {
        if self.debts.is_empty() {
            return;
        }
        let (gather, pages) = self.debts.swap_remove(self.rng.usize(..self.debts.len()));
        self.table.reclaim(pay(self.table, gather)).expect("a proof of this table");
        pages.into_iter().for_each(|page| self.addresses.give_back(Self::slot(page)));
    }

    /// Checks the translations of all pages of this thread.
    fn check(&self) -> Result<(), String> {
        for (&page, &pa) in &self.mapped {
            let found = self.table.translate(Iova::new(page)).map(|found| found.pa.get());
            if found != Some(pa) {
                return Err(format!(
                    "cpu {}: {page:#x} leads to {found:x?} instead of {pa:#x}",
                    self.number
                ));
            }
        }
        Ok(())
    }
}
