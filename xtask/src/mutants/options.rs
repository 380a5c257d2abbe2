//! Options of the command line.

/// The command and its options.
pub const USAGE: &str = "\
mutants [--sample N] [--seed S] [--part K/N] [--least PERCENT] [--json] [--list]
                  tests a sample of N (200) mutants of the library and its drivers, chosen by the
                  seed S; fails if less than PERCENT (96) of those that could be caught are;
                  --part 2/5 tests the second fifth of it; --list only names the sample
";

/// The command that makes mistakes, and its options.
pub const MISTAKES: &str = "\
mistakes [--only TEXT] [--part K/N]
                  makes the mistakes of xtask/mistakes.toml one at a time, or those alone whose
                  symptom, file or package has TEXT in it, or the K-th of N parts of them, and runs
                  the tests of the package that has to notice; fails if one is not noticed
";

/// Selection of mistakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Text in the symptom, file or package of the selected ones.
    pub only: String,
    /// Part of these.
    pub part: Share,
}

/// A part of a list: every n-th element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    number: usize,
    of: usize,
}

impl Share {
    /// The whole list.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    fn parse(option: &str, word: Option<&&str>) -> Result<Self, String> {
        let word = word.ok_or_else(|| format!("{option} wants K/N"))?;
        let parts =
            word.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((number, of)) if 1 <= number && number <= of => Ok(Self { number, of }),
            _ => Err(format!("{option}: {word:?} is no part: 2/5 is the second of five")),
        }
    }

    /// Elements of `all` that are in this part.
    pub fn of<T>(self, all: Vec<T>) -> Vec<T> {
        let skipped = all.into_iter().skip(self.number - 1);
        skipped.step_by(self.of).collect()
    }
}

/// The mistakes to be made.
pub fn mistakes(words: &[&str]) -> Result<Selection, String> {
    let mut selection = Selection { only: String::new(), part: Share::WHOLE };
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        match word {
            "--only" => {
                let text = words.next().ok_or("--only wants a text")?;
                selection.only = (*text).to_owned();
            }
            "--part" => selection.part = Share::parse(word, words.next())?,
            other => return Err(format!("unknown option: {other}")),
        }
    }
    Ok(selection)
}

/// Options of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Number of mutants to choose.
    pub sample: usize,
    /// The seed of the choice.
    pub seed: u64,
    /// Part of the sample that is tested.
    pub part: Share,
    /// Percentage of the catchable mutants that has to be caught.
    pub least: f64,
    /// Print JSON in place of a table.
    pub json: bool,
    /// Test nothing.
    pub list: bool,
}

impl Options {
    /// Parses the words after `mutants`.
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            sample: 200,
            seed: fastrand::u64(..),
            part: Share::WHOLE,
            least: 96.0,
            json: false,
            list: false,
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--json" => options.json = true,
                "--list" => options.list = true,
                "--sample" => options.sample = number(word, words.next())?,
                "--seed" => options.seed = number(word, words.next())?,
                "--part" => options.part = Share::parse(word, words.next())?,
                "--least" => options.least = number(word, words.next())?,
                other => return Err(format!("unknown option: {other}")),
            }
        }
        if options.sample == 0 {
            return Err("--sample: of no mutants nothing can be said".to_owned());
        }
        if !(0.0..=100.0).contains(&options.least) {
            return Err(format!("--least: {} is no percentage", options.least));
        }
        Ok(options)
    }
}

fn number<T: std::str::FromStr>(option: &str, word: Option<&&str>) -> Result<T, String> {
    let word = word.ok_or_else(|| format!("{option} wants a number"))?;
    let parsed = word.parse();
    parsed.map_err(|_| format!("{option}: {word:?} is not a number that fits"))
}
