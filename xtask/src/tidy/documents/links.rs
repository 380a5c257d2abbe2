//! Links inside the repository, to files and to headings.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::Finding;
use super::prose;

/// Checks that relative links lead to a file, and the text behind `#` to a heading.
pub(in crate::tidy) fn check(root: &Path, path: &str, text: &str) -> Vec<Finding> {
    let file = root.join(path);
    let folder = file.parent().unwrap_or(root);
    let text = prose(text);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let mut found = Vec::new();
    for target in targets.filter(|target| !target.contains("://") && !target.is_empty()) {
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let file = match file {
            "" => root.join(path),
            _ => folder.join(file),
        };
        let leads = match heading {
            "" => file.exists(),
            _ if file.extension().is_none_or(|end| end != "md") => false,
            _ => std::fs::read_to_string(&file).is_ok_and(|text| has_heading(&text, heading)),
        };
        if !leads {
            let what = format!("{target} leads nowhere");
            found.push(Finding { path: path.to_owned(), rule: "link", what });
        }
    }
    found
}

/// Tells if GitHub gives a heading of `text` the name `wanted`.
pub(super) fn has_heading(text: &str, wanted: &str) -> bool {
    let mut seen = BTreeMap::new();
    let text = prose(text);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let mut names = headings.map(|line| {
        let name = anchor(line.trim_start_matches('#').trim());
        let before = seen.entry(name.clone()).or_insert(0);
        *before += 1;
        match *before {
            1 => name,
            number => format!("{name}-{}", number - 1),
        }
    });
    names.any(|name| name == wanted)
}

/// The name that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}
