//! `explain-devices FILE`: has `portolan explain` explain this machine, each of its PCI functions and all pairs, and
//! writes that to FILE beside the kernel's own groups.
//!
//! Each function is explained twice: by `/sys` as it is, and by its configuration space alone, from which the groups
//! have to follow.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

const DEVICES: &str = "/sys/bus/pci/devices";
/// Folder of a machine of which nothing but configuration space is known.
const BARE: &str = "/tmp/bare";

/// Contents of FILE.
#[derive(Serialize)]
struct Answers {
    /// Members of each function's group, by the kernel.
    groups: BTreeMap<String, Vec<String>>,
    /// Answers about each function.
    explained: BTreeMap<String, Value>,
    /// Answers by configuration space alone.
    bare: BTreeMap<String, Value>,
    machine: Value,
    between: Value,
}

/// Answer of `portolan explain`; a problem is an answer.
fn explain(arguments: &[&str]) -> Result<Value> {
    let output = Command::new("portolan").arg("explain").args(arguments).arg("--json").output()?;
    let code = output.status.code();
    ensure!(matches!(code, Some(0 | 1)), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).with_context(|| format!("{arguments:?}"))
}

/// Names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

fn main() -> Result<()> {
    let file = std::env::args().nth(1).context("no file was named")?;
    let functions = names(Path::new(DEVICES))?;
    for function in &functions {
        let bare = Path::new(BARE).join(&DEVICES[1..]).join(function);
        fs::create_dir_all(&bare)?;
        fs::copy(Path::new(DEVICES).join(function).join("config"), bare.join("config"))?;
    }
    let each = |more: &[&str]| -> Result<BTreeMap<String, Value>> {
        let one = |function: &String| {
            Ok((function.clone(), explain(&[&[function.as_str()], more].concat())?))
        };
        functions.iter().map(one).collect()
    };
    let group = |function: &String| {
        let members = Path::new(DEVICES).join(function).join("iommu_group/devices");
        Ok((function.clone(), names(&members)?))
    };
    let answers = Answers {
        groups: functions.iter().map(group).collect::<Result<_>>()?,
        explained: each(&[])?,
        bare: each(&["--from", BARE])?,
        machine: explain(&[])?,
        between: explain(&["--between"])?,
    };
    println!("{} functions explained", functions.len());
    fs::write(file, serde_json::to_vec(&answers)?)?;
    Ok(())
}
