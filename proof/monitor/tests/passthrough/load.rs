//! A load at random: maps, unmaps, attachments and transfers, while the monitor is killed, dies between map and answer
//! or moves, devices refuse or die, and everything is reset. Bytes are compared with a naive copy of memory.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use fastrand::Rng;
use portolan::addr::Iova;
use portolan::iommu::{Attach, Domain, Iommu};
use portolan::table::Access;
use portolan_chips::fixture::seed;
use portolan_monitor::edu;
use portolan_monitor::monitor::endpoint;
use portolan_monitor::wire::Exit;
use vm_memory::{Bytes, GuestAddress};

use crate::guest::{self, BUFFERS, Driver, PAGE, Space};
use crate::host::{DEVICES, Host, Shared};
use crate::{RW, map, stream, unmap};

const PAGES: u64 = 32;
const DOMAINS: usize = 3;
const EMPTY: [(); DEVICES] = [(); DEVICES];

/// Counts of what has happened.
#[derive(Debug, Default)]
struct Happened {
    copied: u32,
    refused: u32,
    done: u32,
    failed: u32,
    undone: u64,
    killed: u32,
    replaced: u32,
    reset: u32,
}

struct Load {
    rng: Rng,
    host: Shared,
    driver: Driver,
    domains: Vec<Arc<Space>>,
    /// Access of each page of a domain that was mapped; of those that the driver says are mapped, it holds.
    access: BTreeMap<(usize, u64), Access>,
    /// The domain of each device.
    places: [Option<usize>; DEVICES],
    copy: Vec<u8>,
    /// The devices' own memory.
    buffers: [Vec<u8>; DEVICES],
    happened: Happened,
}

impl Load {
    fn new(rng: Rng) -> Self {
        Self::on(rng, Shared::new())
    }

    /// A kernel that starts.
    fn on(rng: Rng, host: Shared) -> Self {
        let driver = guest::start(&host);
        let domains = (0..DOMAINS).map(|_| driver.domain().unwrap()).collect();
        Self {
            rng,
            host,
            driver,
            domains,
            access: BTreeMap::new(),
            places: [None; DEVICES],
            copy: vec![0; (BUFFERS * PAGE) as usize],
            buffers: EMPTY.map(|()| vec![0; edu::BUFFER_BYTES]),
            happened: Happened::default(),
        }
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        self.host.at()
    }

    /// One request of the guest's, or a few.
    fn request(&mut self) {
        let rng = &mut self.rng;
        let (which, device) = (rng.usize(..DOMAINS), rng.usize(..DEVICES));
        let (page, pages) = (rng.u64(..PAGES), rng.u64(1..5));
        let domain = &self.domains[which];
        let done = match rng.u32(..8) {
            0..4 => {
                let access = rng.choice([Access::READ, Access::WRITE, RW, RW, RW]).unwrap();
                let to = rng.u64(..BUFFERS - pages);
                let done = map(domain, page, to, pages, access);
                if done.is_ok() {
                    let all = (page..page + pages).map(|page| ((which, page), access));
                    self.access.extend(all);
                }
                done.is_ok()
            }
            4 | 5 => unmap(domain, page, pages).is_ok(),
            _ if rng.u32(..4) != 0 => self.driver.attach(stream(device), domain).is_ok(),
            _ => self.driver.block(stream(device)).is_ok(),
        };
        let count = if done { &mut self.happened.done } else { &mut self.happened.failed };
        *count += 1;
        self.look();
    }

    /// Has the monitor tell where the devices are, and counts what they have.
    fn look(&mut self) {
        let saved = self.host().save().viommu;
        for device in 0..DEVICES {
            let id = endpoint(device).get();
            let of = saved.domains.iter().find(|of| of.endpoints.contains(&id));
            let number = of.map(|of| of.domain);
            let mut domains = self.domains.iter();
            self.places[device] =
                number.and_then(|of| domains.position(|domain| domain.number() == of));
            let mappings = of.and_then(|of| of.mappings.as_ref()).map_or(0, Vec::len);
            assert_eq!(self.host().read(device, edu::MAPPINGS), mappings as u64);
        }
        assert_eq!(self.host().counts().not_undone, 0);
    }

    /// Place in memory that an access of a device leads to.
    fn find(&self, device: usize, at: u64, wanted: Access) -> Option<usize> {
        let which = self.places[device]?;
        let found = self.domains[which].translate(Iova::new(at))?;
        let access = self.access[&(which, at / PAGE)];
        access.contains(wanted).then_some(found.pa.get() as usize)
    }

    /// A copy by a device, of which each half may be refused.
    fn transfer(&mut self) {
        let rng = &mut self.rng;
        let (device, bytes) = (rng.usize(..DEVICES), rng.u64(1..PAGE));
        // Mostly where something was mapped.
        let mapped: Vec<_> =
            self.access.keys().filter(|at| Some(at.0) == self.places[device]).collect();
        let [from, to] =
            [(); 2].map(|()| match rng.choice(&mapped).filter(|_| rng.u32(..8) != 0) {
                Some((_, page)) => page * PAGE + rng.u64(..PAGE),
                None => rng.u64(..PAGES * PAGE),
            });
        let find = |start: u64, access| -> Option<Vec<usize>> {
            (start..start + bytes).map(|at| self.find(device, at, access)).collect()
        };
        let (sources, targets) = (find(from, Access::READ), find(to, Access::WRITE));
        let refused = self.host().copy(device, from, to, bytes);
        assert_eq!(refused, [sources.is_none(), targets.is_none()], "{from:#x} to {to:#x}");
        for (inside, at) in sources.iter().flatten().enumerate() {
            self.buffers[device][inside] = self.copy[*at];
        }
        for (inside, at) in targets.iter().flatten().enumerate() {
            self.copy[*at] = self.buffers[device][inside];
        }
        let is_whole = sources.is_some() && targets.is_some();
        let count = if is_whole { &mut self.happened.copied } else { &mut self.happened.refused };
        *count += 1;
    }

    /// Bytes that the guest writes.
    fn fill(&mut self) {
        let at = self.rng.usize(..self.copy.len() - 64);
        let bytes: Vec<_> = (0..64).map(|_| self.rng.u8(..)).collect();
        self.copy[at..at + 64].copy_from_slice(&bytes);
        self.host().memory.write_slice(&bytes, GuestAddress(at as u64)).unwrap();
    }

    fn compare(&self) {
        let mut found = vec![0; self.copy.len()];
        self.host().memory.read_slice(&mut found, GuestAddress(0)).unwrap();
        assert!(found == self.copy, "the guest's memory");
    }

    /// The monitor is killed and comes back; each device has let go all that it had.
    fn kill_monitor(&mut self) {
        let mut host = self.host();
        let had = [0, 1].map(|device| host.read(device, edu::MAPPINGS));
        host.save();
        host.revive();
        assert_eq!(host.left, had);
        drop(host);
        self.buffers.iter_mut().for_each(|buffer| buffer.fill(0));
        self.happened.killed += 1;
    }

    /// The monitor dies in the middle of a request, or not if the request is short; its successor answers it.
    fn die(&mut self) {
        let messages = self.rng.u32(1..4);
        let before = self.host().deaths;
        self.host().doom(messages);
        self.request();
        if self.host().deaths == before {
            self.host().doom(0);
        } else {
            self.buffers.iter_mut().for_each(|buffer| buffer.fill(0));
        }
        self.look();
    }

    /// A device refuses one of the next messages about mappings.
    fn refuse(&mut self) {
        let (device, messages) = (self.rng.usize(..DEVICES), self.rng.u64(1..4));
        let before = self.host().counts();
        self.host().write(device, edu::REFUSE, messages);
        self.request();
        self.host().write(device, edu::REFUSE, 0);
        let after = self.host().counts();
        self.happened.undone += after.undone - before.undone;
    }

    fn replace(&mut self) {
        let device = self.rng.usize(..DEVICES);
        self.host().kill_device(device);
        self.host().replace_device(device);
        self.buffers[device].fill(0);
        self.happened.replaced += 1;
    }

    /// Everything starts again, the kernel too; memory stays as it is.
    fn reset(self) -> Self {
        self.host().does(&Exit::Reset { machine: true });
        let Self { rng, host, driver, domains, copy, mut happened, .. } = self;
        for device in 0..DEVICES {
            assert_eq!(host.at().read(device, edu::MAPPINGS), 0);
        }
        // The kernel before had no time to take anything back.
        std::mem::forget((driver, domains));
        happened.reset += 1;
        Self { copy, happened, ..Self::on(rng, host) }
    }
}

#[test]
fn at_random_devices_reach_what_the_guest_has_mapped() {
    let mut load = Load::new(Rng::with_seed(seed()));
    for _ in 0..10_000 {
        match load.rng.u32(..400) {
            0..4 => load.kill_monitor(),
            4..16 => load.die(),
            16..36 => load.refuse(),
            36..39 => load.replace(),
            39 => load = load.reset(),
            40..160 => load.request(),
            160..260 => load.fill(),
            _ => load.transfer(),
        }
        if load.rng.u32(..64) == 0 {
            load.compare();
        }
    }
    load.compare();
    let deaths = load.host().deaths;
    println!("{:?}, {deaths} deaths", load.happened);
    let Happened { copied, refused, done, failed, undone, killed, replaced, reset } = load.happened;
    assert!(copied > 200 && refused > 200 && done > 200 && failed > 100);
    assert!(undone > 5 && deaths > 10 && killed > 20 && replaced > 10 && reset > 5);
}
