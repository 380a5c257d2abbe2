//! Words of evidence: figures called predicted or counted were at risk, and every figure has a word.

use portolan_papers::reproduce::{self, Bound, Evidence};

/// Checks the rule: without its mechanism the bound fails, and a predictor that needs no model is less accurate.
fn could_have_failed(bound: &Bound) -> bool {
    bound.mechanism_off_pct > bound.limit_pct && bound.trivial_pct > bound.worst_pct
}

/// The bounds of every result, with the evidence of its rows that nothing was fitted on.
fn all() -> Vec<(&'static str, Vec<Bound>, Vec<Evidence>)> {
    let walk = reproduce::walk_flush().unwrap();
    let range = reproduce::range_flush().unwrap();
    let queue = reproduce::flush_queue().unwrap();
    let pools = reproduce::swiotlb().unwrap();
    let faults = reproduce::iopf().unwrap();
    for holds in [walk.holds(), range.holds(), queue.holds(), pools.holds(), faults.holds()] {
        assert!(holds);
    }
    macro_rules! of {
        ($name:literal, $result:ident) => {{
            let rows = $result.rows.iter().filter(|row| !row.fitted);
            let words = rows.map(|row| row.evidence).collect();
            ($name, $result.bounds.clone(), words)
        }};
    }
    vec![
        of!("walk-flush", walk),
        of!("range-flush", range),
        of!("flush-queue", queue),
        of!("swiotlb", pools),
        of!("iopf", faults),
    ]
}

#[test]
fn what_is_called_predicted_or_counted_could_have_failed() {
    let mut spoken = Vec::new();
    for (name, bounds, words) in all() {
        for bound in &bounds {
            assert!(bound.holds, "{name}: {bound:?}");
            match bound.evidence {
                Evidence::Implied => {}
                _ => {
                    assert!(could_have_failed(bound), "{name}: {bound:?}");
                    spoken.push((name, bound.evidence));
                }
            }
        }
        for word in words {
            assert_ne!(word, Evidence::Fitted, "{name}");
            if let Evidence::Predicted | Evidence::Counted = word {
                assert!(
                    spoken.contains(&(name, word)),
                    "{name}: nothing speaks for a row {word:?}"
                );
            }
        }
    }
    // Kinds of evidence today. A claim that is dropped or added shows here.
    let (counted, predicted) = (Evidence::Counted, Evidence::Predicted);
    spoken.sort_by_key(|(name, evidence)| (*name, evidence.word()));
    assert_eq!(
        spoken,
        [
            ("iopf", counted),
            ("iopf", counted),
            ("iopf", predicted),
            ("iopf", predicted),
            ("iopf", predicted),
            ("walk-flush", counted),
        ]
    );
}

const WORDS: [&str; 7] =
    ["published", "fitted", "implied", "counted", "predicted", "measured", "computed"];

#[test]
fn every_reproduced_figure_has_a_word_of_evidence() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reproduce.md");
    let page = std::fs::read_to_string(page).unwrap();
    let figures = page.split("## Figures").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<&str> = figures.lines().filter(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 20);
    for row in &rows[2..] {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{row}");
        for (column, cell) in cells.iter().enumerate().skip(1).filter(|(_, cell)| !cell.is_empty())
        {
            let word = cell.rsplit(": ").next().unwrap();
            assert!(WORDS.contains(&word), "`{cell}` in {row}");
            let right = match column {
                1 => word == "measured",
                2 => !["measured", "published"].contains(&word),
                _ => word == "published",
            };
            assert!(right, "`{cell}` is in the wrong column of {row}");
        }
    }
}
