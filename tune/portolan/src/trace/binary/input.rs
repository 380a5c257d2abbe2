//! Numbers, strings and blocks of a binary recording, all little-endian.

use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};

use super::error::RecordingError;

/// The longest string that is read.
const LONGEST: usize = 4096;

/// A file that can be read anywhere.
pub(in crate::trace) trait Seekable: Read + Seek {}

impl<T: Read + Seek> Seekable for T {}

/// A part of a recording that is read from front to back.
pub(super) struct PartReader<R> {
    input: R,
    /// Name of the part, for errors.
    part: &'static str,
}

impl<'f> PartReader<BufReader<&'f mut dyn Seekable>> {
    /// The part of `file` that begins at `offset`.
    pub(super) fn at(
        file: &'f mut dyn Seekable,
        offset: u64,
        part: &'static str,
    ) -> Result<Self, RecordingError> {
        file.seek(SeekFrom::Start(offset))?;
        Ok(Self::new(BufReader::new(file), part))
    }
}

impl<R: Read> PartReader<R> {
    pub(super) fn new(input: R, part: &'static str) -> Self {
        Self { input, part }
    }

    /// Goes on to another part.
    pub(super) fn enter(&mut self, part: &'static str) {
        self.part = part;
    }

    fn failed(&self, error: io::Error) -> RecordingError {
        match error.kind() {
            ErrorKind::UnexpectedEof => RecordingError::Cut(self.part),
            _ => RecordingError::Io(error),
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordingError> {
        let mut bytes = [0; N];
        let read = self.input.read_exact(&mut bytes);
        read.map_err(|error| self.failed(error))?;
        Ok(bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, RecordingError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, RecordingError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, RecordingError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, RecordingError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads `length` bytes; refuses more than `most`. Memory is allocated as they arrive.
    pub(super) fn block(&mut self, length: u64, most: u64) -> Result<Vec<u8>, RecordingError> {
        if length > most {
            return Err(RecordingError::TooLarge(self.part));
        }
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(length).read_to_end(&mut bytes);
        read.map_err(|error| self.failed(error))?;
        if (bytes.len() as u64) < length {
            return Err(RecordingError::Cut(self.part));
        }
        Ok(bytes)
    }

    /// Reads a string up to the zero that ends it.
    pub(super) fn string(&mut self) -> Result<String, RecordingError> {
        let mut bytes = Vec::new();
        loop {
            match self.u8()? {
                0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
                _ if bytes.len() == LONGEST => return Err(RecordingError::TooLarge(self.part)),
                byte => bytes.push(byte),
            }
        }
    }

    /// Passes over `length` bytes.
    pub(super) fn skip(&mut self, length: u64) -> Result<(), RecordingError> {
        let skipped = io::copy(&mut self.input.by_ref().take(length), &mut io::sink());
        match skipped.map_err(|error| self.failed(error))? {
            skipped if skipped < length => Err(RecordingError::Cut(self.part)),
            _ => Ok(()),
        }
    }

    /// Reads `text`, which has to come next.
    pub(super) fn expect(&mut self, text: &[u8]) -> Result<(), RecordingError> {
        let found = self.block(text.len() as u64, text.len() as u64)?;
        if found == text { Ok(()) } else { Err(RecordingError::Odd(self.part)) }
    }
}
