//! The chart of times by shape against floor and peer.

use super::row::Row;
use super::scale::{Log, ratio, time, time_tick};
use super::svg::{Anchor, CHARACTER, Mark, Svg, fitting};

/// Height of a row whose label is beside its marks.
const ROW: f64 = 20.0;
/// Height of a row whose label is above its marks.
const TALL_ROW: f64 = 34.0;
/// Height of a heading.
const HEADING: f64 = 26.0;
/// Room of a time at the right.
const VALUE: f64 = 70.0;
/// Widths below this have labels above the marks.
const NARROW: f64 = 600.0;
/// The number of rows from which the axis is above them, too.
const LONG: usize = 12;
/// Pixels between ticks.
const APART: f64 = 58.0;

/// Operations by name, in words.
pub const OPERATIONS: [(&str, &str); 8] = [
    ("gemv", "GEMV (MxKxL)"),
    ("gemm", "GEMM (MxNxK)"),
    ("dual", "gated dual GEMM (MxNxK)"),
    ("grouped", "grouped GEMM (M1,M2,..xNxK)"),
    ("grouped-dual", "gated grouped GEMM (M1,M2,..xNxK)"),
    ("moe", "mixture of experts (TxExKxHxI)"),
    ("quantize", "quantise (MxK)"),
    ("dequantize", "dequantise (MxK)"),
];

/// An operation in words.
pub fn operation(name: &str) -> &str {
    OPERATIONS.iter().find(|(known, _)| *known == name).map_or(name, |(_, words)| words)
}

/// Every time that a row has.
fn values(row: &Row) -> impl Iterator<Item = f64> {
    let limits = [&row.floor, &row.bound].map(|limit| limit.as_ref().map(|limit| limit.seconds));
    let peer = row.peer.as_ref().map(|peer| peer.seconds);
    let spread = row.spread.into_iter().flatten();
    [row.time, peer].into_iter().chain(limits).flatten().chain(spread)
}

/// Returns the text that is shown while the pointer is on a row.
fn title(row: &Row) -> String {
    let mut lines = vec![format!("{} {}", row.op, row.label())];
    if let Some(seconds) = row.time {
        let spread =
            row.spread.map(|[p10, p90]| format!(" (p10 {}, p90 {})", time(p10), time(p90)));
        lines.push(format!("median {}{}", time(seconds), spread.unwrap_or_default()));
    }
    if let Some(floor) = &row.floor {
        let times = row.to_floor().map(|times| format!(", {} x the floor", ratio(times)));
        lines.push(format!(
            "floor {} ({}){}",
            time(floor.seconds),
            floor.by,
            times.unwrap_or_default()
        ));
    }
    if let Some(peer) = &row.peer {
        let (seconds, ratio) = (time(peer.seconds), ratio(peer.ratio));
        lines.push(format!("{} {seconds}, {ratio} x our time", peer.name));
    }
    if let Some(bound) = &row.bound {
        lines.push(format!("counted lower bound {} (by {})", time(bound.seconds), bound.by));
    }
    lines.join("\n")
}

/// A name for all peers.
fn peer_name(rows: &[&Row]) -> Option<String> {
    let mut names: Vec<&str> =
        rows.iter().filter_map(|row| Some(row.peer.as_ref()?.name.as_str())).collect();
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => None,
        [name] => Some((*name).to_owned()),
        // Versions of one peer.
        [first, ..] => {
            let word = first.split(' ').next().unwrap_or(first);
            let same = names.iter().all(|name| name.split(' ').next() == Some(word));
            Some(if same { word.to_owned() } else { "peer".to_owned() })
        }
    }
}

fn legend(rows: &[&Row]) -> Vec<(Mark, &'static str, String)> {
    let mut entries = Vec::new();
    if rows.iter().any(|row| row.time.is_some()) {
        let spread = rows.iter().any(|row| row.spread.is_some());
        let text = if spread { "median, p10 to p90" } else { "median" };
        entries.push((Mark::Circle, "ours", text.to_owned()));
    }
    if rows.iter().any(|row| row.floor.is_some()) {
        entries.push((Mark::Bar, "floor", "floor".to_owned()));
    }
    if let Some(name) = peer_name(rows) {
        entries.push((Mark::Diamond, "peer", name));
    }
    if rows.iter().any(|row| row.bound.is_some()) {
        entries.push((Mark::Up, "bound", "counted lower bound, no time".to_owned()));
    }
    entries
}

/// The chart, `width` pixels wide; `None` if no row has a time or a bound. A `caption` is its first line.
pub fn chart(rows: &[&Row], width: f64, caption: Option<&str>) -> Option<Svg> {
    let narrow = width < NARROW;
    let sections = sections(rows);
    let longest = rows.iter().map(|row| row.sizes().chars().count()).max().unwrap_or(0);
    let room = if narrow { width - VALUE - 8.0 } else { width * 0.45 };
    let label = (CHARACTER * longest as f64).min(room);
    let plot = match narrow {
        true => [10.0, width - 10.0],
        false => [label + 26.0, width - VALUE - 8.0],
    };
    let scale = Log::new(rows.iter().flat_map(|row| values(row)), plot)?;
    let mut svg = Svg::new(width);
    let mut y = 0.0;
    if let Some(caption) = caption {
        svg.text("heading", Anchor::Start, [8.0, 20.0], caption);
        y = 30.0;
    }
    y += svg.legend(y, &legend(rows)) + 4.0;
    let ticks: Vec<(String, f64)> = scale
        .ticks(APART)
        .into_iter()
        .filter_map(|tick| Some((time_tick(tick), scale.at(tick)?)))
        .collect();
    let name = |svg: &mut Svg, y: f64| {
        for (tick, x) in &ticks {
            // Labels at the ends stay within the chart.
            let half = CHARACTER * tick.chars().count() as f64 / 2.0;
            svg.text("tick", Anchor::Middle, [x.clamp(half, width - half), y], tick);
        }
    };
    if rows.len() >= LONG {
        y += 14.0;
        name(&mut svg, y);
        y += 4.0;
    }
    let height = if narrow { TALL_ROW } else { ROW };
    let end = y + sections.iter().map(|rows| HEADING + height * rows.len() as f64).sum::<f64>();
    for (_, x) in &ticks {
        svg.line("grid", [*x, y], [*x, end]);
    }
    for section in &sections {
        if let [first, ..] = section.as_slice() {
            let separator = if first.details.is_empty() { "" } else { ", " };
            let heading = format!("{}{separator}{}", operation(&first.op), first.details);
            svg.text("heading", Anchor::Start, [0.0, y + HEADING - 6.0], &fitting(&heading, width));
        }
        y += HEADING;
        for row in section {
            draw(&mut svg, row, y, &scale, (label, narrow));
            y += height;
        }
    }
    y += 14.0;
    name(&mut svg, y);
    y += 18.0;
    let axis = match rows.iter().any(|row| row.time.is_some()) {
        true => "time, logarithmic; less is better",
        false => "lower bound of the time, logarithmic",
    };
    svg.text("axis", Anchor::Middle, [(plot[0] + plot[1]) / 2.0, y], axis);
    svg.set_height(y + 8.0);
    Some(svg)
}

/// Rows with the same operation and details, operations in the order of [`OPERATIONS`], the rest in that of
/// the rows.
fn sections<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    let mut sections: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let same = |section: &&mut Vec<&Row>| {
            section.iter().all(|other| (&other.op, &other.details) == (&row.op, &row.details))
        };
        match sections.iter_mut().find(same) {
            Some(section) => section.push(row),
            None => sections.push(vec![row]),
        }
    }
    let place = |section: &Vec<&Row>| {
        let op = section.first().map(|row| row.op.as_str());
        OPERATIONS.iter().position(|(known, _)| Some(*known) == op).unwrap_or(OPERATIONS.len())
    };
    sections.sort_by_key(place);
    sections
}

fn draw(svg: &mut Svg, row: &Row, top: f64, scale: &Log, (label, narrow): (f64, bool)) {
    let width = svg.width();
    let (height, text, middle) = match narrow {
        true => (TALL_ROW, top + 12.0, top + 24.0),
        false => (ROW, top + 14.0, top + 10.0),
    };
    svg.titled(&title(row), |svg| {
        svg.rectangle("hit", [0.0, top], [width, height]);
        svg.text("label", Anchor::Start, [0.0, text], &fitting(row.sizes(), label));
        let value = match (row.time, &row.bound) {
            (Some(seconds), _) => time(seconds),
            (None, Some(bound)) => format!(">= {}", time(bound.seconds)),
            (None, None) => "missing".to_owned(),
        };
        svg.text("label", Anchor::End, [width, text], &value);
        let at = |value: Option<f64>| scale.at(value?);
        let floor = at(row.floor.as_ref().map(|floor| floor.seconds));
        let peer = at(row.peer.as_ref().map(|peer| peer.seconds));
        let ours = at(row.time);
        let all: Vec<f64> = [floor, peer, ours].into_iter().flatten().collect();
        if let (Some(low), Some(high)) =
            (all.iter().copied().reduce(f64::min), all.iter().copied().reduce(f64::max))
        {
            svg.line("gap", [low, middle], [high, middle]);
        }
        if let Some([p10, p90]) = row.spread
            && let (Some(low), Some(high)) = (scale.at(p10), scale.at(p90))
        {
            svg.line("spread", [low, middle], [high, middle]);
        }
        let marks = [
            (peer, Mark::Diamond, "peer"),
            (at(row.bound.as_ref().map(|bound| bound.seconds)), Mark::Up, "bound"),
            (ours, Mark::Circle, "ours"),
            (floor, Mark::Bar, "floor"),
        ];
        for (x, mark, class) in marks {
            if let Some(x) = x {
                svg.mark(mark, class, [x, middle]);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::row::{Limit, Peer, READING};

    fn row(op: &str, sizes: &str, seconds: Option<f64>) -> Row {
        Row {
            op: op.into(),
            shape: format!("{op}:{sizes}"),
            time: seconds,
            spread: seconds.map(|seconds| [0.9 * seconds, 1.1 * seconds]),
            floor: Some(Limit { seconds: 1e-6, by: READING.into() }),
            peer: Some(Peer { name: "cuBLAS 13 f16".into(), seconds: 9e-6, ratio: 3.0 }),
            ..Row::default()
        }
    }

    fn text(rows: &[&Row], width: f64) -> Option<String> {
        chart(rows, width, None).map(|svg| svg.inline("wide", "times"))
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        assert_eq!(text(&[], 900.0), None);
        let empty = Row { op: "gemm".into(), shape: "gemm:1x2x16".into(), ..Row::default() };
        assert_eq!(text(&[&empty], 900.0), None);
    }

    #[test]
    fn a_row_has_its_marks_once_and_a_missing_time_is_said() {
        for width in [340.0, 900.0] {
            let one = row("gemm", "1x2x16", Some(3e-6));
            let drawn = text(&[&one], width).expect("a chart");
            // One mark in the legend, one in the row.
            for class in ["ours", "floor", "peer"] {
                assert_eq!(drawn.matches(&format!("class=\"{class}\"")).count(), 2, "{class}");
            }
            assert!(drawn.contains("3.00 x the floor") && drawn.contains(">3.00 us<"), "{drawn}");
            assert!(!drawn.contains("NaN") && !drawn.contains("inf\""), "{drawn}");
            let missing = row("gemm", "1x2x32", None);
            let drawn = text(&[&one, &missing], width).expect("a chart");
            assert!(drawn.contains(">missing<"), "{drawn}");
        }
    }

    #[test]
    fn bounds_are_no_times() {
        let bound = Row {
            time: None,
            spread: None,
            floor: None,
            peer: None,
            bound: Some(Limit { seconds: 2e-6, by: "dram".into() }),
            ..row("gemv", "1x16x1", None)
        };
        let drawn = text(&[&bound], 900.0).expect("a chart");
        assert!(drawn.contains("counted lower bound, no time") && drawn.contains("&gt;= 2.00 us"));
        assert!(!drawn.contains("class=\"ours\""), "{drawn}");
    }

    #[test]
    fn operations_and_details_have_one_heading_each() {
        let with =
            |details: &str| Row { details: details.into(), ..row("gemm", "1x2x16", Some(3e-6)) };
        let rows = [with("f16"), with("fp4"), row("gemv", "1x16x1", Some(3e-6)), with("f16")];
        let rows: Vec<&Row> = rows.iter().collect();
        let drawn = text(&rows, 900.0).expect("a chart");
        let at: Vec<usize> = ["GEMV (MxKxL)<", "GEMM (MxNxK), f16<", "GEMM (MxNxK), fp4<"]
            .map(|heading| {
                assert_eq!(drawn.matches(heading).count(), 1, "{heading}: {drawn}");
                drawn.find(heading).expect("found")
            })
            .into();
        assert!(at.is_sorted(), "{drawn}");
    }
}
