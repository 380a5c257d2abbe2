//! A kernel's command line, and the settings that its options decide.
//!
//! The last of several options holds, and names are compared with `_` for `-`, as in Linux's `parse_args`. Linux's
//! parsers are listed in [`judged`](super::judged).

use super::processor::Processor;

/// Words of a command line that are looked at.
const MOST_WORDS: usize = 4096;

/// A word of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The name, with `_` for `-`, as Linux compares it.
    pub(super) name: String,
    /// The value; empty without a `=`.
    pub(super) value: String,
    /// The word as it was written.
    pub(super) written: String,
}

/// A setting that was found, and the word that decides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OptionSetting {
    /// The setting.
    pub(super) is_on: bool,
    /// The last word that sets it.
    pub(super) word: String,
    /// Words before it said otherwise.
    pub(super) overrides: bool,
}

/// The command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BootOptions(pub(super) Vec<Word>);

/// A boolean, as Linux's `kstrtobool` reads it.
pub(super) fn boolean(value: &str) -> Option<bool> {
    let mut letters = value.bytes().map(|byte| byte.to_ascii_lowercase());
    match (letters.next()?, letters.next()) {
        (b'y' | b't' | b'1', _) | (b'o', Some(b'n')) => Some(true),
        (b'n' | b'f' | b'0', _) | (b'o', Some(b'f')) => Some(false),
        _ => None,
    }
}

impl BootOptions {
    pub(super) fn new(command_line: &str) -> Self {
        let words = command_line.split_whitespace().take(MOST_WORDS);
        // What follows is for init.
        let words = words.take_while(|word| *word != "--");
        let word = |written: &str| {
            let (name, value) = written.split_once('=').unwrap_or((written, ""));
            let (value, written) = (value.trim_matches('"').to_owned(), written.to_owned());
            Word { name: name.replace('-', "_"), value, written }
        };
        Self(words.map(word).collect())
    }

    /// Words with this name, in order.
    fn named(&self, name: &'static str) -> impl Iterator<Item = &Word> {
        self.0.iter().filter(move |word| word.name == name)
    }

    /// The last word `name=` that has this value in its list.
    pub(super) fn with(&self, name: &'static str, value: &str) -> Option<&str> {
        let has = |word: &&Word| word.value.split(',').any(|one| one.starts_with(value));
        self.named(name).filter(has).last().map(|word| word.written.as_str())
    }

    /// The last value of a boolean option.
    pub(super) fn boolean(&self, name: &'static str) -> Option<bool> {
        self.named(name).filter_map(|word| boolean(&word.value)).last()
    }

    /// The last setting by one of several words; `judge` tells what a word sets.
    fn last(&self, judge: impl Fn(&Word) -> Option<bool>) -> Option<OptionSetting> {
        let mut found: Option<OptionSetting> = None;
        for word in &self.0 {
            if let Some(is_on) = judge(word) {
                let before = found.take();
                let overrides = before.is_some_and(|old| old.overrides || old.is_on != is_on);
                found = Some(OptionSetting { is_on, word: word.written.clone(), overrides });
            }
        }
        found
    }

    /// The setting of pass-through.
    pub(super) fn passthrough(&self, processor: Processor) -> Option<OptionSetting> {
        self.last(|word| match word.name.as_str() {
            "iommu.passthrough" => boolean(&word.value),
            "iommu" if processor.is_x86() => {
                let values = word.value.split(',');
                let mut set = values.filter_map(|value| match value {
                    value if value.starts_with("pt") => Some(true),
                    value if value.starts_with("nopt") => Some(false),
                    _ => None,
                });
                set.next_back()
            }
            _ => None,
        })
    }

    /// The setting that an unmapped buffer is taken back at once.
    pub(super) fn strict(&self) -> Option<OptionSetting> {
        self.last(|word| match word.name.as_str() {
            "iommu.strict" => boolean(&word.value),
            "intel_iommu" if word.value.split(',').any(|one| one.starts_with("strict")) => {
                Some(true)
            }
            "amd_iommu" if word.value.split(',').any(|one| one.starts_with("fullflush")) => {
                Some(true)
            }
            _ => None,
        })
    }

    /// The word that switches the IOMMU of this processor off.
    pub(super) fn off(&self, processor: Processor) -> Option<&str> {
        let own = match processor {
            Processor::Intel => self.last_of("intel_iommu", ["on", "off"]),
            Processor::Amd => self.with("amd_iommu", "off"),
            _ => None,
        };
        let own = own.filter(|word| word.contains("off"));
        own.or_else(|| self.with("iommu", "off").filter(|_| processor.is_x86()))
    }

    /// The last word `name=` that has one of these values.
    fn last_of(&self, name: &'static str, values: [&str; 2]) -> Option<&str> {
        let has = |one: &str| values.contains(&one);
        let words = self.named(name).filter(|word| word.value.split(',').any(has));
        words.last().map(|word| word.written.as_str())
    }

    /// Number of options with `iommu` in their name.
    pub(super) fn concern_iommus(&self) -> usize {
        self.0.iter().filter(|word| word.name.contains("iommu")).count()
    }
}
