//! Changes of bytes, tokens and instructions.

use super::corpus::Program;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `count`, which is 1 if it is 0.
    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}

/// Numbers at which something may overflow.
const NUMBERS: [&str; 24] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "8",
    "15",
    "16",
    "31",
    "32",
    "33",
    "63",
    "64",
    "127",
    "255",
    "1024",
    "65535",
    "65536",
    "0x7fffffff",
    "0x80000000",
    "0xffffffff",
    "0x7fffffffffffffff",
    "0xffffffffffffffff",
];

/// Tokens with the separators that follow them.
fn tokens(text: &str) -> Vec<String> {
    let boundary = |c: char| c.is_whitespace() || ",;[]{}():|@!+".contains(c);
    text.split_inclusive(boundary).map(str::to_owned).collect()
}

fn bytes(text: &str, random: &mut Random) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        let end = (at + random.below(40)).min(bytes.len());
        match random.below(4) {
            0 => bytes[at] = random.next() as u8,
            1 => drop(bytes.drain(at..end)),
            2 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => bytes[at] ^= 1 << random.below(8),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn change_tokens(text: &str, other: &str, random: &mut Random) -> String {
    let mut all = tokens(text);
    let others = tokens(other);
    for _ in 0..=random.below(4) {
        let (at, from) = (random.below(all.len()), random.below(all.len()));
        match random.below(5) {
            0 => all[at].clear(),
            1 => all[at] = all[from].clone(),
            2 => all.swap(at, from),
            3 => {
                let text = others.get(random.below(others.len())).cloned();
                all[at] = text.unwrap_or_default();
            }
            _ => {
                // The separator stays.
                let separator = all[at].pop().unwrap_or(' ');
                all[at] = format!("{}{separator}", NUMBERS[random.below(NUMBERS.len())]);
            }
        }
    }
    all.concat()
}

/// Instructions end in semicolons.
fn change_instructions(text: &str, other: &str, random: &mut Random) -> String {
    let mut all: Vec<String> = text.split_inclusive(';').map(str::to_owned).collect();
    let others: Vec<&str> = other.split_inclusive(';').collect();
    for _ in 0..=random.below(3) {
        let (at, from) = (random.below(all.len()), random.below(all.len()));
        match random.below(6) {
            0 => all[at].clear(),
            1 => all.insert(at, all[from].clone()),
            2 => all.swap(at, from),
            3 => all[at] = others[random.below(others.len())].to_owned(),
            _ => all[at] = change_modifiers(&all[at], other, random),
        }
    }
    all.concat()
}

/// Modifiers start with a dot and a letter.
fn change_modifiers(instruction: &str, other: &str, random: &mut Random) -> String {
    let mut parts: Vec<&str> = instruction.split('.').collect();
    let source = if random.below(2) == 0 { instruction } else { other };
    let found: Vec<&str> = source
        .split('.')
        .skip(1)
        .map(|part| part.split([' ', '\t', '\n', ',', ';']).next().unwrap_or_default())
        .filter(|part| !part.is_empty())
        .collect();
    let at = random.below(parts.len());
    match (random.below(3), found.get(random.below(found.len()))) {
        (0, _) if parts.len() > 2 && at > 0 && at + 1 < parts.len() => drop(parts.remove(at)),
        (1, Some(modifier)) if at > 0 => parts.insert(at, modifier),
        (_, Some(modifier)) if at > 0 && at + 1 < parts.len() => parts[at] = modifier,
        _ => {}
    }
    parts.join(".")
}

/// A text made of `program` and pieces of others.
pub fn mutate(program: &Program, corpus: &[Program], random: &mut Random) -> String {
    let other = &corpus[random.below(corpus.len())].body;
    let mut body = program.body.clone();
    for _ in 0..=random.below(2) {
        body = match random.below(8) {
            0 => bytes(&body, random),
            1..4 => change_tokens(&body, other, random),
            _ => change_instructions(&body, other, random),
        };
        if body.is_empty() {
            break;
        }
    }
    let head =
        if random.below(16) == 0 { bytes(&program.head, random) } else { program.head.clone() };
    head + &body
}
