//! Random operations, after each of which every granule is found in exactly one place.

use super::*;
extern crate std;

/// Granules, half of them below 4 GiB.
const PAGES: u64 = 4096;
const FIRST: u64 = (1 << 32) - ((PAGES / 2) << 12);

type Space = Arc<IovaSpace<Chosen>>;

struct Rig {
    space: Space,
    held: Vec<IovaRange>,
    aside: IovaRange,
}

impl Rig {
    fn new(cpu: &Arc<AtomicU64>, options: IovaOptions) -> Self {
        let all = IovaRange::from_len(Iova::new(FIRST), PAGES << 12).unwrap();
        let space = IovaSpace::new(Chosen(cpu.clone()), all, PageSize::SIZE_4K, options);
        let space = Arc::new(space.unwrap());
        let aside = IovaRange::from_len(Iova::new(FIRST + 0x10_5000), 0x3000).unwrap();
        space.reserve(aside).unwrap();
        let held = Vec::new();
        Self { space, held, aside }
    }

    /// The range, rounded up as it was.
    fn whole(&self, range: IovaRange) -> IovaRange {
        let classes = &self.space.classes;
        let kind = classes.of_range(range).unwrap();
        kind.map_or(range, |kind| classes.block_at(kind, range.start().get()))
    }

    /// Finds the granules that are free, caches included, and checks that every granule is in one
    /// place.
    fn audit(&mut self, context: &str) -> Vec<bool> {
        let mut seen = alloc::vec![0u8; PAGES as usize];
        let mut note = |range: IovaRange, place: u8| {
            for page in 0..range.pages(PageSize::SIZE_4K) {
                let at = ((range.start().get() - FIRST) >> 12) + page;
                let was = core::mem::replace(&mut seen[at as usize], place);
                assert_eq!(was, 0, "{context}: granule {at} is in {was} and {place}");
            }
        };
        note(self.aside, 1);
        self.held.iter().for_each(|&range| note(self.whole(range), 2));
        let classes = &self.space.classes;
        for kind in Kind::all() {
            let mut blocks: Vec<u64> = self.space.depot(kind, |depot| depot.blocks().collect());
            for cache in self.space.caches.iter() {
                blocks.extend(cache.fronts.blocks(kind, self.space.front(kind)));
                cache.magazines.with(|cache| blocks.extend(cache.of(kind).blocks()));
            }
            for start in blocks {
                let here = classes.kind_at(kind, start);
                assert_eq!(here, kind, "{context}: a block in the wrong zone");
                note(classes.block_at(kind, start), 3);
            }
        }
        self.space.ranges(|ranges| {
            ranges.gaps().for_each(|gap| note(gap, 4));
        });
        assert!(!seen.contains(&0), "{context}: a granule is lost");
        seen.iter().map(|&place| place > 2).collect()
    }

    fn alloc(&mut self, random: &mut Random, context: &str) {
        let pages = match random.below(40) {
            0 => 1 + random.below(1500),
            1..=4 => 1 + random.below(512),
            _ => 1 + random.below(9),
        };
        let limit = match random.below(4) {
            0 => u64::from(u32::MAX),
            1 => FIRST + random.below(PAGES << 12),
            _ => u64::MAX,
        };
        let request = Request {
            bytes: (pages << 12) - random.below(4096),
            align: PageSize::of_lg2([0, 12, 13, 16][random.below(4) as usize]),
            limit: Iova::new(limit),
        };
        let mut found = match random.below(4) {
            // It may not find ranges that a task finds.
            0 => self.space.try_alloc(&request),
            _ => self.space.alloc(&request),
        };
        if found.is_err() {
            found = self.space.alloc(&request);
        }
        match found {
            Ok(range) => {
                assert_eq!(range.pages(PageSize::SIZE_4K), pages, "{context}");
                assert!(range.start().is_aligned(request.align), "{context}");
                assert!(range.last().get() <= limit, "{context}");
                self.held.push(range);
            }
            Err(IovaError::Full { bytes, .. }) => {
                assert_eq!(bytes, request.bytes);
                let free = self.audit(context);
                assert!(!self.fits(&free, &request), "{context}: {request:?} fits");
            }
            Err(error) => panic!("{context}: {error}"),
        }
    }

    /// Tells if a whole block, or a range that no class has, is free and low enough.
    fn fits(&self, free: &[bool], request: &Request) -> bool {
        let whole = self.space.classes.whole(request);
        let pages = whole.bytes.div_ceil(1 << 12) as usize;
        // A run that is aligned by chance may be missed if it is longer than a block.
        if pages > 512 && request.align.lg2() > 12 {
            return false;
        }
        let mut run = 0;
        for (at, &free) in free.iter().enumerate() {
            run = if free { run + 1 } else { 0 };
            let last = FIRST + ((at as u64) << 12) + 0xfff;
            let start = (last + 1).wrapping_sub((pages as u64) << 12);
            let aligned = Iova::new(start).is_aligned(whole.align);
            if run >= pages && aligned && last <= request.limit.get() {
                return true;
            }
        }
        false
    }

    fn free_some(&mut self, random: &mut Random, context: &str) {
        let most = self.held.len().min(1 << random.below(9)) as u64;
        let many = 1 + random.below(most) as usize;
        let first = random.below((self.held.len() - many + 1) as u64) as usize;
        let back: Vec<_> = self.held.drain(first..first + many).collect();
        let failed = match random.below(2) {
            0 => self.space.free_all(&back),
            _ => back.iter().map(|&range| u64::from(self.space.free(range).is_err())).sum(),
        };
        assert_eq!(failed, 0, "{context}");
    }
}

#[test]
fn every_granule_is_in_one_place() {
    let seeds = std::env::var("IOVA_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seeds.map_or(1..=6u64, |seed| seed..=seed) {
        std::println!("seed {seed}");
        let cpu = Arc::new(AtomicU64::new(0));
        let options = IovaOptions {
            front: [63, 0, 1, 7][seed as usize / 2 % 4],
            depot_magazines: (seed % 4) as usize,
            refill: [1, 4, 16][seed as usize % 3],
            rounds: [1, 3, 8][seed as usize / 2 % 3],
            reserve: [0, 3, 64][seed as usize % 3],
            checks: [Checks::Cheap, Checks::Exact][seed as usize % 2],
            order: [AddressOrder::LowFirst, AddressOrder::HighFirst][seed as usize % 3 % 2],
        };
        let mut rig = Rig::new(&cpu, options);
        let mut random = Random(seed);
        for step in 0..4000u64 {
            let context = alloc::format!("seed {seed}, step {step}");
            cpu.store(random.below(4), Ordering::Relaxed);
            let filling = if step / 500 % 2 == 0 { 85 } else { 25 };
            match random.below(100) {
                0 => rig.space.trim(),
                1 if random.below(4) == 0 => rig.space.trim_all(),
                2 => rig.space.replenish().unwrap(),
                _ if random.below(100) < filling || rig.held.is_empty() => {
                    rig.alloc(&mut random, &context);
                }
                _ => rig.free_some(&mut random, &context),
            }
            rig.audit(&context);
        }
        let held = core::mem::take(&mut rig.held);
        assert_eq!(rig.space.free_all(&held), 0);
        rig.space.trim_all();
        rig.space.release(rig.aside).unwrap();
        let stats = rig.space.stats();
        assert_eq!((stats.free, stats.fragments), (PAGES, 1), "seed {seed}");
    }
}

#[test]
fn exact_checks_refuse_all_that_is_not_out() {
    let options = IovaOptions { checks: Checks::Exact, ..IovaOptions::default() };
    let cpu = Arc::new(AtomicU64::new(0));
    let rig = Rig::new(&cpu, options);
    let ranges: Vec<_> = (0..10).map(|_| rig.space.alloc(&bytes(0x3000)).unwrap()).collect();
    let part = IovaRange::from_len(ranges[3].start(), 0x1000).unwrap();
    assert_eq!(rig.space.free(part), Err(FreeError::Foreign { range: part }));
    for &range in &ranges {
        rig.space.free(range).unwrap();
    }
    for &range in &ranges {
        assert_eq!(rig.space.free(range), Err(FreeError::Free { range }));
    }
    assert_eq!(rig.space.free_all(&ranges), 10);
    let aside = rig.aside;
    assert_eq!(rig.space.free(aside), Err(FreeError::Free { range: aside }));
}

#[test]
fn what_is_given_back_twice_in_a_row_is_refused() {
    let space = one_cpu(window(0, (1 << 30) - 1));
    let range = space.alloc(&bytes(4096)).unwrap();
    space.free(range).unwrap();
    assert_eq!(space.free(range), Err(FreeError::Free { range }));
}

#[test]
fn a_request_that_no_block_serves_takes_what_is_there() {
    let space = one_cpu(window(0x1000, 0x4fff));
    // Four granules that hold no block of four.
    let range = space.alloc(&bytes(0x4000)).unwrap();
    assert_eq!(range, window(0x1000, 0x4fff));
    space.free(range).unwrap();
    space.trim_all();
    assert_eq!(space.alloc(&bytes(0x3000)).unwrap().len_minus_one(), 0x2fff);
}
