//! `nvfp4 run` on weights of checkpoints in every layout, `dequantize`, and what `verify` measures.

use std::process::Command;

use crate::support::*;
use fp4_formats::FloatType;
use nvfp4::floats;
use nvfp4::quantize::Format;
use nvfp4_checkpoint::{
    self as checkpoint, DequantizeOptions, Layout, Model, VerifyOptions, dequantize_model, load,
    matrix, verify, verify_with,
};
use safetensors::Dtype;
use serde_json::{Value, json};

/// Runs with `args`; the exit code must be `code`. Gives what was printed, of a refusal the reason.
fn run(args: &[&str], code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    let output = command.args(args).env_remove("NVFP4_KERNELS_DIR").output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    if code == 2 { stderr.into_owned() } else { String::from_utf8(output.stdout).expect("UTF-8") }
}

fn report(args: &[&str]) -> Value {
    serde_json::from_str(&run(&[args, &["--json"]].concat(), 0)).expect("JSON")
}

/// Every layout's weights are multiplied, also an expert's, and come out verified.
#[test]
fn weights_of_every_layout_are_multiplied() {
    let folder = Folder::new("cli-layers");
    let kernels = kernels_dir().display().to_string();
    let on = compiled();
    let mut at = 0;
    for (layout, format) in combinations() {
        let name = format!("{layout}-{}", format.name());
        quantized(&folder, &name, layout, format);
        let path = folder.file(&name).display().to_string();
        for &(device, _) in &on {
            let target = ["--device", device, "--kernels", &kernels];
            // MXFP4's scales are beyond the range of f16.
            let activations = match format {
                Format::Nvfp4 => ["fp4", "f16", "bf16"][at % 3],
                Format::Mxfp4 => ["fp4", "bf16"][at % 2],
            };
            at += 1;
            let gemm = ["run", "gemm", "--checkpoint", &path, "--activations", activations];
            for weight in [
                &["--tensor", WEIGHTS[0], "--rows", "5"][..],
                &["--tensor", WEIGHTS[1], "--expert", "2", "--rows", "3", "--seed", "4"],
                // Without its ending.
                &["--tensor", "model.layers.1.mlp.down"],
            ] {
                let report = report(&[&gemm[..], weight, &target].concat());
                assert_eq!(report["verified"], true, "{report}");
                assert_eq!(report["stored"], layout.name(), "{report}");
                let least = if activations == "fp4" { 12.0 } else { 45.0 };
                // Only the activations were quantised or rounded after what is compared with.
                let db = report["sqnr_db"].as_f64().expect("a number");
                assert!(db > least && (db < 40.0) == (activations == "fp4"), "{name}: {report}");
            }
            let gemv = ["run", "gemv", "--checkpoint", &path, "--tensor", WEIGHTS[1]];
            let expert = ["--expert", "1"];
            match format {
                Format::Nvfp4 => {
                    let report = report(&[&gemv[..], &expert, &target].concat());
                    assert_eq!(
                        (&report["verified"], &report["stored"]),
                        (&json!(true), &json!(layout.name()))
                    );
                    assert_eq!(report["tensor"], format!("{}[1]", WEIGHTS[1]));
                }
                Format::Mxfp4 => {
                    let reason = run(&[&gemv[..], &expert, &target].concat(), 2);
                    assert!(reason.contains("must be nvfp4 for gemv, but is mxfp4"), "{reason}");
                }
            }
        }
    }
    let path = folder.file("torchao-nvfp4").display().to_string();
    let Some(&(device, _)) = on.first() else { return };
    let target = ["--device", device, "--kernels", &kernels];
    for (op, weight, reason) in [
        ("gemm", &["--tensor", WEIGHTS[1]][..], "expert must be below 3"),
        ("gemm", &["--tensor", WEIGHTS[1], "--expert", "3"], "expert must be below 3"),
        ("gemv", &["--tensor", WEIGHTS[0], "--expert", "0"], "expert must be absent"),
        ("gemv", &["--tensor", "nothing"], "has no tensor `nothing`"),
        ("dual", &["--tensor", WEIGHTS[0]], "from --inputs, not from --checkpoint"),
    ] {
        let args = [&["run", op, "--checkpoint", &path][..], weight, &target].concat();
        let stderr = run(&args, 2);
        assert!(stderr.contains(reason), "{args:?}: {stderr}");
    }
}

/// Weights of a GGUF file, in blocks, in Q8_0 and in floats, under transformers' names.
#[test]
fn weights_of_a_gguf_file_are_multiplied() {
    let folder = Folder::new("cli-gguf");
    let path = folder.file("golden.gguf");
    let golden = include_bytes!("../../gguf/tests/data/golden.gguf");
    std::fs::write(&path, golden).expect("written");
    let path = path.display().to_string();
    let kernels = kernels_dir().display().to_string();
    for (device, _) in compiled() {
        let target = ["--device", device, "--kernels", &kernels];
        for (tensor, stored, activations) in [
            ("nvfp4.weight", "gguf", "f16"),
            ("mxfp4.weight", "gguf", "bf16"),
            ("bf16.weight", "not quantised", "f16"),
        ] {
            let gemm = ["run", "gemm", "--checkpoint", &path, "--tensor", tensor, "--rows", "5"];
            let report = report(&[&gemm[..], &["--activations", activations], &target].concat());
            assert_eq!(report["verified"], true, "{report}");
            assert_eq!(report["stored"], stored, "{report}");
            assert_eq!(report["shape"], "gemm:5x3x128", "{report}");
        }
        let gemv = ["run", "gemv", "--checkpoint", &path, "--tensor", "nvfp4.weight"];
        let report = report(&[&gemv[..], &target].concat());
        let found = (&report["verified"], &report["stored"]);
        assert_eq!(found, (&json!(true), &json!("gguf")), "{report}");
    }
}

/// Activations from a file, for a float weight.
#[test]
fn activations_from_a_file() {
    let folder = Folder::new("cli-vectors");
    let source = folder.file("source.safetensors");
    write_model(&source);
    let (source, x) = (source.display().to_string(), folder.file("x.safetensors"));
    let kernels = kernels_dir().display().to_string();
    for (device, _) in compiled() {
        let args = |x: &str| {
            let args = ["run", "gemm", "--checkpoint", &source, "--tensor", WEIGHTS[0], "--vector"];
            let target = ["--device", device, "--kernels", &kernels];
            [&args[..], &[x], &target].concat().iter().map(|x| (*x).to_owned()).collect::<Vec<_>>()
        };
        checkpoint::write(&x, &[("x", random(&[3, 64], 9))], &[]).expect("written");
        let path = x.display().to_string();
        let line = args(&path);
        let report = report(&line.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(
            (&report["verified"], &report["stored"]),
            (&json!(true), &json!("not quantised"))
        );
        assert_eq!(report["shape"], "gemm:3x130x64");
        checkpoint::write(&x, &[("x", random(&[3, 63], 9))], &[]).expect("written");
        let reason = run(&line.iter().map(String::as_str).collect::<Vec<_>>(), 2);
        assert!(reason.contains("required [M, 64] or [64]"), "{reason}");
    }
}

/// Dequantised checkpoints have the original's names, shapes and types, and exactly the values of
/// the quantised weights, rounded once.
#[test]
fn dequantized_checkpoints() {
    let folder = Folder::new("cli-dequantize");
    for (layout, format) in combinations() {
        let name = format!("{layout}-{}", format.name());
        let quantised = quantized(&folder, &name, layout, format);
        let original = Model::open(folder.file("source.safetensors")).expect("a model");
        let path = folder.file(&name).display().to_string();
        for (element, dtype) in [
            (FloatType::F32, Dtype::F32),
            (FloatType::F16, Dtype::F16),
            (FloatType::Bf16, Dtype::BF16),
        ] {
            let out = folder.file(&format!("{name}-{}", element.name()));
            let to = out.display().to_string();
            let printed = run(&["dequantize", &path, "--dtype", element.name(), "--out", &to], 0);
            assert!(printed.contains("3 weights of layout"), "{printed}");
            let model = Model::open(&out).expect("a model");
            assert_eq!(Layout::detect(&model), None);
            assert!(model.quantization_config().is_none());
            let names = |model: &Model| model.names().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(names(&model), names(&original), "{name}");
            for parts in layout.find(&quantised) {
                let values = load(&quantised, layout, &parts).expect("valid").blocks.dequantize();
                let values = values.expect("memory").into_iter().map(f64::from);
                let expected = floats::encode(element, values);
                let (found, before) = (model.raw(&parts.name), original.raw(&parts.name));
                let (found, before) = (found.expect("there"), before.expect("there"));
                assert_eq!(found.dtype, dtype);
                assert_eq!(found.shape, before.shape, "{name} {}", parts.name);
                assert!(found.data == expected, "{name} {}", parts.name);
            }
            let unchanged = "model.embed_tokens.weight";
            assert_eq!(
                model.raw(unchanged).expect("kept"),
                original.raw(unchanged).expect("there")
            );
        }
    }
    // The type is that of the model before.
    let (path, out) = (folder.file("torchao-nvfp4"), folder.file("again"));
    let options = DequantizeOptions::new().shard_bytes(20_000);
    let model = Model::open(&path).expect("a checkpoint");
    let report = dequantize_model(&model, &options, &out, &mut ()).expect("dequantised");
    assert_eq!((report.dtype, report.weights), ("f32", 3));
    assert!(report.saved.shards.len() > 1, "{report:?}");
    let source = folder.file("source.safetensors").display().to_string();
    let out = folder.file("refused").display().to_string();
    let reason = run(&["dequantize", &source, "--out", &out], 2);
    assert!(reason.contains("has no quantised weight in a known layout"), "{reason}");
    assert!(!folder.file("refused").exists());
}

/// gpt-oss's experts come back in the order of the unquantised model.
#[test]
fn experts_with_the_input_first_come_back() {
    let folder = Folder::new("cli-dequantize-experts");
    let source = folder.file("source.safetensors");
    let tensors = [
        ("mlp.experts.gate_up_proj", random(&[2, 64, 128], 1)),
        ("mlp.experts.gate_up_proj_bias", random(&[2, 128], 2)),
        ("mlp.experts.down_proj", random(&[2, 64, 64], 3)),
        ("mlp.experts.down_proj_bias", random(&[2, 64], 4)),
    ];
    checkpoint::write(&source, &tensors, &[]).expect("written");
    let [source, quantised, out] =
        ["source.safetensors", "quantised", "out"].map(|name| folder.file(name));
    let line = [&source, &quantised, &out].map(|path| path.display().to_string());
    let args =
        ["quantize", &line[0], "--format", "mxfp4", "--layout", "gpt-oss", "--out", &line[1]];
    run(&args, 0);
    run(&["dequantize", &line[1], "--out", &line[2]], 0);
    let [before, after] = [&source, &out].map(|path| Model::open(path).expect("a model"));
    for (name, _) in &tensors[..3] {
        let [before, after] = [&before, &after].map(|model| {
            let file = model.file(name).expect("there");
            (file.floats(name).expect("floats").values, file.raw(name).expect("there").shape)
        });
        assert_eq!(before.1, after.1, "{name}");
        let noise: f32 = before.0.iter().zip(&after.0).map(|(x, y)| (x - y).powi(2)).sum();
        let signal: f32 = before.0.iter().map(|x| x * x).sum();
        assert!(noise < signal / 20.0, "{name}: {noise} {signal}");
    }
}

/// A few damaged bytes, which a ratio over the whole tensor does not show.
#[test]
fn damage_to_few_blocks_is_found() {
    let folder = Folder::new("cli-blocks");
    let source = folder.file("source.safetensors");
    checkpoint::write(&source, &[("layer.weight", random(&[256, 256], 5))], &[]).expect("written");
    let original = Model::open(&source).expect("a model");
    for (layout, format, codes) in [
        (Layout::ModelOpt, Format::Nvfp4, "layer.weight"),
        (Layout::GptOss, Format::Mxfp4, "layer.weight.blocks"),
    ] {
        let out = folder.file(layout.name());
        let options = options(format, layout);
        checkpoint::quantize_model(&original, &options, &out, None, &mut ()).expect("quantised");
        let check = |bound: f64| {
            let options = VerifyOptions::new().block_bound(bound).seed(3);
            let model = Model::open(&out).expect("a checkpoint");
            verify_with(&model, Some(&original), options, &mut ()).expect("verifiable")
        };
        let clean = check(1.0);
        assert!(clean.verified, "{clean}");
        assert_eq!(clean.weights[0].misrounded_blocks, Some(0));
        let products = clean.least_products.expect("measured");
        let weight = clean.least_sqnr_db.expect("measured");
        assert!((products.weight_only_db - weight).abs() < 1.0, "{products:?} {weight}");
        assert!(products.weight_only_db > products.fp8_db && products.fp8_db > products.fp4_db);
        assert!(products.fp4_db > 10.0, "{products:?}");
        assert_eq!(check(1.0).least_products, Some(products), "the seed decides");

        // Four in a hundred bytes, as a damaged disk may have them.
        rewrite(&out.join("model.safetensors"), |tensors| {
            let data = &mut named(tensors, codes).data;
            data.iter_mut().step_by(25).for_each(|byte| *byte ^= 0x80);
        });
        let damaged = check(1.0);
        assert!(damaged.least_sqnr_db.expect("measured") > 5.0, "{damaged}");
        assert!(!damaged.verified, "{damaged}");
        // One bit alone.
        checkpoint::quantize_model(&original, &force(options), &out, None, &mut ()).expect("again");
        rewrite(&out.join("model.safetensors"), |tensors| {
            named(tensors, codes).data[1000] ^= 0x04;
        });
        let damaged = check(1.0);
        let block = 1000 / (format.block() as usize / 2);
        let blocks = 256 / format.block() as usize;
        let found = damaged.findings.iter().find(|finding| finding.kind == "rounding");
        let found = &found.expect("an error").message;
        let place = format!("first block {} of row {}", block % blocks, block / blocks);
        assert!(found.starts_with("in 1 of ") && found.contains(&place), "{found}");
        assert_eq!(damaged.weights[0].misrounded_blocks, Some(1));
        assert!(check(100.0).verified, "a larger bound allows it");
    }
}

fn force(mut options: checkpoint::ModelOptions) -> checkpoint::ModelOptions {
    options.save.force = true;
    options
}

/// Adaptive block scaling in whole checkpoints: verified, and nearer than without.
#[test]
fn adaptive_recipes_quantise_checkpoints() {
    let folder = Folder::new("cli-adaptive");
    let source = folder.file("source.safetensors");
    checkpoint::write(&source, &[("layer.weight", random(&[64, 512], 5))], &[]).expect("written");
    let path = source.display().to_string();
    let original = Model::open(&source).expect("a model");
    let ratio = |recipe: &str| {
        let out = folder.file(recipe);
        let to = out.display().to_string();
        let args = ["quantize", &path, "--layout", "modelopt", "--recipe", recipe, "--out", &to];
        let report = report(&args);
        assert_eq!(report["recipe"], recipe);
        let model = Model::open(&out).expect("a checkpoint");
        let report = verify(&model, Some(&original), &mut ()).expect("verifiable");
        assert!(report.verified, "{report}");
        assert_eq!(
            matrix(&model, "layer.weight", None).expect("there").layout,
            Some(Layout::ModelOpt)
        );
        report.least_sqnr_db.expect("measured")
    };
    let (te, modelopt) = (ratio("te"), ratio("modelopt"));
    for (recipe, plain) in [
        ("te-4over6", te),
        ("te-4over6-mse", te),
        ("te-4over6-448", te),
        ("te-4over6-448-mse", te),
        ("modelopt-4over6", modelopt),
    ] {
        let adaptive = ratio(recipe);
        assert!(adaptive > plain + 0.3, "{recipe}: {adaptive} dB, {plain} dB without");
    }
    let shards = ["--shard-bytes", "1KiB", "--layout", "torchao", "--no-default-excludes"];
    let out = folder.file("shards").display().to_string();
    run(&[&["quantize", &path, "--out", &out][..], &shards].concat(), 0);
    let refused =
        run(&["quantize", &path, "--out", &out, "--shard-bytes", "5XB", "--layout", "torchao"], 2);
    assert!(refused.contains("no size such as 5GB"), "{refused}");
}
