//! `ViommuQueues` beside a device that looks at its rings as the specification says, or does not.
//!
//! Virtual I/O Device (VIRTIO) 1.2, section 5.13.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use portolan::addr::{PhysAddr, PhysRange, StreamId};
use portolan::dma::{Constraints, Device as Direct};
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, Nanos, Platform, SpinLock};
use portolan_hw::virtio::Transport as Wanted;
use portolan_spec::virtio::FAULT_BYTES;
use portolan_virtio::{AccessPlatform, Addresses, HalMemory, SpaceHal, ViommuQueues, VirtioMemory};
use virtio_drivers::Result;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::promised::all_memory;
use super::rings::{Rings, load, store};

/// A process as a machine: memory is where it is. Time goes on by a millisecond a look.
#[derive(Clone, Default)]
struct Process(Arc<AtomicU64>);

struct NoRegisters;

impl Mmio for NoRegisters {
    fn read32(&self, _offset: usize) -> u32 {
        u32::MAX
    }

    fn write32(&self, _offset: usize, _value: u32) {}
}

// SAFETY: memory is the allocator's, seen at its own address.
unsafe impl Platform for Process {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;
    type Registers = NoRegisters;

    fn now(&self) -> Nanos {
        Nanos::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        // SAFETY: no layout here is empty.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        (!at.is_null()).then(|| PhysAddr::new(at.expose_provenance() as u64))
    }

    unsafe fn free(&self, at: PhysAddr, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { std::alloc::dealloc(self.virt(at).as_ptr(), layout) }
    }

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        seen(at.get())
    }

    unsafe fn registers(&self, _window: PhysRange) -> Option<NoRegisters> {
        None
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}

fn seen(at: u64) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize)).expect("memory")
}

/// Behaviour of the device on requests.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Manner {
    /// The answer is the request, byte by byte and inverted.
    #[default]
    Answers,
    /// Nothing, for now.
    Silent,
    /// It returns a request that it was never given.
    Lies,
}

#[derive(Default)]
struct State {
    manner: Manner,
    features: u64,
    accepted: u64,
    status: DeviceStatus,
    /// Bits of its status that are always set, and that never are.
    stuck: DeviceStatus,
    refused: DeviceStatus,
    queues: [Rings; 2],
}

impl State {
    fn serve(&mut self) {
        let rings = &mut self.queues[0];
        while self.manner != Manner::Silent && rings.size != 0 {
            let Some((head, parts)) = rings.take(&seen) else {
                return;
            };
            let readable = parts.iter().filter(|part| !part.is_writable);
            let request = readable.flat_map(|part| part.addresses()).map(|at| load(&seen, at));
            let request: Vec<u8> = request.collect();
            let answer = parts[parts.len() - 1];
            for (at, byte) in answer.addresses().zip(request) {
                store(&seen, at, !byte);
            }
            match self.manner {
                Manner::Lies => rings.give(&seen, head ^ 5, answer.bytes),
                _ => rings.give(&seen, head, answer.bytes),
            }
        }
    }

    /// Records a fault, of which each byte is `byte`.
    fn fault(&mut self, byte: u8) {
        let (head, parts) = self.queues[1].take(&seen).expect("a buffer for a record");
        let record = parts[0];
        assert_eq!((record.bytes, record.is_writable), (FAULT_BYTES as u32, true));
        record.addresses().for_each(|at| store(&seen, at, byte));
        self.queues[1].give(&seen, head, record.bytes);
    }
}

struct Device(Arc<Mutex<State>>);

impl Transport for Device {
    fn device_type(&self) -> DeviceType {
        DeviceType::IOMMU
    }

    fn read_device_features(&mut self) -> u64 {
        self.0.lock().unwrap().features
    }

    fn write_driver_features(&mut self, features: u64) {
        self.0.lock().unwrap().accepted = features;
    }

    fn max_queue_size(&mut self, _queue: u16) -> u32 {
        64
    }

    fn notify(&mut self, queue: u16) {
        if queue == 0 {
            self.0.lock().unwrap().serve();
        }
    }

    fn get_status(&self) -> DeviceStatus {
        let state = self.0.lock().unwrap();
        (state.status | state.stuck) - state.refused
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.0.lock().unwrap().status = status;
    }

    fn set_guest_page_size(&mut self, _bytes: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(&mut self, queue: u16, size: u32, descriptors: u64, available: u64, used: u64) {
        self.0.lock().unwrap().queues[usize::from(queue)] =
            Rings { descriptors, available, used, size: size as u16, taken: 0 };
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
        let bytes = vec![offset as u8; size_of::<V>()];
        Ok(V::read_from_bytes(&bytes).expect("as long"))
    }

    fn write_config_space<V: IntoBytes + Immutable>(&mut self, _: usize, _: V) -> Result<()> {
        Ok(())
    }
}

/// The machine on which each test's thread is.
static PROCESS: Here = Here;

struct Here;

// SAFETY: memory is seen at its own address, and no registers are given out.
unsafe impl Addresses for Here {
    fn phys(&self, at: NonNull<u8>) -> Option<PhysAddr> {
        Some(PhysAddr::new(at.as_ptr().expose_provenance() as u64))
    }

    fn mmio(&self, _window: PhysRange) -> Option<NonNull<u8>> {
        None
    }
}

/// All virtio-iommus of the tests: what is shared with one is shared with all.
struct Viommus;

impl HalMemory for Viommus {
    type Platform = Process;

    fn memory() -> &'static VirtioMemory<Process> {
        static MEMORY: VirtioMemory<Process> = VirtioMemory::new(&PROCESS);
        &MEMORY
    }
}

type Queues = ViommuQueues<Process, SpaceHal<Viommus>, AccessPlatform<Device>>;

/// Starts the queues of a device that `prepare` has made up.
fn start(
    prepare: impl FnOnce(&mut State),
) -> (Arc<Mutex<State>>, std::result::Result<Queues, IommuError>) {
    let mut state = State::default();
    prepare(&mut state);
    let (process, state) = (Process::default(), Arc::new(Mutex::new(state)));
    let (stream, limits) = (StreamId::new(0), Constraints::trusted());
    let device = Direct::direct(process.clone(), stream, limits, all_memory()).unwrap();
    let transport = Viommus::memory().add(Arc::new(device), Device(state.clone())).unwrap();
    (state, Queues::start(process, transport))
}

#[test]
fn requests_are_answered_one_after_the_other() {
    let (state, queues) = start(|state| state.features = u64::MAX);
    let queues = queues.unwrap();
    for round in 0..100u8 {
        let mut answer = [0; 5];
        queues.request(&[round, 2, 3, 4, 5], &mut answer).unwrap();
        assert_eq!(answer, [!round, !2, !3, !4, !5]);
    }
    assert!(queues.all_returned());
    // Features that this driver does not know are not accepted, and those that it must have are.
    let accepted = state.lock().unwrap().accepted;
    assert_eq!((accepted >> 32, accepted >> 16 & 0xffff), (0b11, 0));
    assert_eq!(queues.features(), accepted);
    assert_eq!(queues.config64(6), Ok(0x0a0a_0a0a_0606_0606));
    let long = queues.request(&[0; 1025], &mut [0; 4]);
    assert_eq!(long, Err(IommuError::Unsupported));
}

#[test]
fn a_late_answer_is_not_taken_for_another_s() {
    let (state, queues) = start(|state| state.manner = Manner::Silent);
    let queues = queues.unwrap();
    let mut answer = [0; 2];
    let silent = queues.request(&[1, 1], &mut answer);
    assert!(matches!(silent, Err(IommuError::TimedOut { .. })));
    assert_eq!((answer, queues.all_returned()), ([0; 2], false));
    state.lock().unwrap().manner = Manner::Answers;
    // The device does both now, the old one first.
    queues.request(&[2, 2], &mut answer).unwrap();
    assert_eq!((answer, queues.all_returned()), ([!2; 2], true));
}

#[test]
fn a_device_that_returns_what_it_was_not_given_is_gone() {
    let (_, queues) = start(|state| state.manner = Manner::Lies);
    let queues = queues.unwrap();
    let lied = queues.request(&[1], &mut [0; 1]);
    assert_eq!(lied, Err(IommuError::Gone));
    assert!(!queues.all_returned());
}

#[test]
fn records_come_in_their_order_and_their_buffers_go_back() {
    let (state, queues) = start(|_| ());
    let queues = queues.unwrap();
    assert_eq!(queues.next_fault(), Ok(None));
    for round in 0..100u8 {
        state.lock().unwrap().fault(round);
        state.lock().unwrap().fault(!round);
        for byte in [round, !round] {
            let record = Some(([byte; FAULT_BYTES], FAULT_BYTES));
            assert_eq!(queues.next_fault(), Ok(record));
        }
    }
    assert_eq!(queues.next_fault(), Ok(None));
}

#[test]
fn a_device_that_does_not_reset_or_refuses_its_features_is_not_started() {
    let (_, queues) = start(|state| state.stuck = DeviceStatus::DRIVER_OK);
    assert!(matches!(queues.err(), Some(IommuError::TimedOut { .. })));
    let (_, queues) = start(|state| state.refused = DeviceStatus::FEATURES_OK);
    assert_eq!(queues.err(), Some(IommuError::Unsupported));
}
