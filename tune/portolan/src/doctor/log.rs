//! The kernel's log of a machine: `/dev/kmsg` (Documentation/ABI/testing/dev-kmsg of Linux), a file, or kept text.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::Reading;

/// Bytes of a log that [`Log::text`] reads at most.
const MOST_BYTES: u64 = 16 << 20;
/// Bytes of the longest record of `/dev/kmsg`.
const MOST_RECORD: usize = 8192;
/// Beginning of what a terminal obeys.
const ESCAPE: u8 = 0x1b;
/// Records that are read from `/dev/kmsg` at most.
const MOST_RECORDS: usize = 1 << 20;

/// Source of a kernel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Log {
    /// The ring of the running kernel.
    Ring(PathBuf),
    /// A file with lines; `-` is standard input.
    File(PathBuf),
    /// Text.
    Kept(String),
    /// None was given.
    Unknown,
}

impl Log {
    /// Opens the log for reading by lines.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(match self {
            Self::Ring(path) => Box::new(Cursor::new(ring(path)?)),
            Self::File(path) if path == Path::new("-") => Box::new(BufReader::new(io::stdin())),
            Self::File(path) => Box::new(BufReader::new(File::open(path)?)),
            Self::Kept(text) => Box::new(Cursor::new(text.as_bytes())),
            Self::Unknown => return Err(io::ErrorKind::NotFound.into()),
        })
    }

    /// The first 16 MiB of the log; bytes that are no text are replaced.
    pub fn text(&self) -> Reading<String> {
        let read = || {
            let mut bytes = Vec::new();
            self.open()?.take(MOST_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&plain(&bytes)).into_owned())
        };
        Reading::from(read())
    }
}

/// `bytes` without what a terminal obeys: colours, moves and titles (ECMA-48, sections 5.4 and 5.6).
pub(super) fn plain(bytes: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(ESCAPE, bytes).is_none() {
        return Cow::Borrowed(bytes);
    }
    let (mut out, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let Some(at) = memchr::memchr(ESCAPE, rest) {
        let (before, escape) = rest.split_at(at);
        out.extend_from_slice(before);
        let length = match escape.get(1) {
            // A sequence ends with a letter or one of few signs, a string with a bell or another escape.
            Some(b'[') => {
                let inside = |byte: &&u8| matches!(byte, 0x20..=0x3f);
                let inside = escape.iter().skip(2).take_while(inside).count();
                let ends = matches!(escape.get(2 + inside), Some(0x40..=0x7e));
                2 + inside + usize::from(ends)
            }
            Some(b']' | b'P' | b'_' | b'^' | b'X') => {
                let inside = |byte: &&u8| !matches!(**byte, 0x07 | ESCAPE | b'\n');
                let inside = escape.iter().skip(2).take_while(inside).count();
                2 + inside + usize::from(escape.get(2 + inside) == Some(&0x07))
            }
            Some(0x20..=0x7e) => 2,
            _ => 1,
        };
        rest = escape.get(length..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

/// The records of `/dev/kmsg` as lines in the form of `dmesg`.
fn ring(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let (mut record, mut lines) = (vec![0; MOST_RECORD], Vec::new());
    for _ in 0..MOST_RECORDS {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(read) => line(record.get(..read).unwrap_or_default(), &mut lines),
            Err(error) => match error.kind() {
                // A record that was overwritten meanwhile; the next read goes on behind it.
                io::ErrorKind::BrokenPipe | io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => break,
                _ => return Err(error),
            },
        }
    }
    Ok(lines)
}

/// Adds `6,339,5140900,-;text` as `[    5.140900] text`.
fn line(record: &[u8], lines: &mut Vec<u8>) {
    let record = String::from_utf8_lossy(record);
    let Some((prefix, text)) = record.split_once(';') else {
        return;
    };
    let micros: u64 = prefix.split(',').nth(2).and_then(|time| time.parse().ok()).unwrap_or(0);
    // Lines behind the first are the record's dictionary.
    let text = text.lines().next().unwrap_or_default();
    let stamp = format!("[{:5}.{:06}] ", micros / 1_000_000, micros % 1_000_000);
    lines.extend_from_slice(stamp.as_bytes());
    put_unescaped(text, lines);
    lines.push(b'\n');
}

/// Adds `text`, whose bytes that are not ASCII's printable ones the ring has as `\x09`. Control characters but the tab
/// stay as they are there.
fn put_unescaped(text: &str, lines: &mut Vec<u8>) {
    let mut parts = text.split("\\x");
    lines.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let digits = part.split_at_checked(2);
        let byte = digits.and_then(|(digits, _)| u8::from_str_radix(digits, 16).ok());
        match (digits, byte.filter(|byte| *byte == b'\t' || !byte.is_ascii_control())) {
            (Some((_, rest)), Some(byte)) => {
                lines.push(byte);
                lines.extend_from_slice(rest.as_bytes());
            }
            _ => {
                lines.extend_from_slice(b"\\x");
                lines.extend_from_slice(part.as_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line_with_its_time() {
        let mut lines = Vec::new();
        line(b"6,339,5140900,-;DMAR: IOMMU enabled\n SUBSYSTEM=pci\n", &mut lines);
        line(b"no record", &mut lines);
        assert_eq!(String::from_utf8(lines).unwrap(), "[    5.140900] DMAR: IOMMU enabled\n");
    }

    #[test]
    fn what_a_terminal_obeys_is_left_out_and_the_rest_stays() {
        for (bytes, text) in [
            ("a\x1b[31;1mb\x1b[0m c", "ab c"),
            ("\x1b]0;title\x07a\x1b]8;;x\x1b\\b\n", "ab\n"),
            ("\x1b(Ba\x1b", "Ba"),
            ("\x1b[31\nnext", "\nnext"),
            ("\x1b]never ends\nnext", "\nnext"),
            ("none", "none"),
        ] {
            assert_eq!(String::from_utf8_lossy(&plain(bytes.as_bytes())), text, "{bytes:?}");
        }
        let log = Log::Kept("a \x1b[1mb\n".to_owned());
        assert_eq!(log.text(), Reading::Found("a b\n".to_owned()));
    }

    #[test]
    fn bytes_that_the_ring_escapes_are_read_and_control_characters_stay_escaped() {
        let of = |text: &str| {
            let mut lines = Vec::new();
            line(format!("6,339,5,-;{text}\n").as_bytes(), &mut lines);
            String::from_utf8(lines).unwrap()
        };
        assert_eq!(of(r"\x090x10"), "[    0.000005] \t0x10\n");
        assert_eq!(of(r"a\x5cb\xc3\xa9"), "[    0.000005] a\\bé\n");
        for kept in [r"\x1b[2J", r"\x0a", r"\x", r"\xg0", r"\x1é"] {
            assert_eq!(of(kept), format!("[    0.000005] {kept}\n"));
        }
    }

    #[test]
    fn a_kept_log_and_a_missing_one() {
        assert_eq!(Log::Kept("a\n".to_owned()).text(), Reading::Found("a\n".to_owned()));
        assert_eq!(Log::Unknown.text(), Reading::Absent);
        assert_eq!(Log::File(PathBuf::from("/no/such/log")).text(), Reading::Absent);
    }
}
