//! The transport between the driver and the device. Failures of a request, a configuration or a fault are put in
//! here; the device carries out requests that reach it.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use portolan::addr::{PageSizes, StreamId};
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Clock, Nanos};
use portolan_hw::virtio::{Exchange, Transport};
use portolan_spec::virtio::{F_MMIO, FAULT_BYTES, R_DOMAIN, TAIL_BYTES, config};
use portolan_vmm::Endpoint;
use portolan_vmm::viommu::{ViommuOptions, VirtioIommu};
use vm_memory::Permissions;

use crate::{machine_of, reach};

/// Action at a look at the clock.
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

/// Failure of a request.
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

#[derive(Debug, Default)]
pub struct State {
    /// Features that the device offers.
    pub features: u64,
    /// Configuration that the driver reads.
    pub config: Vec<u8>,
    /// Properties in the answer to a probe, in place of the device's.
    pub properties: Option<Vec<u8>>,
    /// Failures of the next requests; one each.
    pub failures: VecDeque<Option<Failure>>,
    /// Records that come before the device's, and the number of bytes of each that were written.
    pub faults: VecDeque<([u8; FAULT_BYTES], usize)>,
    pub seen: Vec<Vec<u8>>,
    /// Number of requests that were sent together, each time.
    pub batches: Vec<usize>,
    /// Requests that were given up and that the device has not returned.
    held: Vec<(Failure, Vec<u8>)>,
    /// The next requests tell that they came, and wait until they may go on; one each.
    pub gates: VecDeque<Option<Gate>>,
}

/// Tells that a request came, and when it may go on.
pub type Gate = (Sender<()>, Receiver<()>);

/// A device and its endpoints, behind a transport.
#[derive(Debug)]
pub struct Link {
    pub device: Arc<VirtioIommu>,
    pub endpoints: [Endpoint; 2],
    state: Mutex<State>,
}

impl Link {
    /// A device with all features, domains 0 to 9 and 48 bits.
    pub fn new() -> Self {
        Self::with_limit(Duration::from_secs(60))
    }

    /// One that waits for guards as long as `limit`.
    pub fn with_limit(limit: Duration) -> Self {
        let mut options = ViommuOptions::default();
        options.pages = PageSizes::from_bits(!0xfff);
        options.last_domain = 9;
        options.invalidation_limit = limit;
        let (device, endpoints) = machine_of(options);
        device.write_config(config::BYPASS, 1);
        let state = State {
            // Memory of devices is said to be mapped, and refused by the device.
            features: device.features() | F_MMIO,
            config: device.config().into(),
            ..State::default()
        };
        Self { device, endpoints, state: Mutex::new(state) }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn endpoint(&self, number: u32) -> &Endpoint {
        let mut all = self.endpoints.iter();
        all.find(|of| of.id().get() == number).unwrap()
    }

    /// Address that an access of an endpoint reaches.
    pub fn reach(&self, endpoint: u32, iova: u64, access: Permissions) -> Option<u64> {
        let found = reach(self.endpoint(endpoint), iova, 1, access)?;
        Some(found[0].0)
    }

    /// Tells if an endpoint has a domain, by the device's record of an access to an address that is not mapped.
    pub fn attached(&self, stream: StreamId) -> bool {
        while self.device.next_fault().is_some() {}
        let nowhere = (1 << 48) - 1;
        self.reach(stream.get(), nowhere, Permissions::Read).is_some()
            || self.device.next_fault().unwrap()[0] != R_DOMAIN
    }

    /// Tells if no endpoint has a domain; the device knows none then.
    pub fn idle(&self) -> bool {
        let mut all = self.endpoints.iter();
        all.all(|of| !self.attached(StreamId::new(of.id().get())))
    }

    /// The device returns requests that were given up; it carries some of them out before.
    pub fn return_all(&self) {
        let held = std::mem::take(&mut self.state().held);
        for (failure, request) in held {
            if failure == Failure::Late {
                self.carry_out(&request);
            }
        }
    }

    /// Has the device carry out a request, and drops the answer.
    fn carry_out(&self, request: &[u8]) {
        self.device.request(request, &mut [0; TAIL_BYTES]);
    }
}

impl Transport for &Link {
    fn features(&self) -> u64 {
        self.state().features
    }

    fn config32(&self, offset: usize) -> Result<u32, IommuError> {
        let bytes = self.state().config[offset..offset + 4].try_into().unwrap();
        Ok(u32::from_le_bytes(bytes))
    }

    fn config64(&self, offset: usize) -> Result<u64, IommuError> {
        let bytes = self.state().config[offset..offset + 8].try_into().unwrap();
        Ok(u64::from_le_bytes(bytes))
    }

    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, IommuError> {
        self.device.write_config(offset, value);
        let value = self.device.config()[offset];
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
        let tail = answer.len() - TAIL_BYTES;
        match failure {
            None => {
                drop(state);
                assert_eq!(self.device.request(request, answer), answer.len());
                // A probe's, the only answer with more than its tail.
                let properties = self.state().properties.clone().unwrap_or_default();
                for (to, from) in answer[..tail].iter_mut().zip(properties) {
                    *to = from;
                }
            }
            Some(Failure::Status(status)) => answer[tail..].copy_from_slice(&[status, 0, 0, 0]),
            Some(failure @ (Failure::Lost | Failure::Late | Failure::Silent)) => {
                state.held.push((failure, request.to_vec()));
                drop(state);
                if failure == Failure::Silent {
                    self.carry_out(request);
                }
                return Err(IommuError::TimedOut {
                    awaited: Awaited::Completion,
                    waited: Nanos::new(1),
                });
            }
            Some(Failure::Unwritten) => {}
            Some(Failure::Gone) => return Err(IommuError::Gone),
        }
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<([u8; FAULT_BYTES], usize)>, IommuError> {
        let put_in = self.state().faults.pop_front();
        let told = || Some((self.device.next_fault()?, FAULT_BYTES));
        Ok(put_in.or_else(told))
    }
}
