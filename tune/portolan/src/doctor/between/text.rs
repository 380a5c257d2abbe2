//! Pairs as text: alike ones are folded into one answer.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use portolan_cli::display::{counted, wrapped};

use super::answer::{PairAnswer, named};
use super::{PairAnswers, PeerPair, PeerPath, Verdict};
use crate::doctor::{device, finding};

/// Key by which pairs are alike.
type Key<'p> = (Verdict, PeerPath, &'p str, super::answer::Remedy);

/// The report as text.
pub fn text(report: &PairAnswers, columns: usize) -> String {
    let mut folded: BTreeMap<Key<'_>, (Vec<&PeerPair>, PairAnswer)> = BTreeMap::new();
    for pair in &report.pairs {
        let own = &pair.answer;
        let key = (own.verdict, own.path, own.why.as_str(), own.remedy);
        let (pairs, all) = folded.entry(key).or_insert_with(|| (Vec::new(), own.clone()));
        pairs.push(pair);
        all.ports.extend(&own.ports);
    }
    let mut out = String::new();
    for (pairs, all) in folded.values() {
        let them = device::listed(pairs.iter().map(|pair| format!("{} and {}", pair.a, pair.b)));
        let number = counted(pairs.len() as u64, "pair");
        let _ = writeln!(out, "{}: {}, {number}", all.verdict.word(), all.path.words());
        let _ = writeln!(out, "  {them}\n  {}{}", all.why, named(all));
        for (name, said) in ["Do", "Gives up"].into_iter().zip(all.remedy.words(&all.ports)) {
            if let Some(said) = said {
                let _ = writeln!(out, "  {name}: {said}");
            }
        }
    }
    wrapped(&(out + &finding::text(&report.findings)), columns)
}
