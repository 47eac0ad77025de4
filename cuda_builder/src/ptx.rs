//! The way from rustc's PTX to the module that ships.
//!
//! `cuda_std` leaves what Rust cannot say as comments inside inline assembly
//! ("markers"); [`finish`] turns them into `.reqntid` and its kin and into
//! shared-memory declarations. It also holds the module to its contract: the
//! right version and target, launch bounds on every entry, no unresolved
//! function, and no synchronising instruction under a predicate. Whether the optimiser
//! duplicated one cannot be seen in the text alone; a test counts them.

use crate::error::BuildError;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// An entry point.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Kernel {
    /// Name.
    pub name: String,
    /// Threads of a CTA, x, y, z; zeros where the kernel does not say.
    pub threads: [u32; 3],
    /// Whether `threads` is exact (`.reqntid`) or a limit (`.maxntid`).
    pub exact_threads: bool,
    /// CTAs per SM that registers must allow; 0 where not given.
    pub min_blocks: u32,
    /// Register cap; 0 where not given.
    pub max_registers: u32,
    /// Cluster shape; zeros where not given.
    pub cluster: [u32; 3],
    /// Bytes of the parameter block.
    pub param_bytes: u32,
    /// Parameters that are in it.
    pub parameters: usize,
}

const BOUNDS: &str = "// cuda_builder.launch_bounds ";
const DYNAMIC: &str = "// cuda_builder.dynamic_shared ";
const STATIC: &str = "// cuda_builder.static_shared ";
const PARAMETER: &str = "// cuda_builder.kernel_param ";
/// Followed by an index: a parameter of the entry that the line is in.
const PARAMETER_NAME: &str = "__kernel_param_";

/// The module for another target, whose instructions are the same: with the PTX version and the name of that
/// target, each with its old value on the left, and with each modifier on the left of `modifiers` as on the right.
///
/// # Errors
/// [`BuildError::Ptx`] if the module does not have the old version and target.
pub fn respell(
    text: &str,
    versions: [&str; 2],
    targets: [&str; 2],
    modifiers: &[(&str, &str)],
) -> Result<String, BuildError> {
    let mut text = text.to_owned();
    for (directive, [from, to]) in [("version", versions), ("target", targets)] {
        let line = format!("\n.{directive} {from}\n");
        let count = text.matches(&line).count();
        if count != 1 {
            let message = format!("{count} lines `.{directive} {from}`, not one");
            return Err(BuildError::Ptx { target: targets[1].into(), line: 1, message });
        }
        text = text.replacen(&line, &format!("\n.{directive} {to}\n"), 1);
    }
    let respell = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    Ok(modifiers.iter().fold(text, respell))
}

/// Turns markers into directives and checks the module.
///
/// # Errors
/// [`BuildError::Ptx`] naming the line of the compiler's output.
pub fn finish(
    raw: &str,
    target: &str,
    version: (u32, u32),
) -> Result<(String, Vec<Kernel>), BuildError> {
    let fail = |line: usize, message: String| BuildError::Ptx {
        target: target.into(),
        line: line + 1,
        message,
    };
    let lines: Vec<&str> = raw.lines().collect();
    let mut kernels = Vec::new();
    let mut dynamic_align = 0;
    let mut fixed: BTreeMap<u32, (u32, u32)> = BTreeMap::new();

    // Parameters whose addresses are taken, and the alignment asked for.
    let mut parameters: BTreeMap<String, u32> = BTreeMap::new();

    // The end of each entry's signature, and the directives to put there.
    let mut directives: BTreeMap<usize, String> = BTreeMap::new();
    let mut entry: Option<Entry> = None;
    for (number, line) in lines.iter().enumerate() {
        if let Some(name) = entry_name(line) {
            entry = Some(Entry::new(name));
        }
        if let Some(open) = &mut entry {
            if open.signature_end.is_none() {
                if let Some((align, size)) = param_bytes(line).map_err(|m| fail(number, m))? {
                    open.param_bytes = open.param_bytes.next_multiple_of(align) + size;
                    open.parameters += 1;
                }
                if line.trim_end().ends_with(')') {
                    open.signature_end = Some(number);
                }
            }
            if let Some(marker) = line.trim().strip_prefix(BOUNDS) {
                if open.bounds.is_some() {
                    return Err(fail(
                        number,
                        format!("{} has two launch-bounds markers", open.name),
                    ));
                }
                open.bounds = Some(fields(marker));
            }
            if line.starts_with('}') {
                let done = entry.take().unwrap_or_else(|| Entry::new(""));
                let end = done.signature_end.ok_or_else(|| {
                    fail(number, format!("the signature of {} does not end", done.name))
                })?;
                let kernel = done.kernel().map_err(|m| fail(number, m))?;
                directives.insert(end, kernel_directives(&kernel));
                kernels.push(kernel);
            }
        }
        if let Some((_, marker)) = line.split_once(DYNAMIC) {
            dynamic_align = dynamic_align.max(number_of(&fields(marker), "align"));
        }
        if let Some((_, marker)) = line.split_once(PARAMETER) {
            let Some(open) = &entry else {
                return Err(fail(number, "a kernel's parameter is named outside a kernel".into()));
            };
            let f = fields(marker);
            let name = format!("{}_param_{}", open.name, number_of(&f, "index"));
            let align = parameters.entry(name).or_insert(1);
            *align = number_of(&f, "align").max(*align);
        }
        if let Some((_, marker)) = line.split_once(STATIC) {
            let f = fields(marker);
            let (id, shape) =
                (number_of(&f, "id"), (number_of(&f, "bytes"), number_of(&f, "align")));
            if *fixed.entry(id).or_insert(shape) != shape {
                return Err(fail(number, format!("static shared buffer {id} has two shapes")));
            }
        }
    }
    if kernels.is_empty() {
        return Err(fail(0, "no entry point".into()));
    }

    let mut out = String::with_capacity(raw.len() + 4096);
    let mut within = "";
    for (number, line) in lines.iter().enumerate() {
        if is_noise(line) {
            continue;
        }
        within = entry_name(line).unwrap_or(within);
        let line = line.trim_end();
        if let Some((code, _)) = line.split_once(PARAMETER) {
            let own = format!("{within}_param_");
            let _ = writeln!(out, "{}", code.replace(PARAMETER_NAME, &own).trim_end());
        } else if let Some(aligned) = parameter_aligned(line, &parameters) {
            let _ = writeln!(out, "{aligned}");
        } else {
            let _ = writeln!(out, "{line}");
        }
        if line.starts_with(".address_size") {
            if dynamic_align > 0 {
                let _ = writeln!(
                    out,
                    "\n.extern .shared .align {dynamic_align} .b8 __dynamic_shared[];"
                );
            }
            for (id, (bytes, align)) in &fixed {
                let _ = writeln!(out, ".shared .align {align} .b8 __static_shared_{id}[{bytes}];");
            }
        }
        if let Some(text) = directives.get(&number) {
            out.push_str(text);
        }
    }
    check(&out, target, version)?;
    Ok((out, kernels))
}

/// An entry while its text is being read.
struct Entry {
    name: String,
    signature_end: Option<usize>,
    param_bytes: u32,
    parameters: usize,
    bounds: Option<BTreeMap<String, String>>,
}

impl Entry {
    fn new(name: &str) -> Self {
        Self { name: name.into(), signature_end: None, param_bytes: 0, parameters: 0, bounds: None }
    }

    fn kernel(self) -> Result<Kernel, String> {
        let bounds = self.bounds.ok_or_else(|| {
            format!("entry {} has no launch bounds: mark it #[cuda_std::kernel]", self.name)
        })?;
        let triple = |key: &str| {
            let mut parts =
                bounds.get(key).map(String::as_str).unwrap_or("").split(',').map(|p| p.parse());
            let mut next = || parts.next().and_then(Result::ok).unwrap_or(0);
            [next(), next(), next()]
        };
        Ok(Kernel {
            name: self.name,
            threads: triple("threads"),
            exact_threads: number_of(&bounds, "exact") == 1,
            min_blocks: number_of(&bounds, "min_blocks"),
            max_registers: number_of(&bounds, "max_registers"),
            cluster: triple("cluster"),
            param_bytes: self.param_bytes,
            parameters: self.parameters,
        })
    }
}

fn kernel_directives(kernel: &Kernel) -> String {
    let mut text = String::new();
    let [x, y, z] = kernel.threads;
    if x > 0 {
        let name = if kernel.exact_threads { "reqntid" } else { "maxntid" };
        let _ = writeln!(text, ".{name} {x}, {y}, {z}");
    }
    if kernel.min_blocks > 0 {
        let _ = writeln!(text, ".minnctapersm {}", kernel.min_blocks);
    }
    if kernel.max_registers > 0 {
        let _ = writeln!(text, ".maxnreg {}", kernel.max_registers);
    }
    let [x, y, z] = kernel.cluster;
    if x > 0 {
        let _ = writeln!(text, ".reqnctapercluster {x}, {y}, {z}");
    }
    text
}

/// `.visible .entry name(` gives the name.
fn entry_name(line: &str) -> Option<&str> {
    let (_, rest) = line.trim_start().strip_prefix(".visible")?.split_once(".entry")?;
    Some(rest.trim().trim_end_matches(['(', ')']).trim())
}

/// Alignment and size of `.param .align 8 .b8 p[96]` or `.param .b64 p`.
fn param_bytes(line: &str) -> Result<Option<(u32, u32)>, String> {
    let Some(rest) = line.trim().strip_prefix(".param") else {
        return Ok(None);
    };
    let bad = || format!("parameter not understood: {}", line.trim());
    let words: Vec<&str> = rest.split_whitespace().collect();
    let mut align = None;
    let mut element = 0;
    let mut count = 1;
    let mut i = 0;
    while i < words.len() {
        let word = words[i].trim_end_matches(',');
        if word == ".align" {
            i += 1;
            align = Some(words.get(i).and_then(|w| w.parse().ok()).ok_or_else(bad)?);
        } else if word.starts_with('.')
            && word.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().is_ok()
        {
            let bits: u32 = word
                .trim_start_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .map_err(|_| bad())?;
            element = bits / 8;
        } else if let Some((_, dims)) = word.split_once('[') {
            count = dims.trim_end_matches(']').parse().map_err(|_| bad())?;
        }
        i += 1;
    }
    if element == 0 {
        return Err(bad());
    }
    Ok(Some((align.unwrap_or(element).max(1), element * count)))
}

/// The declaration in `line` with the alignment that `wanted` has for it, if that is
/// more than it has.
fn parameter_aligned(line: &str, wanted: &BTreeMap<String, u32>) -> Option<String> {
    let declared = line.trim().strip_prefix(".param .align ")?;
    let (align, rest) = declared.split_once(' ')?;
    let (_, name) = rest.split_once(' ')?;
    let name = name.split('[').next()?;
    let wanted = wanted.get(name)?;
    (align.parse::<u32>().ok()? < *wanted).then(|| format!("\t.param .align {wanted} {rest}"))
}

fn fields(marker: &str) -> BTreeMap<String, String> {
    marker
        .split_whitespace()
        .filter_map(|f| f.split_once('='))
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect()
}

fn number_of(fields: &BTreeMap<String, String>, key: &str) -> u32 {
    fields.get(key).and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// Lines that say nothing to a reader of the shipped PTX.
fn is_noise(line: &str) -> bool {
    let line = line.trim();
    line == "// begin inline asm"
        || line == "// end inline asm"
        || line.starts_with(BOUNDS)
        || line.starts_with("// .globl")
}

/// Instructions that threads execute together: duplicated or sunk into a
/// branch they hang or mix up lanes.
const CONVERGENT: [&str; 9] =
    ["bar.", "barrier.", "shfl.", "vote.", "match.", "redux.", "elect.", "activemask", "wgmma."];

/// Holds finished PTX to its contract.
///
/// # Errors
/// [`BuildError::Ptx`] naming the line.
pub fn check(ptx: &str, target: &str, (major, minor): (u32, u32)) -> Result<(), BuildError> {
    let fail = |line: usize, message: String| {
        Err(BuildError::Ptx { target: target.into(), line, message })
    };
    let version = format!(".version {major}.{minor}");
    let target = format!(".target {target}");
    for required in [version.as_str(), target.as_str()] {
        if !ptx.lines().any(|l| l.trim() == required) {
            return fail(0, format!("`{required}` is missing"));
        }
    }
    for (number, line) in ptx.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("").trim();
        if code.starts_with(".extern .func") {
            return fail(number + 1, format!("unresolved function: {code}"));
        }
        if code.starts_with('@') && is_convergent(code.split_once(' ').map_or("", |c| c.1)) {
            return fail(number + 1, format!("a synchronising instruction is predicated: {code}"));
        }
    }
    Ok(())
}

/// Whether an instruction (without guard) is one that threads execute together.
pub fn is_convergent(instruction: &str) -> bool {
    let instruction = instruction.trim_start();
    CONVERGENT.iter().any(|c| instruction.starts_with(c)) || instruction.contains(".aligned")
}

/// Counts each synchronising instruction in each entry: `(entry, opcode) -> count`. The counts that
/// a kernel's source implies are compared with this in tests.
pub fn convergent_counts(ptx: &str) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    let mut entry = String::new();
    for line in ptx.lines() {
        if let Some(name) = entry_name(line) {
            entry = name.to_string();
        }
        let code = line.trim();
        if is_convergent(code) {
            let opcode = code.split([' ', '\t', ';']).next().unwrap_or("").to_string();
            *counts.entry((entry.clone(), opcode)).or_insert(0) += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::PTX_VERSION;

    #[test]
    fn other_targets() {
        let text =
            "//\n.version 8.7\n.target sm_1a\n.entry a() {\nmma.x.old::2 r;\nmma.old::2;\n}\n";
        let (versions, targets) = (["8.7", "8.8"], ["sm_1a", "sm_1f"]);
        let other = respell(text, versions, targets, &[(".old::2", ".new")]).expect("respelled");
        let right = text.replace("8.7", "8.8").replace("sm_1a", "sm_1f").replace("old::2", "new");
        assert_eq!(other, right);
        for (versions, targets, lacks) in [
            (versions, ["sm_2a", "sm_1f"], "0 lines `.target sm_2a`, not one"),
            (["8.6", "8.8"], targets, "0 lines `.version 8.6`, not one"),
        ] {
            let error = respell(text, versions, targets, &[]).expect_err("another module");
            assert!(error.to_string().contains(lacks), "{error}");
        }
    }

    const RAW: &str = "\
.version 9.0
.target sm_90a
.address_size 64

\t// .globl\tk
.visible .entry k(
\t.param .align 8 .b8 k_param_0[72],
\t.param .b32 k_param_1
)
{
\t// begin inline asm
\t// cuda_builder.launch_bounds threads=128,1,1 exact=1 min_blocks=4 max_registers=0 cluster=2,1,1
\t// end inline asm
\tmov.u32 %r1, __dynamic_shared; // cuda_builder.dynamic_shared align=128
\tmov.u32 %r2, __static_shared_3; // cuda_builder.static_shared id=3 bytes=64 align=16
\tmov.b64 %rd1, __kernel_param_0; // cuda_builder.kernel_param index=0 align=64
\tbar.sync 0;
\tret;
}
";

    #[test]
    fn markers_become_directives() {
        let (text, kernels) = finish(RAW, "sm_90a", PTX_VERSION).unwrap();
        let k = &kernels[0];
        assert_eq!((k.threads, k.min_blocks, k.cluster), ([128, 1, 1], 4, [2, 1, 1]));
        assert_eq!((k.param_bytes, k.parameters), (76, 2));
        for line in [
            ".reqntid 128, 1, 1",
            ".minnctapersm 4",
            ".reqnctapercluster 2, 1, 1",
            ".extern .shared .align 128 .b8 __dynamic_shared[];",
            ".shared .align 16 .b8 __static_shared_3[64];",
            "\t.param .align 64 .b8 k_param_0[72],",
            "\tmov.b64 %rd1, k_param_0;",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        let signature = text.find(")\n.reqntid").expect("directives follow the signature");
        assert!(signature < text.find('{').unwrap());
    }

    #[test]
    fn a_limit_and_a_register_cap() {
        let raw = RAW.replace("exact=1", "exact=0").replace("max_registers=0", "max_registers=96");
        let (text, _) = finish(&raw, "sm_90a", PTX_VERSION).unwrap();
        assert!(text.contains(".maxntid 128, 1, 1") && text.contains(".maxnreg 96"));
        assert!(!text.contains(".reqntid"));
    }

    #[test]
    fn contract_violations_are_found() {
        let cases = [
            (RAW.replace(".target sm_90a", ".target sm_100a"), ".target sm_90a"),
            (RAW.replace("9.0", "8.7"), ".version 9.0"),
            (RAW.replace("\tbar.sync 0;", "\t@%p1 bar.sync 0;"), "predicated"),
            (RAW.replace(".address_size 64", ".address_size 64\n.extern .func f;"), "unresolved"),
            (RAW.replace("launch_bounds", "nothing"), "no launch bounds"),
            (
                RAW.replace(
                    "\tret;",
                    "\t// cuda_builder.static_shared id=3 bytes=32 align=16\n\tret;",
                ),
                "two shapes",
            ),
        ];
        for (raw, expected) in cases {
            let error = finish(&raw, "sm_90a", PTX_VERSION).unwrap_err().to_string();
            assert!(error.contains(expected), "expected `{expected}` in `{error}`");
        }
        // A violation inside a comment is none.
        assert!(
            finish(&RAW.replace("\tret;", "\t// @%p1 bar.sync 0;\n\tret;"), "sm_90a", PTX_VERSION)
                .is_ok()
        );
    }

    #[test]
    fn convergent_instructions_are_counted() {
        let (text, _) = finish(RAW, "sm_90a", PTX_VERSION).unwrap();
        assert_eq!(convergent_counts(&text)[&("k".into(), "bar.sync".into())], 1);
    }
}
