//! Memory borrowed from Python (buffer protocol, DLPack, addresses) and region memory lent to
//! Python.

use crate::dlpack::Tensor;
use crate::errors::wrong;
use crate::numbers::collect;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Memory that Python lends for one call, in pieces.
pub struct Lent(Vec<Piece>);

struct Piece {
    address: *mut u8,
    len: usize,
    /// Type of the elements, if they are whole numbers or booleans.
    integer: Option<Integer>,
    /// Keeps the memory at `address` alive.
    _keeper: Keeper,
}

/// A type of whole numbers, in this machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    pub signed: bool,
    pub bytes: usize,
}

impl Integer {
    /// The type of a buffer's elements, from its format in the language of Python's `struct`.
    fn of_format(buffer: &PyUntypedBuffer) -> Option<Self> {
        let native = if cfg!(target_endian = "little") { b'<' } else { b'>' };
        let letter = match buffer.format().to_bytes() {
            [letter] => *letter,
            [b'@' | b'=', letter] => *letter,
            [order, letter] if *order == native => *letter,
            _ => return None,
        };
        let signed = match letter {
            b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => true,
            // A boolean is a byte of 0 or 1.
            b'?' | b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => false,
            _ => return None,
        };
        Some(Self { signed, bytes: buffer.item_size() })
    }
}

enum Keeper {
    Buffer(#[allow(dead_code, reason = "its drop releases the buffer")] PyUntypedBuffer),
    Tensor(#[allow(dead_code, reason = "its drop releases the tensor")] Tensor),
    /// Nothing: callers guarantee that an address stays valid during the call.
    Caller,
}

impl Piece {
    /// Memory by the buffer protocol, by DLPack (on the CPU, contiguous), or by address and length.
    fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        if let Ok(buffer) = PyUntypedBuffer::get(object) {
            if !buffer.is_c_contiguous() {
                return Err(PyBufferError::new_err("the buffer is not contiguous"));
            }
            if writable && buffer.readonly() {
                return Err(PyBufferError::new_err("the buffer is read-only"));
            }
            let (address, len) = (buffer.buf_ptr().cast(), buffer.len_bytes());
            let integer = Integer::of_format(&buffer);
            return Self { address, len, integer, _keeper: Keeper::Buffer(buffer) }.checked();
        }
        if let Ok((address, len)) = object.extract::<(usize, usize)>() {
            if address == 0 {
                return Err(wrong(format!("{len} bytes at address 0x0")));
            }
            let address = std::ptr::with_exposed_provenance_mut(address);
            return Self { address, len, integer: None, _keeper: Keeper::Caller }.checked();
        }
        let tensor = Tensor::take(object)?;
        let (address, len) = tensor.place()?;
        let integer = tensor.integer();
        Self { address, len, integer, _keeper: Keeper::Tensor(tensor) }.checked()
    }

    /// Refuses impossible memory: a slice has at most `isize::MAX` bytes and must not wrap around.
    fn checked(self) -> PyResult<Self> {
        let (address, len) = (self.address.addr(), self.len);
        if len > 0 && (address == 0 || len > isize::MAX as usize || address.checked_add(len).is_none()) {
            return Err(wrong(format!("{len} bytes at address {address:#x} cannot be memory")));
        }
        Ok(self)
    }
}

impl Lent {
    /// Borrows `parts`: one piece of memory, or a sequence of pieces.
    ///
    /// With `writable`, each piece must be writable, and the pieces must not overlap.
    pub fn take(parts: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let is_one = PyUntypedBuffer::get(parts).is_ok()
            || parts.extract::<(usize, usize)>().is_ok()
            || parts.hasattr("__dlpack__")?;
        let lent = Self(match is_one {
            true => vec![Piece::of(parts, writable)?],
            false => collect(parts, |part| Piece::of(part, writable))?,
        });
        if writable {
            lent.lies_apart()?;
        }
        Ok(lent)
    }

    /// Refuses overlapping parts: `parts_mut` makes an exclusive slice of each.
    fn lies_apart(&self) -> PyResult<()> {
        let mut places: Vec<(usize, usize)> =
            self.0.iter().filter(|part| part.len > 0).map(|part| (part.address.addr(), part.len)).collect();
        places.sort_unstable();
        match places.array_windows().find(|[(left, len), (right, _)]| left + len > *right) {
            Some([(left, len), (right, _)]) => {
                Err(wrong(format!("the {len} writable bytes at {left:#x} overlap those at {right:#x}")))
            }
            None => Ok(()),
        }
    }

    /// Bytes of all pieces; `None` on overflow.
    pub fn len(&self) -> Option<u64> {
        self.0.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.len as u64))
    }

    /// Type of the elements, if this is one piece of whole numbers.
    pub fn integer(&self) -> Option<Integer> {
        match &self.0[..] {
            [piece] => piece.integer,
            _ => None,
        }
    }

    /// Address and length of the memory, if it is one piece.
    pub fn place(&self) -> Option<(*mut u8, usize)> {
        match &self.0[..] {
            [piece] => Some((piece.address, piece.len)),
            _ => None,
        }
    }

    /// Refuses parts that do not concatenate to a payload of `wanted` bytes.
    pub fn fit(&self, wanted: u64) -> PyResult<()> {
        let count = self.0.len();
        let ragged = self.0.iter().take(count.saturating_sub(1)).any(|part| !part.len.is_multiple_of(64));
        if ragged {
            return Err(wrong("the length of each part but the last must be a multiple of 64 bytes"));
        }
        match self.len() {
            Some(found) if found == wanted => {}
            Some(found) => return Err(wrong(format!("{found} bytes in {count} parts, but a block has {wanted}"))),
            None => return Err(wrong(format!("{count} parts are more than memory, but a block has {wanted} bytes"))),
        }
        Ok(())
    }

    /// The nonempty parts, to read from.
    pub fn parts(&self) -> Vec<&[u8]> {
        self.0
            .iter()
            .filter(|part| part.len > 0)
            // SAFETY: `Piece::checked` tested the range: not null, at most `isize::MAX` bytes. `_keeper`
            // keeps buffers and tensors alive. Callers of the Python methods guarantee that addresses
            // are valid, and that nothing writes the memory during the call (`_native.pyi`).
            .map(|part| unsafe { std::slice::from_raw_parts(part.address, part.len) })
            .collect()
    }

    /// The nonempty parts, to write to.
    pub fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        self.0
            .iter()
            .filter(|part| part.len > 0)
            // SAFETY: the ranges are valid as in `parts`. `Piece::of` refused read-only buffers,
            // and `take` refused overlapping pieces. Callers of the Python methods guarantee that
            // nothing else uses the memory during the call (`_native.pyi`).
            .map(|part| unsafe { std::slice::from_raw_parts_mut(part.address, part.len) })
            .collect()
    }
}

/// Lends `len` bytes at `address` through a `Py_buffer`, which keeps `owner` alive.
///
/// # Safety
/// Callers must guarantee that `view` is the argument of a `__getbuffer__` call, and that the
/// memory stays valid while `owner` lives.
pub unsafe fn lend(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    (address, len): (*mut u8, u64),
    readonly: bool,
    flags: c_int,
) -> PyResult<()> {
    // SAFETY: `view` is a valid `Py_buffer` by the contract of this function. `PyBuffer_FillInfo`
    // takes its own reference to `owner`, which keeps the memory valid by the same contract.
    let result = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address.cast(), len as ffi::Py_ssize_t, readonly.into(), flags)
    };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
