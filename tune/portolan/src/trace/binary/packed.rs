//! Packed parts of a `trace.dat`: whole sections, and the chunks that events come in.

use std::io::{self, Cursor, Read};

use super::error::RecordingError;
use super::input::{PartReader, Seekable};
use crate::trace::unpack;

/// The program that packed the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Zstd,
    Zlib,
}

impl Packing {
    pub(super) fn by_name(name: &str) -> Result<Self, RecordingError> {
        match name {
            "none" | "" => Ok(Self::None),
            "zstd" => Ok(Self::Zstd),
            "zlib" => Ok(Self::Zlib),
            _ => Err(RecordingError::Compression(name.escape_debug().to_string())),
        }
    }

    /// Unpacks the next part of `from`: its packed length, its length, and its bytes; at most `most` either way.
    pub(super) fn unpack(
        self,
        from: &mut PartReader<impl Read>,
        part: &'static str,
        most: u64,
    ) -> Result<Vec<u8>, RecordingError> {
        let (packed, length) = (from.u32()?, u64::from(from.u32()?));
        let packed = Cursor::new(from.block(packed.into(), most)?);
        if length > most {
            return Err(RecordingError::TooLarge(part));
        }
        let mut bytes = Vec::new();
        let mut unpacked: Box<dyn Read> = match self {
            Self::None => Box::new(packed),
            Self::Zstd => Box::new(unpack::zstd(packed)),
            Self::Zlib => Box::new(flate2::read::ZlibDecoder::new(packed)),
        };
        let read = unpacked.by_ref().take(length + 1).read_to_end(&mut bytes);
        match read {
            Err(error) => Err(RecordingError::Packed(part, error)),
            Ok(_) if bytes.len() as u64 != length => {
                let error = io::Error::other("it is not of the length that it says");
                Err(RecordingError::Packed(part, error))
            }
            Ok(_) => Ok(bytes),
        }
    }
}

/// The bytes of one CPU, packed or not, front to back.
#[derive(Debug)]
pub(super) struct CpuData {
    /// Place of the rest in the file.
    offset: u64,
    /// Bytes of the file that are left.
    left: u64,
    packing: Packing,
    /// Chunks that are left, once their count was read.
    chunks: Option<u32>,
    chunk: Vec<u8>,
    /// Bytes of the chunk that were read.
    at: usize,
}

impl CpuData {
    pub(super) fn new(offset: u64, left: u64, packing: Packing) -> Self {
        Self { offset, left, packing, chunks: None, chunk: Vec::new(), at: 0 }
    }

    /// Bytes of the file that are left.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Tells if nothing is left.
    pub(super) fn at_end(&self) -> bool {
        self.at == self.chunk.len() && (self.left == 0 || self.chunks == Some(0))
    }

    /// Reads the next bytes; of a chunk, at most `most` are unpacked.
    pub(super) fn fill(
        &mut self,
        file: &mut dyn Seekable,
        out: &mut [u8],
        most: u64,
    ) -> Result<(), RecordingError> {
        const PART: &str = "the events of a CPU";
        if self.packing == Packing::None {
            let length = (out.len() as u64).min(self.left);
            file.seek(io::SeekFrom::Start(self.offset))?;
            let read = file.read_exact(&mut out[..length as usize]);
            read.map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => RecordingError::Cut(PART),
                _ => RecordingError::Io(error),
            })?;
            out[length as usize..].fill(0);
            self.offset = self.offset.saturating_add(length);
            self.left -= length;
            return Ok(());
        }
        let mut filled = 0;
        while filled < out.len() {
            if self.at == self.chunk.len() {
                self.next_chunk(file, most)?;
            }
            let count = (out.len() - filled).min(self.chunk.len() - self.at);
            out[filled..filled + count].copy_from_slice(&self.chunk[self.at..self.at + count]);
            self.at += count;
            filled += count;
        }
        Ok(())
    }

    fn next_chunk(&mut self, file: &mut dyn Seekable, most: u64) -> Result<(), RecordingError> {
        const PART: &str = "the packed events of a CPU";
        let before = self.offset;
        let mut fields = PartReader::at(file, self.offset, PART)?;
        let left = match self.chunks {
            Some(left) => left,
            None => {
                self.offset = self.offset.saturating_add(4);
                fields.u32()?
            }
        };
        self.chunks = Some(left.checked_sub(1).ok_or(RecordingError::Cut(PART))?);
        let packed = fields.u32()?;
        let mut fields = PartReader::at(file, self.offset, PART)?;
        self.chunk = self.packing.unpack(&mut fields, PART, most)?;
        self.at = 0;
        if self.chunk.is_empty() {
            return Err(RecordingError::Odd(PART));
        }
        self.offset = self.offset.saturating_add(8 + u64::from(packed));
        self.left = self.left.saturating_sub(self.offset - before);
        Ok(())
    }
}
