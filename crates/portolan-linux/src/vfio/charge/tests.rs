//! An account that passes to another process, on the kernel's own device for tests.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::Arc;

use portolan::addr::{Iova, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::Domain as _;
use portolan::table::Access;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;
use crate::memory::{Backing, Base, HostMemory, Pages};
use crate::promised::promised;
use crate::sys::iommufd::{destroy, new_hwpt, selftest};
use crate::vfio::DomainOptions;
use crate::vfio::iommufd::Iommufd;
use crate::vfio::mock::mock;

const TEST: &str = "kernel_charges_the_process_that_goes_on";
/// Name of the variable by which the other process gets the descriptor.
const HANDED: &str = "PORTOLAN_HANDED";
/// Name of the variable that has the number of an address space in which the other process puts a device.
const SPACE: &str = "PORTOLAN_SPACE";
const PAGES: u64 = 16;

#[test]
fn reasons_are_named() {
    let of = |errno: Errno| ChargeError::of(&errno.into());
    assert_eq!(of(Errno::INVAL), ChargeError::NotOfFiles);
    assert_eq!(of(Errno::BUSY), ChargeError::Busy);
    assert!(matches!(of(Errno::NOMEM), ChargeError::LockedMemory { .. }));
    assert_eq!(of(Errno::NOTTY), IommuError::Unsupported.into());
}

/// Pinned memory of this process in KiB, by the kernel's account.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The process that goes on.
fn other(number: i32) {
    // SAFETY: the process that started this one has handed the descriptor over.
    #[allow(unsafe_code)]
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    let iommufd = Iommufd::of(file, Arc::default());
    let charge = || iommufd.charge().map_err(|error| ChargeError::of(&error));
    if let Some(space) = std::env::var_os(SPACE) {
        let space = space.to_str().unwrap().parse().unwrap();
        let bind = || selftest::new_device(iommufd.descriptor(), space).unwrap().0;
        let device = bind();
        println!("bound before: {} KiB", pinned());
        destroy(iommufd.descriptor(), device).unwrap();
        println!("charged: {:?}, {} KiB", charge(), pinned());
        bind();
        println!("bound then: {} KiB", pinned());
        return;
    }
    let limit = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(0), ..limit }).unwrap();
    println!("with a limit of 0: {:?}, {} KiB", charge(), pinned());
    setrlimit(Resource::Memlock, limit).unwrap();
    println!("then: {:?}, {} KiB", charge(), pinned());
}

/// Has another process take the account over: all that it says.
fn charge_other(iommufd: &Iommufd, space: Option<u32>) -> String {
    let handed = rustix::io::dup(iommufd.descriptor()).unwrap();
    let name = format!("vfio::charge::tests::{TEST}");
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args([&name, "--exact", "--nocapture"]);
    other.env(HANDED, handed.as_raw_fd().to_string());
    if let Some(space) = space {
        other.env(SPACE, space.to_string());
    }
    let said = other.output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

#[test]
fn kernel_charges_the_process_that_goes_on() {
    if let Some(number) = std::env::var_os(HANDED) {
        return other(number.to_str().unwrap().parse().unwrap());
    }
    let Some(mock) = mock(TEST) else {
        return;
    };
    let (fd, domain) = (mock.iommufd.descriptor(), mock.domain(DomainOptions::default()));
    be_charged();
    // Pages are pinned while tables lead to them.
    let ioas = domain.placed().unwrap().ioas().unwrap();
    let _tables = new_hwpt(fd, mock.id, ioas, 0, 0).unwrap();
    let before = pinned();
    let memory = HostMemory::new(PAGES * 4096, Backing::File, Base::Host).unwrap();
    let (start, mut owed) = (domain.input_range().start(), Gather::new());
    let at = memory.range().start();
    let all = domain.map(start, promised(at, PAGES * 4096), Access::READ_WRITE, &mut owed);
    let all = all.unwrap();
    let kib = PAGES * 4;
    assert_eq!(pinned() - before, kib);

    // With memory of this process's beside it, all stays.
    let own = Pages::new(4096).unwrap();
    let (pa, next) = (PhysAddr::new(own.as_ptr() as u64), Iova::new(start.get() + (1 << 20)));
    let beside = domain.map(next, promised(pa, 4096), Access::READ, &mut owed).unwrap();
    let said = charge_other(&mock.iommufd, None);
    assert!(said.contains("then: Err(NotOfFiles), 0 KiB"), "{said}");
    domain.unmap(beside, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(pinned() - before, kib);

    let said = charge_other(&mock.iommufd, None);
    assert!(said.contains("limit of 0: Err(LockedMemory { limit: 0 }), 0 KiB"), "{said}");
    assert!(said.contains(&format!("then: Ok(()), {kib} KiB")), "{said}");
    assert_eq!(pinned(), before);
    mock.iommufd.charge().unwrap();
    assert_eq!(pinned() - before, kib);
    domain.unmap(all, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(pinned(), before);
}

/// Drops the right to lock as much memory as one likes: who has it has nothing on its account.
fn be_charged() {
    let mut rights = capabilities(None).unwrap();
    rights.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, rights).unwrap();
}

#[test]
fn kernel_charges_for_a_device_that_is_bound_by_the_process_that_goes_on() {
    let Some(mock) = mock("kernel_charges_for_a_device_that_is_bound_by_the_process_that_goes_on")
    else {
        return;
    };
    be_charged();
    let domain = mock.domain(DomainOptions::default());
    let ioas = domain.placed().unwrap().ioas().unwrap();
    let memory = HostMemory::new(PAGES * 4096, Backing::File, Base::Host).unwrap();
    let (start, mut owed) = (domain.input_range().start(), Gather::new());
    let at = memory.range().start();
    let before = pinned();
    let all = domain.map(start, promised(at, PAGES * 4096), Access::READ_WRITE, &mut owed);
    let all = all.unwrap();
    // No device is there, so nothing is pinned.
    assert_eq!(pinned(), before);
    let said = charge_other(&mock.iommufd, Some(ioas));
    // Until it is charged, its devices' memory is on the account of the process that mapped it.
    assert!(said.contains("bound before: 0 KiB"), "{said}");
    assert!(said.contains("charged: Ok(()), 0 KiB"), "{said}");
    assert!(said.contains(&format!("bound then: {} KiB", PAGES * 4)), "{said}");
    domain.unmap(all, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(pinned(), before);
}
