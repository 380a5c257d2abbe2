//! `read-blocks FILE BYTES`: reads a block device from its beginning to its end, `BYTES` at a time and past the page
//! cache, and prints the number of requests and the sum of all its words.
//!
//! Words have 64 bits, little-endian; the sum is modulo 2^64.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;

/// Largest alignment that the kernel wants of the memory of such requests.
const ALIGNMENT: usize = 4096;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, bytes] = arguments.as_slice() else {
        anyhow::bail!("usage: read-blocks FILE BYTES");
    };
    let bytes: usize = bytes.parse().context("BYTES is no number")?;
    ensure!(
        bytes > 0 && bytes.is_multiple_of(512) && bytes <= 1 << 30,
        "BYTES are whole sectors, 1 GiB at most"
    );
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let file = options.open(path).with_context(|| format!("{path} cannot be opened"))?;
    let mut memory = vec![0u8; bytes + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[start..start + bytes];
    let (mut requests, mut at, mut sum) = (0u64, 0u64, 0u64);
    loop {
        let read =
            file.read_at(buffer, at).with_context(|| format!("{path} cannot be read at {at}"))?;
        if read == 0 {
            break;
        }
        let (words, _) = buffer[..read].as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        sum = words.fold(sum, u64::wrapping_add);
        requests += 1;
        at += read as u64;
    }
    println!("read {at} bytes by {requests} requests, sum {sum:#018x}");
    Ok(())
}
