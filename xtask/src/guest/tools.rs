//! Debian's programs for the guests: the recorders besides `portolan record`, with their libraries.
//!
//! They are downloaded once and unpacked below `target`; nothing of the machine is changed.

use std::path::Path;
use std::process::Command;

use super::initramfs::Archive;
use super::kernel;

/// Packages, and the program of each.
const PROGRAMS: [(&str, &str); 2] = [("trace-cmd", "trace-cmd"), ("linux-perf", "perf")];
/// The loader's place, as all programs of this architecture have it.
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";
/// Folders that the loader searches by default.
const LIBRARIES: &str = "lib/x86_64-linux-gnu";

/// Files of a guest: their places there, and their contents.
pub struct Tools(Vec<(String, Vec<u8>)>);

impl Tools {
    /// Adds them, and the folders that they need.
    pub fn add_to(&self, archive: &mut Archive) -> Result<(), String> {
        for folder in ["lib", LIBRARIES, "lib64"] {
            archive.folder(folder)?;
        }
        let mut files = self.0.iter();
        files.try_for_each(|(path, body)| archive.file(path, body))
    }
}

/// Finds them below `target`, or fetches them.
///
/// # Errors
/// Why there are none.
pub fn provide(root: &Path) -> Result<Tools, String> {
    let place = root.join("target/guest-tools");
    if let Ok(found) = unpacked(&place) {
        return Ok(found);
    }
    let apt = kernel::apt(&place)?;
    let wanted = PROGRAMS.map(|(package, _)| package);
    let all = apt.closure(&wanted)?;
    // Of Perl and Python, in which perf runs scripts, the libraries are enough to start it.
    let library = |name: &&String| name.contains("lib") || wanted.contains(&name.as_str());
    let all = all.iter().filter(library).map(String::as_str);
    let all: Vec<&str> = ["download", "-qq"].into_iter().chain(all).collect();
    apt.run("apt-get", &all)?;
    apt.unpack()?;
    unpacked(&place)
}

fn unpacked(place: &Path) -> Result<Tools, String> {
    let error = |error: std::io::Error| format!("{}: {error}", place.display());
    let root = place.canonicalize().map_err(error)?.join("root");
    let mut files = Vec::new();
    let mut add = |path: String, from: &Path| {
        let body = std::fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
        let known = files.iter().any(|(known, _)| *known == path);
        (!known).then(|| files.push((path, body)));
        Ok::<_, String>(())
    };
    let loader = root.join(LOADER);
    add(LOADER.to_owned(), &loader)?;
    for (_, name) in PROGRAMS {
        let program = root.join("usr/bin").join(name);
        add(format!("bin/{name}"), &program)?;
        for library in libraries(&root, &loader, &program)? {
            let name = library.rsplit_once('/').map_or(&*library, |(_, name)| name);
            add(format!("{LIBRARIES}/{name}"), Path::new(&library))?;
        }
    }
    Ok(Tools(files))
}

/// The libraries that `program` needs, all of them below `root`, by the loader that came with them.
fn libraries(root: &Path, loader: &Path, program: &Path) -> Result<Vec<String>, String> {
    let (old, new) = (root.join(LIBRARIES), root.join("usr").join(LIBRARIES));
    let mut command = Command::new(loader);
    command.arg("--library-path");
    command.arg(format!("{}:{}", old.display(), new.display()));
    let output = command
        .arg("--list")
        .arg(program)
        .output()
        .map_err(|error| format!("{}: {error}", loader.display()))?;
    let listed = String::from_utf8_lossy(&output.stdout);
    needed(&listed, &root.display().to_string())
}

/// Parses the paths of lines `NAME => PATH (ADDRESS)`. A path outside of `root` is an error, because a guest does not
/// have it.
fn needed(listed: &str, root: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for line in listed.lines() {
        let Some((name, place)) = line.trim().split_once(" => ") else {
            continue;
        };
        let path = place.split(" (").next().unwrap_or_default();
        match path.starts_with(root) {
            true => found.push(path.to_owned()),
            // The loader itself is in another place.
            false if name.contains("ld-linux") => {}
            false => return Err(format!("{name} is missing: {place}")),
        }
    }
    if found.is_empty() { Err("the loader lists no library".to_owned()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::needed;

    #[test]
    fn libraries_are_those_that_were_unpacked() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                      \tlibc.so.6 => /t/root/lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 => /t/root/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        let wanted =
            ["/t/root/lib/x86_64-linux-gnu/libc.so.6", "/t/root/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(needed(listed, "/t/root").unwrap(), wanted);
        let host = listed.replace("/t/root/lib/", "/lib/");
        assert!(needed(&host, "/t/root").unwrap_err().contains("libc.so.6"));
        let missing = "\tlibdw.so.1 => not found\n";
        assert!(needed(missing, "/t/root").is_err());
    }
}
