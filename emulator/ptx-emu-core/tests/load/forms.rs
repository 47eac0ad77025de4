//! Every instruction form, special register and directive that 67 kernels of other
//! projects use (`tests/data/ptx/forms.txt`) is decoded: a minimal module of each
//! loads.

use ptx_emu_core::{Gpu, Module};

const FORMS: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/ptx/forms.txt"));

/// Register of a type modifier: `None` for what is not a type.
fn register(ty: &str) -> Option<&'static str> {
    Some(match ty {
        "pred" => "%p",
        "b16" | "u16" | "s16" | "f16" | "bf16" | "u8" | "s8" | "b8" | "e4m3x2" | "ue8m0x2" => "%h",
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => "%r",
        "b64" | "u64" | "s64" | "f64" | "f32x2" => "%d",
        "b128" => "%q",
        "e2m1x2" => "%b",
        _ => return None,
    })
}

/// `%r1, %r2, ...`
fn list(register: &str, count: usize) -> String {
    let names: Vec<String> = (1..=count).map(|i| format!("{register}{i}")).collect();
    names.join(", ")
}

fn vector(register: &str, count: usize) -> String {
    format!("{{{}}}", list(register, count))
}

/// The text of a form in a kernel.
struct Form<'a> {
    text: &'a str,
    parts: Vec<&'a str>,
}

impl<'a> Form<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, parts: text.split('.').collect() }
    }

    fn has(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }

    /// The last type.
    fn ty(&self) -> &'static str {
        self.parts.iter().rev().find_map(|part| register(part)).expect("a type")
    }

    /// Registers of a vector, or one.
    fn value(&self) -> String {
        let count = self.parts.iter().find_map(|part| part.strip_prefix('v')?.parse().ok());
        match count {
            Some(count) => vector(self.ty(), count),
            None => format!("{}1", self.ty()),
        }
    }

    fn address(&self) -> &'static str {
        if self.has("shared") || self.has("shared::cta") {
            "[s]"
        } else if self.has("shared::cluster") {
            "[%r9]"
        } else if self.has("local") {
            "[l]"
        } else if self.has("param") {
            "[in]"
        } else {
            "[%d9]"
        }
    }

    /// Operands of the form.
    fn operands(&self) -> String {
        match self.parts[0] {
            "abs" | "neg" | "not" | "brev" | "rcp" | "ex2" | "mov" | "cvta" => list(self.ty(), 2),
            "add" | "sub" | "min" | "max" | "and" | "or" | "xor" | "div" | "rem" => {
                list(self.ty(), 3)
            }
            "mul" if self.has("wide") => {
                let wide = if self.ty() == "%h" { "%r1" } else { "%d1" };
                format!("{wide}, {}", list(self.ty(), 2))
            }
            "mul" => list(self.ty(), 3),
            "mad" | "fma" | "prmt" => list(self.ty(), 4),
            "shl" | "shr" => format!("{}, %r1", list(self.ty(), 2)),
            "bfe" => "%r1, %r2, %r3, %r4".to_owned(),
            "bfi" => list("%r", 5),
            "bfind" => "%r1, %r2".to_owned(),
            "selp" => format!("{}, %p1", list(self.ty(), 3)),
            "setp" => format!("%p1, {}", list(self.ty(), 2)),
            "cvt" => self.convert(),
            "ld" => format!("{}, {}", self.value(), self.address()),
            "st" if self.has("param") => format!("[arg], {}", self.value()),
            "st" => format!("{}, {}", self.address(), self.value()),
            "atom" => format!("{0}1, [%d9], {0}2", self.ty()),
            "red" => format!("[%d9], {}1", self.ty()),
            "bar" | "barrier" => self.barrier(),
            "bra" => "NEXT".to_owned(),
            "ret" | "griddepcontrol" => String::new(),
            "call" => "(%r1), callee, (%r2)".to_owned(),
            "clusterlaunchcontrol" => self.launch_control(),
            "cp" => self.copy(),
            "createpolicy" => "%d1, 1.0".to_owned(),
            "elect" => "%r1|%p1, -1".to_owned(),
            "fence" if self.has("proxy") && self.has("acquire") && self.has("gpu") => {
                "[%d9], 128".to_owned()
            }
            "fence" => String::new(),
            "ldmatrix" => format!("{}, [s]", vector("%r", 4)),
            "stmatrix" => format!("[s], {}", vector("%r", 4)),
            "mapa" => "%r1, %r2, %r3".to_owned(),
            "mbarrier" => self.mbarrier(),
            "nanosleep" => "20".to_owned(),
            "prefetch" => "[%d9]".to_owned(),
            "setmaxnreg" => "64".to_owned(),
            "shfl" => "%r1|%p1, %r2, 1, 31, -1".to_owned(),
            "tcgen05" => self.tcgen05(),
            "tensormap" => self.tensor_map(),
            "vote" => "%r1, %p1, -1".to_owned(),
            "wgmma" => self.wgmma(),
            _ => panic!("no operands known for {}", self.text),
        }
    }

    fn convert(&self) -> String {
        let types: Vec<&str> =
            self.parts[1..].iter().filter(|part| register(part).is_some()).copied().collect();
        let [to, from] = types[..] else {
            panic!("two types in {}", self.text);
        };
        let (d, a) = (register(to).expect("a type"), register(from).expect("a type"));
        // Packing takes two sources.
        let two = to.ends_with("x2") && from == "f32";
        format!("{d}1, {}", list(a, if two { 2 } else { 1 }))
    }

    fn barrier(&self) -> String {
        match (self.has("cluster"), self.has("warp"), self.has("arrive")) {
            (true, ..) => String::new(),
            (_, true, _) => "-1".to_owned(),
            (_, _, true) => "1, 64".to_owned(),
            _ => "0".to_owned(),
        }
    }

    fn launch_control(&self) -> String {
        match (self.has("try_cancel"), self.has("is_canceled"), self.has("v4")) {
            (true, ..) => "[s], [bar]".to_owned(),
            (_, true, _) => "%p1, %q1".to_owned(),
            (_, _, true) => "{%r1, %r2, %r3, _}, %q1".to_owned(),
            _ => "%r1, %q1".to_owned(),
        }
    }

    fn copy(&self) -> String {
        let policy = if self.has("L2::cache_hint") { ", %d8" } else { "" };
        if self.has("bulk") {
            if self.has("commit_group") {
                return String::new();
            }
            if self.has("wait_group") {
                return "0".to_owned();
            }
            let dims = (1..=5).find(|dims| self.has(&format!("{dims}d")));
            let global =
                dims.map_or("[%d9]".to_owned(), |dims| format!("[%d9, {}]", vector("%r", dims)));
            let size = if dims.is_some() { "" } else { ", 128" };
            if self.has("bulk_group") {
                return format!("{global}, [s]{size}{policy}");
            }
            let multicast = if self.has("multicast::cluster") { ", %h1" } else { "" };
            return format!("[s], {global}{size}, [bar]{multicast}{policy}");
        }
        if self.has("commit_group") || self.has("wait_all") {
            String::new()
        } else if self.has("wait_group") {
            "0".to_owned()
        } else if self.has("mbarrier") {
            "[bar]".to_owned()
        } else {
            "[s], [%d9], 16".to_owned()
        }
    }

    fn mbarrier(&self) -> String {
        let remote = self.has("shared::cluster");
        let at = if remote { "[%r9]" } else { "[bar]" };
        let state = if remote { "_" } else { "%d1" };
        match self.parts[1] {
            "init" => format!("{at}, 1"),
            "expect_tx" => format!("{at}, 128"),
            "arrive" if self.has("expect_tx") => format!("{state}, {at}, 128"),
            "arrive" => format!("{state}, {at}"),
            "test_wait" | "try_wait" if self.has("parity") => format!("%p1, {at}, 0"),
            _ => format!("%p1, {at}, %d1"),
        }
    }

    fn tensor_map(&self) -> String {
        if self.has("cp_fenceproxy") {
            return "[%d9], [s], 128".to_owned();
        }
        let ordinal = if self.has("global_address") { "" } else { "0, " };
        format!("[s], {ordinal}{}1", if self.has("b32") { "%r" } else { "%d" })
    }

    /// Registers of `tcgen05.ld` and `.st`.
    fn registers(&self) -> String {
        let repeat: usize = self
            .parts
            .iter()
            .find_map(|part| part.strip_prefix('x')?.parse().ok())
            .expect("a repetition");
        let each = if self.has("16x256b") { 4 } else { 1 };
        vector("%r", repeat * each)
    }

    fn tcgen05(&self) -> String {
        match self.parts[1] {
            "alloc" => "[s], 32".to_owned(),
            "dealloc" => "%r1, 32".to_owned(),
            "commit" if self.has("multicast::cluster") => "[%r9], %h1".to_owned(),
            "commit" => "[%r9]".to_owned(),
            "cp" => "[%r9], %d1".to_owned(),
            "ld" => format!("{}, [%r9]", self.registers()),
            "st" => format!("[%r9], {}", self.registers()),
            "mma" if self.has("block_scale") => {
                "[%r9], %d1, %d2, %r1, [%r2], [%r3], %p1".to_owned()
            }
            "mma" => "[%r9], %d1, %d2, %r1, %p1".to_owned(),
            _ => String::new(),
        }
    }

    fn wgmma(&self) -> String {
        let Some(shape) = self.parts.iter().find_map(|part| part.strip_prefix("m64n")) else {
            return if self.has("wait_group") { "0".to_owned() } else { String::new() };
        };
        let (n, k) = shape.split_once('k').expect("K");
        let n: usize = n.parse().expect("columns");
        let transposed = if k == "16" { ", 0, 0" } else { "" };
        format!("{}, %d1, %d2, %p1, 1, 1{transposed}", vector("%r", n / 2))
    }

    /// A module with one such instruction.
    fn module(&self) -> String {
        // Instructions that sm_100a lacks are sm_90a's.
        let target = if self.parts[0] == "wgmma" { "sm_90a" } else { "sm_100a" };
        let text = self.text;
        let operands = self.operands();
        let instruction = match (self.parts[0], self.has("param")) {
            ("st", true) => format!("{{ .param .b64 arg; {text} {operands}; }}"),
            _ => format!("{text} {operands};"),
        };
        kernel(target, ".maxntid 128", &instruction)
    }
}

fn kernel(target: &str, directives: &str, body: &str) -> String {
    format!(
        ".version 9.0
.target {target}
.address_size 64
.func (.reg .b32 result) callee(.reg .b32 x) {{ mov.b32 result, x; ret; }}
.visible .entry k(.param .align 16 .b8 in[128])
{directives}
{{
    .shared .align 1024 .b8 s[1024];
    .shared .align 8 .b64 bar;
    .local .align 16 .b8 l[64];
    .reg .pred %p<10>; .reg .b8 %b<4>; .reg .b16 %h<10>; .reg .b32 %r<140>;
    .reg .b64 %d<20>; .reg .b128 %q<4>;
    {body}
NEXT:
    ret;
}}"
    )
}

fn loads(name: &str, text: &str, failed: &mut Vec<String>) {
    let gpu = if text.contains("sm_90a") { Gpu::h200() } else { Gpu::b200() };
    if let Err(error) = Module::load(text, &gpu) {
        failed.push(format!("{name}: {error}"));
    }
}

#[test]
fn every_instruction_form_is_decoded() {
    let mut failed = Vec::new();
    let mut count = 0;
    for line in FORMS.lines().filter(|line| !line.starts_with('#')) {
        let text = line.split_whitespace().nth(2).expect("a form");
        loads(text, &Form::new(text).module(), &mut failed);
        count += 1;
    }
    assert_eq!(count, 427);
    assert!(failed.is_empty(), "{} forms:\n{}", failed.len(), failed.join("\n"));
}

/// `name(count)` or `name xcount` items of a comment line.
fn listed<'a>(title: &str, separator: &'a str) -> Vec<&'a str> {
    let line = FORMS.lines().find_map(|line| line.strip_prefix(title)).expect("the line");
    line.split(separator).map(str::trim).filter(|item| !item.is_empty()).collect()
}

#[test]
fn every_special_register_is_decoded() {
    let mut failed = Vec::new();
    let registers = listed("# special registers: ", " ");
    assert!(registers.len() > 20, "{registers:?}");
    for item in registers {
        let name = item.split('(').next().expect("a name");
        let mov = match name {
            "%globaltimer" => format!("mov.u64 %d1, {name};"),
            _ => format!("mov.u32 %r1, {name};"),
        };
        loads(name, &kernel("sm_100a", "", &mov), &mut failed);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_directive_is_decoded() {
    let mut failed = Vec::new();
    let directives = listed("# entry directives: ", ";");
    assert_eq!(directives.len(), 5);
    for item in directives {
        let name = item.split_whitespace().next().expect("a name");
        let text = match name {
            ".explicitcluster" => ".explicitcluster".to_owned(),
            ".minnctapersm" => ".maxntid 128 .minnctapersm 2".to_owned(),
            ".reqnctapercluster" => ".reqnctapercluster 2, 1, 1".to_owned(),
            _ => format!("{name} 128, 1, 1"),
        };
        loads(name, &kernel("sm_100a", &text, "mov.u32 %r1, 0;"), &mut failed);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
