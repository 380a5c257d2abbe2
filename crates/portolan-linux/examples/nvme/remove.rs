//! A disk that the kernel wants back while it is driven: its owner is told, closes it, and the kernel goes on.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use portolan_linux::vfio;

use crate::controller::Controller;
use crate::mover::{Manner, Mover};
use crate::{Arguments, interfaces};

/// For each interface: has the kernel take the function out, as for a hot removal, and find it again.
pub fn run(arguments: &Arguments) -> Result<()> {
    let function = arguments.function;
    let place = PathBuf::from(format!("/sys/bus/pci/devices/{function}"));
    for opened in interfaces(arguments) {
        let opened = opened?;
        let over = opened.unit.interface();
        let device = opened.devices.first().context("no device")?;
        let mover = Mover::new(&opened, Manner::Strict, arguments.depth)?;
        let running = Controller::start(device.bar(0)?, &mover.device, arguments.depth, None)?;
        let removal = device.removal()?;
        ensure!(!removal.is_wanted()?, "nobody wants the function back");
        let file = place.join("remove");
        // The write ends once the function is given back.
        let kernel = thread::spawn(move || fs::write(file, "1"));
        ensure!(removal.wait(Duration::from_secs(60))?, "the kernel does not ask for the function");
        ensure!(!kernel.is_finished(), "the kernel takes what is not given");
        running.stop()?;
        drop((running, mover, removal, opened));
        let removed = kernel.join().map_err(|_| anyhow!("a panic"))?;
        removed.context("the kernel's removal")?;
        ensure!(!place.exists(), "the function is there still");
        fs::write("/sys/bus/pci/rescan", "1").context("finding it again")?;
        ensure!(place.exists(), "the function is not found again");
        vfio::bind(function)?;
        portolan_cli::print(&format!(
            "{over}: given back when the kernel took it out, and found again\n"
        ))?;
    }
    Ok(())
}
