//! The command queue: SMMUv3's interface to the ring ([`crate::chassis::ring`]).
//!
//! IHI 0070, sections 3.5 (queues), 4.8 (CMD_SYNC) and 7.1 (command queue errors). A sync is seen
//! by the consumer index, or by the message that it writes to memory. The lock of `Machine`'s error
//! bits, a leaf, is taken under the ring's.

use super::command::{self, Counters};
use super::machine::Machine;
use crate::chassis::arm::Has;
use crate::chassis::{Published, Ring, Shape, Stop, Unit};
use alloc::sync::Arc;
use core::cell::Cell;
use portolan::addr::PhysAddr;
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, Nanos, UnitPlatform};
use portolan_spec::smmuv3::command::{self as layout, Words, error, op};
use portolan_spec::smmuv3::reg;

const RUNNING: u64 = 0;
const OFF: u64 = 1;
const STOPPED: u64 = 2;

/// The queue.
///
/// *Context.* Interrupt, but for [`CommandQueue::run`], which waits for the unit (atomic), and
/// [`CommandQueue::new`], which takes heap memory (task).
pub(super) struct CommandQueue<P: UnitPlatform> {
    machine: Arc<Machine<P>>,
    ring: Ring<P>,
    state: Published,
    counters: Counters,
}

impl<P: UnitPlatform> CommandQueue<P> {
    /// A queue of `2^lg2` commands, with a sync at least after every `most_unsynced`; syncs write
    /// messages if `messages` says so.
    pub fn new(
        machine: Arc<Machine<P>>,
        lg2: u32,
        most_unsynced: u64,
        messages: Has,
    ) -> Result<Self, IommuError> {
        let shape = Shape { lg2_slots: lg2, lg2_bytes: layout::LG2_BYTES };
        let messages = messages.yes().then_some(());
        Ok(Self {
            ring: Ring::new(&machine.mem, shape, most_unsynced, messages)?,
            machine,
            state: Published::new(RUNNING),
            counters: Counters::default(),
        })
    }

    /// Gives the unit the queue, which must be disabled.
    pub fn install(&self) {
        let (at, lg2) = (self.ring.commands().at, self.ring.shape().lg2_slots);
        let base = reg::BASE_ALLOCATE.at(1) | at.get() | u64::from(lg2);
        self.machine.barrier();
        self.machine.registers.write64(reg::CMDQ_BASE, base);
        self.machine.registers.write32(reg::CMDQ_PROD, 0);
        self.machine.registers.write32(reg::CMDQ_CONS, 0);
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// From now on commands are carried out.
    pub fn set_running(&self) {
        self.state.publish(RUNNING);
    }

    /// Reads the progress of the unit, and puts it back to work if it stopped at a command.
    pub fn service(&self) -> Result<(), IommuError> {
        self.ring.service(self)
    }

    /// From now on nothing has to be invalidated: the unit is disabled, and forgets everything
    /// when it is enabled.
    pub fn set_off(&self) {
        self.state.publish(OFF);
    }

    /// From now on every command fails.
    pub fn set_stopped(&self) {
        self.state.publish(STOPPED);
    }

    /// Checks that commands can be written.
    pub fn running(&self) -> Result<(), IommuError> {
        match self.state.get() {
            RUNNING => Ok(()),
            _ => Err(IommuError::Stopped),
        }
    }

    /// Writes `commands` and a sync, and waits until they are complete.
    pub fn run(&self, commands: impl Iterator<Item = Words>) -> Result<(), IommuError> {
        if self.state.get() == OFF {
            return Ok(());
        }
        let devices = Cell::new(false);
        let commands = commands.inspect(|words| {
            if layout::OP.get(words) == op::ATC_INV {
                devices.set(true);
            }
        });
        self.ring.run(self, commands, &|_| devices.get()).map(drop)
    }

    /// Writes one command if there is room for it at once, and tells if there was; it waits for
    /// nothing. Only for commands that need no sync (4.6: answers to stalls and page requests).
    pub fn post(&self, words: &Words) -> Result<Has, IommuError> {
        if self.state.get() == OFF {
            return Ok(Has::Yes);
        }
        match self.ring.post(self, words)? {
            true => Ok(Has::Yes),
            false => Ok(Has::No),
        }
    }
}

impl<P: UnitPlatform> Unit for CommandQueue<P> {
    type Memory = P::Memory;
    type Cpus = P;
    type Command = Words;

    const TURN_BITS: u32 = 1;
    const INDEX_COMPLETES: bool = true;
    const ABORTS_SYNCS: bool = false;
    const HEAD: usize = reg::CMDQ_CONS;
    /// Of the codes that are recorded of commands, the one that section 7.1 defines.
    const OVERWRITTEN: u32 = error::ILL;

    fn machine(&self) -> (&P::Memory, &P, Nanos) {
        (&self.machine.mem, &self.machine.clock, self.machine.limit)
    }

    fn running(&self) -> Result<(), IommuError> {
        self.running()
    }

    fn words(command: &Words) -> Words {
        *command
    }

    fn count(&self, command: &Words) {
        self.counters.count(command);
    }

    fn sync(at: Option<PhysAddr>, number: u32) -> Words {
        at.map_or_else(command::sync, |at| command::sync_message(at.get(), number))
    }

    fn harmless(_spare: Option<PhysAddr>) -> Words {
        command::sync()
    }

    fn clean(&self, at: PhysAddr, bytes: u64) {
        self.machine.clean(at, bytes);
    }

    fn barrier(&self) {
        self.machine.barrier();
    }

    fn head(&self) -> Result<u64, IommuError> {
        Ok(self.machine.read(reg::CMDQ_CONS)?.into())
    }

    fn index(head: u64, shape: Shape) -> u64 {
        head & ((2 << shape.lg2_slots) - 1)
    }

    fn set_tail(&self, index: u64, _: Shape) {
        self.machine.registers.write32(reg::CMDQ_PROD, index as u32);
    }

    fn stopped(&self, head: u64) -> Result<Option<Stop>, IommuError> {
        let code = reg::CONS_ERR.of(head) as u32;
        let errors = match code {
            0 => 0,
            _ => self.machine.errors()?,
        };
        if errors & reg::gerror::SFM != 0 {
            self.set_stopped();
            return Err(IommuError::Stopped);
        }
        Ok((errors & reg::gerror::CMDQ != 0).then_some(Stop {
            seen: code,
            // What could not be fetched is fetched again, and a sync that a device did not answer
            // is done again.
            refused: (code != error::ABT && code != error::ATC_INV_SYNC).then_some(code),
            silent: (code == error::ATC_INV_SYNC).then_some(None),
        }))
    }

    fn silent(_: Option<u16>) -> u32 {
        error::ATC_INV_SYNC
    }

    fn resume(&self, _: Stop, _: Shape, _: u64, _: u64) -> Result<(), IommuError> {
        self.machine.acknowledge(reg::gerror::CMDQ)
    }
}

impl<P: UnitPlatform> Drop for CommandQueue<P> {
    /// Gives the memory back if the unit is known to be disabled. *Context.* Task.
    fn drop(&mut self) {
        if self.state.get() == OFF {
            self.ring.free(&self.machine.mem);
        }
    }
}

#[cfg(test)]
mod tests;
