//! Number of calls on a SM8150, derived from the published 100 ms for unmapping 100 MB.
//!
//! It was said of the camera that walk flush by context was made for that its unmaps of about 100 MB took over 100
//! ms. The number of calls was not said. The fitted prices bound it from both ends: one call for all, and a call for
//! each page. Time that neither reaches has to be in the waits, of which each call and each table has one.

use anyhow::{Result, ensure};
use portolan_sim::profile::{Event, MissingPrice, Profile};
use serde::Serialize;

/// Bytes and microseconds that were told.
const TOLD: (u64, f64) = (100_000_000, 100_000.0);
const PAGE: u64 = 4096;
const PAGES_OF_TABLE: u64 = 512;

/// Both ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Waits {
    /// Bytes unmapped.
    pub bytes: u64,
    /// Published lower limit of its time, in microseconds.
    pub told_us: f64,
    /// Waits if one call unmaps all of it, a table at a time, and if each page has a call.
    pub waits: [u64; 2],
    /// Microseconds of both by the fitted prices.
    pub computed_us: [f64; 2],
    /// Microseconds by which each wait would have to be longer: with a call for each page, and with one call.
    pub wait_us: [f64; 2],
}

/// Conclusions from the prices of `profile`.
///
/// # Errors
/// If a price is missing, or the prices reach the told time, so that no wait is left over.
pub(super) fn waits(profile: &Profile) -> Result<Waits> {
    let (bytes, told_us) = TOLD;
    let sum = |events: &[(Event, u64)]| {
        let ns = events.iter().map(|(event, count)| {
            let price = profile.price(*event)?;
            Ok::<_, MissingPrice>(price * *count as f64)
        });
        ns.sum::<Result<f64, _>>().map(|ns| ns / 1000.0)
    };
    let pages = bytes.div_ceil(PAGE);
    let tables = pages.div_ceil(PAGES_OF_TABLE);
    let one_call = sum(&[
        (Event::UnmapCallTables, 1),
        (Event::TableFree, tables),
        (Event::Sync, tables),
        (Event::CmdPage, pages),
    ])?;
    let each_page =
        sum(&[(Event::UnmapCall, pages), (Event::UnmapPage, pages), (Event::CmdPage, pages)])?;
    ensure!(
        one_call.max(each_page) < told_us,
        "some number of calls takes {told_us} us by the prices of `{}`",
        profile.name()
    );
    Ok(Waits {
        bytes,
        told_us,
        waits: [tables, pages],
        computed_us: [one_call, each_page],
        wait_us: [(told_us - each_page) / pages as f64, (told_us - one_call) / tables as f64],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_calls_takes_100_ms() {
        let waits = waits(&Profile::by_name("sm8150").unwrap()).unwrap();
        assert_eq!(waits.waits, [48, 24_415]);
        let [one, each] = waits.computed_us;
        // 2.21 + 48 x 3.05 + 24,415 x 0.121; 24,415 x (1.30 + 0.37 + 0.12).
        assert!((one - 3_099.0).abs() < 5.0 && (each - 43_765.0).abs() < 20.0, "{waits:?}");
        let [short, long] = waits.wait_us;
        assert!((short - 2.303).abs() < 0.01 && (long - 2_018.8).abs() < 1.0, "{waits:?}");
        // Any number of calls between them takes the told time with its own wait, and no other.
        for (computed, count, wait) in [(one, 48.0, long), (each, 24_415.0, short)] {
            assert!((computed + count * wait - waits.told_us).abs() < 1e-6);
        }
    }
}
