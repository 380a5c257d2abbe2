//! `cargo xtask mistakes`: checks that the tests of one package, the library's own if none is named,
//! notice the mistakes that are listed in `mistakes.toml`.
//!
//! Each replaces a text that is in its file once. It is made as a mutant is, in the work tree below
//! `target`, and meets the package's unit tests and then all of its tests.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Deserialize;

use super::options::{self, Selection};
use super::sample::Mutant;
use super::stage::{Reach, Stage, Verdict};
use super::tool::Tree;

/// Their file, from the root of the workspace.
pub const FILE: &str = "xtask/mistakes.toml";
/// The package whose tests have to notice, if a mistake names no other.
const PACKAGE: &str = "portolan";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mistake: Vec<Mistake>,
}

/// A mistake: one text in place of another.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mistake {
    symptom: String,
    file: String,
    from: String,
    to: String,
    /// The package whose tests have to notice, if it is not the library.
    package: Option<String>,
    /// Reason why no test of the package can see it.
    unnoticed: Option<String>,
}

impl Mistake {
    /// The text of its file with the mistake in it.
    ///
    /// # Errors
    /// The number of times that the text is there, if not once.
    pub fn in_text(&self, text: &str) -> Result<String, usize> {
        match text.matches(&self.from).count() {
            1 => Ok(text.replacen(&self.from, &self.to, 1)),
            count => Err(count),
        }
    }

    /// The mistake as a mutant of the files below `root`.
    fn mutant(&self, root: &Path) -> anyhow::Result<Mutant> {
        let before = std::fs::read_to_string(root.join(&self.file)).context(self.file.clone())?;
        let after = self.in_text(&before).map_err(|count| {
            let (file, symptom) = (&self.file, &self.symptom);
            anyhow::anyhow!("{FILE}: {symptom}: its text is in {file} {count} times, not once")
        })?;
        Ok(Mutant {
            name: self.symptom.clone(),
            package: self.package.as_deref().unwrap_or(PACKAGE).to_owned(),
            file: self.file.clone(),
            change: self.symptom.clone(),
            line: self.from.lines().next().unwrap_or_default().to_owned(),
            diff: whole_file(&before, &after),
        })
    }
}

/// A patch that replaces all of a file, with two lines before it.
fn whole_file(before: &str, after: &str) -> String {
    let lines = |text: &str, mark: char| -> String {
        text.lines().map(|line| format!("{mark}{line}\n")).collect()
    };
    let (old, new) = (before.lines().count(), after.lines().count());
    let (gone, come) = (lines(before, '-'), lines(after, '+'));
    format!("---\n+++\n@@ -1,{old} +1,{new} @@\n{gone}{come}")
}

/// The list in the text of the file.
///
/// # Errors
/// If it is none.
pub fn parse(text: &str) -> anyhow::Result<Vec<Mistake>> {
    let list: List = toml::from_str(text).context(FILE)?;
    Ok(list.mistake)
}

/// Faults of the list, where `read` gives the text of a file: texts that are not in their file
/// once, and symptoms that name two.
pub fn stale(list: &[Mistake], read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (at, one) in list.iter().enumerate() {
        let (symptom, file) = (&one.symptom, &one.file);
        let text = read(file).unwrap_or_default();
        if let Err(count) = one.in_text(&text) {
            found.push(format!("{symptom}: its text is in {file} {count} times, not once"));
        }
        if list.iter().skip(at + 1).any(|other| other.symptom == *symptom) {
            found.push(format!("{symptom}: there are two of this name"));
        }
    }
    found
}

/// Runs the command: 0 if all mistakes are noticed except those with a reason, 1 if others are not noticed or one
/// with a reason is, 2 if nothing could be found out.
pub fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    let selection = match options::mistakes(arguments) {
        Ok(selection) => selection,
        Err(why) => {
            eprintln!("{why}\n\nusage: cargo xtask {}", options::MISTAKES);
            return ExitCode::from(2);
        }
    };
    match examine(root, selection) {
        Ok(good) => ExitCode::from(u8::from(!good)),
        Err(error) => {
            eprintln!("mistakes: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn examine(root: &Path, selection: Selection) -> anyhow::Result<bool> {
    let tree = Tree::of_last_commit(root)?;
    let path = tree.path();
    let text = std::fs::read_to_string(path.join(FILE)).context(FILE)?;
    let list = selected(parse(&text)?, &selection);
    anyhow::ensure!(!list.is_empty(), "{FILE}: no mistake has {:?} in it", selection.only);
    let mutants: anyhow::Result<Vec<Mutant>> = list.iter().map(|one| one.mutant(&path)).collect();
    let mutants = mutants?;
    let mut stage = Stage::new(&tree);
    let own = stage.judge(Reach::Own, &[], &mutants)?;
    let left = mutants.iter().zip(&own).filter(|(_, verdict)| **verdict == Verdict::Survived);
    let left: Vec<Mutant> = left.map(|(mutant, _)| mutant.clone()).collect();
    let mut whole = stage.judge(Reach::Whole, &[], &left)?.into_iter();
    let verdicts = own.into_iter().map(|verdict| match verdict {
        Verdict::Survived => whole.next().unwrap_or(verdict),
        other => other,
    });
    let all: Vec<(Mistake, Verdict)> = list.into_iter().zip(verdicts).collect();
    let (text, good) = told(&all);
    print!("{text}");
    Ok(good)
}

/// Mistakes of `list` that are selected.
fn selected(mut list: Vec<Mistake>, selection: &Selection) -> Vec<Mistake> {
    list.retain(|one| {
        let package = one.package.as_deref().unwrap_or(PACKAGE);
        let mut texts = [one.symptom.as_str(), &one.file, package].into_iter();
        texts.any(|text| text.contains(&selection.only))
    });
    selection.part.of(list)
}

/// Outcome of each entry of the list, and whether all are as expected.
fn told(all: &[(Mistake, Verdict)]) -> (String, bool) {
    let mut text = String::new();
    let (mut noticed, mut good) = (0, true);
    for (mistake, verdict) in all {
        let (word, fine) = match (verdict, &mistake.unnoticed) {
            (Verdict::Caught, None) => ("noticed", true),
            (Verdict::Hung, None) => ("noticed (tests do not end)", true),
            (Verdict::Caught | Verdict::Hung, Some(_)) => ("noticed, though said not to be", false),
            (Verdict::Survived, None) => ("NOT NOTICED", false),
            (Verdict::Survived, Some(_)) => ("not noticed", true),
            (Verdict::Unviable, _) => ("DOES NOT COMPILE", false),
        };
        noticed += usize::from(matches!(verdict, Verdict::Caught | Verdict::Hung));
        good &= fine;
        text += &format!("{word:<12}  {}\n", mistake.symptom);
        if let Some(why) = &mistake.unnoticed {
            text += &format!("              {why}\n");
        }
    }
    text += &format!("\n{noticed} of {} mistakes are noticed\n", all.len());
    (text, good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(symptom: &str, from: &str, unnoticed: Option<&str>) -> Mistake {
        Mistake {
            symptom: symptom.to_owned(),
            file: "a.rs".to_owned(),
            from: from.to_owned(),
            to: "none".to_owned(),
            package: None,
            unnoticed: unnoticed.map(str::to_owned),
        }
    }

    #[test]
    fn a_text_that_is_not_there_once_is_found() {
        let list = [
            mistake("one", "once", None),
            mistake("two", "twice", None),
            mistake("gone", "never", None),
            mistake("one", "once", None),
        ];
        let read = |file: &str| (file == "a.rs").then(|| "once twice twice".to_owned());
        let found = stale(&list, read);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(stale(&list[..1], read), Vec::<String>::new());
        assert_eq!(stale(&list[..1], |_| None).len(), 1);
    }

    #[test]
    fn those_alone_are_made_that_are_asked_for() {
        let list = || {
            let of_drivers =
                Mistake { package: Some("portolan-hw".to_owned()), ..mistake("locked", "", None) };
            vec![mistake("one", "", None), of_drivers, mistake("two", "", None)]
        };
        let made = |words: &[&str]| -> Vec<String> {
            let selection = options::mistakes(words).unwrap();
            let made = selected(list(), &selection).into_iter();
            made.map(|one| one.symptom).collect()
        };
        assert_eq!(made(&[]), ["one", "locked", "two"]);
        assert_eq!(made(&["--only", "portolan-hw"]), ["locked"]);
        assert_eq!(made(&["--only", "lock"]), ["locked"]);
        assert_eq!(made(&["--only", "o", "--part", "2/2"]), ["locked"]);
        assert_eq!(made(&["--only", "nothing"]), [""; 0]);
        for words in [&["--only"][..], &["--part"], &["--all"], &["--part", "3/2"]] {
            assert!(options::mistakes(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_mistake_is_a_patch_of_its_file() {
        let folder = std::env::temp_dir().join(format!("mistake-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a.rs"), "one\nonce\n").unwrap();
        let mutant = mistake("one", "once", None).mutant(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(mutant.package, PACKAGE);
        let patch = "--- a/a.rs\n+++ b/a.rs\n@@ -1,2 +1,2 @@\n-one\n-once\n+one\n+none\n";
        assert_eq!(mutant.patch(), patch);
    }

    #[test]
    fn one_that_is_not_noticed_fails_unless_it_says_why() {
        let plain = || mistake("plain", "", None);
        let excused = || mistake("excused", "", Some("since"));
        for (one, verdict, good) in [
            (plain(), Verdict::Caught, true),
            (plain(), Verdict::Hung, true),
            (plain(), Verdict::Survived, false),
            (plain(), Verdict::Unviable, false),
            (excused(), Verdict::Survived, true),
            (excused(), Verdict::Caught, false),
        ] {
            let (text, found) = told(&[(one, verdict)]);
            assert_eq!(found, good, "{text}");
        }
    }
}
