//! Destination of a recording: a gzip file that appears whole, a device or pipe, or standard output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::error::RecordError;

/// Handling of a file that exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Leave it alone, and refuse.
    Keep,
    /// Write another in its place.
    Replace,
}

/// A recording being written. A file has the name that was asked for once it is whole; until then it is
/// `NAME.partial`, which goes when this is dropped.
pub(super) struct RecordingOutput {
    /// Path as given by the user; `-` is standard output.
    path: PathBuf,
    partial: Option<PathBuf>,
    packer: Option<GzEncoder<Box<dyn Write + Send>>>,
}

impl RecordingOutput {
    /// Opens it.
    pub(super) fn open(path: &Path, existing: Existing) -> Result<Self, RecordError> {
        let failed = |error| RecordError::Output { path: path.to_owned(), error };
        let mut partial = None;
        let sink: Box<dyn Write + Send> = match fs::metadata(path) {
            _ if path == Path::new("-") => Box::new(io::stdout()),
            // A device, a pipe: there is nothing to put in its place.
            Ok(found) if !found.is_file() => {
                Box::new(OpenOptions::new().write(true).open(path).map_err(failed)?)
            }
            Ok(_) if existing == Existing::Keep => {
                return Err(RecordError::Exists(path.to_owned()));
            }
            _ => {
                let mut name = path.as_os_str().to_owned();
                name.push(".partial");
                let at = PathBuf::from(name);
                let file = File::create(&at).map_err(failed)?;
                partial = Some(at);
                Box::new(file)
            }
        };
        Ok(Self {
            path: path.to_owned(),
            partial,
            packer: Some(GzEncoder::new(sink, Compression::fast())),
        })
    }

    fn failed(&self, error: io::Error) -> RecordError {
        RecordError::Output { path: self.path.clone(), error }
    }

    /// Appends `bytes`.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        let written = self.packer.as_mut().map_or(Ok(()), |packer| packer.write_all(bytes));
        written.map_err(|error| self.failed(error))
    }

    /// Ends the file and gives it its name.
    pub(super) fn finish(mut self) -> Result<(), RecordError> {
        let ended = self.packer.take().map_or(Ok(()), |packer| packer.finish()?.flush());
        ended.map_err(|error| self.failed(error))?;
        if let Some(partial) = &self.partial {
            fs::rename(partial, &self.path).map_err(|error| self.failed(error))?;
        }
        self.partial = None;
        Ok(())
    }
}

impl Drop for RecordingOutput {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            let _ = fs::remove_file(partial);
        }
    }
}
