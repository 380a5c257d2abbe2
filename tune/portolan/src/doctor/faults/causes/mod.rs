//! Usual causes of a fault, the likeliest first, with the thing to do for each.
//!
//! Rules stand on the fault's kind, the owner of its address and the device; each is of a public thread or of the
//! kernel's own sources. None claims more than its facts: where they are missing, the words say "may".

mod interrupts;
mod requests;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::context::Context;
use super::device::Device;
use super::fold::Folded;
use super::history::Recorded;
use super::place::AddressPlace;
use super::seen::{Attempt, Kind};

/// A cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The cause, as sentences.
    pub why: String,
    /// The thing to do.
    #[serde(rename = "do")]
    pub act: Option<String>,
    /// The price of doing it.
    pub gives_up: Option<String>,
}

impl Cause {
    fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), act: None, gives_up: None }
    }

    fn act(mut self, act: impl Into<String>) -> Self {
        self.act = Some(act.into());
        self
    }

    fn gives_up(mut self, price: impl Into<String>) -> Self {
        self.gives_up = Some(price.into());
        self
    }
}

/// Circumstances that rules stand on.
pub(super) struct Circumstances<'f> {
    pub(super) fault: &'f Folded,
    pub(super) device: &'f Device,
    pub(super) place: &'f AddressPlace,
    pub(super) recorded: Option<&'f Recorded>,
    /// A recording was read that has mappings of the device, and none at the address.
    pub(super) is_unrecorded: bool,
    pub(super) context: &'f Context,
}

impl Circumstances<'_> {
    fn kind(&self) -> Kind {
        self.fault.first.kind
    }

    fn attempt(&self) -> Option<Attempt> {
        self.fault.first.attempt
    }

    /// The device as a sentence names it.
    fn driver(&self) -> String {
        match self.device.driver.as_deref() {
            Some(driver) => format!("the driver ({driver})"),
            None => "its driver".to_owned(),
        }
    }
}

/// The causes, the likeliest first.
pub(super) fn of(facts: &Circumstances<'_>) -> Vec<Cause> {
    match facts.kind() {
        Kind::Silent => silent(facts),
        Kind::Stuck => vec![stuck()],
        Kind::BadCommand => vec![bad_command()],
        _ if facts.attempt() == Some(Attempt::Interrupt) => interrupts::of(facts),
        _ => requests::of(facts),
    }
}

/// The device does not answer.
fn silent(facts: &Circumstances<'_>) -> Vec<Cause> {
    let gone = Cause::new(
        "The device has a cache of addresses of its own, and did not answer when that was to \
         be emptied: it hangs, or a reset of it failed.",
    )
    .act(
        "Look in the log for a reset of the device before this line. No setting of the IOMMU wakes \
         it: reset it again, or switch the machine off and on.",
    );
    let broken = Cause::new(
        "Its cache of addresses does not work; Linux knows some such models and does not use \
         theirs.",
    )
    .act("Start once with `pci=noats` on the kernel's command line; if that helps, report the model.")
    .gives_up("The devices' own caches: translations take a little longer. Protection stays.");
    if facts.device.is_of_guest() { vec![gone, broken] } else { vec![broken, gone] }
}

fn stuck() -> Cause {
    Cause::new(
        "The IOMMU does not finish the kernel's commands, mostly since it waits for a device that \
         does not answer.",
    )
    .act(
        "Look for another line about a device around it (IOTLB_INV_TIMEOUT, a failed reset): that \
         one is the cause. Without one, try `pci=noats`, and newer firmware of the board.",
    )
}

fn bad_command() -> Cause {
    Cause::new(
        "The kernel's queue of commands has one that the IOMMU does not take, or its memory cannot \
         be read: a bug of the kernel, or memory that something else overwrote.",
    )
    .act("Try a newer kernel, and test the memory; report it with the lines around.")
}
