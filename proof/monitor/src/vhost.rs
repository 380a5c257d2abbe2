//! The virtio-iommu and its device for a machine of another monitor's: QEMU has the CPUs, the memory and the buses.
//!
//! The virtio-iommu is a vhost-user back-end, by the crate `vhost-user-backend`; the device is a vfio-user server that
//! stands before the device's own, and hands on all but the memory: that it maps as the guest maps it. Not supported:
//! memory of the machine that goes while it is mapped, and the event queue.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, RwLock};

use portolan_vmm::EndpointId;
use portolan_vmm::viommu::{Reset, ViommuOptions, VirtioIommu};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, Server, ServerBackend};
use vhost::vhost_user::{Listener, VhostUserProtocolFeatures};
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringRwLock, VringT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use crate::edu;
use crate::link::{Death, Part, Passed, Ram};
use crate::monitor::{ENTRIES, Failure, serve};

/// Features of the transport: virtio 1.0, and those of the protocol.
const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;

/// Sockets of a machine's parts.
pub struct Sockets<'p> {
    /// The virtio-iommu's, which the machine connects to.
    pub viommu: &'p str,
    /// The device's, which the machine connects to.
    pub device: &'p Path,
    /// That of the device's own process.
    pub behind: &'p Path,
}

/// Serves a machine until it ends. The device is `endpoint`.
///
/// # Errors
/// If the device is not there, or a socket cannot be.
pub fn run(sockets: &Sockets, endpoint: EndpointId) -> Result<(), Failure> {
    let (ram, viommu) = (Ram::default(), Arc::new(VirtioIommu::new(ViommuOptions::default())));
    let device = Passed::connect(sockets.behind, ram.clone(), Death::default())?;
    let device = Arc::new(device);
    viommu.add(endpoint, &[])?;
    viommu.listen(endpoint, device.clone())?;
    let server = Server::new(sockets.device, true, edu::interrupts(), edu::regions())?;
    let relay = std::thread::spawn(move || server.run(&mut Relay { device, ram }));
    let unit = Arc::new(RwLock::new(Unit { viommu: Arc::clone(&viommu), memory: None }));
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let said = |error: vhost_user_backend::Error| error.to_string();
    let mut daemon = VhostUserDaemon::new("viommu".to_owned(), unit, memory).map_err(said)?;
    let mut listener = Listener::new(sockets.viommu, true)?;
    edu::say("listening");
    daemon.start(&mut listener).map_err(said)?;
    // A machine that ends closes the connection.
    let _ = daemon.wait();
    relay.join().map_err(|_| "the device's thread has failed")??;
    let counts = viommu.listener_counts();
    edu::say(&format!("ended after {} calls, {} failed", counts.made, counts.failed));
    Ok(())
}

/// The device, as the machine sees it.
struct Relay {
    device: Arc<Passed>,
    ram: Ram,
}

impl ServerBackend for Relay {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.device.read_region(region, offset, data)
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        self.device.write_region(region, offset, data)
    }

    fn dma_map(
        &mut self,
        _flags: DmaMapFlags,
        offset: u64,
        at: u64,
        bytes: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        // What has no file is no memory that a device reaches.
        if let Some(file) = file {
            self.ram.add(Part { at, bytes, file: Arc::new(file), offset });
        }
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, at: u64, bytes: u64) -> io::Result<()> {
        match flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            true => self.ram.remove(0, u64::MAX),
            false => self.ram.remove(at, bytes),
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.device.reset()
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        self.device.set_irqs([flags, index, start, count], &files)
    }
}

/// The virtio-iommu.
struct Unit {
    viommu: Arc<VirtioIommu>,
    memory: Option<GuestMemoryAtomic<GuestMemoryMmap>>,
}

impl VhostUserBackendMut for Unit {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        2
    }

    fn max_queue_size(&self) -> usize {
        ENTRIES.into()
    }

    fn features(&self) -> u64 {
        self.viommu.features() | VERSION_1 | PROTOCOL
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn reset_device(&mut self) {
        // A listener that fails is counted.
        let _ = self.viommu.reset(Reset::Device);
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config = self.viommu.config();
        let part = config.iter().skip(offset as usize).take(size as usize);
        part.copied().collect()
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        for (at, value) in (offset as usize..).zip(bytes) {
            self.viommu.write_config(at, *value);
        }
        Ok(())
    }

    fn update_memory(&mut self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        self.memory = Some(memory);
        Ok(())
    }

    fn handle_event(
        &mut self,
        queue: u16,
        _events: EventSet,
        rings: &[VringRwLock],
        _thread: usize,
    ) -> io::Result<()> {
        let ring = rings.get(usize::from(queue)).filter(|_| queue == 0);
        let (Some(ring), Some(memory)) = (ring, &self.memory) else {
            return Ok(());
        };
        let mut state = ring.get_mut();
        let served = serve(&self.viommu, state.get_queue_mut(), &memory.memory());
        if served.map_err(|error| io::Error::other(error.to_string()))? != 0 {
            state.signal_used_queue()?;
        }
        Ok(())
    }
}
