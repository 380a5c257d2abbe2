//! IORT tables rebuilt from `data/firmware/iort.txt`, with the layouts of DEN0049, revision E.f, section 3.1.

use std::collections::BTreeMap;

/// A mapping: input, count less one, output, number of the node, flags.
type Mapping = [u32; 5];

/// A node of the file: type, contents and mappings.
#[derive(Clone)]
struct Node {
    kind: u8,
    /// Bytes behind the common head, of an SMMU of version 1 or 2 without the lists of interrupts.
    body: Vec<u8>,
    /// Interrupts of contexts and of counters behind the body.
    interrupts: [u32; 2],
    mappings: Vec<Mapping>,
}

/// A table with its name.
pub struct Rebuilt {
    pub name: String,
    pub bytes: Vec<u8>,
}

fn hex(word: &str) -> u64 {
    u64::from_str_radix(word, 16).unwrap_or_else(|_| panic!("{word} is no number"))
}

fn node(line: &str) -> Node {
    let (fixed, counts) = line.split_once(';').unwrap_or((line, ""));
    let words: Vec<&str> = fixed.split_whitespace().collect();
    let number = |at: usize| hex(words[at]);
    let four = |at: usize| (number(at) as u32).to_le_bytes().to_vec();
    let one = |at: usize| vec![number(at) as u8];
    let eight = |at: usize| number(at).to_le_bytes().to_vec();
    let zeros = |count: usize| vec![0; count];
    let attributes = |at: usize| [four(at), one(at + 1), zeros(2), one(at + 2)].concat();
    let mut interrupts = counts.split_whitespace().map(|count| hex(count) as u32);
    let (kind, body) = match words[0] {
        "its" => {
            let count = (words.len() - 1) as u32;
            let ids = (1..words.len()).map(four).collect::<Vec<_>>().concat();
            (0, [count.to_le_bytes().to_vec(), ids].concat())
        }
        "named" => {
            // Room of which these tables leave the rest empty.
            let mut name = words[6].as_bytes().to_vec();
            name.resize(32, 0);
            (1, [four(1), attributes(2), one(5), name].concat())
        }
        "root" => {
            let end = [four(4), four(5), one(6), zeros(3)];
            (2, [attributes(1), end.concat()].concat())
        }
        "smmu" => (3, [eight(1), eight(2), four(3), four(4)].concat()),
        "smmu3" => {
            let lines = [four(5), four(6), four(7), four(8)].concat();
            (4, [eight(1), four(2), zeros(4), eight(3), four(4), lines].concat())
        }
        other => panic!("{other} is no node"),
    };
    Node {
        kind,
        body,
        interrupts: [(); 2].map(|()| interrupts.next().unwrap_or(0)),
        mappings: Vec::new(),
    }
}

impl Node {
    /// Bytes of the node without its mappings, whose offset is in its head.
    fn without_mappings(&self) -> Vec<u8> {
        let mut bytes = self.body.clone();
        if self.kind == 3 {
            // Behind the five numbers and the global interrupts.
            let [contexts, counters] = self.interrupts;
            let global = 16 + 24 + 20;
            let lists = [global, contexts, global + 16, counters, global + 16 + 8 * contexts];
            bytes.extend(lists.iter().flat_map(|number| number.to_le_bytes()));
            bytes.resize(bytes.len() + 16 + 8 * (contexts + counters) as usize, 0);
        }
        bytes
    }

    fn length(&self) -> usize {
        16 + self.without_mappings().len() + 20 * self.mappings.len()
    }

    fn bytes(&self, offsets: &[usize]) -> Vec<u8> {
        let inside = self.without_mappings();
        let mut bytes = vec![self.kind];
        bytes.extend((self.length() as u16).to_le_bytes());
        bytes.extend([0; 5]);
        bytes.extend((self.mappings.len() as u32).to_le_bytes());
        bytes.extend((16 + inside.len() as u32).to_le_bytes());
        bytes.extend(inside);
        for [input, count, output, node, flags] in &self.mappings {
            let target = offsets[*node as usize] as u32;
            let all = [*input, *count, *output, target, *flags];
            bytes.extend(all.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes
    }
}

/// The table of `nodes`, of a maker.
fn table(maker: [&str; 2], nodes: &[Node]) -> Vec<u8> {
    let mut at = 48;
    let offsets: Vec<usize> = nodes
        .iter()
        .map(|node| {
            at += node.length();
            at - node.length()
        })
        .collect();
    let mut bytes = b"IORT".to_vec();
    bytes.extend((at as u32).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(format!("{:6}{:8}", maker[0], maker[1]).bytes());
    bytes.extend([1, 0, 0, 0, b'T', b'E', b'S', b'T', 1, 0, 0, 0]);
    let head = [nodes.len() as u32, 48, 0];
    bytes.extend(head.iter().flat_map(|word| word.to_le_bytes()));
    nodes.iter().for_each(|node| bytes.extend(node.bytes(&offsets)));
    super::seal(&mut bytes);
    bytes
}

/// All tables of the file.
pub fn all(text: &str) -> Vec<Rebuilt> {
    let mut known: BTreeMap<String, Vec<Node>> = BTreeMap::new();
    let mut heads = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(head) = line.strip_prefix("table ") {
            let parts: Vec<&str> = head.split("; ").collect();
            let [name, maker, nodes] = parts[..] else {
                panic!("{line}");
            };
            let name = name.split_whitespace().next().expect("a name").to_owned();
            let nodes = match nodes.strip_prefix("as ") {
                Some(other) => known[other].clone(),
                None => Vec::new(),
            };
            known.insert(name.clone(), nodes);
            let maker = maker.strip_prefix("maker ").expect("a maker");
            heads.push((name, maker.split_once(", ").expect("two names")));
            continue;
        }
        let (name, _) = heads.last().expect("a table");
        let nodes = known.get_mut(name).expect("the table");
        match line.trim_start().strip_prefix("> ") {
            Some(mapping) => {
                let words: Vec<u32> = mapping.split(' ').map(|word| hex(word) as u32).collect();
                let last = nodes.last_mut().expect("a node");
                last.mappings.push(words.try_into().expect("five numbers"));
            }
            None => nodes.push(node(line)),
        }
    }
    let rebuilt = heads.into_iter().map(|(name, (oem, oem_table))| Rebuilt {
        bytes: table([oem, oem_table], &known[&name]),
        name,
    });
    rebuilt.collect()
}
