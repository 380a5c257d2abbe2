//! Forced bouncing at work: every piece is copied through the library's pool, and nothing is mapped.
//!
//! The pool is memory that the device reaches at all times: 64 MiB in slots of 2 KiB, as Linux has it
//! unless told otherwise, with an area for each CPU. What a device only reads is copied once. What it
//! writes is copied both ways, so that bytes it leaves alone come back as they were. Pieces longer
//! than 256 KiB are copied in parts. Coherent memory lies in the pool from the start and is not copied.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, anyhow};
use portolan::addr::{CpuId, PageSize, PhysAddr, PhysRange};
use portolan::bounce::{Need, Pool, PoolOptions, Slots};
use portolan::platform::{Clock, Nanos, SpinCpus};
use portolan::table::Segment;
use portolan_model::profile::{Event, Profile};

use super::lane::{At, IdHasher, Lane, Moved, Taken};
use super::policy::Policy;
use super::report::{BounceCounts, DeviceCounts, PolicyReport, TimeByCause};
use crate::trace::{Class, Direction};

/// Bytes of the pool.
const POOL: u64 = 64 << 20;
/// The most that is copied in one part.
const PART: u64 = 256 << 10;
/// CPUs that have areas of their own; a trace with more shares them.
const MOST_CPUS: u32 = 256;

/// Time is not asked for.
struct Still;

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

type Current = Box<dyn Fn() -> CpuId + Send + Sync>;
type OneThread = SpinCpus<Still, Current>;

struct Live {
    slots: Vec<Slots>,
    /// Bytes to be copied back.
    back: u64,
    pages: u64,
    class: Class,
}

/// What the next map moves.
struct Next {
    parts: Vec<u64>,
    direction: Direction,
    class: Class,
}

/// The lane; its machine's tables play no part.
pub(super) struct BounceLane {
    pool: Pool<OneThread>,
    cpu: Arc<AtomicU32>,
    live: HashMap<u64, Live, BuildHasherDefault<IdHasher>>,
    next: Next,
    granule: u64,
    call_ns: f64,
    byte_ns: f64,
    map_ns: f64,
    unmap_ns: f64,
    used: u64,
    report: PolicyReport,
    counts: BounceCounts,
}

impl BounceLane {
    pub(super) fn new(profile: &Profile) -> Result<Self> {
        let cpu = Arc::new(AtomicU32::new(0));
        let current = Arc::clone(&cpu);
        let current: Current = Box::new(move || CpuId::new(current.load(Ordering::Relaxed)));
        let count = profile.cpus().clamp(1, MOST_CPUS);
        let options = PoolOptions {
            slot: PageSize::of_lg2(11),
            areas: count,
        };
        let memory = PhysRange::from_len(PhysAddr::new(1 << 32), POOL);
        let memory = memory.ok_or_else(|| anyhow!("no pool"))?;
        let pool = Pool::new(
            SpinCpus::new(count as usize, Still, current),
            memory,
            options,
        )?;
        let slots = pool.in_use().slots.into();
        Ok(Self {
            pool,
            cpu,
            live: HashMap::default(),
            next: Next {
                parts: Vec::new(),
                direction: Direction::None,
                class: Class::Streaming,
            },
            granule: profile.granule().bytes(),
            call_ns: profile.price(Event::CopyCall)?,
            byte_ns: profile.price(Event::CopyByte)?,
            map_ns: 0.0,
            unmap_ns: 0.0,
            used: 0,
            report: PolicyReport {
                policy: Policy::Bounce.name().to_owned(),
                ..PolicyReport::default()
            },
            counts: BounceCounts {
                slots,
                ..BounceCounts::default()
            },
        })
    }

    /// Slots for all parts, or none.
    fn take(&self) -> Option<Vec<Slots>> {
        let mut all = Vec::with_capacity(self.next.parts.len());
        for &bytes in &self.next.parts {
            match self.pool.take(&Need::bytes(bytes)) {
                Ok(slots) => all.push(slots),
                Err(_) => {
                    let given = all.into_iter().try_for_each(|slots| self.pool.give(slots));
                    debug_assert!(given.is_ok());
                    return None;
                }
            }
        }
        Some(all)
    }
}

fn slots_of(slots: &[Slots]) -> u64 {
    let bytes = slots.iter().map(|one| one.data().len_minus_one() + 1);
    bytes.map(|bytes| bytes.div_ceil(1 << 11)).sum()
}

impl Lane for BounceLane {
    fn moves(&mut self, moved: &Moved<'_>) {
        self.next.direction = moved.direction;
        self.next.class = moved.class;
        self.next.parts.clear();
        // What no piece accounts for is one more piece.
        let mut left = moved.bytes;
        for piece in moved
            .pieces
            .iter()
            .map(|piece| piece.bytes)
            .chain([u64::MAX])
        {
            let mut rest = piece.min(left);
            left -= rest;
            while rest > 0 {
                self.next.parts.push(rest.min(PART));
                rest -= rest.min(PART);
            }
        }
    }

    fn map(&mut self, at: At, id: u64, _pieces: &[Segment], bytes: u64) -> Result<Taken> {
        self.cpu.store(at.cpu.into(), Ordering::Relaxed);
        if self.next.class == Class::Coherent {
            self.next.parts.clear();
        }
        let Some(slots) = self.take() else {
            self.report.rejected_maps += 1;
            return Ok(Taken::Rejected);
        };
        let sum: u64 = self.next.parts.iter().sum();
        let (forth, back) = match self.next.direction {
            Direction::ToDevice => (sum, 0),
            Direction::FromDevice | Direction::Both => (sum, sum),
            Direction::None => (0, 0),
        };
        self.counts.copies += slots.len() as u64;
        self.counts.bytes_copied += forth + back;
        self.used += slots_of(&slots);
        self.counts.slots_peak = self.counts.slots_peak.max(self.used);
        self.map_ns += self.call_ns * slots.len() as f64 + self.byte_ns * forth as f64;
        let pages = bytes.div_ceil(self.granule);
        self.report.operations += 1;
        self.report.device.accesses += pages;
        let class = self.next.class;
        let live = Live {
            slots,
            back,
            pages,
            class,
        };
        self.live.insert(id, live);
        self.report.mapped_peak = self.report.mapped_peak.max(self.live.len() as u64);
        Ok(Taken::Yes)
    }

    fn unmap(&mut self, at: At, id: u64) -> Result<()> {
        self.cpu.store(at.cpu.into(), Ordering::Relaxed);
        let Some(live) = self.live.remove(&id) else {
            return Ok(());
        };
        self.report.operations += 1;
        self.unmap_ns += self.byte_ns * live.back as f64;
        if live.class == Class::Streaming {
            self.counts.saved.pages += live.pages;
            self.counts.saved.syncs += 1;
        }
        self.used -= slots_of(&live.slots);
        for slots in live.slots {
            let given = self.pool.give(slots);
            given.map_err(|error| anyhow!("slots were not taken back: {error}"))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<PolicyReport> {
        let us = |ns: f64| ns / 1000.0;
        let mut report = self.report.clone();
        report.time_us = TimeByCause {
            total: us(self.map_ns + self.unmap_ns),
            map: us(self.map_ns),
            unmap: us(self.unmap_ns),
            ..TimeByCause::default()
        };
        report.device = DeviceCounts {
            accesses: report.device.accesses,
            ..DeviceCounts::default()
        };
        report.bounce = Some(self.counts);
        Ok(report)
    }
}
