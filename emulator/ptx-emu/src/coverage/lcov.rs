//! Tracefiles of lcov (geninfo's manual page): executions of lines, by file.

use ptx_emu_core::{Executions, FunctionExecutions, Module};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Executions of lines and functions, by file.
///
/// It is written (`Display`) and read (`FromStr`) as a tracefile of lcov.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    files: BTreeMap<String, File>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct File {
    /// Line and executions of each function.
    functions: BTreeMap<String, (u32, u64)>,
    lines: BTreeMap<u32, u64>,
}

impl Coverage {
    /// Collects the instructions that launches of a module reached since
    /// [`count_executions`](Module::count_executions), of the kernels and functions that are
    /// loaded. Instructions without a line of source (`.loc`) are those of the lines of `ptx`,
    /// which names the module's file.
    #[must_use]
    pub fn of(module: &Module, ptx: &str) -> Self {
        let mut coverage = Self::default();
        for FunctionExecutions { name, instructions } in module.executions() {
            for (at, Executions { line, source, threads }) in instructions.into_iter().enumerate() {
                let (file, line) = match source {
                    Some(source) => (source.file.to_string(), source.line),
                    None => (ptx.to_owned(), line),
                };
                if at == 0 {
                    coverage.function(&file, &name, line, threads);
                }
                coverage.line(&file, line, threads);
            }
        }
        coverage
    }

    /// A function that begins at a line.
    fn function(&mut self, file: &str, name: &str, line: u32, count: u64) {
        let functions = &mut self.file(file).functions;
        let known = functions.entry(name.to_owned()).or_insert((line, 0));
        known.1 = known.1.max(count);
    }

    /// An instruction of a line.
    fn line(&mut self, file: &str, line: u32, count: u64) {
        let known = self.file(file).lines.entry(line).or_default();
        *known = (*known).max(count);
    }

    fn file(&mut self, name: &str) -> &mut File {
        self.files.entry(name.to_owned()).or_default()
    }

    /// Adds the executions of other launches.
    pub fn add(&mut self, other: &Self) {
        for (name, theirs) in &other.files {
            let mine = self.file(name);
            for (function, &(line, count)) in &theirs.functions {
                mine.functions.entry(function.clone()).or_insert((line, 0)).1 += count;
            }
            for (&line, count) in &theirs.lines {
                *mine.lines.entry(line).or_default() += count;
            }
        }
    }

    /// Lines that were reached, and all that are known.
    #[must_use]
    pub fn lines(&self) -> (usize, usize) {
        let lines = || self.files.values().flat_map(|file| file.lines.values());
        (lines().filter(|count| **count != 0).count(), lines().count())
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, File { functions, lines }) in &self.files {
            writeln!(f, "TN:\nSF:{name}")?;
            let mut functions: Vec<_> = functions.iter().collect();
            functions.sort_by_key(|(_, place)| place.0);
            for (function, (line, _)) in &functions {
                writeln!(f, "FN:{line},{function}")?;
            }
            for (function, (_, count)) in &functions {
                writeln!(f, "FNDA:{count},{function}")?;
            }
            let hit = functions.iter().filter(|(_, place)| place.1 != 0).count();
            writeln!(f, "FNF:{}\nFNH:{hit}", functions.len())?;
            for (line, count) in lines {
                writeln!(f, "DA:{line},{count}")?;
            }
            let hit = lines.values().filter(|count| **count != 0).count();
            writeln!(f, "LF:{}\nLH:{hit}\nend_of_record", lines.len())?;
        }
        Ok(())
    }
}

/// A text that is not a tracefile, or has records that are not kept here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: required {required}, actual `{actual}`")]
pub struct ParseCoverageError {
    /// Line, from 1.
    pub line: usize,
    /// The required value.
    pub required: &'static str,
    /// The actual value.
    pub actual: String,
}

impl FromStr for Coverage {
    type Err = ParseCoverageError;

    fn from_str(text: &str) -> Result<Self, ParseCoverageError> {
        let mut coverage = Self::default();
        let mut current: Option<(String, File)> = None;
        for (at, text) in text.lines().enumerate() {
            let bad =
                |required| ParseCoverageError { line: at + 1, required, actual: text.to_owned() };
            let (tag, rest) = text.split_once(':').unwrap_or((text, ""));
            match (tag, &mut current) {
                ("" | "TN", _) => {}
                ("SF", open @ None) => *open = Some((rest.to_owned(), File::default())),
                ("end_of_record", open @ Some(_)) => {
                    let files = open.take().into_iter().collect();
                    coverage.add(&Self { files });
                }
                // Sums are made anew.
                ("FNF" | "FNH" | "LF" | "LH", Some(_)) => {}
                ("FN", Some((_, file))) => {
                    let numbered = rest
                        .split_once(',')
                        .and_then(|(line, name)| Some((line.parse().ok()?, name)));
                    let (line, name) = numbered.ok_or_else(|| bad("FN:<line>,<function>"))?;
                    file.functions.insert(name.to_owned(), (line, 0));
                }
                ("FNDA", Some((_, file))) => {
                    let counted = rest.split_once(',').and_then(|(count, name)| {
                        let known = file.functions.get_mut(name)?;
                        Some((known, count.parse::<u64>().ok()?))
                    });
                    let known = counted.ok_or_else(|| bad("FNDA:<count>,<function of an FN>"))?;
                    known.0.1 += known.1;
                }
                ("DA", Some((_, file))) => {
                    let mut parts = rest.split(',');
                    let line = parts.next().and_then(|line| line.parse().ok());
                    let count = parts.next().and_then(|count| count.parse::<u64>().ok());
                    let (Some(line), Some(count)) = (line, count) else {
                        return Err(bad("DA:<line>,<count>"));
                    };
                    *file.lines.entry(line).or_default() += count;
                }
                _ => {
                    return Err(bad(
                        "TN, SF, FN, FNDA, FNF, FNH, DA, LF, LH or end_of_record in order",
                    ));
                }
            }
        }
        match current {
            None => Ok(coverage),
            Some((actual, _)) => Err(ParseCoverageError {
                line: text.lines().count() + 1,
                required: "end_of_record",
                actual,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_added() {
        let mut one = Coverage::default();
        one.function("a.ptx", "k", 3, 2);
        one.line("a.ptx", 3, 2);
        one.line("a.ptx", 3, 1);
        one.line("a.ptx", 4, 0);
        let text = "TN:\nSF:a.ptx\nFN:3,k\nFNDA:2,k\nFNF:1\nFNH:1\nDA:3,2\nDA:4,0\nLF:2\nLH:1\nend_of_record\n";
        assert_eq!(one.to_string(), text);
        assert_eq!(text.parse(), Ok(one.clone()));
        let mut two = Coverage::default();
        two.line("a.ptx", 4, 5);
        two.line("b.cu", 9, 0);
        one.add(&two);
        assert_eq!(one.lines(), (2, 3));
        assert_eq!(one.to_string().parse(), Ok(one));
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, line) in [
            ("SF:a\nDA:1,2\nBRDA:1,0,0,1\nend_of_record\n", 3),
            ("DA:1,2\n", 1),
            ("SF:a\nDA:1,x\nend_of_record\n", 2),
            ("SF:a\nFNDA:1,k\nend_of_record\n", 2),
            ("SF:a\nDA:1,2\n", 3),
            ("int main() {}\n", 1),
        ] {
            let error = text.parse::<Coverage>().expect_err(text);
            assert_eq!(error.line, line, "{text}: {error}");
        }
    }
}
