//! Refusals of a recorder on machines that close their tracing to it.

use std::fs;
use std::path::Path;

use super::super::environment::{Environment, Refusal};
use super::super::events::EventSelection;
use super::super::tracefs::Tracefs;
use super::super::{RecordError, text};
use super::machine::{Machine, PIECE, event, page, two};

/// Looks for the tracefs of a machine: mounted and empty, as under lockdown, or not there. Returns the error.
fn find(machine: &Machine, mounted: bool) -> String {
    if mounted {
        fs::create_dir_all(machine.root.join("sys/kernel/tracing")).unwrap();
        machine.write("proc/self/mounts", "tracefs /sys/kernel/tracing tracefs rw 0 0\n");
    }
    match Tracefs::find(&machine.root, None) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was found"),
    }
}

#[test]
fn what_closes_tracing_is_said_where_it_is_mounted_and_where_it_is_not() {
    let cases: [(&str, &str, &str, &str, &str); 7] = [
        ("plain", "proc/none", "", "mount -t tracefs", "CONFIG_TRACING"),
        (
            "locked",
            "sys/kernel/security/lockdown",
            "none integrity [confidentiality]\n",
            "lockdown=integrity",
            "lockdown=integrity",
        ),
        (
            "integrity",
            "sys/kernel/security/lockdown",
            "none [integrity] confidentiality\n",
            "mount -t tracefs",
            "CONFIG_TRACING",
        ),
        ("docker", ".dockerenv", "", "run this on the host", "run this on the host"),
        ("podman", "run/.containerenv", "", "(podman)", "(podman)"),
        ("nspawn", "run/systemd/container", "systemd-nspawn\n", "(systemd-nspawn)", "on the host"),
        ("users", "proc/self/uid_map", "0 1000 1\n", "a user namespace", "on the host"),
    ];
    for (name, file, content, nowhere, empty) in cases {
        let machine = Machine::new(&format!("closed-{name}"));
        machine.write(file, content);
        let said = find(&machine, false);
        assert!(said.contains("mounted nowhere") && said.contains(nowhere), "{name}: {said}");
        let said = find(&machine, true);
        assert!(said.contains("has no instances") && said.contains(empty), "{name}: {said}");
    }
}

#[test]
fn a_refusal_has_its_likeliest_reason() {
    let machine = Machine::new("refusal");
    let why = || Environment::of(&machine.root).refusal();
    assert_eq!(why(), Refusal::Unknown);
    machine.write("sys/fs/selinux/enforce", "1");
    assert_eq!(why(), Refusal::SeLinux);
    assert!(why().to_string().contains("ausearch"));
    machine.write("sys/fs/selinux/enforce", "0");
    assert_eq!(why(), Refusal::Unknown);
    machine.write("sys/fs/selinux/enforce", "1");
    machine.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0\n");
    assert_eq!(why(), Refusal::NotRoot);
    machine.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n");
    let Refusal::Container(kind) = why() else {
        panic!("a root who may do little is in a container")
    };
    assert_eq!(kind, "root without CAP_SYS_ADMIN");
    machine.write("sys/kernel/security/lockdown", "[confidentiality]");
    assert_eq!(why(), Refusal::LockedDown);
    // Nothing is known of a machine without files.
    assert_eq!(Environment::of(Path::new("/nowhere-at-all")).refusal(), Refusal::NotRoot);
}

#[test]
fn what_the_kernel_refuses_to_the_recorder_has_the_reason_with_it() {
    let machine = Machine::new("eperm");
    machine.write("sys/fs/selinux/enforce", "1");
    let mut tracefs = machine.tracefs("", vec![two()]);
    for (number, wanted) in [
        (rustix::io::Errno::PERM, "SELinux is enforcing"),
        (rustix::io::Errno::ACCESS, "SELinux is enforcing"),
        (rustix::io::Errno::ROFS, "remount,rw"),
    ] {
        tracefs.folders.make = Box::new(move |_| Err(number.into()));
        let error = machine.record(&tracefs, &["--", "true"]).unwrap_err();
        assert!(error.to_string().contains(wanted), "{number:?}: {error}");
        assert!(machine.is_as_before());
    }
    machine.write(".dockerenv", "");
    let error = machine.record(&tracefs, &["--", "true"]).unwrap_err();
    assert!(error.to_string().contains("(docker)"), "{error}");
}

#[test]
fn a_tracefs_below_debugfs_is_found() {
    let machine = Machine::new("debugfs");
    fs::create_dir_all(machine.root.join("sys/kernel/tracing")).unwrap();
    fs::create_dir_all(machine.root.join("sys/kernel/debug/tracing/instances")).unwrap();
    let found = Tracefs::find(&machine.root, None).unwrap();
    assert!(found.root.ends_with("sys/kernel/debug/tracing"));
    // One that is mounted elsewhere.
    machine.remove("sys/kernel/debug");
    machine.write("proc/self/mounts", "none /mnt/t tracefs rw 0 0\n");
    fs::create_dir_all(machine.root.join("mnt/t/instances")).unwrap();
    let found = Tracefs::find(&machine.root, None).unwrap();
    assert!(found.root.ends_with("mnt/t"));
}

#[test]
fn a_kernel_without_dma_events_is_recorded_by_its_iommus_and_says_so() {
    let machine = Machine::new("no-dma");
    machine.remove("tracing/events/dma");
    machine.write("proc/sys/kernel/osrelease", "5.4.0\n");
    let pieces = page(9, &[(1, event(PIECE, 0x1000))], 0);
    let tracefs = machine.tracefs("", vec![pieces]);
    let report = machine.record(&tracefs, &["--", "true"]).unwrap();
    let recorded = ["iommu:map", "timer:timer_expire_entry"];
    assert_eq!(report.kernel_events.recorded, recorded);
    assert_eq!((report.maps, report.kept), (1, true));
    let said = text(&report, usize::MAX);
    assert!(said.contains("has no `dma` events (Linux 6.12"), "{said}");

    // Nothing is mapped by a kernel whose IOMMU does not translate.
    fs::remove_file(machine.root.join("out.gz")).unwrap();
    machine.remove("tracing/gone");
    let tracefs = machine.tracefs("", vec![Vec::new()]);
    let report = machine.record(&tracefs, &["--", "true"]).unwrap();
    let said = text(&report, usize::MAX);
    assert!(!report.kept && said.contains("6.12 or later, or switch the IOMMU on"), "{said}");
}

#[test]
fn a_kernel_without_iommu_events_says_so_and_one_with_neither_is_refused() {
    let machine = Machine::new("no-iommu");
    machine.remove("tracing/events/iommu");
    let tracefs = machine.tracefs("", vec![two()]);
    let report = machine.record(&tracefs, &["--", "true"]).unwrap();
    let said = text(&report, usize::MAX);
    assert!(said.contains("has no `iommu` events"), "{said}");

    machine.remove("tracing/events/dma");
    machine.write("tracing/events/swiotlb/swiotlb_bounced/format", "");
    machine.write("proc/sys/kernel/osrelease", "6.1.0\n");
    let said =
        EventSelection::choose(&tracefs.root, &[], &tracefs.environment).unwrap_err().to_string();
    let wanted = "Linux 6.1.0, has no events of what is mapped";
    assert!(said.contains(wanted) && said.contains("it has swiotlb:swiotlb_bounced"), "{said}");
    machine.remove("tracing/gone");
    let none = machine.record(&tracefs, &["--force", "--", "true"]);
    assert!(matches!(none, Err(RecordError::NoEvents { .. })));
}
