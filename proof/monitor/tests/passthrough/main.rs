//! Devices of other processes behind this project's virtio-iommu, under its own driver: their memory is what the
//! guest has mapped, whichever process fails or dies.

mod guest;
mod host;
mod load;
#[path = "../../../../crates/portolan/tests/support/promised.rs"]
mod promised;

use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, Iommu, IommuError};
use portolan::table::Access;
use portolan_monitor::edu;
use portolan_monitor::wire::{Answer, Exit};
use vm_memory::{Bytes, GuestAddress};

use guest::{Driver, PAGE, Space};
use host::{DEVICES, Shared};
use promised::{all_memory, promised};

const RW: Access = Access::READ.union(Access::WRITE);

fn stream(device: usize) -> StreamId {
    StreamId::new(portolan_monitor::monitor::endpoint(device).get())
}

fn machine() -> (Shared, Driver) {
    let host = Shared::new();
    let driver = guest::start(&host);
    (host, driver)
}

/// Maps pages; those that cannot be mapped are given back.
fn map(domain: &Space, page: u64, to: u64, pages: u64, access: Access) -> Result<(), IommuError> {
    let memory = promised(PhysAddr::new(to * PAGE), pages * PAGE);
    let mut owed = Gather::new();
    let range = match domain.map(Iova::new(page * PAGE), memory, access, &mut owed) {
        Ok(range) => range,
        Err(_) => return Err(IommuError::Unsupported),
    };
    domain.sync(&mut owed).map(drop).map_err(|error| {
        domain.unmap(range, &mut owed).unwrap();
        let _ = domain.sync(&mut owed);
        IommuError::from(error)
    })
}

/// Unmaps pages; a debt that is not paid the first time is paid the second time, if it can be.
fn unmap(domain: &Space, page: u64, pages: u64) -> Result<(), IommuError> {
    let range = IovaRange::from_len(Iova::new(page * PAGE), pages * PAGE).unwrap();
    let mut owed = Gather::new();
    // What is unmapped in part is split by requests at once.
    let split = domain.unmap_part(range, &mut owed).map_err(|_| IommuError::Unsupported);
    let paid = domain.sync(&mut owed).map(drop).map_err(IommuError::from);
    split.and(paid).inspect_err(|_| drop(domain.sync(&mut owed)))
}

/// The mapping of page 1 to page 5 and that of page 2 to page 9 in a domain with the first device.
fn with_pages() -> (Shared, Driver, Arc<Space>) {
    let (host, driver) = machine();
    let domain = driver.domain().unwrap();
    driver.attach(stream(0), &domain).unwrap();
    map(&domain, 1, 5, 1, Access::READ).unwrap();
    map(&domain, 2, 9, 1, RW).unwrap();
    (host, driver, domain)
}

#[test]
fn a_device_of_another_process_copies_what_is_mapped_for_it_and_no_more() {
    let (host, driver, domain) = with_pages();
    let mut at = host.at();
    at.memory.write_slice(b"text", GuestAddress(5 * PAGE + 0x10)).unwrap();
    assert_eq!(at.copy(0, PAGE + 0x10, 2 * PAGE + 0x20, 4), [false; 2]);
    assert_eq!(at.value(&Exit::Interrupts { device: 0 }), 1);
    assert_eq!(at.read(0, edu::RAISED), 0x100);
    let mut text = [0; 4];
    at.memory.read_slice(&mut text, GuestAddress(9 * PAGE + 0x20)).unwrap();
    assert_eq!(&text, b"text");
    // Memory that is only read, memory beyond, another's, and none.
    assert_eq!(at.copy(0, PAGE, PAGE, 4), [false, true]);
    assert_eq!(at.copy(0, PAGE, 3 * PAGE - 2, 4), [false, true]);
    assert_eq!(at.copy(1, PAGE, 2 * PAGE, 4), [true; 2]);
    drop(at);
    unmap(&domain, 1, 1).unwrap();
    assert_eq!(host.at().copy(0, PAGE, 2 * PAGE, 4), [true, false]);
    driver.pass_through(stream(1), all_memory()).unwrap();
    assert_eq!(host.at().copy(1, 5 * PAGE, 9 * PAGE, 8), [false; 2]);
    driver.block(stream(1)).unwrap();
    assert_eq!(host.at().copy(1, 5 * PAGE, 9 * PAGE, 8), [true; 2]);
}

#[test]
fn a_device_that_refuses_leaves_the_other_one_as_it_was() {
    let (host, driver, domain) = with_pages();
    driver.attach(stream(1), &domain).unwrap();
    // The first device has the page, then the second one refuses it.
    host.at().write(1, edu::REFUSE, 1);
    map(&domain, 7, 7, 1, RW).unwrap_err();
    let mut at = host.at();
    let counts = at.counts();
    assert_eq!((counts.failed, counts.undone, counts.not_undone), (1, 1, 0));
    for device in 0..DEVICES {
        assert_eq!(at.read(device, edu::MAPPINGS), 2);
        assert_eq!(at.copy(device, 7 * PAGE, 2 * PAGE, 4), [true, false]);
    }
    drop(at);
    map(&domain, 7, 7, 1, RW).unwrap();
    assert_eq!(host.at().copy(1, 7 * PAGE, 2 * PAGE, 4), [false; 2]);
}

#[test]
fn a_monitor_that_dies_between_map_and_answer_is_undone_in_the_device() {
    let (host, _driver, domain) = with_pages();
    let mut at = host.at();
    at.doom(1);
    drop(at);
    // The guest gets its answer from the one that comes after.
    map(&domain, 7, 7, 1, RW).unwrap();
    let mut at = host.at();
    assert_eq!((at.deaths, at.left), (1, [3, 0]), "mappings that went with it");
    assert_eq!(at.read(0, edu::MAPPINGS), 3);
    assert_eq!(at.copy(0, 7 * PAGE, 2 * PAGE, 4), [false; 2]);
}

#[test]
fn a_device_that_dies_is_counted_and_another_one_takes_its_place() {
    let (host, _driver, domain) = with_pages();
    host.at().kill_device(0);
    map(&domain, 7, 7, 1, RW).unwrap_err();
    unmap(&domain, 1, 1).unwrap_err();
    let mut at = host.at();
    let counts = at.counts();
    assert!(counts.failed >= 2 && counts.undone == 0, "{counts:?}");
    let gone = at.exit(&Exit::Read { device: 0, offset: edu::MAPPINGS });
    assert!(matches!(gone, Answer::Failed(_)), "{gone:?}");
    at.replace_device(0);
    assert_eq!(at.copy(0, 2 * PAGE, 2 * PAGE, 4), [false; 2]);
    drop(at);
    map(&domain, 7, 7, 1, RW).unwrap();
    assert_eq!(host.at().copy(0, 7 * PAGE, 2 * PAGE, 4), [false; 2]);
}

#[test]
fn a_machine_that_is_reset_has_mapped_nothing() {
    let (host, driver, domain) = with_pages();
    host.at().does(&Exit::Reset { machine: true });
    let mut at = host.at();
    assert_eq!(at.read(0, edu::MAPPINGS), 0);
    assert_eq!(at.copy(0, PAGE, 2 * PAGE, 4), [true; 2]);
    drop(at);
    // Another kernel, which knows nothing of the one before.
    std::mem::forget((driver, domain));
    let driver = guest::start(&host);
    let domain = driver.domain().unwrap();
    driver.attach(stream(0), &domain).unwrap();
    map(&domain, 1, 5, 1, RW).unwrap();
    assert_eq!(host.at().copy(0, PAGE, PAGE, 4), [false; 2]);
}

#[test]
fn a_state_of_another_machine_is_refused() {
    let (host, _driver, _domain) = with_pages();
    let mut at = host.at();
    let good = at.save();
    let mut wrong = [good.clone(), good.clone(), good.clone()];
    wrong[0].viommu.version += 1;
    wrong[1].viommu.domains[0].mappings.as_mut().unwrap()[0].phys = u64::MAX - 0xfff;
    // Its mapping is beyond the memory of this one, so that the device's listener refuses it.
    wrong[2].viommu.domains[0].mappings.as_mut().unwrap()[0].phys = host::RAM as u64;
    for wrong in wrong {
        let answer = at.exit(&Exit::Restore(wrong));
        assert!(matches!(answer, Answer::Failed(_)), "{answer:?}");
        assert_eq!(at.save(), good);
        assert_eq!(at.read(0, edu::MAPPINGS), 2);
    }
}
