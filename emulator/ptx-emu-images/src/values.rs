//! PTX with other first values of its variables, so that a bundle has those that the launch found.

/// Whether a character is part of a name.
fn named(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// A declaration of a variable: name, and its place from its state space to its semicolon.
#[derive(Debug, PartialEq, Eq)]
struct Declaration {
    name: String,
    space: &'static str,
    align: u32,
    start: usize,
    end: usize,
}

/// The text with spaces for comments and strings.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
            _ => 0,
        };
        match length {
            0 => {
                plain.push(first);
                rest = &rest[first.len_utf8()..];
            }
            _ => {
                plain.extend(std::iter::repeat_n(' ', length));
                rest = &rest[length..];
            }
        }
    }
    plain
}

/// The module's `.global` and `.const` variables.
fn declarations(text: &str) -> Vec<Declaration> {
    let text = &without_comments(text);
    let (mut found, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                // The end of a body; that of an initialiser is followed by a semicolon.
                if depth == 0 && !text[at + 1..].trim_start().starts_with(';') {
                    start = at + 1;
                }
            }
            b';' if depth == 0 => {
                found.extend(declaration(text, start, at));
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The declaration in a statement, if it is one of a variable.
fn declaration(text: &str, start: usize, end: usize) -> Option<Declaration> {
    let statement = &text[start..end];
    let spaces = [".global", ".const"].into_iter();
    let (place, space) = spaces.filter_map(|space| Some((statement.find(space)?, space))).min()?;
    if statement[..place].contains('(') {
        return None;
    }
    let mut rest = statement[place + space.len()..].trim_start();
    let mut align = 16;
    while let Some(directive) = rest.strip_prefix('.') {
        let length = directive.find(|c: char| !named(c)).unwrap_or(directive.len());
        let (word, behind) = directive.split_at(length);
        rest = behind.trim_start();
        if word == "align" {
            let length = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            align = rest[..length].parse().unwrap_or(align);
            rest = rest[length..].trim_start();
        } else if rest.starts_with('(') {
            rest = rest.split_once(')').map_or("", |(_, behind)| behind).trim_start();
        }
    }
    let length = rest.find(|c: char| !named(c)).unwrap_or(rest.len());
    let name = rest.get(..length).filter(|name| !name.is_empty())?;
    Some(Declaration { name: name.to_owned(), space, align, start: start + place, end })
}

/// The names of the module's variables.
#[must_use]
pub fn names(text: &str) -> Vec<String> {
    declarations(text).into_iter().map(|declaration| declaration.name).collect()
}

/// Whether the CTAs of a cooperative grid meet in memory whose address the driver puts into
/// special registers.
#[must_use]
pub fn meets_in_memory(text: &str) -> bool {
    text.contains("%envreg1;") || text.contains("%envreg2;")
}

/// The text with the address of the memory in which the CTAs of a cooperative grid meet, whose
/// halves special registers have: a size and the barrier, 8 bytes of zeros.
#[must_use]
pub fn with_meeting_place(text: &str, address: u64) -> String {
    let (high, low) = (address >> 32, address & 0xffff_ffff);
    text.replace("%envreg1;", &format!("{high};")).replace("%envreg2;", &format!("{low};"))
}

/// The text with each variable's first value, and the names of those that it does not declare.
#[must_use]
pub fn with_values(text: &str, values: &[(String, Vec<u8>)]) -> (String, Vec<String>) {
    let declarations = declarations(text);
    let mut new = String::with_capacity(text.len());
    let mut copied = 0;
    for declaration in &declarations {
        let value = values.iter().find(|(name, _)| *name == declaration.name);
        let Some((name, bytes)) = value else { continue };
        let list: Vec<String> = bytes.iter().map(u8::to_string).collect();
        new.push_str(&text[copied..declaration.start]);
        new.push_str(&format!(
            "{} .align {} .b8 {name}[{}] = {{{}}}",
            declaration.space,
            declaration.align,
            bytes.len(),
            list.join(", ")
        ));
        copied = declaration.end;
    }
    new.push_str(&text[copied..]);
    let declared = |name: &String| declarations.iter().any(|known| known.name == *name);
    let missing = values.iter().map(|(name, _)| name.clone()).filter(|name| !declared(name));
    (new, missing.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptx_emu_core::{GlobalMemory, Gpu, Module};

    const TEXT: &str = r#".version 9.0
.target sm_100a // ; .global .u32 no;
.address_size 64
.file 1 "a;{.cu"
.global .attribute(.managed) .align 4 .u32 shared_one;
.visible .const .align 8 .b8 table[4] = {1, 2, 3, 4};
.global .u64 pointer = generic(table);
.visible .global .f32 factor = 0f3F800000;
.visible .entry k(.param .u64 .ptr .global .align 4 p) {
    .reg .b32 %r<2>;
    ret;
}
.global .u32 last;
"#;

    #[test]
    fn the_meeting_place_is_written_into_the_text() {
        let text = "mov.u32 %r1, %envreg2;\nmov.u32 %r2, %envreg1;\n";
        assert!(meets_in_memory(text) && !meets_in_memory(TEXT));
        let expected = "mov.u32 %r1, 16;\nmov.u32 %r2, 1;\n";
        assert_eq!(with_meeting_place(text, 0x1_0000_0010), expected);
    }

    #[test]
    fn values_replace_initialisers() {
        let values = [("last", 4), ("factor", 4), ("table", 4), ("none", 1)]
            .map(|(name, size)| (name.to_owned(), vec![9; size]));
        let (text, missing) = with_values(TEXT, &values);
        assert_eq!(missing, ["none"]);
        let gpu = Gpu::b200();
        let mut memory = GlobalMemory::new();
        let module = Module::load(&text, &gpu).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(module.constant("table"), Some(&[9; 4][..]));
        let variables = module.variables(&mut memory).expect("room");
        for name in ["last", "factor"] {
            let found = variables.iter().find(|variable| variable.name == name);
            let address = found.and_then(|variable| variable.address).expect("global");
            assert_eq!(memory.read(address, 4), Ok(vec![9; 4]), "{name}");
        }
        assert_eq!(names(TEXT), ["shared_one", "table", "pointer", "factor", "last"]);
        // The others stay as they are.
        assert!(text.contains("pointer = generic(table);") && text.contains(".u32 shared_one;"));
        assert_eq!(with_values(TEXT, &[]).0, TEXT);
    }
}
