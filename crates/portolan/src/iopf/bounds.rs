//! Bounds of devices, beyond which they are refused.

use super::Response;
use super::counts::Cause;
use crate::platform::Nanos;

/// Number of requests that a device may send: `burst` at once, and one more each `each`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Requests at once; at least 1.
    pub burst: u32,
    /// Time in which one more becomes possible; zero for as many as it likes.
    pub each: Nanos,
}

impl Flow {
    /// As many as it likes.
    pub const UNBOUNDED: Self = Self { burst: 1, each: Nanos::new(0) };
}

/// Bounds of a [`super::Dispatcher`]. A device is stopped where it floods, refused where it is wrong,
/// and tries again where others are in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Groups of all devices that are not answered yet.
    pub groups: usize,
    /// Groups of one device that are not answered yet.
    pub groups_of_device: usize,
    /// Requests of one group.
    pub requests: usize,
    /// Longest time for which a group may be without its last request.
    pub timeout: Nanos,
    /// Requests of one device over time. Requests of groups that were refused before count as well.
    pub flow: Flow,
}

impl Default for Bounds {
    /// 256 groups, 64 of a device; 64 requests of a group, a second for them to come; 4,096 requests
    /// at once and 100,000 a second.
    fn default() -> Self {
        Self {
            groups: 256,
            groups_of_device: 64,
            requests: 64,
            timeout: Nanos::from_millis(1_000),
            flow: Flow { burst: 4_096, each: Nanos::new(10_000) },
        }
    }
}

impl Bounds {
    /// Response to a group that is not handled.
    pub(super) const fn response(&self, cause: Cause) -> Response {
        match cause {
            // Try again: others are in its way.
            Cause::Full => Response::Success,
            Cause::Flooded | Cause::HandlerLost => Response::Failure,
            Cause::Large
            | Cause::Late
            | Cause::UnknownDevice
            | Cause::UnknownPasid
            | Cause::Outside
            | Cause::Impossible
            | Cause::Mixed
            | Cause::Detached => Response::Invalid,
        }
    }
}

/// Used part of a device's flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    /// Time at which it may send a whole burst again.
    full_at: Nanos,
}

/// Admission of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    Yes,
    No,
}

impl Bucket {
    /// Takes one request at `now`.
    pub fn take(&mut self, now: Nanos, flow: Flow) -> Admitted {
        if flow.each == Nanos::new(0) {
            return Admitted::Yes;
        }
        let used = self.full_at.since(now).get();
        let next = used.saturating_add(flow.each.get());
        if next > flow.each.get().saturating_mul(flow.burst.max(1).into()) {
            return Admitted::No;
        }
        self.full_at = Nanos::new(now.get().saturating_add(next));
        Admitted::Yes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_at_a_time() {
        let each = Nanos::new(10);
        let flow = Flow { burst: 3, each };
        let mut bucket = Bucket::default();
        let mut at = |now| bucket.take(Nanos::new(now), flow) == Admitted::Yes;
        assert_eq!([at(100), at(100), at(100), at(100)], [true, true, true, false]);
        assert_eq!([at(109), at(110), at(111), at(119)], [false, true, false, false]);
        assert_eq!([at(120), at(125)], [true, false]);
        // Rest fills it up to a burst and no further.
        assert_eq!([at(900), at(900), at(900), at(900)], [true, true, true, false]);
    }

    #[test]
    fn unbounded_is_unbounded_at_any_time() {
        let mut bucket = Bucket::default();
        for now in [0, 0, 0, u64::MAX, u64::MAX] {
            let admitted = bucket.take(Nanos::new(now), Flow::UNBOUNDED);
            assert_eq!(admitted, Admitted::Yes);
        }
    }
}
