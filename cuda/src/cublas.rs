//! cuBLAS, opened at run time, for the products with which the kernels are compared. Nothing else in
//! the library needs it.

mod find;
mod lt;

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use super::device::CudaDevice;
use super::error::CudaError;
use super::memory::CudaMemory;

pub use find::CUBLAS_PATH_VARIABLE;
pub use lt::{CublasLt, E4m3Product, E4m3Sums};

/// The reason why there is no cuBLAS to compare with, or a failed call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CublasError {
    /// No library was found.
    #[error(
        "cuBLAS was not found; set {CUBLAS_PATH_VARIABLE} to libcublas.so or its folder \
         (tried: {})", tried.join("; ")
    )]
    Missing {
        /// Each path tried, with the loader's message.
        tried: Vec<String>,
    },
    /// The library lacks a function.
    #[error("{library} has no function {function}")]
    MissingFunction {
        /// The library that was opened.
        library: String,
        /// The function.
        function: &'static str,
    },
    /// A call failed.
    #[error("{call} returned {name} ({status})")]
    Call {
        /// The cuBLAS function.
        call: &'static str,
        /// The `cublasStatus_t`.
        status: i32,
        /// Its enumerator, if cuBLAS knows it.
        name: String,
    },
    /// The library has no kernel for the product.
    #[error(
        "cuBLAS has no product of e4m3 matrices of {} and {} rows of {} elements, {} times: {reason}",
        shape.m, shape.n, shape.k, shape.batch
    )]
    Refused {
        /// The product.
        shape: CublasShape,
        /// The status that the heuristic returned.
        reason: String,
    },
    /// The driver refused the workspace or the context.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Shape of a batched product with f32 accumulation and f16 results.
///
/// For each `l` of `batch`: `c[l][j][i] = sum over p of a[l][i][p] * b[l][j][p]`,
/// with `a[l]` of `m` rows and `b[l]` of `n` rows, both row-major with `k`
/// elements per row, and `c[l]` of `n` rows of `m` elements. With `n` = 1 this is
/// the matrix-vector product `c[l][i]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CublasShape {
    /// Rows of `a`.
    pub m: usize,
    /// Rows of `b`.
    pub n: usize,
    /// Elements of a row of `a` and of `b`.
    pub k: usize,
    /// Independent products, stored one after the other.
    pub batch: usize,
}

type Handle = *mut c_void;
type Status = i32;

type Create = unsafe extern "C" fn(*mut Handle) -> Status;
type Destroy = unsafe extern "C" fn(Handle) -> Status;
type GetVersion = unsafe extern "C" fn(Handle, *mut i32) -> Status;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> Status;
type SetWorkspace = unsafe extern "C" fn(Handle, *mut c_void, usize) -> Status;
type StatusName = unsafe extern "C" fn(Status) -> *const c_char;
/// `cublasGemmStridedBatchedEx`: handle, operations, m, n, k, alpha, (matrix,
/// type, leading dimension, stride) of A and B, beta, the same of C, batch,
/// compute type, algorithm.
type GemmStridedBatchedEx = unsafe extern "C" fn(
    Handle,
    i32,
    i32,
    i32,
    i32,
    i32,
    *const f32,
    *const c_void,
    i32,
    i32,
    i64,
    *const c_void,
    i32,
    i32,
    i64,
    *const f32,
    *mut c_void,
    i32,
    i32,
    i64,
    i32,
    i32,
    i32,
) -> Status;

const CUBLAS_OP_N: i32 = 0;
const CUBLAS_OP_T: i32 = 1;
const CUDA_R_16F: i32 = 2;
const CUBLAS_COMPUTE_32F: i32 = 68;
const CUBLAS_GEMM_DEFAULT: i32 = -1;

/// The size that cuBLAS's documentation recommends for Hopper (`cublasSetWorkspace`). With an
/// explicit workspace, products can be recorded into graphs.
const WORKSPACE_BYTES: usize = 32 << 20;

/// An open cuBLAS, bound to a device's stream.
#[derive(Debug)]
pub struct Cublas {
    handle: Handle,
    gemm: GemmStridedBatchedEx,
    get_version: GetVersion,
    destroy: Destroy,
    status_name: Option<StatusName>,
    path: String,
    // Queued products use it, so it is freed after the handle.
    _workspace: CudaMemory,
    device: CudaDevice,
    // The library that contains the functions above.
    _library: libloading::Library,
}

impl Drop for Cublas {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the handle is not used again.
            unsafe { (self.destroy)(self.handle) };
        }
    }
}

impl Cublas {
    /// Opens cuBLAS 13 or 12 for a device. The places are, in this order: the one that
    /// [`CUBLAS_PATH_VARIABLE`] names; `LD_LIBRARY_PATH` and the loader's cache;
    /// the usual folder of the CUDA toolkit; the Python packages of the virtual
    /// environment, of every `python3` on `PATH` and of the system.
    ///
    /// # Errors
    /// [`CublasError::Missing`] with all that was tried, or a failed call.
    pub fn open(device: &CudaDevice) -> Result<Self, CublasError> {
        device.bind()?;
        let (library, path) = find::open()?;
        let function = Functions { library: &library, path: &path };
        let create: Create = function.get("cublasCreate_v2")?;
        let destroy: Destroy = function.get("cublasDestroy_v2")?;
        let set_stream: SetStream = function.get("cublasSetStream_v2")?;
        let set_workspace: SetWorkspace = function.get("cublasSetWorkspace_v2")?;
        let get_version: GetVersion = function.get("cublasGetVersion_v2")?;
        let gemm: GemmStridedBatchedEx = function.get("cublasGemmStridedBatchedEx")?;
        let status_name: Option<StatusName> = function.get("cublasGetStatusName").ok();

        let workspace = device.alloc(WORKSPACE_BYTES)?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is writable and the device's context is current.
        let status = unsafe { create(&mut handle) };
        check(status_name, "cublasCreate", status)?;
        let cublas = Self {
            handle,
            gemm,
            get_version,
            destroy,
            status_name,
            path,
            _workspace: workspace,
            device: device.clone(),
            _library: library,
        };
        // SAFETY: handle and stream are alive. Setting the stream resets the
        // workspace, so it comes first.
        let status = unsafe { set_stream(handle, device.stream()) };
        cublas.check("cublasSetStream", status)?;
        let workspace = ptr::without_provenance_mut(cublas._workspace.address() as usize);
        // SAFETY: the workspace has this size and lives as long as the handle.
        let status = unsafe { set_workspace(handle, workspace, WORKSPACE_BYTES) };
        cublas.check("cublasSetWorkspace", status)?;
        Ok(cublas)
    }

    /// The library that was opened.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// cuBLAS's version number, e.g. 130002.
    ///
    /// # Errors
    /// A failed call.
    pub fn version(&self) -> Result<u32, CublasError> {
        let mut version = 0;
        // SAFETY: `version` is writable.
        let status = unsafe { (self.get_version)(self.handle, &mut version) };
        self.check("cublasGetVersion", status)?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// Queues one product on the device's stream, which may be recording a graph.
    /// `a`, `b`, `c` are device addresses of f16 elements laid out as
    /// [`CublasShape`] says.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for a size that is zero or beyond `i32`, or a
    /// failed call.
    ///
    /// # Safety
    /// The addresses are 16-byte aligned allocations of the device, of at least
    /// the shape's size, alive until the product has finished.
    pub unsafe fn half_product(
        &self,
        shape: CublasShape,
        a: u64,
        b: u64,
        c: u64,
    ) -> Result<(), CublasError> {
        let m = dimension("m", shape.m)?;
        let n = dimension("n", shape.n)?;
        let k = dimension("k", shape.k)?;
        let batch = dimension("batch", shape.batch)?;
        self.device.bind()?;
        let address = |address: u64| ptr::without_provenance_mut::<c_void>(address as usize);
        let (alpha, beta) = (1.0, 0.0);
        let stride = |rows: i32, row: i32| i64::from(rows) * i64::from(row);
        // SAFETY: the scalars are read during the call, and the caller guarantees the
        // addresses. (cuBLAS is column-major: a row-major matrix with rows of k elements is a
        // column-major one with k rows, so A is transposed, B is not, and C has columns of m.)
        let status = unsafe {
            (self.gemm)(
                self.handle,
                CUBLAS_OP_T,
                CUBLAS_OP_N,
                m,
                n,
                k,
                &alpha,
                address(a),
                CUDA_R_16F,
                k,
                stride(m, k),
                address(b),
                CUDA_R_16F,
                k,
                stride(n, k),
                &beta,
                address(c),
                CUDA_R_16F,
                m,
                stride(n, m),
                batch,
                CUBLAS_COMPUTE_32F,
                CUBLAS_GEMM_DEFAULT,
            )
        };
        self.check("cublasGemmStridedBatchedEx", status)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), CublasError> {
        check(self.status_name, call, status)
    }
}

fn dimension(field: &'static str, value: usize) -> Result<i32, CudaError> {
    let dimension = i32::try_from(value).ok().filter(|&value| value > 0);
    dimension.ok_or_else(|| CudaError::BadArgument {
        operation: "cuBLAS product",
        field,
        required: format!("from 1 to {}", i32::MAX),
        actual: value.to_string(),
    })
}

fn check(
    status_name: Option<StatusName>,
    call: &'static str,
    status: Status,
) -> Result<(), CublasError> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the function accepts any number and returns a static string or null.
    let name = status_name.map(|name| unsafe { name(status) });
    let name = match name {
        // SAFETY: not null, so a nul-terminated static string.
        Some(name) if !name.is_null() => unsafe { CStr::from_ptr(name) }.to_string_lossy(),
        _ => "unknown status".into(),
    };
    Err(CublasError::Call { call, status, name: name.into_owned() })
}

struct Functions<'a> {
    library: &'a libloading::Library,
    path: &'a str,
}

impl Functions<'_> {
    /// `T` must be the function's type as the cuBLAS documentation gives it.
    fn get<T: Copy>(&self, function: &'static str) -> Result<T, CublasError> {
        // SAFETY: every caller names the documented type of the function; the
        // result is kept beside the library in `Cublas` and in `CublasLt`.
        let symbol = unsafe { self.library.get::<T>(function) };
        symbol
            .map(|symbol| *symbol)
            .map_err(|_| CublasError::MissingFunction { library: self.path.to_owned(), function })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_outside_cublas_are_refused() {
        assert_eq!(dimension("m", 7168), Ok(7168));
        for value in [0, i32::MAX as usize + 1] {
            let error = dimension("m", value).map_err(|error| error.to_string());
            let expected = format!("cuBLAS product: m must be from 1 to 2147483647, got {value}");
            assert_eq!(error, Err(expected));
        }
    }
}
