//! A controller: its reset, its description and its queues, over any registers and memory.
//!
//! NVM Express base specification 2.0, sections 3.1 (registers), 3.5 (initialisation), 5 (admin commands); NVM
//! command set specification 1.0, section 4.1.5.1 (namespaces). Not supported: namespaces but the first, metadata,
//! pages of other sizes than 4 KiB.

use core::sync::atomic::Ordering;

use portolan::platform::{Clock, Mmio, Nanos};

use super::spec::{
    CAP_NVM, CC_ENABLED, CSTS_FATAL, CSTS_READY, Command, Described, INTERRUPTS_ENABLED, PAGE,
    reg::{ACQ, AQA, ASQ, CAP, CC},
};
use super::{Access, NvmeError, Ring, RingMemory};

/// The timeout in CAP counts half seconds.
const TIMEOUT_UNIT_MILLIS: u64 = 500;

/// Description of a controller and of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Serial number, filled up with spaces.
    pub serial: [u8; 20],
    /// Name of the model, filled up with spaces.
    pub model: [u8; 40],
    /// Most bytes of a command.
    pub most_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of a block, as an exponent: 9 to 12.
    pub block_lg2: u32,
}

/// A controller that runs, with its admin queues.
#[derive(Debug)]
pub struct Controller<R, C, M> {
    admin: Ring<R, C, M>,
}

impl<R: Mmio + Clone, C: Clock + Clone, M: RingMemory> Controller<R, C, M> {
    /// Resets the controller, and starts it with admin queues in `memory`: commands, and completions.
    ///
    /// # Errors
    /// [`NvmeError`]. The controller is left as it is; starting again resets it.
    pub fn start(access: Access<R, C>, memory: [M; 2]) -> Result<Self, NvmeError> {
        let capabilities = access.registers.read64(CAP);
        if capabilities == u64::MAX {
            return Err(NvmeError::Gone);
        }
        let least_page = capabilities >> 48 & 0xf;
        if capabilities & CAP_NVM == 0 || least_page != 0 {
            return Err(NvmeError::Unsupported { capabilities });
        }
        let controller = Self { admin: Ring::new(access, 0, memory)? };
        controller.stop()?;
        let last = u32::from(controller.admin.entries()) - 1;
        let [commands, completions] = controller.admin.places();
        let registers = &controller.access().registers;
        registers.write32(AQA, last << 16 | last);
        registers.write64(ASQ, commands.get());
        registers.write64(ACQ, completions.get());
        registers.write32(CC, CC_ENABLED);
        controller.wait_until(CSTS_READY)?;
        Ok(controller)
    }

    /// Has the controller stop: once it says so, it reaches no memory any more.
    ///
    /// # Errors
    /// [`NvmeError::TimedOut`], [`NvmeError::Gone`].
    pub fn stop(&self) -> Result<(), NvmeError> {
        self.access().registers.write32(CC, 0);
        self.wait_until(0)
    }

    /// Waits until the controller is ready, or is not, as long as it says that it may take.
    fn wait_until(&self, ready: u32) -> Result<(), NvmeError> {
        let access = self.access();
        let units = (access.registers.read64(CAP) >> 24 & 0xff).max(1);
        access.wait(Nanos::from_millis(units * TIMEOUT_UNIT_MILLIS), || {
            let status = access.status()?;
            if ready != 0 && status & CSTS_FATAL != 0 {
                return Err(NvmeError::Fatal { status });
            }
            Ok((status & CSTS_READY == ready).then_some(()))
        })
    }

    /// Registers of the controller.
    pub fn access(&self) -> &Access<R, C> {
        self.admin.access()
    }

    /// Carries out an admin command, and returns its result.
    ///
    /// # Errors
    /// As [`Ring::execute`].
    pub fn execute(&mut self, command: &Command) -> Result<u32, NvmeError> {
        self.admin.execute(command)
    }

    /// Has the controller describe itself and its namespace in `page`, 4,096 bytes at the start of a page.
    ///
    /// # Errors
    /// As [`Ring::execute`]; [`NvmeError::Format`].
    pub fn describe(&mut self, page: &M) -> Result<Description, NvmeError> {
        self.execute(&Command::identify(Described::Controller, page.iova()))?;
        let (serial, model, [pages_lg2]) = (bytes(page, 4), bytes(page, 24), bytes(page, 77));
        let most_bytes = match pages_lg2 {
            0 => u64::MAX,
            pages_lg2 => PAGE.checked_shl(pages_lg2.into()).unwrap_or(u64::MAX),
        };
        self.execute(&Command::identify(Described::Namespace, page.iova()))?;
        let (blocks, [format]) = (u64::from_le_bytes(bytes(page, 0)), bytes(page, 26));
        let format = 128 + 4 * usize::from(format & 0xf | (format >> 5 & 3) << 4);
        match bytes(page, format) {
            // No metadata, and blocks of which a page has some.
            [0, 0, bytes_lg2 @ 9..=12] => {
                Ok(Description { serial, model, most_bytes, blocks, block_lg2: bytes_lg2.into() })
            }
            [low, high, bytes_lg2] => {
                Err(NvmeError::Format { metadata: u16::from_le_bytes([low, high]), bytes_lg2 })
            }
        }
    }

    /// Creates I/O queues of this number, 1 or more, in `memory`: commands, and completions, which raise the
    /// interrupt of this `vector`.
    ///
    /// # Errors
    /// As [`Ring::execute`]; [`NvmeError::ShortQueue`].
    pub fn queue(
        &mut self,
        number: u16,
        memory: [M; 2],
        vector: Option<u16>,
    ) -> Result<Ring<R, C, M>, NvmeError> {
        let ring = Ring::new(self.access().clone(), number, memory)?;
        let ([commands, completions], entries) = (ring.places(), ring.entries());
        let raised = vector.map_or(0, |vector| u32::from(vector) << 16 | INTERRUPTS_ENABLED);
        self.execute(&Command::create_completions(number, entries, completions, raised))?;
        self.execute(&Command::create_commands(number, entries, commands))?;
        Ok(ring)
    }
}

/// Bytes that the controller wrote.
fn bytes<const COUNT: usize>(of: &impl RingMemory, first: usize) -> [u8; COUNT] {
    core::array::from_fn(|at| {
        let word = of.words().get((first + at) / 8);
        let word = word.map_or(0, |word| word.load(Ordering::Relaxed));
        word.to_ne_bytes()[(first + at) % 8]
    })
}
