//! The table of all runs.

use std::fmt::Write;

use super::document::Document;
use super::row::{Row, plain_inputs};
use super::scale::{rate, ratio, time};
use super::svg::escape;

/// The beginning of a table that scrolls by itself where it is wider than the page.
pub fn open_table(name: &str) -> String {
    format!("<div class=\"scroll\" role=\"region\" aria-label=\"{name}\" tabindex=\"0\"><table>\n")
}

/// A column of the table of runs.
struct Column {
    name: &'static str,
    /// Whether its values are right-aligned.
    number: bool,
    cell: fn(&Document, usize, &Row) -> Option<String>,
}

const fn column(
    name: &'static str,
    number: bool,
    cell: fn(&Document, usize, &Row) -> Option<String>,
) -> Column {
    Column { name, number, cell }
}

/// All columns; one without a value in any row is left out. The first one is the row's header.
const COLUMNS: [Column; 16] = [
    column("shape", false, |_, _, row| Some(row.shape.clone())),
    column("options", false, |_, _, row| {
        let inputs = row.inputs.as_ref().filter(|inputs| !plain_inputs(inputs));
        let inputs = inputs.map(|inputs| format!("{inputs} inputs"));
        let all = [Some(row.details.clone()).filter(|text| !text.is_empty()), inputs];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }),
    column("verified", false, |_, _, row| {
        let text = if row.verified? { "yes" } else { "WRONG" };
        Some(text.into())
    }),
    column("time", true, |_, _, row| {
        // A time that an emulated device lacks was not forgotten.
        row.time.map(time).or_else(|| row.emulated.then(|| "not measured".into()))
    }),
    column("p10 to p90", true, |_, _, row| {
        row.spread.map(|[p10, p90]| format!("{} to {}", time(p10), time(p90)))
    }),
    column("floor", true, |_, _, row| row.floor.as_ref().map(|floor| time(floor.seconds))),
    column("floor by", false, |_, _, row| row.floor.as_ref().map(|floor| floor.by.clone())),
    column("time / floor", true, |_, _, row| row.to_floor().map(ratio)),
    column("peer", true, |_, _, row| row.peer.as_ref().map(|peer| time(peer.seconds))),
    column("peer / time", true, |_, _, row| row.peer.as_ref().map(|peer| ratio(peer.ratio))),
    column("peer is", false, |_, _, row| {
        row.peer.as_ref().map(|peer| peer.name.clone()).or_else(|| row.no_peer.clone())
    }),
    column("counted lower bound", true, |_, _, row| {
        row.bound.as_ref().map(|bound| format!("{} (by {})", time(bound.seconds), bound.by))
    }),
    column("FLOP/s", true, |_, _, row| row.flops_per_second().map(|flops| rate(flops, "FLOP/s"))),
    column("plan", false, |_, _, row| {
        let [kernels, how] = row.plan.as_ref()?;
        let separator = if how.is_empty() { "" } else { ": " };
        Some(format!("{kernels}{separator}{how}"))
    }),
    column("remarks", false, |_, _, row| {
        let warm = (row.cold == Some(false)).then(|| "warm caches".to_owned());
        let all: Vec<String> = [warm, row.remark.clone()].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }),
    column("source", false, |document, source, _| {
        document.sources.get(source).and_then(|source| source.about.file.clone())
    }),
];

/// All rows, each with the number of its source.
pub fn table(document: &Document, rows: &[(usize, Row)]) -> String {
    let filled = |column: &&Column| {
        rows.iter().any(|(source, row)| (column.cell)(document, *source, row).is_some())
    };
    let columns: Vec<&Column> = COLUMNS.iter().filter(filled).collect();
    if columns.is_empty() {
        return "<p>None.</p>\n".to_owned();
    }
    let class = |column: &Column, text: &str| match (column.number, text) {
        (_, "WRONG") => " class=\"wrong\"",
        (true, _) => " class=\"number\"",
        (false, _) => "",
    };
    let mut text = open_table("All runs");
    let names: String = columns
        .iter()
        .map(|column| format!("<th scope=\"col\"{}>{}</th>", class(column, ""), column.name))
        .collect();
    let _ = writeln!(text, "<thead><tr>{names}</tr></thead>\n<tbody>");
    for (source, row) in rows {
        let mut cells = String::new();
        for (index, column) in columns.iter().enumerate() {
            let value = (column.cell)(document, *source, row);
            let value = value.unwrap_or_else(|| "-".to_owned());
            let (class, value) = (class(column, &value), escape(&value));
            let _ = match index {
                0 => write!(cells, "<th scope=\"row\">{value}</th>"),
                _ => write!(cells, "<td{class}>{value}</td>"),
            };
        }
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text.push_str("</tbody>\n</table></div>\n");
    text
}
