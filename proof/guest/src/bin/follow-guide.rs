//! `follow-guide DISK`: takes the steps that `docs/guide.md` has a user take. It records while DISK is read, makes
//! the change that `portolan replay` puts first, records the same again, and undoes the change.
//!
//! The recordings are left as `/dev/virtio-ports/before.gz` and `after.gz`. It runs as root in a guest, and expects to
//! be told to make one group of devices lazy.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Advice up to the group's file; the label before it says if it is worth it.
const ADVICE: &str = ": echo DMA-FQ > ";
/// Output of the advice then.
const DONE: &str = "Nothing to change: Linux is lazy already ";

/// Output of `command`, words without quotes.
fn output(command: &str) -> Result<String> {
    println!("# {command}");
    let mut words = command.split(' ');
    let mut run = Command::new(words.next().unwrap_or_default());
    let output = run
        .args(words)
        .current_dir("/tmp")
        .output()
        .with_context(|| format!("{command} cannot be started"))?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{command}: {said}");
    Ok(said)
}

/// Records while the disk is read by 4 KiB; returns the text of a replay of that.
fn measure(disk: &str, name: &str) -> Result<String> {
    output(&format!("portolan record -o {name} -- read-blocks {disk} 4096"))?;
    fs::copy(format!("/tmp/{name}"), format!("/dev/virtio-ports/{name}"))?;
    let replayed = output(&format!("portolan replay {name}"))?;
    print!("{replayed}");
    Ok(replayed)
}

/// Writes as the shell's `echo` does.
fn echo(word: &str, file: &Path) -> Result<()> {
    println!("# echo {word} > {}", file.display());
    fs::write(file, format!("{word}\n")).with_context(|| format!("echo {word} failed"))
}

/// Restores the group; its devices have to be free during that.
fn undo(group: &Path) -> Result<()> {
    let devices = fs::read_dir(group.join("devices"))?;
    let names: Vec<_> = devices
        .map(|device| Ok(device?.file_name().into_string().unwrap_or_default()))
        .collect::<Result<_>>()?;
    for name in &names {
        let driver = format!("/sys/bus/pci/devices/{name}/driver/unbind");
        echo(name, Path::new(&driver))?;
    }
    echo("auto", &group.join("type"))?;
    names.iter().try_for_each(|name| echo(name, Path::new("/sys/bus/pci/drivers_probe")))
}

fn main() -> Result<()> {
    let disk = std::env::args().nth(1).context("usage: follow-guide DISK")?;
    let advised = measure(&disk, "before.gz")?;
    let file = advised
        .lines()
        .find_map(|line| Some(line.split_once(ADVICE)?.1))
        .context("something else is advised")?;
    let kind = fs::canonicalize(file).with_context(|| file.to_owned())?;
    let found = || fs::read_to_string(&kind).map(|text| text.trim().to_owned());
    ensure!(found()? == "DMA", "the group is {} at first", found()?);
    echo("DMA-FQ", &kind)?;
    ensure!(found()? == "DMA-FQ", "the group is still {}", found()?);
    let then = measure(&disk, "after.gz")?;
    ensure!(then.contains(DONE), "something is still advised");
    undo(kind.parent().context("no group")?)?;
    ensure!(found()? == "DMA", "the group is {} at last", found()?);
    Ok(())
}
