//! Writing SVG: elements with finite coordinates and escaped text.

use std::fmt::Write;

/// Width of a character of labels, in pixels of the chart: they are set in a monospaced font.
pub const CHARACTER: f64 = 6.7;

/// Room around a drawing in its own file.
const EDGE: f64 = 10.0;

/// Text as it may stand in HTML and XML, in elements and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML has no way to write most control characters.
            control if control.is_control() && control != '\n' && control != '\t' => {
                escaped.push('\u{fffd}');
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// The position of text relative to its point.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// The shape of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Circle,
    Square,
    Diamond,
    Up,
    Down,
    Bar,
    Cross,
}

/// A drawing. An element with a coordinate that is not finite is left out.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// A coordinate with one digit after the point.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

impl Svg {
    pub fn new(width: f64) -> Self {
        Self { width, height: 0.0, body: String::new() }
    }

    pub fn width(&self) -> f64 {
        self.width
    }

    pub fn set_height(&mut self, height: f64) {
        self.height = height;
    }

    fn element(&mut self, coordinates: &[f64], text: impl FnOnce() -> String) {
        if coordinates.iter().all(|value| value.is_finite()) {
            self.body.push_str(&text());
            self.body.push('\n');
        }
    }

    pub fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        self.element(&[x1, y1, x2, y2], || {
            let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(number);
            format!(r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#)
        });
    }

    pub fn rectangle(&mut self, class: &str, [x, y]: [f64; 2], [width, height]: [f64; 2]) {
        self.element(&[x, y, width, height], || {
            let [x, y, width, height] = [x, y, width.max(0.0), height.max(0.0)].map(number);
            format!(r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#)
        });
    }

    pub fn text(&mut self, class: &str, anchor: Anchor, [x, y]: [f64; 2], text: &str) {
        self.element(&[x, y], || {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let ([x, y], text) = ([x, y].map(number), escape(text));
            format!(r#"<text class="{class}" text-anchor="{anchor}" x="{x}" y="{y}">{text}</text>"#)
        });
    }

    /// A line through points.
    pub fn path(&mut self, class: &str, points: &[[f64; 2]]) {
        self.element(points.as_flattened(), || {
            let points: Vec<String> =
                points.iter().map(|[x, y]| format!("{},{}", number(*x), number(*y))).collect();
            format!(r#"<polyline class="{class}" points="{}"/>"#, points.join(" "))
        });
    }

    pub fn mark(&mut self, mark: Mark, class: &str, [x, y]: [f64; 2]) {
        let polygon = |points: &[[f64; 2]]| {
            let points: Vec<String> = points
                .iter()
                .map(|[dx, dy]| format!("{},{}", number(x + dx), number(y + dy)))
                .collect();
            format!(r#"<polygon class="{class}" points="{}"/>"#, points.join(" "))
        };
        self.element(&[x, y], || match mark {
            Mark::Circle => {
                format!(r#"<circle class="{class}" cx="{}" cy="{}" r="4"/>"#, number(x), number(y))
            }
            Mark::Square => polygon(&[[-4.0, -4.0], [4.0, -4.0], [4.0, 4.0], [-4.0, 4.0]]),
            Mark::Diamond => polygon(&[[0.0, -5.0], [5.0, 0.0], [0.0, 5.0], [-5.0, 0.0]]),
            Mark::Up => polygon(&[[0.0, -5.0], [5.0, 4.0], [-5.0, 4.0]]),
            Mark::Down => polygon(&[[0.0, 5.0], [5.0, -4.0], [-5.0, -4.0]]),
            Mark::Bar => polygon(&[[-1.2, -6.0], [1.2, -6.0], [1.2, 6.0], [-1.2, 6.0]]),
            Mark::Cross => {
                let [a, b] = [1.5, 5.0];
                polygon(&[
                    [-a, -b],
                    [a, -b],
                    [a, -a],
                    [b, -a],
                    [b, a],
                    [a, a],
                    [a, b],
                    [-a, b],
                    [-a, a],
                    [-b, a],
                    [-b, -a],
                    [-a, -a],
                ])
            }
        });
    }

    /// Draws with `draw` a group that has a text, shown while the pointer is on it.
    pub fn titled(&mut self, title: &str, draw: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.body, "<g><title>{}</title>", escape(title));
        draw(self);
        self.body.push_str("</g>\n");
    }

    /// A legend from `top` down, in as many lines as its entries need; the height of all.
    pub fn legend(&mut self, top: f64, entries: &[(Mark, &str, String)]) -> f64 {
        const LINE: f64 = 20.0;
        let (mut x, mut y) = (8.0, top + 12.0);
        for (mark, class, text) in entries {
            let width = 14.0 + CHARACTER * text.chars().count() as f64;
            if x > 8.0 && x + width > self.width {
                (x, y) = (8.0, y + LINE);
            }
            self.mark(*mark, class, [x, y - 4.0]);
            self.text("label", Anchor::Start, [x + 12.0, y], text);
            x += width + 20.0;
        }
        y + LINE - 12.0 - top
    }

    /// The drawing as an element of a page.
    pub fn inline(self, class: &str, label: &str) -> String {
        let Self { width, height, body } = self;
        let ([width, height], label) = ([width, height].map(number), escape(label));
        format!(
            "<svg class=\"{class}\" role=\"img\" aria-label=\"{label}\" \
             viewBox=\"0 0 {width} {height}\">\n{body}</svg>\n"
        )
    }

    /// The drawing as a file with a style and its own background.
    pub fn file(self, label: &str, style: &str) -> String {
        let Self { width, height, body } = self;
        let (size, label) = ([width, height].map(|size| number(size + 2.0 * EDGE)), escape(label));
        let ([width, height], edge) = (size, number(-EDGE));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"{label}\" \
             width=\"{width}\" height=\"{height}\" viewBox=\"{edge} {edge} {width} {height}\">\n\
             <title>{label}</title>\n<style>\n{style}</style>\n<rect class=\"background\" \
             x=\"{edge}\" y=\"{edge}\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n\
             {body}</svg>\n"
        )
    }
}

/// Text that fits `width` pixels, cut at its end if need be.
pub fn fitting(text: &str, width: f64) -> String {
    let most = (width / CHARACTER).floor().max(1.0) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(2)).collect();
    format!("{kept}..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_everywhere() {
        let bad = "<b a=\"1\">&'\u{1b}";
        let good = "&lt;b a=&quot;1&quot;&gt;&amp;&#39;\u{fffd}";
        assert_eq!(escape(bad), good);
        let mut svg = Svg::new(100.0);
        svg.titled(bad, |svg| svg.text("label", Anchor::End, [1.0, 2.25], bad));
        let text = svg.inline("wide", bad);
        assert_eq!(text.matches(good).count(), 3, "{text}");
        assert!(!text.contains("<b") && text.contains(r#"x="1" y="2.2""#), "{text}");
    }

    #[test]
    fn what_is_not_finite_is_left_out() {
        let mut svg = Svg::new(100.0);
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            svg.line("a", [0.0, bad], [1.0, 1.0]);
            svg.rectangle("a", [0.0, 0.0], [bad, 1.0]);
            svg.text("a", Anchor::Start, [bad, 0.0], "text");
            svg.path("a", &[[0.0, 0.0], [bad, 1.0]]);
            svg.mark(Mark::Cross, "a", [0.0, bad]);
        }
        let text = svg.inline("wide", "none");
        assert_eq!(text.lines().count(), 2, "{text}");
        let mut svg = Svg::new(100.0);
        svg.mark(Mark::Circle, "a", [1.0, 2.0]);
        svg.path("a", &[[0.0, 0.0], [3.0, 1.0]]);
        svg.rectangle("a", [0.0, 0.0], [-3.0, 1.0]);
        let text = svg.inline("wide", "some");
        assert!(text.contains("<circle") && text.contains("0,0 3,1") && !text.contains("-3"));
    }

    #[test]
    fn a_legend_has_as_many_lines_as_it_needs() {
        let entry = |text: &str| (Mark::Circle, "a", text.to_owned());
        let entries = [entry("the first of three"), entry("the second"), entry("the third")];
        let height = |width| Svg::new(width).legend(0.0, &entries);
        assert!(height(900.0) < height(250.0) && height(250.0) < height(150.0));
    }

    #[test]
    fn labels_are_cut_to_their_room() {
        assert_eq!(fitting("gemm:1x2x16", 100.0), "gemm:1x2x16");
        assert_eq!(fitting("grouped:1,2,3,4x5x16", 10.0 * CHARACTER), "grouped:..");
        assert_eq!(fitting("abc", 0.0), "..");
    }
}
