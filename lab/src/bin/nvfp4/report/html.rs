//! The page: one file without anything from elsewhere.

use std::fmt::Write;

use super::document::{About, Document};
use super::history::History;
use super::panels;
use super::roofline::{self, Roofs};
use super::row::Row;
use super::scale::rate;
use super::svg::{Svg, escape};
use super::table::{open_table, table};
use super::times;

/// Widths of a chart on a desk and on a phone.
const WIDTHS: [(&str, f64); 2] = [("wide", 920.0), ("narrow", 340.0)];
/// Styles of the charts, inside a page and in their own files.
pub const CHART_STYLE: &str = include_str!("chart.css");
const PAGE_STYLE: &str = include_str!("page.css");
/// The text for unknown values.
const UNKNOWN: &str = "not recorded";

/// The page of a document whose rows are `rows`.
pub fn page(document: &Document, rows: &[(usize, Row)]) -> String {
    let only: Vec<&Row> = rows.iter().map(|(_, row)| row).collect();
    let title = format!("nvfp4 bench: {}", document.where_and_when());
    let mut body = format!("<h1>{}</h1>\n", escape(&title));
    body.push_str(&notices(&only));
    body.push_str(&head(document));
    let (heading, label) = match only.iter().any(|row| row.time.is_some()) {
        true => (
            "Time against floor and peer",
            "Chart: times by shape, against floor and peer, which the table has, too",
        ),
        false => (
            "Counted lower bounds",
            "Chart: counted lower bounds by shape, which the table has, too",
        ),
    };
    let _ = writeln!(body, "<h2>{heading}</h2>");
    body.push_str(&definitions(&only));
    body.push_str(&both(label, |width| times::chart(&only, width, None), NOTHING));
    body.push_str("<h2>Roofline</h2>\n");
    body.push_str(&roofline_text(&only));
    let label = "Chart: operations per second by operations per byte, under the measured limits";
    let none = "<p>Not drawn: no run has operations and a time.</p>\n";
    body.push_str(&both(label, |width| roofline::chart(&only, width), none));
    body.push_str("<h2>History of the record</h2>\n");
    body.push_str(&history(&document.history));
    body.push_str("<h2>All runs</h2>\n");
    body.push_str(&table(document, rows));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{}</title>\n<style>\n{PAGE_STYLE}{CHART_STYLE}</style>\n</head>\n<body>\n\
         <main>\n{body}</main>\n</body>\n</html>\n",
        escape(&title)
    )
}

/// The text in place of the first chart.
const NOTHING: &str = "<p>Not drawn: no run has a time or a bound.</p>\n";

/// A chart for desks and one for phones, of which the page shows one; or why there is none.
fn both(label: &str, chart: impl Fn(f64) -> Option<Svg>, none: &str) -> String {
    let charts = WIDTHS.map(|(class, width)| chart(width).map(|svg| svg.inline(class, label)));
    match charts {
        [Some(wide), Some(narrow)] => wide + &narrow,
        _ => none.to_owned(),
    }
}

/// Returns the notices that come before any number.
fn notices(rows: &[&Row]) -> String {
    let mut text = String::new();
    let mut notice = |line: &str| {
        let _ = writeln!(text, "<p class=\"notice\" role=\"note\">{}</p>", escape(line));
    };
    if rows.is_empty() {
        notice("There are no runs in this report.");
    }
    if rows.iter().any(|row| row.emulated) {
        notice(
            "No time was measured of runs on an emulated device. Their lower bounds are computed from \
             counted instructions and bytes at the machine's peak rates; they are no measurements.",
        );
    }
    let wrong = rows.iter().filter(|row| row.verified == Some(false)).count();
    if wrong > 0 {
        notice(&format!("{wrong} of {} runs have a WRONG result.", rows.len()));
    }
    let failed = rows.iter().filter(|row| row.verified.is_none() && row.time.is_none()).count();
    if failed > 0 {
        notice(&format!("{failed} of {} runs have no result; the table says why.", rows.len()));
    }
    if rows.iter().any(|row| row.cold == Some(false)) {
        notice("Some times were measured with warm caches; the table names them.");
    }
    text
}

/// Fields of a source, in order: names and values.
fn fields(about: &About) -> Vec<(&'static str, Option<String>)> {
    let megahertz = |value: Option<u32>| value.map(|mhz| format!("{mhz} MHz"));
    let clocks = match (megahertz(about.sm_clock_mhz), megahertz(about.memory_clock_mhz)) {
        (None, None) => None,
        (sm, memory) => {
            let or = |clock: Option<String>| clock.unwrap_or_else(|| UNKNOWN.into());
            Some(format!("SMs {}, memory {} (peak)", or(sm), or(memory)))
        }
    };
    vec![
        ("file", about.file.clone()),
        ("date (UTC)", about.date.clone()),
        ("GPU", about.gpu.clone()),
        ("device", about.device.clone()),
        ("architecture", about.arch.clone()),
        ("SMs", about.sms.map(|sms| sms.to_string())),
        ("clocks", clocks),
        ("driver", about.driver.clone()),
        ("host", about.host.clone()),
        ("program", about.program.clone()),
        ("commit", about.commit.clone()),
        ("kernels", about.kernels.clone()),
        ("command", about.command.clone()),
    ]
}

/// Machine, driver, clocks, commit: a list for one source, a table for several.
fn head(document: &Document) -> String {
    let all: Vec<_> = document.sources.iter().map(|source| fields(&source.about)).collect();
    let mut text = String::new();
    match all.as_slice() {
        [] => {}
        [one] => {
            text.push_str("<dl>\n");
            let of_file = document.sources[0].about.file.is_some();
            for (name, value) in one.iter().filter(|(name, _)| *name != "file" || of_file) {
                let value = escape(value.as_deref().unwrap_or(UNKNOWN));
                let _ = writeln!(text, "<dt>{name}</dt><dd>{value}</dd>");
            }
            text.push_str("</dl>\n");
        }
        several => {
            let has = |index: usize| several.iter().any(|fields| fields[index].1.is_some());
            let names: Vec<&str> = several[0].iter().map(|(name, _)| *name).collect();
            let (known, unknown): (Vec<usize>, Vec<usize>) =
                (0..names.len()).partition(|index| has(*index));
            text.push_str(&open_table("Sources"));
            let cells: String = known
                .iter()
                .map(|index| format!("<th scope=\"col\">{}</th>", names[*index]))
                .collect();
            let _ = writeln!(text, "<thead><tr>{cells}</tr></thead>\n<tbody>");
            for fields in several {
                let cell = |index: &usize| {
                    let value = escape(fields[*index].1.as_deref().unwrap_or(UNKNOWN));
                    format!("<td>{value}</td>")
                };
                let _ = writeln!(text, "<tr>{}</tr>", known.iter().map(cell).collect::<String>());
            }
            text.push_str("</tbody>\n</table></div>\n");
            if !unknown.is_empty() {
                let names: Vec<&str> = unknown.into_iter().map(|index| names[index]).collect();
                let _ = writeln!(text, "<p>Not recorded in these files: {}.</p>", names.join(", "));
            }
        }
    }
    text
}

fn definitions(rows: &[&Row]) -> String {
    let mut text = String::new();
    if rows.iter().any(|row| row.time.is_some()) {
        text.push_str(
            "<p>Every result was compared with the oracle before it was timed. <b>Time</b> is the median \
             of the replays. <b>Floor</b> is the device's own limit for the same work, measured in the \
             same run: of products the time of only reading as many bytes as must move, or, where that \
             is longer and activations are f16 or bf16, their multiply-adds at the rate of a large f16 \
             product; of quantisers a copy of as many bytes. <b>Peer</b> is a product of f16 operands of \
             the same sizes; its ratio is its time divided by ours. Without a mark nothing was \
             measured.</p>\n",
        );
    }
    text
}

fn roofline_text(rows: &[&Row]) -> String {
    let Roofs { read, tensor } = Roofs::of(rows);
    let roof = |rate: Option<String>| rate.unwrap_or_else(|| "not measured".into());
    let (read, tensor) =
        (roof(read.map(|read| rate(read, "B/s"))), roof(tensor.map(|flops| rate(flops, "FLOP/s"))));
    if !rows.iter().any(|row| row.time.is_some()) {
        return String::new();
    }
    format!(
        "<p>Intensity is additions and multiplications divided by the bytes that must be read or written \
         at least once. The roof is the highest read rate of these runs ({read}) and the rate of a large \
         f16 product ({tensor}). Quantisers have no products, and are not shown.</p>\n"
    )
}

fn history(history: &History) -> String {
    let mut text = String::new();
    if let Some(none) = &history.none {
        let _ = writeln!(text, "<p>{}</p>", escape(none));
    }
    if let Some(folder) = &history.folder {
        let files = match history.files.len() {
            1 => "1 dated file".to_owned(),
            files => format!("{files} dated files"),
        };
        let _ = writeln!(
            text,
            "<p>Median times of the record <code>{}</code> ({files}) and of this report.</p>",
            escape(folder)
        );
    }
    for [name, why] in &history.left_out {
        let _ = writeln!(text, "<p>Not read: {}: {}</p>", escape(name), escape(why));
    }
    let (panels, single) = history.panels();
    if !panels.is_empty() {
        text.push_str("<div class=\"panels\">\n");
        for panel in &panels {
            let Some(svg) = panels::chart(panel) else { continue };
            let title = escape(&panel.title);
            let label = format!("Chart: times by day, {}", panel.title);
            let _ = writeln!(
                text,
                "<section><h3>{title}</h3>\n{}</section>",
                svg.inline("panel", &label)
            );
        }
        text.push_str("</div>\n");
    }
    if single > 0 {
        let _ = writeln!(text, "<p>{single} more shapes were measured on one day only.</p>");
    } else if panels.is_empty() && history.folder.is_some() {
        text.push_str("<p>Nothing in it was measured on this GPU.</p>\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::document::Source;
    use serde_json::{Value, json};

    fn page_of(runs: &[Value]) -> String {
        let about = About {
            gpu: Some("<b>H200</b>".into()),
            date: Some("2026-11-22 10:30".into()),
            command: Some("nvfp4 bench --shape '<i>'".into()),
            ..About::default()
        };
        let document = Document::new(vec![Source { about, runs: runs.to_vec() }]);
        let rows = document.rows().expect("runs");
        page(&document, &rows)
    }

    fn gemm(median: f64) -> Value {
        json!({
            "op": "gemm", "shape": "gemm:2x4x16", "activations": "f16", "bytes": 128,
            "verified": true, "generator": "exact", "plan": {"kernel": "<kernel>", "grid": [4, 1]},
            "device": {"device": "cuda:0", "name": "H200"},
            "times": {
                "times": {"median": median, "p10": median, "p90": median}, "cold": true,
                "ceiling": {"times": {"median": 1e-6}, "bytes_per_second": 1.28e8},
            },
        })
    }

    #[test]
    fn all_text_is_escaped() {
        let page = page_of(&[gemm(2e-6)]);
        for bad in ["<b>H200", "<i>", "<kernel>"] {
            assert!(!page.contains(bad), "{bad}");
        }
        for good in ["&lt;b&gt;H200", "&lt;i&gt;", "&lt;kernel&gt;: grid 4x1"] {
            assert!(page.contains(good), "{good}");
        }
    }

    #[test]
    fn nothing_is_from_elsewhere_and_charts_have_names() {
        let page = page_of(&[gemm(2e-6)]);
        for elsewhere in ["http:", "https:", "<script", "src=", "@import", "url("] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
        let charts = page.matches("<svg").count();
        assert_eq!(charts, 4, "two charts, each for a desk and for a phone");
        assert_eq!(page.matches("role=\"img\" aria-label=\"Chart").count(), charts);
        let headers = page.matches("<th").count() - page.matches("<thead").count();
        assert_eq!(page.matches("<th scope=\"").count(), headers);
    }

    #[test]
    fn the_table_has_figures_and_says_what_is_missing() {
        let page = page_of(&[gemm(2e-6), gemm(0.0)]);
        for cell in [">gemm:2x4x16<", ">f16, exact inputs<", ">2.00 us<", ">1.00 us<", ">yes<"] {
            assert!(page.contains(cell), "{cell}");
        }
        assert!(page.contains("<td class=\"number\">-</td>"), "{page}");
        assert!(!page.contains("peer / time"), "a column without a value: {page}");
        assert!(page.contains("<dt>driver</dt><dd>not recorded</dd>"), "{page}");
    }

    #[test]
    fn an_empty_report_says_so() {
        let page = page_of(&[]);
        assert!(page.contains("There are no runs in this report.") && !page.contains("<svg"));
    }

    #[test]
    fn wrong_results_and_failures_are_said_first() {
        let mut wrong = gemm(2e-6);
        wrong["verified"] = json!(false);
        wrong["times"] = Value::Null;
        let failed = json!({"op": "moe", "shape": "moe:1x1x1x16x16", "error": "no memory"});
        let page = page_of(&[wrong, failed]);
        assert!(page.contains("1 of 2 runs have a WRONG result."), "{page}");
        assert!(page.contains("1 of 2 runs have no result"), "{page}");
        assert!(page.contains("<td class=\"wrong\">WRONG</td>") && page.contains(">no memory<"));
    }

    #[test]
    fn an_emulated_device_has_bounds_and_no_times() {
        let run = json!({
            "op": "gemv", "shape": "gemv:4x16x1", "verified": true,
            "device": {"device": "emu:h200", "name": "emulated H200"},
            "times": gemm(2e-6)["times"],
            "emulated": {"lower_bound": {"seconds": 3e-6, "by": "dram"}},
        });
        let page = page_of(&[run]);
        assert!(page.contains("No time was measured of runs on an emulated device."), "{page}");
        assert!(page.contains(">3.00 us (by dram)<") && !page.contains("2.00 us"), "{page}");
        assert!(page.contains("Not drawn: no run has operations and a time."), "{page}");
    }
}
