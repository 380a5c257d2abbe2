//! Compressed traces: xz, zstd and gzip, recognised by their first bytes.
//!
//! A file may hold several xz streams, zstd frames or gzip members, one after the other. Memory is
//! bounded by the largest window that is accepted: 64 MiB for xz (that of `xz -9`), 128 MiB for
//! zstd (`zstd --long`). Not supported: filters and SHA-256 checks of xz, dictionaries of zstd.

use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use xz4rust::{DICT_SIZE_PROFILE_6, DICT_SIZE_PROFILE_9, XzDecoder, XzNextBlockResult};

/// Unpacks `input` if its first bytes say that it is compressed.
///
/// # Errors
/// If its first bytes cannot be read.
pub(super) fn unpacked(mut input: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    let mut head = Vec::new();
    input.by_ref().take(6).read_to_end(&mut head)?;
    let whole = io::Cursor::new(head.clone()).chain(input);
    Ok(match head.as_slice() {
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Box::new(XzStreams::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(ZstdFrames::new(whole)),
        // Skippable frames may come first.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Box::new(ZstdFrames::new(whole)),
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        _ => Box::new(whole),
    })
}

/// Unpacks the zstd frames of `input`.
pub(super) fn zstd(input: impl Read) -> impl Read {
    ZstdFrames::new(input)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Position of a reader of several streams.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Inside,
    Between,
}

/// The contents of one xz stream after the other.
struct XzStreams<R> {
    input: BufReader<R>,
    decoder: Box<XzDecoder<'static>>,
    place: Place,
}

impl<R: Read> XzStreams<R> {
    fn new(input: R) -> Self {
        let (first, most) = (DICT_SIZE_PROFILE_6, DICT_SIZE_PROFILE_9);
        Self {
            input: BufReader::new(input),
            decoder: XzDecoder::in_heap_with_alloc_dict_size(first, most),
            place: Place::Between,
        }
    }
}

impl<R: Read> Read for XzStreams<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let packed = self.input.fill_buf()?;
            if self.place == Place::Between {
                // Streams are padded with zeros.
                let padding = packed.iter().take_while(|byte| **byte == 0).count();
                match packed.len() {
                    0 => return Ok(0),
                    length if length > padding => {
                        self.decoder.reset();
                        self.place = Place::Inside;
                    }
                    _ => {}
                }
                self.input.consume(padding);
                continue;
            }
            if packed.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (taken, written) = match self.decoder.decode(packed, out).map_err(invalid)? {
                XzNextBlockResult::NeedMoreData(taken, written) => (taken, written),
                XzNextBlockResult::EndOfStream(taken, written) => {
                    self.place = Place::Between;
                    (taken, written)
                }
            };
            self.input.consume(taken);
            if written > 0 {
                return Ok(written);
            }
        }
    }
}

/// The contents of one zstd frame after the other.
struct ZstdFrames<R> {
    input: BufReader<R>,
    decoder: FrameDecoder,
    place: Place,
}

impl<R: Read> ZstdFrames<R> {
    fn new(input: R) -> Self {
        Self { input: BufReader::new(input), decoder: FrameDecoder::new(), place: Place::Between }
    }

    /// Begins the next frame that has contents, if there is any.
    fn begin(&mut self) -> io::Result<()> {
        while !self.input.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.input) {
                Ok(()) => {
                    self.place = Place::Inside;
                    return Ok(());
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.input.by_ref().take(length.into());
                    if io::copy(&mut skipped, &mut io::sink())? < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for ZstdFrames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.place == Place::Between {
                self.begin()?;
            }
            if self.place == Place::Between || out.is_empty() {
                return Ok(0);
            }
            let decoder = &mut self.decoder;
            while decoder.can_collect() == 0 && !decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                decoder.decode_blocks(&mut self.input, one).map_err(invalid)?;
            }
            let written = decoder.read(out)?;
            if decoder.is_finished() && decoder.can_collect() == 0 {
                self.place = Place::Between;
                let (said, found) =
                    (decoder.get_checksum_from_data(), decoder.get_calculated_checksum());
                if said.is_some() && said != found {
                    return Err(invalid("the checksum of a zstd frame is wrong"));
                }
            }
            if written > 0 {
                return Ok(written);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of a recorded trace, 21,538 bytes, packed in two parts each.
    const PACKED: [(&str, &[u8]); 3] = [
        ("xz", include_bytes!("fixtures/two-streams.trace.xz")),
        ("zstd", include_bytes!("fixtures/two-frames.trace.zst")),
        ("gzip", include_bytes!("fixtures/two-members.trace.gz")),
    ];

    fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        unpacked(Box::new(io::Cursor::new(packed.to_vec())))?.read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn several_streams_in_a_file_are_all_read() {
        let text = unpack(PACKED[0].1).unwrap();
        assert_eq!(text.len(), 21_538);
        assert!(text.starts_with(b"# tracer: nop\n"));
        for (form, packed) in PACKED {
            assert!(unpack(packed).unwrap() == text, "{form}");
        }
    }

    #[test]
    fn a_file_that_breaks_off_is_an_error_wherever_it_does() {
        for (form, packed) in PACKED {
            let whole = unpack(packed).unwrap();
            // The skippable frame before zstd's first part is a whole file by itself.
            for length in (6..packed.len()).step_by(7).filter(|length| *length != 13) {
                match unpack(&packed[..length]) {
                    Err(_) => {}
                    // Between the two parts.
                    Ok(text) => assert!(whole.starts_with(&text) && text.len() > 5000, "{form}"),
                }
            }
        }
    }

    #[test]
    fn a_flipped_byte_is_never_read_as_another_text() {
        let seed = 0x5eed_0002;
        println!("seed {seed:#x}");
        let mut random = fastrand::Rng::with_seed(seed);
        for (form, packed) in PACKED {
            let whole = unpack(packed).unwrap();
            for _ in 0..500 {
                let mut bad = packed.to_vec();
                let at = random.usize(..bad.len());
                bad[at] ^= random.u8(1..);
                // Some bytes say nothing about the contents (a time of gzip's), others say where the
                // next part is, and with the first ones changed it is no compressed file.
                if let Ok(text) = unpack(&bad) {
                    let known = whole.starts_with(&text) || text == bad;
                    assert!(known, "{form}: byte {at}");
                }
            }
        }
    }
}
