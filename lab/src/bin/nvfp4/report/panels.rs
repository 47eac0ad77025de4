//! The panels of the history: time by day, a line for each shape.

use super::history::{Panel, Series};
use super::scale::{Log, time, time_tick};
use super::svg::{Anchor, CHARACTER, Mark, Svg, fitting};

/// All panels are as wide: two beside each other on a desk, one on a phone.
pub const WIDTH: f64 = 340.0;
/// Room of the ticks at the left.
const LEFT: f64 = 58.0;
/// Pixels between the names of series.
const LINE: f64 = 15.0;
/// Colours of series, which begin again after the last.
const COLOURS: usize = 6;

/// A panel with at least one series of two days.
pub fn chart(panel: &Panel) -> Option<Svg> {
    let all = || panel.series.iter().flat_map(|series| &series.points);
    let first = all().min_by_key(|(at, ..)| *at)?;
    let last = all().max_by_key(|(at, ..)| *at)?;
    if first.0 == last.0 {
        return None;
    }
    let names: Vec<String> = panel.series.iter().map(name).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let room = (CHARACTER * longest as f64).min(WIDTH * 0.5);
    let right = WIDTH - room - 12.0;
    let top = 12.0;
    let bottom = top + (LINE * names.len() as f64).max(130.0);
    let up = Log::new(all().map(|(.., seconds)| *seconds), [bottom, top])?;
    let span = (last.0 - first.0) as f64;
    let across = |at: i64| LEFT + (at - first.0) as f64 / span * (right - LEFT);

    let mut svg = Svg::new(WIDTH);
    for tick in up.ticks(24.0) {
        let Some(y) = up.at(tick) else { continue };
        svg.line("grid", [LEFT, y], [right, y]);
        svg.text("tick", Anchor::End, [LEFT - 6.0, y + 4.0], &time_tick(tick));
    }
    for (day, anchor, x) in [(first, Anchor::Start, LEFT - 10.0), (last, Anchor::End, right + 30.0)]
    {
        let name = day.1.get(5..).unwrap_or(&day.1);
        svg.text("tick", anchor, [x, bottom + 18.0], name);
    }
    let ends: Vec<f64> = panel
        .series
        .iter()
        .map(|series| series.points.last().and_then(|(.., seconds)| up.at(*seconds)))
        .map(|y| y.unwrap_or(bottom))
        .collect();
    for (index, (series, label)) in panel.series.iter().zip(apart(&ends, [top, bottom])).enumerate()
    {
        let class = format!("series s{}", index % COLOURS);
        let points: Vec<[f64; 2]> = series
            .points
            .iter()
            .filter_map(|(at, _, seconds)| Some([across(*at), up.at(*seconds)?]))
            .collect();
        svg.titled(&title(series), |svg| {
            svg.path(&format!("line s{}", index % COLOURS), &points);
            for point in &points {
                svg.mark(Mark::Circle, &class, *point);
            }
            if let Some([x, y]) = points.last() {
                svg.line("gap", [x + 4.0, *y], [right + 8.0, label]);
            }
            let text = fitting(&names[index], WIDTH - right - 12.0);
            svg.text("label", Anchor::Start, [right + 12.0, label + 4.0], &text);
        });
    }
    svg.set_height(bottom + 28.0);
    Some(svg)
}

fn name(series: &Series) -> String {
    let last = series.points.last().map(|(.., seconds)| time(*seconds)).unwrap_or_default();
    format!("{} {last}", series.sizes)
}

fn title(series: &Series) -> String {
    let points: Vec<String> = series
        .points
        .iter()
        .map(|(_, day, seconds)| format!("{day}: {}", time(*seconds)))
        .collect();
    format!("{}\n{}", series.sizes, points.join("\n"))
}

/// Places for labels at `wanted`, in its order, that are a line apart and within `range`, if they fit.
fn apart(wanted: &[f64], [top, bottom]: [f64; 2]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut places = vec![0.0; wanted.len()];
    let mut next = top;
    for &index in &order {
        places[index] = wanted[index].max(next);
        next = places[index] + LINE;
    }
    // Labels that were moved past the end move back, and the ones before them with them.
    let mut most = bottom;
    for &index in order.iter().rev() {
        places[index] = places[index].min(most);
        most = places[index] - LINE;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(sizes: &str, times: &[(i64, f64)]) -> Series {
        let points = times.iter().map(|(at, time)| (*at, format!("2026-11-{at}"), *time)).collect();
        Series { sizes: sizes.into(), points }
    }

    #[test]
    fn labels_are_a_line_apart_and_in_order() {
        let wanted = [50.0, 52.0, 140.0, 141.0, 10.0];
        let places = apart(&wanted, [10.0, 142.0]);
        for (a, x) in places.iter().enumerate() {
            assert!((10.0..=142.0).contains(x), "{places:?}");
            for (b, y) in places.iter().enumerate().skip(a + 1) {
                assert!((x - y).abs() >= LINE - 1e-9, "{places:?}");
                assert_eq!(x < y, wanted[a] < wanted[b], "{places:?}");
            }
        }
        assert_eq!(apart(&[], [0.0, 1.0]), Vec::<f64>::new());
    }

    #[test]
    fn a_panel_needs_two_days() {
        let panel = |series| Panel { title: "gemm".into(), series };
        assert!(chart(&panel(vec![])).is_none());
        assert!(chart(&panel(vec![series("1x2x16", &[(20, 1e-6)])])).is_none());
        let lines = vec![
            series("1x2x16", &[(20, 2e-6), (22, 1e-6)]),
            series("2x2x16", &[(20, 2e-6), (22, 1e-6)]),
        ];
        let drawn = chart(&panel(lines)).expect("a chart").inline("panel", "history");
        assert_eq!(drawn.matches("<polyline").count(), 2);
        assert!(
            drawn.contains("2026-11-20: 2.00 us") && drawn.contains(">1x2x16 1.00 us<"),
            "{drawn}"
        );
        assert!(drawn.contains(">11-20<") && drawn.contains(">11-22<"), "{drawn}");
    }
}
