//! Sends requests for debts: the device is told of the records, in batches.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.5 (MAP) and 5.13.6.6 (UNMAP). A debt's range
//! may be wider than that of the maps and unmaps, and an UNMAP of more than that would take other
//! mappings away. So a debt is only a place to look; the requests come from the records.
//!
//! An UNMAP without an answer may be carried out at any later time, when its addresses are mapped
//! anew. Its record stays, and with it the addresses are in use, until the device has returned
//! the request or has forgotten the domain.

use arrayvec::ArrayVec;

use portolan::addr::{Iova, IovaRange};
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Cpus, Nanos, poll};

use super::claim::{Act, Claim, Room, add};
use super::device::BATCH;
use super::domain::{Inner, VirtioDomain, Which};
use super::records::{Known, Mapping, Wanted};
use super::transport::NO_SUCH;
use super::transport::Transport;
use portolan_spec::virtio::Request;

/// Records that are looked at under one lock.
const LOOKS: usize = 64;
/// Number of times that a range is gone through because the domain came to life anew, or an answer
/// made no sense.
const ATTEMPTS: u32 = 4;

/// State of the requests of a domain that were given up: all returned by the device, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returned {
    /// It has returned so many, and there were no more.
    All(u64),
    /// Not all of them.
    Some,
}

/// One walk through a range.
struct Pass {
    next: Option<Iova>,
    /// Someone else waits for a request.
    busy: bool,
    /// There is more to do than could be done at once.
    again: bool,
    /// A request without an answer stands in the way.
    unanswered: bool,
}

impl Pass {
    fn new(range: IovaRange) -> Self {
        Self { next: Some(range.start()), busy: false, again: false, unanswered: false }
    }
}

fn timed_out(awaited: Awaited, waited: Nanos) -> IommuError {
    IommuError::TimedOut { awaited, waited }
}

impl<T: Transport + Send + Sync, C: Cpus> VirtioDomain<T, C> {
    /// Tells the device of the debts in `range`, and waits for it.
    pub(super) fn settle(&self, range: IovaRange, which: Which) -> Result<(), IommuError> {
        let begin = self.device.clock.now();
        let mut attempts = 0;
        loop {
            let returned = self.returned();
            let mut pass = Pass::new(range);
            while pass.next.is_some() {
                let claims = self.claim(range, which, &mut pass, returned);
                pass.again |= self.carry_out(&claims)?;
            }
            let waited = self.device.clock.now().since(begin);
            if pass.busy {
                if waited >= self.device.limits.turn_timeout {
                    return Err(timed_out(Awaited::Turn, waited));
                }
                self.device.clock.relax();
            } else if pass.again {
                attempts += 1;
                if attempts == ATTEMPTS {
                    return Err(timed_out(Awaited::Turn, waited));
                }
            } else if pass.unanswered {
                return Err(timed_out(Awaited::Completion, waited));
            } else {
                return Ok(());
            }
        }
    }

    fn returned(&self) -> Returned {
        // Counted first: requests given up meanwhile may not have been returned.
        let given_up = self.inner.lock().given_up;
        match self.device.transport.all_returned() {
            true => Returned::All(given_up),
            false => Returned::Some,
        }
    }

    /// The next requests, whose records are busy from now on. A request is as long as its records lie
    /// side by side, over as many locks as they take.
    fn claim(
        &self,
        range: IovaRange,
        which: Which,
        pass: &mut Pass,
        returned: Returned,
    ) -> ArrayVec<Claim, BATCH> {
        let mut claims = ArrayVec::new();
        let mut room = Room::Left;
        while pass.next.is_some() && room == Room::Left {
            let inner = &mut *self.inner.lock();
            room = inner.claim_some(&mut claims, range, which, pass, returned);
        }
        claims
    }

    /// Sends the requests; tells if there is more to do for their records.
    fn carry_out(&self, claims: &[Claim]) -> Result<bool, IommuError> {
        if claims.is_empty() {
            return Ok(false);
        }
        let requests = claims.iter().map(|claim| claim.request(self.id));
        let requests: ArrayVec<Request, BATCH> = requests.collect();
        let sent = self.device.send_all(&requests);
        let mut result = Ok(false);
        for (at, claim) in claims.iter().enumerate() {
            let unsent = Err(IommuError::Unsupported);
            let outcome = self.note(claim, sent.get(at).copied().unwrap_or(unsent));
            result = match (result, outcome) {
                (Ok(one), Ok(other)) => Ok(one || other),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        result
    }

    /// Notes the outcome of a request; tells if there is more to do for its records.
    fn note(&self, claim: &Claim, sent: Result<(), IommuError>) -> Result<bool, IommuError> {
        if sent == Err(NO_SUCH) {
            self.await_end(claim.epoch);
        }
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let epoch = inner.epoch;
        let forgotten = inner.endpoints == 0 || epoch != claim.epoch;
        let unanswered = matches!(sent, Err(IommuError::TimedOut { .. } | IommuError::Gone));
        let known = match (claim.act, sent) {
            _ if unanswered => Known::Unanswered,
            // It may be the domain that came to life since that has it.
            (Act::Map { .. }, Ok(()) | Err(IommuError::Nonsense { .. }))
                if forgotten && inner.endpoints > 0 =>
            {
                Known::Unsure { epoch }
            }
            _ if forgotten => Known::Absent,
            (Act::Map { .. }, Ok(())) => Known::Present { epoch },
            (Act::Unmap, Ok(())) => Known::Absent,
            (_, Err(IommuError::Nonsense { .. })) => Known::Unsure { epoch },
            (Act::Map { .. }, Err(_)) => Known::Absent,
            (Act::Unmap, Err(_)) => Known::Present { epoch },
        };
        inner.given_up += u64::from(unanswered);
        let (more, mut rest) = inner.learn(claim.range, known);
        drop(guard);
        while let Some(range) = rest {
            // Busy still, and unmapped together: what there is to do is the same for all.
            rest = self.inner.lock().learn(range, known).1;
        }
        match sent {
            Err(error) if unanswered || !forgotten => Err(error),
            _ => Ok(more),
        }
    }

    /// Waits until the last endpoint has left since `epoch`: if the device says that there is no such
    /// domain, one is on its way out, or the device is wrong.
    pub(super) fn await_end(&self, epoch: u64) {
        let changed = || {
            let inner = self.inner.lock();
            (inner.endpoints == 0 || inner.epoch != epoch).then_some(())
        };
        let _ = poll(&self.device.clock, self.device.limits.turn_timeout, changed);
    }

    /// Has the device forget one mapping, whose record is busy; if it does, the record is absent and
    /// still busy.
    pub(super) fn forget(&self, range: IovaRange, epoch: u64) -> Result<(), IommuError> {
        let claim = Claim { act: Act::Unmap, range, epoch, open: false };
        match self.device.send(claim.request(self.id)) {
            Ok(()) => Ok(()),
            sent => self.note(&claim, sent).and_then(|_| {
                let inner = &mut *self.inner.lock();
                let record = inner.map.get_mut(range.start());
                match record.filter(|record| record.known == Known::Absent) {
                    Some(record) => {
                        record.known = Known::Busy;
                        Ok(())
                    }
                    None => Err(timed_out(Awaited::Turn, Nanos::new(0))),
                }
            }),
        }
    }
}

impl Inner {
    /// Adds requests for the next records to `claims`, and makes these records busy.
    fn claim_some(
        &mut self,
        claims: &mut ArrayVec<Claim, BATCH>,
        range: IovaRange,
        which: Which,
        pass: &mut Pass,
        returned: Returned,
    ) -> Room {
        for _ in 0..LOOKS {
            let Some(from) = pass.next else { break };
            let next = self.map.next(from).copied();
            let Some(mapping) = next.filter(|next| next.range.start() <= range.last()) else {
                pass.next = None;
                break;
            };
            if let Some(claim) = self.due(&mapping, which, pass, returned) {
                if add(claims, claim) == Room::None {
                    // Others first; this one begins the next batch.
                    return Room::None;
                }
                if let Some(record) = self.map.get_mut(mapping.range.start()) {
                    record.known = Known::Busy;
                }
            }
            pass.next = mapping.range.last().checked_add(1);
        }
        Room::Left
    }

    /// Request that the device needs for `mapping`. A mapping that its owner does not want and the
    /// device does not have is taken out.
    fn due(
        &mut self,
        mapping: &Mapping,
        which: Which,
        pass: &mut Pass,
        returned: Returned,
    ) -> Option<Claim> {
        let (epoch, range) = (self.epoch, mapping.range);
        let claim = |act, open| Claim { act, range, epoch, open };
        // Requests that were given up since may be under way.
        let returned = returned == Returned::All(self.given_up);
        let known = match mapping.known.in_epoch(epoch) {
            // The domain is gone, and nothing about it is under way.
            Known::Unanswered if returned && self.endpoints == 0 => Known::Absent,
            known => known,
        };
        match (mapping.wanted, known) {
            (_, Known::Busy) => {
                pass.busy = true;
                None
            }
            (Wanted::Mapped, Known::Present { .. }) => None,
            (Wanted::Mapped, Known::Absent) if self.endpoints == 0 => {
                self.learn_one(mapping, Known::Absent);
                None
            }
            (Wanted::Mapped, Known::Absent) => {
                let (pa, access) = (mapping.pa, mapping.access);
                Some(claim(Act::Map { pa, access }, false))
            }
            (Wanted::Unmapped, Known::Absent) => {
                self.map.remove(range.start());
                None
            }
            (_, _) if which == Which::Maps => None,
            (_, Known::Unanswered) if !returned => {
                pass.unanswered = true;
                None
            }
            (Wanted::Unmapped, _) => Some(claim(Act::Unmap, true)),
            // Mapped anew once it is certain that nothing is there.
            (Wanted::Mapped, _) => Some(claim(Act::Unmap, false)),
        }
    }

    /// Notes the device's knowledge of the first records of `range`: tells if it has to be told
    /// more of them, and returns the range of the others.
    fn learn(&mut self, range: IovaRange, known: Known) -> (bool, Option<IovaRange>) {
        let (mut more, mut rest) = (false, Some(range));
        for _ in 0..LOOKS {
            let Some(range) = rest else { break };
            let next = self.map.next(range.start()).copied();
            let Some(mapping) = next.filter(|next| next.range.start() <= range.last()) else {
                return (more, None);
            };
            let after = mapping.range.last().checked_add(1);
            rest = after.and_then(|after| IovaRange::new(after, range.last()));
            more |= self.learn_one(&mapping, known);
        }
        (more, rest)
    }

    /// As [`Inner::learn`], of one record.
    fn learn_one(&mut self, mapping: &Mapping, known: Known) -> bool {
        let start = mapping.range.start();
        if (mapping.wanted, known) == (Wanted::Unmapped, Known::Absent) {
            self.map.remove(start);
            return false;
        }
        if let Some(record) = self.map.get_mut(start) {
            record.known = known;
        }
        match (mapping.wanted, known) {
            (Wanted::Mapped, Known::Absent) => self.endpoints > 0,
            (Wanted::Mapped, Known::Unsure { .. }) => true,
            // It was taken back while it was being mapped.
            (Wanted::Unmapped, Known::Present { .. }) => true,
            _ => false,
        }
    }
}
