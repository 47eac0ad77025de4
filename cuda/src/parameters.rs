//! The offsets of a kernel's parameters, and the parameter block of a launch.

use std::collections::HashMap;
use std::ffi::c_void;

use cuda_lazy::raw;

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

/// The number of parameters of each kernel of a PTX text.
pub fn parameter_counts(ptx: &str) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    // The kernel whose parameters are being read.
    let mut entry: Option<(String, usize)> = None;
    for line in ptx.lines() {
        let mut line = line.split("//").next().unwrap_or_default();
        if entry.is_none()
            && let Some((_, rest)) = line.split_once(".entry ")
        {
            let end = rest.find(['(', ' ', '\t']).unwrap_or(rest.len());
            entry = Some((rest[..end].to_owned(), 0));
            line = &rest[end..];
        }
        if let Some((name, count)) = &mut entry {
            let body = line.find('{');
            let head = &line[..line.find(')').or(body).unwrap_or(line.len())];
            *count += head.matches(".param").count();
            if head.len() < line.len() {
                counts.insert(std::mem::take(name), *count);
                entry = None;
            }
        }
    }
    counts
}

/// A kernel's parameters in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameters(pub(crate) Vec<KernelParameter>);

impl Parameters {
    /// The parameters of a function whose module is loaded; `count` of them, if it is known.
    /// The driver describes one parameter per call. Beyond the last it returns
    /// `CUDA_ERROR_INVALID_VALUE`, which tools that watch calls report as an error.
    pub(crate) fn of(function: *mut c_void, count: Option<usize>) -> Result<Self, CudaError> {
        const INVALID_VALUE: u32 = 1;
        let mut found = Vec::new();
        loop {
            if count == Some(found.len()) {
                return Ok(Self(found));
            }
            let (mut offset, mut size) = (0, 0);
            // SAFETY: both are writable and the function's module is loaded.
            match unsafe { raw::cuFuncGetParamInfo(function, found.len(), &mut offset, &mut size) }
            {
                INVALID_VALUE => return Ok(Self(found)),
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
    fn parameters_are_counted() {
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
";
        let counts = parameter_counts(text);
        let expected = [("one", 1), ("none", 0), ("bare", 0), ("three", 3)];
        assert_eq!(counts.len(), expected.len(), "{counts:?}");
        for (name, count) in expected {
            assert_eq!(counts.get(name), Some(&count), "{name}");
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
