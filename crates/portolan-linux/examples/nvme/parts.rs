//! Parts of a device that few drivers need: descriptors of another process, its interrupt pin, writes that are
//! combined.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portolan::addr::PciFunction;
use portolan::iommu::Attach as _;
use portolan::platform::Mmio as _;
use portolan_linux::vfio::{
    self, BoundDeviceFile, BoundNumber, Candidate, ContainerFile, DescriptorKind, DeviceFile,
    GroupFile, Interface, IoasId, IommufdFile, Opened, RawSpace, Through, VfioError,
};

use crate::Arguments;
use crate::controller::{Controller, PAGE, Transfer};
use crate::mover::{Manner, Mover};

/// BAR of a controller's own memory (CMB).
const CMB: u8 = 2;
const LIMIT: Duration = Duration::from_secs(30);

fn open(path: impl AsRef<Path>) -> Result<OwnedFd> {
    let file: std::io::Result<File> = OpenOptions::new().read(true).write(true).open(&path);
    Ok(file.with_context(|| path.as_ref().display().to_string())?.into())
}

/// As a broker opens them for a process that may not: the kind of each is asked, and it is no other.
fn handed(function: PciFunction, over: Interface) -> Result<Opened> {
    let place = format!("/sys/bus/pci/devices/{function}");
    let group = std::fs::read_link(format!("{place}/iommu_group"))?;
    let group = group.file_name().and_then(|name| name.to_str()).context("no group")?;
    let (through, candidate) = match over {
        Interface::Iommufd => {
            let mut nodes = std::fs::read_dir(format!("{place}/vfio-dev"))?;
            let node = nodes.next().context("no node")??.file_name();
            let node = open(Path::new("/dev/vfio/devices").join(node))?;
            let iommufd = open("/dev/iommu")?;
            let failed =
                IommufdFile::try_from(node).err().context("a device's node is no iommufd")?;
            ensure!(failed.error.found == DescriptorKind::DeviceNode, "{}", failed.error);
            let node = DeviceFile::try_from(failed.value).map_err(|failed| failed.error)?;
            let failed = DeviceFile::try_from(iommufd).err().context("an iommufd is no device")?;
            ensure!(failed.error.found == DescriptorKind::Iommufd, "{}", failed.error);
            let failed = ContainerFile::try_from(failed.value).err().context("nor a container")?;
            let iommufd = IommufdFile::try_from(failed.value).map_err(|failed| failed.error)?;
            (Through::Handed(iommufd), Candidate::node(function, node))
        }
        over => {
            let (container, node) = (open("/dev/vfio/vfio")?, open(format!("/dev/vfio/{group}"))?);
            let failed = GroupFile::try_from(container).err().context("a container is no group")?;
            ensure!(failed.error.found == DescriptorKind::Container, "{}", failed.error);
            let container = ContainerFile::try_from(failed.value).map_err(|failed| failed.error)?;
            let failed = DeviceFile::try_from(node).err().context("a group is no device")?;
            ensure!(failed.error.found == DescriptorKind::Group, "{}", failed.error);
            let group = GroupFile::try_from(failed.value).map_err(|failed| failed.error)?;
            (Through::Interface(over), Candidate::group(function, container, group))
        }
    };
    Ok(vfio::open_from(through, vec![candidate])?)
}

/// The disk for a process that goes on with it: from copies of the descriptors, by its number, while it is bound and in
/// an address space. The former unit stays, as its process would.
fn gone_on(former: &Opened, function: PciFunction) -> Result<Option<Opened>> {
    let device = former.devices.first().context("no device")?;
    let stream = device.stream();
    let Some(number) = former.unit.bound_number(stream) else { return Ok(None) };
    former.unit.attach(stream, &former.unit.domain())?;
    let Some(RawSpace::Ioas { iommufd, ioas }) = former.unit.raw(stream) else {
        anyhow::bail!("it is in no address space");
    };
    let iommufd = || iommufd.try_clone_to_owned();
    let open = |number| -> Result<_> {
        let copy = device.as_fd().try_clone_to_owned()?;
        let copy = BoundDeviceFile::try_from(copy).map_err(|failed| failed.error)?;
        let iommufd = IommufdFile::try_from(iommufd()?).map_err(|failed| failed.error)?;
        let candidate = Candidate::bound(function, copy, number, IoasId::new(ioas));
        Ok(vfio::open_from(Through::Handed(iommufd), vec![candidate]))
    };
    ensure!(open(BoundNumber::new(ioas))?.is_err(), "an address space is taken for a device");
    Ok(Some(open(number)??))
}

/// Writes words by stores that are combined, if the controller has memory; returns the words.
fn combined(opened: &Opened) -> Result<Option<Vec<u64>>> {
    let device = opened.devices.first().context("no device")?;
    let window = match device.bar_combined(CMB) {
        Err(VfioError::NoRegion { .. }) => return Ok(None),
        window => window?,
    };
    let words: Vec<u64> = (1..=64u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    window.write(0x800, &words)?;
    window.flush();
    ensure!(window.write(window.bytes(), &words).is_err(), "words behind the end");
    Ok(Some(words))
}

/// Reads pages, each of which raises the pin; returns the number of times that it did.
fn by_pin(opened: &Opened, arguments: &Arguments) -> Result<u64> {
    let device = opened.devices.first().context("no device")?;
    let line = device.intx()?;
    let mut mover = Mover::new(opened, Manner::Slots, arguments.depth)?;
    let mut controller =
        Controller::start(device.bar(0)?, &mover.device, arguments.depth, Some(0))?;
    // The pin was raised by the admin queue.
    line.take()?;
    let (mut memory, mut back, mut raised) = (mover.memory(1)?, Vec::new(), 0);
    let mut read = |at: u64| -> Result<bool> {
        let (held, iova) = mover.begin(0, memory.pop().context("no page")?, Transfer::Read)?;
        controller.put(0, Transfer::Read, at, iova);
        controller.ring();
        let came = line.wait(LIMIT)?;
        let begin = Instant::now();
        while controller.take()?.is_none() {
            controller.check(begin)?;
        }
        controller.taken();
        mover.end(held, at, &mut back)?;
        memory.extend(back.drain(..).map(|(data, _)| data));
        Ok(came)
    };
    line.unmask()?;
    for at in 0..32 {
        raised += u64::from(read(at)?);
        line.unmask()?;
    }
    line.mask()?;
    // Masked, it is not raised for a request that is complete.
    let begin = Instant::now();
    let (held, iova) = mover.begin(0, memory.pop().context("no page")?, Transfer::Read)?;
    controller.put(0, Transfer::Read, 0, iova);
    controller.ring();
    while controller.take()?.is_none() {
        controller.check(begin)?;
    }
    ensure!(!line.take()?, "a pin that is masked is raised");
    line.unmask()?;
    ensure!(line.wait(LIMIT)?, "the pin is not raised once it is unmasked");
    controller.taken();
    mover.end(held, 0, &mut back)?;
    controller.stop()?;
    Ok(raised)
}

/// For each interface: the disk from descriptors, its pin, its memory.
pub fn run(arguments: &Arguments) -> Result<()> {
    for over in arguments.interface.iter().copied().map(Interface::from) {
        let former = handed(arguments.function, over)?;
        portolan_cli::print(&format!("{over}: opened by handed descriptors\n"))?;
        let after = gone_on(&former, arguments.function)?;
        if after.is_some() {
            portolan_cli::print(&format!("{over}: opened anew while it is bound\n"))?;
        }
        let opened = after.as_ref().unwrap_or(&former);
        if let Some(words) = combined(opened)? {
            let bar = opened.devices.first().context("no device")?.bar(CMB)?;
            let found = (0..words.len()).map(|n| bar.read64(0x800 + 8 * n));
            ensure!(found.eq(words), "the controller's memory has other words");
            portolan_cli::print(&format!("{over}: combined writes reached the device\n"))?;
        }
        let raised = by_pin(opened, arguments)?;
        portolan_cli::print(&format!(
            "{over}: {raised} of 32 pages of {PAGE} bytes raised the pin\n"
        ))?;
        ensure!(raised == 32, "a page did not raise the pin");
    }
    Ok(())
}
