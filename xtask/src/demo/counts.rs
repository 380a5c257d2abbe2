//! What the kernel counted beside what QEMU traced.

use super::guests::Kinds;

/// How the kernel's lines with the numbers of the whole run begin.
const IN_ALL: &str = "commands in all: ";

/// The kernel's number of commands of `kind`.
fn ours(console: &str, kind: &str) -> u64 {
    let lines = console
        .lines()
        .filter_map(|line| line.trim().strip_prefix(IN_ALL));
    let numbers = lines
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, of)| *of == kind);
    numbers
        .filter_map(|(number, _)| number.parse::<u64>().ok())
        .sum()
}

/// How often QEMU traced `event`: by the name of the event, or by the command that it names last.
fn traced(trace: &str, event: &str) -> u64 {
    let named = |line: &&str| {
        let mut words = line.split_ascii_whitespace();
        // Some builds write the process and the time before the name.
        let first = words
            .next()
            .map(|name| name.rsplit(':').next().unwrap_or(name));
        first == Some(event) || words.next_back() == Some(event)
    };
    trace.lines().filter(named).count() as u64
}

/// Compares the two, of each kind.
pub(super) fn check(console: &str, trace: &str, kinds: &[Kinds]) -> Result<(), String> {
    let mut all = 0;
    for Kinds { ours: names, event } in kinds {
        let counted: u64 = names.iter().map(|name| ours(console, name)).sum();
        let traced = traced(trace, event);
        if counted != traced {
            let names = names.join(" and ");
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

    #[test]
    fn numbers_are_compared_kind_by_kind() {
        let kinds = &[
            Kinds {
                ours: &["wait", "wait (again)"],
                event: "unit_wait",
            },
            Kinds {
                ours: &["page"],
                event: "unit_page",
            },
        ];
        let console =
            "commands in all: 2 wait\r\ncommands: 9 page\ncommands in all: 1 wait (again)\n";
        let trace = "unit_wait a\n12@3.4:unit_wait b\nunit_wait_more\nunit_wait c\n";
        assert_eq!(check(console, trace, kinds), Ok(()));
        assert!(check(console, &format!("{trace}unit_page\n"), kinds).is_err());
        assert!(check(console, "unit_wait a\n", kinds).is_err());
        assert!(check("", "", kinds).is_err());
        let trace = "opcode <--- CMD_SYNC\nopcode <--- CMD_SYNC_ALL\n9@1.2:opcode <--- CMD_SYNC\n";
        assert_eq!((traced(trace, "CMD_SYNC"), traced(trace, "opcode")), (2, 3));
    }
}
