//! An NVMe controller: its registers, a pair of admin queues and a pair of I/O queues with many requests in
//! flight.
//!
//! NVM Express 1.4: registers (section 3.1), queues (4.1), PRPs (4.3), Identify (5.15), Create I/O queues
//! (5.3, 5.4), Read and Write (6.9, 6.15). One namespace, requests of one page. No lists of PRPs, no SGLs.
//! The controller's answers are checked: a completion of no request in flight is an error, and each wait
//! ends.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use portolan::addr::Iova;
use portolan::dma::{Coherent, Device};
use portolan::platform::Mmio;
pub use portolan_bare::nvme::spec::Operation as Transfer;
use portolan_bare::nvme::spec::{
    CC_ENABLED, COMMAND, COMPLETION, CSTS_FATAL, CSTS_READY, Command, Completion, Described,
    doorbells,
    reg::{ACQ, AQA, ASQ, CAP, CC, CSTS},
};
use portolan_linux::memory::Process;
use portolan_linux::vfio::{Bar, Interrupts};
use std::sync::atomic::Ordering;

/// Bytes of a request: one page, and so one PRP.
pub const PAGE: usize = 4096;

const ADMIN_ENTRIES: u16 = 16;
/// The vector that I/O completions raise; the admin queue's is 0.
pub const VECTOR: usize = 1;
/// No request takes longer.
const LIMIT: Duration = Duration::from_secs(30);

/// A pair of queues in memory that the controller and the driver share.
struct Queue {
    number: u16,
    entries: u16,
    /// For commands, and for completions.
    doorbells: [usize; 2],
    submissions: Coherent<Process>,
    completions: Coherent<Process>,
    tail: u16,
    head: u16,
    phase: u64,
}

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
    bar: Bar,
    admin: Queue,
    io: Queue,
    next: u16,
    pub identity: Identity,
}

impl Queue {
    fn new(device: &Device<Process>, cap: u64, number: u16, entries: u16) -> Result<Self> {
        let memory = |bytes: u64| device.coherent(u64::from(entries) * bytes);
        Ok(Self {
            number,
            entries,
            doorbells: doorbells(cap, number),
            submissions: memory(64).context("memory of a submission queue")?,
            completions: memory(16).context("memory of a completion queue")?,
            tail: 0,
            head: 0,
            phase: 1,
        })
    }

    /// Puts a command into the queue; the doorbell is not yet rung.
    fn put(&mut self, number: u16, command: &Command) -> Result<()> {
        let at = usize::from(self.tail) * COMMAND;
        let entry = self.submissions.words().get(at..at + COMMAND);
        for (word, value) in entry.context("a queue is cut")?.iter().zip(command.encode(number)) {
            word.store(value, Ordering::Relaxed);
        }
        self.tail = (self.tail + 1) % self.entries;
        Ok(())
    }

    /// The next completion, if there is one.
    fn take(&mut self) -> Option<Completion> {
        let mut entry = self.completions.words().iter();
        entry.by_ref().nth(usize::from(self.head) * COMPLETION)?;
        let second = entry.next()?.load(Ordering::Acquire);
        if Completion::phase(second) != self.phase {
            return None;
        }
        self.head = (self.head + 1) % self.entries;
        self.phase ^= u64::from(self.head == 0);
        Some(Completion::decode([0, second]))
    }
}

impl Controller {
    /// Resets the controller and gives it queues; the one for I/O has room for `depth` requests in flight.
    /// `interrupts` tells if completions raise them.
    pub fn start(
        bar: Bar,
        device: &Device<Process>,
        depth: u16,
        interrupts: Option<&Interrupts>,
    ) -> Result<Self> {
        let cap = bar.read64(CAP);
        ensure!(cap != u64::MAX, "the controller does not answer");
        // A queue of n entries holds n - 1 requests.
        let entries = depth.checked_add(1).context("too many requests in flight")?;
        let most = (cap & 0xffff) + 1;
        ensure!(u64::from(entries) <= most, "the controller has queues of {most} entries at most");
        let mut controller = Self {
            admin: Queue::new(device, cap, 0, ADMIN_ENTRIES)?,
            io: Queue::new(device, cap, 1, entries)?,
            next: 0,
            identity: Identity::default(),
            bar,
        };
        controller.reset()?;
        let page = device.coherent(PAGE as u64).context("a page")?;
        controller.identify(&page)?;
        controller.create_io(interrupts.is_some())?;
        Ok(controller)
    }

    fn reset(&self) -> Result<()> {
        self.stop()?;
        let (bar, last) = (&self.bar, u32::from(ADMIN_ENTRIES - 1));
        bar.write32(AQA, last << 16 | last);
        bar.write64(ASQ, self.admin.submissions.iova().get());
        bar.write64(ACQ, self.admin.completions.iova().get());
        bar.write32(CC, CC_ENABLED);
        self.wait_ready(CSTS_READY)
    }

    /// Stops the controller: it reaches no memory any more.
    pub fn stop(&self) -> Result<()> {
        self.bar.write32(CC, 0);
        self.wait_ready(0)
    }

    fn wait_ready(&self, wanted: u32) -> Result<()> {
        let begin = Instant::now();
        loop {
            let status = self.bar.read32(CSTS);
            ensure!(status != u32::MAX, "the controller is gone");
            if status & CSTS_READY == wanted {
                return Ok(());
            }
            ensure!(wanted == 0 || status & CSTS_FATAL == 0, "fatal error (CSTS {status:#x})");
            ensure!(begin.elapsed() < LIMIT, "the controller does not become ready");
            std::thread::yield_now();
        }
    }

    fn identify(&mut self, page: &Coherent<Process>) -> Result<()> {
        let bytes = |from: usize, count: usize| -> Vec<u8> {
            let words = page.words().iter();
            let bytes = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
            bytes.skip(from).take(count).collect()
        };
        let text = |from, count| String::from_utf8_lossy(&bytes(from, count)).trim().to_owned();
        self.execute(&Command::identify(Described::Controller, page.iova()))
            .context("Identify Controller")?;
        let (serial, model) = (text(4, 20), text(24, 40));
        self.execute(&Command::identify(Described::Namespace, page.iova()))
            .context("Identify Namespace")?;
        let blocks = page.words()[0].load(Ordering::Relaxed);
        // FLBAS (byte 26) names one of 16 formats from byte 128 on, of which byte 2 is the block's size.
        let format = bytes(26, 1).first().map_or(0, |flbas| flbas & 0xf);
        let lg2 = bytes(128 + 4 * usize::from(format) + 2, 1).first().copied().unwrap_or(0);
        ensure!((9..=12).contains(&lg2), "blocks of 2^{lg2} bytes are not supported");
        self.identity = Identity { serial, model, blocks, block: 1 << lg2 };
        Ok(())
    }

    fn create_io(&mut self, interrupts: bool) -> Result<()> {
        let raises = match interrupts {
            true => (VECTOR as u32) << 16 | 1 << 1,
            false => 0,
        };
        let (number, entries) = (self.io.number, self.io.entries);
        let at = self.io.completions.iova();
        self.execute(&Command::create_completions(number, entries, at, raises))
            .context("Create I/O CQ")?;
        let at = self.io.submissions.iova();
        self.execute(&Command::create_commands(number, entries, at)).context("Create I/O SQ")
    }

    /// Has the admin queue carry out one command.
    fn execute(&mut self, command: &Command) -> Result<()> {
        self.next = self.next.wrapping_add(1);
        self.admin.put(self.next, command)?;
        let [rung, taken] = self.admin.doorbells;
        self.bar.write32(rung, self.admin.tail.into());
        let begin = Instant::now();
        loop {
            if let Some(Completion { id, status, .. }) = self.admin.take() {
                self.bar.write32(taken, self.admin.head.into());
                ensure!(id == self.next, "completion of command {id}, not {}", self.next);
                return good(status);
            }
            self.check(begin)?;
            std::thread::yield_now();
        }
    }

    /// An error if the controller has failed, or nothing has come since `begin` for too long.
    pub fn check(&self, begin: Instant) -> Result<()> {
        let status = self.bar.read32(CSTS);
        ensure!(status & CSTS_FATAL == 0, "fatal error, or gone (CSTS {status:#x})");
        match begin.elapsed() < LIMIT {
            true => Ok(()),
            false => bail!("no completion within {LIMIT:?}"),
        }
    }

    /// Pages that the namespace holds.
    pub fn pages(&self) -> u64 {
        self.identity.blocks / (PAGE as u64 / self.identity.block)
    }

    /// Puts a request of one page into the queue, with `number`, which comes back with its completion.
    pub fn put(&mut self, number: u16, way: Transfer, page: u64, data: Iova) -> Result<()> {
        let blocks = PAGE as u64 / self.identity.block;
        let first = page * blocks;
        let command = Command::transfer(way, first, blocks as u32, [data.get(), 0]);
        self.io.put(number, &command)
    }

    /// Tells the controller of the new commands.
    pub fn ring(&self) {
        self.bar.write32(self.io.doorbells[0], self.io.tail.into());
    }

    /// The number of a request that is complete, if there is one.
    pub fn take(&mut self) -> Result<Option<u16>> {
        match self.io.take() {
            None => Ok(None),
            Some(Completion { id, status, .. }) => good(status).map(|()| Some(id)),
        }
    }

    /// Tells the controller that completions were taken.
    pub fn taken(&self) {
        self.bar.write32(self.io.doorbells[1], self.io.head.into());
    }
}

/// The kind of status in bits 10:8, the code below.
fn good(status: u16) -> Result<()> {
    match status {
        0 => Ok(()),
        status => bail!("the controller says {status:#x}"),
    }
}
