//! Lazy invalidation under a virtual IOMMU (VT-d, 2023): `vtd-flush-queue.csv`, and the cases that it leaves open.
//!
//! Two published throughputs fix two prices: the work of a packet without its invalidations, and one invalidation
//! with its sync and its exit. Nothing is left to predict of them. Computed are the rule (caching mode, stage, trust
//! and flag), the commands and exits of a GiB received, from the library's DMA layer, and the throughput of the
//! combinations that were not published: among them tables that a hypervisor follows without caching mode, by
//! write-protecting them, where each word that is written is an exit beside those of submissions.
//!
//! The driver receives 1500-byte packets, each into a buffer in a page of its own, with 256 of them
//! posted; it keeps its buffers, as Linux's drivers do. The number of packets in flight, the size of
//! the buffers and the number of CPUs were not published.

use std::collections::VecDeque;

use anyhow::{Context, Result, anyhow, bail};
use portolan::addr::{PageSize, PhysAddr, PhysRange, StreamId};
use portolan::dma::{
    Buffers, DeviceTlbPresence, FromDevice, Mapping, Policy, PolicyInputs, PolicyPreference,
    Shadowing, SpaceOptions, Stage, TrapCost, Trust, default_policy,
};
use portolan::inval::{Caching, Capabilities, Quirks};
use portolan::table::Format;
use portolan::table::format::{
    DirtyTracking, VtdFirstLevels, VtdFirstStage, VtdLevels, VtdSecondStage,
};
use portolan_sim::cpus::VirtualCpus;
use portolan_sim::decode::TableFormat;
use portolan_sim::profile::{Event, Profile};

use super::bounds::Evidence;
use super::published;
use super::rows::{Check, FittedPrice, FlushQueue, Implied, Receivers, Throughput, error_pct};
use crate::buffers::buffer;
use portolan_tune::advice::UnmapCost;
use portolan_tune::buffers::Memory;
use portolan_tune::counts::CommandCounts;
use portolan_tune::explain::{PolicyRow, shadowing_name};
use portolan_tune::fixture::{Fixture, FixtureSetup, Submitting};

/// The machine that the published figures come from.
pub const MACHINE: &str = "spr-vm";
/// Bytes of a packet.
pub const PACKET: u64 = 1500;
/// Buffers that the device holds.
const POSTED: usize = 256;
/// Bytes that are received to count; a GiB is this many times as much.
const RECEIVED: u64 = 1 << 26;
const GIB: u64 = 1 << 30;
const FITTED_ON: &str = "both published rows";
/// Words of tables that change while a page is mapped and unmapped, in a leaf table that stays: its entry, each
/// time.
pub const TABLE_WRITES: u64 = 2;
/// Sizes of an unmap, in bytes, for which the price of an invalidation is printed.
const SIZES: [(&str, u64); 3] =
    [("a packet of 1500 bytes", PACKET), ("a page", 4096), ("a packet of 9000 bytes", 9000)];

#[derive(Clone, Copy)]
struct Case {
    stage: Stage,
    shadowing: Shadowing,
    policy: Policy,
}

impl Case {
    const fn new(stage: Stage, shadowing: Shadowing, policy: Policy) -> Self {
        Self { stage, shadowing, policy }
    }

    /// Words that are exits when they are written, by packet.
    fn protected_writes(&self) -> u64 {
        match self.shadowing {
            Shadowing::WriteProtection => TABLE_WRITES,
            _ => 0,
        }
    }
}

/// The published ones first.
const CASES: [Case; 6] = [
    Case::new(Stage::First, Shadowing::CachingMode, Policy::Strict),
    Case::new(Stage::First, Shadowing::CachingMode, Policy::Lazy),
    Case::new(Stage::Second, Shadowing::CachingMode, Policy::Strict),
    Case::new(Stage::Second, Shadowing::CachingMode, Policy::Lazy),
    Case::new(Stage::Second, Shadowing::WriteProtection, Policy::Strict),
    Case::new(Stage::Second, Shadowing::WriteProtection, Policy::Lazy),
];

/// Counts for [`RECEIVED`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReceiveCounts {
    packets: u64,
    counts: CommandCounts,
    /// Number of doorbells.
    doorbells: u64,
}

impl ReceiveCounts {
    fn submissions_a_packet(&self) -> f64 {
        self.counts.sync as f64 / self.packets as f64
    }

    fn of_a_gib(&self) -> CommandCounts {
        let scale = GIB / RECEIVED;
        CommandCounts {
            page: self.counts.page * scale,
            range: self.counts.range * scale,
            context: self.counts.context * scale,
            sync: self.counts.sync * scale,
        }
    }
}

/// Receives through a device of the library.
fn receive<F: Format>(
    profile: &Profile,
    format: F,
    layout: TableFormat,
    caps: Capabilities,
    policy: Policy,
) -> Result<ReceiveCounts> {
    let mut options = SpaceOptions::default();
    options.policy = policy;
    let fixture = Fixture::new(
        format,
        &FixtureSetup {
            profile,
            layout,
            caps,
            // A map's debt is one command; a flush is one for the context, as Linux's are.
            quirks: Quirks { context_above: 1, ..profile.quirks() },
            cpus: 1,
            submitting: Submitting::Alone,
            options,
            table_pages: 256,
        },
    )?;
    let device = fixture.device(StreamId::new(1))?;
    let page = PageSize::SIZE_4K.bytes();
    let post = |number: u64| {
        let at = PhysAddr::new(number % (4 * POSTED as u64) * 2 * page);
        let memory = PhysRange::from_len(at, PACKET).context("a buffer without bytes")?;
        let map = || device.map(buffer(memory), FromDevice);
        let mapped = fixture.while_mapping(map);
        let mapping = mapped.map_err(|failed| anyhow!(failed.error))?;
        fixture.use_once(&device, &mapping, FromDevice);
        Ok::<_, anyhow::Error>(mapping)
    };
    let unmap = |mapping: Mapping<VirtualCpus, Memory, FromDevice>| {
        let unmapped = mapping.unmap();
        unmapped.map_err(|failed| anyhow!(failed.error).context("an unmap failed"))?;
        Ok::<_, anyhow::Error>(())
    };
    let mut ring = VecDeque::new();
    for number in 0..POSTED as u64 {
        ring.push_back(post(number)?);
    }
    let packets = RECEIVED / PACKET;
    let before = fixture.model.counters();
    for number in 0..packets {
        let filled = ring.pop_front().context("an empty ring")?;
        unmap(filled)?;
        ring.push_back(post(number + POSTED as u64)?);
    }
    let after = fixture.model.counters();
    ring.into_iter().try_for_each(unmap)?;
    if after.faults != 0 {
        bail!("the device was refused its buffers");
    }
    Ok(ReceiveCounts {
        packets,
        counts: CommandCounts::of(&after).since(CommandCounts::of(&before)),
        doorbells: after.doorbells - before.doorbells,
    })
}

fn count(profile: &Profile, case: Case) -> Result<ReceiveCounts> {
    let caching = match case.shadowing.of(case.stage) {
        Shadowing::CachingMode => Caching::NotPresentToo,
        _ => Caching::PresentOnly,
    };
    let caps = Capabilities { caching, ..profile.capabilities() };
    let (dirty, output_lg2) = (DirtyTracking::Off, 46);
    match case.stage {
        Stage::First => {
            let format = VtdFirstStage { levels: VtdFirstLevels::Four, output_lg2, dirty };
            receive(profile, format, TableFormat::vtd_first_stage(4)?, caps, case.policy)
        }
        Stage::Second => {
            let format = VtdSecondStage { levels: VtdLevels::Four, output_lg2, dirty };
            receive(profile, format, TableFormat::vtd_second_stage(4)?, caps, case.policy)
        }
    }
}

/// Nanoseconds that the machine takes for `bytes` bytes at `gbit_s`.
fn ns_of(bytes: u64, gbit_s: f64) -> f64 {
    (bytes * 8) as f64 / gbit_s
}

/// The work of `bytes` bytes and one invalidation, from the published rows.
fn solve(bytes: u64, published: [f64; 2], exits: [f64; 2]) -> [f64; 2] {
    let [strict, lazy] = published.map(|gbit_s| ns_of(bytes, gbit_s));
    let invalidation = (strict - lazy) / (exits[0] - exits[1]);
    [strict - exits[0] * invalidation, invalidation]
}

fn facts(shadowing: Shadowing, stage: Stage, trust: Trust, wish: PolicyPreference) -> PolicyInputs {
    PolicyInputs {
        trust,
        stage,
        shadowing,
        device_tlb: DeviceTlbPresence::Absent,
        exits: match shadowing {
            Shadowing::None => TrapCost::None,
            _ => TrapCost::Expensive,
        },
        buffers: Buffers::Kept,
        wish,
    }
}

/// The rule, for each combination of its inputs.
fn decisions() -> Vec<PolicyRow> {
    let mut rows = Vec::new();
    let followed = [Shadowing::CachingMode, Shadowing::WriteProtection];
    for shadowing in followed.into_iter().chain([Shadowing::None]) {
        for stage in [Stage::First, Stage::Second] {
            for trust in [Trust::Trusted, Trust::Untrusted] {
                for wish in [PolicyPreference::Strict, PolicyPreference::Lazy] {
                    rows.push(PolicyRow::new(&facts(shadowing, stage, trust, wish)));
                }
            }
        }
    }
    rows
}

/// Recomputes the figures that follow from the published ones.
///
/// # Errors
/// If the profile or the published table is wrong, or the library refuses an operation.
pub fn flush_queue() -> Result<FlushQueue> {
    let profile = Profile::by_name(MACHINE)?;
    let published = published::flush_queue(published::FLUSH_QUEUE)?;
    let counted = CASES.iter().map(|case| count(&profile, *case)).collect::<Result<Vec<_>>>()?;
    let submitted: Vec<f64> = counted.iter().map(ReceiveCounts::submissions_a_packet).collect();
    let &[strict, lazy, ..] = submitted.as_slice() else {
        bail!("no counts");
    };
    let waits = UnmapCost::of(&profile)?;
    let [work, invalidation] = solve(PACKET, published, [strict, lazy]);
    let mut rows = Vec::new();
    // The exit's part of an invalidation.
    let exit = invalidation * waits.exits_ns / waits.invalidation_ns;
    for (i, (case, counted)) in CASES.iter().zip(&counted).enumerate() {
        let written = case.protected_writes() as f64 * exit;
        let computed = (PACKET * 8) as f64 / (work + submitted[i] * invalidation + written);
        rows.push(row(*case, counted, computed, published.get(i).copied()));
    }
    let price = |event, ns| FittedPrice { case: "receive", event, ns, fitted_on: FITTED_ON };
    let implied = SIZES.map(|(unmap, size_bytes)| Implied {
        unmap,
        size_bytes,
        ns: solve(size_bytes, published, [strict, lazy])[1],
    });
    // Of the CPU that waits: as many times the machine's as CPUs receive.
    let own = waits.invalidation_ns;
    let lacks = "the price of an invalidation is no range over CPUs that receive";
    let [low, high] = waits.invalidation_range_ns.context(lacks)?;
    let waits_ns = [low, own, high];
    let said = waits.receiving_cpus.context(lacks)?;
    let bare = Profile::by_name("xeon-vtd")?;
    let literature_ns = bare.price(Event::CmdRange)? + bare.price(Event::Sync)?;
    Ok(FlushQueue {
        name: "flush-queue".to_owned(),
        machine: MACHINE.to_owned(),
        rows,
        prices: vec![
            price("work of a packet but for its invalidations", work),
            price("invalidation, its sync and its exit included", invalidation),
        ],
        implied: implied.to_vec(),
        receivers: Receivers { waits_ns, cpus: waits_ns.map(|ns| ns / invalidation) },
        literature_ns,
        literature: "one strict invalidation, about 2130 cycles at 3.1 GHz (rIOMMU, ASPLOS 2015)"
            .to_owned(),
        bounds: Vec::new(),
        decisions: decisions(),
        checks: checks([work, invalidation], waits_ns, literature_ns, said),
    })
}

/// Checks the work of a packet and its invalidation; the time of an invalidation on the waiting CPU (lower limit,
/// profile, upper limit); and the same on bare metal.
fn checks(
    [work, invalidation]: [f64; 2],
    waits_ns: [f64; 3],
    literature_ns: f64,
    said: [u32; 3],
) -> Vec<Check> {
    let [low, own, high] = waits_ns;
    let cpus = said[1];
    let receive = waits_ns.map(|ns| (ns / invalidation).round() as u32);
    vec![
        Check {
            what: "the profile says how many CPUs receive at each end of that".to_owned(),
            found: format!("{said:?} and {receive:?}"),
            holds: said == receive,
        },
        Check {
            what: "the profile has the price of an invalidation for the CPU that waits, with all of its CPUs \
                   receiving, within a thousandth"
                .to_owned(),
            found: format!("{own:.1} ns and {cpus} times {invalidation:.3} ns"),
            holds: (own / invalidation / f64::from(cpus) - 1.0).abs() <= 1e-3,
        },
        Check {
            what: "its range begins with the price on bare metal".to_owned(),
            found: format!("{low:.1} ns and {literature_ns:.1} ns"),
            holds: (low / literature_ns - 1.0).abs() <= 1e-3 && high > own,
        },
        Check {
            what: "both prices are positive".to_owned(),
            found: format!("{work:.1} ns and {invalidation:.1} ns"),
            holds: work > 0.0 && invalidation > 0.0,
        },
    ]
}

fn row(case: Case, counted: &ReceiveCounts, computed: f64, published: Option<f64>) -> Throughput {
    let wish = match case.policy {
        Policy::Lazy => PolicyPreference::Lazy,
        Policy::Strict | Policy::Deferred => PolicyPreference::Strict,
    };
    let rule = facts(case.shadowing, case.stage, Trust::Trusted, wish);
    let counts = counted.of_a_gib();
    let exits = counted.doorbells + case.protected_writes() * counted.packets;
    Throughput {
        case: "receive",
        variant: match case.policy {
            Policy::Lazy => "flush-queue",
            Policy::Strict | Policy::Deferred => "strict",
        },
        stage: match case.stage {
            Stage::First => "first",
            Stage::Second => "second",
        },
        shadowing: shadowing_name(case.shadowing),
        allowed: if default_policy(&rule).policy == case.policy { "yes" } else { "no" },
        size_bytes: PACKET,
        quantity: "throughput_gbit_s",
        published,
        computed,
        error_pct: published.map(|published| error_pct(computed, published)),
        fitted: published.is_some(),
        evidence: match published {
            Some(_) => Evidence::Fitted,
            None => Evidence::Computed,
        },
        counts,
        exits: exits * (GIB / RECEIVED),
    }
}
