//! An iommufd and an address space that another process has made, with a mapping of that process's, from a socket; the
//! device in it is the kernel's own for tests.

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{Domain as _, DomainError};
use portolan::table::Access;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::*;
use crate::Refusal;
use crate::memory::Pages;
use crate::promised::promised;
use crate::sys::iommufd::{map, new_hwpt, selftest, unmap};
use crate::vfio::ioas::Ioas;
use crate::vfio::iommufd::Iommufd;
use crate::vfio::mock::mock;
use crate::vfio::{UserUnit, VfioError};

const TEST: &str = "kernel_keeps_what_the_maker_of_an_address_space_has_mapped";
/// Name of the variable by which the other process is told that it is the maker.
const MAKER: &str = "PORTOLAN_MAKER";
const BYTES: u64 = 4 * 4096;
/// Address of the maker's mapping.
const AT: u64 = 0x4000_0000;
/// Of `IOMMU_IOAS_MAP`: devices read and write.
const BOTH: u32 = 3 << 1;

/// Numbers of the maker's objects.
#[derive(Clone, Copy, Debug)]
struct Made {
    ioas: u32,
    device: u32,
    tables: u32,
}

/// Sends a descriptor, and four numbers with it.
fn send(socket: &UnixStream, fd: BorrowedFd<'_>, numbers: [u32; 4]) {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (fds, mut beside) = ([fd], SendAncillaryBuffer::new(&mut room));
    assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut beside, SendFlags::empty());
    assert_eq!(sent, Ok(bytes.len()));
}

/// The next descriptor that was sent, and its numbers.
fn receive(socket: &UnixStream) -> (OwnedFd, [u32; 4]) {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (mut bytes, mut beside) = ([0; 16], RecvAncillaryBuffer::new(&mut room));
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut beside, flags).unwrap();
    assert_eq!(message.bytes, bytes.len());
    let fd = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let number = |at: usize| u32::from_ne_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap());
    (fd.unwrap(), [0, 1, 2, 3].map(number))
}

/// The process that makes the address space, by plain calls, and keeps it.
fn maker() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut socket = UnixStream::from(socket);
    let mock = mock(TEST).unwrap();
    let (fd, ioas) = (mock.iommufd.descriptor(), mock.home.id());
    let tables = new_hwpt(fd, mock.id, ioas, 0, 0).unwrap();
    let own = Pages::new(BYTES as usize).unwrap();
    map(fd, ioas, AT, own.as_ptr() as u64, BYTES, BOTH).unwrap();
    send(&socket, eventfd(0, EventfdFlags::CLOEXEC).unwrap().as_fd(), [0; 4]);
    send(&socket, fd, [ioas, mock.id, tables, 0]);

    let mut word = [0];
    socket.read_exact(&mut word).unwrap();
    assert!(selftest::leads_to(fd, tables, AT, &own));
    assert!(selftest::is_pinned(fd, own.as_ptr() as u64, BYTES, 1));
    assert_eq!(unmap(fd, ioas, AT, BYTES).unwrap(), BYTES);
    assert!(unmap(fd, ioas, 1, u64::MAX - 1).is_err(), "there is nothing else");
    socket.write_all(&word).unwrap();
}

fn start() -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let name = format!("vfio::handed::tests::received::{TEST}");
    let mut maker = Command::new(std::env::current_exe().unwrap());
    maker.args([&name, "--exact", "--nocapture"]).env(MAKER, "1");
    let maker = maker.stdin(Stdio::from(OwnedFd::from(theirs))).spawn().unwrap();
    (maker, ours)
}

/// A descriptor that is used as one of another kind, by the kind that it has.
fn misused<T: TryFrom<OwnedFd, Error = Failed<OwnedFd, WrongDescriptor>>>(
    fd: OwnedFd,
    found: DescriptorKind,
) -> OwnedFd {
    let failed = T::try_from(fd).err().expect("another kind");
    assert_eq!(failed.error.found, found);
    failed.value
}

/// Maps and unmaps in a window beside the maker's mapping, and across it.
fn share(unit: &Arc<UserUnit>, fd: BorrowedFd<'_>, Made { ioas, device, tables }: Made) {
    let window = |start, bytes| IovaRange::from_len(Iova::new(start), bytes).unwrap();
    let beside = window(AT + BYTES, BYTES);
    for other in [device, tables, 0x7777] {
        let refused = unit.domain_in(IoasId::new(other), beside).unwrap_err();
        assert!(matches!(refused, VfioError::System { .. }), "{refused:?}: no address space");
    }
    let domain = unit.domain_in(IoasId::new(ioas), beside).unwrap();
    assert_eq!(domain.input_range(), beside);
    let own = Pages::new(2 * BYTES as usize).unwrap();
    let (pa, mut owed) = (PhysAddr::new(own.as_ptr() as u64), Gather::new());
    domain.placed().unwrap();
    let across = Iova::new(AT + BYTES - 4096);
    let outside = domain.map(across, promised(pa, 8192), Access::READ, &mut owed);
    assert!(matches!(outside, Err(DomainError::Map(_))), "{outside:?}");
    let all = domain.map(beside.start(), promised(pa, BYTES), Access::READ_WRITE, &mut owed);
    let all = all.unwrap();
    assert!(selftest::leads_to(fd, tables, beside.start().get(), &own[..BYTES as usize]));

    // A window that is not its own alone: the kernel keeps the maker's mapping.
    let wide = unit.domain_in(IoasId::new(ioas), window(AT - BYTES, 2 * BYTES)).unwrap();
    wide.placed().unwrap();
    for start in [AT - BYTES, AT] {
        let memory = promised(pa, 2 * BYTES - (start + BYTES - AT));
        let taken = wide.map(Iova::new(start), memory, Access::READ_WRITE, &mut owed);
        let Err(DomainError::Iommu(error)) = taken else { panic!("{taken:?}") };
        assert_eq!(Refusal::of(error), Some(Refusal::Taken));
    }
    domain.unmap(all, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
}

#[test]
fn kernel_keeps_what_the_maker_of_an_address_space_has_mapped() {
    if std::env::var_os(MAKER).is_some() {
        return maker();
    }
    if mock(TEST).is_none() {
        return;
    }
    let (mut maker, mut socket) = start();
    let (other, _) = receive(&socket);
    misused::<IommufdFile>(other, DescriptorKind::Other);
    let (fd, [ioas, device, tables, _]) = receive(&socket);
    let found = DescriptorKind::Iommufd;
    let fd = misused::<DeviceFile>(fd, found);
    let fd = misused::<BoundDeviceFile>(fd, found);
    let fd = misused::<ContainerFile>(fd, found);
    let fd = misused::<GroupFile>(fd, found);
    let copy = fd.try_clone().unwrap();
    let file = IommufdFile::try_from(fd).map_err(|failed| failed.error).unwrap();

    let iommufd = Iommufd::handed(file, Arc::default());
    let reach = Ioas::handed(&iommufd, ioas).ranges().unwrap();
    let unit = Arc::new(UserUnit::without_devices(iommufd, reach));
    share(&unit, copy.as_fd(), Made { ioas, device, tables });
    drop(unit);
    // The maker looks at its mapping, and takes it away itself.
    let mut word = [1];
    socket.write_all(&word).unwrap();
    socket.read_exact(&mut word).unwrap();
    assert!(maker.wait().unwrap().success());
}
