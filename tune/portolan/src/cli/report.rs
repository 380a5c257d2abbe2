//! The flag `--report FILE`: results of a command, as one HTML file.
//!
//! The file is tried before the work: an error comes early. It appears whole: it is written beside its place and
//! renamed.

use std::borrow::Cow;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use portolan_report::{Origin, Page};
use portolan_sim::profile::Profile;

/// The flag.
#[derive(Clone, Debug, Default, Args)]
pub struct ReportArgs {
    /// Write a report to look at too: one HTML file with plots and tables, which needs no network.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Place of a report.
#[derive(Debug)]
pub struct ReportFile {
    /// Path as given by the user.
    path: PathBuf,
    /// File at the end of all links.
    target: PathBuf,
}

impl ReportArgs {
    /// Tells if a report is asked for.
    pub const fn is_asked(&self) -> bool {
        self.report.is_some()
    }

    /// Place of the report, if one is asked for. The file may be none of `others`, which the command reads or writes.
    ///
    /// # Errors
    /// If no file can be written there.
    pub fn destination(&self, others: &[&Path]) -> Result<Option<ReportFile>> {
        let Some(path) = &self.report else {
            return Ok(None);
        };
        let name = path.display();
        if path == Path::new("-") {
            bail!("a report goes to a file, not to standard output: `--report out.html`");
        }
        let target = match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                let inside = path.join("report.html");
                bail!("`{name}` is a directory: `--report {}`", inside.display())
            }
            Ok(found) if !found.is_file() => bail!("`{name}` is no regular file"),
            Ok(_) => fs::canonicalize(path)?,
            Err(_) => path.clone(),
        };
        let own = place(&target);
        if own.is_some() && others.iter().any(|other| place(other) == own) {
            bail!("`{name}` is another file of this command; the report needs one of its own");
        }
        let to = ReportFile { path: path.clone(), target };
        let partial = to.partial();
        File::create_new(&partial).with_context(|| to.cannot())?;
        fs::remove_file(&partial)?;
        Ok(Some(to))
    }
}

/// `path` by the one name that it has; the file need not exist.
fn place(path: &Path) -> Option<PathBuf> {
    if let Ok(found) = fs::canonicalize(path) {
        return Some(found);
    }
    let folder = match path.parent()? {
        here if here.as_os_str().is_empty() => Path::new("."),
        folder => folder,
    };
    Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
}

impl ReportFile {
    /// Temporary file that the report is written to first. The process number in its name keeps two commands apart.
    fn partial(&self) -> PathBuf {
        let mut name = self.target.as_os_str().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        PathBuf::from(name)
    }

    fn cannot(&self) -> String {
        format!("no report can be written to `{}`", self.path.display())
    }

    /// Writes `page`, and prints its path on standard error.
    ///
    /// # Errors
    /// If that fails.
    pub fn write(&self, page: &Page) -> Result<()> {
        let html = page.html()?;
        let partial = self.partial();
        let written = fs::write(&partial, html).and_then(|()| fs::rename(&partial, &self.target));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written.with_context(|| self.cannot())?;
        eprintln!("portolan: the report is in {}", self.path.display());
        Ok(())
    }
}

/// A fact for [`origin`].
pub fn fact(name: &str, what: impl Into<String>) -> (String, String) {
    (name.to_owned(), what.into())
}

/// The machine profile, as a fact.
pub fn of_profile(profile: &Profile) -> (String, String) {
    let what = format!("{}: {}", profile.name(), profile.title());
    fact("machine profile", what)
}

/// Origin of this process' results: its command line, `facts`, and its build.
pub fn origin(facts: Vec<(String, String)>) -> Origin {
    let words = env::args_os().map(|word| quoted(&word.to_string_lossy()).into_owned());
    let words: Vec<_> = words.collect();
    let mut facts = facts;
    let version = format!(
        "{}, for {} on {}, built by Rust {} or later",
        env!("CARGO_PKG_VERSION"),
        env::consts::ARCH,
        env::consts::OS,
        env!("CARGO_PKG_RUST_VERSION"),
    );
    facts.push(("portolan".to_owned(), version));
    Origin { command: words.join(" "), facts }
}

/// `word` as a shell takes it for one word.
fn quoted(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        for (word, wanted) in [
            ("replay", "replay"),
            ("--swiotlb=1,2,force", "--swiotlb=1,2,force"),
            ("", "''"),
            ("a trace", "'a trace'"),
            ("it's $HOME", r"'it'\''s $HOME'"),
            ("ä", "'ä'"),
        ] {
            assert_eq!(quoted(word), wanted);
        }
    }
}
