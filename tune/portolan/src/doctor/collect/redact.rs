//! Names of people, hosts and things in a machine's texts, replaced before they are passed on.
//!
//! Replaced: addresses of network cards, IPv4 and IPv6, UUIDs, what follows a word for a serial number, the host's
//! name, and serial numbers in PCI Express's capability of that name. Not supported: names in other texts, such as
//! those of network interfaces and logical volumes.

use portolan_cli::display::grouped;

/// PCI Express's capability with a device's serial number (PCI Express 6.0, section 7.9.3).
const SERIAL_NUMBER: u32 = 3;
/// Extended capabilities that are followed.
const MOST_CAPABILITIES: usize = 96;

/// Replacements, and their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Redactor {
    host: String,
    hosts: u64,
    networks: u64,
    serials: u64,
    places: u64,
    log_lines: u64,
    too_long: u64,
}

/// Tells if `word` is groups of `lengths` hexadecimal digits with `between`.
fn is_groups(word: &str, between: char, lengths: &[usize]) -> bool {
    let mut groups = word.split(between);
    let fits = lengths.iter().all(|length| {
        let group = groups.next().unwrap_or_default();
        group.len() == *length && group.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    fits && groups.next().is_none()
}

/// Tells if `word` is an address of a network, with or without its prefix.
fn is_network(word: &str) -> bool {
    let address = word.split('/').next().unwrap_or_default();
    let v4 = || {
        // A port may follow.
        let parts: Vec<&str> = address.split(':').next().unwrap_or_default().split('.').collect();
        parts.len() == 4 && parts.iter().all(|part| !part.is_empty() && part.parse::<u8>().is_ok())
    };
    let v6 = || address.matches(':').count() >= 2 && address.parse::<std::net::Ipv6Addr>().is_ok();
    is_groups(address, ':', &[2; 6]) || is_groups(address, '-', &[2; 6]) || v4() || v6()
}

/// Tells if `word` is a UUID.
fn is_uuid(word: &str) -> bool {
    is_groups(word, '-', &[8, 4, 4, 4, 12])
}

impl Redactor {
    /// Makes one for a host of this name.
    pub(super) fn new(host: &str) -> Self {
        // A shorter name would be found in words of the kernel.
        let host = if host.len() >= 4 && host != "localhost" { host } else { "" };
        Self { host: host.to_owned(), ..Self::default() }
    }

    /// `line`, with what names a host or a thing replaced.
    pub(super) fn line(&mut self, line: &str) -> String {
        let line = self.without_host(line);
        let mut out = String::with_capacity(line.len());
        let mut after_serial = false;
        let mut rest = line.as_str();
        let between = |one: char| one.is_whitespace() || "=,;()[]\"'<>".contains(one);
        while !rest.is_empty() {
            let length = rest.find(between).unwrap_or(rest.len());
            let (word, after) = rest.split_at(length);
            out += &self.word(word, after_serial);
            if !word.is_empty() {
                let lower = word.to_ascii_lowercase();
                after_serial =
                    ["serial", "serialnumber", "serialnumber:", "s/n", "s/n:", "serial:"]
                        .contains(&lower.as_str())
                        || (after_serial && lower == "number:");
            }
            let mut letters = after.chars();
            out.extend(letters.next());
            rest = letters.as_str();
        }
        out
    }

    fn word(&mut self, word: &str, after_serial: bool) -> String {
        let bare = word.trim_matches(|one: char| ".:".contains(one));
        if is_network(bare) && bare != "::" {
            self.networks += 1;
            return "(address)".to_owned();
        }
        if is_uuid(bare)
            || (after_serial && !bare.is_empty() && !bare.eq_ignore_ascii_case("number"))
        {
            self.serials += 1;
            return "(serial)".to_owned();
        }
        word.to_owned()
    }

    /// `line` without the host's name, which journals put before the kernel's.
    fn without_host(&mut self, line: &str) -> String {
        let named = line.split_once(" kernel: ").and_then(|(before, _)| before.rsplit_once(' '));
        let journal =
            named.map(|(_, host)| host).filter(|host| !host.ends_with(']') && !host.is_empty());
        let mut line = line.to_owned();
        if let Some(host) = journal.map(str::to_owned) {
            line = line.replacen(&format!(" {host} kernel: "), " host kernel: ", 1);
            self.hosts += u64::from(host != "host");
        }
        if !self.host.is_empty() && line.contains(&self.host) {
            self.hosts += 1;
            line = line.replace(&self.host, "host");
        }
        line
    }

    /// Removes the device's serial number from a configuration space.
    pub(super) fn space(&mut self, bytes: &mut [u8]) {
        let word = |bytes: &[u8], at: usize| {
            let four = bytes.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes(four.try_into().ok()?))
        };
        let mut at = 0x100;
        for _ in 0..MOST_CAPABILITIES {
            let Some(header) = word(bytes, at) else {
                return;
            };
            if header & 0xffff == SERIAL_NUMBER
                && let Some(serial) = bytes.get_mut(at + 4..at + 12)
            {
                serial.fill(0);
                self.serials += 1;
            }
            at = (header >> 20) as usize & !3;
            if at < 0x100 {
                return;
            }
        }
    }

    /// Counts an address that was replaced.
    pub(super) fn network(&mut self) {
        self.networks += 1;
    }

    /// Counts a place of a mount that was replaced.
    pub(super) fn place(&mut self) {
        self.places += 1;
    }

    /// Counts a line of the log that was left out.
    pub(super) fn log_line(&mut self) {
        self.log_lines += 1;
    }

    /// Counts a file that was left out for its length.
    pub(super) fn too_long(&mut self) {
        self.too_long += 1;
    }

    /// The replacements in words.
    pub(super) fn told(&self) -> Vec<String> {
        let counts = [
            (self.networks, "addresses of network cards and networks, replaced"),
            (self.serials, "serial numbers and UUIDs, replaced"),
            (self.hosts, "mentions of the host's name, replaced"),
            (self.places, "places of mounts, replaced"),
            (self.log_lines, "lines of the log about other things, left out"),
            (self.too_long, "files for their length, left out"),
        ];
        let told = counts.iter().filter(|(count, _)| *count > 0);
        told.map(|(count, words)| format!("{words}: {}", grouped(*count))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_replaced_and_pci_addresses_stay() {
        let mut redactor = Redactor::new("ada-laptop");
        let line = "[ 1.0] e1000e 0000:00:1f.6 eth0: MAC 52:54:00:12:34:56, ip=192.168.7.9/24 10.0.0.1:80 fe80::1 \
                    root=UUID=01234567-89ab-cdef-0123-456789abcdef SerialNumber: X1Y2 ada-laptop";
        let wanted = "[ 1.0] e1000e 0000:00:1f.6 eth0: MAC (address), ip=(address) (address) (address) \
                      root=UUID=(serial) SerialNumber: (serial) host";
        assert_eq!(redactor.line(line), wanted);
        let same = "DMAR: [DMA Read NO_PASID] Request device [03:00.0] fault addr 0xffff0000 [fault 0x06] 6.12.1";
        assert_eq!(redactor.line(same), same);
        let journal = "Jan 09 10:03:12 tower kernel: vfio-pci 0000:04:00.1: x";
        assert_eq!(redactor.line(journal), "Jan 09 10:03:12 host kernel: vfio-pci 0000:04:00.1: x");
        let told = redactor.told().join("; ");
        assert!(
            told.contains("networks, replaced: 4") && told.contains("UUIDs, replaced: 2"),
            "{told}"
        );
        assert!(told.contains("name, replaced: 2"), "{told}");
    }

    #[test]
    fn a_serial_number_in_a_space_is_gone_and_loops_end() {
        let mut space = vec![0; 0x200];
        space[0x100..0x104].copy_from_slice(&0x1100_0001u32.to_le_bytes());
        space[0x110..0x114].copy_from_slice(&0x1000_0003u32.to_le_bytes());
        space[0x114..0x11c].fill(0xaa);
        let mut redactor = Redactor::new("");
        redactor.space(&mut space);
        assert_eq!(space[0x114..0x11c], [0; 8]);
        assert_eq!(space[0x110], 3);
        // Cut off in the middle of one.
        redactor.space(&mut space[..0x112]);
    }
}
