//! The version of this crate that a program and a module of kernels were compiled with.
//!
//! A parameter block that kernel and host lay out differently makes the kernel read and write
//! outside of its operands, and sizes that are equal do not show it. Every module of kernels
//! therefore has [`STAMP`] as the initial value of a variable called [`SYMBOL`], and the host loads
//! only modules with its own.
//!
//! The stamp is a hash of the crate's source. It is different more often than it must be, but
//! nothing that kernel and host share is left out.

/// The stamp of this version.
pub const STAMP: u64 = number(env!("FP4_FORMATS_STAMP"));

/// The name of the variable that has the stamp.
pub const SYMBOL: &str = "NVFP4_STAMP";

/// The number that decimal digits are.
const fn number(digits: &str) -> u64 {
    let digits = digits.as_bytes();
    let (mut value, mut at) = (0, 0);
    while at < digits.len() {
        value = value * 10 + (digits[at] - b'0') as u64;
        at += 1;
    }
    value
}

/// The stamp of a module, by its PTX; `None` if it has none.
#[must_use]
pub fn of_ptx(ptx: &str) -> Option<u64> {
    // `.visible .global .align 8 .b8 NVFP4_STAMP[8] = {1, 2, 3};`, before the kernels. Zeros at the
    // end may be left out.
    let mut lines = ptx.lines().take_while(|line| !line.contains(".entry"));
    lines.find_map(|line| {
        let (declared, value) = line.split_once(" = {")?;
        let variable = declared.strip_prefix(".visible .global ")?.rsplit(' ').next()?;
        if variable.strip_suffix("[8]") != Some(SYMBOL) {
            return None;
        }
        let mut bytes = [0; 8];
        for (at, byte) in value.strip_suffix("};")?.split(',').enumerate() {
            *bytes.get_mut(at)? = byte.trim().parse().ok()?;
        }
        Some(u64::from_le_bytes(bytes))
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn stamps_are_read() {
        assert_eq!(number("18446744073709551615"), u64::MAX);
        assert_ne!(STAMP, 0);
        let module = |line| format!(".version 9.0\n{line}\n.visible .entry k()\n");
        let line = ".visible .global .align 8 .b8 NVFP4_STAMP[8] = {205, 233, 1};";
        assert_eq!(of_ptx(&module(line)), Some(0x01_e9cd));
        for line in [
            "",
            ".visible .global .align 8 .b8 NVFP4_STAMPED[8] = {1};",
            "// .visible .global .align 8 .b8 NVFP4_STAMP[8] = {1};",
            ".visible .global .align 8 .b8 NVFP4_STAMP[8] = {256};",
            ".visible .global .align 8 .b8 NVFP4_STAMP[8] = {1, 1, 1, 1, 1, 1, 1, 1, 1};",
        ] {
            assert_eq!(of_ptx(&module(line)), None, "{line}");
        }
        assert_eq!(of_ptx(&format!(".visible .entry k()\n{line}")), None);
    }
}
