//! A disk that is passed through behind this process's virtio-iommu: this program is the monitor, and the guest whose
//! requests it answers.

use std::io;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use portolan::addr::{Iova, PhysAddr, PhysRange, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach as _, Domain as _, Iommu as _};
use portolan::platform::DmaMemory;
use portolan::table::Access;
use portolan_linux::UserDomain;
use portolan_linux::memory::{Backing, Base, HostMemory};
use portolan_linux::vfio::{self, DomainOptions, Interface, UserUnit};
use portolan_vmm::EndpointId;
use portolan_vmm::viommu::{Grant, Listener, Mapping, Reset, ViommuOptions, VirtioIommu};

use crate::controller::PAGE;
use crate::shared::{BYTES, COUNT, DATA, Shared, Started, be_charged, pinned, wait};
use crate::{Arguments, functions};

const ENDPOINT: EndpointId = EndpointId::new(8);
/// Address of the guest's memory, and that by which the guest has the disk reach it.
const PLACE: u64 = 0x100_0000;
const IOVA: u64 = 0x4000_0000;

/// A disk, the guest's memory, and the domain that the guest makes.
#[derive(Debug)]
struct Passed {
    unit: Arc<UserUnit>,
    stream: StreamId,
    memory: HostMemory,
    /// All memory, by the guest's addresses.
    whole: Arc<UserDomain>,
    /// Memory that the guest has mapped.
    own: Arc<UserDomain>,
}

impl Passed {
    /// Memory of the guest, for devices.
    fn memory(&self, at: PhysAddr, bytes: u64) -> io::Result<DmaMemory> {
        let host = self.memory.host_address(at, bytes).map_err(io::Error::other)?;
        let range = PhysRange::from_len(PhysAddr::new(host), bytes);
        let range = range.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: it is guest memory, of which this process has no reference but to atomics; it stays as long as the
        // domains do.
        Ok(unsafe { DmaMemory::new(range) })
    }

    fn map(
        &self,
        domain: &UserDomain,
        iova: Iova,
        at: PhysAddr,
        bytes: u64,
        access: Access,
    ) -> io::Result<()> {
        let memory = self.memory(at, bytes)?;
        let mapped = domain.map(iova, memory, access, &mut Gather::new());
        mapped.map(drop).map_err(io::Error::other)
    }

    fn enter(&self, domain: &Arc<UserDomain>) -> io::Result<()> {
        self.unit.attach(self.stream, domain).map_err(io::Error::other)
    }
}

/// Access that the guest grants.
fn access(mapping: &Mapping) -> Access {
    match mapping.access as u8 {
        1 => Access::READ,
        2 => Access::WRITE,
        _ => Access::READ_WRITE,
    }
}

impl Listener for Passed {
    fn map(&self, grant: &Grant) -> io::Result<()> {
        match grant {
            Grant::PassThrough => self.enter(&self.whole),
            Grant::Mapping(mapping) => {
                let (iova, bytes) = (mapping.iova, mapping.iova.len_minus_one() + 1);
                self.map(&self.own, iova.start(), mapping.target, bytes, access(mapping))
            }
        }
    }

    fn unmap(&self, grant: &Grant) -> io::Result<()> {
        match grant {
            Grant::PassThrough => self.enter(&self.own),
            Grant::Mapping(mapping) => {
                let mut owed = Gather::new();
                self.own.unmap(mapping.iova, &mut owed).map_err(io::Error::other)?;
                self.own.sync(&mut owed).map(drop).map_err(io::Error::other)
            }
        }
    }
}

/// Has the monitor carry out a request of the guest's.
fn request(viommu: &VirtioIommu, words: &[u32]) -> Result<()> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(bytes.len().max(20), 0);
    let mut status = [0xff; 4];
    viommu.request(&bytes, &mut status);
    ensure!(status == [0; 4], "request {words:x?}: {status:?}");
    Ok(())
}

/// The words of an address.
const fn both(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}

/// Maps pages of the guest's memory, by a request.
fn map(viommu: &VirtioIommu, page: u64, pages: u64) -> Result<()> {
    let first = page * PAGE as u64;
    let [start, last, place] =
        [IOVA + first, IOVA + first + pages * PAGE as u64 - 1, PLACE + first].map(both);
    let words = [[3, 1], start, last, place, [3, 0]].concat();
    request(viommu, &words[..9])
}

/// The machine: firmware reads without a domain, then a guest by its own addresses.
pub fn run(arguments: &Arguments) -> Result<()> {
    be_charged()?;
    let opened = vfio::open_by(Interface::Iommufd, &functions(arguments))?;
    let (unit, device) = (opened.unit.clone(), opened.devices.first().context("no device")?);
    let memory = HostMemory::new(BYTES, Backing::Anonymous, Base::At(PhysAddr::new(PLACE)))?;
    let options = |edit: &dyn Fn(&mut DomainOptions)| {
        let mut options = DomainOptions::default();
        edit(&mut options);
        unit.domain_with(options)
    };
    let whole = options(&|options| options.lends = true)?;
    let own = options(&|options| options.borrows = Some(whole.clone()))?;
    let stream = device.stream();
    let passed = Passed { unit: unit.clone(), stream, memory: memory.clone(), whole, own };
    let all = Access::READ_WRITE;
    passed.map(&passed.whole, Iova::new(PLACE), PhysAddr::new(PLACE), BYTES, all)?;
    // Endpoints that have no domain.
    let others = opened.devices.iter().skip(1);
    others.map(|other| other.stream()).try_for_each(|other| unit.attach(other, &passed.whole))?;
    let mut options = ViommuOptions::default();
    options.bypass = true;
    let viommu = VirtioIommu::new(options);
    viommu.add(ENDPOINT, &[])?;
    viommu.listen(ENDPOINT, Arc::new(passed))?;

    // Firmware.
    let shared = Shared { memory: memory.clone(), iova: Iova::new(PLACE) };
    let Started { mut queue, block_lg2, driver } = shared.start(device.bar(0)?)?;
    shared.begin(&mut queue, block_lg2)?;
    wait(&mut queue)?;
    shared.copy()?;
    driver.stop()?;
    let before = (unit.counts(), pinned()?);

    // The guest: its queues by one mapping, and each page by one.
    request(&viommu, &[1, 1, ENDPOINT.get()])?;
    map(&viommu, 0, DATA)?;
    (0..u64::from(COUNT)).try_for_each(|page| map(&viommu, DATA + page, 1))?;
    let after = (unit.counts(), pinned()?);
    let shared = Shared { memory, iova: Iova::new(IOVA) };
    let Started { mut queue, block_lg2, driver } = shared.start(device.bar(0)?)?;
    shared.begin(&mut queue, block_lg2)?;
    wait(&mut queue)?;
    shared.compare(0)?;

    // Of a page that is unmapped, whatever the disk says of it, nothing arrives.
    let [start, last] = [IOVA + DATA * PAGE as u64, IOVA + (DATA + 1) * PAGE as u64 - 1].map(both);
    request(&viommu, &[[4, 1], start, last, [0; 2]].concat()[..7])?;
    shared.begin(&mut queue, block_lg2)?;
    for _ in 0..COUNT {
        queue.wait()?;
    }
    ensure!(
        shared.page(DATA)?.iter().all(|byte| *byte == 0xa5),
        "a page that is unmapped is written"
    );
    shared.compare(1)?;
    driver.stop()?;
    viommu.reset(Reset::System)?;
    unit.block(stream)?;
    let maps = after.0.map - before.0.map;
    portolan_cli::print(&format!(
        "iommufd: behind a virtio-iommu: {COUNT} pages read by the guest's addresses, {} mappings copied, \
         {maps} pinned anew; pinned KiB: {} before, {} then; an unmapped page is not written\n",
        after.0.copy, before.1, after.1,
    ))?;
    ensure!(maps == 0 && before.1 == after.1, "memory is pinned anew");
    Ok(())
}
