//! Descriptors of every kind that a program may be sent by mistake.

mod received;

use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;

use portolan::addr::StreamId;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};

use super::*;
use crate::vfio::{OpenError, open_from};

/// Descriptors that are none of VFIO's, with what they are.
fn others() -> Vec<(&'static str, OwnedFd)> {
    let (one, peer) = UnixStream::pair().unwrap();
    let (closed, gone) = UnixStream::pair().unwrap();
    drop(gone);
    let mut all = vec![
        ("a socket", one.into()),
        ("its peer", peer.into()),
        ("a socket whose peer is closed", closed.into()),
        ("an eventfd", eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
        ("an epoll", epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()),
        ("a memory file", memfd_create("other", MemfdFlags::CLOEXEC).unwrap()),
    ];
    for path in ["/dev/null", "/dev/zero", "/dev/random", "/dev/tty", "/proc/self/maps", "/"] {
        let opened = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        // A test may run without a terminal.
        all.extend(opened.map(|file| (path, file)));
    }
    let path = open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    all.push(("a path", path));
    all
}

fn refused<T: TryFrom<OwnedFd, Error = Failed<OwnedFd, WrongDescriptor>>>(
    fd: OwnedFd,
) -> (WrongDescriptor, OwnedFd, RawFd) {
    let number = fd.as_raw_fd();
    let failed = T::try_from(fd).err().expect("none of VFIO's");
    (failed.error, failed.value, number)
}

#[test]
fn descriptors_of_another_kind_come_back_with_the_kind_that_was_wanted() {
    for (name, fd) in others() {
        assert_eq!(DescriptorKind::of(fd.as_fd()), DescriptorKind::Other, "{name}");
        let found = DescriptorKind::Other;
        let (error, fd, number) = refused::<IommufdFile>(fd);
        assert_eq!(error, WrongDescriptor { wanted: DescriptorKind::Iommufd, found }, "{name}");
        let (error, fd, _) = refused::<ContainerFile>(fd);
        assert_eq!(error, WrongDescriptor { wanted: DescriptorKind::Container, found }, "{name}");
        let (error, fd, _) = refused::<GroupFile>(fd);
        assert_eq!(error, WrongDescriptor { wanted: DescriptorKind::Group, found }, "{name}");
        let (error, fd, _) = refused::<DeviceFile>(fd);
        assert_eq!(error, WrongDescriptor { wanted: DescriptorKind::DeviceNode, found }, "{name}");
        assert_eq!(fd.as_raw_fd(), number, "{name} comes back");
        assert!(fstat(&fd).is_ok(), "{name} is open");
    }
}

fn function() -> PciFunction {
    "ffff:ff:1f.7".parse().unwrap()
}

#[test]
fn descriptors_of_the_other_interface_are_refused() {
    // As if they had been asked: a kernel with VFIO need not be here.
    let file = || memfd_create("node", MemfdFlags::CLOEXEC).unwrap();
    let device = function().into();
    let node = Candidate::node(function(), DeviceFile(file()));
    let error = open_from(Through::Interface(Interface::Type1), vec![node]).unwrap_err();
    assert_eq!(error, OpenError::OtherInterface { device });
    let group = Candidate::group(function(), ContainerFile(file()), GroupFile(file()));
    let through = Through::Handed(IommufdFile(file()));
    assert_eq!(open_from(through, vec![group]).unwrap_err(), OpenError::OtherInterface { device });
}

#[test]
fn devices_that_fail_after_they_were_asked_fail_with_the_kernels_error() {
    let file = || memfd_create("node", MemfdFlags::CLOEXEC).unwrap();
    let node = Candidate::node(function(), DeviceFile(file()));
    let error = open_from(Through::Handed(IommufdFile(file())), vec![node]).unwrap_err();
    assert!(matches!(error, OpenError::Device(_)), "{error}");
    let group = Candidate::group(function(), ContainerFile(file()), GroupFile(file()));
    let error = open_from(Through::Interface(Interface::Type1), vec![group]).unwrap_err();
    assert!(matches!(error, OpenError::Device(_)), "{error}");
    let name = "none.at.all".parse().unwrap();
    let device = DeviceName::Platform { name, stream: StreamId::new(7) };
    let error = open_from(Through::Interface(Interface::Type1), vec![device.into()]).unwrap_err();
    assert_eq!(error, OpenError::NoSuchDevice { device });
    assert!(error.to_string().contains("none.at.all"));
}

#[test]
fn a_group_is_asked_for_a_device_by_its_name_and_the_token_behind_it() {
    let token = "01234567-89ab-cdef-0123-456789abcdef";
    let candidate = Candidate::from(function());
    assert_eq!(candidate.in_group(), "ffff:ff:1f.7");
    let candidate = candidate.with_token(token.parse().unwrap());
    assert_eq!(candidate.in_group(), format!("ffff:ff:1f.7 vf_token={token}"));
    let name = "fff51000.ethernet".parse().unwrap();
    let device = DeviceName::Platform { name, stream: StreamId::new(7) };
    let candidate = Candidate::group(
        function(),
        ContainerFile(memfd_create("container", MemfdFlags::CLOEXEC).unwrap()),
        GroupFile(memfd_create("group", MemfdFlags::CLOEXEC).unwrap()),
    );
    assert_eq!(candidate.named(device).in_group(), "fff51000.ethernet");
}
