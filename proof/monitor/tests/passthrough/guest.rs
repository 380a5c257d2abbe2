//! The guest: a driver of the virtio-iommu, its queues in the machine's memory, and their transport by exits.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ptr::NonNull;

use portolan_hw::virtio::{Config, Viommu, VirtioDomain};
use portolan_linux::memory::Process;
use portolan_monitor::wire::{Exit, SavedQueue};
use portolan_virtio::ViommuQueues;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr, Result};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::host::{Host, RAM, Shared};

pub const PAGE: u64 = 4096;
/// Pages of queues and requests, at the end of memory; those before are of buffers.
const KERNEL: u64 = 64;
pub const BUFFERS: u64 = RAM as u64 / PAGE - KERNEL;

type Queues = ViommuQueues<Process, Kernel, Vcpu>;
pub type Driver = Viommu<Queues, Process>;
pub type Space = VirtioDomain<Queues, Process>;

thread_local! {
    /// Memory of the guest that this thread is, and its pages that are free.
    static MEMORY: RefCell<Option<(GuestMemoryMmap, Vec<u64>)>> = const { RefCell::new(None) };
}

/// Memory for queues and requests, which are copied there.
pub struct Kernel;

impl Kernel {
    fn with<X>(go: impl FnOnce(&GuestMemoryMmap, &mut Vec<u64>) -> X) -> X {
        MEMORY.with_borrow_mut(|memory| {
            let (memory, free) = memory.as_mut().expect("a machine");
            go(memory, free)
        })
    }
}

// SAFETY: each page is handed out once, and is mapped until the thread ends, which ends its machine before.
unsafe impl Hal for Kernel {
    fn dma_alloc(pages: usize, _direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        Self::with(|memory, free| {
            // From the top down: those that were freed come last.
            let all: Vec<_> = free.drain(..pages).collect();
            assert!(all.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{all:?}");
            let at = GuestAddress(all[0] * PAGE);
            memory.write_slice(&vec![0; pages * PAGE as usize], at).unwrap();
            (at.0, NonNull::new(memory.get_host_address(at).unwrap()).unwrap())
        })
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        // A queue's pages are left: the machine ends soon.
        0
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        unreachable!("registers are exits")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _direction: BufferDirection) -> PhysAddr {
        assert!(buffer.len() <= PAGE as usize);
        // SAFETY: the caller's promise.
        let bytes = unsafe { buffer.as_ref() };
        Self::with(|memory, free| {
            let at = free.pop().expect("a free page") * PAGE;
            memory.write_slice(bytes, GuestAddress(at)).unwrap();
            at
        })
    }

    unsafe fn unshare(at: PhysAddr, mut buffer: NonNull<[u8]>, direction: BufferDirection) {
        Self::with(|memory, free| {
            if direction != BufferDirection::DriverToDevice {
                // SAFETY: the caller's promise.
                let bytes = unsafe { buffer.as_mut() };
                memory.read_slice(bytes, GuestAddress(at)).unwrap();
            }
            free.push(at / PAGE);
        });
    }
}

/// The guest's only CPU.
#[derive(Clone)]
pub struct Vcpu {
    host: Shared,
    status: DeviceStatus,
}

impl Vcpu {
    fn with<X>(&self, go: impl FnOnce(&mut Host) -> X) -> X {
        go(&mut self.host.at())
    }
}

impl Transport for Vcpu {
    fn device_type(&self) -> DeviceType {
        DeviceType::IOMMU
    }

    fn read_device_features(&mut self) -> u64 {
        // Of the transport: version 1.
        self.with(|host| host.value(&Exit::Features)) | 1 << 32
    }

    fn write_driver_features(&mut self, _features: u64) {}

    fn max_queue_size(&mut self, _queue: u16) -> u32 {
        64
    }

    fn notify(&mut self, queue: u16) {
        if queue == 0 {
            self.with(|host| host.does(&Exit::Notify));
        }
    }

    fn get_status(&self) -> DeviceStatus {
        self.status
    }

    fn set_status(&mut self, status: DeviceStatus) {
        if status.is_empty() {
            self.with(|host| host.does(&Exit::Reset { machine: false }));
        }
        self.status = status;
    }

    fn set_guest_page_size(&mut self, _bytes: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(&mut self, queue: u16, size: u32, descriptors: u64, available: u64, used: u64) {
        if queue == 0 {
            let size = size as u16;
            let queue = SavedQueue { size, descriptors, available, used, ..Default::default() };
            self.with(|host| host.does(&Exit::Queue(queue)));
        }
    }

    fn queue_unset(&mut self, _queue: u16) {}

    fn queue_used(&mut self, _queue: u16) -> bool {
        false
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        0
    }

    fn read_config_space<V: FromBytes + IntoBytes>(&self, offset: usize) -> Result<V> {
        let bytes = size_of::<V>();
        let value = self.with(|host| host.value(&Exit::Config { offset, bytes }));
        Ok(V::read_from_bytes(&value.to_le_bytes()[..bytes]).expect("as long"))
    }

    fn write_config_space<V: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: V,
    ) -> Result<()> {
        for (at, value) in value.as_bytes().iter().enumerate() {
            self.with(|host| host.does(&Exit::SetConfig { offset: offset + at, value: *value }));
        }
        Ok(())
    }
}

/// A driver that starts on a machine, in place of the one before.
pub fn start(host: &Shared) -> Driver {
    let memory = host.at().memory.clone();
    let free = (BUFFERS..BUFFERS + KERNEL).collect();
    MEMORY.set(Some((memory, free)));
    let vcpu = Vcpu { host: host.clone(), status: DeviceStatus::empty() };
    let queues = ViommuQueues::start(Process, vcpu).unwrap();
    Viommu::start(queues, Process, Config::default()).unwrap()
}
