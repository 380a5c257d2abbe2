//! Linux's code works on the shim, and builds the commands that ours is compared with.

use super::{Linux, LinuxDomainKind, linux, newer_linux};
use crate::raw::promised;
use crate::rig::{BASE, BLOCK, INPUT_BITS, MEMORY, PAGE, QUIRKS, access, pieces};
use crate::workload::Failure;
use portolan::addr::{IovaRange, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::Domain;

/// Linux's code, or a line that says why it is missing.
macro_rules! linux_or_skip {
    () => {
        linux_or_skip!(linux)
    };
    ($version:ident) => {
        match $version() {
            Ok(linux) => linux,
            Err(Failure::NoLinux(why)) => {
                println!("SKIP: {why}");
                return;
            }
            Err(failure) => panic!("{failure}"),
        }
    };
}

#[test]
fn what_linux_maps_leads_where_it_should_and_nowhere_after() {
    let linux = linux_or_skip!();
    let domain = linux.on_cpu(0).domain(LinuxDomainKind::SNOOPS, INPUT_BITS).unwrap();
    let pieces = pieces(600);
    let list = domain.cpu().list(&pieces).unwrap();
    let base = BASE.get();
    assert_eq!(domain.map_sg(base, &list), 600 * PAGE as i64);
    for (i, (start, _)) in (0..).zip(&pieces) {
        assert_eq!(domain.translate(base + i * PAGE + 5), start + 5);
    }
    assert_eq!(domain.unmap(base, 600 * PAGE), 600 * PAGE);
    assert_eq!(domain.translate(base), 0);
    assert_eq!(domain.cpu().warnings(), 0);
    // An address that is not mapped is not unmapped, and Linux says so.
    assert_eq!(domain.unmap(base, PAGE), 0);
    assert_eq!(domain.cpu().warnings(), 1);
}

/// Commands that either side builds to unmap the pages that were mapped at `start`.
fn commands(kind: LinuxDomainKind, shift: u64, bytes: u64) -> Option<(u64, u64)> {
    let (iova, pa) = (BASE.get() + shift, MEMORY.get() + shift + PAGE);
    let domain = linux().ok()?.on_cpu(0).domain(kind, INPUT_BITS)?;
    assert!(domain.map(iova, pa, bytes));
    let before = domain.commands();
    assert_eq!(domain.unmap(iova, bytes), bytes);
    let theirs = domain.commands() - before;

    let quirks = match kind {
        LinuxDomainKind::BY_CONTEXT => crate::rig::BY_CONTEXT,
        _ => QUIRKS,
    };
    let ours = crate::rig::paged(64, quirks).ok()?;
    let range = IovaRange::from_len(portolan::addr::Iova::new(iova), bytes)?;
    let mut owed = Gather::new();
    ours.map(range.start(), promised(PhysAddr::new(pa), bytes), access(), &mut owed).ok()?;
    crate::rig::unmap_and_pay(&ours, range).ok()?;
    Some((theirs, ours.queue().written() as u64))
}

#[test]
fn both_sides_build_the_commands_that_their_designs_want() {
    let _linux = linux_or_skip!();
    // One page: an invalidation and a sync.
    assert_eq!(commands(LinuxDomainKind::SNOOPS, 0, PAGE), Some((2, 2)));
    // Linux invalidates for each table that leaves, and for the gathered pages; ours once for all.
    assert_eq!(commands(LinuxDomainKind::BY_CONTEXT, 0, BLOCK), Some((4, 2)));
    assert_eq!(commands(LinuxDomainKind::BY_CONTEXT, 0, 16 * BLOCK), Some((34, 2)));
}

#[test]
fn lines_are_written_back_for_hardware_that_does_not_snoop() {
    let linux = linux_or_skip!();
    let domain = linux.on_cpu(0).domain(LinuxDomainKind::NON_COHERENT, INPUT_BITS).unwrap();
    assert!(domain.map(BASE.get(), MEMORY.get(), PAGE));
    assert_eq!(domain.unmap(BASE.get(), PAGE), PAGE);
    assert_eq!(domain.cpu().warnings(), 0);
}

#[test]
fn buffers_and_addresses_come_and_go() {
    come_and_go(linux_or_skip!());
}

#[test]
fn buffers_and_addresses_of_the_newer_version_come_and_go() {
    come_and_go(linux_or_skip!(newer_linux));
}

fn come_and_go(linux: &'static Linux) {
    let cpu = linux.on_cpu(0);
    for kind in [LinuxDomainKind::LAZY, LinuxDomainKind::STRICT] {
        let domain = cpu.domain(kind, INPUT_BITS).unwrap();
        for _ in 0..1000 {
            let iova = domain.dma_map(MEMORY.get() + 0x123, 0x1000).unwrap();
            assert_eq!(iova & 0xfff, 0x123);
            assert_eq!(domain.translate(iova), MEMORY.get() + 0x123);
            domain.dma_unmap(iova, 0x1000);
        }
    }
    let space = cpu.space().unwrap();
    let (a, b) = (space.take(&cpu, 3, 1 << 30), space.take(&cpu, 3, 1 << 30));
    assert!(a != 0 && b != 0 && a.abs_diff(b) >= 4);
    space.give(&cpu, a, 3);
    space.give(&cpu, b, 3);
    assert!(cpu.pool(64 << 20));
    let slots = cpu.bounce(&[7; 5000]).unwrap();
    cpu.give(slots);
    assert_eq!(cpu.warnings(), 0);
}

#[test]
fn linuxs_driver_gets_from_the_virtio_iommu_what_it_asks_for() {
    let _linux = linux_or_skip!();
    let said = super::try_viommu().unwrap();
    assert!(said.contains("MAP"), "{said}");
}
