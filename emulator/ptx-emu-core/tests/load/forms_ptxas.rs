//! The emulator loads everything that ptxas accepts for a target (`ptxas_accepts.json`), except
//! what it lists as not modelled; tensor-core instructions that ptxas refuses for a target, it
//! refuses too.

use ptx_emu_core::{Gpu, Module};
use serde_json::Value;

const GOLDEN: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../tests/data/ptx_golden/ptxas_accepts.json"
));

/// Legal for `sm_100a`, and reported as unsupported.
const UNSUPPORTED: [&str; 1] = ["mma_ws"];

fn module(target: &str, version: &str, name: &str, text: &str) -> String {
    let (directives, body) = match name.strip_prefix("dir:") {
        Some(_) => (text, ""),
        None => (".maxntid 128", text),
    };
    format!(
        ".version {version}
.target {target}
.address_size 64
.visible .entry k(.param .u64 in)
{directives}
{{
    .reg .pred p, q; .reg .b16 h<8>; .reg .b32 r<300>; .reg .f32 f<200>; .reg .b64 d<20>;
    .reg .b8 b8a;
    {body}
    ret;
}}"
    )
}

#[test]
fn golden_ptxas_acceptance() {
    let root: Value = serde_json::from_str(GOLDEN).expect("golden data is JSON");
    let cases = root["cases"].as_object().expect("cases");
    assert!(cases.len() > 90, "{}", cases.len());
    let mut wrong = Vec::new();
    for (name, case) in cases {
        let text = case["ptx"].as_str().expect("a statement");
        let tensor = text.contains("tcgen05") || text.contains("wgmma");
        for (target, result) in case["result"].as_object().expect("results") {
            let (target, version) = target.split_once('@').expect("a version");
            let gpu = match target {
                "sm_90a" => Gpu::h200(),
                "sm_100a" | "sm_100f" => Gpu::b200(),
                _ => continue,
            };
            if version != "9.0" {
                continue;
            }
            let loaded = Module::load(&module(target, version, name, text), &gpu);
            let accepted = result == "ok" && !UNSUPPORTED.contains(&name.as_str());
            match loaded {
                Ok(_) if !accepted && tensor => wrong.push(format!("{name}, {target}: loaded")),
                Err(error) if accepted => wrong.push(format!("{name}, {target}: {error}")),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
