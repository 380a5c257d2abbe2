//! The front-end of the crate `vhost`, which others' monitors use. It knows no translations: those are sent
//! beside it.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use ::vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures,
};
use ::vhost::vhost_user::{Frontend, VhostUserFrontend};
use ::vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use portolan_vmm::backend::{Backend, BackendOptions};
use vmm_sys_util::eventfd::EventFd;

use crate::Inverter;
use crate::frontend::{FRONTEND, raw, update};
use crate::guest::{BYTES, GRANTED, Guest, IOVA, PAGE, RINGS, SIZE};

#[test]
fn the_front_end_of_vhost_is_served() {
    let guest = Guest::new();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let beside = ours.try_clone().unwrap();
    let backend = Backend::new(Inverter::new(), BackendOptions::default());
    let served = std::thread::spawn(move || backend.serve(&theirs));
    let mut frontend = Frontend::from_stream(ours, RINGS as u64);

    frontend.set_owner().unwrap();
    let features = frontend.get_features().unwrap();
    frontend.set_features(features).unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    assert!(protocol.contains(VhostUserProtocolFeatures::REPLY_ACK));
    frontend.set_protocol_features(protocol).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert_eq!(frontend.get_queue_num().unwrap(), RINGS as u64);
    let (_channel, its_end) = UnixStream::pair().unwrap();
    frontend.set_backend_request_fd(&its_end).unwrap();
    let flags = VhostUserConfigFlags::empty();
    let (_, config) = frontend.get_config(0, 8, flags, &[0; 8]).unwrap();
    assert_eq!(config, b"inverter");

    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: BYTES,
        userspace_addr: FRONTEND,
        mmap_offset: 0,
        mmap_handle: guest.memory.as_raw_fd(),
    };
    frontend.set_mem_table(&[region]).unwrap();
    let [descriptors, available, used] = Guest::addresses(0);
    let ring = VringConfigData {
        queue_max_size: SIZE,
        queue_size: SIZE,
        flags: 0,
        desc_table_addr: descriptors,
        used_ring_addr: used,
        avail_ring_addr: available,
        log_addr: None,
    };
    frontend.set_vring_num(0, SIZE).unwrap();
    frontend.set_vring_addr(0, &ring).unwrap();
    frontend.set_vring_base(0, 0).unwrap();
    let [kick, call] = [(); 2].map(|()| EventFd::new(0).unwrap());
    frontend.set_vring_call(0, &call).unwrap();
    frontend.set_vring_kick(0, &kick).unwrap();
    for page in (IOVA..IOVA + GRANTED).step_by(PAGE as usize) {
        let header = [22u32, 1, 32].map(u32::to_le_bytes).concat();
        let message = [&header, &update(page).payload()[..]].concat();
        raw(&beside, &message, &[]).unwrap();
    }
    frontend.set_vring_enable(0, true).unwrap();

    guest.fill(0, 3);
    guest.submit(0);
    kick.write(1).unwrap();
    // The back-end has made it one that does not wait.
    while call.read().is_err() {
        std::thread::yield_now();
    }
    guest.check(0, 3);
    assert_eq!(frontend.get_vring_base(0).unwrap(), 1);
    beside.shutdown(std::net::Shutdown::Both).unwrap();
    let (served, ended) = served.join().unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!((served.requests, served.iotlb.misses), (1, 0));
}
