//! What the command line says.

/// The command and its options.
pub const USAGE: &str = "\
mutants [--sample N] [--seed S] [--least PERCENT] [--json] [--list]
                  tests a sample of N (200) mutants of the library and its drivers, chosen by the
                  seed S; fails if less than PERCENT (96) of those that could be caught are;
                  --list only names the sample
";

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How many mutants.
    pub sample: usize,
    /// The seed that says which of them.
    pub seed: u64,
    /// Percentage of those that could be caught that has to be.
    pub least: f64,
    /// Print JSON in place of a table.
    pub json: bool,
    /// Test nothing.
    pub list: bool,
}

impl Options {
    /// From the words behind `mutants`.
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            sample: 200,
            seed: fastrand::u64(..),
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
