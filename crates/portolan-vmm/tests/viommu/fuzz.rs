//! Requests of `tests/corpus/viommu`, a record each, and changed ones, beside a naive list of the mappings that
//! were granted.

use std::time::Duration;

use portolan_vmm::viommu::VirtioIommu;

use crate::granted::Granted;
use crate::{ENDPOINTS, corpus, machine};

/// Sends a request; tells if the device has carried it out.
fn send(device: &VirtioIommu, request: &[u8], room: usize) -> bool {
    let mut answer = vec![0xff; room];
    let written = device.request(request, &mut answer);
    assert!(written == room || written == 0 && room < 4, "{written} of {room}");
    // The status; one that there is not would be news.
    room >= 4 && {
        assert!(answer[room - 4] <= 8 && answer[room - 3..] == [0; 3]);
        answer[room - 4] == 0
    }
}

#[test]
fn a_guest_gets_what_its_requests_were_granted_and_no_more() {
    let [kept, changed] = corpus::each("viommu", 2_000, |input, rng| {
        let (device, endpoints) = machine(Duration::from_secs(60));
        let (mut granted, mut good) = (Granted::default(), 0);
        for request in input {
            let room = match rng.u32(..32) {
                0 => rng.usize(..600),
                _ => 516,
            };
            if send(&device, request, room) {
                granted.carry_out(request);
                good += 1;
            }
            let mut places = granted.edges();
            places.extend([rng.u64(..0x4000), rng.u64(..)]);
            for at in places {
                granted.compare(&endpoints[rng.usize(..2)], at);
            }
        }
        assert_eq!(endpoints.map(|of| of.id()), ENDPOINTS);
        while device.next_fault().is_some() {}
        good * 2 > input.len()
    });
    assert!(kept > 1 && changed > 200, "too little of it is carried out");
}
