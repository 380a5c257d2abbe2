//! A virtio-iommu's words for its driver: its features, its configuration, its answers and its events.

use std::sync::Mutex;

use portolan::addr::{CpuId, StreamId};
use portolan::iommu::{Attach as _, Domain as _, Iommu as _, IommuError};
use portolan::platform::{Clock, Nanos, SpinCpus};
use portolan_hw::virtio::{Config, Transport, Viommu};

/// Bytes of the configuration.
const CONFIGURATION: usize = 40;
/// Events that the device sends, at most.
const EVENTS: usize = 16;

/// A device that answers with the given bytes, each once, and then only with zeros.
struct Device {
    features: u64,
    configuration: [u8; CONFIGURATION],
    said: Mutex<Vec<u8>>,
    events: Mutex<usize>,
}

impl Device {
    fn new(bytes: &[u8]) -> Self {
        let mut bytes = bytes.iter().copied();
        let mut next = || bytes.next().unwrap_or(0);
        let features = u64::from_le_bytes([next(), 0, 0, 0, next(), 0, 0, 0]);
        let configuration = core::array::from_fn(|_| next());
        Self {
            features,
            configuration,
            said: Mutex::new(bytes.rev().collect()),
            events: Mutex::new(EVENTS),
        }
    }

    fn word<const N: usize>(&self, offset: usize) -> [u8; N] {
        let at = |place: usize| self.configuration.get(offset.checked_add(place)?).copied();
        core::array::from_fn(|place| at(place).unwrap_or(u8::MAX))
    }

    fn say(&self, into: &mut [u8]) {
        let mut said = self.said.lock().expect("nobody panicked");
        into.fill_with(|| said.pop().unwrap_or(0));
    }
}

impl Transport for Device {
    fn features(&self) -> u64 {
        self.features
    }

    fn config32(&self, offset: usize) -> Result<u32, IommuError> {
        Ok(u32::from_le_bytes(self.word(offset)))
    }

    fn config64(&self, offset: usize) -> Result<u64, IommuError> {
        Ok(u64::from_le_bytes(self.word(offset)))
    }

    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, IommuError> {
        Ok(value ^ self.word::<1>(offset)[0])
    }

    fn request(&self, _: &[u8], answer: &mut [u8]) -> Result<(), IommuError> {
        self.say(answer);
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<([u8; 24], usize)>, IommuError> {
        let mut left = self.events.lock().expect("nobody panicked");
        let Some(less) = left.checked_sub(1) else {
            return Ok(None);
        };
        *left = less;
        let (mut event, mut length) = ([0; 24], [0]);
        self.say(&mut event);
        self.say(&mut length);
        Ok(Some((event, length[0].into())))
    }
}

/// Time that moves each time it is read.
struct Ticks(Mutex<u64>);

impl Clock for Ticks {
    fn now(&self) -> Nanos {
        let mut ticks = self.0.lock().expect("nobody panicked");
        *ticks += 1000;
        Nanos::new(*ticks)
    }
}

/// Starts the device with a driver, asks for the reserved addresses of a stream, attaches it, and reads the device's
/// events.
pub fn virtio(bytes: &[u8]) {
    let cpus = SpinCpus::new(1, Ticks(Mutex::new(0)), (|| CpuId::new(0)) as fn() -> CpuId);
    let Ok(unit) = Viommu::start(Device::new(bytes), std::sync::Arc::new(cpus), Config::default())
    else {
        return;
    };
    let stream = StreamId::new(8);
    let _ = unit.reserved(stream);
    if let Ok(domain) = unit.domain() {
        let _ = unit.attach(stream, &domain);
        let _ = (domain.granule(), domain.input_range());
        let _ = unit.reserved(stream);
        let _ = unit.block(stream);
    }
    for _ in 0..=EVENTS {
        let _ = unit.next_fault();
    }
}
