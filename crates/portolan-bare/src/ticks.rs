//! From the ticks of a counter to nanoseconds.
//!
//! *Context.* Interrupt: everything here is a value.

use core::num::NonZeroU64;

use portolan::platform::Nanos;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Bits of a tick's length that are behind the point.
const FRACTION: u32 = 32;

/// Length of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// Nanoseconds of one tick, with [`FRACTION`] bits behind the point.
    length: u64,
}

impl Ticks {
    /// Of a counter that counts `hertz` ticks a second.
    pub const fn of_hertz(hertz: NonZeroU64) -> Self {
        let length = ((SECOND as u128) << FRACTION) / hertz.get() as u128;
        let length = if length > u64::MAX as u128 { u64::MAX } else { length as u64 };
        Self { length }
    }

    /// The time that `ticks` take; it never falls while `ticks` rise.
    pub const fn nanos(self, ticks: u64) -> Nanos {
        let nanos = (ticks as u128 * self.length as u128) >> FRACTION;
        match nanos > u64::MAX as u128 {
            true => Nanos::new(u64::MAX),
            false => Nanos::new(nanos as u64),
        }
    }
}

/// The frequency of a counter that counted `ticks` while another of `reference` hertz counted
/// `counted`; `None` if one of them stood still.
pub fn measured(ticks: u64, counted: u32, reference: u32) -> Option<NonZeroU64> {
    let product = u128::from(ticks) * u128::from(reference);
    let hertz = product.checked_div(counted.into())?;
    NonZeroU64::new(u64::try_from(hertz).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hertz(of: u64) -> Ticks {
        Ticks::of_hertz(NonZeroU64::new(of).unwrap())
    }

    #[test]
    fn a_second_of_ticks_is_a_second() {
        for of in [1, 32_768, 24_000_000, 62_500_000, 1_000_000_000, 3_800_000_000] {
            let second = hertz(of).nanos(of).get();
            // Rounded down, by less than a tick in a second.
            assert!((999_999_990..=1_000_000_000).contains(&second), "{of} Hz: {second}");
        }
        // A year, at 2.5 GHz.
        let year = 365 * 24 * 3600;
        let nanos = hertz(2_500_000_000).nanos(year * 2_500_000_000).get();
        assert!(nanos.abs_diff(year * SECOND) < SECOND / 100, "{nanos}");
        assert_eq!(hertz(1).nanos(u64::MAX).get(), u64::MAX);
    }

    #[test]
    fn a_frequency_is_measured_beside_a_known_one() {
        // The power-management timer of ACPI.
        let pm = 3_579_545;
        assert_eq!(measured(2_000_000, pm / 1000, pm).map(NonZeroU64::get), Some(2_000_304_554));
        assert_eq!(measured(5, 0, pm), None);
        assert_eq!(measured(0, 7, pm), None);
        assert_eq!(measured(u64::MAX, 1, u32::MAX), None);
    }
}
