//! An NVMe controller: its registers, a pair of admin queues and a pair of I/O queues with many requests in
//! flight.
//!
//! NVM Express 1.4: registers (section 3.1), queues (4.1), PRPs (4.3), Identify (5.15), Create I/O queues
//! (5.3, 5.4), Read and Write (6.9, 6.15). One namespace, requests of one page. No lists of PRPs, no SGLs.
//! What the controller says is checked: a completion of no request in flight is an error, and each wait ends.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use portolan::addr::Iova;
use portolan::dma::{Coherent, Device};
use portolan::platform::Mmio;
use portolan_linux::memory::Process;
use portolan_linux::vfio::{Bar, Interrupts};
use std::sync::atomic::Ordering;

/// Bytes of a request: one page, and so one PRP.
pub const PAGE: usize = 4096;

const CAP: usize = 0x00;
const CC: usize = 0x14;
const CSTS: usize = 0x1c;
const AQA: usize = 0x24;
const ASQ: usize = 0x28;
const ACQ: usize = 0x30;
const DOORBELLS: usize = 0x1000;
/// Entries of 64 and 16 bytes.
const CC_ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
const CC_ENABLE: u32 = 1;
const CSTS_READY: u32 = 1;
const CSTS_FATAL: u32 = 2;

const CREATE_SUBMISSION: u8 = 0x01;
const CREATE_COMPLETION: u8 = 0x05;
const IDENTIFY: u8 = 0x06;
const ADMIN_ENTRIES: u16 = 16;
/// The vector that I/O completions raise; the admin queue's is 0.
pub const VECTOR: usize = 1;
/// No request takes longer.
const LIMIT: Duration = Duration::from_secs(30);

/// Which way a request's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    Write,
    Read,
}

/// A pair of queues in memory that the controller and the driver share.
struct Queue {
    number: u16,
    entries: u16,
    submissions: Coherent<Process>,
    completions: Coherent<Process>,
    tail: u16,
    head: u16,
    phase: u64,
}

/// What the controller says of itself.
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
    doorbell: usize,
    admin: Queue,
    io: Queue,
    next: u16,
    pub identity: Identity,
}

impl Queue {
    fn new(device: &Device<Process>, number: u16, entries: u16) -> Result<Self> {
        let memory = |bytes: u64| device.coherent(u64::from(entries) * bytes);
        Ok(Self {
            number,
            entries,
            submissions: memory(64).context("memory of a submission queue")?,
            completions: memory(16).context("memory of a completion queue")?,
            tail: 0,
            head: 0,
            phase: 1,
        })
    }

    /// Puts a command into the queue; the doorbell is not yet rung.
    fn put(&mut self, command: [u64; 8]) -> Result<()> {
        let at = usize::from(self.tail) * 8;
        let entry = self.submissions.words().get(at..at + 8);
        for (word, value) in entry.context("a queue is cut")?.iter().zip(command) {
            word.store(value, Ordering::Relaxed);
        }
        self.tail = (self.tail + 1) % self.entries;
        Ok(())
    }

    /// The next completion, if there is one: the command's number, and its status.
    fn take(&mut self) -> Option<(u16, u16)> {
        let words = self.completions.words();
        let word = words
            .get(usize::from(self.head) * 2 + 1)?
            .load(Ordering::Acquire);
        if word >> 48 & 1 != self.phase {
            return None;
        }
        self.head = (self.head + 1) % self.entries;
        self.phase ^= u64::from(self.head == 0);
        Some(((word >> 32) as u16, (word >> 49) as u16))
    }
}

/// The words of a command, but for its number.
fn command(opcode: u8, namespace: u32, data: Iova, words: [u32; 3]) -> [u64; 8] {
    let [w10, w11, w12] = words.map(u64::from);
    let head = u64::from(opcode) | u64::from(namespace) << 32;
    [head, 0, 0, data.get(), 0, w10 | w11 << 32, w12, 0]
}

impl Controller {
    /// Resets the controller and gives it queues; the one for I/O has room for `depth` requests in flight.
    /// `interrupts` says whether completions raise them.
    pub fn start(
        bar: Bar,
        device: &Device<Process>,
        depth: u16,
        interrupts: Option<&Interrupts>,
    ) -> Result<Self> {
        let cap = bar.read64(CAP);
        ensure!(cap != u64::MAX, "the controller does not answer");
        // A queue of n entries holds n - 1 requests.
        let entries = depth
            .checked_add(1)
            .context("too many requests in flight")?;
        let most = (cap & 0xffff) + 1;
        ensure!(
            u64::from(entries) <= most,
            "the controller has queues of {most} entries at most"
        );
        let mut controller = Self {
            doorbell: 4 << (cap >> 32 & 0xf),
            admin: Queue::new(device, 0, ADMIN_ENTRIES)?,
            io: Queue::new(device, 1, entries)?,
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
        bar.write32(CC, CC_ENTRY_SIZES | CC_ENABLE);
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
            ensure!(
                wanted == 0 || status & CSTS_FATAL == 0,
                "fatal error (CSTS {status:#x})"
            );
            ensure!(
                begin.elapsed() < LIMIT,
                "the controller does not become ready"
            );
            std::thread::yield_now();
        }
    }

    fn identify(&mut self, page: &Coherent<Process>) -> Result<()> {
        let bytes = |from: usize, count: usize| -> Vec<u8> {
            let words = page.words().iter();
            let bytes = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
            bytes.skip(from).take(count).collect()
        };
        let text = |from, count| {
            String::from_utf8_lossy(&bytes(from, count))
                .trim()
                .to_owned()
        };
        self.execute(command(IDENTIFY, 0, page.iova(), [1, 0, 0]))
            .context("Identify Controller")?;
        let (serial, model) = (text(4, 20), text(24, 40));
        self.execute(command(IDENTIFY, 1, page.iova(), [0, 0, 0]))
            .context("Identify Namespace")?;
        let blocks = page.words()[0].load(Ordering::Relaxed);
        // FLBAS (byte 26) names one of 16 formats from byte 128 on, of which byte 2 is the block's size.
        let format = bytes(26, 1).first().map_or(0, |flbas| flbas & 0xf);
        let lg2 = bytes(128 + 4 * usize::from(format) + 2, 1)
            .first()
            .copied()
            .unwrap_or(0);
        ensure!(
            (9..=12).contains(&lg2),
            "blocks of 2^{lg2} bytes are not supported"
        );
        self.identity = Identity {
            serial,
            model,
            blocks,
            block: 1 << lg2,
        };
        Ok(())
    }

    fn create_io(&mut self, interrupts: bool) -> Result<()> {
        let size = u32::from(self.io.entries - 1) << 16 | u32::from(self.io.number);
        let contiguous = 1;
        let raises = match interrupts {
            true => (VECTOR as u32) << 16 | 1 << 1,
            false => 0,
        };
        let data = self.io.completions.iova();
        let words = [size, raises | contiguous, 0];
        self.execute(command(CREATE_COMPLETION, 0, data, words))
            .context("Create I/O CQ")?;
        let data = self.io.submissions.iova();
        let words = [size, u32::from(self.io.number) << 16 | contiguous, 0];
        self.execute(command(CREATE_SUBMISSION, 0, data, words))
            .context("Create I/O SQ")
    }

    /// Has the admin queue carry out one command.
    fn execute(&mut self, mut command: [u64; 8]) -> Result<()> {
        self.next = self.next.wrapping_add(1);
        command[0] |= u64::from(self.next) << 16;
        self.admin.put(command)?;
        self.bar.write32(DOORBELLS, self.admin.tail.into());
        let begin = Instant::now();
        loop {
            if let Some((number, status)) = self.admin.take() {
                self.bar
                    .write32(DOORBELLS + self.doorbell, self.admin.head.into());
                ensure!(
                    number == self.next,
                    "completion of command {number}, not {}",
                    self.next
                );
                return good(status);
            }
            self.check(begin)?;
            std::thread::yield_now();
        }
    }

    /// An error if the controller has failed, or nothing has come since `begin` for too long.
    pub fn check(&self, begin: Instant) -> Result<()> {
        let status = self.bar.read32(CSTS);
        ensure!(
            status & CSTS_FATAL == 0,
            "fatal error, or gone (CSTS {status:#x})"
        );
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
        let opcode = match way {
            Transfer::Write => 1,
            Transfer::Read => 2,
        };
        let blocks = PAGE as u64 / self.identity.block;
        let first = page * blocks;
        let words = [first as u32, (first >> 32) as u32, blocks as u32 - 1];
        let mut command = command(opcode, 1, data, words);
        command[0] |= u64::from(number) << 16;
        self.io.put(command)
    }

    /// Tells the controller of what was put.
    pub fn ring(&self) {
        self.bar
            .write32(DOORBELLS + 2 * self.doorbell, self.io.tail.into());
    }

    /// The number of a request that is complete, if there is one.
    pub fn take(&mut self) -> Result<Option<u16>> {
        match self.io.take() {
            None => Ok(None),
            Some((number, status)) => good(status).map(|()| Some(number)),
        }
    }

    /// Tells the controller that completions were taken.
    pub fn taken(&self) {
        self.bar
            .write32(DOORBELLS + 3 * self.doorbell, self.io.head.into());
    }
}

/// A status field without the phase bit: code type in bits 10:8, code in bits 7:0.
fn good(status: u16) -> Result<()> {
    match status & 0x7ff {
        0 => Ok(()),
        status => bail!("the controller says {status:#x}"),
    }
}
