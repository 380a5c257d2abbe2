//! The memory of this process, and the devices that it has.

use crate::promise::promised;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach as _, Domain as _, Iommu as _};
use portolan::table::Access;
use portolan_linux::memory::{Backing, Base, HostMemory};
use portolan_linux::vfio::{Bar, Opened, VfioDevice};
use portolan_qemu::edu::{self, Engine, TABLE_BYTES};
use portolan_qemu::nvme;

use super::DevicesError;
use super::disk::HostNvmeDisk;
use crate::conformance::{Disk, HIGH_BASE, Has, Host};

/// Memory of a scenario; its pages are allocated as they are used.
const BYTES: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// Period of QEMU's timer, which drives the engine.
const TICK: Duration = Duration::from_millis(100);
/// A stream that no device has.
const NOBODY: StreamId = StreamId::new(u32::MAX);

/// Memory of the process that devices are given, and the devices.
pub struct ProcessHost {
    edus: Vec<(StreamId, Engine<Bar>)>,
    disk: Option<HostNvmeDisk>,
    memory: HostMemory,
    /// Bytes handed out.
    taken: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

/// Vendor and device.
fn id(device: &VfioDevice) -> Result<(u16, u16), DevicesError> {
    Ok((device.config_read16(0)?, device.config_read16(2)?))
}

impl ProcessHost {
    pub(super) fn new(opened: &Opened) -> Result<Self, DevicesError> {
        let mut host = Self {
            edus: Vec::new(),
            disk: None,
            memory: HostMemory::new(BYTES, Backing::Anonymous, Base::Host)?,
            taken: AtomicU64::new(0),
            complaints: Mutex::default(),
        };
        for device in &opened.devices {
            match id(device)? {
                edu::ID => {
                    let engine = Engine::new(device.bar(0)?, |_| std::thread::sleep(TICK));
                    host.load(opened, device, &engine)?;
                    host.edus.push((device.stream(), engine));
                }
                nvme::ID if host.disk.is_none() => {
                    let bar = device.bar(0)?;
                    host.disk = Some(HostNvmeDisk::new(bar, device.stream(), host.memory.clone()));
                }
                (vendor, number) => {
                    return Err(DevicesError::Unknown {
                        function: device.name(),
                        vendor,
                        device: number,
                    });
                }
            }
        }
        if host.edus.is_empty() { Err(DevicesError::NoEdu) } else { Ok(host) }
    }

    /// Lets an edu read its table, and tries if it writes at the addresses that scenarios map.
    fn load(
        &self,
        opened: &Opened,
        device: &VfioDevice,
        engine: &Engine<Bar>,
    ) -> Result<(), DevicesError> {
        let function = device.name();
        let failed = |why: String| DevicesError::Edu { function, why };
        let said = |error: &dyn std::fmt::Display| failed(error.to_string());
        let (domain, table) = (opened.unit.domain(), self.memory(PAGE));
        let attached = opened.unit.attach(device.stream(), &domain);
        attached.map_err(|error| said(&error))?;
        let (mut owed, both) = (Gather::new(), Access::READ_WRITE);
        let mapped = domain.map(HIGH_BASE, promised(table, PAGE), both, &mut owed);
        let range: IovaRange = mapped.map_err(|error| said(&error))?;
        let fill = |at, word| self.poke(PhysAddr::new(table.get() + at), word);
        let loaded = engine.load(HIGH_BASE, fill);
        loaded.map_err(|error| said(&error))?;
        let (value, at) = (0x0123_4567, HIGH_BASE.get() + TABLE_BYTES);
        let written = engine.write32(Iova::new(at), value);
        written.map_err(|error| said(&error))?;
        let found = self.peek(PhysAddr::new(table.get() + TABLE_BYTES));
        if found != value {
            let cut = "QEMU cuts its addresses unless started with `-device edu,dma_mask=0xffffffffffffffff`";
            return Err(failed(format!("{found:#x} at {at:#x}, not {value:#x}; {cut}")));
        }
        let unmapped = domain.unmap(range, &mut owed);
        unmapped.map_err(|error| said(&error))?;
        domain.sync(&mut owed).map_err(|error| said(&error))?;
        let blocked = opened.unit.block(device.stream());
        blocked.map_err(|error| said(&error))
    }

    pub(super) fn second(&self) -> Has {
        match self.edus.len() {
            1 => Has::No("one edu was named, and this takes two"),
            _ => Has::Yes,
        }
    }
}

impl Host for ProcessHost {
    fn devices(&self) -> [StreamId; 2] {
        [0, 1].map(|n| self.edus.get(n).map_or(NOBODY, |(stream, _)| *stream))
    }

    fn device_write(&self, device: StreamId, iova: Iova, value: u32) {
        let mut edus = self.edus.iter();
        let engine = edus.find(|(stream, _)| *stream == device);
        if let Some(Err(error)) = engine.map(|(_, engine)| engine.write32(iova, value)) {
            let mut complaints = self.complaints.lock();
            let complaints = complaints.as_mut().map_err(|_| ());
            let _ = complaints.map(|all| all.push(format!("edu {device:?}: {error}")));
        }
    }

    fn with_disk(&self, work: &mut dyn FnMut(Option<&dyn Disk>)) {
        work(self.disk.as_ref().map(|disk| disk as &dyn Disk));
    }

    fn complaints(&self) -> Vec<String> {
        let complaints = self.complaints.lock();
        complaints.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn device_read(&self, _: StreamId, _: Iova) -> Option<u32> {
        None
    }

    fn memory(&self, bytes: u64) -> PhysAddr {
        let (start, size) = (self.memory.range().start().get(), bytes.next_power_of_two());
        let size = size.max(PAGE);
        let place = |taken: u64| (start + taken).next_multiple_of(size) - start;
        let next = |taken| Some(place(taken) + size).filter(|taken| *taken <= BYTES);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        // Nothing is at 0, which the scenario sees.
        taken.map_or(PhysAddr::new(0), |taken| PhysAddr::new(start + place(taken)))
    }

    fn peek(&self, pa: PhysAddr) -> u32 {
        let word = self.memory.words32(pa, 1);
        word.map_or(u32::MAX, |words| words[0].load(Ordering::Acquire))
    }

    fn poke(&self, pa: PhysAddr, value: u32) {
        let word = self.memory.words32(pa, 1);
        let _ = word.map(|words| words[0].store(value, Ordering::Release));
    }

    fn witnessed(&self) -> Option<BTreeMap<String, u64>> {
        None
    }
}
