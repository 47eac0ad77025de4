//! Every kind of damage to a table's text.

use fp4_formats::gemm::Split;
use nvfp4::tune::{Table, TuneError};
use proptest::prelude::*;

use super::{key, measured, nvfp4, tables};

fn text() -> String {
    let mut table = Table::new(key());
    table.insert(nvfp4(8, 7168, 2048), measured("a", Split::Cluster(4), 900));
    table.insert(nvfp4(128, 7168, 2048), measured("b", Split::StreamK, 15_300));
    table.text()
}

#[test]
fn each_kind_has_its_error() {
    let good = text();
    let damaged = |from: &str, to: &str, message: &str| {
        assert!(good.contains(from), "{from}");
        let error = Table::parse(&good.replacen(from, to, 1), "t.json").expect_err(message);
        assert!(matches!(&error, TuneError::Malformed { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains("t.json is no tuning table: "), "{error}");
        assert!(error.contains(message), "{from:?} to {to:?}: {error:?} lacks {message:?}");
    };
    damaged("\"version\": 4,", "", "missing field `version`");
    damaged("\"version\": 4,", "\"version\": \"2\",", "invalid type: string");
    damaged("\"version\": 4,", "\"version\": -1,", "invalid value");
    damaged("\"version\": 4,", "\"version\": 4, \"version\": 4,", "duplicate field `version`");
    damaged("\"version\": 4,", "\"version\": 4, \"x\": 0,", "unknown field `x`");
    damaged("\"sms\": 132,", "", "missing field `sms`");
    damaged("\"sms\": 132,", "\"sms\": 4294967296,", "invalid value");
    damaged("\"sms\": 132,", "\"sms\": 132, \"gpcs\": 8,", "unknown field `gpcs`");
    damaged("\"entries\": [", "\"entries\": {", "key must be a string");
    damaged("]\n}", "]", "EOF");
    damaged("]\n}", "]\n}}", "trailing characters");
    let entry =
        |from: &str, to: &str, message: &str| damaged(from, to, &format!("entry 1: {message}"));
    entry("\"nvfp4\"", "\"fp8\"", "unknown format `fp8`");
    entry("\"fp4\"", "\"f64\"", "f64 activations with `scales`");
    entry("\"activations\":\"fp4\",\"scales\":\"linear\"", "\"activations\":\"f64\"", "unknown");
    entry(",\"scales\":\"linear\"", "", "fp4 activations without `scales`");
    entry("\"linear\"", "\"4x128\"", "unknown layout of scales `4x128`");
    entry("\"f16\"", "\"f8\"", "unknown output `f8`");
    entry("\"f16\"", "\"nvfp4\"", "output nvfp4 without `output_scales`");
    let with_scales = |output: &str| format!("\"{output}\",\"output_scales\":\"linear\"");
    entry("\"f16\"", &with_scales("f16"), "output f16 with `output_scales`");
    entry("\"f16\"", "\"mxfp4\"", "output mxfp4 without `output_scales`");
    entry("\"f16\"", &with_scales("mxfp8"), "unknown output `mxfp8`");
    entry("\"m\":8", "\"m\":0", "`m` is 0");
    entry("\"n\":7168", "\"n\":0", "`n` is 0");
    entry("\"k\":2048", "\"k\":0", "`k` is 0");
    entry("\"l\":1", "\"l\":0", "`l` is 0");
    let split = "a split of K is `none`, `stream-k`, or `cluster:N`";
    entry("\"cluster:4\"", "\"cluster:1\"", split);
    entry("\"cluster:4\"", "\"4\"", split);
    damaged("\"cluster:4\"", "4", "invalid type: integer");
    damaged("\"split\":\"cluster:4\"", "\"splits\":4", "unknown field `splits`");
    entry("\"median_ns\":900", "\"median_ns\":0", "`median_ns` is 0");
    damaged("\"median_ns\":900", "\"median_ns\":1.5", "invalid type: floating point");
    damaged("\"median_ns\":900", "\"median_ns\":NaN", "expected value");
    damaged("\"m\":8,", "", "missing field `m`");
    damaged("\"m\":128", "\"m\":8", "entry 2: a second one for gemm:8x7168x2048");
    let groups = |fields: &str| format!("{fields},\"n\":7168");
    entry("\"n\":7168", &groups("\"groups\":0"), "`groups` is 0");
    entry("\"n\":7168", &groups("\"slots\":true"), "`slots` without `groups`");
    let slots = groups("\"groups\":4,\"slots\":true");
    entry("\"n\":7168", &slots, "`l` is 1 for groups that need 4");
    damaged("\"n\":7168", &groups("\"groups\":-1"), "invalid value");
    let gated = "\"gated\":1,\"n\":7168";
    damaged("\"n\":7168", gated, "invalid type: integer `1`, expected a boolean");
}

#[test]
fn other_versions_are_told_from_damage() {
    for version in ["0", "1", "2", "3", "5", "18446744073709551615"] {
        // The contents of another version's file are none of our business.
        let text = format!("{{\"version\": {version}, \"devices\": [1, 2]}}");
        match Table::parse(&text, "t.json") {
            Err(TuneError::Version { found, .. }) => assert_eq!(found.to_string(), version),
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    /// Cut anywhere, it is no table.
    #[test]
    fn a_part_is_no_table(table in tables(), part in 0f64..1.0) {
        let text = table.text();
        let text = text.trim_end();
        let mut end = (part * text.len() as f64) as usize;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        prop_assert!(Table::parse(&text[..end], "t").is_err());
    }

    /// Bytes changed at random give an error or a table that is valid: it can be written and read
    /// back.
    #[test]
    fn changed_bytes_never_give_an_invalid_table(
        table in tables(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = table.text().into_bytes();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(table) = Table::parse(&String::from_utf8_lossy(&bytes), "t") {
            prop_assert_eq!(Table::parse(&table.text(), "t").expect("valid"), table);
        }
    }

    #[test]
    fn arbitrary_text_is_no_reason_to_panic(text in ".{0,200}") {
        prop_assert!(Table::parse(&text, "t").is_err());
    }
}
