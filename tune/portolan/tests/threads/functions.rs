//! PCI functions of a thread's machine: a line each, made into the files that `/sys` has of them.
//!
//! `00:01.1 1022:1483 060400 root-port several buses=01-01 acs=5f/1d group=2 driver=pcieport`: place, vendor and
//! device, class, kind, and what else is known. `acs` is capability and control, `bars` are sizes from the first window
//! on, `rebar` is the largest size of the second window, `host` is the host bridge.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A function.
struct Function<'t> {
    at: String,
    id: [u16; 2],
    class: u32,
    kind: &'t str,
    flags: Vec<&'t str>,
    facts: BTreeMap<&'t str, &'t str>,
}

fn hex(text: &str) -> u32 {
    u32::from_str_radix(text, 16).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Bytes in `16M`.
fn size(text: &str) -> u64 {
    let (digits, unit) = text.split_at(text.len() - 1);
    let shift = ["K", "M", "G"].iter().position(|one| *one == unit).unwrap();
    digits.parse::<u64>().unwrap() << (10 * (shift + 1))
}

impl<'t> Function<'t> {
    fn read(line: &'t str) -> Self {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, id, class, kind, more @ ..] = words.as_slice() else { panic!("{line}") };
        let (vendor, device) = id.split_once(':').unwrap();
        let (facts, flags): (Vec<&str>, Vec<&str>) = more.iter().partition(|one| one.contains('='));
        let at = if at.len() == 7 { format!("0000:{at}") } else { (*at).to_owned() };
        let id = [hex(vendor) as u16, hex(device) as u16];
        let facts = facts.iter().map(|fact| fact.split_once('=').unwrap()).collect();
        Self { at, id, class: hex(class), kind, flags, facts }
    }

    fn segment(&self) -> &str {
        &self.at[..4]
    }

    fn bus(&self) -> u32 {
        hex(&self.at[5..7])
    }

    fn buses(&self) -> Option<(u32, u32)> {
        let (first, last) = self.facts.get("buses")?.split_once('-').unwrap();
        Some((hex(first), hex(last)))
    }

    fn express(&self) -> Option<u8> {
        let kinds = ["endpoint", "", "", "", "root-port", "upstream", "downstream", "to-pci"];
        kinds.iter().position(|kind| *kind == self.kind).map(|kind| kind as u8)
    }

    fn bars(&self) -> Vec<u64> {
        self.facts.get("bars").map_or(Vec::new(), |bars| bars.split(',').map(size).collect())
    }

    /// Configuration space.
    fn space(&self) -> Vec<u8> {
        let mut space = vec![0; 4096];
        let mut put = |at: usize, word: u32| space[at..at + 4].copy_from_slice(&word.to_le_bytes());
        let several = u32::from(self.flags.contains(&"several")) << 23;
        put(0, u32::from(self.id[0]) | u32::from(self.id[1]) << 16);
        put(4, 6);
        put(8, self.class << 8);
        put(0xc, several | u32::from(self.buses().is_some()) << 16);
        if let Some((first, last)) = self.buses() {
            put(0x18, self.bus() | first << 8 | last << 16);
        }
        if let Some(kind) = self.express() {
            put(4, 6 | 1 << 20);
            put(0x34, 0x40);
            put(0x40, 0x10 | 2 << 16 | u32::from(kind) << 20);
        }
        put(0x100, 1 << 16 | 0x140 << 20 | 1);
        if let Some(acs) = self.facts.get("acs") {
            let (can, on) = acs.split_once('/').unwrap();
            put(0x140, 0x0d | 1 << 16 | 0x180 << 20);
            put(0x144, hex(can) | hex(on) << 16);
        } else {
            put(0x140, 0x0b | 1 << 16 | 0x180 << 20);
        }
        if let Some(most) = self.facts.get("rebar") {
            let step = |bytes: u64| bytes.trailing_zeros() - 20;
            put(0x180, 0x15 | 1 << 16);
            put(0x184, 0x10 << step(size(most)) | 0x10 << step(self.bars()[1]));
            put(0x188, 1 | 1 << 5 | step(self.bars()[1]) << 8);
        }
        space
    }

    /// The link to the function's folder, whose parts are the bridges above.
    fn link(&self, all: &[Self]) -> String {
        let mut above: Vec<(u32, &str)> = Vec::new();
        for one in all.iter().filter(|one| one.segment() == self.segment()) {
            if let Some((first, last)) = one.buses()
                && (first..=last).contains(&self.bus())
            {
                above.push((first, &one.at));
            }
        }
        above.sort_unstable();
        let host = format!("{}:00", self.segment());
        let host = self.facts.get("host").map_or(host, |host| (*host).to_owned());
        let above: String = above.iter().map(|(_, at)| format!("{at}/")).collect();
        format!("../../../devices/pci{host}/{above}{}", self.at)
    }
}

/// The files of the functions in `lines`, as a collected machine has them; `root` is for what root alone reads.
pub fn files(lines: &str, root: bool) -> BTreeMap<String, Value> {
    let all: Vec<Function> =
        lines.lines().filter(|line| !line.trim().is_empty()).map(Function::read).collect();
    let mut files = BTreeMap::new();
    let mut next = 0x10_0000_0000_u64;
    for one in &all {
        let at = &one.at;
        let folder = format!("sys/bus/pci/devices/{at}");
        let mut add = |name: &str, value: Value| files.insert(format!("{folder}/{name}"), value);
        let space = one.space();
        let space = if root { &space[..] } else { &space[..64] };
        let digits: String = space.iter().map(|byte| format!("{byte:02x}")).collect();
        add("config", json!({ "hex": digits }));
        for (name, number) in [("vendor", one.id[0]), ("device", one.id[1])] {
            add(name, json!({ "text": format!("{number:#06x}\n") }));
        }
        add("class", json!({ "text": format!("{:#08x}\n", one.class) }));
        let mut resource = String::new();
        for bytes in one.bars() {
            next = next.next_multiple_of(bytes);
            resource += &format!("{next:#018x} {:#018x} 0x000000000014220c\n", next + bytes - 1);
            next += bytes;
        }
        add("resource", json!({ "text": resource }));
        if one.express().is_some() {
            add("max_link_speed", json!({ "text": "16.0 GT/s PCIe\n" }));
        }
        let numa = one.facts.get("numa").unwrap_or(&"-1");
        add("numa_node", json!({ "text": format!("{numa}\n") }));
        if one.flags.contains(&"boot_vga") {
            add("boot_vga", json!({ "text": "1\n" }));
        }
        if let Some(driver) = one.facts.get("driver") {
            add("driver", json!({ "link": format!("../../../../bus/pci/drivers/{driver}") }));
        }
        let link = one.link(&all);
        if let Some(group) = one.facts.get("group") {
            let target = format!("../../../../kernel/iommu_groups/{group}");
            add("iommu_group", json!({ "link": target }));
            let member = format!("sys/kernel/iommu_groups/{group}/devices/{at}");
            files.insert(member, json!({ "link": format!("../{link}") }));
        }
        for name in one.facts.get("names").iter().flat_map(|names| names.split(',')) {
            let classes = [("nvme", "nvme"), ("card", "drm"), ("ib", "infiniband")];
            let class = classes.iter().find(|(start, _)| name.starts_with(start));
            let class = class.map_or("net", |(_, class)| class);
            let target = format!("../../{}/{class}/{name}", &link[9..]);
            files.insert(format!("sys/class/{class}/{name}"), json!({ "link": target }));
        }
        files.insert(folder, json!({ "link": link }));
    }
    files
}
