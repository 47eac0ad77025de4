//! Names and instructions in a length that people read.

use std::borrow::Cow;

/// Longest name that is shown.
const LONGEST_NAME: usize = 100;
/// Template arguments of this depth are not shown.
const DEEPEST: usize = 2;
/// Longest list of operands that is shown in full.
const LONGEST_LIST: usize = 4;

/// A name of a kernel or function as its source has it: C++ and Rust names demangled, without
/// parameters and hashes, template arguments within template arguments as `..`.
///
/// ```
/// use ptx_emu_core::readable_name;
///
/// assert_eq!(readable_name("saxpy"), "saxpy");
/// assert_eq!(readable_name("_Z5saxpyIfEviT_PKS0_PS0_"), "saxpy<float>");
/// ```
#[must_use]
pub fn readable_name(name: &str) -> Cow<'_, str> {
    let Some(full) = demangled(name) else {
        return cut_name(name);
    };
    let mut text = String::new();
    let mut depth = 0usize;
    for c in full.chars() {
        match c {
            '<' => {
                depth += 1;
                match depth {
                    1..=DEEPEST => text.push(c),
                    _ if depth == DEEPEST + 1 => text.push_str("<..>"),
                    _ => {}
                }
            }
            '>' => {
                if depth <= DEEPEST {
                    text.push(c);
                }
                depth = depth.saturating_sub(1);
            }
            _ if depth <= DEEPEST => text.push(c),
            _ => {}
        }
    }
    Cow::Owned(cut_name(&text).into_owned())
}

fn demangled(name: &str) -> Option<String> {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return Some(format!("{rust:#}"));
    }
    if !name.starts_with("_Z") {
        return None;
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    cpp_demangle::Symbol::new(name).ok()?.demangle_with_options(&options).ok()
}

fn cut_name(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => Cow::Owned(format!("{}..", &name[..end])),
        None => Cow::Borrowed(name),
    }
}

/// An instruction with its long lists of registers cut: `{%r1, %r2, .., %r64}`.
pub(crate) fn instruction(text: &str) -> Cow<'_, str> {
    let mut cut = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let Some(length) = rest[open..].find('}') else {
            break;
        };
        let list = &rest[open + 1..open + length];
        let items: Vec<&str> = list.split(',').map(str::trim).collect();
        cut.push_str(&rest[..=open]);
        match items.as_slice() {
            [first, second, .., last] if items.len() > LONGEST_LIST => {
                cut.push_str(&format!("{first}, {second}, .., {last}"));
            }
            _ => cut.push_str(list),
        }
        rest = &rest[open + length..];
    }
    if cut.is_empty() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(cut + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled_and_shortened() {
        for (name, shown) in [
            ("gemm_nvfp4", "gemm_nvfp4"),
            ("_Z3addPKfS0_Pfi", "add"),
            ("_ZN5space6kernelILi128EEEvPf", "space::kernel<128>"),
            (
                "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective13CollectiveMmaIfEEEEEEvNT_6ParamsE",
                "cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<..>, cutlass::gemm::collecti..",
            ),
            ("_RNvCskwGfYPst2Cb_3foo16example_function", "foo::example_function"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_Znot_mangled", "_Znot_mangled"),
        ] {
            assert_eq!(readable_name(name), shown);
        }
        assert_eq!(readable_name(&"k".repeat(300)).len(), LONGEST_NAME + 2);
    }

    #[test]
    fn lists_of_registers_are_cut() {
        for (text, shown) in [
            ("add.u32 %r1, %r2, %r3;", "add.u32 %r1, %r2, %r3;"),
            ("ld.v4.u32 {%r1, %r2, %r3, %r4}, [%d1];", "ld.v4.u32 {%r1, %r2, %r3, %r4}, [%d1];"),
            (
                "mma {%f1,%f2, %f3,%f4,%f5}, {%a}, {%b1, %b2, %b3, %b4, %b5, %b6};",
                "mma {%f1, %f2, .., %f5}, {%a}, {%b1, %b2, .., %b6};",
            ),
            ("wgmma {%f1, %f2,", "wgmma {%f1, %f2,"),
        ] {
            assert_eq!(instruction(text), shown);
        }
    }
}
