//! Argument of `--machine`: the name of a profile that comes with the program, or a file that has one.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use portolan_sim::profile::Profile;

/// Bytes of the longest file that is read as a profile.
const MOST_BYTES: u64 = 1 << 20;

/// The profile called `name`, or in the file of that name; warns of unlikely values on standard error.
pub fn profile(name: &str) -> Result<Profile> {
    let profile = match Profile::text_of(name) {
        Some(_) => Profile::by_name(name)?,
        None => read(name, &text_of(name)?)?,
    };
    for warning in profile.warnings() {
        portolan_cli::warn("portolan", &warning);
    }
    Ok(profile)
}

/// The file of the profile called `name`; `None` for those that come with the program.
pub fn file_of(name: &str) -> Option<&Path> {
    Profile::text_of(name).is_none().then(|| Path::new(name))
}

/// The text of that profile.
pub fn text_of(name: &str) -> Result<String> {
    if let Some(text) = Profile::text_of(name) {
        return Ok(text.to_owned());
    }
    let path = Path::new(name);
    let is_file = path.extension().is_some_and(|end| end == "toml") || name.contains('/');
    if !is_file && !path.exists() {
        let unknown = Profile::by_name(name).map(drop);
        let ways =
            "no such machine profile can be used; see `portolan machines`, or name a .toml file";
        unknown.context(ways)?;
    }
    let unread = || format!("the machine profile {name} cannot be read");
    let file = File::open(path).with_context(unread)?;
    if file.metadata().with_context(unread)?.is_dir() {
        bail!("{}: it is a folder", unread());
    }
    let mut bytes = Vec::new();
    let mut limited = file.take(MOST_BYTES + 1);
    limited.read_to_end(&mut bytes).with_context(unread)?;
    if bytes.len() as u64 > MOST_BYTES {
        bail!("{}: it is longer than 1 MiB", unread());
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(_) => bail!(
            "{}: it is not text; a machine profile is TOML, as `portolan calibrate -o` writes it",
            unread()
        ),
    }
}

fn read(name: &str, text: &str) -> Result<Profile> {
    let how = "`portolan calibrate -o` writes one, data/machines has examples";
    Profile::from_toml(text).with_context(|| format!("{name} is no machine profile ({how})"))
}
