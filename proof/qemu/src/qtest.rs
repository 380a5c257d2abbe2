//! A blocking client of QEMU's qtest protocol over a stream socket.
//!
//! Lines of text: `writel ADDR VALUE`, `readq ADDR`, `inb PORT`; each is answered by `OK`, with a
//! value for reads, or by `FAIL`. `IRQ raise N` and `IRQ lower N` may come before an answer and are
//! kept apart. Several commands may be sent at once ([`Batch`]).
//!
//! Every exchange has a deadline. After the first failure that leaves the stream in doubt every
//! further exchange fails with the same error, at once. Not supported: the clock commands, and
//! `read`/`write` of byte strings (guest RAM is shared instead).

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

/// Longest line that is taken for an answer, in bytes.
const MAX_LINE: usize = 4096;
/// Commands in flight: QEMU stops reading when its answers are not taken.
const IN_FLIGHT: usize = 64;
/// Interrupt lines that are kept until they are taken.
const MAX_IRQS: usize = 4096;

/// Reason why an exchange with QEMU failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QtestError {
    /// QEMU closed the connection: it has ended.
    #[error("QEMU is gone")]
    Gone,
    /// QEMU did not answer within the deadline.
    #[error("QEMU did not answer within {limit:?}")]
    TimedOut {
        /// The deadline.
        limit: Duration,
    },
    /// QEMU answered `FAIL`: it does not know the command.
    #[error("QEMU refused the command")]
    Refused,
    /// The answer is not part of the protocol.
    #[error("QEMU's answer is not of the protocol")]
    BadAnswer,
    /// A value is too large for the width that was read.
    #[error("QEMU answered {value:#x}, which does not fit the width that was read")]
    TooWide {
        /// The value.
        value: u64,
    },
    /// The socket failed otherwise.
    #[error("the socket to QEMU failed: {0}")]
    Socket(ErrorKind),
}

impl QtestError {
    /// Tells if answers and commands may no longer fit each other.
    fn is_final(self) -> bool {
        !matches!(self, Self::Refused | Self::TooWide { .. })
    }
}

/// The level of an interrupt line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqLevel {
    /// `IRQ raise`.
    Raised,
    /// `IRQ lower`.
    Lowered,
}

/// A change of an intercepted interrupt line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqEvent {
    /// Number of the input of the intercepted controller.
    pub line: u32,
    /// Its new level.
    pub level: IrqLevel,
}

/// Interrupt changes since they were last taken, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IrqEvents {
    /// The latest changes.
    pub events: VecDeque<IrqEvent>,
    /// Number of older ones that were dropped.
    pub lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Byte,
    Word,
    Long,
    Quad,
}

impl Width {
    fn letter(self) -> char {
        match self {
            Self::Byte => 'b',
            Self::Word => 'w',
            Self::Long => 'l',
            Self::Quad => 'q',
        }
    }

    fn largest(self) -> u64 {
        match self {
            Self::Byte => u64::from(u8::MAX),
            Self::Word => u64::from(u16::MAX),
            Self::Long => u64::from(u32::MAX),
            Self::Quad => u64::MAX,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Read(Width, u64),
    Write(Width, u64, u64),
    In(Width, u16),
    Out(Width, u16, u32),
}

impl Command {
    fn append(self, text: &mut String) {
        // Writing to a string does not fail.
        let _ = match self {
            Self::Read(w, a) => writeln!(text, "read{} {a:#x}", w.letter()),
            Self::Write(w, a, v) => writeln!(text, "write{} {a:#x} {v:#x}", w.letter()),
            Self::In(w, p) => writeln!(text, "in{} {p:#x}", w.letter()),
            Self::Out(w, p, v) => writeln!(text, "out{} {p:#x} {v:#x}", w.letter()),
        };
    }

    /// Width of the value that the answer holds, if any.
    fn answer(self) -> Option<Width> {
        match self {
            Self::Read(width, _) | Self::In(width, _) => Some(width),
            Self::Write(..) | Self::Out(..) => None,
        }
    }
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident($address:ident: $of:ty $(, $value:ident: $wide:ty)?)
        => $command:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $address: $of $(, $value: $wide)?) -> &mut Self {
            self.commands.push($command);
            self
        }
    )*};
}

/// Commands to be sent together; the values of the reads are returned in order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    commands: Vec<Command>,
}

impl Batch {
    /// Makes a script without commands.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of commands.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Tells if there is no command.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    commands! {
        /// Adds a write of one byte of memory space.
        write8(address: u64, value: u8) => Command::Write(Width::Byte, address, value.into());
        /// Adds a write of two bytes of memory space.
        write16(address: u64, value: u16) => Command::Write(Width::Word, address, value.into());
        /// Adds a write of four bytes of memory space.
        write32(address: u64, value: u32) => Command::Write(Width::Long, address, value.into());
        /// Adds a write of eight bytes of memory space.
        write64(address: u64, value: u64) => Command::Write(Width::Quad, address, value);
        /// Adds a read of four bytes of memory space.
        read32(address: u64) => Command::Read(Width::Long, address);
        /// Adds a read of eight bytes of memory space.
        read64(address: u64) => Command::Read(Width::Quad, address);
        /// Adds a write of four bytes to a port.
        out32(port: u16, value: u32) => Command::Out(Width::Long, port, value);
        /// Adds a read of four bytes from a port.
        in32(port: u16) => Command::In(Width::Long, port);
    }
}

#[derive(Debug)]
struct Link {
    stream: UnixStream,
    limit: Duration,
    text: String,
    received: Vec<u8>,
    /// Bytes of `received` already taken.
    taken: usize,
    irqs: IrqEvents,
    exchanges: u64,
    failed: Option<QtestError>,
}

/// A connection to a QEMU; clones share it, and one exchange runs at a time.
///
/// Addresses are guest-physical. QEMU handles a command completely before it answers, so the
/// immediate effects of a register write are there when the call returns. Values are in the CPU's
/// byte order of the guest, little-endian on both machines.
#[derive(Clone, Debug)]
pub struct Qtest {
    link: Arc<Mutex<Link>>,
}

impl Qtest {
    /// A client on a connected socket; `limit` is the longest wait for an answer.
    ///
    /// # Errors
    /// [`QtestError::Socket`] if the deadlines cannot be set, as for a `limit` of zero.
    pub fn new(stream: UnixStream, limit: Duration) -> Result<Self, QtestError> {
        let set = stream
            .set_read_timeout(Some(limit))
            .and_then(|()| stream.set_write_timeout(Some(limit)));
        set.map_err(|e| QtestError::Socket(e.kind()))?;
        Ok(Self {
            link: Arc::new(Mutex::new(Link {
                stream,
                limit,
                text: String::new(),
                received: Vec::new(),
                taken: 0,
                irqs: IrqEvents::default(),
                exchanges: 0,
                failed: None,
            })),
        })
    }

    /// Changes the longest wait for an answer.
    ///
    /// # Errors
    /// [`QtestError::Socket`] if it cannot be set, as for zero.
    pub fn set_limit(&self, limit: Duration) -> Result<(), QtestError> {
        let mut link = self.lock();
        let stream = &link.stream;
        let set = stream
            .set_read_timeout(Some(limit))
            .and_then(|()| stream.set_write_timeout(Some(limit)));
        set.map_err(|e| QtestError::Socket(e.kind()))?;
        link.limit = limit;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The failure after which nothing works any more.
    pub fn failed(&self) -> Option<QtestError> {
        self.lock().failed
    }

    /// Number of sends followed by a wait for answers, so far.
    pub fn exchanges(&self) -> u64 {
        self.lock().exchanges
    }

    /// Takes the interrupt changes seen so far; they arrive with the answer of a later command.
    pub fn take_irqs(&self) -> IrqEvents {
        std::mem::take(&mut self.lock().irqs)
    }

    /// Lets QEMU report the inputs of the interrupt controller at `path` of its object tree, or, on x86, `ioapic`.
    /// Only one controller in the life of a QEMU.
    ///
    /// # Errors
    /// [`QtestError::Refused`] if QEMU does not know the path, or `path` is not one word.
    pub fn irq_intercept_in(&self, path: &str) -> Result<(), QtestError> {
        if path.is_empty() || path.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(QtestError::Refused);
        }
        let mut link = self.lock();
        link.text.clear();
        let _ = writeln!(link.text, "irq_intercept_in {path}");
        link.send()?;
        let deadline = link.deadline();
        link.answer(None, deadline).map(drop)
    }

    /// Sends all commands of `batch`, some dozens at a time, and returns the values of the reads.
    ///
    /// # Errors
    /// The first failure; the commands after it were carried out if QEMU is still there.
    pub fn submit(&self, batch: &Batch) -> Result<Vec<u64>, QtestError> {
        let mut values = Vec::new();
        let mut link = self.lock();
        for commands in batch.commands.chunks(IN_FLIGHT) {
            link.exchange(commands, |value| values.push(value))?;
        }
        Ok(values)
    }

    fn one(&self, command: Command) -> Result<u64, QtestError> {
        let mut got = 0;
        self.lock().exchange(&[command], |value| got = value)?;
        Ok(got)
    }
}

macro_rules! single {
    ($($what:literal, $width:ident, $value:ty: $read:ident $write:ident;)*) => {
        /// Memory space; all fail with [`QtestError`].
        #[allow(clippy::unnecessary_cast, clippy::missing_errors_doc)]
        impl Qtest {$(
            #[doc = concat!("Reads ", $what, " at a guest-physical address.")]
            pub fn $read(&self, address: u64) -> Result<$value, QtestError> {
                // The width has been checked.
                self.one(Command::Read(Width::$width, address)).map(|value| value as $value)
            }

            #[doc = concat!("Writes ", $what, " at a guest-physical address.")]
            pub fn $write(&self, address: u64, value: $value) -> Result<(), QtestError> {
                self.one(Command::Write(Width::$width, address, value.into())).map(drop)
            }
        )*}
    };
    (ports: $($what:literal, $width:ident, $value:ty: $read:ident $write:ident;)*) => {
        /// Port space (x86 only); all fail with [`QtestError`].
        #[allow(clippy::missing_errors_doc)]
        impl Qtest {$(
            #[doc = concat!("Reads ", $what, " from a port.")]
            pub fn $read(&self, port: u16) -> Result<$value, QtestError> {
                self.one(Command::In(Width::$width, port)).map(|value| value as $value)
            }

            #[doc = concat!("Writes ", $what, " to a port.")]
            pub fn $write(&self, port: u16, value: $value) -> Result<(), QtestError> {
                self.one(Command::Out(Width::$width, port, value.into())).map(drop)
            }
        )*}
    };
}

single! {
    "one byte", Byte, u8: read8 write8;
    "two bytes", Word, u16: read16 write16;
    "four bytes", Long, u32: read32 write32;
    "eight bytes", Quad, u64: read64 write64;
}
single! { ports:
    "one byte", Byte, u8: in8 out8;
    "two bytes", Word, u16: in16 out16;
    "four bytes", Long, u32: in32 out32;
}

impl Link {
    fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.limit)
    }

    /// Remembers a failure after which the stream cannot be trusted.
    fn fail(&mut self, error: QtestError) -> QtestError {
        if error.is_final() {
            self.failed = Some(error);
        }
        error
    }

    fn socket(&self, error: &std::io::Error) -> QtestError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                QtestError::TimedOut { limit: self.limit }
            }
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::WriteZero => {
                QtestError::Gone
            }
            kind => QtestError::Socket(kind),
        }
    }

    fn send(&mut self) -> Result<(), QtestError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.exchanges += 1;
        let sent = self.stream.write_all(self.text.as_bytes());
        sent.map_err(|e| {
            let error = self.socket(&e);
            self.fail(error)
        })
    }

    fn exchange(
        &mut self,
        commands: &[Command],
        mut take: impl FnMut(u64),
    ) -> Result<(), QtestError> {
        self.text.clear();
        for command in commands {
            command.append(&mut self.text);
        }
        self.send()?;
        let deadline = self.deadline();
        let mut first = Ok(());
        // All answers are taken even after a refusal, so that the next exchange finds its own.
        for command in commands {
            match self.answer(command.answer(), deadline) {
                Ok(value) if command.answer().is_some() => take(value),
                Ok(_) => {}
                Err(error) if error.is_final() => return Err(error),
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }

    fn answer(
        &mut self,
        wanted: Option<Width>,
        deadline: Option<Instant>,
    ) -> Result<u64, QtestError> {
        loop {
            let (start, end) = self.line(deadline)?;
            let line = self.received.get(start..end).unwrap_or_default();
            match classify(line, wanted) {
                Ok(Line::Value(value)) => return Ok(value),
                Ok(Line::Irq(event)) => self.irqs.push(event),
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    /// Bounds of the next line in `received`, without its end.
    fn line(&mut self, deadline: Option<Instant>) -> Result<(usize, usize), QtestError> {
        let mut searched = self.taken;
        loop {
            let fresh = self.received.get(searched..).unwrap_or_default();
            if let Some(at) = fresh.iter().position(|byte| *byte == b'\n') {
                let bounds = (self.taken, searched + at);
                self.taken = searched + at + 1;
                return Ok(bounds);
            }
            self.received.drain(..self.taken);
            self.taken = 0;
            searched = self.received.len();
            if searched > MAX_LINE {
                return Err(self.fail(QtestError::BadAnswer));
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(self.fail(QtestError::TimedOut { limit: self.limit }));
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(self.fail(QtestError::Gone)),
                Ok(count) => {
                    let piece = piece.get(..count).unwrap_or_default();
                    self.received.extend_from_slice(piece);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    let error = self.socket(&e);
                    return Err(self.fail(error));
                }
            }
        }
    }
}

impl IrqEvents {
    fn push(&mut self, event: IrqEvent) {
        if self.events.len() >= MAX_IRQS {
            self.events.pop_front();
            self.lost += 1;
        }
        self.events.push_back(event);
    }
}

enum Line {
    Value(u64),
    Irq(IrqEvent),
}

fn classify(line: &[u8], wanted: Option<Width>) -> Result<Line, QtestError> {
    let line = std::str::from_utf8(line).map_err(|_| QtestError::BadAnswer)?;
    let mut words = line.split_ascii_whitespace();
    match (words.next(), wanted) {
        (Some("OK"), None) => Ok(Line::Value(0)),
        (Some("OK"), Some(width)) => {
            let number = words.next().and_then(number).ok_or(QtestError::BadAnswer)?;
            if number > width.largest() {
                return Err(QtestError::TooWide { value: number });
            }
            Ok(Line::Value(number))
        }
        (Some("FAIL" | "ERR"), _) => Err(QtestError::Refused),
        (Some("IRQ"), _) => {
            let level = match words.next() {
                Some("raise") => IrqLevel::Raised,
                Some("lower") => IrqLevel::Lowered,
                _ => return Err(QtestError::BadAnswer),
            };
            let line =
                words.next().and_then(|word| word.parse().ok()).ok_or(QtestError::BadAnswer)?;
            Ok(Line::Irq(IrqEvent { line, level }))
        }
        _ => Err(QtestError::BadAnswer),
    }
}

/// Parses a number, hexadecimal with `0x` or decimal.
fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests;
