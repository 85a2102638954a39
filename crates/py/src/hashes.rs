//! Names of blocks in one object, because a prompt has thousands of them.

use crate::errors::wrong;
use crate::numbers::collect;
use cenote_base::{BlockHash, ChainHasher};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PySlice, PyTuple, PyType};
use std::borrow::Cow;

/// Names of blocks, in order.
#[pyclass(frozen, module = "cenote")]
pub struct Hashes(pub Vec<BlockHash>);

/// 16 bytes as an argument.
#[derive(Clone, Copy)]
pub enum Given {
    /// A name that a namespace made: an item of `Hashes`.
    Name(BlockHash),
    /// Any other bytes: a key of the caller. Equal keys of two namespaces are two names.
    Key([u8; 16]),
}

impl Given {
    /// The name of the block in the namespace of this hasher.
    pub fn name(self, hasher: &ChainHasher) -> BlockHash {
        match self {
            Self::Name(name) => name,
            Self::Key(key) => hasher.alias(&key),
        }
    }
}

/// Names as an argument: `Hashes`, or a sequence of 16-byte strings.
pub enum AnyHashes<'py> {
    Ours(PyRef<'py, Hashes>),
    Theirs(Vec<Given>),
}

impl AnyHashes<'_> {
    /// The names of the blocks in the namespace of this hasher.
    pub fn names(&self, hasher: &ChainHasher) -> Cow<'_, [BlockHash]> {
        match self {
            Self::Ours(hashes) => Cow::Borrowed(&hashes.0),
            Self::Theirs(given) => given.iter().map(|given| given.name(hasher)).collect(),
        }
    }
}

/// The class of names: bytes that a namespace made, so that they differ from the keys of callers.
pub fn name_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let make = || {
        let members = PyDict::new(py);
        members.set_item("__doc__", "Name of a block, of 16 bytes, that a namespace made.")?;
        members.set_item("__module__", "cenote")?;
        members.set_item("__slots__", PyTuple::empty(py))?;
        let made = py.get_type::<PyType>().call1(("BlockName", (py.get_type::<PyBytes>(),), members))?;
        Ok::<_, PyErr>(made.cast_into::<PyType>()?.unbind())
    };
    Ok(CLASS.get_or_try_init(py, make)?.bind(py))
}

/// A name as an object of Python.
pub fn named<'py>(py: Python<'py>, name: &BlockHash) -> PyResult<Bound<'py, PyAny>> {
    name_class(py)?.call1((PyBytes::new(py, &name.0),))
}

impl<'a, 'py> FromPyObject<'a, 'py> for AnyHashes<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(ours) = object.cast::<Hashes>() {
            return Ok(Self::Ours(ours.borrow()));
        }
        collect(&object, one).map(Self::Theirs)
    }
}

/// One name or key from a 16-byte string. Refuses zeros.
pub fn one(object: &Bound<'_, PyAny>) -> PyResult<Given> {
    let bytes = object.cast::<PyBytes>()?.as_bytes();
    let hash: [u8; 16] =
        bytes.try_into().map_err(|_| wrong(format!("a block hash has 16 bytes, but this one has {}", bytes.len())))?;
    if hash == [0; 16] {
        return Err(wrong("a block hash must not be zero"));
    }
    Ok(if object.is_instance(name_class(object.py())?)? { Given::Name(BlockHash(hash)) } else { Given::Key(hash) })
}

#[pymethods]
impl Hashes {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let range = slice.indices(self.0.len() as isize)?;
            let at = |number: usize| self.0[(range.start + number as isize * range.step) as usize];
            let part = (0..range.slicelength).map(at).collect();
            return Ok(Bound::new(py, Self(part))?.into_any());
        }
        let index: isize = index.extract()?;
        let from_start = if index < 0 { index + self.0.len() as isize } else { index };
        let hash = usize::try_from(from_start).ok().and_then(|at| self.0.get(at));
        let hash = hash.ok_or_else(|| PyIndexError::new_err(format!("{index} of {} hashes", self.0.len())))?;
        named(py, hash)
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn __add__(&self, other: &Self) -> Self {
        Self([self.0.as_slice(), &other.0].concat())
    }

    fn __repr__(&self) -> String {
        match self.0.as_slice() {
            [] => "Hashes()".to_owned(),
            [first, ..] => format!("Hashes({first}…, {} in all)", self.0.len()),
        }
    }

    /// All names concatenated, 16 bytes each.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.iter().flat_map(|hash| hash.0).collect::<Vec<u8>>().as_slice())
    }

    /// The inverse of `tobytes`.
    #[staticmethod]
    fn frombytes(data: &[u8]) -> PyResult<Self> {
        let (hashes, rest) = data.as_chunks::<16>();
        if !rest.is_empty() || hashes.contains(&[0; 16]) {
            return Err(wrong("the bytes are not block hashes: each hash has 16 bytes and is not zero"));
        }
        Ok(Self(hashes.iter().copied().map(BlockHash).collect()))
    }
}
