//! Waiting for hardware: for a bit of it, or for a turn behind its work for others.

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Clock, Nanos, poll};

/// Looks until `look` finds something, and not longer than `limit`. *Context.* Atomic.
///
/// # Errors
/// Those of `look`; [`IommuError::TimedOut`], which names `awaited`.
pub(crate) fn wait_for<T>(
    clock: &impl Clock,
    limit: Nanos,
    awaited: Awaited,
    mut look: impl FnMut() -> Result<Option<T>, IommuError>,
) -> Result<T, IommuError> {
    let look = || look().transpose();
    poll(clock, limit, look).unwrap_or_else(|waited| Err(IommuError::TimedOut { awaited, waited }))
}

/// Looks until `done` tells that it is so, and not longer than `limit`. *Context.* Atomic.
///
/// # Errors
/// As [`wait_for`].
pub(crate) fn wait_until(
    clock: &impl Clock,
    limit: Nanos,
    awaited: Awaited,
    mut done: impl FnMut() -> Result<bool, IommuError>,
) -> Result<(), IommuError> {
    wait_for(clock, limit, awaited, || Ok(if done()? { Some(()) } else { None }))
}

/// Limits that a wait may last although the unit makes progress: others were always faster then.
const MOST_LIMITS: u64 = 256;

/// Looks until `look` finds something. The limit counts only while `progress`, a number for the
/// unit's position, stays the same: a slow unit is not a broken one, and neither is one whose lock
/// another CPU holds for long. `progress` may take that lock; `look` should not wait for it.
/// *Context.* Atomic.
///
/// # Errors
/// Those of `look` and `progress`. [`IommuError::TimedOut`] names `awaited` if the unit stood still
/// for `limit`, and [`Awaited::Turn`] if it only worked for others.
pub(crate) fn wait_while_it_works<T>(
    clock: &impl Clock,
    limit: Nanos,
    awaited: Awaited,
    mut look: impl FnMut() -> Option<Result<T, IommuError>>,
    mut progress: impl FnMut() -> Result<u64, IommuError>,
) -> Result<T, IommuError> {
    // Most waits end before it is worth a look at a register.
    let patience = Nanos::new(limit.get() / 16);
    let begin = clock.now();
    let (mut since, mut seen) = (begin, None);
    loop {
        if let Some(found) = look() {
            return found;
        }
        let now = clock.now();
        let still = now.since(since);
        if still >= patience {
            let waited = now.since(begin);
            let got = Some(progress()?);
            let given_up = if got == seen {
                (still >= limit).then_some(awaited)
            } else {
                (since, seen) = (now, got);
                let most = limit.get().saturating_mul(MOST_LIMITS);
                (waited.get() >= most).then_some(Awaited::Turn)
            };
            if let Some(awaited) = given_up {
                // A CPU that was held up meanwhile may have missed what came in time.
                return look().unwrap_or(Err(IommuError::TimedOut { awaited, waited }));
            }
        }
        clock.relax();
    }
}
