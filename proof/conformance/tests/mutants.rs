//! Each thing that a driver leaves out is noticed, by the scenarios that are there for it.
#![allow(missing_docs)]

use portolan_verify::backend::BackendName;
use portolan_verify::backend::seam::{Sabotage, Seam};
use portolan_verify::conformance::Outcome;
use portolan_verify::mutate::{
    AMD_MUTANTS, MUTANTS, Mutant, MutantFate, RISCV_MUTANTS, SMMUV2_MUTANTS, TEGRA_MUTANTS,
};

#[test]
fn what_is_left_out_is_noticed() {
    all_are_noticed(MUTANTS);
}

#[test]
fn what_is_left_out_on_smmuv2_is_noticed() {
    all_are_noticed(SMMUV2_MUTANTS);
}

#[test]
fn what_is_left_out_on_amd_is_noticed() {
    all_are_noticed(AMD_MUTANTS);
}

#[test]
fn what_is_left_out_on_riscv_is_noticed() {
    all_are_noticed(RISCV_MUTANTS);
}

#[test]
fn what_is_left_out_on_tegra_is_noticed() {
    all_are_noticed(TEGRA_MUTANTS);
}

fn all_are_noticed(mutants: &[Mutant]) {
    let mut wrong = Vec::new();
    println!("| on | without | failed |\n|---|---|---|");
    for mutant in mutants {
        let (on, without) = (mutant.ground.as_str(), mutant.without);
        let fate = mutant.run();
        let text = match &fate {
            MutantFate::Noticed(failed) => failed.join(", "),
            MutantFate::Survived => "none".to_owned(),
            MutantFate::Skipped(why) => {
                println!("SKIP {on} without {without}: {why}");
                continue;
            }
        };
        println!("| {on} | {without} | {text} |");
        let missed = mutant.noticed_by.iter().filter(|name| match &fate {
            MutantFate::Noticed(failed) => !failed.contains(name),
            _ => true,
        });
        let missed: Vec<_> = missed.copied().collect();
        if !missed.is_empty() || mutant.noticed_by.is_empty() {
            wrong.push(format!("{on} without {without}: not noticed by {missed:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_seam_alone_changes_nothing() {
    nothing_changes(MUTANTS);
}

#[test]
fn the_seam_alone_changes_nothing_on_smmuv2() {
    nothing_changes(SMMUV2_MUTANTS);
}

#[test]
fn the_seam_alone_changes_nothing_on_amd() {
    nothing_changes(AMD_MUTANTS);
}

#[test]
fn the_seam_alone_changes_nothing_on_riscv() {
    nothing_changes(RISCV_MUTANTS);
}

#[test]
fn the_seam_alone_changes_nothing_on_tegra() {
    nothing_changes(TEGRA_MUTANTS);
}

fn nothing_changes(mutants: &[Mutant]) {
    let mut grounds: Vec<BackendName> = mutants.iter().map(|mutant| mutant.ground).collect();
    grounds.dedup();
    for ground in grounds {
        for line in ground.run_behind(Seam::Of(Sabotage::NONE), &mut |_| {}) {
            let failed = matches!(line.outcome, Outcome::Fail(_));
            assert!(!failed, "{}: {line}", ground.as_str());
        }
    }
}
