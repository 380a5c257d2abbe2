//! Layouts of requests, answers, events and the configuration.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.3 (features), 5.13.4 (configuration), 5.13.6
//! (requests) and 5.13.6.8 (faults). All numbers are little-endian.
//!
//! *Context.* Interrupt: everything here is a value.

crate::bits::constants! {
    F_INPUT_RANGE: u64 = 1 << 0 => "The device translates only the addresses of `INPUT_RANGE_*`.";
    F_DOMAIN_RANGE: u64 = 1 << 1 => "The device has only the domains of `DOMAIN_RANGE_*`.";
    F_MAP_UNMAP: u64 = 1 << 2 => "Requests to map and to unmap.";
    F_PROBE: u64 = 1 << 4 => "Requests to probe.";
    F_MMIO: u64 = 1 << 5 => "Mappings of device memory.";
    F_BYPASS_CONFIG: u64 = 1 << 6 => "The `BYPASS` field, and domains that pass through.";
}

/// All features that the driver uses, for a transport to accept as far as they are offered.
pub const DRIVER_FEATURES: u64 =
    F_INPUT_RANGE | F_DOMAIN_RANGE | F_MAP_UNMAP | F_PROBE | F_MMIO | F_BYPASS_CONFIG;

/// Offsets in the configuration.
pub mod config {
    crate::bits::constants! {
        PAGE_SIZE_MASK: usize = 0 => "Bitmap of page sizes, 8 bytes.";
        INPUT_RANGE_START: usize = 8 => "First address, 8 bytes.";
        INPUT_RANGE_END: usize = 16 => "Last address, 8 bytes.";
        DOMAIN_RANGE_START: usize = 24 => "First domain, 4 bytes.";
        DOMAIN_RANGE_END: usize = 28 => "Last domain, 4 bytes.";
        PROBE_SIZE: usize = 32 => "Bytes of the properties in the answer to a probe, 4 bytes.";
        BYPASS: usize = 36 => "Whether endpoints without a domain pass through, 1 byte.";
    }
}

crate::bits::constants! {
    TAIL_BYTES: usize = 4 => "Bytes at the end of each answer.";
    FAULT_BYTES: usize = 24 => "Bytes of a fault.";
    MAX_REQUEST_BYTES: usize = 72 => "Bytes of the largest request.";

    S_OK: u8 = 0 => "Status: done.";
    S_NOENT: u8 = 6 => "Status: no such endpoint or domain.";

    MAP_READ: u32 = 1 => "Flag of a mapping: the device may read.";
    MAP_WRITE: u32 = 1 << 1 => "Flag of a mapping: the device may write.";
    MAP_MMIO: u32 = 1 << 2 => "Flag of a mapping: not memory.";
    ATTACH_BYPASS: u32 = 1 => "Flag of an attachment: pass through.";

    PROPERTY_TYPE: u16 = 0xfff => "Mask of a property's type.";
    P_NONE: u16 = 0 => "Property: none follow.";
    P_RESV_MEM: u16 = 1 => "Property: addresses that cannot be mapped.";
    RESV_MEM_BYTES: usize = 20 => "Bytes of that property behind its head.";
    RESV_MSI: u8 = 1 => "Kind of reserved addresses: writes are message-signalled interrupts.";

    R_UNKNOWN: u8 = 0 => "Fault: the device does not say why.";
    R_DOMAIN: u8 = 1 => "Fault: the endpoint has no domain.";
    R_MAPPING: u8 = 2 => "Fault: no mapping, or not for this kind of access.";
    FAULT_READ: u32 = 1 => "Flag of a fault: a read.";
    FAULT_WRITE: u32 = 1 << 1 => "Flag of a fault: a write.";
    FAULT_ADDRESS: u32 = 1 << 8 => "Flag of a fault: the address is valid.";
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Type 1.
    Attach {
        /// Domain.
        domain: u32,
        /// Endpoint.
        endpoint: u32,
        /// Flags.
        flags: u32,
    },
    /// Type 2.
    Detach {
        /// Domain.
        domain: u32,
        /// Endpoint.
        endpoint: u32,
    },
    /// Type 3.
    Map {
        /// Domain.
        domain: u32,
        /// First address.
        start: u64,
        /// Last address.
        last: u64,
        /// First address of memory.
        phys: u64,
        /// Flags.
        flags: u32,
    },
    /// Type 4.
    Unmap {
        /// Domain.
        domain: u32,
        /// First address.
        start: u64,
        /// Last address.
        last: u64,
    },
    /// Type 5.
    Probe {
        /// Endpoint.
        endpoint: u32,
    },
}

/// A request as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    bytes: [u8; MAX_REQUEST_BYTES],
    len: usize,
}

impl Encoded {
    /// The bytes that the device reads.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    fn new(kind: u8, len: usize) -> Self {
        let mut bytes = [0; MAX_REQUEST_BYTES];
        bytes[0] = kind;
        Self { bytes, len }
    }

    fn with32(mut self, at: usize, value: u32) -> Self {
        if let Some(field) = self.bytes.get_mut(at..at + 4) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        self
    }

    fn with64(self, at: usize, value: u64) -> Self {
        self.with32(at, value as u32).with32(at + 4, (value >> 32) as u32)
    }
}

impl Request {
    /// The bytes.
    pub fn encode(self) -> Encoded {
        match self {
            Self::Attach { domain, endpoint, flags } => {
                Encoded::new(1, 20).with32(4, domain).with32(8, endpoint).with32(12, flags)
            }
            Self::Detach { domain, endpoint } => {
                Encoded::new(2, 20).with32(4, domain).with32(8, endpoint)
            }
            Self::Map { domain, start, last, phys, flags } => Encoded::new(3, 36)
                .with32(4, domain)
                .with64(8, start)
                .with64(16, last)
                .with64(24, phys)
                .with32(32, flags),
            Self::Unmap { domain, start, last } => {
                Encoded::new(4, 28).with32(4, domain).with64(8, start).with64(16, last)
            }
            Self::Probe { endpoint } => Encoded::new(5, MAX_REQUEST_BYTES).with32(4, endpoint),
        }
    }
}
