//! Registers that read as nonsense: all of them, those that identify the unit, or now and then one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use portolan::iommu::IommuError;
use portolan::platform::{Clock, Mmio, Nanos};

use crate::rig::{Bench, Driver, Iommu, Run, memory};

const SEEDS: u64 = 1_500;
const PAGES: u32 = 512;
const TICK_NS: u64 = 10_000;

/// Reads as anything; writes change nothing.
pub struct Noise {
    pub seed: u64,
    /// Noise; `None` lets each register keep its value.
    pub changing: Option<Mutex<Rng>>,
}

fn word(random: &mut Rng) -> u32 {
    match random.u8(..8) {
        0 => 0,
        1 => u32::MAX,
        2 => 1 << random.u8(..32),
        _ => random.u32(..),
    }
}

impl Mmio for Noise {
    fn read32(&self, offset: usize) -> u32 {
        match &self.changing {
            Some(random) => word(&mut random.lock().unwrap()),
            None => word(&mut Rng::with_seed(self.seed ^ (offset as u64) << 32)),
        }
    }

    fn write32(&self, _: usize, _: u32) {}
}

/// The model's registers, with some bits read wrongly.
pub struct Twisted<U> {
    pub unit: Arc<U>,
    /// Offset below which the flips are applied.
    pub below: usize,
    pub flips: Vec<(usize, u32)>,
    /// One of so many reads, anywhere, has a wrong bit; none with 0.
    pub one_in: u32,
    pub random: Mutex<Rng>,
}

impl<U> Twisted<U> {
    fn twist(&self, offset: usize, bits: u32, mut value: u64) -> u64 {
        for (at, bit) in &self.flips {
            let inside = (offset..offset + bits as usize / 8).contains(at);
            if inside && offset < self.below {
                value ^= 1 << ((at - offset) as u32 * 8 + bit);
            }
        }
        let mut random = self.random.lock().unwrap();
        if self.one_in > 0 && random.u32(..self.one_in) == 0 {
            value ^= 1 << random.u32(..bits);
        }
        value
    }
}

impl<U: Iommu> Mmio for Twisted<U> {
    fn read32(&self, offset: usize) -> u32 {
        self.twist(offset, 32, self.unit.read32(offset).into()) as u32
    }

    fn write32(&self, offset: usize, value: u32) {
        self.unit.write32(offset, value);
    }

    fn read64(&self, offset: usize) -> u64 {
        self.twist(offset, 64, self.unit.read64(offset))
    }

    fn write64(&self, offset: usize, value: u64) {
        self.unit.write64(offset, value);
    }
}

/// Time that goes on with every look.
pub struct Looks(pub Arc<AtomicU64>);

portolan::one_cpu!(Looks);

impl Clock for Looks {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.fetch_add(TICK_NS, Ordering::Relaxed))
    }
}

/// Checks for an error that describes the nonsense, or a unit that accepts every call and answers in time.
pub fn nonsense_in_registers<D: Driver>() {
    let (mut enabled, mut refused) = (0, 0);
    let mut count = |result: Result<(), IommuError>| match result {
        Ok(()) => enabled += 1,
        Err(_) => refused += 1,
    };
    for seed in 0..SEEDS {
        let named = std::panic::catch_unwind(|| {
            let noise = noise::<D>(seed);
            (noise, twisted::<D>(seed))
        });
        let Ok((noise, twisted)) = named else {
            panic!("{}: seed {seed}", D::NAME);
        };
        count(noise);
        count(twisted);
    }
    println!("{}: {enabled} enabled, {refused} refused", D::NAME);
    assert!(enabled > 100 && refused > 1_000);
}

/// Registers without a unit behind them.
fn noise<D: Driver>(seed: u64) -> Result<(), IommuError> {
    let changing = seed % 2 == 1;
    let regs = Noise { seed, changing: changing.then(|| Mutex::new(Rng::with_seed(seed))) };
    let memory = memory::<D>(PAGES);
    let time = Arc::new(AtomicU64::new(0));
    let result = D::enable(regs, memory.clone(), Looks(time.clone()));
    let waited = time.load(Ordering::Relaxed);
    assert!(waited < 40 * D::LIMIT.get(), "{waited} ns");
    let driver = match result {
        Ok(driver) => driver,
        Err(error) => {
            let early = match error {
                IommuError::Nonsense { offset, .. } => !D::BASES.contains(&offset),
                other => other == IommuError::Unsupported,
            };
            // Refused for its registers: nothing was set up for it. Later nonsense keeps it.
            assert!(!early || changing || memory.live() == 0, "{error}");
            return Err(error);
        }
    };
    let now = || time.load(Ordering::Relaxed);
    let _ = Run::over(D::NAME, &now, &|_| false).all::<D, _, _>(&driver);
    Ok(())
}

/// A unit that works, seen through registers that lie.
fn twisted<D: Driver>(seed: u64) -> Result<(), IommuError> {
    let mut random = Rng::with_seed(!seed);
    let bench = Bench::<D>::small();
    let lies = random.u32(1..6);
    let flips = (0..lies).map(|_| (random.usize(..D::IDENTIFICATION), random.u32(..8)));
    let regs = Twisted {
        unit: bench.unit.clone(),
        below: D::IDENTIFICATION,
        flips: flips.collect(),
        one_in: match seed % 4 {
            0 => 200,
            _ => 0,
        },
        random: Mutex::new(Rng::with_seed(seed)),
    };
    let before = bench.unit.now_ns();
    let result = D::enable(regs, bench.memory.clone(), bench.clock());
    let waited = bench.unit.now_ns() - before;
    assert!(waited < 40 * D::LIMIT.get(), "{waited} ns");
    let driver = result?;
    let now = || bench.unit.now_ns();
    let run = Run::over(D::NAME, &now, &|_| false);
    let _ = run.all::<D, _, _>(&driver);
    // Blocked in the end, or kept where it was if the unit said that it did not follow.
    assert!(!bench.is_reached() || run.failures() > 0);
    drop(driver);
    assert_eq!(bench.memory.reads_of_freed_pages(), 0);
    Ok(())
}
