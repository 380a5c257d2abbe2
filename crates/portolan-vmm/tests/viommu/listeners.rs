//! Listeners hear of what their devices may access, before the guest is answered: beside a naive list, at random and
//! with a failure at each call.

use std::sync::Arc;

use fastrand::Rng;
use portolan_chips::fixture::seed;
use portolan_spec::virtio::Request;
use portolan_vmm::EndpointId;
use portolan_vmm::viommu::{NotListening, NotTakenAway, Reset};

use crate::container::Container;
use crate::granted::Granted;
use crate::passed::{DEVERR, FIRST, Machine, OK, PAGE, SECOND, attach, map, random, unmap};
use crate::{ENDPOINTS, doorbell};

#[test]
fn a_mapping_is_heard_of_before_the_guest_is_answered() {
    let mut machine = Machine::with_domains();
    let shares = attach(2, FIRST);
    machine.granted(shares);
    assert_eq!(machine.containers[0].grants().1.len(), 3, "it gets the mappings of its domain");
    machine.granted(map(2, 20, 2));
    machine.granted(map(2, 21, 0));
    machine.granted(unmap(2, 0..=8));
    machine.granted(Request::Detach { domain: 2, endpoint: FIRST.get() });
    assert!(machine.set_bypass(true));
    machine.check();
    machine.granted(Request::Attach { domain: 5, endpoint: FIRST.get(), flags: 1 });
    machine.granted(attach(1, FIRST));
    assert_eq!(machine.device.listener_counts().failed, 0);
}

#[test]
fn a_device_that_keeps_what_it_has_is_not_interrupted() {
    let mut machine = Machine::new();
    assert!(machine.set_bypass(true));
    machine.fail_at([&[0], &[0]]);
    machine.granted(Request::Attach { domain: 5, endpoint: FIRST.get(), flags: 1 });
    assert_eq!(machine.calls(), [0, 0]);
    machine.device.reset(Reset::Device).unwrap();
    machine.granted.reset();
    machine.check();
    assert_eq!(machine.calls(), [0, 0]);
}

/// Requests of [`Machine::with_domains`] of which listeners hear.
fn heard() -> [Request; 7] {
    [
        map(1, 20, 3),
        unmap(1, 0..=9),
        unmap(2, 0..=9),
        attach(2, FIRST),
        attach(1, FIRST),
        Request::Attach { domain: 3, endpoint: SECOND.get(), flags: 1 },
        Request::Detach { domain: 2, endpoint: SECOND.get() },
    ]
}

#[test]
fn a_failure_at_any_call_leaves_everything_as_it_was() {
    for shared in [false, true] {
        for request in heard() {
            let ready = || {
                let mut machine = Machine::with_domains();
                if shared {
                    machine.granted(attach(1, SECOND));
                    machine.granted(attach(2, SECOND));
                    machine.granted(attach(2, FIRST));
                    machine.granted(map(2, 30, 1));
                }
                machine.fail_at([&[], &[]]);
                machine
            };
            let mut all = ready();
            let status = all.send(request);
            all.check();
            if status != OK {
                // Domain 1 is not there.
                assert!(shared);
                continue;
            }
            let calls = all.calls();
            for (which, count) in calls.into_iter().enumerate() {
                for number in 0..count {
                    let mut machine = ready();
                    let before = (machine.granted.clone(), machine.device.listener_counts());
                    machine.containers[which].fail_at(&[number]);
                    assert_eq!(machine.send(request), DEVERR, "{request:?}: call {number}");
                    machine.check();
                    let counts = machine.device.listener_counts();
                    let made = counts.made - before.1.made;
                    assert_eq!((counts.failed, counts.not_undone), (1, 0));
                    assert_eq!(counts.undone, made, "{request:?}: call {number}");
                    assert_eq!(machine.granted, before.0);
                    // It is asked for again.
                    machine.fail_at([&[], &[]]);
                    machine.granted(request);
                }
            }
        }
    }
}

#[test]
fn the_bypass_field_stays_as_it_was_if_a_listener_fails() {
    for which in 0..2 {
        let mut machine = Machine::new();
        for bypass in [true, false] {
            machine.containers[which].fail_at(&[0]);
            assert!(!machine.set_bypass(bypass));
            machine.check();
            assert!(machine.set_bypass(bypass));
            machine.check();
        }
        let counts = machine.device.listener_counts();
        assert_eq!((counts.failed, counts.undone), (2, 2 * which as u64));
    }
}

#[test]
fn a_call_that_cannot_be_undone_is_counted() {
    let mut machine = Machine::with_domains();
    // The second unmap fails, and so does the first one's opposite.
    machine.containers[0].fail_at(&[1, 2]);
    assert_eq!(machine.send(unmap(1, 0..=9)), DEVERR);
    let counts = machine.device.listener_counts();
    assert_eq!((counts.failed, counts.undone, counts.not_undone), (1, 0, 1));
}

#[test]
fn a_listener_that_comes_later_hears_of_all_there_is() {
    let mut machine = Machine::with_domains();
    let held = machine.containers[1].grants();
    machine.device.remove_listener(SECOND).unwrap();
    assert_eq!(machine.containers[1].grants(), (false, Vec::new()));
    assert_eq!(machine.send(map(2, 30, 1)), OK);
    assert_eq!(machine.send(unmap(2, 30..=30)), OK);
    for number in 0..3 {
        machine.containers[1].fail_at(&[number]);
        let refused = machine.device.listen(SECOND, machine.containers[1].clone());
        assert!(matches!(refused, Err(NotListening::Refused(_))), "{refused:?}");
        assert_eq!(machine.containers[1].grants(), (false, Vec::new()));
        assert_eq!(machine.containers[1].calls(), 2 * number + 1);
    }
    machine.device.listen(SECOND, machine.containers[1].clone()).unwrap();
    assert_eq!(machine.containers[1].grants(), held);
    machine.check();
    let other = machine.device.listen(SECOND, Arc::<Container>::default());
    assert!(matches!(other, Err(NotListening::Taken(SECOND))));
    let nowhere = machine.device.listen(EndpointId::new(9), Arc::<Container>::default());
    assert!(matches!(nowhere, Err(NotListening::NoEndpoint(_))));
}

#[test]
fn an_endpoint_that_goes_takes_nothing_from_others() {
    let mut machine = Machine::with_domains();
    machine.granted(attach(2, FIRST));
    machine.device.remove(SECOND).unwrap();
    assert_eq!(machine.containers[1].grants(), (false, Vec::new()));
    machine.granted.leave(SECOND.get());
    machine.check();
    assert_eq!(machine.device.remove(SECOND), Err(NotTakenAway::NoEndpoint(SECOND)));
    // Another device with its number is another device.
    let new = machine.device.add(SECOND, &[doorbell()]).unwrap();
    machine.device.listen(SECOND, machine.containers[1].clone()).unwrap();
    assert_eq!(machine.send(attach(2, SECOND)), OK);
    let old = std::mem::replace(&mut machine.endpoints[1], new);
    machine.check();
    assert_eq!(crate::reach(&old, 0, 1, vm_memory::Permissions::Read), None);
    // The last endpoint of a domain takes its mappings along.
    machine.device.remove(FIRST).unwrap();
    machine.device.remove(SECOND).unwrap();
    assert_eq!(machine.device.listener_counts().failed, 0);
    let first = machine.device.add(FIRST, &[]).unwrap();
    machine.granted = Granted::default();
    assert_eq!(machine.send(attach(2, FIRST)), OK);
    machine.granted.compare(&first, 0);
}

#[test]
fn a_domain_that_has_mapped_a_doorbell_of_an_endpoint_does_not_get_it() {
    let (device, other) = (Machine::new().device, EndpointId::new(24));
    // Its messages go elsewhere.
    device.add(other, &[]).unwrap();
    let send = |request: Request| {
        let mut answer = [0xff; 4];
        device.request(request.encode().as_slice(), &mut answer);
        answer[0]
    };
    let page = doorbell().start().get() / PAGE;
    let unsupported = 2;
    assert_eq!([attach(1, other), map(1, page, 3)].map(send), [OK; 2]);
    assert_eq!(send(attach(1, FIRST)), unsupported);
    // A state that a guest has made is restored.
    device.restore(&device.save()).unwrap();
    assert_eq!([unmap(1, page..=page), attach(1, FIRST)].map(send), [OK; 2]);
}

#[test]
fn a_reset_and_a_removal_go_on_after_a_listener_that_fails() {
    let mut machine = Machine::with_domains();
    machine.fail_at([&[0], &[]]);
    assert_eq!(machine.device.reset(Reset::System), Err(NotTakenAway::Listeners { failed: 1 }));
    machine.granted.reset();
    assert_eq!(machine.containers[0].grants().1.len(), 1, "the one of the call that failed");
    assert_eq!(machine.containers[1].grants(), (false, Vec::new()));
    assert_eq!(machine.device.listener_counts().failed, 1);
    for endpoint in &machine.endpoints {
        machine.granted.compare(endpoint, 0);
    }
    let mut machine = Machine::with_domains();
    machine.fail_at([&[], &[1]]);
    let removed = machine.device.remove(SECOND);
    assert_eq!(removed, Err(NotTakenAway::Listeners { failed: 1 }));
    machine.granted.leave(SECOND.get());
    machine.granted.compare(&machine.endpoints[1], 0);
    assert_eq!(machine.send(attach(2, SECOND)), 6, "it has gone");
}

#[test]
fn at_random_devices_reach_what_the_guest_was_granted() {
    let mut rng = Rng::with_seed(seed());
    let mut machine = Machine::new();
    let mut statuses = [0_u32; 9];
    for _ in 0..20_000 {
        // Of one alone: the other one's undoing would fail.
        machine.fail_at([&[], &[]]);
        if rng.u32(..4) == 0 {
            machine.containers[rng.usize(..2)].fail_at(&[rng.usize(..4)]);
        }
        match rng.u32(..64) {
            0 => drop(machine.set_bypass(rng.bool())),
            1 => {
                machine.fail_at([&[], &[]]);
                let kind = if rng.bool() { Reset::Device } else { Reset::System };
                machine.device.reset(kind).unwrap();
                machine.granted.reset();
                machine.granted.bypass &= kind == Reset::Device;
            }
            2 => {
                let which = rng.usize(..2);
                machine.fail_at([&[], &[]]);
                machine.device.remove_listener(ENDPOINTS[which]).unwrap();
                machine.send(random(&mut rng));
                let listener = machine.containers[which].clone();
                machine.device.listen(ENDPOINTS[which], listener).unwrap();
            }
            _ => {
                let request = random(&mut rng);
                let before = machine.device.listener_counts();
                let status = machine.send(request);
                let failed = machine.device.listener_counts().failed - before.failed;
                assert_eq!(failed, u64::from(status == DEVERR), "{request:?}");
                statuses[usize::from(status)] += 1;
            }
        }
        machine.check();
    }
    assert_eq!(machine.device.listener_counts().not_undone, 0);
    assert!(statuses[0] > 5_000 && statuses[3] > 100, "{statuses:?} by status");
}
