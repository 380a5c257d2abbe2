//! Inputs that are kept, and changes of them at random.
//!
//! An input is a file of `tests/corpus`: records, one a line, as bytes in hexadecimal; blanks and text behind a `#`
//! do not count. In a file `.lines` each line is a record as it is. The test of the folder defines its records. An
//! input that once failed belongs there. `PORTOLAN_SEED` repeats a run, `PORTOLAN_FUZZ=N` makes it N times as long.
//! Tests of other crates take it by `#[path]`.

use std::path::Path;

use fastrand::Rng;
use portolan_chips::fixture::seed;

pub type Input = Vec<Vec<u8>>;

/// Values that change more than others.
const WORDS: [u64; 12] = [
    0,
    1,
    2,
    0xfff,
    0x1000,
    0x1_0000,
    0xffff_ffff,
    1 << 32,
    1 << 63,
    u64::MAX - 0xfff,
    u64::MAX - 1,
    u64::MAX,
];

/// Texts that take the place of numbers.
const NUMBERS: [&str; 14] = [
    "",
    "0",
    "1",
    "-1",
    "4096",
    "2097152",
    "0.000",
    "999999.999",
    "NaN",
    "inf",
    "1e999",
    "18446744073709551615",
    "18446744073709551616",
    "0xffffffffffffffff",
];

/// Has `run` meet each input of `folder`, then so many changed ones. Returns the number of times that `run`
/// returned true, for the first and for the others.
pub fn each(folder: &str, changed: u32, mut run: impl FnMut(&Input, &mut Rng) -> bool) -> [u32; 2] {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let times = number("PORTOLAN_FUZZ").unwrap_or(1);
    let mut rng = Rng::with_seed(seed());
    let corpus = read(folder);
    let mut one = |input: Input, rng: &mut Rng| {
        let shown = Shown(&input);
        let good = run(&input, rng);
        drop(shown);
        u32::from(good)
    };
    let kept = corpus.iter().map(|input| one(input.clone(), &mut rng));
    let kept = kept.sum();
    let changed = u64::from(changed) * times;
    let others = (0..changed).map(|_| one(change(&corpus, &mut rng), &mut rng));
    let counts = [kept, others.sum()];
    println!("{folder}: {counts:?} of {} and {changed}", corpus.len());
    counts
}

/// Prints the input, as the corpus has them, if the test fails meanwhile.
struct Shown<'i>(&'i Input);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for record in self.0 {
                let bytes = record.iter().map(|byte| format!("{byte:02x}"));
                println!("{}", bytes.collect::<String>());
            }
        }
    }
}

/// All inputs of a folder, in the order of their names.
fn read(folder: &str) -> Vec<Input> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let files = std::fs::read_dir(place.join(folder)).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let input = |file: std::path::PathBuf| {
        let bytes = std::fs::read(&file).unwrap();
        match file.extension().is_some_and(|end| end == "lines") {
            true => bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
            false => records(&String::from_utf8(bytes).unwrap()),
        }
    };
    files.into_iter().map(input).collect()
}

fn records(text: &str) -> Input {
    let lines = text.lines().map(|line| line.split('#').next().unwrap());
    let digits = lines.map(|line| line.split_whitespace().collect::<String>());
    let digits = digits.filter(|digits| !digits.is_empty());
    let byte = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
    let record = |digits: String| digits.as_bytes().chunks(2).map(byte).collect();
    digits.map(record).collect()
}

fn change(corpus: &[Input], rng: &mut Rng) -> Input {
    let mut input = rng.choice(corpus).unwrap().clone();
    for _ in 0..rng.u32(1..8) {
        let at = rng.usize(..input.len());
        match rng.u32(..10) {
            0 if input.len() > 1 => drop(input.remove(at)),
            1 => {
                let other = rng.usize(..input.len());
                input.swap(at, other);
            }
            2 => {
                // Endless ones are as long as a test can wait.
                for _ in 0..rng.usize(1..32) {
                    input.insert(at, input[at].clone());
                }
            }
            3 => {
                let other = rng.choice(corpus).unwrap();
                let from = rng.usize(..other.len());
                input.extend_from_slice(&other[from..]);
            }
            4 => {
                let length = rng.usize(..=input[at].len());
                input[at].truncate(length);
            }
            5 => {
                let more = rng.usize(1..64);
                input[at].extend((0..more).map(|_| rng.u8(..)));
            }
            6 | 7 if input[at].is_ascii() => change_number(&mut input[at], rng),
            6 | 7 => change_word(&mut input[at], rng),
            _ => {
                if let Some(byte) = rng.choice(&mut input[at]) {
                    *byte = byte.wrapping_add(rng.choice([1, 255, 16, 128]).unwrap());
                }
            }
        }
    }
    input
}

/// Puts another number where one is in a text.
fn change_number(text: &mut Vec<u8>, rng: &mut Rng) {
    let starts: Vec<usize> = (0..text.len())
        .filter(|at| text[*at].is_ascii_digit() && (*at == 0 || !text[at - 1].is_ascii_digit()))
        .collect();
    let Some(start) = rng.choice(starts) else {
        return;
    };
    let digits = text[start..].iter().take_while(|b| b.is_ascii_digit());
    let end = start + digits.count();
    let number = rng.choice(NUMBERS).unwrap();
    text.splice(start..end, number.bytes());
}

/// Puts a value, or one near the old value, at a place where a field of 4 or 8 bytes may be.
fn change_word(record: &mut [u8], rng: &mut Rng) {
    let size = rng.choice([4, 8]).unwrap();
    let Some(last) = record.len().checked_sub(size) else {
        return;
    };
    let at = rng.usize(..=last);
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(&record[at..at + size]);
    let word = match rng.bool() {
        true => rng.choice(WORDS).unwrap(),
        false => u64::from_le_bytes(bytes).wrapping_add(rng.u64(..5)).wrapping_sub(2),
    };
    record[at..at + size].copy_from_slice(&word.to_le_bytes()[..size]);
}
