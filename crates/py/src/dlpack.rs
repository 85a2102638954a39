//! Tensors of other libraries by DLPack, on the processor and contiguous: an address and a length.

use crate::errors::wrong;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// `DLManagedTensor` of DLPack before version 1, which every library still gives to those who do not ask for more.
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

/// Most dimensions that any library has.
const DIMENSIONS_MAX: usize = 64;

/// Memory that the processor reaches: its own, and such as a GPU has been told of.
const PROCESSOR: [i32; 2] = [1, 3];

const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";

/// A tensor that was lent.
pub struct Tensor(NonNull<Managed>);

impl Tensor {
    /// Asks an object for its tensor.
    pub fn take(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let kind = object.get_type();
        let lend = object.getattr("__dlpack__").map_err(|_| {
            PyTypeError::new_err(format!("{kind} is no memory: neither a buffer, nor a tensor, nor (address, length)"))
        })?;
        let capsule = lend.call0()?.cast_into::<PyCapsule>()?;
        let tensor = capsule.pointer_checked(Some(NAME))?.cast();
        // From here on it is ours to give back.
        // SAFETY: the capsule is a live object, and the new name lives for ever.
        let renamed = unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), USED.as_ptr()) };
        if renamed != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self(tensor))
    }

    /// Where it lies, and how many bytes it has.
    pub fn place(&self) -> PyResult<(*mut u8, usize)> {
        // SAFETY: a capsule of this name has such a tensor, which is there until its deleter is called.
        let tensor = unsafe { self.0.as_ref() };
        if !PROCESSOR.contains(&tensor.device_kind) {
            return Err(PyBufferError::new_err(format!(
                "the tensor lies on device {}:{}, where the processor cannot reach it",
                tensor.device_kind, tensor.device_number
            )));
        }
        let dimensions = usize::try_from(tensor.dimensions).ok().filter(|&dimensions| dimensions <= DIMENSIONS_MAX);
        let dimensions = dimensions.filter(|&dimensions| dimensions == 0 || !tensor.shape.is_null());
        let wrong_shape =
            || wrong(format!("a tensor of {} dimensions, or of lengths that no memory has", tensor.dimensions));
        let dimensions = dimensions.ok_or_else(wrong_shape)?;
        let numbers = |at: *const i64| {
            // SAFETY: shape, and strides where there are any, have a number for each dimension.
            (0..dimensions).map(move |index| unsafe { at.add(index).read() })
        };
        // Lengths of 0 first: then the others do not matter.
        let lengths: Option<Vec<u64>> = numbers(tensor.shape).map(|length| u64::try_from(length).ok()).collect();
        let lengths = lengths.ok_or_else(wrong_shape)?;
        let product = |lengths: &[u64]| lengths.iter().try_fold(1_u64, |product, &length| product.checked_mul(length));
        let elements = if lengths.contains(&0) { 0 } else { product(&lengths).ok_or_else(wrong_shape)? };
        if elements > 0 && !tensor.strides.is_null() {
            let strides: Vec<i64> = numbers(tensor.strides).collect();
            for (dimension, (&length, stride)) in lengths.iter().zip(strides).enumerate() {
                // No more than all elements, whose product has been checked.
                let expected = product(&lengths[dimension + 1..]);
                if length > 1 && u64::try_from(stride).ok() != expected {
                    return Err(PyBufferError::new_err("the tensor is not contiguous"));
                }
            }
        }
        let bits = u64::from(tensor.bits) * u64::from(tensor.lanes);
        if !bits.is_multiple_of(8) {
            return Err(wrong(format!("a tensor of elements of {bits} bits, which are no bytes")));
        }
        let len = elements.checked_mul(bits / 8).and_then(|bytes| usize::try_from(bytes).ok());
        let offset = usize::try_from(tensor.byte_offset).ok().filter(|&offset| {
            // An offset is within memory that is there.
            let fits = offset <= isize::MAX as usize && tensor.data.addr().checked_add(offset).is_some();
            offset == 0 || (fits && !tensor.data.is_null())
        });
        let (Some(len), Some(offset)) = (len, offset) else { return Err(wrong("a tensor of more than memory")) };
        Ok((tensor.data.cast::<u8>().wrapping_add(offset), len))
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: whoever takes a tensor out of its capsule calls its deleter once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}
