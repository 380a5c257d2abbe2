//! Copies through the bounce pool, at the profile's prices.

use portolan_sim::profile::Event;

use super::Input;
use crate::replay::setting::Besides;

/// The event of a bounce.
pub(super) const BOUNCED: &str = "swiotlb_bounced";

/// CPU time of the trace's copies, in microseconds, and their prices.
pub(super) fn copies(input: &Input<'_>) -> Option<(f64, Vec<Besides>)> {
    let of = |event: Event| input.profile.quote(event).ok();
    let (call, byte) = (of(Event::CopyCall)?, of(Event::CopyByte)?);
    let bounces = input.summary.events_by_name.get(BOUNCED).copied()?;
    let copied = input.shape.bounce_copied_bytes;
    let us = (bounces as f64 * call.ns + copied as f64 * byte.ns) / 1000.0;
    let besides =
        [(Event::CopyCall, call), (Event::CopyByte, byte)].map(|(event, price)| Besides {
            kind: "price",
            name: event.name().to_owned(),
            says: format!("{:.3} ns, {}", price.ns, price.source),
        });
    Some((us, besides.into()))
}
