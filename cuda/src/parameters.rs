//! The offsets of a kernel's parameters, and the parameter block of a launch.

use std::collections::HashMap;
use std::ffi::c_void;

use cuda_lazy::{CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, raw};

use super::error::{CudaError, check};

/// The place of a parameter of a kernel.
///
/// Alignments above 16 bytes are relative to the start of the constant bank, in which other data
/// precede the parameters (0x210 bytes on sm_90, 0x380 on sm_100). On sm_90, a first parameter
/// with an alignment of 64 is therefore at offset 48.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelParameter {
    /// Bytes from the start of the parameters.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// The parameters of a kernel as its PTX declares them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeclaredParameters {
    /// The number of parameters.
    pub count: usize,
    /// Bytes of all of them, without padding between them.
    pub bytes: usize,
}

/// The parameters of each kernel of a PTX text.
pub fn declared_parameters(ptx: &str) -> HashMap<String, DeclaredParameters> {
    let mut declared = HashMap::new();
    // The kernel whose parameters are being read.
    let mut entry: Option<(String, DeclaredParameters)> = None;
    for line in ptx.lines() {
        let mut line = line.split("//").next().unwrap_or_default();
        if entry.is_none()
            && let Some((_, rest)) = line.split_once(".entry ")
        {
            let end = rest.find(['(', ' ', '\t']).unwrap_or(rest.len());
            entry = Some((rest[..end].to_owned(), DeclaredParameters::default()));
            line = &rest[end..];
        }
        if let Some((name, parameters)) = &mut entry {
            let body = line.find('{');
            let head = &line[..line.find(')').or(body).unwrap_or(line.len())];
            for declaration in head.split(".param").skip(1) {
                parameters.count += 1;
                parameters.bytes += bytes_of(declaration);
            }
            if head.len() < line.len() {
                declared.insert(std::mem::take(name), *parameters);
                entry = None;
            }
        }
    }
    declared
}

/// Bytes of a parameter by its declaration behind `.param`: `.align 8 .b8 name[88]`, `.u64 name`.
fn bytes_of(declaration: &str) -> usize {
    let digits = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse::<usize>().unwrap_or(0)
    };
    let mut types = declaration.split('.').skip(1);
    // `.align` is followed by its number, a type's letter by its bits.
    let bits = types.find(|part| !part.starts_with("align") && !part.starts_with("ptr"));
    let bits = bits.map_or(0, |part| digits(part.trim_start_matches(|c: char| c.is_alphabetic())));
    let elements = declaration.split_once('[').map_or(1, |(_, rest)| digits(rest.trim_start()));
    elements * bits / 8
}

/// A kernel's parameters in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameters(pub(crate) Vec<KernelParameter>);

impl Parameters {
    /// The parameters of a function whose module is loaded, with what its PTX declares, if that is known.
    /// The driver describes one parameter per call. Beyond the last it returns
    /// `CUDA_ERROR_INVALID_VALUE`, which tools that watch calls report as an error.
    ///
    /// Drivers before CUDA 12.4 describe none; the declaration then stands for a single parameter, which a
    /// launch passes by its address, wherever the driver puts it.
    pub(crate) fn of(
        function: *mut c_void,
        declared: Option<DeclaredParameters>,
    ) -> Result<Self, CudaError> {
        const INVALID_VALUE: u32 = 1;
        let mut found = Vec::new();
        loop {
            if declared.is_some_and(|declared| declared.count == found.len()) {
                return Ok(Self(found));
            }
            let (mut offset, mut size) = (0, 0);
            // SAFETY: both are writable and the function's module is loaded.
            match unsafe { raw::cuFuncGetParamInfo(function, found.len(), &mut offset, &mut size) }
            {
                INVALID_VALUE => return Ok(Self(found)),
                CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER
                    if let Some(DeclaredParameters { count: 1, bytes: size }) = declared =>
                {
                    return Ok(Self(vec![KernelParameter { offset: 0, size }]));
                }
                code => check("cuFuncGetParamInfo", code)?,
            }
            found.push(KernelParameter { offset, size });
        }
    }

    /// Bytes of a launch's block: those of a single parameter, or up to the end of the last of
    /// several.
    pub(crate) fn bytes(&self) -> usize {
        match self.0[..] {
            [single] => single.size,
            _ => self.0.iter().map(|p| p.offset + p.size).max().unwrap_or(0),
        }
    }

    /// The block of a launch of kernel `entry` with these values, one per parameter.
    pub(crate) fn arrange(&self, entry: &str, values: &[Vec<u8>]) -> Result<Vec<u8>, CudaError> {
        let sizes: Vec<usize> = self.0.iter().map(|parameter| parameter.size).collect();
        let given: Vec<usize> = values.iter().map(Vec::len).collect();
        if sizes != given {
            return Err(CudaError::BadLaunch {
                kernel: entry.to_owned(),
                field: "params",
                required: format!("values of {sizes:?} bytes"),
                actual: format!("{given:?} bytes"),
            });
        }
        let mut block = vec![0; self.bytes()];
        let single = self.0.len() == 1;
        for (KernelParameter { offset, size }, value) in self.0.iter().zip(values) {
            let at = if single { 0 } else { *offset };
            block[at..at + size].copy_from_slice(value);
        }
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_parameters_are_read() {
        let text = "\
.visible .entry one(
\t.param .align 64 .b8 one_param_0[272]
)
.reqntid 384, 1, 1
{
\tld.param.b64 %rd1, [one_param_0+240];
}
.func (.param .b32 r) helper(.param .b32 a) { ret; }
.entry none() { ret; }
.visible .entry bare
{
\tret;
}
.entry three(.param .u64 a, // not .param
  .param .u64 b,
  .param .u32 c) .maxnreg 80
{
}
.entry pointer(.param .u64 .ptr .global .align 16 p) { ret; }
.entry wide(.param .align 16 .b64 w [ 3 ]) { ret; }
";
        let all = declared_parameters(text);
        let expected = [
            ("one", 1, 272),
            ("none", 0, 0),
            ("bare", 0, 0),
            ("three", 3, 20),
            ("pointer", 1, 8),
            ("wide", 1, 24),
        ];
        assert_eq!(all.len(), expected.len(), "{all:?}");
        for (name, count, bytes) in expected {
            assert_eq!(all.get(name), Some(&DeclaredParameters { count, bytes }), "{name}");
        }
    }

    fn parameters(places: &[(usize, usize)]) -> Parameters {
        Parameters(places.iter().map(|&(offset, size)| KernelParameter { offset, size }).collect())
    }

    #[test]
    fn parameters_go_where_the_driver_has_them() {
        let several = parameters(&[(0, 8), (8, 8), (48, 128)]);
        assert_eq!(several.bytes(), 176);
        let block = several.arrange("k", &[vec![1; 8], vec![2; 8], vec![3; 128]]).expect("fits");
        assert_eq!(block[..16], [[1; 8], [2; 8]].concat()[..]);
        assert!(block[16..48].iter().all(|&byte| byte == 0));
        assert!(block[48..].iter().all(|&byte| byte == 3) && block.len() == 176);
        let error = several.arrange("k", &[vec![1; 8], vec![3; 128]]).expect_err("one is missing");
        assert!(error.to_string().contains("values of [8, 8, 128] bytes"), "{error}");

        let single = parameters(&[(48, 4)]);
        let block = single.arrange("k", &[vec![7; 4]]).expect("fits");
        assert_eq!(block, [7; 4]);

        assert_eq!(parameters(&[]).bytes(), 0);
    }
}
