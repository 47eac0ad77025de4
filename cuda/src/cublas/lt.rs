//! cuBLASLt, for products of e4m3 matrices.
//!
//! Both operands have one f32 scale for the whole tensor, sums are f32 and results f16. cuBLAS takes
//! e4m3 of a transposed first matrix and a second one that is not, which is how [`CublasShape`] stores
//! them, with rows of whole 16 bytes.

mod api;

use std::ffi::c_void;
use std::ptr;

use super::{CublasError, CublasShape, Functions, Handle, WORKSPACE_BYTES, dimension, find};
use crate::device::CudaDevice;
use crate::memory::CudaMemory;
use api::{Algorithm, Api, Described};

/// The way in which the tensor cores' sums of e4m3 products, which have fewer bits than f32, are
/// added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum E4m3Sums {
    /// Sums are added in f32 after every few products, as in our kernels. cuBLAS' default.
    Promoted,
    /// Sums stay in the tensor cores: faster and less accurate (`CUBLASLT_MATMUL_DESC_FAST_ACCUM`).
    Fast,
}

/// An open cuBLASLt, for a device's stream.
#[derive(Debug)]
pub struct CublasLt {
    handle: Handle,
    api: Api,
    path: String,
    workspace: CudaMemory,
    /// The scale of both operands, 1.
    scale: CudaMemory,
    device: CudaDevice,
    // The library that contains the functions above.
    _library: libloading::Library,
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the handle is not used again.
            unsafe { (self.api.destroy)(self.handle) };
        }
    }
}

impl CublasLt {
    /// Opens cuBLASLt 13 or 12, from the places of [`Cublas::open`](super::Cublas::open).
    ///
    /// # Errors
    /// [`CublasError::Missing`] with all that was tried, or a failed call.
    pub fn open(device: &CudaDevice) -> Result<Self, CublasError> {
        device.bind()?;
        let (library, path) = find::open_lt()?;
        let api = Api::of(&Functions { library: &library, path: &path })?;
        let workspace = device.alloc(WORKSPACE_BYTES)?;
        let scale = device.upload(&1f32.to_le_bytes())?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is writable and the device's context is current.
        api.check("cublasLtCreate", unsafe { (api.create)(&mut handle) })?;
        Ok(Self { handle, api, path, workspace, scale, device: device.clone(), _library: library })
    }

    /// The library that was opened.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// cuBLASLt's version number, e.g. 130002.
    pub fn version(&self) -> usize {
        // SAFETY: the function has no arguments.
        unsafe { (self.api.version)() }
    }

    /// Plans a product of e4m3 matrices, by the algorithm that the library's heuristic names first. All
    /// addresses will be multiples of `alignment`, a power of two from 16 to 256.
    ///
    /// # Errors
    /// [`CublasError::Refused`] where the library has no kernel, for `k` or `m` that is no multiple of 16
    /// for example; [`CudaError::BadArgument`](crate::CudaError::BadArgument) for a size that is zero or
    /// beyond `i32`; or a failed call.
    pub fn e4m3_product(
        &self,
        shape: CublasShape,
        sums: E4m3Sums,
        alignment: u32,
    ) -> Result<E4m3Product<'_>, CublasError> {
        let m = dimension("m", shape.m)?;
        let n = dimension("n", shape.n)?;
        let k = dimension("k", shape.k)?;
        let batch = dimension("batch", shape.batch)?;
        self.device.bind()?;
        let scales = [self.scale.address(); 2];
        let described = self.api.describe([m, n, k, batch], scales, sums)?;
        let found = self.api.choose(self.handle, &described, alignment)?;
        let algorithm = found.map_err(|reason| CublasError::Refused { shape, reason })?;
        Ok(E4m3Product { library: self, described, algorithm })
    }
}

/// A planned product of e4m3 matrices, whose results are f16.
#[derive(Debug)]
pub struct E4m3Product<'a> {
    library: &'a CublasLt,
    described: Described,
    algorithm: Algorithm,
}

impl E4m3Product<'_> {
    /// Queues the product on the device's stream, which may be recording a graph. `a` and `b` are device
    /// addresses of e4m3 elements and `c` of f16 elements, laid out as [`CublasShape`] says.
    ///
    /// # Errors
    /// A failed call.
    ///
    /// # Safety
    /// The addresses are aligned as planned, in allocations of the device of at least the shape's size,
    /// alive until the product has finished.
    pub unsafe fn launch(&self, a: u64, b: u64, c: u64) -> Result<(), CublasError> {
        let CublasLt { handle, api, workspace, device, .. } = self.library;
        device.bind()?;
        let address = |address: u64| ptr::without_provenance_mut::<c_void>(address as usize);
        let (alpha, beta) = (1.0, 0.0);
        let Described { operation, a: of_a, b: of_b, c: of_c } = &self.described;
        // SAFETY: handle and descriptions are alive, the scalars and the algorithm are read during the
        // call, the workspace has this size and lives as long as the library, and the caller guarantees
        // the addresses.
        let status = unsafe {
            (api.matmul)(
                *handle,
                operation.raw,
                &alpha,
                address(a),
                of_a.raw,
                address(b),
                of_b.raw,
                &beta,
                address(c),
                of_c.raw,
                address(c),
                of_c.raw,
                &self.algorithm,
                address(workspace.address()),
                WORKSPACE_BYTES,
                device.stream(),
            )
        };
        api.check("cublasLtMatmul", status)
    }
}
