//! Debian's backports: finds their mirror, from the sources that are already configured.
//!
//! sources.list(5): one-line entries and deb822 stanzas.

use std::path::Path;

/// A source of Debian packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Address of the mirror.
    pub uri: String,
    suites: Vec<String>,
    components: Vec<String>,
    /// Names the key, if it is not one of the usual.
    signed_by: Option<String>,
}

impl Source {
    /// The mirror's backports for `codename`, as a deb822 stanza.
    pub fn backports(&self, codename: &str) -> String {
        self.suite(&format!("{codename}-backports"))
    }

    /// The mirror's `suite`, as a deb822 stanza.
    pub fn suite(&self, suite: &str) -> String {
        let uri = &self.uri;
        let mut text = format!("Types: deb\nURIs: {uri}\nSuites: {suite}\n");
        text += "Components: main\n";
        if let Some(key) = &self.signed_by {
            text += &format!("Signed-By: {key}\n");
        }
        text
    }

    fn carries(&self, codename: &str) -> bool {
        let main = self.components.iter().any(|component| component == "main");
        main && self.suites.iter().any(|suite| suite == codename)
    }
}

/// The value of `KEY=value` in /etc/os-release.
pub fn release(text: &str, key: &str) -> Option<String> {
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name == key).then_some(value)
    })?;
    Some(value.trim_matches('"').to_owned())
}

/// The first of all configured sources that carries `codename` itself.
pub fn find(apt: &Path, codename: &str) -> Option<Source> {
    let parts = std::fs::read_dir(apt.join("sources.list.d"));
    let mut files: Vec<_> =
        parts.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.insert(0, apt.join("sources.list"));
    files.iter().find_map(|file| {
        let text = std::fs::read_to_string(file).ok()?;
        let sources = match file.extension()?.to_str()? {
            "list" => one_line(&text),
            "sources" => stanzas(&text),
            _ => return None,
        };
        sources.into_iter().find(|source| source.carries(codename))
    })
}

/// `deb [options] URI SUITE COMPONENT...`
fn one_line(text: &str) -> Vec<Source> {
    let lines = text.lines().filter_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let signed_by =
            options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
        let mut words = rest.split_whitespace().map(str::to_owned);
        Some(Source {
            uri: words.next()?,
            suites: vec![words.next()?],
            components: words.collect(),
            signed_by: signed_by.map(str::to_owned),
        })
    });
    lines.collect()
}

fn stanzas(text: &str) -> Vec<Source> {
    let mut found = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            let mut lines = stanza.lines().filter(|line| !line.starts_with('#'));
            let value = lines.find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then_some(value.trim())
            })?;
            Some(value.to_owned())
        };
        let words = |name: &str| -> Vec<String> {
            let value = field(name).unwrap_or_default();
            value.split_whitespace().map(str::to_owned).collect()
        };
        let enabled = field("Enabled").is_none_or(|value| value != "no");
        let binary = words("Types").iter().any(|kind| kind == "deb");
        if let Some(uri) = words("URIs").into_iter().next().filter(|_| enabled && binary) {
            found.push(Source {
                uri,
                suites: words("Suites"),
                components: words("Components"),
                // A key in the text itself spans lines; only the names of files are understood.
                signed_by: field("Signed-By").filter(|key| key.starts_with('/')),
            });
        }
    }
    found
}

/// Packages that `apt-get install -s` would install: name and version.
pub fn to_install(simulated: &str) -> Vec<(String, String)> {
    let lines = simulated.lines().filter_map(|line| {
        let rest = line.strip_prefix("Inst ")?;
        let (name, _) = rest.split_once(' ')?;
        let (_, version) = rest.split_once('(')?;
        let (version, _) = version.split_once(' ')?;
        Some((name.to_owned(), version.to_owned()))
    });
    lines.collect()
}

/// Packages in the output of `apt-cache depends --recurse` that a source has, each once.
pub fn listed(depends: &str) -> Vec<String> {
    let names = depends
        .lines()
        .filter(|line| !line.starts_with([' ', '<']))
        .filter_map(|line| line.split(':').next());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_sources_are_understood() {
        let old = "# deb http://no.example/debian bookworm main\n\
                   deb-src http://no.example/debian bookworm main\n\
                   deb [arch=amd64 signed-by=/k.gpg] http://a.example/debian bookworm main contrib\n";
        let old = one_line(old);
        assert_eq!(old.len(), 1);
        assert!(old[0].carries("bookworm") && !old[0].carries("trixie"));
        let text = old[0].backports("bookworm");
        let wanted = "Types: deb\nURIs: http://a.example/debian\nSuites: bookworm-backports\n\
                      Components: main\nSigned-By: /k.gpg\n";
        assert_eq!(text, wanted);

        let new = "Types: deb\n# a comment: here\nURIs: http://b.example/debian\n\
                   Suites: trixie trixie-updates\nComponents: main\n\n\
                   Enabled: no\nTypes: deb\nURIs: http://no.example\nSuites: trixie\n";
        let new = stanzas(new);
        assert_eq!(new.len(), 1);
        assert!(new[0].carries("trixie"));
        assert!(!new[0].backports("trixie").contains("Signed-By"));
    }

    #[test]
    fn simulated_installations_are_read() {
        let text = "Reading package lists...\n\
                    Inst qemu-system-x86 [1:7.2] (1:10.0.2~bpo12+1 Debian:backports [amd64]) []\n\
                    Inst libfdt1 (1.6.1-4 Debian:12 [amd64])\nConf libfdt1 (1.6.1-4 Debian)\n";
        let wanted = [("qemu-system-x86", "1:10.0.2~bpo12+1"), ("libfdt1", "1.6.1-4")];
        let wanted = wanted.map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(to_install(text), wanted);
    }

    #[test]
    fn releases_are_read() {
        let text = "ID=debian\nVERSION_CODENAME=bookworm\nVERSION=\"12 (bookworm)\"\n";
        assert_eq!(release(text, "ID").as_deref(), Some("debian"));
        assert_eq!(release(text, "VERSION").as_deref(), Some("12 (bookworm)"));
        assert_eq!(release(text, "NAME"), None);
    }
}
