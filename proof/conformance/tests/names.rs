//! Backends and formats by name, the command line, and the oracle that others are held against.
#![allow(missing_docs)]

use std::process::Command;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::table::Access;
use portolan_verify::backend::BackendName;
use portolan_verify::command::group::{Backend, BackendGroup};
use portolan_verify::devices::Devices;
use portolan_verify::format::FormatName;
use portolan_verify::oracle::{Oracle, Piece, merged};

#[test]
fn names_of_backends_read_back() {
    for one in BackendName::ALL {
        let group: BackendGroup = one.as_str().parse().expect("a backend");
        assert_eq!(group.members, [Backend::Unit(*one)]);
    }
    let all: BackendGroup = "model".parse().expect("the model");
    assert_eq!(all.members.len(), BackendName::of_kind("model").len());
    let all: BackendGroup = "qemu".parse().expect("QEMU");
    assert!(all.members.contains(&Backend::Unit(BackendName::QemuVirtio)));
}

#[test]
fn devices_are_named_by_their_place() {
    for name in ["vfio:0000:00:04.0,0000:00:05.0", "iommufd:0000:00:04.0"] {
        let devices: BackendGroup = name.parse().expect("functions");
        assert_eq!(devices.members[0].to_string(), name);
    }
    for bad in ["vfio:", "vfio:4", "iommufd:0000:00:04.0,", "linux", "vfio"] {
        let said = bad.parse::<BackendGroup>().unwrap_err().to_string();
        assert!(said.contains(Devices::FORM), "{bad}: {said}");
    }
}

#[test]
fn names_of_formats_read_back() {
    for name in FormatName::ALL {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    assert!("armv9".parse::<FormatName>().is_err());
}

/// In builds with debug assertions clap checks its commands whenever it reads arguments.
#[test]
fn the_command_line_is_consistent() {
    for arguments in [["check", "--help"], ["torture", "--help"]] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_portolan-verify"));
        let output = program.args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

fn range(start: u64, last: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
}

#[test]
fn unmapping_the_middle_keeps_both_sides() {
    let mut oracle = Oracle::new();
    oracle.map(range(0x1000, 0x4fff), PhysAddr::new(0x9000), Access::READ);
    oracle.unmap(range(0x2000, 0x2fff));
    assert_eq!(oracle.translate(Iova::new(0x2000)), None);
    let at = |iova| oracle.translate(Iova::new(iova)).unwrap().0.get();
    assert_eq!((at(0x1fff), at(0x3000), at(0x4fff)), (0x9fff, 0xb000, 0xcfff));
    assert!(oracle.is_mapped(range(0x3000, 0x4fff)));
    assert!(!oracle.is_mapped(range(0x1000, 0x4fff)));
    assert!(oracle.is_free(range(0x2000, 0x2fff)) && !oracle.is_free(range(0x2000, 0x3000)));
}

#[test]
fn neighbours_merge_only_if_they_continue() {
    let piece = |start, pa| Piece {
        range: range(start, start + 0xfff),
        pa: PhysAddr::new(pa),
        access: Access::READ,
    };
    let all = [piece(0, 0x1000), piece(0x1000, 0x2000), piece(0x2000, 0x5000)];
    assert_eq!(merged(all).len(), 2);
}
