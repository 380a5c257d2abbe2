//! A round: a machine, a table, a device, and random operations until everything is taken down.

use fastrand::Rng;
use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, StreamId};
use portolan::inval::{Capabilities, Gather, Quiesced, Quirks};
use portolan::platform::TableMem;
use portolan::table::PageTable;
use portolan::table::format::Format;
use portolan_sim::decode::{TableFormat, TableRoot};
use portolan_sim::device::Device;
use portolan_sim::iommu::{Iommu, Setup, StreamConfig};

use super::sabotage::{Saboteur, Side};
use super::{DebtSabotage, machine};
use crate::audit::WaitingTables;
use crate::format::FormatName;
use crate::memory::CheckedTables;
use crate::oracle::Oracle;
use crate::record::Tally;
use crate::subject::Subject;

const CONTEXT: InvalTag = InvalTag::new(7);
const STREAM: StreamId = StreamId::new(3);
/// Bytes of table memory in a round; small, so that it runs out now and then.
const MEMORY: u64 = 6 << 20;
/// Pages of table memory at least.
const FEWEST_PAGES: u64 = 96;
/// Places that the device remembers.
const REMEMBERED: usize = 96;
/// Places in the input addresses around which a round works.
const WINDOWS: usize = 5;

/// Result of a check; the error describes the violation.
pub(super) type Checked<T = ()> = Result<T, String>;

/// Options of a round.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) name: FormatName,
    pub(super) operations: u64,
    pub(super) sabotage: DebtSabotage,
}

/// A debt after unmaps, with the addresses that it covers.
pub(super) struct Debt {
    pub(super) gather: Gather,
    pub(super) ranges: Vec<IovaRange>,
}

impl Debt {
    /// Takes another over, of the same table.
    pub(super) fn absorb<F: Format, M: TableMem<F::Word>>(
        &mut self,
        table: &PageTable<F, M>,
        mut other: Self,
    ) {
        table.absorb(&mut self.gather, &mut other.gather).expect("debts of this table");
        self.ranges.extend(other.ranges);
    }
}

/// A paid debt whose pages and addresses have not been given back.
pub(super) struct Paid {
    pub(super) quiesced: Quiesced,
    pub(super) ranges: Vec<IovaRange>,
}

/// A table from start to end.
pub(super) struct TableRound<'a, F: Format> {
    pub(super) plan: Plan,
    /// The table, the pages that are mapped, and the debt of the operation under way.
    pub(super) subject: Subject<'a, F>,
    pub(super) rng: &'a mut Rng,
    pub(super) tally: &'a Tally,
    /// Capabilities that the plan is made for.
    pub(super) caps: Capabilities,
    pub(super) quirks: Quirks,
    pub(super) iommu: &'a Iommu<&'a CheckedTables<F>>,
    pub(super) device: Device<'a, &'a CheckedTables<F>>,
    /// Mapped, but the map's debt is open: not to be used yet.
    pub(super) unpaid: Vec<(Gather, IovaRange)>,
    /// Unmapped and not synced: the old translation may answer.
    pub(super) owed: Oracle,
    /// Synced and not reclaimed: nothing may answer, and nothing may be mapped yet.
    pub(super) quiet: Oracle,
    pub(super) debts: Vec<Debt>,
    pub(super) paid: Vec<Paid>,
    pub(super) windows: [u64; WINDOWS],
}

/// Runs a round and takes all down.
pub(super) fn run<F: Format>(
    format: F,
    model: TableFormat,
    plan: Plan,
    rng: &mut Rng,
    tally: &Tally,
) -> Checked {
    let caps = machine::capabilities(rng, F::GRANULE, plan.sabotage);
    let quirks = machine::quirks(rng, plan.sabotage);
    let pages = (MEMORY >> F::ROOT.lg2()).max(FEWEST_PAGES) as u32;
    let memory = CheckedTables::<F>::new(&format, &caps, pages);
    let outcome = {
        let subject = Subject::new(plan.name, format, model, &memory);
        let setup = Setup { names: machine::names(&caps), ..Setup::adversarial(caps) };
        let iommu = Iommu::new(setup, &memory);
        let root = TableRoot { root: subject.table.root(), format: model };
        let config = StreamConfig::Translate { context: CONTEXT, table: root };
        iommu.attach(STREAM, config);
        let windows = windows(rng, model);
        let mut round = TableRound {
            plan,
            subject,
            rng,
            tally,
            caps: plan.sabotage.believed(caps),
            quirks,
            iommu: &iommu,
            device: Device::new(&iommu, STREAM, REMEMBERED),
            unpaid: Vec::new(),
            owed: Oracle::new(),
            quiet: Oracle::new(),
            debts: Vec::new(),
            paid: Vec::new(),
            windows,
        };
        let outcome = round.all();
        let split = format.split_rule();
        outcome.map_err(|what| format!("{what} ({caps:?}, {quirks:?}, {split:?})"))
    };
    outcome?;
    match (memory.live(), memory.wrong_frees()) {
        (0, 0) => Ok(()),
        (live, wrong) => Err(format!(
            "after the table is dropped {live} pages are live; {wrong} were freed wrongly"
        )),
    }
}

/// First addresses of the windows: both ends, and boundaries of random levels.
fn windows(rng: &mut Rng, model: TableFormat) -> [u64; WINDOWS] {
    let input = 1u64 << model.input_lg2();
    let slot = model.span(1).bytes();
    let mut windows = [0; WINDOWS];
    windows[1] = input - 2 * slot;
    for window in &mut windows[2..] {
        let span = model.span(rng.u8(1..model.levels())).bytes().min(input / 2);
        let boundary = rng.u64(1..=(input / span - 1).min(64)) * span;
        *window = boundary - slot;
    }
    windows
}

impl<F: Format> TableRound<'_, F> {
    fn all(&mut self) -> Checked {
        let mut until_audit = self.rng.u64(1..=64);
        for _ in 0..self.plan.operations {
            self.operation()?;
            self.tally.operation();
            until_audit -= 1;
            if until_audit == 0 {
                self.audit()?;
                until_audit = self.rng.u64(1..=64);
            }
            if self.subject.memory.wrong_frees() != 0 {
                return Err("a table page was freed twice".to_owned());
            }
        }
        self.take_down()
    }

    fn operation(&mut self) -> Checked {
        match self.rng.u8(..100) {
            0..=33 => self.map(),
            34..=61 => self.unmap(),
            62..=71 => self.sync_one(),
            72..=77 => self.reclaim_one(),
            78..=79 => self.absorb(),
            80..=81 => self.prune(),
            82..=83 => self.refused(),
            84..=86 => self.pay_one_map(),
            _ => self.use_live(),
        }
    }

    /// Pays for `gather` through the IOMMU.
    pub(super) fn pay(&mut self, mut gather: Gather, side: Side) -> Checked<Quiesced> {
        let queue = Saboteur { queue: self.iommu, sabotage: self.plan.sabotage, side };
        self.tally.count("syncs");
        self.subject
            .table
            .sync(&queue, CONTEXT, &self.caps, &self.quirks, &mut gather)
            .map_err(|error| format!("a plan cannot be carried out: {error}"))
    }

    fn sync_one(&mut self) -> Checked {
        if self.debts.is_empty() {
            return Ok(());
        }
        let Debt { gather, ranges } = self.debts.swap_remove(self.rng.usize(..self.debts.len()));
        let quiesced = self.pay(gather, Side::Unmap)?;
        for &range in &ranges {
            self.owed.unmap(range);
            self.quiet.map(
                range,
                portolan::addr::PhysAddr::new(0),
                portolan::table::Access::empty(),
            );
        }
        self.retry(&ranges)?;
        self.paid.push(Paid { quiesced, ranges });
        if self.rng.bool() {
            self.reclaim_one()?;
        }
        Ok(())
    }

    fn reclaim_one(&mut self) -> Checked {
        if self.paid.is_empty() {
            return Ok(());
        }
        let at = self.rng.usize(..self.paid.len());
        let Paid { quiesced, ranges } = self.paid.swap_remove(at);
        let before = self.subject.memory.live();
        self.subject.table.reclaim(quiesced).expect("a proof of this table");
        self.tally.add("reclaimed", before.saturating_sub(self.subject.memory.live()) as u64);
        for range in ranges {
            self.quiet.unmap(range);
        }
        Ok(())
    }

    fn absorb(&mut self) -> Checked {
        if self.debts.len() < 2 {
            return Ok(());
        }
        let other = self.debts.swap_remove(self.rng.usize(..self.debts.len()));
        let at = self.rng.usize(..self.debts.len());
        if let Some(debt) = self.debts.get_mut(at) {
            debt.absorb(&self.subject.table, other);
            self.tally.count("absorbed");
        }
        Ok(())
    }

    /// Prunes the whole table, which no other thread uses, and pays at once: the next map may need a
    /// table where one has left.
    fn prune(&mut self) -> Checked {
        let mut gather = Gather::new();
        let all = self.subject.table.input_range();
        let pruned = self.subject.table.prune(all, &mut gather);
        self.tally.add("pruned", pruned.map_err(|wrong| wrong.to_string())? as u64);
        let quiesced = self.pay(gather, Side::Unmap)?;
        self.subject.table.reclaim(quiesced).expect("a proof of this table");
        Ok(())
    }

    pub(super) fn audit(&mut self) -> Checked {
        self.tally.count("audits");
        let waiting = self
            .debts
            .iter()
            .map(|debt| debt.gather.table_pages())
            .chain(self.paid.iter().map(|paid| paid.quiesced.table_pages()))
            .sum();
        let waiting =
            if waiting == 0 { WaitingTables::Nothing } else { WaitingTables::AtMost(waiting) };
        let mut found = self.subject.differences(waiting);
        let (live, pages) = (self.subject.memory.live(), self.subject.table.pages());
        if live != pages {
            found.push(format!("{live} pages are allocated, {pages} are counted"));
        }
        if found.is_empty() { Ok(()) } else { Err(found.join("; ")) }
    }

    /// Pays everything, unmaps everything, prunes: only the root may stay.
    fn take_down(&mut self) -> Checked {
        self.subject.memory.fail_at(0);
        while let Some(piece) = self.subject.oracle.next_from(Iova::new(0)) {
            let before = self.subject.oracle.pieces().count();
            self.unmap_range(piece.range)?;
            if self.subject.oracle.pieces().count() == before {
                // No memory for a split: give some back and continue.
                self.drain()?;
            }
        }
        self.drain()?;
        self.audit()?;
        self.prune()?;
        self.audit()?;
        let pages = self.subject.table.pages();
        if pages != 1 {
            return Err(format!("{pages} table pages stay after everything is unmapped"));
        }
        let counts = self.iommu.counters().invalidations;
        self.tally.add("invalidations", counts.page + counts.range + counts.context);
        Ok(())
    }

    pub(super) fn drain(&mut self) -> Checked {
        while !self.unpaid.is_empty() {
            self.pay_one_map()?;
        }
        while !self.debts.is_empty() {
            self.sync_one()?;
        }
        while !self.paid.is_empty() {
            self.reclaim_one()?;
        }
        Ok(())
    }

    pub(super) fn granule(&self) -> PageSize {
        F::GRANULE
    }

    pub(super) fn stream(&self) -> StreamId {
        STREAM
    }
}
