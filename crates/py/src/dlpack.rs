//! Tensors of other libraries by DLPack: address and length of contiguous tensors on the CPU.

use crate::buffers::Integer;
use crate::errors::wrong;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// `DLManagedTensor` of DLPack before version 1. Libraries return it unless a version is requested.
#[repr(C)]
struct Managed {
    data: *mut c_void,
    device_kind: i32,
    device_number: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
    _context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// Most dimensions of a tensor in any library.
const DIMENSIONS_MAX: usize = 64;

/// Device kinds of memory that the CPU can access: `kDLCPU`, and page-locked `kDLCUDAHost`.
const PROCESSOR: [i32; 2] = [1, 3];

/// Codes of whole numbers: `kDLInt`, `kDLUInt`, and `kDLBool`, whose elements are bytes of 0 or 1.
const SIGNED: u8 = 0;
const UNSIGNED: u8 = 1;
const BOOLEAN: u8 = 6;

const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";

/// A borrowed tensor. Its drop calls the deleter.
pub struct Tensor(NonNull<Managed>);

impl Tensor {
    /// Takes the tensor of an object with `__dlpack__`.
    pub fn take(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let kind = object.get_type();
        let lend = object.getattr("__dlpack__").map_err(|_| {
            PyTypeError::new_err(format!("{kind} is not memory: give a buffer, a tensor or (address, length)"))
        })?;
        let capsule = lend.call0()?.cast_into::<PyCapsule>()?;
        let tensor = capsule.pointer_checked(Some(NAME))?.cast();
        // The rename transfers ownership of the tensor to this code.
        // SAFETY: `capsule` is a live `PyCapsule`, and `USED` is a static C string.
        let renamed = unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), USED.as_ptr()) };
        if renamed != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self(tensor))
    }

    /// Type of the elements, if they are whole numbers or booleans.
    pub fn integer(&self) -> Option<Integer> {
        // SAFETY: DLPack defines that a capsule with this name points to a `DLManagedTensor`. It
        // stays valid until its deleter runs, which only `drop` calls.
        let tensor = unsafe { self.0.as_ref() };
        let is_whole = tensor.lanes == 1 && tensor.bits.is_multiple_of(8);
        match tensor.code {
            SIGNED if is_whole => Some(Integer { signed: true, bytes: usize::from(tensor.bits / 8) }),
            UNSIGNED | BOOLEAN if is_whole => Some(Integer { signed: false, bytes: usize::from(tensor.bits / 8) }),
            _ => None,
        }
    }

    /// Address and length in bytes. Fails for tensors on other devices or with gaps.
    pub fn place(&self) -> PyResult<(*mut u8, usize)> {
        // SAFETY: DLPack defines that a capsule with this name points to a `DLManagedTensor`. It
        // stays valid until its deleter runs, which only `drop` calls.
        let tensor = unsafe { self.0.as_ref() };
        if !PROCESSOR.contains(&tensor.device_kind) {
            return Err(PyBufferError::new_err(format!(
                "the tensor is on device {}:{}, which the CPU cannot access",
                tensor.device_kind, tensor.device_number
            )));
        }
        let dimensions = usize::try_from(tensor.dimensions).ok().filter(|&dimensions| dimensions <= DIMENSIONS_MAX);
        let dimensions = dimensions.filter(|&dimensions| dimensions == 0 || !tensor.shape.is_null());
        let wrong_shape = || wrong(format!("a tensor of {} dimensions, or of impossible lengths", tensor.dimensions));
        let dimensions = dimensions.ok_or_else(wrong_shape)?;
        let numbers = |at: *const i64| {
            // SAFETY: DLPack defines that `shape` and `strides` have `dimensions` numbers unless
            // null. The checks above and below exclude null.
            (0..dimensions).map(move |index| unsafe { at.add(index).read() })
        };
        // Handle lengths of 0 first: then the product of the others may overflow.
        let lengths: Option<Vec<u64>> = numbers(tensor.shape).map(|length| u64::try_from(length).ok()).collect();
        let lengths = lengths.ok_or_else(wrong_shape)?;
        let product = |lengths: &[u64]| lengths.iter().try_fold(1_u64, |product, &length| product.checked_mul(length));
        let elements = if lengths.contains(&0) { 0 } else { product(&lengths).ok_or_else(wrong_shape)? };
        if elements > 0 && !tensor.strides.is_null() {
            let strides: Vec<i64> = numbers(tensor.strides).collect();
            for (dimension, (&length, stride)) in lengths.iter().zip(strides).enumerate() {
                // No overflow: a factor of the number of elements, which was computed above.
                let expected = product(&lengths[dimension + 1..]);
                if length > 1 && u64::try_from(stride).ok() != expected {
                    return Err(PyBufferError::new_err("the tensor is not contiguous"));
                }
            }
        }
        let bits = u64::from(tensor.bits) * u64::from(tensor.lanes);
        if !bits.is_multiple_of(8) {
            return Err(wrong(format!("a tensor has elements of {bits} bits, which is not a multiple of 8")));
        }
        let len = elements.checked_mul(bits / 8).and_then(|bytes| usize::try_from(bytes).ok());
        let offset = usize::try_from(tensor.byte_offset).ok().filter(|&offset| {
            // A nonzero offset needs memory, and must not wrap around.
            let fits = offset <= isize::MAX as usize && tensor.data.addr().checked_add(offset).is_some();
            offset == 0 || (fits && !tensor.data.is_null())
        });
        let (Some(len), Some(offset)) = (len, offset) else { return Err(wrong("a tensor has more than memory")) };
        Ok((tensor.data.cast::<u8>().wrapping_add(offset), len))
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: `take` renamed the capsule, so this value owns the tensor and is the only one to
        // call the deleter. `drop` runs once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}
