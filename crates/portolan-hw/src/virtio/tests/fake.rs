//! A device in memory, strict where the specification lets it be, with failures on demand.

extern crate std;

use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Clock, Nanos};

use crate::virtio::{Exchange, Transport};

/// What happens at a look at the clock.
type Strike = Box<dyn FnOnce() + Send>;

/// Time that goes on by a microsecond a look.
#[derive(Clone, Default)]
pub struct Ticks(Arc<Mutex<(u64, Option<Strike>)>>);

portolan::one_cpu!(Ticks);

impl Ticks {
    /// At the next look `work` is done first.
    pub fn strike(&self, work: impl FnOnce() + Send + 'static) {
        self.0.lock().unwrap().1 = Some(Box::new(work));
    }
}

impl Clock for Ticks {
    fn now(&self) -> Nanos {
        let strike = self.0.lock().unwrap().1.take();
        if let Some(work) = strike {
            work();
        }
        let mut state = self.0.lock().unwrap();
        state.0 += 1000;
        Nanos::new(state.0)
    }
}

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No answer, and it is not carried out.
    Lost,
    /// No answer, and it is carried out when the device returns it.
    Late,
    /// No answer, though it is carried out.
    Silent,
    /// Refused with a status.
    Status(u8),
    /// Completed, without a status.
    Unwritten,
    /// The device is gone.
    Gone,
}

/// By first address: last address, memory, flags.
type Mappings = BTreeMap<u64, (u64, u64, u32)>;

#[derive(Debug, Default)]
pub struct State {
    pub features: u64,
    pub config: Vec<u8>,
    /// Domain of each endpoint.
    pub endpoints: BTreeMap<u32, Option<u32>>,
    /// By domain: whether it passes through, and its mappings.
    pub domains: BTreeMap<u32, (bool, Mappings)>,
    /// What the next requests come to; one each.
    pub failures: VecDeque<Option<Failure>>,
    pub faults: VecDeque<([u8; 24], usize)>,
    pub properties: Vec<u8>,
    pub seen: Vec<Vec<u8>>,
    /// How many requests were sent together, each time.
    pub batches: Vec<usize>,
    /// Requests that were given up and that the device has not returned.
    pub held: Vec<(Failure, Vec<u8>)>,
    /// The next requests tell that they came, and wait until they may go on; one each.
    pub gates: VecDeque<Option<Gate>>,
}

/// Tells that a request came, and when it may go on.
pub type Gate = (Sender<()>, Receiver<()>);

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl State {
    fn leave(&mut self, endpoint: u32) {
        if let Some(Some(domain)) = self.endpoints.insert(endpoint, None) {
            if !self.endpoints.values().any(|at| *at == Some(domain)) {
                self.domains.remove(&domain);
            }
        }
    }

    fn carry_out(&mut self, bytes: &[u8]) -> u8 {
        match (bytes[0], bytes.len()) {
            (1, 20) => self.attach(u32_at(bytes, 4), u32_at(bytes, 8), u32_at(bytes, 12)),
            (2, 20) => {
                let (domain, endpoint) = (u32_at(bytes, 4), u32_at(bytes, 8));
                match self.endpoints.get(&endpoint) {
                    None => 6,
                    Some(at) if *at != Some(domain) => 4,
                    Some(_) => {
                        self.leave(endpoint);
                        0
                    }
                }
            }
            (3, 36) => self.map(bytes),
            (4, 28) => self.unmap(u32_at(bytes, 4), u64_at(bytes, 8), u64_at(bytes, 16)),
            (5, 72) if self.endpoints.contains_key(&u32_at(bytes, 4)) => 0,
            (5, 72) => 6,
            _ => 4,
        }
    }

    fn attach(&mut self, domain: u32, endpoint: u32, flags: u32) -> u8 {
        if !self.endpoints.contains_key(&endpoint) {
            return 6;
        }
        let kind = flags & 1 != 0;
        if self.domains.get(&domain).is_some_and(|(is, _)| *is != kind) {
            return 4;
        }
        self.leave(endpoint);
        self.endpoints.insert(endpoint, Some(domain));
        self.domains.entry(domain).or_default().0 = kind;
        0
    }

    fn map(&mut self, bytes: &[u8]) -> u8 {
        let (start, last) = (u64_at(bytes, 8), u64_at(bytes, 16));
        let (phys, flags) = (u64_at(bytes, 24), u32_at(bytes, 32));
        let Some((bypass, mappings)) = self.domains.get_mut(&u32_at(bytes, 4)) else {
            return 6;
        };
        let overlaps = mappings.iter().any(|(s, m)| *s <= last && start <= m.0);
        let odd = start & 0xfff != 0 || last & 0xfff != 0xfff || phys & 0xfff != 0;
        if *bypass || overlaps || odd || flags & 3 == 0 {
            return 4;
        }
        mappings.insert(start, (last, phys, flags));
        0
    }

    fn unmap(&mut self, domain: u32, start: u64, last: u64) -> u8 {
        let Some((_, mappings)) = self.domains.get_mut(&domain) else {
            return 6;
        };
        let mut hit = mappings.iter().filter(|(s, m)| **s <= last && start <= m.0);
        if hit.any(|(s, m)| *s < start || last < m.0) {
            return 5;
        }
        mappings.retain(|s, m| *s > last || start > m.0);
        0
    }

    /// What an access of an endpoint reaches.
    pub fn reach(&self, endpoint: u32, iova: u64, flag: u32) -> Option<u64> {
        let domain = (*self.endpoints.get(&endpoint)?)?;
        let (bypass, mappings) = self.domains.get(&domain)?;
        if *bypass {
            return Some(iova);
        }
        let (start, (last, phys, flags)) = mappings.range(..=iova).next_back()?;
        (iova <= *last && flags & flag != 0).then(|| phys + (iova - start))
    }

    /// The domains that the endpoints are in.
    pub fn used(&self) -> BTreeSet<u32> {
        self.endpoints.values().flatten().copied().collect()
    }
}

/// The device behind a transport.
#[derive(Debug)]
pub struct Fake(Mutex<State>);

impl Fake {
    /// A device with all features, endpoints 8 and 16, domains 0 to 9 and 48 bits.
    pub fn new() -> Self {
        let mut config = Vec::new();
        config.extend(0xffff_ffff_ffff_f000u64.to_le_bytes());
        config.extend(0u64.to_le_bytes());
        config.extend(0xffff_ffff_ffffu64.to_le_bytes());
        config.extend(0u32.to_le_bytes());
        config.extend(9u32.to_le_bytes());
        config.extend(64u32.to_le_bytes());
        config.extend([1, 0, 0, 0]);
        Self(Mutex::new(State {
            features: 0x77,
            config,
            endpoints: [(8, None), (16, None)].into(),
            ..State::default()
        }))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The device returns what was given up; it carries some of it out before.
    pub fn return_all(&self) {
        let mut state = self.state();
        for (failure, request) in core::mem::take(&mut state.held) {
            if failure == Failure::Late {
                state.carry_out(&request);
            }
        }
    }
}

impl Transport for &Fake {
    fn features(&self) -> u64 {
        self.state().features
    }

    fn config32(&self, offset: usize) -> Result<u32, IommuError> {
        Ok(u32_at(&self.state().config, offset))
    }

    fn config64(&self, offset: usize) -> Result<u64, IommuError> {
        Ok(u64_at(&self.state().config, offset))
    }

    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, IommuError> {
        self.state().config[offset] = value;
        Ok(value)
    }

    fn request_all(&self, batch: &mut [Exchange<'_>]) {
        self.state().batches.push(batch.len());
        for one in batch {
            one.outcome = self.request(one.request, one.answer);
        }
    }

    fn all_returned(&self) -> bool {
        self.state().held.is_empty()
    }

    fn request(&self, request: &[u8], answer: &mut [u8]) -> Result<(), IommuError> {
        let gate = self.state().gates.pop_front().flatten();
        if let Some((came, goes)) = gate {
            came.send(()).unwrap();
            goes.recv().unwrap();
        }
        let mut state = self.state();
        state.seen.push(request.to_vec());
        let failure = state.failures.pop_front().flatten();
        let timed_out = Err(IommuError::TimedOut {
            awaited: Awaited::Completion,
            waited: Nanos::new(1),
        });
        let status = match failure {
            None => state.carry_out(request),
            Some(Failure::Status(status)) => status,
            Some(failure @ (Failure::Lost | Failure::Late | Failure::Silent)) => {
                if failure == Failure::Silent {
                    state.carry_out(request);
                }
                state.held.push((failure, request.to_vec()));
                return timed_out;
            }
            Some(Failure::Unwritten) => return Ok(()),
            Some(Failure::Gone) => return Err(IommuError::Gone),
        };
        let tail = answer.len() - 4;
        if request[0] == 5 {
            for (to, from) in answer[..tail].iter_mut().zip(&state.properties) {
                *to = *from;
            }
        }
        answer[tail..].copy_from_slice(&[status, 0, 0, 0]);
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<([u8; 24], usize)>, IommuError> {
        Ok(self.state().faults.pop_front())
    }
}
