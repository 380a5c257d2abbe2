//! Linux's own driver of a virtio-iommu, with Linux's IOMMU core and DMA layer above it, on the device of
//! `portolan-vmm`.
//!
//! Devices behind it have to reach the buffers that their drivers map, byte by byte, and nothing else; Linux has to
//! report refused accesses. Not here: rings in memory (the shim's queues hand requests over).

use std::cell::Cell;
use std::fmt;

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange};
use portolan_vmm::viommu::{ViommuOptions, VirtioIommu};
use portolan_vmm::{Endpoint as Reach, EndpointId};
use vm_memory::iommu::IommuMemory;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::linux;
use crate::raw::{Endpoint, May, Unit};

const PAGE: u64 = 4096;
/// Size of the guest's memory; Linux never reads it.
const MEMORY: u64 = 1 << 32;
const BYTES: u64 = 1 << 20;
/// Identifiers of the two endpoints.
const IDS: [u32; 2] = [8, 16];
const DOORBELL: (u64, u64) = (0xfee0_0000, 0xfeef_ffff);
const ROUNDS: usize = 400;
/// Types of requests: Virtual I/O Device (VIRTIO) 1.2, section 5.13.6.
const KINDS: [&str; 6] = ["", "ATTACH", "DETACH", "MAP", "UNMAP", "PROBE"];

/// Runs everything on the device, and then each kind of request on a device that reports success and does nothing;
/// Linux warns of some of those. Returns how many requests of each kind Linux sent to the first device.
pub(super) fn try_all(seed: u64) -> Result<String, Wrong> {
    let sent = check(None, seed)?;
    for (number, kind) in (0..).zip(KINDS).skip(1) {
        if check(Some(number), seed).is_ok() {
            return wrong(format_args!("a device deaf to {kind} is not noticed"));
        }
    }
    let counts = KINDS.iter().zip(sent).skip(1).map(|(kind, count)| format!("{count} {kind}"));
    Ok(counts.collect::<Vec<_>>().join(", "))
}

/// Description of a failure, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Wrong(String);

fn wrong<T>(what: impl fmt::Display) -> Result<T, Wrong> {
    Err(Wrong(what.to_string()))
}

/// Access of a device behind the unit.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

/// An endpoint as the device's side has it.
struct Side {
    id: u32,
    memory: IommuMemory<GuestMemoryMmap, Reach>,
}

/// A buffer that Linux has mapped.
#[derive(Clone, Copy)]
struct Buffer {
    iova: u64,
    pa: u64,
    bytes: u64,
    may: May,
}

struct Machine<'m> {
    device: &'m VirtioIommu,
    unit: &'m Unit<'m>,
    guest: &'m GuestMemoryMmap,
    sides: &'m [Side; 2],
    rng: Rng,
}

/// Runs everything, on a device that does nothing for requests of type `deaf_to`; returns the number of each that
/// Linux has sent.
fn check(deaf_to: Option<usize>, seed: u64) -> Result<[u64; KINDS.len()], Wrong> {
    let linux = linux().map_err(|failure| Wrong(failure.to_string()))?;
    let cpu = linux.on_cpu(0);
    cpu.warnings();
    let device = VirtioIommu::new(ViommuOptions::default());
    let (start, last) = (Iova::new(DOORBELL.0), Iova::new(DOORBELL.1));
    let doorbell = IovaRange::new(start, last).ok_or(Wrong("the doorbell".to_owned()))?;
    let guest = GuestMemoryMmap::from_ranges(&[(GuestAddress(MEMORY), BYTES as usize)])
        .map_err(|error| Wrong(error.to_string()))?;
    let mut rng = Rng::with_seed(seed);
    let noise: Vec<u8> = (0..BYTES).map(|_| rng.u8(..)).collect();
    let side = |id| {
        let reach = device
            .add(EndpointId::new(id), &[doorbell])
            .map_err(|error| Wrong(error.to_string()))?;
        let memory = IommuMemory::new(guest.clone(), reach, true, ());
        Ok(Side { id, memory })
    };
    let sides = [side(IDS[0])?, side(IDS[1])?];
    let written = guest.write_slice(&noise, GuestAddress(MEMORY));
    written.map_err(|error| Wrong(error.to_string()))?;

    let sent: [Cell<u64>; KINDS.len()] = Default::default();
    let carry = |request: &[u8], answer: &mut [u8]| {
        let of = usize::from(request.first().copied().unwrap_or(0));
        if let Some(count) = sent.get(of) {
            count.set(count.get() + 1);
        }
        if deaf_to == Some(of) {
            answer.fill(0);
            return answer.len();
        }
        device.request(request, answer)
    };
    let unit = cpu
        .viommu(device.features(), &device.config(), &carry)
        .ok_or(Wrong("Linux's driver refuses the device".to_owned()))?;
    let mut machine = Machine { device: &device, unit: &unit, guest: &guest, sides: &sides, rng };
    machine.run()?;
    drop(unit);
    if cpu.warnings() > 0 {
        return wrong("Linux has warned");
    }
    Ok(sent.map(Cell::into_inner))
}

impl Machine<'_> {
    fn run(&mut self) -> Result<(), Wrong> {
        let found = IDS.map(|id| self.unit.endpoint(id));
        let [Some(mut first), Some(second)] = found else {
            return wrong("Linux refuses an endpoint");
        };
        for endpoint in [&first, &second] {
            if endpoint.doorbell() != Some(DOORBELL) {
                return wrong("Linux does not keep the doorbell free");
            }
        }
        let live = self.buffers(&first)?;
        first = self.domains(first, &live)?;
        for buffer in live {
            // Linux has told the device about them again.
            self.reaches(0, buffer)?;
            self.take(&first, buffer)?;
        }
        drop(first);
        self.refused(0, "domain", DOORBELL.1 + 1, Access::Read)?;
        drop(second);
        self.refused(1, "domain", DOORBELL.1 + 1, Access::Write)
    }

    /// Maps buffers of all sizes; returns those that stay mapped.
    fn buffers(&mut self, endpoint: &Endpoint<'_>) -> Result<Vec<Buffer>, Wrong> {
        let mut live: Vec<Buffer> = Vec::new();
        for _ in 0..ROUNDS {
            if live.len() == 16 || self.rng.u8(..3) == 0 && !live.is_empty() {
                let buffer = live.swap_remove(self.rng.usize(..live.len()));
                self.reaches(0, buffer)?;
                self.take(endpoint, buffer)?;
            }
            let bytes = self.rng.u64(1..4 * PAGE);
            let pa = MEMORY + self.rng.u64(..BYTES - bytes);
            let may = [May::Read, May::ReadAndWrite][self.rng.usize(..2)];
            let Some(iova) = endpoint.map(pa, bytes, may) else {
                return wrong("Linux does not map a buffer");
            };
            let buffer = Buffer { iova, pa, bytes, may };
            self.reaches(0, buffer)?;
            self.refused(1, "page", iova, Access::Read)?;
            live.push(buffer);
        }
        Ok(live)
    }

    /// Takes a buffer back, after which the device reaches nothing of it.
    fn take(&self, endpoint: &Endpoint<'_>, of: Buffer) -> Result<(), Wrong> {
        endpoint.unmap(of.iova, of.bytes, of.may);
        for at in [0, of.bytes / 2, of.bytes - 1] {
            self.refused(0, "page", of.iova + at, Access::Read)?;
        }
        Ok(())
    }

    /// Maps addresses of our own choice instead of the buffers, which the device cannot reach at that time.
    fn domains<'u>(
        &mut self,
        endpoint: Endpoint<'u>,
        others: &[Buffer],
    ) -> Result<Endpoint<'u>, Wrong> {
        let Some(domain) = endpoint.unmanaged() else {
            return wrong("Linux does not attach another domain");
        };
        for buffer in others {
            self.refused(0, "page", buffer.iova, Access::Read)?;
        }
        let mut slots: [Option<Buffer>; 32] = [None; 32];
        for _ in 0..ROUNDS {
            let slot = self.rng.usize(..slots.len());
            let iova = 0x10_0000 + slot as u64 * 8 * PAGE;
            match slots[slot].take() {
                Some(buffer) => {
                    self.reaches(0, buffer)?;
                    if domain.unmap(iova, buffer.bytes) != buffer.bytes {
                        return wrong("Linux does not unmap");
                    }
                    self.refused(0, "page", iova, Access::Write)?;
                    self.refused(0, "page", iova + buffer.bytes - 1, Access::Read)?;
                }
                None => {
                    let bytes = self.rng.u64(1..=8) * PAGE;
                    let pa = MEMORY + self.rng.u64(..(BYTES - bytes) / PAGE) * PAGE;
                    let may = [May::Read, May::ReadAndWrite][self.rng.usize(..2)];
                    if !domain.map(iova, pa, bytes, may) {
                        return wrong("Linux does not map");
                    }
                    let buffer = Buffer { iova, pa, bytes, may };
                    self.reaches(0, buffer)?;
                    slots[slot] = Some(buffer);
                }
            }
        }
        drop(domain);
        for buffer in slots.iter().flatten() {
            self.refused(0, "page", buffer.iova, Access::Read)?;
        }
        Ok(endpoint)
    }

    /// The device reads all bytes, and writes some if it may, as the guest then sees.
    fn reaches(&self, side: usize, of: Buffer) -> Result<(), Wrong> {
        let Side { id, memory } = &self.sides[side];
        let (mut ours, mut theirs) = (vec![0; of.bytes as usize], vec![1; of.bytes as usize]);
        let read = self.guest.read_slice(&mut ours, GuestAddress(of.pa));
        read.map_err(|error| Wrong(error.to_string()))?;
        let reached = memory.read_slice(&mut theirs, GuestAddress(of.iova));
        let Buffer { iova, pa, bytes, .. } = of;
        if reached.is_err() || ours != theirs {
            return wrong(format_args!(
                "endpoint {id} does not reach {bytes} bytes of {pa:#x} at {iova:#x}"
            ));
        }
        if of.may == May::Read {
            return self.refused(side, "page", iova + bytes - 1, Access::Write);
        }
        ours.reverse();
        let written = memory.write_slice(&ours, GuestAddress(iova));
        let read = self.guest.read_slice(&mut theirs, GuestAddress(pa));
        if written.is_ok() && read.is_ok() && ours == theirs {
            Ok(())
        } else {
            wrong(format_args!("endpoint {id} does not write to {iova:#x}"))
        }
    }

    /// Checks that the device cannot reach a byte, and that Linux reports this with `reason`, in its words.
    fn refused(&self, side: usize, reason: &str, at: u64, access: Access) -> Result<(), Wrong> {
        let Side { id, memory } = &self.sides[side];
        let (reached, letter) = match access {
            Access::Read => (memory.read_slice(&mut [0], GuestAddress(at)), "R"),
            Access::Write => (memory.write_slice(&[0], GuestAddress(at)), "W"),
        };
        if reached.is_ok() {
            return wrong(format_args!(
                "endpoint {id} reaches {at:#x}, which Linux has not mapped so"
            ));
        }
        let fault = self.device.next_fault();
        let said = fault.and_then(|fault| self.unit.event(&fault));
        let wanted = format!("{reason} fault from EP {id} at {at:#x} [{letter}]");
        if said.as_deref() == Some(&*wanted) {
            Ok(())
        } else {
            wrong(format_args!("Linux said {said:?}, not {wanted:?}"))
        }
    }
}
