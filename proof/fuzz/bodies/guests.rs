//! Bytes for a virtio-iommu: a guest's requests, each behind a byte that says how long it is, and bytes of its
//! configuration; a saved state, as words.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use portolan::addr::{Iova, IovaRange};
use portolan_vmm::EndpointId;
use portolan_vmm::viommu::{
    Grant, Listener, Reset, SavedDomain, SavedMapping, SavedViommu, ViommuOptions, VirtioIommu,
};
use vm_memory::iommu::Iommu;
use vm_memory::{GuestAddress, Permissions};

/// Handles the guest's requests, one after the other.
pub fn requests(bytes: &[u8]) {
    let mut options = ViommuOptions::default();
    options.invalidation_limit = Duration::ZERO;
    options.mappings = 100;
    let device = VirtioIommu::new(options);
    let doorbell = IovaRange::new(Iova::new(0xfee0_0000), Iova::new(0xfeef_ffff));
    let doorbells = doorbell.as_slice();
    let endpoint = device.add(EndpointId::new(8), doorbells);
    let mut rest = bytes;
    while let [length, behind @ ..] = rest {
        let (request, next) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = next;
        let mut answer = [0xff; 64];
        let room = usize::from(*length % 65);
        let written = device.request(request, &mut answer[..room]);
        assert!(written <= room, "{written} bytes of {room}");
        if let [offset, value, ..] = request {
            device.write_config(usize::from(*offset), *value);
        }
        if let Ok(endpoint) = &endpoint {
            let at = GuestAddress(u64::from(*length) << 12);
            let found = endpoint.translate(at, 0x2000, Permissions::Read);
            let _ = found.map(|found| found.count());
        }
        while device.next_fault().is_some() {}
    }
}

/// Counts grants, and fails at a call.
#[derive(Debug, Default)]
struct Counting {
    grants: AtomicUsize,
    calls: AtomicUsize,
    failing: usize,
}

impl Counting {
    fn call(&self) -> io::Result<()> {
        match self.calls.fetch_add(1, Relaxed) + 1 == self.failing {
            true => Err(io::Error::other("it was asked to")),
            false => Ok(()),
        }
    }
}

impl Listener for Counting {
    fn map(&self, _: &Grant) -> io::Result<()> {
        self.call()?;
        self.grants.fetch_add(1, Relaxed);
        Ok(())
    }

    fn unmap(&self, _: &Grant) -> io::Result<()> {
        self.call()?;
        assert_ne!(self.grants.fetch_sub(1, Relaxed), 0, "more is unmapped than was mapped");
        Ok(())
    }
}

/// Restores a state into a device of two endpoints.
pub fn states(bytes: &[u8]) {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(word)
    });
    let mut words = words.chain(std::iter::repeat(0));
    let mut next = || words.next().unwrap_or(0);
    let failing = next() as usize;
    let mut options = ViommuOptions::default();
    options.mappings = 40;
    options.bypass = next() & 1 != 0;
    let device = VirtioIommu::new(options);
    for id in [8, 16] {
        device.add(EndpointId::new(id), &[]).unwrap();
    }
    let listener = Arc::new(Counting { failing, ..Counting::default() });
    if device.listen(EndpointId::new(8), listener.clone()).is_err() {
        assert_eq!(listener.grants.load(Relaxed), 0);
    }
    let saved = SavedViommu {
        version: next() as u32,
        bypass: next() & 1 != 0,
        faults_lost: next(),
        faults: vec![[next() as u8; 24]; (next() % 512) as usize],
        domains: (0..next() % 8)
            .map(|_| SavedDomain {
                domain: next() as u32,
                endpoints: (0..next() % 4).map(|_| next() as u32).collect(),
                mappings: (next() & 1 != 0).then(|| {
                    let count = next() % 64;
                    let mapping = |_| SavedMapping {
                        start: next(),
                        last: next(),
                        phys: next(),
                        flags: next() as u32,
                    };
                    (0..count).map(mapping).collect()
                }),
            })
            .collect(),
    };
    let before = (device.save(), listener.grants.load(Relaxed));
    match device.restore(&saved) {
        Err(_) if device.listener_counts().not_undone == 0 => {
            assert_eq!((device.save(), listener.grants.load(Relaxed)), before);
        }
        Err(_) => {}
        Ok(()) => {
            let mut restored = device.save();
            assert!(restored.domains.iter().all(|of| of.mappings.iter().flatten().count() <= 40));
            restored.domains.clear();
            assert_eq!(restored, SavedViommu { domains: Vec::new(), ..saved });
        }
    }
    if device.reset(Reset::Device).is_ok() && device.remove_listener(EndpointId::new(8)).is_ok() {
        assert_eq!(listener.grants.load(Relaxed), 0);
    }
}
