//! Rows of a model's tables for token ids.

use crate::errors::wrong;
use crate::numbers::integers;
use cenote_engram::{NgramConfig, TokenMap, Tokens};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyByteArray, PyMemoryView, PyTuple};

/// Row numbers of token ids, as `cenote engram rows` computes them.
#[pyclass(frozen, module = "cenote")]
pub struct Addresses {
    inner: cenote_engram::Addresses,
}

/// Bytes, or a text.
#[derive(FromPyObject)]
enum Content {
    Text(PyBackedStr),
    Bytes(PyBackedBytes),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

fn tokens_of(what: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let number = |(at, token): (usize, i64)| {
        u32::try_from(token).map_err(|_| wrong(format!("{what}: {token} at place {at} is no token")))
    };
    integers(object)?.into_iter().enumerate().map(number).collect()
}

#[pymethods]
impl Addresses {
    #[new]
    #[pyo3(signature = (config, *, tokenizer=None, token_map=None))]
    fn new(
        py: Python<'_>,
        config: Content,
        tokenizer: Option<Content>,
        token_map: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let config = NgramConfig::parse(config.bytes()).map_err(|error| wrong(error.to_string()))?;
        let map = match (&tokenizer, token_map) {
            (Some(_), Some(_)) => return Err(wrong("give a tokenizer or a token map, not both")),
            (Some(json), None) => Some(py.detach(|| TokenMap::of_tokenizer(json.bytes()))),
            (None, Some(ids)) => Some(TokenMap::of_ids(tokens_of("token_map", ids)?)),
            (None, None) => None,
        };
        let map = map.transpose().map_err(|error| wrong(error.to_string()))?;
        let inner = cenote_engram::Addresses::new(config, map).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { inner })
    }

    /// Rows of tokens of one or several sequences: 64-bit numbers of shape `(tokens, columns)`.
    #[pyo3(signature = (tokens, *, starts=None, lookback=None, masked=None, layer=None))]
    fn rows<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        starts: Option<&Bound<'py, PyAny>>,
        lookback: Option<&Bound<'py, PyAny>>,
        masked: Option<&Bound<'py, PyAny>>,
        layer: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tokens = tokens_of("tokens", tokens)?;
        let masked =
            masked.map(integers).transpose()?.map(|flags| flags.iter().map(|&flag| flag != 0).collect::<Vec<_>>());
        if let Some(flags) = masked.as_ref().filter(|flags| flags.len() != tokens.len()) {
            return Err(wrong(format!("{} tokens, and {} flags of masked ones", tokens.len(), flags.len())));
        }
        let starts = starts.map(integers).transpose()?.unwrap_or_else(|| vec![0, tokens.len() as i64]);
        let is_whole = starts.first() == Some(&0) && starts.last() == Some(&(tokens.len() as i64));
        if !is_whole || !starts.is_sorted() {
            return Err(wrong(format!("starts rises from 0 to the number of tokens, {}", tokens.len())));
        }
        let back = self.inner.config().orders();
        let lookback = lookback.map(integers).transpose()?;
        if let Some(before) = lookback.as_ref().filter(|before| before.len() != (starts.len() - 1) * back) {
            let (sequences, count) = (starts.len() - 1, before.len());
            return Err(wrong(format!("lookback has {count} tokens; {sequences} sequences need {back} each")));
        }
        let columns = self.columns_of(layer)?;
        let rows = py.detach(|| self.all(&tokens, &starts, lookback.as_deref(), masked.as_deref())).map_err(wrong)?;
        let (all, width) = (self.inner.columns(), columns.len());
        let bytes = tokens.len() * width * 8;
        let out = PyByteArray::new_with(py, bytes, |out| {
            let to = out.as_chunks_mut::<8>().0.iter_mut();
            let from = rows.chunks_exact(all).flat_map(|rows| &rows[columns.clone()]);
            to.zip(from).for_each(|(to, row)| *to = row.to_ne_bytes());
            Ok(())
        })?;
        let view = PyMemoryView::from(&out)?;
        match tokens.is_empty() {
            // A view of several dimensions has at least one element.
            true => view.call_method1("cast", ("q",)),
            false => view.call_method1("cast", ("q", PyTuple::new(py, [tokens.len(), width])?)),
        }
    }

    /// Layers with tables, as the model's configuration counts them.
    #[getter]
    fn layers(&self) -> Vec<u64> {
        self.inner.config().layer_ids.clone()
    }

    /// Rows of a token in one layer.
    #[getter]
    const fn columns(&self) -> usize {
        self.inner.config().rows_per_token()
    }

    /// Tokens before a sequence's first one that its rows depend on.
    #[getter]
    const fn lookback(&self) -> usize {
        self.inner.config().orders()
    }

    /// Rows of each layer's table that can be read.
    #[getter]
    fn table_rows(&self) -> Vec<u64> {
        self.inner.layers().iter().map(|layer| layer.rows).collect()
    }
}

impl Addresses {
    fn columns_of(&self, layer: Option<u64>) -> PyResult<std::ops::Range<usize>> {
        let Some(layer) = layer else { return Ok(0..self.inner.columns()) };
        let layers = &self.inner.config().layer_ids;
        let at = layers.iter().position(|&each| each == layer);
        let at = at.ok_or_else(|| wrong(format!("layer {layer} has no table; the layers are {layers:?}")))?;
        let width = self.inner.config().rows_per_token();
        Ok(at * width..(at + 1) * width)
    }

    fn all(
        &self,
        tokens: &[u32],
        starts: &[i64],
        lookback: Option<&[i64]>,
        masked: Option<&[bool]>,
    ) -> Result<Vec<u64>, String> {
        let back = self.inner.config().orders();
        let mut rows = Vec::new();
        for (sequence, ends) in starts.array_windows::<2>().enumerate() {
            let [from, to] = ends.map(|end| end as usize);
            let mut history = self.inner.start();
            if let Some(lookback) = lookback {
                // The newest is first; -1 is before the start.
                let before = &lookback[sequence * back..(sequence + 1) * back];
                let number = |(at, &token): (usize, &i64)| {
                    let at = sequence * back + at;
                    u32::try_from(token).map_err(|_| format!("lookback: {token} at place {at} is no token"))
                };
                let before = before.iter().enumerate().take_while(|&(_, &token)| token >= 0).map(number);
                let mut before: Vec<u32> = before.collect::<Result<_, String>>()?;
                before.reverse();
                self.inner
                    .skip(&mut history, before.as_slice().into())
                    .map_err(|error| format!("lookback: {error}"))?;
            }
            let run = Tokens { ids: &tokens[from..to], masked: masked.map(|masked| &masked[from..to]) };
            self.inner.rows(&mut history, run, &mut rows).map_err(|error| error.to_string())?;
        }
        Ok(rows)
    }
}
