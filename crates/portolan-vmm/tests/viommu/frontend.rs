//! A vhost-user device behind the virtio-iommu: its back-end reaches what the guest was granted, and nothing that was
//! unmapped.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan_chips::fixture::seed;
use portolan_spec::virtio::Request;
use portolan_vmm::frontend::{BackendChannel, VhostFrontend};
use portolan_vmm::viommu::{Grant, Listener, Mapping, MemoryKind, Reset};
use portolan_vmm::{FrontendAddr, IotlbOptions, MemoryRegion, Message, Replacement, VhostIotlb};
use vm_memory::iommu::{Iommu, IommuMemory};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, Permissions};

use crate::passed::{DEVERR, FIRST, Machine, OK, PAGE, SECOND, attach, map, random, unmap};
use crate::range;

/// The guest's memory, in two regions that the front-end has apart.
const REGIONS: [(u64, u64, u64); 2] =
    [(0, 0x7f00_0000_0000, 32 * PAGE), (32 * PAGE, 0x7e00_0000_0000, 96 * PAGE)];
const ADDRESSES: u64 = 32 * PAGE;

type Frontend = VhostFrontend<UnixStream>;

/// A back-end with an IOTLB that forgets nothing of itself, and its front-end.
struct Vhost {
    frontend: Arc<Frontend>,
    memory: IommuMemory<GuestMemoryMmap, VhostIotlb>,
    /// Ends of both sockets, by which the test cuts them.
    sockets: [UnixStream; 2],
    threads: Vec<JoinHandle<()>>,
}

impl Vhost {
    /// Its back-end waits for guards as long as `limit`.
    fn new(limit: Duration) -> Self {
        let mut options = IotlbOptions::default();
        options.replacement = Replacement::WhenFull;
        options.invalidation_limit = limit;
        let ranges = REGIONS.map(|(guest, _, bytes)| (GuestAddress(guest), bytes as usize));
        let guest = GuestMemoryMmap::from_ranges(&ranges).unwrap();
        let memory = IommuMemory::new(guest, VhostIotlb::new(options), true, ());
        let iotlb = Arc::clone(memory.iommu());
        let regions = REGIONS.map(|(guest, frontend, bytes)| MemoryRegion {
            guest: PhysAddr::new(guest),
            frontend: FrontendAddr::new(frontend),
            bytes,
        });
        iotlb.set_memory(&regions).unwrap();
        let (front, back) = UnixStream::pair().unwrap();
        let (questions, asked) = UnixStream::pair().unwrap();
        iotlb.connect(asked).unwrap();
        let sockets = [front.try_clone().unwrap(), questions.try_clone().unwrap()];
        let frontend = Arc::new(VhostFrontend::new(front));
        frontend.set_memory(&regions).unwrap();
        let served = Arc::clone(&frontend);
        let threads = vec![
            std::thread::spawn(move || drop(served.serve(&questions))),
            std::thread::spawn(move || carry_out(back, &iotlb)),
        ];
        Self { frontend, memory, sockets, threads }
    }

    fn cut(&self) {
        for socket in &self.sockets {
            socket.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        self.cut();
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// A back-end's loop: each message is acknowledged once it was carried out.
fn carry_out(mut stream: UnixStream, iotlb: &VhostIotlb) {
    let mut message = [0; 12 + Message::BYTES];
    while stream.read_exact(&mut message).is_ok() {
        assert_eq!(message[..12], [22, 1 | 1 << 3, 32].map(u32::to_le_bytes).concat());
        let failed = u64::from(iotlb.handle(&message[12..]).is_err());
        let header = [22_u32, 1 | 1 << 2, 8].map(u32::to_le_bytes).concat();
        // The front-end may have gone.
        let _ = stream.write_all(&[header, failed.to_le_bytes().to_vec()].concat());
    }
}

/// A machine whose first endpoint is a vhost-user device.
fn machine() -> (Machine, Vhost) {
    machine_waiting(Duration::from_secs(60))
}

fn machine_waiting(limit: Duration) -> (Machine, Vhost) {
    let (machine, vhost) = (Machine::new(), Vhost::new(limit));
    machine.device.remove_listener(FIRST).unwrap();
    machine.device.listen(FIRST, vhost.frontend.clone()).unwrap();
    (machine, vhost)
}

/// Where the back-end's access goes is where the guest said.
fn access(machine: &Machine, vhost: &Vhost, rng: &mut Rng) -> bool {
    let at = rng.u64(..ADDRESSES);
    let byte = rng.u8(1..);
    let wanted = machine.granted.find(FIRST.get(), at, 2).filter(|at| *at < 128 * PAGE);
    let written = vhost.memory.write_obj(byte, GuestAddress(at)).is_ok();
    assert_eq!(written, wanted.is_some(), "{at:#x}");
    if let Some(target) = wanted {
        let guest = vhost.memory.get_backend();
        assert_eq!(guest.read_obj::<u8>(GuestAddress(target)).unwrap(), byte, "{at:#x}");
        guest.write_obj(0_u8, GuestAddress(target)).unwrap();
    }
    written
}

#[test]
fn a_back_end_reaches_what_the_guest_was_granted() {
    let mut rng = Rng::with_seed(seed());
    let (mut machine, vhost) = machine();
    let mut written = 0;
    for _ in 0..20_000 {
        match rng.u32(..64) {
            0 => drop(machine.set_bypass(rng.u32(..4) == 0)),
            1 => {
                machine.device.reset(Reset::Device).unwrap();
                machine.granted.reset();
            }
            2..24 => drop(machine.send(random(&mut rng))),
            _ => written += u32::from(access(&machine, &vhost, &mut rng)),
        }
    }
    let counts = vhost.frontend.counts();
    assert!(written > 500, "{written}");
    assert!(
        counts.answered > 100 && counts.refused > 100 && counts.invalidated > 100,
        "{counts:?}"
    );
    assert_eq!(machine.device.listener_counts().failed, 0);
}

#[test]
fn a_mapping_across_two_regions_is_answered_by_the_region() {
    let (mut machine, vhost) = machine();
    machine.granted(attach_first());
    let request =
        Request::Map { domain: 1, start: 0, last: 4 * PAGE - 1, phys: 30 * PAGE, flags: 3 };
    assert_eq!(machine.send(request), OK);
    for page in 0..4 {
        vhost.memory.write_obj(page as u8, GuestAddress(page * PAGE)).unwrap();
        let found: u8 =
            vhost.memory.get_backend().read_obj(GuestAddress((30 + page) * PAGE)).unwrap();
        assert_eq!(found, page as u8);
    }
    assert_eq!(vhost.frontend.counts().answered, 2);
    // Beyond the back-end's memory.
    let request = Request::Map {
        domain: 1,
        start: 8 * PAGE,
        last: 10 * PAGE - 1,
        phys: 127 * PAGE,
        flags: 3,
    };
    assert_eq!(machine.send(request), OK);
    vhost.memory.write_obj(1_u8, GuestAddress(8 * PAGE)).unwrap();
    vhost.memory.write_obj(1_u8, GuestAddress(9 * PAGE)).unwrap_err();
}

fn attach_first() -> Request {
    attach(1, FIRST)
}

#[test]
fn an_unmap_fails_while_the_back_end_holds_a_translation() {
    let (mut machine, vhost) = machine_waiting(Duration::ZERO);
    machine.send(attach_first());
    machine.send(map(1, 0, 3));
    let held = vhost.memory.iommu().translate(GuestAddress(0), 8, Permissions::Read).unwrap();
    assert_eq!(machine.send(unmap(1, 0..=0)), DEVERR);
    drop(held);
    // Its acknowledgements are not trusted any more.
    assert_eq!(machine.send(unmap(1, 0..=0)), DEVERR);
}

#[test]
fn a_back_end_that_goes_between_map_and_answer_is_left() {
    let (mut machine, vhost) = machine();
    machine.send(attach_first());
    machine.send(attach(1, SECOND));
    machine.send(map(1, 0, 3));
    vhost.cut();
    // The other device's container is told first or last; either way it has the mapping afterwards.
    assert_eq!(machine.send(unmap(1, 0..=0)), DEVERR);
    assert_eq!(machine.containers[1].grants().1.len(), 1);
    let counts = machine.device.listener_counts();
    assert_eq!((counts.failed, counts.not_undone), (1, 0));
    assert!(machine.device.remove_listener(FIRST).is_err());
    assert_eq!(machine.send(unmap(1, 0..=0)), OK);
    assert_eq!(machine.containers[1].grants().1.len(), 0);
}

#[test]
fn misses_that_make_no_sense_are_refused() {
    let (mut machine, vhost) = machine();
    machine.send(attach_first());
    let mut rng = Rng::with_seed(seed());
    for _ in 0..2_000 {
        let bytes = rng.choice([0, 31, 32, 32, 32, 33]).unwrap();
        let payload: Vec<u8> = (0..bytes).map(|_| rng.u8(..6)).collect();
        assert!(vhost.frontend.miss(&payload).is_err(), "{payload:?}");
    }
    assert_eq!(vhost.frontend.counts().refused, 2_000);
    // On the channel: other messages, huge ones, and cut ones.
    for (message, replied) in [
        ([1, 1 | 1 << 3, 32].map(u32::to_le_bytes).concat(), true),
        ([9, 1 | 1 << 3, 32].map(u32::to_le_bytes).concat(), true),
        ([1, 1 | 1 << 3, u32::MAX].map(u32::to_le_bytes).concat(), false),
        ([1, 2, 32].map(u32::to_le_bytes).concat(), false),
        (vec![1, 0, 0], false),
    ] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let frontend = Arc::clone(&vhost.frontend);
        let serving = std::thread::spawn(move || frontend.serve(&ours).is_ok());
        theirs.write_all(&message).unwrap();
        let _ = theirs.write_all(&[0; 32]);
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        // What was not read resets the connection.
        let _ = theirs.read_to_end(&mut reply);
        assert_eq!(reply.get(12), replied.then_some(&1), "{message:?}");
        assert_eq!(serving.join().unwrap(), replied, "{message:?}");
    }
}

/// A back-end that must not get a translation while there is no mapping, and that takes its time for one
/// invalidation.
#[derive(Clone, Debug, Default)]
struct Strict {
    mapped: Arc<AtomicBool>,
    wrong: Arc<AtomicUsize>,
    /// Taken for the invalidation of [`SLOW`], which is noted before.
    gate: Arc<Mutex<()>>,
    waiting: Arc<AtomicBool>,
    passed: Arc<AtomicBool>,
    /// Set if invalidations fail.
    failing: Arc<AtomicBool>,
    invalidated: Arc<Mutex<Vec<IovaRange>>>,
}

/// First address of the page whose invalidation takes long.
const SLOW: u64 = 7 * PAGE;

impl BackendChannel for Strict {
    fn send(&mut self, payload: &[u8; Message::BYTES]) -> io::Result<()> {
        match Message::read(payload).unwrap() {
            Message::Update { .. } if self.mapped.load(SeqCst) => {}
            Message::Update { .. } => drop(self.wrong.fetch_add(1, SeqCst)),
            Message::Invalidate { .. } if self.failing.load(SeqCst) => {
                return Err(io::Error::other("it was asked to"));
            }
            Message::Invalidate { iova } => {
                self.invalidated.lock().unwrap().push(iova);
                if iova.start().get() == SLOW {
                    self.waiting.store(true, SeqCst);
                    drop(self.gate.lock().unwrap());
                    self.passed.store(true, SeqCst);
                }
            }
        }
        Ok(())
    }
}

fn strict() -> (Strict, VhostFrontend<Strict>) {
    let channel = Strict::default();
    let frontend = VhostFrontend::new(channel.clone());
    let (guest, frontend_addr) = (PhysAddr::new(0), FrontendAddr::new(0));
    let region = MemoryRegion { guest, frontend: frontend_addr, bytes: 128 * PAGE };
    frontend.set_memory(&[region]).unwrap();
    (channel, frontend)
}

fn page(start: u64) -> Grant {
    Grant::Mapping(Mapping {
        iova: range(start, start + PAGE - 1),
        target: PhysAddr::new(start),
        access: Permissions::Read,
        kind: MemoryKind::Ram,
    })
}

#[test]
fn a_miss_is_never_answered_with_what_was_unmapped() {
    let (channel, frontend) = strict();
    for _ in 0..300 {
        channel.mapped.store(true, SeqCst);
        channel.waiting.store(false, SeqCst);
        channel.passed.store(false, SeqCst);
        frontend.map(&page(0)).unwrap();
        frontend.map(&page(SLOW)).unwrap();
        let gate = channel.gate.lock().unwrap();
        let asking = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| frontend.unmap(&page(SLOW)).unwrap());
            wait_for(&channel.waiting);
            scope.spawn(|| {
                asking.store(true, SeqCst);
                // It may be refused.
                let _ = frontend.miss(&Message::miss(Iova::new(0), Permissions::Read));
            });
            wait_for(&asking);
            // The miss is looked at meanwhile, if nothing keeps it from that.
            (0..50).for_each(|_| std::thread::yield_now());
            drop(gate);
            // Before the other thread is awake.
            wait_for(&channel.passed);
            frontend.unmap(&page(0)).unwrap();
            channel.mapped.store(false, SeqCst);
        });
    }
    assert_eq!(channel.wrong.load(SeqCst), 0);
}

fn wait_for(flag: &AtomicBool) {
    while !flag.load(SeqCst) {
        std::thread::yield_now();
    }
}

#[test]
fn the_end_of_bypass_invalidates_all_addresses() {
    let (channel, frontend) = strict();
    frontend.map(&Grant::PassThrough).unwrap();
    frontend.unmap(&Grant::PassThrough).unwrap();
    let sent = channel.invalidated.lock().unwrap();
    let middle = u64::MAX >> 1;
    assert_eq!(*sent, [range(0, middle), range(middle + 1, u64::MAX)]);
}

#[test]
fn an_invalidation_that_fails_leaves_the_mapping() {
    let (channel, frontend) = strict();
    channel.mapped.store(true, SeqCst);
    frontend.map(&page(0)).unwrap();
    channel.failing.store(true, SeqCst);
    frontend.unmap(&page(0)).unwrap_err();
    let miss = Message::miss(Iova::new(0), Permissions::Read);
    frontend.miss(&miss).unwrap();
    channel.failing.store(false, SeqCst);
    frontend.unmap(&page(0)).unwrap();
    frontend.miss(&miss).unwrap_err();
}
