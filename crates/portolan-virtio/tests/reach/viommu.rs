//! `ViommuQueues` beside a device that looks at its rings as the specification says, or does not.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 2.7 (split virtqueues) and 5.13.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use portolan::addr::{PhysAddr, PhysRange};
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, Nanos, Platform, SpinLock};
use portolan_hw::virtio::Transport as Wanted;
use portolan_spec::virtio::FAULT_BYTES;
use portolan_virtio::{Addresses, SlotHal, ViommuQueues};
use virtio_drivers::Result;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use zerocopy::{FromBytes, Immutable, IntoBytes};

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

// SAFETY: as above.
unsafe impl Addresses for Process {
    fn phys(&self, at: NonNull<u8>) -> Option<PhysAddr> {
        Some(PhysAddr::new(at.as_ptr().expose_provenance() as u64))
    }

    fn mmio(&self, _window: PhysRange) -> Option<NonNull<u8>> {
        None
    }
}

fn seen(at: u64) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize)).expect("memory")
}

fn load<T: FromBytes>(at: u64) -> T {
    // SAFETY: the driver's rings and buffers are there as long as the device has them.
    unsafe { seen(at).cast::<T>().as_ptr().read_volatile() }
}

fn store<T>(at: u64, value: T) {
    // SAFETY: as above.
    unsafe { seen(at).cast::<T>().as_ptr().write_volatile(value) }
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

/// Addresses of the rings of a queue, and the number of requests that the device has taken.
#[derive(Clone, Copy, Default)]
struct Rings {
    descriptors: u64,
    available: u64,
    used: u64,
    size: u16,
    taken: u16,
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

/// A part of a chain: address, length and flags.
type Part = (u64, u32, u16);

impl Rings {
    /// The next chain that the driver offers: its head and its parts.
    fn take(&mut self) -> Option<(u16, Vec<Part>)> {
        if load::<u16>(self.available + 2) == self.taken {
            return None;
        }
        let place = u64::from(self.taken % self.size);
        self.taken = self.taken.wrapping_add(1);
        let head: u16 = load(self.available + 4 + 2 * place);
        let (mut parts, mut at) = (Vec::new(), head);
        loop {
            let descriptor = self.descriptors + 16 * u64::from(at);
            let flags: u16 = load(descriptor + 12);
            parts.push((load(descriptor), load(descriptor + 8), flags));
            if flags & 1 == 0 {
                return Some((head, parts));
            }
            at = load(descriptor + 14);
        }
    }

    fn give(&self, head: u16, bytes: u32) {
        let index: u16 = load(self.used + 2);
        let entry = self.used + 4 + 8 * u64::from(index % self.size);
        store(entry, u32::from(head));
        store(entry + 4, bytes);
        store(self.used + 2, index.wrapping_add(1));
    }
}

impl State {
    fn serve(&mut self) {
        let rings = &mut self.queues[0];
        while self.manner != Manner::Silent && rings.size != 0 {
            let Some((head, parts)) = rings.take() else {
                return;
            };
            let readable = parts.iter().filter(|(_, _, flags)| flags & 2 == 0);
            let request =
                readable.flat_map(|(at, bytes, _)| (*at..*at + u64::from(*bytes)).map(load));
            let request: Vec<u8> = request.collect();
            let (answer, bytes, _) = parts[parts.len() - 1];
            for (at, byte) in (answer..answer + u64::from(bytes)).zip(request) {
                store(at, !byte);
            }
            match self.manner {
                Manner::Lies => rings.give(head ^ 5, bytes),
                _ => rings.give(head, bytes),
            }
        }
    }

    /// Records a fault, of which each byte is `byte`.
    fn fault(&mut self, byte: u8) {
        let (head, parts) = self.queues[1].take().expect("a buffer for a record");
        let (at, bytes, flags) = parts[0];
        assert_eq!((bytes, flags & 2), (FAULT_BYTES as u32, 2));
        (at..at + u64::from(bytes)).for_each(|at| store(at, byte));
        self.queues[1].give(head, bytes);
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

type Queues<const N: usize> = ViommuQueues<Process, SlotHal<N>, Device>;

/// Starts the queues of a device that `prepare` has made up.
fn start<const N: usize>(
    prepare: impl FnOnce(&mut State),
) -> (Arc<Mutex<State>>, std::result::Result<Queues<N>, IommuError>) {
    let mut state = State::default();
    prepare(&mut state);
    let (process, state) = (Process::default(), Arc::new(Mutex::new(state)));
    SlotHal::<N>::bind_untranslated(process.clone(), Arc::new(process.clone())).unwrap();
    let queues = Queues::start(process, Device(state.clone()));
    (state, queues)
}

#[test]
fn requests_are_answered_one_after_the_other() {
    let (state, queues) = start::<8>(|state| state.features = u64::MAX);
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
    let (state, queues) = start::<9>(|state| state.manner = Manner::Silent);
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
    let (_, queues) = start::<10>(|state| state.manner = Manner::Lies);
    let queues = queues.unwrap();
    let lied = queues.request(&[1], &mut [0; 1]);
    assert_eq!(lied, Err(IommuError::Gone));
    assert!(!queues.all_returned());
}

#[test]
fn records_come_in_their_order_and_their_buffers_go_back() {
    let (state, queues) = start::<11>(|_| ());
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
    let (_, queues) = start::<12>(|state| state.stuck = DeviceStatus::DRIVER_OK);
    assert!(matches!(queues.err(), Some(IommuError::TimedOut { .. })));
    let (_, queues) = start::<13>(|state| state.refused = DeviceStatus::FEATURES_OK);
    assert_eq!(queues.err(), Some(IommuError::Unsupported));
}
