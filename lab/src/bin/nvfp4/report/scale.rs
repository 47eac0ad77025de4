//! Logarithmic scales, their ticks, and numbers with units.

/// Steps of a decade that can have a tick.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];

/// Room beside the first and the last value.
const MARGIN: f64 = 1.15;

/// A logarithmic scale from values to pixels.
#[derive(Clone, Debug)]
pub struct Log {
    domain: [f64; 2],
    pixels: [f64; 2],
}

impl Log {
    /// A scale for `values` over `pixels`, with a margin at both ends; where less than two ticks would be on
    /// it, from a tick to a tick. Values that are not positive and finite are left out; `None` if no other
    /// is there.
    pub fn new(values: impl IntoIterator<Item = f64>, pixels: [f64; 2]) -> Option<Self> {
        let usable = values.into_iter().filter_map(positive);
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in usable {
            low = low.min(value);
            high = high.max(value);
        }
        (low <= high).then(|| {
            let close = Self { domain: [low / MARGIN, high * MARGIN], pixels };
            if close.ticks(0.0).len() > 1 {
                return close;
            }
            let (bottom, top) = (tick_at_or_below(low), tick_at_or_above(high));
            let domain = if bottom < top { [bottom, top] } else { [bottom / 2.0, top * 2.0] };
            Self { domain, pixels }
        })
    }

    /// Returns the position of a value, if it is within the scale.
    pub fn at(&self, value: f64) -> Option<f64> {
        let [low, high] = self.domain;
        // Ticks at the ends are computed, and may be off by a rounding.
        let within = (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(&value);
        within.then(|| {
            let share = (value / low).ln() / (high / low).ln();
            self.pixels[0] + share * (self.pixels[1] - self.pixels[0])
        })
    }

    /// The smallest and the largest value.
    pub fn ends(&self) -> [f64; 2] {
        self.domain
    }

    /// Ticks that are `apart` pixels or more from each other, those at powers of ten first.
    pub fn ticks(&self, apart: f64) -> Vec<f64> {
        let mut kept: Vec<(f64, f64)> = Vec::new();
        for step in STEPS {
            let decades =
                self.domain[0].log10().floor() as i32..=self.domain[1].log10().ceil() as i32;
            for value in decades.map(|decade| step * 10_f64.powi(decade)) {
                let Some(at) = self.at(value) else { continue };
                if kept.iter().all(|(_, other)| (at - other).abs() >= apart) {
                    kept.push((value, at));
                }
            }
        }
        kept.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        kept.into_iter().map(|(value, _)| value).collect()
    }
}

/// A value, if it is positive and finite.
pub fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}

fn tick_at_or_below(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let fits = |step: &&f64| **step * decade <= value * (1.0 + 1e-9);
    STEPS.iter().rev().find(fits).map_or(decade, |step| step * decade)
}

fn tick_at_or_above(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let fits = |step: &&f64| **step * decade >= value * (1.0 - 1e-9);
    STEPS.iter().find(fits).map_or(10.0 * decade, |step| step * decade)
}

/// Units of time, in seconds, the smallest first.
const TIMES: [(f64, &str); 4] = [(1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s")];
/// Prefixes of rates.
const PREFIXES: [(f64, &str); 5] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")];

/// The largest unit of which `value` is at least one.
fn unit<'a>(value: f64, units: &[(f64, &'a str)]) -> (f64, &'a str) {
    // A value that rounds to a thousand of a unit is one of the next.
    let fits = |(size, _): &&(f64, &str)| value >= 0.9995 * size;
    units.iter().rev().find(fits).or(units.first()).copied().unwrap_or((1.0, ""))
}

/// Three significant digits of a number below 1000; of larger ones all before the point.
fn digits(value: f64) -> String {
    let after = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.after$}")
}

/// A time with three digits: `19.4 us`.
pub fn time(seconds: f64) -> String {
    let (size, name) = unit(seconds, &TIMES);
    format!("{} {name}", digits(seconds / size))
}

/// A rate with three digits: `755 TFLOP/s`.
pub fn rate(value: f64, of: &str) -> String {
    let (size, prefix) = unit(value, &PREFIXES);
    format!("{} {prefix}{of}", digits(value / size))
}

/// A quotient with three digits: `1.55`.
pub fn ratio(value: f64) -> String {
    digits(value)
}

/// A tick of a time, without digits that say nothing: `20 us`.
pub fn time_tick(seconds: f64) -> String {
    let (size, name) = unit(seconds, &TIMES);
    format!("{} {name}", short(seconds / size))
}

/// A tick of a rate: `100 TFLOP/s`.
pub fn rate_tick(value: f64, of: &str) -> String {
    let (size, prefix) = unit(value, &PREFIXES);
    format!("{} {prefix}{of}", short(value / size))
}

/// A number of one significant digit, as ticks are.
pub fn short(value: f64) -> String {
    let after = if value < 1.0 { (-value.log10().floor()).max(0.0) as usize } else { 0 };
    format!("{value:.after$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_has_all_values_and_keeps_order() {
        let scale = Log::new([3e-6, 41e-6, 0.0, -1.0, f64::NAN, f64::INFINITY], [100.0, 700.0]);
        let scale = scale.expect("two values");
        let [low, high] = scale.ends();
        assert!((2e-6..3e-6).contains(&low) && high > 41e-6 && high < 50e-6, "{low} {high}");
        assert_eq!(scale.at(low), Some(100.0));
        let end = scale.at(high).expect("within");
        assert!((end - 700.0).abs() < 1e-6);
        let middle = scale.at((low * high).sqrt()).expect("within");
        assert!((middle - 400.0).abs() < 1e-6);
        for outside in [1e-6, 51e-6, 0.0, -2e-6, f64::NAN, f64::INFINITY] {
            assert_eq!(scale.at(outside), None, "{outside}");
        }
        // Pixels may run upwards, too.
        let scale = Log::new([1.0, 10.0], [300.0, 0.0]).expect("two values");
        assert!(scale.at(1.0) > scale.at(10.0));
    }

    #[test]
    fn one_value_has_a_scale_and_none_has_none() {
        for value in [2e-6, 3e-6, 1.0] {
            let scale = Log::new([value], [0.0, 100.0]).expect("a value");
            let at = scale.at(value).expect("within");
            assert!((0.0..=100.0).contains(&at), "{value}: {at}");
            assert!(scale.ends()[0] < scale.ends()[1]);
            assert!(scale.ticks(0.0).len() > 1, "{value}");
        }
        assert!(Log::new([], [0.0, 1.0]).is_none());
        assert!(Log::new([0.0, -3.0, f64::NAN, f64::NEG_INFINITY], [0.0, 1.0]).is_none());
    }

    #[test]
    fn ticks_are_apart_and_decades_come_first() {
        let scale = Log::new([1e-6, 1e-3], [0.0, 300.0]).expect("values");
        let names = |apart| scale.ticks(apart).into_iter().map(time_tick).collect::<Vec<_>>();
        assert_eq!(names(60.0), ["1 us", "10 us", "100 us", "1 ms"]);
        let close = names(25.0);
        let expected = [
            "1 us", "2 us", "5 us", "10 us", "20 us", "50 us", "100 us", "200 us", "500 us", "1 ms",
        ];
        assert!(close.len() > 4 && close.iter().all(|name| expected.contains(&name.as_str())));
        let narrow = Log::new([2.1e-6, 2.2e-6], [0.0, 300.0]).expect("values");
        assert_eq!(narrow.ticks(60.0).len(), 2);
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (seconds, text) in [
            (19.384e-6, "19.4 us"),
            (2.0602e-6, "2.06 us"),
            (201.27e-6, "201 us"),
            (999.7e-6, "1.00 ms"),
            (9.996e-6, "10.0 us"),
            (0.5e-9, "0.50 ns"),
            (75.0, "75.0 s"),
        ] {
            assert_eq!(time(seconds), text);
        }
        assert_eq!(rate(754.9e12, "FLOP/s"), "755 TFLOP/s");
        assert_eq!(rate(3.98e12, "B/s"), "3.98 TB/s");
        assert_eq!(rate(4000e12, "FLOP/s"), "4000 TFLOP/s");
        assert_eq!([1.0, 0.05, 20.0, 1000.0].map(short), ["1", "0.05", "20", "1000"]);
        assert_eq!(rate_tick(2e13, "FLOP/s"), "20 TFLOP/s");
    }
}
