//! Requests, many of them in flight, and their costs.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portolan_linux::vfio::{InterruptKind, Interrupts, Opened};
use serde::Serialize;

use crate::Arguments;
use crate::controller::{Controller, Identity, PAGE, Transfer, VECTOR};
use crate::filtered;
use crate::mover::{Back, Held, Manner, Mover};
use crate::once::Data;

/// Costs of the requests of one manner in one direction.
#[derive(Serialize)]
pub struct Row {
    /// By which of the kernel's interfaces.
    pub over: String,
    pub manner: Manner,
    pub way: &'static str,
    /// Of a request, in the round that took the least.
    pub microseconds: f64,
    /// Requests in a second, in that round.
    pub iops: f64,
    /// Of all rounds.
    pub maps: u64,
    pub unmaps: u64,
    /// System calls that map or unmap, of a request.
    pub calls_each: f64,
    /// Copies of a request's bytes, of a request.
    pub copies_each: f64,
    /// Size of the pages that slots lie in, if there are slots.
    pub slot_page: Option<u64>,
}

/// Contents of page `at` of the disk.
pub fn content(seed: u64, at: u64) -> Vec<u8> {
    let mut state = seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = (0..PAGE / 8).flat_map(|_| {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31).to_le_bytes()
    });
    words.collect()
}

/// A run of one manner: requests are put into the queue, and taken out of it.
struct Run<'a> {
    controller: Controller,
    mover: Mover,
    interrupts: Option<&'a Interrupts>,
    /// By number: the page that the device has, and where on the disk it belongs.
    flight: Vec<Option<(Held, u64)>>,
    free: Vec<Data>,
    seed: Option<u64>,
    /// Time that went into making and comparing data.
    aside: Duration,
    /// Requests whose address the driver looked up, and those of them that were copies.
    looked: (u64, u64),
}

/// Requests at the begin of a round whose address is looked up.
const LOOKED: u64 = 64;

/// Reads, and writes before if that is wanted, in one manner.
pub fn run(opened: &Opened, manner: Manner, arguments: &Arguments) -> Result<(Identity, Vec<Row>)> {
    let device = opened.devices.first().context("no device")?;
    let depth = arguments.depth;
    let interrupts = match arguments.interrupts {
        true => Some(device.interrupts(InterruptKind::MsiX, VECTOR as u32 + 1)?),
        false => None,
    };
    let mut mover = Mover::new(opened, manner, depth)?;
    let bar = device.bar(0)?;
    let vector = interrupts.as_ref().map(|_| VECTOR as u16);
    let controller = Controller::start(bar, &mover.device, depth, vector)?;
    let pages = controller.pages();
    let requests = arguments.requests;
    ensure!(requests <= pages, "the disk has {pages} pages, fewer than {requests}");
    let free = mover.memory(2 * usize::from(depth))?;
    let seed = arguments.write.map(|seed| manner.seed(seed));
    let mut run = Run {
        controller,
        mover,
        interrupts: interrupts.as_ref(),
        flight: (0..depth).map(|_| None).collect(),
        free,
        seed,
        aside: Duration::ZERO,
        looked: (0, 0),
    };
    let ways: &[Transfer] = match seed {
        Some(_) => &[Transfer::Write, Transfer::Read],
        None => &[Transfer::Read],
    };
    let mut rows = Vec::new();
    if arguments.endless {
        loop {
            run.all(Transfer::Read, requests)?;
        }
    }
    if let Some(row) = arguments.row {
        filtered::begin(row);
        run.all(Transfer::Read, requests)?;
        filtered::end();
    }
    for &way in ways {
        run.looked = (0, 0);
        let before = (opened.unit.counts(), run.mover.by_hand());
        let rounds = (0..arguments.rounds).map(|_| run.all(way, requests));
        let rounds: Vec<Duration> = rounds.collect::<Result<_>>()?;
        let took = rounds.into_iter().min().unwrap_or_default();
        let after = (opened.unit.counts(), run.mover.by_hand());
        let maps = after.0.map - before.0.map + after.1.0 - before.1.0;
        let unmaps = after.0.unmap - before.0.unmap + after.1.1 - before.1.1;
        rows.push(Row {
            over: opened.unit.interface().to_string(),
            manner,
            way: match way {
                Transfer::Write => "write",
                Transfer::Read => "read",
            },
            microseconds: took.as_secs_f64() * 1e6 / requests as f64,
            iops: requests as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE),
            maps,
            unmaps,
            calls_each: (maps + unmaps) as f64 / (requests * u64::from(arguments.rounds)) as f64,
            copies_each: run.looked.1 as f64 / run.looked.0.max(1) as f64,
            slot_page: run.mover.slot_page(),
        });
    }
    // It reaches no memory any more, so that taking its queues away is no fault.
    run.controller.stop()?;
    run.mover.close(run.free)?;
    Ok((run.controller.identity.clone(), rows))
}

impl Run<'_> {
    /// Makes all requests of one way; returns the time that took, without making and comparing data.
    fn all(&mut self, way: Transfer, requests: u64) -> Result<Duration> {
        let begin = Instant::now();
        self.aside = Duration::ZERO;
        let (mut next, mut done) = (0, 0);
        let mut back = Vec::new();
        let mut last = begin;
        while done < requests {
            let mut put = 0;
            for number in 0..self.flight.len() {
                if next == requests || self.flight[number].is_some() {
                    continue;
                }
                let Some(page) = self.free.pop() else { break };
                self.put(number, way, next, page)?;
                (next, put) = (next + 1, put + 1);
            }
            if put > 0 {
                self.controller.ring();
            }
            let taken = self.take(&mut back)?;
            done += taken;
            if taken > 0 || put > 0 {
                last = Instant::now();
            }
            self.check_back(way, &mut back)?;
            if taken == 0 {
                self.wait(last)?;
            }
        }
        self.mover.settle(&mut back)?;
        self.check_back(way, &mut back)?;
        Ok(begin.elapsed().saturating_sub(self.aside))
    }

    fn put(&mut self, number: usize, way: Transfer, at: u64, mut page: Data) -> Result<()> {
        let begin = Instant::now();
        match (way, self.seed) {
            (Transfer::Write, Some(seed)) => page.copy_from_slice(&content(seed, at)),
            // Bytes from before must not pass for bytes that were read.
            _ => page.fill(0xa5),
        }
        self.aside += begin.elapsed();
        let bytes = page.as_ptr();
        let (held, iova) = self.mover.begin(number as u16, page, way)?;
        if at < LOOKED {
            let begin = Instant::now();
            self.looked.0 += 1;
            self.looked.1 += u64::from(self.mover.is_copied(bytes, iova));
            self.aside += begin.elapsed();
        }
        self.controller.put(number as u16, way, at, iova);
        self.flight[number] = Some((held, at));
        Ok(())
    }

    /// Takes the completed requests; returns their number.
    fn take(&mut self, back: &mut Vec<Back>) -> Result<u64> {
        let mut taken = 0;
        while let Some(number) = self.controller.take()? {
            let slot = self.flight.get_mut(usize::from(number)).and_then(Option::take);
            let (held, at) = slot.with_context(|| format!("request {number} is not in flight"))?;
            self.mover.end(held, at, back)?;
            taken += 1;
        }
        if taken > 0 {
            self.controller.taken();
        }
        Ok(taken)
    }

    /// Compares the data that was read with the data that was written.
    fn check_back(&mut self, way: Transfer, back: &mut Vec<Back>) -> Result<()> {
        let begin = Instant::now();
        for (page, at) in back.drain(..) {
            if let (Transfer::Read, Some(seed)) = (way, self.seed) {
                let same = *page == *content(seed, at);
                ensure!(same, "page {at} was read, and is not what was written");
            }
            self.free.push(page);
        }
        self.aside += begin.elapsed();
        Ok(())
    }

    /// Waits until there may be a completion.
    fn wait(&self, since: Instant) -> Result<()> {
        if let Some(interrupts) = self.interrupts {
            interrupts.wait(VECTOR, Duration::from_millis(100))?;
        }
        self.controller.check(since)
    }
}
