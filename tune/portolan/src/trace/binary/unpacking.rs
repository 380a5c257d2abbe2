//! Records of `perf record -z`: one stream of zstd, in parts that stand between other records.
//!
//! Implements `PERF_RECORD_COMPRESSED` and `COMPRESSED2` of tools/perf. The decoder keeps back as many
//! bytes as the stream's window has, so that records come out later than the parts that hold them: where
//! the stream stood at another record has to be said with it ([`Unpacking::position`]).

use std::io;

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::error::RecordingError;

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The longest head of a frame.
const LONGEST_HEAD: usize = 18;
/// An empty last block, and a checksum for streams that have one: perf leaves its stream open.
const END: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];
const PART: &str = "the compressed records";

/// A stream that is being unpacked.
pub(super) struct Unpacking {
    decoder: FrameDecoder,
    frame: Option<ZstdFrame>,
    packed: Vec<u8>,
    plain: Vec<u8>,
    /// Bytes of `plain` that were read.
    at: usize,
    /// Bytes that were read before `plain`.
    before: u64,
}

/// The frame that is being unpacked.
struct ZstdFrame {
    /// Bytes that the decoder keeps back.
    window: u64,
    /// True if the decoder keeps that many bytes back.
    is_full: bool,
}

fn invalid(error: impl std::fmt::Display) -> RecordingError {
    RecordingError::Packed(PART, io::Error::other(error.to_string()))
}

impl Unpacking {
    pub(super) fn new() -> Self {
        Self {
            decoder: FrameDecoder::new(),
            frame: None,
            packed: Vec::new(),
            plain: Vec::new(),
            at: 0,
            before: 0,
        }
    }

    /// Takes the next part of the stream.
    pub(super) fn feed(&mut self, part: &[u8]) {
        self.packed.extend_from_slice(part);
    }

    /// Ends the stream; writes the bytes that were kept back.
    pub(super) fn finish(&mut self) {
        if self.frame.is_some() {
            self.packed.extend_from_slice(&END);
        }
    }

    /// Place of the stream: behind the bytes that were fed. Nothing if the decoder does not say.
    pub(super) fn position(&self) -> Option<u64> {
        let out = self.before + self.plain.len() as u64;
        match &self.frame {
            None => Some(out),
            Some(frame) => frame.is_full.then_some(out + frame.window),
        }
    }

    /// Place of the next record.
    pub(super) fn read(&self) -> u64 {
        self.before + self.at as u64
    }

    /// The next record, its head included; nothing if it is not there as a whole.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, RecordingError> {
        loop {
            let rest = self.plain.get(self.at..).unwrap_or(b"");
            if let Some(head) = rest.first_chunk::<8>() {
                let length = usize::from(u16::from_le_bytes([head[6], head[7]]));
                if length < head.len() {
                    return Err(RecordingError::Odd("a record"));
                }
                if let Some(record) = rest.get(..length) {
                    self.at += length;
                    return Ok(Some(record.to_vec()));
                }
            }
            if !self.unpack_block()? {
                return Ok(None);
            }
        }
    }

    /// Unpacks a block; returns `false` if the input has no complete block.
    fn unpack_block(&mut self) -> Result<bool, RecordingError> {
        if self.frame.is_none() && !self.begin()? {
            return Ok(false);
        }
        let Some(frame) = &mut self.frame else {
            return Ok(false);
        };
        let Some([first, second, third]) = self.packed.first_chunk() else {
            return Ok(false);
        };
        let head = u32::from_le_bytes([*first, *second, *third, 0]);
        let length = match head >> 1 & 3 {
            // One byte that repeats.
            1 => 1,
            _ => head as usize >> 3,
        };
        let ends = head & 1 != 0;
        let checksum = if ends { 4 } else { 0 };
        if self.packed.len() < 3 + length + checksum {
            return Ok(false);
        }
        let mut source = &self.packed[..];
        let one = BlockDecodingStrategy::UptoBlocks(1);
        self.decoder.decode_blocks(&mut source, one).map_err(invalid)?;
        let taken = self.packed.len() - source.len();
        self.packed.drain(..taken);
        self.before += self.at as u64;
        self.plain.drain(..self.at);
        self.at = 0;
        if let Some(more) = self.decoder.collect() {
            frame.is_full = true;
            self.plain.extend_from_slice(&more);
        }
        if ends {
            self.frame = None;
        }
        Ok(true)
    }

    /// Begins the next frame; false if its head is not there as a whole.
    fn begin(&mut self) -> Result<bool, RecordingError> {
        if self.packed.len() < LONGEST_HEAD {
            return Ok(false);
        }
        let window = match self.packed.strip_prefix(&MAGIC) {
            // Without a window size, the frame's length is the window.
            Some([flags, rest @ ..]) if flags & 0x20 != 0 => length_in_head(*flags, rest),
            Some([_, window, ..]) => {
                let base = 1u64 << (10 + (window >> 3));
                Some(base + (base >> 3) * u64::from(window & 7))
            }
            _ => None,
        };
        let window = window.ok_or(RecordingError::Odd(PART))?;
        let mut source = &self.packed[..];
        self.decoder.init(&mut source).map_err(invalid)?;
        let taken = self.packed.len() - source.len();
        self.packed.drain(..taken);
        self.frame = Some(ZstdFrame { window, is_full: false });
        Ok(true)
    }
}

/// Length of the contents in the head of a frame (RFC 8878, 3.1.1.1.4).
fn length_in_head(flags: u8, rest: &[u8]) -> Option<u64> {
    let dictionary = [0, 1, 2, 4][usize::from(flags & 3)];
    let rest = rest.get(dictionary..)?;
    Some(match flags >> 6 {
        0 => u64::from(*rest.first()?),
        1 => 256 + u64::from(u16::from_le_bytes(*rest.first_chunk()?)),
        2 => u64::from(u32::from_le_bytes(*rest.first_chunk()?)),
        _ => u64::from_le_bytes(*rest.first_chunk()?),
    })
}
