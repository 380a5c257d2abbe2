//! Pages of the NVMe disk that are transferred as a batch by one queue, and their contents.
//!
//! A check of the disk from outside knows the contents that each sector must have.

use alloc::string::String;
use alloc::vec::Vec;

use portolan::addr::Iova;
use portolan::dma::{Buffers, Device, Mapping, reclaim_all};
use portolan::platform::Nanos;
use portolan_bare::nvme::spec::Command;
use portolan_bare::nvme::{Access, NvmeError, Operation};
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Pages, Registers};
use portolan_hw::topology::{DeviceOptions, Iommus};

use crate::Outcome;
use crate::commands;
use crate::edu::ADDRESS_BITS;
use crate::flash::{COPIES, POLICIES};

pub const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// Pages of a batch that are read; as many are written.
pub const PART: usize = 16;
/// Registers that are mapped.
const WINDOW: u64 = 0x2000;
/// Bytes of a ring of 64 commands, and of one of 64 completions.
pub const COMMANDS: u64 = 4096;
pub const COMPLETIONS: u64 = 1024;
/// Longest time that a command may take.
const LIMIT: Nanos = Nanos::from_millis(10_000);
/// Bytes that `edu` writes beside the disk, and the value that its page is filled with.
pub const EDU_BYTES: usize = 2048;
pub const UNTOUCHED: u8 = 0x5a;

/// First page on the disk of batch `number`.
pub fn first(number: u64) -> u64 {
    number * PART as u64 % COPIES
}

/// Page `number` of the disk, as it is at first.
pub fn original(number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAGE);
    for sector in number * 8..number * 8 + 8 {
        let word = (sector + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        bytes.extend((0..SECTOR).map(|at| word[at % 8] ^ (at / 8) as u8));
    }
    bytes
}

pub fn inverted(number: u64) -> Vec<u8> {
    original(number).into_iter().map(|byte| !byte).collect()
}

/// The disk's registers.
pub fn access(machine: Machine, flash: &Function) -> Outcome<Access<Registers, Machine>> {
    let registers = flash.window(&machine, WINDOW).ok_or(NvmeError::NoRegisters)?;
    Ok(Access { registers, clock: machine, limit: LIMIT })
}

/// Command that reads or writes one page.
pub fn transfer(operation: Operation, page: u64, at: Iova) -> Command {
    let blocks = (PAGE / SECTOR) as u32;
    Command::transfer(operation, page * u64::from(blocks), blocks, [at.get(), 0])
}

/// The disk, opened.
pub struct Disk {
    pub device: Device<Machine>,
    buffers: Buffers,
}

impl Disk {
    /// Opens the disk under policy `number`, and returns the policy's name as well.
    pub fn open(
        iommus: &Iommus<Machine>,
        flash: &Function,
        number: u64,
    ) -> Outcome<(Self, String)> {
        let (buffers, trust, preference) = POLICIES[number as usize % POLICIES.len()];
        let mut options = DeviceOptions::trusted();
        options.buffers = buffers;
        options.constraints.trust = commands::trust(iommus, trust);
        options.preference = preference;
        let (policy, _) = commands::policy(iommus, flash, &options);
        Ok((Self { device: iommus.device_with(flash.at(), &options)?, buffers }, policy))
    }

    /// Ends mappings as the policy has it.
    pub fn take_back(&self, mappings: Vec<Mapping<Machine, Pages>>) -> Outcome<Vec<Pages>> {
        let mut found = Vec::new();
        if self.buffers == Buffers::Kept {
            for mapping in mappings {
                found.push(mapping.unmap().map_err(|failed| failed.error)?);
            }
            return Ok(found);
        }
        let deferred = mappings.into_iter().map(|one| one.defer().map_err(|failed| failed.error));
        let deferred: Result<Vec<_>, _> = deferred.collect();
        reclaim_all(deferred?, |one| found.push(one), drop)?;
        Ok(found)
    }
}

/// Opens `edu`.
pub fn open_edu(iommus: &Iommus<Machine>, edu: &Function) -> Outcome<Device<Machine>> {
    let mut options = DeviceOptions::trusted();
    options.constraints = options.constraints.address_bits(ADDRESS_BITS);
    Ok(iommus.device_with(edu.at(), &options)?)
}
