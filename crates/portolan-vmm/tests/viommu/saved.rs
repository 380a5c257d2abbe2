//! States that are saved and restored: in the middle of a load, cut, of another version, hostile, refused.

use std::time::Duration;

use fastrand::Rng;
use portolan_chips::fixture::seed;
use portolan_spec::virtio::Request;
use portolan_vmm::viommu::{RestoreError, SavedDomain, SavedMapping, SavedViommu, ViommuOptions};
use vm_memory::iommu::IommuMemory;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::passed::{FIRST, Machine, OK, PAGE, SECOND, attach, map, random};

/// Bytes of the guest's memory: all that [`random`] maps.
const MEMORY: usize = 128 * PAGE as usize;

fn text(saved: &SavedViommu) -> String {
    serde_json::to_string(saved).unwrap()
}

/// A machine in the state that another one's device has, by way of a text.
fn moved(from: &Machine) -> Machine {
    let saved: SavedViommu = serde_json::from_str(&text(&from.device.save())).unwrap();
    let mut to = Machine::new();
    to.device.restore(&saved).unwrap();
    assert_eq!(to.device.save(), saved);
    to.granted = from.granted.clone();
    to.check();
    to
}

/// Writes of both devices, by look-ups and past them, into the guest's memory and into a naive copy.
struct Load {
    guest: GuestMemoryMmap,
    copy: Vec<u8>,
}

impl Load {
    fn write(&mut self, machine: &Machine, rng: &mut Rng) -> bool {
        let (at, byte) = (rng.u64(..32 * PAGE), rng.u8(..));
        let number = rng.usize(..2);
        let endpoint = &machine.endpoints[number];
        let wanted = machine.granted.find(endpoint.id().get(), at, 2);
        // The device of the second endpoint is passed through.
        let written = match number {
            0 => {
                let memory = IommuMemory::new(self.guest.clone(), endpoint.clone(), true, ());
                memory.write_obj(byte, GuestAddress(at)).is_ok()
            }
            _ => {
                let target = machine.containers[1].reach(at, 2);
                let done = target.map(|at| self.guest.write_obj(byte, GuestAddress(at)).unwrap());
                done.is_some()
            }
        };
        assert_eq!(written, wanted.is_some(), "endpoint {}: {at:#x}", endpoint.id().get());
        if let Some(at) = wanted {
            self.copy[at as usize] = byte;
        }
        written
    }
}

#[test]
fn a_load_goes_on_after_its_device_was_restored() {
    let mut rng = Rng::with_seed(seed());
    let guest = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let mut load = Load { guest, copy: vec![0; MEMORY] };
    let (mut machine, mut written, mut moves) = (Machine::new(), 0, 0);
    for _ in 0..20_000 {
        match rng.u32(..64) {
            0 => {
                machine = moved(&machine);
                moves += 1;
            }
            1 => drop(machine.set_bypass(rng.bool())),
            2..24 => drop(machine.send(random(&mut rng))),
            _ => written += u32::from(load.write(&machine, &mut rng)),
        }
    }
    assert!(written > 1_000 && moves > 100, "{written} written, {moves} moves");
    let mut found = vec![0; MEMORY];
    load.guest.read_slice(&mut found, GuestAddress(0)).unwrap();
    assert!(found == load.copy, "the guest's memory");
}

#[test]
fn faults_that_were_not_read_are_read_afterwards() {
    let machine = Machine::with_domains();
    for at in 0..300 {
        let at = 0x100_0000 + at * PAGE;
        assert_eq!(crate::reach(&machine.endpoints[0], at, 1, vm_memory::Permissions::Read), None);
    }
    let after = Machine::new();
    after.device.restore(&machine.device.save()).unwrap();
    assert_eq!(after.device.faults_lost(), 300 - 256);
    let records = || std::iter::from_fn(|| machine.device.next_fault());
    assert!(records().eq(std::iter::from_fn(|| after.device.next_fault())));
}

/// Restores a state into a device that has another one: refused, and nothing changes.
fn refused(change: impl FnOnce(&mut SavedViommu)) -> RestoreError {
    let mut saved = Machine::with_domains().device.save();
    change(&mut saved);
    let mut machine = Machine::new();
    machine.granted(attach(7, FIRST));
    machine.granted(map(7, 3, 3));
    let before = machine.device.save();
    let error = machine.device.restore(&saved).unwrap_err();
    assert_eq!(machine.device.save(), before);
    machine.check();
    error
}

#[test]
fn a_state_that_no_guest_could_have_made_is_refused() {
    use RestoreError::{Domain, Endpoint, Faults, Mapping, TooMany, Version};
    let of = |domain: &mut SavedDomain| domain.mappings.as_mut().unwrap()[0];
    assert!(matches!(refused(|saved| saved.version = 2), Version { found: 2 }));
    assert!(matches!(refused(|saved| saved.domains[0].domain = 2), Domain { domain: 2 }));
    let far = refused(|saved| saved.domains[0].domain = 0x1_0000);
    assert!(matches!(far, Domain { domain: 0x1_0000 }));
    let empty = refused(|saved| saved.domains[1].endpoints.clear());
    assert!(matches!(empty, Domain { domain: 2 }));
    for endpoints in [vec![9], vec![8], vec![16, 16]] {
        let wrong = refused(|saved| saved.domains[1].endpoints = endpoints);
        assert!(matches!(wrong, Endpoint { domain: 2, .. }), "{wrong:?}");
    }
    let faults = refused(|saved| saved.faults = vec![[0; 24]; 257]);
    assert!(matches!(faults, Faults { found: 257 }));
    let mappings: [fn(&mut SavedMapping); 8] = [
        |of| of.start += 1,
        |of| of.last -= 1,
        |of| of.phys += 1,
        |of| of.phys = u64::MAX - 0xfff + 1,
        |of| of.flags = 4,
        |of| of.last += 0x1_0000,
        |of| (of.start, of.last) = (0xfee0_0000, 0xfee0_0fff),
        |of| (of.start, of.last) = (1 << 48, (1 << 48) + 0xfff),
    ];
    for (number, change) in mappings.into_iter().enumerate() {
        let wrong = refused(|saved| {
            let mappings = saved.domains[0].mappings.as_mut().unwrap();
            change(&mut mappings[0]);
            if number == 3 {
                mappings[0].last += 0x1000;
            }
        });
        assert!(matches!(wrong, Mapping { domain: 1, .. }), "{number}: {wrong:?}");
    }
    let twice = refused(|saved| {
        let again = of(&mut saved.domains[0]);
        saved.domains[0].mappings.as_mut().unwrap().push(again);
    });
    assert!(matches!(twice, Mapping { domain: 1, start: 0 }));
    let many = refused(|saved| {
        let mapping = of(&mut saved.domains[0]);
        saved.domains[0].mappings = Some(vec![mapping; 1001]);
    });
    assert!(matches!(many, TooMany { found: 1004 }), "{many:?}");
}

#[test]
fn a_state_that_a_listener_refuses_is_not_restored() {
    let source = Machine::with_domains();
    let saved = source.device.save();
    let ready = || {
        let mut machine = Machine::new();
        machine.granted(attach(7, FIRST));
        machine.granted(map(7, 3, 3));
        machine.granted(attach(7, SECOND));
        machine.fail_at([&[], &[]]);
        machine
    };
    let mut all = ready();
    all.device.restore(&saved).unwrap();
    let calls = all.calls();
    // Translations from before are not found any more.
    all.granted = source.granted.clone();
    all.check();
    assert_eq!(calls, [1 + 2, 1 + 3]);
    for (which, count) in calls.into_iter().enumerate() {
        for number in 0..count {
            let machine = ready();
            let before = machine.device.save();
            machine.containers[which].fail_at(&[number]);
            let error = machine.device.restore(&saved).unwrap_err();
            assert!(matches!(error, RestoreError::Listener(_)), "{error:?}");
            machine.check();
            assert_eq!(machine.device.save(), before);
            assert_eq!(machine.device.listener_counts().not_undone, 0);
        }
    }
}

#[test]
fn a_text_that_is_cut_or_changed_is_refused_or_is_another_state() {
    let whole = text(&Machine::with_domains().device.save());
    for length in 0..whole.len() {
        assert!(serde_json::from_str::<SavedViommu>(&whole[..length]).is_err(), "{length}");
    }
    let mut rng = Rng::with_seed(seed());
    let mut counts = [0; 3];
    for _ in 0..20_000 {
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..rng.u32(1..3) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.choice(*b"0123456789,[]{}\"nul-").unwrap();
        }
        let Ok(saved) = serde_json::from_slice::<SavedViommu>(&bytes) else {
            counts[0] += 1;
            continue;
        };
        let machine = Machine::new();
        let before = machine.device.save();
        if machine.device.restore(&saved).is_err() {
            counts[1] += 1;
            assert_eq!(machine.device.save(), before);
            machine.check();
            continue;
        }
        counts[2] += 1;
        let after = machine.device.save();
        assert_eq!(after.faults, saved.faults);
        // Each device reaches as many mappings as its domain has, other than those without access.
        for (endpoint, container) in machine.endpoints.iter().zip(&machine.containers) {
            let id = endpoint.id().get();
            let domain = saved.domains.iter().find(|of| of.endpoints.contains(&id));
            let mappings = domain.and_then(|of| of.mappings.as_ref());
            let useful = |of: &&SavedMapping| of.flags != 0;
            let count = mappings.map_or(0, |all| all.iter().filter(useful).count());
            assert_eq!(container.grants().1.len(), count);
        }
    }
    assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
}

#[test]
fn firmware_reaches_its_disk_before_there_is_a_driver() {
    let mut options = ViommuOptions::default();
    options.bypass = true;
    options.invalidation_limit = Duration::from_secs(60);
    let mut machine = Machine::of(options);
    machine.check();
    assert_eq!(machine.containers[0].grants(), (true, Vec::new()));
    machine.granted(attach(1, FIRST));
    assert!(machine.set_bypass(false));
    machine.check();
    // A driver's reset leaves the field; that of the machine does not.
    machine.device.reset(portolan_vmm::viommu::Reset::Device).unwrap();
    machine.granted.reset();
    machine.check();
    machine.device.reset(portolan_vmm::viommu::Reset::System).unwrap();
    machine.granted.bypass = true;
    machine.check();
}

#[test]
fn device_memory_is_mapped_where_the_monitor_says() {
    use portolan::addr::{PhysAddr, PhysRange};
    let bar = PhysRange::new(PhysAddr::new(0x80_0000), PhysAddr::new(0x80_3fff)).unwrap();
    let mut options = ViommuOptions::default();
    options.device_memory = true;
    let mut machine = Machine::of(options);
    machine.granted(attach(1, FIRST));
    let map = |page: u64, phys: u64, flags| {
        let start = page * PAGE;
        Request::Map { domain: 1, start, last: start + 2 * PAGE - 1, phys, flags }
    };
    assert_eq!(machine.send(map(0, 0x80_0000, 7)), 4, "no range was named");
    machine.device.set_device_memory(&[bar]);
    machine.granted(map(0, 0x80_0000, 7));
    assert_eq!(machine.send(map(10, 0x80_3000, 3)), 4, "half of it is device memory");
    assert_eq!(machine.send(map(10, 0x90_0000, 7)), 4, "none of it is device memory");
    machine.granted(map(10, 0x90_0000, 3));
    // The listener is told, though the guest did not mark it.
    assert_eq!(machine.send(map(20, 0x80_2000, 1)), OK);
    assert_eq!(machine.containers[0].grants().1[2].flags, 5);
    // A state with device memory needs the ranges first.
    let saved = machine.device.save();
    let other = Machine::of(options);
    let error = other.device.restore(&saved).unwrap_err();
    assert!(matches!(error, RestoreError::Mapping { domain: 1, start: 0 }));
    other.device.set_device_memory(&[bar]);
    other.device.restore(&saved).unwrap();
    assert_eq!(other.containers[0].grants(), machine.containers[0].grants());
    // Without the option, device memory is never mapped.
    let mut machine = Machine::new();
    machine.device.set_device_memory(&[bar]);
    machine.granted(attach(1, FIRST));
    for flags in [3, 7] {
        assert_eq!(machine.send(map(0, 0x80_0000, flags)), 4);
    }
}
