//! `left-out DEVICES`: the scenarios over the kernel's interface, of a library that leaves something out each time.
//! Each has to be noticed, by the scenarios that are there for it.
//!
//! DEVICES are as in `portolan-verify check --backend DEVICES`, which goes first.
#![allow(missing_docs)]

use anyhow::{Context as _, Result, bail, ensure};
use portolan_verify::conformance::{Outcome, scenarios};
use portolan_verify::devices::left_out::LeftOut;
use portolan_verify::devices::{Devices, OnKernel};

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let devices =
        Devices::named(&name).with_context(|| format!("wanted are {}", Devices::FORM))??;
    let mut failed = 0;
    for (left_out, wanted) in LeftOut::NOTICED {
        let all = scenarios::<Box<OnKernel>>();
        let chosen: Vec<_> = all.iter().filter(|one| wanted.contains(&one.name)).collect();
        ensure!(chosen.len() == wanted.len(), "no scenarios called {wanted:?}");
        for scenario in chosen {
            let outcome = match devices.machine(left_out) {
                Ok(machine) => scenario.run(&Box::new(machine)),
                Err(outcome) => bail!("no machine: {outcome:?}"),
            };
            let name = scenario.name;
            match outcome {
                Outcome::Fail(why) => println!("left out: {left_out}. Noticed by {name}: {why}"),
                other => {
                    println!("left out: {left_out}. NOT NOTICED by {name}: {other:?}");
                    failed += 1;
                }
            }
        }
    }
    ensure!(failed == 0, "{failed} times something was left out and not noticed");
    Ok(())
}
