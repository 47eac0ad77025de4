//! Tensor maps as arguments of `ptx-emu run`, end to end.

use ptx_emu::tensor_map::{ElementType, Swizzle, TensorMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Copies the tensor maps of both parameters to `out`, and the pointer `tensor`
/// behind them.
const MAPS: &str = "\
.version 9.0
.target sm_90a
.address_size 64
.visible .entry maps(
	.param .u64 out,
	.param .align 64 .b8 map[128],
	.param .align 64 .b8 pack[256],
	.param .u64 tensor)
{
	.reg .pred %p;
	.reg .b32 %r;
	.reg .b64 %out, %from, %second, %to, %i, %v;
	ld.param.u64 %out, [out];
	mov.b64 %from, map;
	cvta.param.u64 %from, %from;
	mov.b64 %second, pack;
	cvta.param.u64 %second, %second;
	mov.u64 %i, 0;
$copy:
	add.s64 %to, %out, %i;
	add.s64 %v, %from, %i;
	ld.u64 %v, [%v];
	st.global.u64 [%to], %v;
	add.s64 %v, %second, %i;
	ld.u64 %v, [%v+64];
	st.global.u64 [%to+128], %v;
	add.s64 %i, %i, 8;
	setp.lt.u64 %p, %i, 128;
	@%p bra $copy;
	ld.param.u64 %v, [tensor];
	st.global.u64 [%out+256], %v;
	ret;
}
.visible .entry misplaced(.param .u64 first, .param .align 8 .b8 map[128])
{
	ret;
}
";

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tensor-map-{test}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("maps.ptx"), MAPS).unwrap();
        Self(path)
    }

    fn run(&self, entry: &str, arguments: &str, gpu: &str) -> Output {
        std::fs::write(self.0.join("args.json"), arguments).unwrap();
        Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
            .arg("run")
            .arg(self.0.join("maps.ptx"))
            .args(["--entry", entry, "--grid", "1", "--block", "1", "--gpu", gpu, "--args"])
            .arg(self.0.join("args.json"))
            .output()
            .unwrap()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn maps_are_encoded_in_place() {
    let folder = Folder::new("place");
    let arguments = r#"[
        {"buffer": {"bytes": 264}, "out": "out.bin"},
        {"tensor_map": {"dtype": "FLOAT16", "dims": [64, 8], "strides": [128], "box": [32, 4],
            "swizzle": "64B", "buffer": "x", "offset": 32}},
        {"struct": {"bytes": 256, "fields": [{"offset": 64, "tensor_map":
            {"dtype": "UINT8", "rank": 1, "dims": [96], "box": [16], "addr": 4096}}]}},
        {"buffer": {"name": "x", "bytes": 1056, "fill": "zero"}}]"#;
    let output = folder.run("maps", arguments, "h200");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let written = std::fs::read(folder.0.join("out.bin")).unwrap();
    let map = |at: usize| TensorMap::decode(written[at..at + 128].try_into().unwrap()).unwrap();
    let tensor = u64::from_le_bytes(written[256..].try_into().unwrap());
    let expected = TensorMap {
        swizzle: Swizzle::B64,
        ..TensorMap::tiled(ElementType::F16, tensor + 32, &[64, 8], &[128], &[32, 4])
    };
    assert_eq!(map(0), expected);
    assert_eq!(map(128), TensorMap::tiled(ElementType::U8, 4096, &[96], &[], &[16]));
}

#[test]
fn refusals_name_the_parameter() {
    let folder = Folder::new("refusals");
    let map = r#"{"dtype": "UINT8", "dims": [96], "box": [16], "addr": 4096}"#;
    for (entry, arguments, message) in [
        (
            "misplaced",
            format!(r#"[{{"u64": 0}}, {{"tensor_map": {map}}}]"#),
            "argument 1 (parameter `map`): tensor_map: required a place in the parameters at a multiple of 64 bytes, actual byte 8",
        ),
        (
            "misplaced",
            format!(r#"[{{"tensor_map": {map}}}, {{"tensor_map": {map}}}]"#),
            "argument 0 (parameter `first`): tensor_map: required 8 bytes, the size of the parameter's type .u64, actual 128 bytes",
        ),
        (
            "maps",
            format!(
                r#"[{{"u64": 0}}, {{"tensor_map": {}}}, {{"struct": {{"bytes": 256, "fields": []}}}}, {{"u64": 0}}]"#,
                map.replace("[16]", "[24]")
            ),
            "argument 1 (parameter `map`): tensor_map.box[0]: required a multiple of 16 bytes of UINT8, actual 24",
        ),
        (
            "maps",
            format!(
                r#"[{{"u64": 0}}, {{"tensor_map": {}}}, {{"struct": {{"bytes": 256, "fields": []}}}}, {{"u64": 0}}]"#,
                map.replace("UINT8", "16U4_ALIGN8B").replace("[16]", "[32]")
            ),
            "argument 1 (parameter `map`): tensor_map.dtype: required a type of whole bytes on h200, actual 16U4_ALIGN8B",
        ),
        (
            "maps",
            format!(
                r#"[{{"u64": 0}}, {{"tensor_map": {map}}}, {{"struct": {{"bytes": 256, "fields": [{{"offset": 8, "tensor_map": {map}}}]}}}}, {{"u64": 0}}]"#,
            ),
            "argument 2 (parameter `pack`): struct.fields[0].tensor_map: required a place in the parameters at a multiple of 64 bytes, actual byte 200",
        ),
        (
            "maps",
            format!(
                r#"[{{"u64": 0}}, {{"tensor_map": {}}}, {{"struct": {{"bytes": 256, "fields": []}}}}, {{"u64": 0}}]"#,
                map.replace(r#""addr": 4096"#, r#""buffer": "w""#)
            ),
            "argument 1 (parameter `map`): buffer: required a defined name, one of [], actual `w`",
        ),
    ] {
        let output = folder.run(entry, &arguments, "h200");
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{message:?} not in {:?}", stderr(&output));
    }
}
