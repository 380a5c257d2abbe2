//! `read-on DISK BYTES`: runs `read-blocks DISK BYTES` repeatedly until it is told to end.
#![forbid(unsafe_code)]

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

fn main() -> Result<()> {
    loop {
        let mut reader = Command::new("read-blocks");
        let reader = reader.args(std::env::args().skip(1)).stdout(Stdio::null());
        let ended = reader.status().context("read-blocks")?;
        ensure!(ended.success(), "read-blocks: {ended}");
    }
}
