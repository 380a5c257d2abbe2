//! `copy-blocks FILE BYTES`: copies the first half of a block device to its second half, `BYTES` at a time and past the
//! page cache, and prints the number of requests.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;

/// Largest alignment that the kernel wants of the memory of such requests.
const ALIGNMENT: usize = 4096;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, bytes] = arguments.as_slice() else {
        anyhow::bail!("usage: copy-blocks FILE BYTES");
    };
    let bytes: usize = bytes.parse().context("BYTES is no number")?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(OFlags::DIRECT.bits() as i32);
    let mut file = options.open(path).with_context(|| format!("{path} cannot be opened"))?;
    let half = file.seek(SeekFrom::End(0))? / 2;
    ensure!(
        bytes > 0 && bytes.is_multiple_of(512) && half.is_multiple_of(bytes as u64),
        "BYTES are whole sectors, of which half of {path} has a whole number"
    );
    let mut memory = vec![0u8; bytes + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[start..start + bytes];
    for at in (0..half).step_by(bytes) {
        file.read_exact_at(buffer, at).with_context(|| format!("{path} cannot be read at {at}"))?;
        file.write_all_at(buffer, half + at)
            .with_context(|| format!("{path} cannot be written at {}", half + at))?;
    }
    let requests = half / bytes as u64 * 2;
    println!("copied {half} bytes by {requests} requests");
    Ok(())
}
