//! The text of `nvdisasm -c -gp`: instructions, labels, and the line of PTX that each instruction
//! comes from.

/// Text that is no disassembly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("disassembly, line {line}: required {required}, actual `{actual}`")]
pub struct DisassemblyError {
    /// Line of the text, from 1.
    pub line: usize,
    /// The text that should stand there.
    pub required: &'static str,
    /// The text that stands there.
    pub actual: String,
}

/// One machine instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction {
    /// Offset in its section.
    pub address: u64,
    /// Line of PTX that it comes from, if there is one.
    pub line: Option<u32>,
    /// Its predicate, without the `@`: `P0`, `!UP1`.
    pub guard: Option<String>,
    /// Opcode with modifiers: `IMAD.MOV.U32`.
    pub opcode: String,
    /// Everything behind the opcode.
    pub operands: String,
}

impl Instruction {
    /// Opcode without modifiers.
    #[must_use]
    pub fn base(&self) -> &str {
        self.opcode.split('.').next().unwrap_or_default()
    }

    /// Whether it has this modifier.
    #[must_use]
    pub fn has(&self, modifier: &str) -> bool {
        self.opcode.split('.').skip(1).any(|one| one == modifier)
    }

    /// Labels that its operands name.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        let direct = self.operands.split("`(").skip(1).filter_map(|rest| rest.split(')').next());
        let listed = self.operands.split_once("BRANCH_TARGETS ").map(|(_, list)| list);
        let listed = listed.and_then(|list| list.split('"').next()).unwrap_or_default();
        direct.chain(listed.split(',')).map(str::trim).filter(|label| !label.is_empty())
    }
}

/// The code of a section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Function {
    /// Name, that of the section without `.text.`.
    pub name: String,
    /// Instructions in their order.
    pub instructions: Vec<Instruction>,
    /// Labels, and the number of the instruction that each stands before.
    pub labels: Vec<(String, usize)>,
}

/// A disassembled module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disassembly {
    /// Its sections with code.
    pub functions: Vec<Function>,
}

impl Disassembly {
    /// Reads a disassembly.
    ///
    /// # Errors
    /// [`DisassemblyError`] for an instruction that is none.
    pub fn parse(text: &str) -> Result<Self, DisassemblyError> {
        let mut functions: Vec<Function> = Vec::new();
        let mut line_of_ptx = None;
        for (at, line) in text.lines().enumerate() {
            let trimmed = line.trim();
            if let Some(section) = trimmed.strip_prefix(".section") {
                let name = section.trim_start().split(',').next().unwrap_or_default();
                if let Some(name) = name.strip_prefix(".text.") {
                    functions.push(Function { name: name.to_owned(), ..Function::default() });
                    line_of_ptx = None;
                }
                continue;
            }
            let Some(function) = functions.last_mut() else { continue };
            if let Some(place) = trimmed.strip_prefix("//## File ") {
                // Lines of other files are those of what the PTX was made of.
                if let Some(rest) = place.strip_prefix("\".nv_debug_ptx_txt\", line ") {
                    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
                    line_of_ptx = digits.and_then(|digits| digits.parse().ok());
                }
            } else if let Some(label) = trimmed.strip_suffix(':').filter(|one| is_label(one)) {
                function.labels.push((label.to_owned(), function.instructions.len()));
            } else if let Some(rest) = trimmed.strip_prefix("/*") {
                let wrong = |required| DisassemblyError {
                    line: at + 1,
                    required,
                    actual: trimmed.to_owned(),
                };
                let instruction = instruction(rest, line_of_ptx);
                function.instructions.push(instruction.map_err(wrong)?);
            }
        }
        Ok(Self { functions })
    }
}

fn is_label(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_whitespace)
}

/// An instruction behind `/*`.
fn instruction(text: &str, line: Option<u32>) -> Result<Instruction, &'static str> {
    let (address, rest) = text.split_once("*/").ok_or("an address in a comment")?;
    let address = u64::from_str_radix(address, 16).map_err(|_| "a hexadecimal address")?;
    let code = rest.trim().strip_suffix(';').ok_or("an instruction that ends with `;`")?.trim();
    let (guard, code) = match code.strip_prefix('@') {
        Some(guarded) => {
            let parts = guarded.split_once(char::is_whitespace);
            let (guard, code) = parts.ok_or("an opcode behind the predicate")?;
            (Some(guard.to_owned()), code.trim_start())
        }
        None => (None, code),
    };
    let (opcode, operands) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
    if !opcode.starts_with(|c: char| c.is_ascii_uppercase()) {
        return Err("an opcode");
    }
    let operands = operands.trim().to_owned();
    Ok(Instruction { address, line, guard, opcode: opcode.to_owned(), operands })
}
