//! The roofline: operations per byte against operations per second.

use super::row::Row;
use super::scale::{Log, rate, rate_tick, short, time};
use super::svg::{Anchor, CHARACTER, Mark, Svg};
use super::times::OPERATIONS;

/// Marks and colours of operations, in the order of their names.
const MARKS: [Mark; 6] =
    [Mark::Circle, Mark::Square, Mark::Diamond, Mark::Up, Mark::Down, Mark::Cross];
/// Room of the labels at the left.
const LEFT: f64 = 92.0;

/// The rates that bound everything: the largest that were measured in these runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Roofs {
    /// Bytes per second.
    pub read: Option<f64>,
    /// Operations per second.
    pub tensor: Option<f64>,
}

impl Roofs {
    pub fn of(rows: &[&Row]) -> Self {
        let largest = |of: fn(&Row) -> Option<f64>| {
            rows.iter().filter_map(|row| of(row)).max_by(f64::total_cmp)
        };
        Self { read: largest(|row| row.read_rate), tensor: largest(|row| row.tensor_rate) }
    }

    /// The most operations per second at an intensity.
    fn at(self, intensity: f64) -> Option<f64> {
        let read = self.read.map(|read| read * intensity);
        [read, self.tensor].into_iter().flatten().min_by(f64::total_cmp)
    }

    /// The intensity at which both roofs are the same.
    fn ridge(self) -> Option<f64> {
        Some(self.tensor? / self.read?)
    }
}

/// An operation's mark and class.
fn mark(op: &str) -> (Mark, String) {
    let index = OPERATIONS.iter().position(|(name, _)| *name == op).unwrap_or(MARKS.len() - 1);
    let index = index.min(MARKS.len() - 1);
    (MARKS[index], format!("series s{index}"))
}

/// The chart, `width` pixels wide; `None` if no row has operations, bytes and a time.
pub fn chart(rows: &[&Row], width: f64) -> Option<Svg> {
    let points: Vec<(&Row, f64, f64)> = rows
        .iter()
        .filter_map(|row| Some((*row, row.intensity()?, row.flops_per_second()?)))
        .collect();
    let roofs = Roofs::of(rows);
    let xs = points.iter().map(|(_, x, _)| *x).chain(roofs.ridge().filter(|_| !points.is_empty()));
    let [left, right] = [LEFT, width - 12.0];
    let across = Log::new(xs, [left, right])?;
    let [first, last] = across.ends();
    let ys = points
        .iter()
        .map(|(_, _, y)| *y)
        .chain([first, last].into_iter().filter_map(|x| roofs.at(x)));
    let ys: Vec<f64> = ys.collect();

    let mut svg = Svg::new(width);
    let mut ops: Vec<&str> = Vec::new();
    for (row, ..) in &points {
        if !ops.contains(&row.op.as_str()) {
            ops.push(&row.op);
        }
    }
    let marks: Vec<(Mark, String, &str)> =
        ops.iter().map(|op| (mark(op).0, mark(op).1, *op)).collect();
    let mut entries: Vec<(Mark, &str, String)> =
        marks.iter().map(|(mark, class, op)| (*mark, class.as_str(), (*op).to_owned())).collect();
    if let Some(read) = roofs.read {
        entries.push((Mark::Bar, "floor", format!("read rate {}", rate(read, "B/s"))));
    }
    if let Some(tensor) = roofs.tensor {
        entries.push((Mark::Bar, "floor", format!("f16 rate {}", rate(tensor, "FLOP/s"))));
    }
    let top = svg.legend(0.0, &entries) + 12.0;
    let bottom = top + if width < 600.0 { 260.0 } else { 360.0 };
    let up = Log::new(ys, [bottom, top])?;
    for tick in across.ticks(48.0) {
        let Some(x) = across.at(tick) else { continue };
        svg.line("grid", [x, top], [x, bottom]);
        let half = CHARACTER * short(tick).chars().count() as f64 / 2.0;
        svg.text("tick", Anchor::Middle, [x.min(width - half), bottom + 16.0], &short(tick));
    }
    for tick in up.ticks(28.0) {
        let Some(y) = up.at(tick) else { continue };
        svg.line("grid", [left, y], [right, y]);
        svg.text("tick", Anchor::End, [left - 6.0, y + 4.0], &rate_tick(tick, "FLOP/s"));
    }
    let axis = "intensity, FLOP per byte that must move, logarithmic";
    let axis = if width < 600.0 { "intensity, FLOP per byte" } else { axis };
    svg.text("axis", Anchor::Middle, [(left + right) / 2.0, bottom + 36.0], axis);
    svg.set_height(bottom + 46.0);
    roof(&mut svg, roofs, &across, &up);
    for (row, x, y) in points {
        let title = format!(
            "{} {}\n{} at {} FLOP per byte, {}",
            row.op,
            row.label(),
            rate(y, "FLOP/s"),
            super::scale::ratio(x),
            row.time.map(time).unwrap_or_default(),
        );
        if let (Some(x), Some(y)) = (across.at(x), up.at(y)) {
            let (mark, class) = mark(&row.op);
            svg.titled(&title, |svg| svg.mark(mark, &class, [x, y]));
        }
    }
    Some(svg)
}

fn roof(svg: &mut Svg, roofs: Roofs, across: &Log, up: &Log) {
    let [first, last] = across.ends();
    let inside = |x: &f64| (first..=last).contains(x);
    let ridge = roofs.ridge().filter(inside);
    let points: Vec<[f64; 2]> = [Some(first), ridge, Some(last)]
        .into_iter()
        .flatten()
        .filter_map(|x| Some([across.at(x)?, up.at(roofs.at(x)?)?]))
        .collect();
    if points.len() > 1 {
        svg.path("roof", &points);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seconds: Option<f64>) -> Row {
        Row {
            op: "gemm".into(),
            shape: "gemm:1x2x16".into(),
            time: seconds,
            bytes: Some(1e6),
            flops: Some(1e8),
            read_rate: Some(4e12),
            tensor_rate: Some(8e14),
            ..Row::default()
        }
    }

    #[test]
    fn roofs_meet_at_the_ridge() {
        let roofs = Roofs::of(&[&row(None), &Row { read_rate: Some(3e12), ..row(None) }]);
        assert_eq!(
            (roofs.read, roofs.tensor, roofs.ridge()),
            (Some(4e12), Some(8e14), Some(200.0))
        );
        assert_eq!(roofs.at(100.0), Some(4e14));
        assert_eq!(roofs.at(1000.0), Some(8e14));
        assert_eq!(Roofs::default().at(1.0), None);
    }

    #[test]
    fn points_are_under_the_roof_and_rows_without_a_time_are_none() {
        let timed = row(Some(1e-6));
        for width in [340.0, 900.0] {
            let drawn =
                chart(&[&timed, &row(None)], width).expect("a chart").inline("wide", "roofline");
            assert_eq!(drawn.matches("<title>").count(), 1, "{drawn}");
            assert!(drawn.contains("100 TFLOP/s at 100 FLOP per byte"), "{drawn}");
            assert_eq!(drawn.matches("class=\"roof\"").count(), 1);
        }
        assert!(chart(&[&row(None)], 900.0).is_none());
        assert!(chart(&[], 900.0).is_none());
        // Without measured limits there is no roof, but there are points.
        let bare = Row { read_rate: None, tensor_rate: None, ..timed };
        let drawn = chart(&[&bare], 900.0).expect("a chart").inline("wide", "roofline");
        assert!(!drawn.contains("class=\"roof\"") && drawn.matches("<title>").count() == 1);
    }
}
