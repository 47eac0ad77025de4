//! The machine code of block-scaled products: codes of four bits have an instruction of their own, `OMMA`, with twice
//! the rate of `QMMA`, which takes them, too, and is right beside e4m3 alone. ptxas chooses by the kind that PTX names.

use cuda_builder::{nvdisasm, ptxas};
use fp4_formats::{Arch, Family};
use nvfp4_tests::{ptx, root};
use std::collections::BTreeMap;
use std::path::Path;

/// The instructions of tensor cores in the text of nvdisasm, by kernel.
fn products(text: &str) -> BTreeMap<String, Vec<&str>> {
    let mut found = BTreeMap::<String, Vec<&str>>::new();
    let mut kernel = String::new();
    for line in text.lines() {
        if let Some(section) = line.trim().strip_prefix(".text.")
            && let Some(name) = section.strip_suffix(':')
        {
            kernel = name.to_owned();
        }
        let words = line.split_whitespace();
        let is_product = |word: &&str| word.split('.').next().is_some_and(|op| op.ends_with("MMA"));
        if let Some(product) = words.skip(1).find(is_product) {
            found.entry(kernel.clone()).or_default().push(product);
        }
    }
    found
}

/// The block-scaled products of a module, by kernel, and the form of each.
fn written(text: &str) -> BTreeMap<String, Vec<&str>> {
    let mut found = BTreeMap::<String, Vec<&str>>::new();
    let mut kernel = "";
    for line in text.lines() {
        if let Some((_, name)) = line.split_once(".entry ") {
            kernel = name.trim_end_matches('(');
        }
        if let Some((_, form)) = line.split_once(".row.col.kind::") {
            found
                .entry(kernel.to_owned())
                .or_default()
                .push(form.split(' ').next().unwrap_or(form));
        }
    }
    found
}

/// Every block-scaled product of every kernel is one `OMMA` with the scales of its format, or beside e4m3 one `QMMA`, and
/// there are no others.
#[test]
fn products_run_at_the_rate_of_their_codes() {
    let tools = root().join("target/cuda-tools");
    let (Some(assembler), Some(disassembler)) = (ptxas::find(&tools), nvdisasm::find(&tools))
    else {
        return skipped::test("ptxas and nvdisasm are not here");
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("block_products");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut checked = 0;
    for family in Family::of(Arch::Sm120f) {
        let Some(entry) = family.entries(Arch::Sm120f).find(|name| name.contains("_sm120_")) else {
            continue;
        };
        let text = ptx(Arch::Sm120f, entry);
        let [module, cubin] = ["module.ptx", "module.cubin"].map(|name| folder.join(name));
        std::fs::write(&module, &text).expect("written");
        ptxas::with_lines(&assembler, &module, Arch::Sm120f.name(), &cubin).expect("assembles");
        let code = nvdisasm::with_lines(&disassembler, &cubin).expect("disassembles");
        let (written, made) = (written(&text), products(&code));
        for entry in family.entries(Arch::Sm120f) {
            let expected = written[entry].iter().map(|form| match *form {
                "mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3" => {
                    "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"
                }
                "mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0" => {
                    "OMMA.SF.16864.F32.E2M1.E2M1.E8"
                }
                "mxf8f6f4.block_scale.scale_vec::1X.f32.e2m1.e4m3.f32.ue8m0" => {
                    "QMMA.SF.16832.F32.E2M1.E4M3.E8"
                }
                other => panic!("{entry} multiplies {other}"),
            });
            assert!(made[entry].iter().copied().eq(expected), "{entry}: {:?}", made[entry]);
            checked += made[entry].len();
        }
    }
    assert!(checked > 0);
}
