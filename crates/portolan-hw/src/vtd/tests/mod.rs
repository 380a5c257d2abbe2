//! The driver on the unit of `portolan-model`.

mod descriptors;
mod devices;
mod entries;
mod faults;
mod forgotten;
mod interrupts;
mod kit;
mod offers;
mod own_message;
mod queue;
mod remapping;
mod reserved;
mod takeover;
mod teardown;

use alloc::sync::Arc;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain};
use portolan::platform::Nanos;
use portolan::table::Access;

use super::{Config, Mode, SecondDomain};
use kit::{Iommu, Kit as _};
use portolan_model::vtd::VtdMachine;

const PAGE: u64 = 4096;
const BASE: Iova = Iova::new(0x4000_0000);
const STREAM: StreamId = StreamId::new(0x0108);

type Second = SecondDomain<VtdMachine, VtdMachine, VtdMachine>;

fn config(mode: Mode) -> Config {
    Config {
        mode,
        limit: Nanos::from_millis(10),
        ..Config::default()
    }
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

fn map(domain: &impl Domain, pages: u64) -> Gather {
    let mut owed = Gather::new();
    let access = Access::READ | Access::WRITE;
    let pa = PhysAddr::new(0x1000);
    domain
        .map(BASE, pa, pages * PAGE, access, &mut owed)
        .unwrap();
    owed
}

fn unmap(domain: &impl Domain, pages: u64) -> Gather {
    let mut owed = Gather::new();
    let range = IovaRange::from_len(BASE, pages * PAGE).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    owed
}
