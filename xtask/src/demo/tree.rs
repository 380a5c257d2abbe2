//! Device trees that lie: QEMU's own, with something else in one place.

use std::path::Path;
use std::process::{Command, Stdio};

/// Writes to `file` the tree that QEMU makes for the machine of `command`, with one place of it replaced.
pub(super) fn write(
    command: &Command,
    file: &Path,
    says: &[u8],
    instead: &[u8],
) -> Result<(), String> {
    let mut dump = Command::new(command.get_program());
    dump.args(command.get_args());
    dump.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let wanted = format!("dumpdtb={}", file.display());
    dump.args(["-machine", &wanted]).stdin(Stdio::null());
    let output = dump.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        let complaints = String::from_utf8_lossy(&output.stderr);
        return Err(format!("QEMU gives no device tree: {complaints}"));
    }
    let mut tree = std::fs::read(file).map_err(|error| error.to_string())?;
    replace(&mut tree, says, instead)?;
    std::fs::write(file, tree).map_err(|error| error.to_string())
}

/// Replaces `says` in `tree` by `instead`, which has the same length; `says` must occur once.
fn replace(tree: &mut [u8], says: &[u8], instead: &[u8]) -> Result<(), String> {
    let mut places = tree.windows(says.len()).enumerate().filter(|(_, bytes)| *bytes == says);
    let (Some((at, _)), None) = (places.next(), places.next()) else {
        return Err("the device tree does not say once what is to be replaced".to_owned());
    };
    match tree.get_mut(at..at + instead.len()) {
        Some(place) if instead.len() == says.len() => place.copy_from_slice(instead),
        _ => return Err("what is put into the device tree has another length".to_owned()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn what_is_there_once_is_replaced() {
        let mut tree = *b"abcab";
        assert_eq!(replace(&mut tree, b"bc", b"xy"), Ok(()));
        assert_eq!(&tree, b"axyab");
        assert!(replace(&mut tree, b"a", b"z").is_err());
        assert!(replace(&mut tree, b"q", b"z").is_err());
        assert!(replace(&mut tree, b"xy", b"z").is_err());
        assert_eq!(&tree, b"axyab");
    }
}
