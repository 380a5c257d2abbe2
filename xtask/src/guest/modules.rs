//! A kernel's modules, with those that they need first.
//!
//! Debian's packages come without `modules.dep`: each module names in itself those that it depends on
//! (`modinfo(8)`).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use xz4rust::XzReader;

/// The modules of a kernel, by name.
pub struct Modules {
    files: BTreeMap<String, PathBuf>,
    built_in: Vec<String>,
}

/// Name as the kernel spells it: `vfio-pci` and `vfio_pci` are the same.
fn name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (stem, end) = file.split_once('.')?;
    matches!(end, "ko" | "ko.xz").then(|| stem.replace('-', "_"))
}

impl Modules {
    /// Modules in `folder`, whose name is the kernel's release.
    pub fn of(folder: &Path) -> Result<Self, String> {
        let error = |error| format!("{}: {error}", folder.display());
        let listed = std::fs::read_to_string(folder.join("modules.builtin")).map_err(error)?;
        let built_in = listed.lines().filter_map(|line| name(Path::new(line)));
        let mut files = BTreeMap::new();
        let mut folders = vec![folder.join("kernel")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).map_err(error)? {
                let path = entry.map_err(error)?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(name) = name(&path) {
                    files.insert(name, path);
                }
            }
        }
        Ok(Self { files, built_in: built_in.collect() })
    }

    /// The `wanted` modules and their dependencies, each after its own dependencies.
    pub fn with_needed(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>, String> {
        let mut found = Vec::new();
        for name in wanted {
            self.add(&name.replace('-', "_"), &mut Vec::new(), &mut found)?;
        }
        Ok(found)
    }

    /// Adds `name` to `found`; the modules `above` need it.
    fn add(
        &self,
        name: &str,
        above: &mut Vec<String>,
        found: &mut Vec<(String, Vec<u8>)>,
    ) -> Result<(), String> {
        let known = found.iter().any(|(found, _)| found == name);
        if known || self.built_in.iter().any(|built_in| built_in == name) {
            return Ok(());
        }
        if above.iter().any(|above| above == name) {
            return Err(format!("the module {name} needs itself"));
        }
        let path =
            self.files.get(name).ok_or_else(|| format!("the kernel has no module {name}"))?;
        let body = read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        above.push(name.to_owned());
        for needed in depends(&body) {
            self.add(&needed, above, found)?;
        }
        above.pop();
        found.push((name.to_owned(), body));
        Ok(())
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let bytes = std::fs::read(path)?;
    if path.extension().is_none_or(|end| end != "xz") {
        return Ok(bytes);
    }
    let mut body = Vec::new();
    XzReader::new(std::io::Cursor::new(bytes)).read_to_end(&mut body)?;
    Ok(body)
}

/// Names of the modules that a module depends on, as its file lists them.
fn depends(body: &[u8]) -> Vec<String> {
    let mut strings = body.split(|byte| *byte == 0);
    let list = strings.find_map(|string| string.strip_prefix(b"depends="));
    let list = String::from_utf8_lossy(list.unwrap_or_default());
    let names = list.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need() {
        let place = std::env::temp_dir().join(format!("portolan-modules-{}", std::process::id()));
        let folder = place.join("kernel/deep");
        std::fs::create_dir_all(&folder).unwrap();
        let module = |name: &str, needs: &str| {
            let body = format!("\x7fELF\0license=GPL\0depends={needs}\0name={name}\0");
            std::fs::write(folder.join(name).with_extension("ko"), body).unwrap();
        };
        module("card-pci", "card,bus-core,clock");
        module("card", "bus-core");
        module("bus-core", "");
        module("round", "about");
        module("about", "round");
        module("lost", "gone");
        std::fs::write(place.join("modules.builtin"), "kernel/clock.ko\n").unwrap();
        let modules = Modules::of(&place).unwrap();
        let names = |wanted: &[&str]| -> Result<Vec<String>, String> {
            let found = modules.with_needed(wanted)?;
            Ok(found.into_iter().map(|(name, _)| name).collect())
        };
        let wanted = ["bus_core", "card", "card_pci"].map(str::to_owned);
        assert_eq!(names(&["card_pci", "card"]).unwrap(), wanted);
        assert!(names(&["clock"]).unwrap().is_empty());
        assert!(names(&["round"]).unwrap_err().contains("needs itself"));
        assert!(names(&["lost"]).unwrap_err().contains("no module gone"));
        std::fs::remove_dir_all(&place).unwrap();
    }
}
