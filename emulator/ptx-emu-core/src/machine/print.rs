//! The format strings of device-side `printf` (CUDA C++ Programming Guide,
//! "Formatted Output"): flags `-+ #0`, width, precision, lengths `h l ll j z t`,
//! conversions `d i u o x X c s p f F e E g G a A %`. Anything else is printed as it
//! stands, as CUDA does.
//!
//! Limits: width and precision given by arguments (`*`), which CUDA supports, are not supported;
//! `%a` is printed like `%e`.

use crate::diagnostic::Exec;

/// The required type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// 32 bits.
    Word,
    /// 64 bits.
    Long,
    /// A 64-bit float.
    Double,
    /// The address of a string, 64 bits.
    Text,
}

impl Wanted {
    /// Bytes of the argument, and its alignment.
    pub(crate) fn bytes(self) -> usize {
        if self == Self::Word { 4 } else { 8 }
    }
}

/// An argument.
pub(crate) enum Value {
    /// Its bits, zero above.
    Bits(u64),
    /// A string.
    Text(Vec<u8>),
}

#[derive(Debug, Clone, Copy, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    long: bool,
    conversion: u8,
}

/// A conversion behind its `%`, and its length; `None` for no such thing.
fn spec(text: &[u8]) -> Option<(Spec, usize)> {
    let mut spec = Spec::default();
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'-' => spec.left = true,
            b'+' => spec.plus = true,
            b' ' => spec.space = true,
            b'#' => spec.alternate = true,
            b'0' => spec.zero = true,
            _ => break,
        }
        at += 1;
    }
    let number = |at: &mut usize| {
        let mut number = 0usize;
        while let Some(digit) = text.get(*at).filter(|byte| byte.is_ascii_digit()) {
            number = (number * 10 + usize::from(digit - b'0')).min(4096);
            *at += 1;
        }
        number
    };
    spec.width = number(&mut at);
    if text.get(at) == Some(&b'.') {
        at += 1;
        spec.precision = Some(number(&mut at));
    }
    while let Some(b'h' | b'l' | b'j' | b'z' | b't') = text.get(at) {
        spec.long |= text[at] != b'h';
        at += 1;
    }
    spec.conversion = *text.get(at)?;
    b"diuoxXcspfFeEgGaA".contains(&spec.conversion).then_some((spec, at + 1))
}

/// The text of a format; `argument` gives the arguments, in order.
pub(crate) fn format(
    format: &[u8],
    mut argument: impl FnMut(Wanted) -> Exec<Value>,
) -> Exec<String> {
    let mut out: Vec<u8> = Vec::with_capacity(format.len());
    let mut at = 0;
    while at < format.len() {
        let rest = &format[at..];
        if rest[0] != b'%' {
            out.push(rest[0]);
            at += 1;
        } else if rest.get(1) == Some(&b'%') {
            out.push(b'%');
            at += 2;
        } else if let Some((spec, length)) = spec(&rest[1..]) {
            let wanted = match spec.conversion {
                b's' => Wanted::Text,
                b'p' => Wanted::Long,
                b'd' | b'i' | b'u' | b'o' | b'x' | b'X' if spec.long => Wanted::Long,
                b'd' | b'i' | b'u' | b'o' | b'x' | b'X' | b'c' => Wanted::Word,
                _ => Wanted::Double,
            };
            match argument(wanted)? {
                Value::Text(mut text) => {
                    text.truncate(spec.precision.unwrap_or(usize::MAX));
                    pad(&mut out, spec, b"", &text, false);
                }
                Value::Bits(bits) => convert(&mut out, spec, bits),
            }
            at += 1 + length;
        } else {
            out.push(b'%');
            at += 1;
        }
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Adds sign or prefix and digits, filled up to the width.
fn pad(out: &mut Vec<u8>, spec: Spec, prefix: &[u8], body: &[u8], number: bool) {
    let fill = spec.width.saturating_sub(prefix.len() + body.len());
    let zeros = spec.zero && number && !spec.left;
    if !spec.left && !zeros {
        out.extend(std::iter::repeat_n(b' ', fill));
    }
    out.extend(prefix);
    if zeros {
        out.extend(std::iter::repeat_n(b'0', fill));
    }
    out.extend(body);
    if spec.left {
        out.extend(std::iter::repeat_n(b' ', fill));
    }
}

fn convert(out: &mut Vec<u8>, spec: Spec, bits: u64) {
    let sign = |negative: bool| match (negative, spec.plus, spec.space) {
        (true, ..) => &b"-"[..],
        (_, true, _) => b"+",
        (_, _, true) => b" ",
        _ => b"",
    };
    // At least so many digits as the precision says.
    let digits = |text: String| {
        let missing = spec.precision.unwrap_or(0).saturating_sub(text.len());
        ("0".repeat(missing) + &text).into_bytes()
    };
    let whole = Spec { zero: spec.zero && spec.precision.is_none(), ..spec };
    match spec.conversion {
        b'c' => pad(out, spec, b"", &[bits as u8], false),
        b'd' | b'i' => {
            let value = if spec.long { bits as i64 } else { i64::from(bits as i32) };
            pad(out, whole, sign(value < 0), &digits(value.unsigned_abs().to_string()), true);
        }
        b'u' => pad(out, whole, b"", &digits(bits.to_string()), true),
        b'o' => {
            let prefix = if spec.alternate { &b"0"[..] } else { b"" };
            pad(out, whole, prefix, &digits(format!("{bits:o}")), true);
        }
        b'x' | b'X' | b'p' => {
            let upper = spec.conversion == b'X';
            let text = if upper { format!("{bits:X}") } else { format!("{bits:x}") };
            let prefix = match spec.conversion {
                b'p' => &b"0x"[..],
                b'x' if spec.alternate && bits != 0 => b"0x",
                b'X' if spec.alternate && bits != 0 => b"0X",
                _ => b"",
            };
            pad(out, whole, prefix, &digits(text), true);
        }
        _ => {
            let value = f64::from_bits(bits);
            let mut text = float(spec, value.abs());
            if spec.conversion.is_ascii_uppercase() {
                text.make_ascii_uppercase();
            }
            let spec = Spec { zero: spec.zero && value.is_finite(), ..spec };
            pad(out, spec, sign(value.is_sign_negative()), text.as_bytes(), true);
        }
    }
}

/// A float that is not negative.
fn float(spec: Spec, value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return "inf".to_owned();
    }
    let precision = spec.precision.unwrap_or(6);
    match spec.conversion.to_ascii_lowercase() {
        b'f' => format!("{value:.precision$}"),
        b'g' => {
            let precision = precision.max(1);
            let scientific = format!("{value:.*e}", precision - 1);
            let exponent: i32 =
                scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
            let trimmed = |text: &str| match text.contains('.') && !spec.alternate {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text.to_owned(),
            };
            if exponent < -4 || exponent >= precision as i32 {
                let mantissa = scientific.split('e').next().unwrap_or_default();
                format!("{}{}", trimmed(mantissa), exponent_text(exponent))
            } else {
                let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
                trimmed(&format!("{value:.decimals$}"))
            }
        }
        _ => {
            let text = format!("{value:.precision$e}");
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            format!("{mantissa}{}", exponent_text(exponent.parse().unwrap_or(0)))
        }
    }
}

/// `e`, a sign, at least two digits.
fn exponent_text(exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::{Value, Wanted, format};

    fn printed(text: &str, bits: &[u64]) -> String {
        let mut bits = bits.iter();
        let argument = |wanted: Wanted| {
            let bits = *bits.next().expect("an argument");
            Ok(match wanted {
                Wanted::Text => Value::Text(b"word".to_vec()),
                _ => Value::Bits(bits),
            })
        };
        format(text.as_bytes(), argument).expect("no fault")
    }

    #[test]
    fn conversions_are_those_of_c() {
        let minus = u64::from(-42i32 as u32);
        for (text, bits, expected) in [
            ("%d|%5d|%-5d|%05d", [minus; 4].as_slice(), "-42|  -42|-42  |-0042"),
            ("%u %x %X %#x %o", &[255; 5], "255 ff FF 0xff 377"),
            ("%+d % d %.3d", &[7; 3], "+7  7 007"),
            ("%lld %llu %lx", &[u64::MAX; 3], "-1 18446744073709551615 ffffffffffffffff"),
            ("%c%c %s %8s|%-6s|%.2s", &[72, 105, 0, 0, 0, 0], "Hi word     word|word  |wo"),
            ("%p", &[0x7f00], "0x7f00"),
            ("100%% %q", &[], "100% %q"),
            ("%", &[], "%"),
        ] {
            assert_eq!(printed(text, bits), expected, "{text}");
        }
        for (text, value, expected) in [
            ("%f", 1.5, "1.500000"),
            ("%.2f", -2.345, "-2.35"),
            ("%8.3f|", 2.7184, "   2.718|"),
            ("%e", 12345.678, "1.234568e+04"),
            ("%.1E", 0.00012, "1.2E-04"),
            ("%g", 0.0001, "0.0001"),
            ("%g", 1234567.0, "1.23457e+06"),
            ("%g", 100.0, "100"),
            ("%f", f64::INFINITY, "inf"),
            ("%06.1f", -1.25, "-001.2"),
            ("%G", f64::NAN, "NAN"),
        ] {
            assert_eq!(printed(text, &[value.to_bits()]), expected, "{text} of {value}");
        }
    }
}
