//! The kernel's counts compared with QEMU's traces.

use super::guests::{Event, Kinds};

/// Start of the kernel's lines with the numbers of the whole run.
const IN_ALL: &str = "commands in all: ";

/// The kernel's number of commands of `kind`.
fn ours(console: &str, kind: &str) -> u64 {
    let lines = console.lines().filter_map(|line| line.trim().strip_prefix(IN_ALL));
    let numbers = lines.filter_map(|line| line.split_once(' ')).filter(|(_, of)| *of == kind);
    numbers.filter_map(|(number, _)| number.parse::<u64>().ok()).sum()
}

/// Number of times that QEMU traced `event`: by its name, by the command that it names last, or by several
/// words; and, of a command that is traced as a word, the times that the word is of that kind.
pub fn traced(trace: &str, Event { name, word }: &Event) -> u64 {
    let named = |line: &&str| {
        let mut words = line.split_ascii_whitespace();
        // Some builds write the process and the time before the name.
        let first = words.next().map(|name| name.rsplit(':').next().unwrap_or(name));
        let named = first == Some(name) || words.next_back() == Some(name);
        named || name.contains(' ') && line.contains(name)
    };
    let is_of_kind = |line: &&str| {
        let Some((mask, value)) = word else {
            return true;
        };
        let mut words = line.split_ascii_whitespace();
        let number = words
            .find_map(|word| word.strip_prefix("0x"))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.is_some_and(|number| number & mask == *value)
    };
    trace.lines().filter(named).filter(is_of_kind).count() as u64
}

/// Compares the two, of each kind.
pub(super) fn check(console: &str, trace: &str, kinds: &[Kinds]) -> Result<(), String> {
    let mut all = 0;
    for Kinds { ours: names, event } in kinds {
        let counted: u64 = names.iter().map(|name| ours(console, name)).sum();
        let traced = traced(trace, event);
        if counted != traced {
            let (names, event) = (names.join(" and "), event.name);
            return Err(format!(
                "the kernel counted {counted} {names}, QEMU traced {traced} {event}"
            ));
        }
        all += counted;
    }
    if all == 0 {
        return Err("nothing was counted".to_owned());
    }
    println!("{all} commands, as many as QEMU traced, kind by kind");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn event(name: &'static str) -> Event {
        Event { name, word: None }
    }

    #[test]
    fn numbers_are_compared_kind_by_kind() {
        let kinds = &[
            Kinds { ours: &["wait", "wait (again)"], event: event("unit_wait") },
            Kinds { ours: &["page"], event: event("unit_page") },
        ];
        let console =
            "commands in all: 2 wait\r\ncommands: 9 page\ncommands in all: 1 wait (again)\n";
        let trace = "unit_wait a\n12@3.4:unit_wait b\nunit_wait_more\nunit_wait c\n";
        assert_eq!(check(console, trace, kinds), Ok(()));
        assert!(check(console, &format!("{trace}unit_page\n"), kinds).is_err());
        assert!(check(console, "unit_wait a\n", kinds).is_err());
        assert!(check("", "", kinds).is_err());
        let trace = "opcode <--- CMD_SYNC\nopcode <--- CMD_SYNC_ALL\n9@1.2:opcode <--- CMD_SYNC\n";
        let of = |name| traced(trace, &event(name));
        assert_eq!((of("CMD_SYNC"), of("opcode")), (2, 3));
        let trace = "9@1.2:desc type device high 0x0\ndesc type devices high 0x0\n";
        assert_eq!(traced(trace, &event("desc type device high")), 1);
    }

    #[test]
    fn words_are_told_apart_by_their_bits() {
        let trace = "unit_cmd (a): word 0x402 0x7\n9@1.2:unit_cmd (a): word 0x100003402 0x402\n\
                     unit_cmd (a): word 0x2 0x402\nunit_other 0x402\nunit_cmd (a): none\n";
        let of = |mask, value| {
            let word = Some((mask, value));
            let name = "unit_cmd";
            traced(trace, &Event { name, word })
        };
        assert_eq!((of(0x7ff, 0x402), of(0x7ff, 2), of(0x7ff, 3)), (2, 1, 0));
        assert_eq!(of(1 << 32 | 0x7f, 1 << 32 | 2), 1);
    }
}
