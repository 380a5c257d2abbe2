//! Requirements for every IOMMU, of every vendor: scenarios written once against `portolan::iommu`
//! and run on every [`Rig`] of a driver and a [`Host`].
//!
//! A scenario that could pass without the unit doing anything first shows that the unit does
//! something: a stale entry has to be there before an invalidation is said to have removed it.
//! Where a machine lacks an ability that a scenario needs, the scenario is skipped, with the
//! reason.

mod asking;
mod basic;
mod configuration;
mod disk;
mod endurance;
mod faults;
mod foreign;
mod guest;
mod handover;
mod interrupts;
mod migration;
mod moves;
mod posted;
mod power;
mod rig;
mod run;
mod scene;
mod shared;
mod stale;
mod stores;

pub use asking::{Asker, DriverEvent, FaultSource, Faulting, Leave, MARK, Wrote};
pub use disk::{Disk, SharedPage, Transfer};
pub use foreign::{Foreign, Notifier};
pub use guest::GuestStage;
pub use handover::Next;
pub use interrupts::Raised;
pub use rig::{Host, Machine, MakeDomain, Pasids, Rig};
pub use run::{COUNTS, Line, run};
pub use stores::Layout;

use portolan::addr::{Iova, PageSize};
use portolan::iommu::{FaultEvent, Iommu as _};

/// Tells if a unit does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    /// The property holds.
    Yes,
    /// The property does not hold, for this reason.
    No(&'static str),
}

/// Abilities of a machine that scenarios have to know.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// It caches translations until told, so that a missing invalidation is visible.
    pub caches: Has,
    /// The invalidation of a page leaves other pages cached.
    pub page_exact: Has,
    /// The invalidation of a domain leaves other domains cached.
    pub domain_exact: Has,
    /// Refused accesses are recorded.
    pub records: Has,
    /// Records name the kind of access and tell missing from forbidden.
    pub reasons: Has,
    /// Records of a blocked device have the details of its access.
    pub details_of_blocked: Has,
    /// Streams can be passed through.
    pub pass_through: Has,
    /// Blocks can be mapped.
    pub blocks: Has,
    /// The smallest block, which a leaf table spans.
    pub block: PageSize,
    /// Devices can read.
    pub reads: Has,
    /// A second device exists.
    pub second: Has,
    /// Refused interrupts are recorded.
    pub records_interrupts: Has,
    /// Interrupts that choose CPU and vector themselves are refused.
    pub refuses_plain: Has,
    /// An interrupt in use can be given another number.
    pub renumbers: Has,
    /// Interrupts reach CPUs with identifiers above 255.
    pub wide_destinations: Has,
}

impl Abilities {
    /// Every one that a driver has without being asked for.
    pub const ALL: Self = Self {
        caches: Has::Yes,
        page_exact: Has::Yes,
        domain_exact: Has::Yes,
        records: Has::Yes,
        reasons: Has::Yes,
        details_of_blocked: Has::Yes,
        pass_through: Has::Yes,
        blocks: Has::Yes,
        block: PageSize::SIZE_2M,
        reads: Has::Yes,
        second: Has::Yes,
        records_interrupts: Has::Yes,
        refuses_plain: Has::Yes,
        renumbers: Has::Yes,
        wide_destinations: Has::No("the driver was told that identifiers have 8 bits"),
    };
}

/// First address that scenarios map, if addresses have more than 32 bits.
pub const HIGH_BASE: Iova = Iova::new(0x1_4000_0000);
/// Base for addresses of 32 bits.
pub const LOW_BASE: Iova = Iova::new(0x4000_0000);

/// Outcome of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Passed.
    Pass,
    /// Failed: the expected result and the actual one.
    Fail(String),
    /// Not applicable, for this reason.
    Skip(String),
}

/// Result of a scenario: `Ok`, or the outcome that ended it early.
pub type Verdict = Result<(), Outcome>;

type Run<M> = fn(&M) -> Verdict;

/// A scenario.
pub struct Scenario<M: Machine> {
    /// Name of the scenario.
    pub name: &'static str,
    /// Seed of its random numbers, if it has any.
    pub seed: Option<u64>,
    run: Run<M>,
}

impl<M: Machine> Scenario<M> {
    fn new((name, run): (&'static str, Run<M>)) -> Self {
        let seed = seed_of(name);
        Self { name, seed, run }
    }

    /// Runs it on a machine that no scenario has used before.
    pub fn run(&self, machine: &M) -> Outcome {
        match (self.run)(machine) {
            Ok(()) => match machine.host.complaints() {
                none if none.is_empty() => Outcome::Pass,
                some => Outcome::Fail(format!("the hardware complains: {}", some.join(", "))),
            },
            Err(outcome) => outcome,
        }
    }
}

const RANDOM: &str = "random-operations";
const REFUSED: &str = "refused-command-recovers";
const REFUSED_MOVES: &str = "refused-moves-are-repeated";
const REFUSED_KEEPERS: &str = "refused-moves-of-keepers";
/// Scenarios whose commands are not counted alike: refused ones are submitted but never carried out, and those of the
/// next kernel's driver are counted by that.
pub const UNCOUNTED: [&str; 6] = [
    REFUSED,
    REFUSED_MOVES,
    REFUSED_KEEPERS,
    handover::BLOCKS,
    handover::FORGETS,
    handover::GOES_ON,
];
const MIGRATION: &str = "migration-under-load-ends-equal";
const RANDOM_DISK: &str = "random-disk-transfers";

/// All scenarios.
pub fn scenarios<M: Machine>() -> Vec<Scenario<M>> {
    let all: [(&'static str, Run<M>); 47] = [
        ("mapped-access-succeeds", basic::mapped_access_succeeds),
        ("unmapped-access-faults", basic::unmapped_access_faults),
        ("read-only-refuses-writes", basic::read_only_refuses_writes),
        ("write-only-refuses-reads", basic::write_only_refuses_reads),
        ("page-ends-are-exact", basic::page_ends_are_exact),
        ("block-split-keeps-the-rest", basic::block_split_keeps_the_rest),
        ("debts-of-one-block", stale::debts_of_one_block),
        ("blocks-among-pages", stale::blocks_among_pages),
        ("stale-until-sync", stale::stale_until_sync),
        ("other-page-stays-stale", stale::other_page_stays_stale),
        ("other-domain-stays-stale", stale::other_domain_stays_stale),
        ("remapped-goes-to-the-new-page", stale::remapped_goes_to_the_new_page),
        ("identifier-reuse-forgets", stale::identifier_reuse_forgets),
        ("never-attached-is-blocked", configuration::never_attached_is_blocked),
        ("attach-block-attach", configuration::attach_block_attach),
        ("domain-to-domain", configuration::domain_to_domain),
        ("pass-through-to-paging", configuration::pass_through_to_paging),
        ("pasid-moves", configuration::pasid_moves),
        ("one-sync-pays-for-all", stale::one_sync_pays_for_all),
        ("ranges-are-whole", stale::ranges_are_whole),
        ("freed-tables-are-forgotten", stale::freed_tables_are_forgotten),
        ("moved-devices-forget", moves::moved_devices_forget),
        ("kept-translations-end", moves::kept_translations_end),
        ("gone-devices-are-refused", moves::gone_devices_are_refused),
        (REFUSED_MOVES, moves::refused_moves_are_repeated),
        (REFUSED_KEEPERS, moves::refused_moves_of_keepers),
        ("queue-wraps", endurance::queue_wraps),
        ("long-debts-are-paid", endurance::long_debts_are_paid),
        ("fault-room-overflows", endurance::fault_room_overflows),
        (REFUSED, endurance::refused_command_recovers),
        ("requests-are-brought-in", faults::requests_are_brought_in),
        ("stalls-are-brought-in", faults::stalls_are_brought_in),
        ("requests-are-refused", faults::requests_are_refused),
        ("stalls-are-refused", faults::stalls_are_refused),
        ("detach-answers-requests", faults::detach_answers_requests),
        ("detach-answers-stalls", faults::detach_answers_stalls),
        ("request-room-overflows", faults::request_room_overflows),
        ("stall-room-overflows", faults::stall_room_overflows),
        ("floods-of-requests", faults::floods_of_requests),
        ("floods-of-stalls", faults::floods_of_stalls),
        ("misbehaving-requests", faults::misbehaving_requests),
        ("response-after-reset", faults::response_after_reset),
        ("tables-shared-by-requests", shared::by_requests),
        ("tables-shared-by-stalls", shared::by_stalls),
        (MIGRATION, migration::ends_equal),
        (RANDOM, endurance::random_operations),
        (RANDOM_DISK, disk::random_transfers),
    ];
    let tables = foreign::all().into_iter().chain(guest::all());
    let kernels = power::all().into_iter().chain(handover::all());
    let all =
        all.into_iter().chain(tables).chain(interrupts::all()).chain(posted::all()).chain(kernels);
    all.map(Scenario::new).collect()
}

/// Seed of a scenario's random numbers, if it has any.
fn seed_of(name: &str) -> Option<u64> {
    match name {
        RANDOM => Some(endurance::SEED),
        MIGRATION => Some(migration::SEED),
        RANDOM_DISK => Some(disk::SEED),
        _ => None,
    }
}

/// Ends a scenario as failed.
fn fail(what: impl Into<String>) -> Outcome {
    Outcome::Fail(what.into())
}

/// Turns a driver's error into a failed scenario.
fn must<T, E: core::fmt::Display>(what: &str, result: Result<T, E>) -> Result<T, Outcome> {
    result.map_err(|error| fail(format!("{what}: {error}")))
}

/// Ends a scenario as skipped unless the machine has something.
fn needs(has: Has) -> Verdict {
    match has {
        Has::Yes => Ok(()),
        Has::No(why) => Err(Outcome::Skip(why.to_owned())),
    }
}

fn expect<T: PartialEq + core::fmt::Debug>(what: &str, found: T, wanted: T) -> Verdict {
    if found == wanted {
        Ok(())
    } else {
        Err(fail(format!("{what}: {found:?} instead of {wanted:?}")))
    }
}

/// Everything that the unit has to say, up to `limit` events.
fn drain<M: Machine>(machine: &M, limit: u64) -> Result<Vec<FaultEvent>, Outcome> {
    let mut events = Vec::new();
    for _ in 0..limit {
        match must("reading faults", machine.unit.next_fault())? {
            Some(event) => events.push(event),
            None => return Ok(events),
        }
    }
    Err(fail(format!("more than {limit} fault events")))
}
