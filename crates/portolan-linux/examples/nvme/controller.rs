//! The disk: `portolan-bare`'s driver over VFIO, with a pair of I/O queues and many requests in flight.
//!
//! One namespace, requests of one page.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portolan::addr::Iova;
use portolan::dma::{Coherent, Device};
use portolan::platform::Nanos;
pub use portolan_bare::nvme::Operation as Transfer;
use portolan_bare::nvme::spec::{COMMAND, COMPLETION, Command};
use portolan_bare::nvme::{self, Access, Ring};
use portolan_linux::memory::Process;
use portolan_linux::vfio::Bar;

/// Bytes of a request: one page, and so one PRP.
pub const PAGE: usize = 4096;

const ADMIN_ENTRIES: u64 = 16;
/// The vector that I/O completions raise; the admin queue's is 0.
pub const VECTOR: usize = 1;
/// No request takes longer.
const LIMIT: Duration = Duration::from_secs(30);

/// Identity that the controller reports.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Identity {
    pub serial: String,
    pub model: String,
    /// Blocks of the namespace.
    pub blocks: u64,
    /// Bytes of a block.
    pub block: u64,
}

/// A running controller.
pub struct Controller {
    driver: nvme::Controller<Arc<Bar>, Process, Coherent<Process>>,
    io: Ring<Arc<Bar>, Process, Coherent<Process>>,
    pub identity: Identity,
}

impl Controller {
    /// Resets the controller and gives it queues; the one for I/O has room for `depth` requests in flight.
    /// `vector` is the interrupt that completions raise, if they raise any.
    pub fn start(
        bar: Bar,
        device: &Device<Process>,
        depth: u16,
        vector: Option<u16>,
    ) -> Result<Self> {
        let memory = |entries: u64| -> Result<[Coherent<Process>; 2]> {
            let memory = |words: usize| device.coherent(entries * words as u64 * 8);
            Ok([memory(COMMAND)?, memory(COMPLETION)?])
        };
        let limit = Nanos::from_millis(LIMIT.as_millis() as u64);
        let access = Access { registers: Arc::new(bar), clock: Process, limit };
        let mut driver = nvme::Controller::start(access, memory(ADMIN_ENTRIES)?)?;
        let page = device.coherent(PAGE as u64).context("a page")?;
        let description = driver.describe(&page)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let identity = Identity {
            serial: text(&description.serial),
            model: text(&description.model),
            blocks: description.blocks,
            block: 1 << description.block_lg2,
        };
        // A queue of n entries holds n - 1 requests.
        let memory = memory(u64::from(depth) + 1)?;
        let io = driver.queue(1, memory, vector)?;
        let room = io.room();
        ensure!(depth <= room, "the controller has room for {room} requests at most");
        Ok(Self { driver, io, identity })
    }

    /// Stops the controller: it reaches no memory any more.
    pub fn stop(&self) -> Result<()> {
        Ok(self.driver.stop()?)
    }

    /// An error if the controller has failed, or nothing has come since `begin` for too long.
    pub fn check(&self, begin: Instant) -> Result<()> {
        self.driver.access().check()?;
        ensure!(begin.elapsed() < LIMIT, "no completion within {LIMIT:?}");
        Ok(())
    }

    /// Pages that the namespace holds.
    pub fn pages(&self) -> u64 {
        self.identity.blocks / (PAGE as u64 / self.identity.block)
    }

    /// Puts a request of one page into the queue, with `number`, which comes back with its completion.
    pub fn put(&mut self, number: u16, way: Transfer, page: u64, data: Iova) {
        let blocks = PAGE as u64 / self.identity.block;
        let first = page * blocks;
        let command = Command::transfer(way, first, blocks as u32, [data.get(), 0]);
        self.io.put(number, &command);
    }

    /// Tells the controller of the new commands.
    pub fn ring(&self) {
        self.io.announce();
    }

    /// The number of a request that is complete, if there is one.
    pub fn take(&mut self) -> Result<Option<u16>> {
        let Some(completion) = self.io.take() else {
            return Ok(None);
        };
        completion.result()?;
        Ok(Some(completion.id))
    }

    /// Tells the controller that completions were taken.
    pub fn taken(&self) {
        self.io.release();
    }
}
