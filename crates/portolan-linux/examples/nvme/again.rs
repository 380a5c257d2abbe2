//! A driver that executes itself anew while its disk works. The queues and the data lie in a memory file, which stays
//! mapped: requests that the former image has made are completed for the one that goes on.

use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command as Process;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use portolan::addr::{Iova, IovaRange, StreamId};
use portolan::dma::{Bidirectional, Constraints, Device, DmaSpace, SpaceOptions};
use portolan::iommu::Iommu as _;
use portolan_bare::nvme::{Access, Ring, RingState};
use portolan_linux::memory::{Backing, Base, FilePart, HostMemory, Process as Platform};
use portolan_linux::vfio::{
    self, BoundDeviceFile, BoundNumber, Candidate, Interface, IoasId, IommufdFile, Opened,
    RawSpace, Through,
};

use crate::Arguments;
use crate::controller::{Controller, PAGE, Transfer};
use crate::shared::{BYTES, COUNT, DATA, LIMIT, QUEUES, Shared, Started, be_charged, pinned, wait};

/// Offset of the addresses of the other disk from those of the file.
const ASIDE: u64 = 1 << 30;

/// Numbers that the image which goes on is started with.
const NUMBERS: usize = 12;

/// The former image: reads, makes requests, and executes itself.
fn former(arguments: &Arguments) -> Result<()> {
    be_charged()?;
    let opened = vfio::open_by(Interface::Iommufd, &[arguments.function])?;
    let device = opened.devices.first().context("no device")?;
    let stream = device.stream();
    let space = DmaSpace::new(opened.unit.new_domain(), Platform, &SpaceOptions::default())?;
    let mapper = Device::translated(Arc::new(space), stream, Constraints::trusted())?;
    let memory = HostMemory::new(BYTES, Backing::File, Base::Host)?;
    let buffer = memory.buffer(memory.range())?;
    let mapping = mapper.map(buffer, Bidirectional).map_err(|failed| failed.error)?;
    let shared = Shared { memory, iova: mapping.iova() };
    let Started { mut queue, block_lg2, driver: _driver } = shared.start(device.bar(0)?)?;
    shared.begin(&mut queue, block_lg2)?;
    wait(&mut queue)?;
    shared.copy()?;
    shared.begin(&mut queue, block_lg2)?;

    let Some(RawSpace::Ioas { iommufd, ioas }) = opened.unit.raw(stream) else {
        bail!("it is in no address space");
    };
    let number = opened.unit.bound_number(stream).context("it is not bound")?;
    let file = shared.memory.file().context("no file")?;
    // Copies that the image which goes on has.
    let kept = [iommufd, device.as_fd(), file].map(rustix::io::dup);
    let [Ok(iommufd), Ok(node), Ok(file)] = kept else { bail!("no descriptor is left") };
    let fd = |fd: &OwnedFd| fd.as_raw_fd() as u64;
    let RingState { number: ring, tail, head, phase } = queue.state();
    let numbers: [u64; NUMBERS] = [
        fd(&iommufd),
        fd(&node),
        fd(&file),
        number.get().into(),
        ioas.into(),
        shared.iova.get(),
        ring.into(),
        tail.into(),
        head.into(),
        phase.into(),
        block_lg2.into(),
        pinned()?,
    ];
    let words = std::env::args().skip(1).filter(|word| word != "--bind");
    let numbers = numbers.map(|number| number.to_string()).join(",");
    let mut again = Process::new(std::env::current_exe()?);
    Err(again.args(words).args(["--went-on", &numbers]).exec().into())
}

/// A descriptor that the former image has kept open.
fn kept(number: u64) -> Result<OwnedFd> {
    let number = i32::try_from(number)?;
    // SAFETY: the former image has kept it for this one, which takes it once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Reads pages of another disk, which is bound after all that, into the memory that the former image has mapped.
fn bound_afterwards(
    opened: &Opened,
    stream: StreamId,
    shared: &Shared,
    ioas: IoasId,
) -> Result<()> {
    let window = IovaRange::from_len(Iova::new(shared.iova.get() ^ ASIDE), ASIDE >> 1);
    let domain = opened.unit.domain_in(ioas, window.context("no addresses")?)?;
    let space = DmaSpace::new(opened.unit.bind(domain), Platform, &SpaceOptions::default())?;
    let device = Device::translated(Arc::new(space), stream, Constraints::trusted())?;
    let bar = opened.devices.last().context("no device")?.bar(0)?;
    let mut disk = Controller::start(bar, &device, COUNT, None)?;
    let own = device.coherent(PAGE as u64)?;
    let mut read = |iova: Iova| -> Result<()> {
        disk.put(0, Transfer::Read, 3, iova);
        disk.ring();
        let begin = Instant::now();
        while disk.take()?.is_none() {
            disk.check(begin)?;
        }
        disk.taken();
        Ok(())
    };
    shared.memory.fill(shared.at(DATA), PAGE as u64, 0xa5)?;
    read(shared.iova(DATA))?;
    read(own.iova())?;
    let words = own.words().iter().map(|word| word.load(std::sync::atomic::Ordering::Relaxed));
    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    ensure!(shared.page(DATA)? == bytes, "the other disk has read another page");
    disk.stop()?;
    Ok(opened.unit.block(stream)?)
}

/// The image that goes on.
fn latter(arguments: &Arguments, numbers: &[u64]) -> Result<()> {
    let numbers: [u64; NUMBERS] = numbers.try_into().context("another number of numbers")?;
    let [iommufd, node, file, number, ioas, iova, ring, tail, head, phase, lg2, before] = numbers;
    be_charged()?;
    let iommufd = IommufdFile::try_from(kept(iommufd)?).map_err(|failed| failed.error)?;
    let node = BoundDeviceFile::try_from(kept(node)?).map_err(|failed| failed.error)?;
    let (number, ioas) = (BoundNumber::new(number as u32), IoasId::new(ioas as u32));
    let disk = Candidate::bound(arguments.function, node, number, ioas);
    let others = arguments.with.map(Candidate::from);
    let all = std::iter::once(disk).chain(others).collect();
    let opened = vfio::open_from(Through::Handed(iommufd), all)?;
    let not_charged = pinned()?;
    opened.unit.charge()?;
    let charged = pinned()?;

    let part = FilePart { offset: 0, bytes: BYTES };
    let memory = HostMemory::of_file(kept(file)?, part, Base::Host);
    let memory = memory.map_err(|failed| failed.error)?;
    let shared = Shared { memory, iova: Iova::new(iova) };
    let device = opened.devices.first().context("no device")?;
    let registers = Arc::new(device.bar(0)?);
    let access = Access { registers, clock: Platform, limit: LIMIT };
    let (number, tail, head, phase) = (ring as u16, tail as u16, head as u16, phase != 0);
    let state = RingState { number, tail, head, phase };
    let mut queue = Ring::resume(access, QUEUES.map(|page| shared.part(page)), state)?;
    wait(&mut queue)?;
    shared.compare(0).context("read while the driver was executed anew")?;
    shared.begin(&mut queue, lg2 as u32)?;
    wait(&mut queue)?;
    shared.compare(0).context("read afterwards")?;
    if let Some(other) = opened.devices.get(1) {
        bound_afterwards(&opened, other.stream(), &shared, ioas)?;
    }
    device.reset()?;
    ensure!(
        opened.unit.destroy_space(ioas).is_err(),
        "an address space goes, and its device stays"
    );
    opened.unit.block(device.stream())?;
    opened.unit.destroy_space(ioas)?;
    let after = pinned()?;
    portolan_cli::print(&format!(
        "iommufd: executed anew: {COUNT} pages read meanwhile, {COUNT} afterwards, {} by a disk bound then\n\
         iommufd: pinned KiB: {before} before, {not_charged} until it is charged, {charged} then, {after} at the end\n",
        opened.devices.len() - 1,
    ))?;
    let kib = BYTES >> 10;
    ensure!([before, not_charged, charged, after] == [kib, 0, kib, 0], "another account");
    Ok(())
}

/// The image that is executed: the former one, or that which it has started.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.went_on[..] {
        [] => former(arguments),
        numbers => latter(arguments, numbers),
    }
}
