//! The driver on the unit of `portolan-chips`.

mod descriptors;
mod devices;
mod dirty;
mod entries;
mod faults;
mod features;
mod forgotten;
mod handover;
mod interrupts;
mod kit;
mod offers;
mod own_message;
mod posted;
mod queue;
mod real_chips;
mod remapping;
mod reserved;
mod takeover;
mod teardown;

use alloc::sync::Arc;

use portolan::addr::StreamId;
use portolan::iommu::Attach;
use portolan::platform::Nanos;

use super::{Config, Mode, SecondDomain};
use crate::chassis::tests::suite::*;
use kit::Iommu;
use portolan_chips::vtd::VtdMachine;

const STREAM: StreamId = StreamId::new(0x0108);

suite! {
    portolan_chips::vtd::VtdMachine:
        devices_reach_what_is_mapped_for_them_and_nothing_else
        a_domain_of_another_unit_does_not_fit
        a_unit_that_refuses_everything_ends_in_time
        a_release_that_fails_keeps_what_may_still_be_reached
        a_queue_that_never_drains_is_an_error_and_the_stream_stays_blocked
        a_unit_that_goes_away_is_an_error_at_each_call
        a_unit_that_is_slow_is_waited_for
        what_a_failure_left_of_one_stream_is_not_settled_with_another
}

crate::chassis::tests::hostile::on_a_hostile_machine! { portolan_chips::vtd::VtdMachine }

type Second = SecondDomain<VtdMachine>;

fn config(mode: Mode) -> Config {
    Config { mode, limit: Nanos::from_millis(10), ..Config::default() }
}

fn legacy() -> Config {
    config(Mode::Legacy)
}

/// A unit with one stream attached to one domain, and an empty log.
fn attached(machine: &VtdMachine, config: Config) -> (Iommu, Arc<Second>) {
    let unit = machine.enable(config).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    unit.attach(STREAM, &domain).unwrap();
    machine.take();
    (unit, domain)
}
