//! From an IVRS table to a device: the memory that it reserves is mapped one to one before the
//! stream is attached, and is never handed out.

use crate::promise::tests::described;
use alloc::sync::Arc;
use alloc::vec::Vec;
use portolan::platform::AllMemory;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::dma::{Constraints, Device, DmaSpace, Reservation, SpaceOptions};
use portolan::iommu::{
    Attach, AttachError, BoundDomain, Domain as _, FaultEvent, IommuError, ReservedRegion,
};
use portolan::table::Access;

use super::machine::{Iommu, new_machine};
use super::{STREAM, Tables, config};
use crate::chassis::tests::suite::{Driven, PAGE};
use crate::promise;
use crate::reservations::Ignored;
use crate::table_bytes::table;
use portolan_tables::ivrs::{self, Ivrs};

/// Addresses that are given out, among them those of interrupt messages.
const WINDOW: u64 = 0xfedf_0000;
const PAGES: u64 = 0x120;
/// Pages of the window that the device uses.
const DIRECT: [u64; 5] = [1, 2, 3, 4, 0x110];
/// A device whose accesses carry [`STREAM`].
const BEHIND: u16 = 0x20;

/// One unit, with an alias of `BEHIND`, and memory for that device, for the alias, and for no
/// device.
fn ivrs_bytes() -> Vec<u8> {
    let mut body = Vec::from([0, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut unit = Vec::from([0x10, 0, 0, 0, 2, 0, 0x40, 0]);
    unit.extend(0xfeb8_0000u64.to_le_bytes());
    unit.extend([0; 8]);
    unit.extend([1, 0, 0, 0]);
    unit.extend([66, BEHIND as u8, 0, 0, 0, STREAM.get() as u8, 0, 0]);
    unit[2] = unit.len() as u8;
    body.extend(unit);
    let mut memory = |device: u16, start: u64, bytes: u64| {
        body.extend([0x21, 0b0111, 32, 0]);
        body.extend(device.to_le_bytes());
        body.extend([0; 10]);
        body.extend(start.to_le_bytes());
        body.extend(bytes.to_le_bytes());
    };
    memory(STREAM.get() as u16, WINDOW + 0x1800, 0x2800);
    memory(STREAM.get() as u16, WINDOW + 0x3000, 0x1123);
    memory(BEHIND, WINDOW + 0x11_0000, 0x1000);
    // Of no bytes, and where messages go.
    memory(BEHIND, WINDOW, 0);
    memory(STREAM.get() as u16, 0xfee0_0000, 0x1000);
    table(ivrs::SIGNATURE, &body)
}

fn direct() -> impl Iterator<Item = Iova> {
    DIRECT.into_iter().map(|page| Iova::new(WINDOW + page * PAGE))
}

/// A unit that notes the mappings when a stream is attached.
struct Watched(Iommu);

impl portolan::iommu::Iommu for Watched {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.0.block(stream)
    }

    fn pass_through(&self, stream: StreamId, all: AllMemory) -> Result<(), AttachError> {
        self.0.pass_through(stream, all)
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.0.reserved(stream, each);
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        self.0.next_fault()
    }
}

impl Attach<Tables> for Watched {
    fn attach(&self, stream: StreamId, domain: &Arc<Tables>) -> Result<(), AttachError> {
        for at in direct() {
            let found = domain.translate(at).unwrap();
            assert_eq!(found.pa, PhysAddr::new(at.get()));
            assert!(found.access.contains(Access::READ | Access::WRITE));
        }
        self.0.attach(stream, domain)
    }
}

#[test]
fn what_ivrs_reserves_is_mapped_before_a_device_is_attached_and_never_handed_out() {
    let bytes = ivrs_bytes();
    let table = Ivrs::parse(&bytes).unwrap();
    let unit = table.units().next().unwrap().unwrap();
    let mut config = config();
    config.reserved.believe(described());
    let said = config.honour(&table.orders(&unit));
    assert!(matches!(said, Err(Ignored::Table(_))), "{said:?}");
    let machine = new_machine();
    let unit = machine.enable(config).unwrap();
    // The empty one, and the one where messages go.
    assert_eq!(unit.reservations().left_out().count, 2);
    let mut options = SpaceOptions::default();
    options.window = IovaRange::from_len(Iova::new(WINDOW), PAGES * PAGE).unwrap();
    let domain = Arc::new(unit.domain().unwrap());
    let watched = Arc::new(Watched(unit));
    let space = Arc::new(
        DmaSpace::with_cpus(
            BoundDomain::new(watched, domain, promise::drivers()),
            machine.clone(),
            &options,
            promise::drivers(),
        )
        .unwrap(),
    );
    let limits = Constraints::trusted();
    let device = Device::translated(space.clone(), STREAM, limits).unwrap();
    let mut taken = Vec::new();
    while let Ok(one) = Reservation::new(space.clone(), PAGE, &limits) {
        taken.push(one);
    }
    assert_eq!(taken.len() as u64, PAGES - 0x100 - DIRECT.len() as u64);
    let messages = 0xfee0_0000..=0xfeef_ffff_u64;
    for one in &taken {
        let at = one.addresses().start();
        assert!(direct().all(|direct| direct != at) && !messages.contains(&at.get()));
    }
    drop(device);
    drop(taken);
}
