//! The functions of cuBLASLt that a product of e4m3 matrices takes, and its descriptions.

use std::ffi::c_void;
use std::ptr;

use super::E4m3Sums;
use crate::cublas::{
    CUBLAS_COMPUTE_32F, CUBLAS_OP_N, CUBLAS_OP_T, CUDA_R_16F, Create, CublasError, Destroy,
    Functions, Handle, Status, StatusName, WORKSPACE_BYTES, check,
};

const CUDA_R_32F: i32 = 0;
const CUDA_R_8F_E4M3: i32 = 28;
const CUBLAS_STATUS_NOT_SUPPORTED: Status = 15;

/// `cublasLtMatmulDescAttributes_t`.
mod operation {
    pub const TRANSA: i32 = 3;
    pub const TRANSB: i32 = 4;
    pub const A_SCALE_POINTER: i32 = 17;
    pub const B_SCALE_POINTER: i32 = 18;
    pub const FAST_ACCUM: i32 = 25;
}

/// `cublasLtMatrixLayoutAttribute_t`.
mod layout {
    pub const BATCH_COUNT: i32 = 5;
    pub const STRIDED_BATCH_OFFSET: i32 = 6;
}

/// `cublasLtMatmulPreferenceAttributes_t`; the alignments are those of A, B, C and D.
mod preference {
    pub const MAX_WORKSPACE_BYTES: i32 = 1;
    pub const MIN_ALIGNMENT_BYTES: [i32; 4] = [5, 6, 7, 8];
}

/// A description: of an operation, a matrix or a preference.
type Opaque = *mut c_void;
type SetAttribute = unsafe extern "C" fn(Opaque, i32, *const c_void, usize) -> Status;
/// Handle, operation, A, B, C, D, preference, algorithms that are asked for, algorithms, their number.
type GetHeuristic = unsafe extern "C" fn(
    Handle,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    i32,
    *mut Heuristic,
    *mut i32,
) -> Status;
/// Handle, operation, alpha, A, its layout, B, its layout, beta, C, its layout, D, its layout, algorithm,
/// workspace, its bytes, stream.
type Matmul = unsafe extern "C" fn(
    Handle,
    Opaque,
    *const f32,
    *const c_void,
    Opaque,
    *const c_void,
    Opaque,
    *const f32,
    *const c_void,
    Opaque,
    *mut c_void,
    Opaque,
    *const Algorithm,
    *mut c_void,
    usize,
    *mut c_void,
) -> Status;

/// `cublasLtMatmulAlgo_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Heuristic {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [i32; 4],
}

const _: () = assert!(size_of::<Heuristic>() == 96);

/// The functions of the library.
#[derive(Clone, Copy, Debug)]
pub(super) struct Api {
    pub create: Create,
    pub destroy: Destroy,
    pub version: unsafe extern "C" fn() -> usize,
    status_name: Option<StatusName>,
    create_operation: unsafe extern "C" fn(*mut Opaque, i32, i32) -> Status,
    set_operation: SetAttribute,
    destroy_operation: Destroy,
    create_layout: unsafe extern "C" fn(*mut Opaque, i32, u64, u64, i64) -> Status,
    set_layout: SetAttribute,
    destroy_layout: Destroy,
    create_preference: Create,
    set_preference: SetAttribute,
    destroy_preference: Destroy,
    heuristic: GetHeuristic,
    pub matmul: Matmul,
}

impl Api {
    pub fn of(functions: &Functions<'_>) -> Result<Self, CublasError> {
        Ok(Self {
            create: functions.get("cublasLtCreate")?,
            destroy: functions.get("cublasLtDestroy")?,
            version: functions.get("cublasLtGetVersion")?,
            status_name: functions.get("cublasLtGetStatusName").ok(),
            create_operation: functions.get("cublasLtMatmulDescCreate")?,
            set_operation: functions.get("cublasLtMatmulDescSetAttribute")?,
            destroy_operation: functions.get("cublasLtMatmulDescDestroy")?,
            create_layout: functions.get("cublasLtMatrixLayoutCreate")?,
            set_layout: functions.get("cublasLtMatrixLayoutSetAttribute")?,
            destroy_layout: functions.get("cublasLtMatrixLayoutDestroy")?,
            create_preference: functions.get("cublasLtMatmulPreferenceCreate")?,
            set_preference: functions.get("cublasLtMatmulPreferenceSetAttribute")?,
            destroy_preference: functions.get("cublasLtMatmulPreferenceDestroy")?,
            heuristic: functions.get("cublasLtMatmulAlgoGetHeuristic")?,
            matmul: functions.get("cublasLtMatmul")?,
        })
    }

    pub fn check(&self, call: &'static str, status: Status) -> Result<(), CublasError> {
        check(self.status_name, call, status)
    }

    /// Keeps what a call created, if it succeeded.
    fn created(
        &self,
        call: &'static str,
        destroy: Destroy,
        create: impl FnOnce(*mut Opaque) -> Status,
    ) -> Result<Owned, CublasError> {
        let mut raw = ptr::null_mut();
        self.check(call, create(&mut raw))?;
        Ok(Owned { raw, destroy })
    }

    /// Sets an attribute; `T` is its documented type.
    fn set<T>(
        &self,
        (call, set): (&'static str, SetAttribute),
        of: &Owned,
        attribute: i32,
        value: T,
    ) -> Result<(), CublasError> {
        // SAFETY: the description is alive, and the library copies a value of this size.
        let status = unsafe { set(of.raw, attribute, (&raw const value).cast(), size_of::<T>()) };
        self.check(call, status)
    }

    /// A matrix of columns of `rows` elements, one behind the other, and as many of it as the batch.
    fn matrix(&self, element: i32, [rows, columns, batch]: [i32; 3]) -> Result<Owned, CublasError> {
        let [r, c] = [rows, columns].map(i64::from);
        let matrix = self.created("cublasLtMatrixLayoutCreate", self.destroy_layout, |made| {
            // SAFETY: `made` is writable.
            unsafe { (self.create_layout)(made, element, r as u64, c as u64, r) }
        })?;
        let set = ("cublasLtMatrixLayoutSetAttribute", self.set_layout);
        self.set(set, &matrix, layout::BATCH_COUNT, batch)?;
        self.set(set, &matrix, layout::STRIDED_BATCH_OFFSET, r * c)?;
        Ok(matrix)
    }

    /// A product of `[m, n, k, batch]`, with the device addresses of both scales.
    pub fn describe(
        &self,
        [m, n, k, batch]: [i32; 4],
        [a_scale, b_scale]: [u64; 2],
        sums: E4m3Sums,
    ) -> Result<Described, CublasError> {
        let operation =
            self.created("cublasLtMatmulDescCreate", self.destroy_operation, |made| {
                // SAFETY: `made` is writable.
                unsafe { (self.create_operation)(made, CUBLAS_COMPUTE_32F, CUDA_R_32F) }
            })?;
        let set = ("cublasLtMatmulDescSetAttribute", self.set_operation);
        self.set(set, &operation, operation::TRANSA, CUBLAS_OP_T)?;
        self.set(set, &operation, operation::TRANSB, CUBLAS_OP_N)?;
        self.set(set, &operation, operation::A_SCALE_POINTER, a_scale)?;
        self.set(set, &operation, operation::B_SCALE_POINTER, b_scale)?;
        self.set(set, &operation, operation::FAST_ACCUM, i8::from(sums == E4m3Sums::Fast))?;
        Ok(Described {
            operation,
            a: self.matrix(CUDA_R_8F_E4M3, [k, m, batch])?,
            b: self.matrix(CUDA_R_8F_E4M3, [k, n, batch])?,
            c: self.matrix(CUDA_R_16F, [m, n, batch])?,
        })
    }

    /// Describes the resources of an algorithm: our workspace, and addresses that are multiples of
    /// `alignment`.
    fn preference(&self, alignment: u32) -> Result<Owned, CublasError> {
        let preference =
            self.created("cublasLtMatmulPreferenceCreate", self.destroy_preference, |made| {
                // SAFETY: `made` is writable.
                unsafe { (self.create_preference)(made) }
            })?;
        let set = ("cublasLtMatmulPreferenceSetAttribute", self.set_preference);
        let workspace = WORKSPACE_BYTES as u64;
        self.set(set, &preference, preference::MAX_WORKSPACE_BYTES, workspace)?;
        for attribute in preference::MIN_ALIGNMENT_BYTES {
            self.set(set, &preference, attribute, alignment)?;
        }
        Ok(preference)
    }

    /// The library's choice of an algorithm; none where it has none, with the reason.
    pub fn choose(
        &self,
        handle: Handle,
        product: &Described,
        alignment: u32,
    ) -> Result<Result<Algorithm, String>, CublasError> {
        let preference = self.preference(alignment)?;
        let Described { operation, a, b, c } = product;
        let (mut found, mut count) = (Heuristic::default(), 0);
        // SAFETY: handle and descriptions are alive; there is room for the one result that is asked
        // for and for the number of results.
        let status = unsafe {
            let [operation, a, b, c, preference] = [operation, a, b, c, &preference].map(|o| o.raw);
            (self.heuristic)(handle, operation, a, b, c, c, preference, 1, &mut found, &mut count)
        };
        let call = "cublasLtMatmulAlgoGetHeuristic";
        match self.check(call, status).and_then(|()| self.check(call, found.state)) {
            Ok(()) if count > 0 => Ok(Ok(found.algorithm)),
            Ok(()) => Ok(Err(format!("{call} found none"))),
            Err(error @ CublasError::Call { status: CUBLAS_STATUS_NOT_SUPPORTED, .. }) => {
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }
}

/// A description, destroyed when it is dropped.
#[derive(Debug)]
pub(super) struct Owned {
    pub raw: Opaque,
    destroy: Destroy,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the description was created by the same library, which is open, and is not used again.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// The descriptions of a product.
#[derive(Debug)]
pub(super) struct Described {
    pub operation: Owned,
    pub a: Owned,
    pub b: Owned,
    pub c: Owned,
}

#[cfg(test)]
mod tests;
