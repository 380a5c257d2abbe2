//! A guest's requests, read.
//!
//! Virtual I/O Device (VIRTIO) 1.2, section 5.13.6. The driver's layouts are `portolan_spec::virtio`.

use portolan_spec::virtio::{MAX_REQUEST_BYTES, Request};

/// Outcomes of requests (5.13.6.1), those of `spec` beside them.
pub(super) mod status {
    pub(in crate::viommu) use portolan_spec::virtio::{S_NOENT as NOENT, S_OK as OK};
    pub(in crate::viommu) const UNSUPP: u8 = 2;
    pub(in crate::viommu) const DEVERR: u8 = 3;
    pub(in crate::viommu) const INVAL: u8 = 4;
    pub(in crate::viommu) const RANGE: u8 = 5;
    pub(in crate::viommu) const NOMEM: u8 = 8;
}

/// Reads a request; or the status that a device answers if it makes no sense.
pub(super) fn read(bytes: &[u8]) -> Result<Request, u8> {
    let word = |at: usize| {
        let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
        found.copied().map(u32::from_le_bytes).ok_or(status::INVAL)
    };
    let long = |at: usize| Ok::<u64, u8>(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
    let zero = |from: usize, to: usize| match bytes.get(from..to) {
        Some(reserved) if reserved.iter().all(|byte| *byte == 0) => Ok(()),
        _ => Err(status::INVAL),
    };
    match bytes.first() {
        Some(1) => {
            zero(16, 20)?;
            Ok(Request::Attach { domain: word(4)?, endpoint: word(8)?, flags: word(12)? })
        }
        Some(2) => {
            zero(12, 20)?;
            Ok(Request::Detach { domain: word(4)?, endpoint: word(8)? })
        }
        Some(3) => Ok(Request::Map {
            domain: word(4)?,
            start: long(8)?,
            last: long(16)?,
            phys: long(24)?,
            flags: word(32)?,
        }),
        Some(4) => Ok(Request::Unmap { domain: word(4)?, start: long(8)?, last: long(16)? }),
        Some(5) => {
            zero(8, MAX_REQUEST_BYTES)?;
            let endpoint = word(4)?;
            Ok(Request::Probe { endpoint })
        }
        _ => Err(status::UNSUPP),
    }
}
