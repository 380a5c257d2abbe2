//! Several CPUs at once in the same leaf tables.
//!
//! Each thread owns every n-th page of a few slots, so that all of them take entries in and out of
//! the same tables: tables are emptied by one while another maps into them, taken back, reclaimed.
//! The interleavings are up to the machine; each thread's operations follow from the seed.

use std::collections::BTreeMap;

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, PhysAddr};
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
const OWNED: u64 = 6;
/// Pages of table memory.
const MEMORY_PAGES: u32 = 64;

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
        let memory = CheckedTables::<F>::new(&format, &caps, MEMORY_PAGES);
        let mut found = self.on(Subject::new(self.format, format, model, &memory));
        if memory.live() != 0 || memory.wrong_frees() != 0 {
            let (live, wrong) = (memory.live(), memory.wrong_frees());
            found.push(format!("{live} pages stay, {wrong} were freed wrongly"));
        }
        found
    }
}

impl Crowd {
    fn on<F: Format>(self, mut subject: Subject<'_, F>) -> Vec<String> {
        let table = &subject.table;
        let left: Vec<Result<BTreeMap<u64, u64>, String>> = std::thread::scope(|scope| {
            let cpus: Vec<_> = (0..self.threads)
                .map(|cpu| scope.spawn(move || TableCpu::new(self, cpu, table).run()))
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
    rng: Rng,
    /// Pages that it has mapped, and the address that each leads to.
    mapped: BTreeMap<u64, u64>,
    /// Debts not paid, with the pages that may not be mapped yet.
    debts: Vec<(Gather, Vec<u64>)>,
}

impl<'t, F: Format, M: TableMem<F::Word>> TableCpu<'t, F, M> {
    fn new(crowd: Crowd, number: u64, table: &'t PageTable<F, M>) -> Self {
        Self {
            crowd,
            number,
            table,
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

    fn map(&mut self, page: u64) -> Result<(), String> {
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
        let (gather, _) = self.debts.swap_remove(self.rng.usize(..self.debts.len()));
        self.table.reclaim(pay(self.table, gather)).expect("a proof of this table");
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
