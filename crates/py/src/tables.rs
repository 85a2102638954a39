//! N-gram embedding tables of a region: rows into any writable memory.

use crate::buffers::Lent;
use crate::clock;
use crate::creation::keys;
use crate::errors::{CenoteError, guarded, of_gather, of_opening, of_pool, of_table, wrong};
use crate::numbers::{Items, integers};
use crate::region::{Open, Region, parse, seconds, source};
use cenote_base::HostId;
use cenote_mem::MapOptions;
use cenote_mem::fork::ProcessStamp;
use cenote_mem::numa;
use cenote_pool::{AttachOptions, HostPool, Pool, open_region};
use cenote_tables::checkpoint::{model_tables, tensor_table};
use cenote_tables::safetensors::TensorRows;
use cenote_tables::{Gatherer, HostTable, LoadOptions, Opening, Outcome, RowSource};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyList};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// A table until the region is closed.
pub type TableSlot = RwLock<Option<Arc<HostTable>>>;

/// Most threads of a table. More would not read memory faster.
const THREADS_MAX: usize = 64;
/// Threads by default: a few cores reach the bandwidth of one memory channel.
const THREADS: usize = 4;

/// Longest wait for another loader.
const WAIT_MAX: Duration = Duration::from_secs(1 << 32);

/// A region that this process has joined, or the name of one that a call joins for its duration.
#[derive(FromPyObject)]
pub enum At<'py> {
    Open(PyRef<'py, Region>),
    Name(String),
}

impl At<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Open(region) => &region.open.name,
            Self::Name(name) => name,
        }
    }

    fn host(&self, host_slot: u8) -> HostId {
        match self {
            Self::Open(region) => region.open.host,
            Self::Name(_) => HostId(host_slot),
        }
    }

    /// The pool of the open region, or of a worker of its own.
    fn pool(&self, py: Python<'_>, host_slot: u8, worker: &str) -> PyResult<HostPool> {
        match self {
            Self::Open(region) => region.open.pool(),
            Self::Name(_) => self.join(py, host_slot, worker),
        }
    }

    /// The pool of a worker of its own.
    fn join(&self, py: Python<'_>, host_slot: u8, worker: &str) -> PyResult<HostPool> {
        let (name, source) = (self.name(), source(self.name())?);
        let fabric = py.detach(|| open_region(&source, &MapOptions::default()));
        let fabric = fabric.map_err(|error| of_opening(name, &error))?;
        let keys = py.detach(|| keys(None))?;
        let options = AttachOptions { host: self.host(host_slot), keys, ..AttachOptions::named(worker) };
        py.detach(|| Pool::attach(fabric, &options)).map_err(|error| of_pool(name, &error))
    }
}

/// How rows arrive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Stored,
    Bf16,
}

impl Form {
    fn of(dtype: &str) -> PyResult<Self> {
        match dtype {
            "stored" => Ok(Self::Stored),
            "bfloat16" => Ok(Self::Bf16),
            other => Err(wrong(format!("dtype is {other:?}; it may be stored or bfloat16"))),
        }
    }

    fn row_bytes(self, table: &HostTable) -> usize {
        match self {
            Self::Stored => table.row_bytes(),
            Self::Bf16 => table.row_values() * 2,
        }
    }
}

/// An open table.
#[pyclass(frozen, module = "cenote")]
pub struct Table {
    open: Arc<Open>,
    table: Arc<TableSlot>,
    name: String,
    gatherer: ManuallyDrop<Arc<Gatherer>>,
    stamp: ProcessStamp,
}

impl Drop for Table {
    fn drop(&mut self) {
        // A forked child has none of the threads, and one of them may have held a lock at the fork.
        if !self.stamp.is_inherited() {
            // SAFETY: nothing uses the field after `drop`, which runs once.
            unsafe { ManuallyDrop::drop(&mut self.gatherer) };
        }
    }
}

impl Table {
    fn get(&self) -> PyResult<Arc<HostTable>> {
        // Fails in a forked child and after `close`, with the region's message.
        self.open.pool()?;
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.clone().ok_or_else(|| CenoteError::new_err(format!("{}: the region is closed", self.open.name)))
    }

    /// Row numbers from Python, all of them rows of the table.
    fn numbers(table: &HostTable, rows: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
        // Negative numbers become larger than any row.
        let numbers = integers(rows)?;
        let rows: Vec<u64> = numbers.iter().map(|&row| row.cast_unsigned()).collect();
        match rows.iter().position(|&row| row >= table.facts().rows) {
            None => Ok(rows),
            Some(at) => Err(wrong(format!(
                "row {} at place {at} of the list is none of table `{}`, which has {} rows",
                numbers[at],
                table.name(),
                table.facts().rows
            ))),
        }
    }
}

/// The one piece of memory that rows go to, of the size that they have.
fn one_piece(lent: &Lent, form: Form, table: &HostTable, rows: usize) -> PyResult<(*mut u8, usize)> {
    let (address, len) =
        lent.place().ok_or_else(|| wrong("rows go into one piece of memory; give one buffer or tensor"))?;
    let wanted = rows.checked_mul(form.row_bytes(table));
    if wanted != Some(len) {
        return Err(wrong(format!(
            "the buffer has {len} bytes, and {rows} rows of the table have {}",
            wanted.unwrap_or(usize::MAX)
        )));
    }
    if form == Form::Bf16 && !address.addr().is_multiple_of(2) {
        return Err(wrong("bfloat16 rows need memory at an even address"));
    }
    Ok((address, len))
}

/// Gathers into memory of the right size.
///
/// # Safety
/// Callers must guarantee that the memory is valid, that nothing else accesses it during the call,
/// and for bf16 that it is aligned to two bytes.
unsafe fn fill(
    gatherer: &Gatherer,
    table: &HostTable,
    rows: &[u64],
    form: Form,
    (address, len): (*mut u8, usize),
) -> Result<(), cenote_tables::GatherError> {
    if len == 0 {
        return gatherer.gather(table, rows, &mut []);
    }
    // SAFETY: the memory is valid and exclusive by the contract.
    let bytes = unsafe { std::slice::from_raw_parts_mut(address, len) };
    match form {
        Form::Stored => gatherer.gather(table, rows, bytes),
        Form::Bf16 => {
            // SAFETY: every pattern of bits is a `u16`. Aligned memory has nothing before the first.
            let (_, values, _) = unsafe { bytes.align_to_mut::<u16>() };
            gatherer.gather_bf16(table, rows, values)
        }
    }
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (region, name, *, verify=true, threads=None))]
    fn new(
        py: Python<'_>,
        region: PyRef<'_, Region>,
        name: &str,
        verify: bool,
        threads: Option<usize>,
    ) -> PyResult<Self> {
        let open = Arc::clone(&region.open);
        let pool = open.pool()?;
        let opening = if verify { Opening::Verified } else { Opening::Trusted };
        let table =
            py.detach(|| HostTable::open(&pool, name, opening)).map_err(|error| of_table(&open.name, &error))?;
        let count = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from).min(THREADS));
        if !(1..=THREADS_MAX).contains(&count) {
            return Err(wrong(format!("threads is {count}; give 1 to {THREADS_MAX}")));
        }
        // The threads must not keep the mapping of a closed region.
        let fabric = Arc::downgrade(pool.fabric());
        let stay = move || _ = fabric.upgrade().map(|fabric| numa::stay_near(fabric.mapping()));
        let gatherer = Gatherer::new(count, stay);
        let gatherer = gatherer.map_err(|error| CenoteError::new_err(format!("threads: {error}")))?;
        let slot = Arc::new(RwLock::new(Some(table)));
        open.close_with(&slot);
        // Until here the region could have been closed.
        open.pool()?;
        Ok(Self {
            open,
            table: slot,
            name: name.to_owned(),
            gatherer: ManuallyDrop::new(Arc::new(gatherer)),
            stamp: ProcessStamp::current(),
        })
    }

    /// Copies rows, in the order of the list and without gaps. Returns `out`, or a new bytearray.
    #[pyo3(signature = (rows, out=None, *, dtype="stored"))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        dtype: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (table, form) = (self.get()?, Form::of(dtype)?);
        let rows = Self::numbers(&table, rows)?;
        let out = match out {
            Some(out) => out,
            None => {
                let bytes =
                    rows.len().checked_mul(form.row_bytes(&table)).filter(|&bytes| bytes <= isize::MAX as usize);
                let bytes = bytes.ok_or_else(|| wrong(format!("{} rows are more than memory", rows.len())))?;
                PyByteArray::new_with(py, bytes, |_| Ok(()))?.into_any()
            }
        };
        let lent = Lent::take(&out, true)?;
        let place = one_piece(&lent, form, &table, rows.len())?;
        let (address, len) = (place.0.expose_provenance(), place.1);
        let gathered = guarded(|| {
            let copy = || {
                let address = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: `lent` keeps the memory until the end of this method. Callers of the
                // Python method guarantee that nothing else uses it during the call
                // (`_native.pyi`). `one_piece` checked size and alignment.
                unsafe { fill(&self.gatherer, &table, &rows, form, (address, len)) }
            };
            py.detach(copy).map_err(|error| of_gather(&self.open.name, &error))
        });
        drop(lent);
        gathered.map(|()| out)
    }

    /// Begins to copy rows into `out` and returns at once.
    #[pyo3(signature = (rows, out, *, dtype="stored"))]
    fn start(&self, rows: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>, dtype: &str) -> PyResult<Pending> {
        let (table, form) = (self.get()?, Form::of(dtype)?);
        let rows = Self::numbers(&table, rows)?;
        let lent = Lent::take(out, true)?;
        let place = one_piece(&lent, form, &table, rows.len())?;
        let (address, len) = (place.0.expose_provenance(), place.1);
        let gatherer = Arc::clone(&self.gatherer);
        let arrival = Arc::new(Arrival::default());
        let ends = Ends(Arc::clone(&arrival));
        self.gatherer.spawn(move || {
            let started_ns = clock().now_ns();
            let address = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: `Pending` keeps the memory until this job has left its result, also when it is
            // dropped. Callers of the Python method guarantee that nothing else uses the memory
            // meanwhile (`_native.pyi`). `one_piece` checked size and alignment.
            let result = unsafe { fill(&gatherer, &table, &rows, form, (address, len)) };
            // Dropped first: `Pending` may end the region's last use.
            drop((table, gatherer));
            ends.with(result, clock().since(started_ns));
        });
        Ok(Pending {
            region: self.open.name.clone(),
            arrival,
            lent: Mutex::new(Some(Held(lent))),
            stamp: ProcessStamp::current(),
        })
    }

    /// Whether the table has not been dropped.
    #[getter]
    fn is_there(&self) -> PyResult<bool> {
        Ok(self.get()?.is_there())
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn rows(&self) -> PyResult<u64> {
        Ok(self.get()?.facts().rows)
    }

    #[getter]
    fn row_bytes(&self) -> PyResult<usize> {
        Ok(self.get()?.row_bytes())
    }

    #[getter]
    fn row_values(&self) -> PyResult<usize> {
        Ok(self.get()?.row_values())
    }

    /// Digest of the rows, in hexadecimal.
    #[getter]
    fn digest(&self) -> PyResult<String> {
        Ok(self.get()?.digest().to_owned())
    }

    /// What the table is: format, sizes, scale, layer, model, files.
    #[getter]
    fn facts(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let text = serde_json::to_string(self.get()?.facts());
        parse(py, &text.map_err(|error| CenoteError::new_err(error.to_string()))?)
    }

    /// Offset in the region of each extent, and rows of an extent, for devices.
    #[getter]
    fn extents(&self) -> PyResult<(Vec<u64>, u64)> {
        let table = self.get()?;
        let (starts, rows) = table.extents();
        Ok((starts.to_vec(), rows))
    }

    #[getter]
    fn threads(&self) -> usize {
        self.gatherer.threads()
    }

    fn __repr__(&self) -> String {
        format!("Table({:?} of {:?})", self.name, self.open.name)
    }
}

/// Memory that a running job writes.
struct Held(#[allow(dead_code, reason = "its drop releases the memory")] Lent);

// SAFETY: after `start` only the drop touches the borrowed memory's handles. It runs under the
// interpreter lock, in whatever thread drops the `Pending`; buffers and DLPack allow any thread.
unsafe impl Send for Held {}
// SAFETY: as above; there is no access through a shared reference.
unsafe impl Sync for Held {}

/// The result of a job, and the time that its threads worked unless they failed.
type Arrived = (Result<(), cenote_tables::GatherError>, Option<Duration>);

/// Where a job leaves its result for any number of waiting threads.
#[derive(Default)]
struct Arrival {
    arrived: Mutex<Option<Arrived>>,
    ended: Condvar,
}

impl Arrival {
    /// The result; `None` after `timeout`.
    fn wait(&self, timeout: Duration) -> Option<Arrived> {
        let deadline = clock().after(timeout);
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        deadline.wait_while(&self.ended, arrived, |arrived| arrived.is_none()).clone()
    }
}

/// Ends the wait for a job, also if the job panics.
struct Ends(Arc<Arrival>);

impl Ends {
    fn with(self, result: Result<(), cenote_tables::GatherError>, took: Duration) {
        *self.0.arrived.lock().unwrap_or_else(PoisonError::into_inner) = Some((result, Some(took)));
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let mut arrived = self.0.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.get_or_insert((Err(cenote_tables::GatherError::Failed), None));
        drop(arrived);
        self.0.ended.notify_all();
    }
}

/// Rows on their way into memory.
///
/// The release of borrowed memory needs the interpreter's lock. So no thread waits for that lock while
/// it has a field locked.
#[pyclass(frozen, module = "cenote")]
pub struct Pending {
    region: String,
    arrival: Arc<Arrival>,
    /// Absent when a `wait` has seen the rows.
    lent: Mutex<Option<Held>>,
    stamp: ProcessStamp,
}

impl Pending {
    fn lent(&self) -> MutexGuard<'_, Option<Held>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.stamp.is_inherited() {
            // The parent's threads write the parent's memory.
            std::mem::forget(self.lent.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        } else {
            // The memory must outlive the copy. The job takes no lock of the interpreter.
            self.arrival.wait(Duration::MAX);
        }
    }
}

#[pymethods]
impl Pending {
    /// Waits until the rows have arrived; false after `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if self.stamp.is_inherited() {
            return Err(CenoteError::new_err("another process started this gather"));
        }
        let timeout = timeout.map_or(Ok(Duration::MAX), |timeout| seconds("a timeout", timeout))?;
        let (arrived, lent) = py.detach(|| {
            let arrived = self.arrival.wait(timeout);
            let lent = if arrived.is_some() { self.lent().take() } else { None };
            (arrived, lent)
        });
        drop(lent);
        match arrived {
            None => Ok(false),
            Some((Ok(()), _)) => Ok(true),
            Some((Err(error), _)) => Err(of_gather(&self.region, &error)),
        }
    }

    /// Seconds that the threads worked; `None` until `wait` has returned true.
    #[getter]
    fn seconds(&self, py: Python<'_>) -> Option<f64> {
        if self.stamp.is_inherited() {
            return None;
        }
        let took = py.detach(|| {
            let was_seen = self.lent().is_none();
            was_seen.then(|| self.arrival.wait(Duration::ZERO)).flatten().and_then(|(_, took)| took)
        });
        took.map(|took| took.as_secs_f64())
    }
}

/// Loads tables as a worker of its own.
#[pyfunction]
#[pyo3(signature = (region, name, *, model=None, layers=None, weights=None, tensor=None, scales=None, scale=None,
                    wait=600.0, host_slot=0))]
#[allow(clippy::too_many_arguments, reason = "keywords in Python")]
pub fn load_tables<'py>(
    py: Python<'py>,
    region: At<'py>,
    name: &str,
    model: Option<PathBuf>,
    layers: Option<Items<u64>>,
    weights: Option<PathBuf>,
    tensor: Option<String>,
    scales: Option<String>,
    scale: Option<f32>,
    wait: f64,
    host_slot: u8,
) -> PyResult<Bound<'py, PyList>> {
    let (shown, layers) = (region.name().to_owned(), layers.map(|layers| layers.0));
    // A longer wait would end behind the last time that the clock can tell.
    let wait = seconds("a wait", wait)?.min(WAIT_MAX);
    let sources: Vec<(String, TensorRows)> = match (model, weights, tensor) {
        (Some(folder), None, None) => {
            let mut tables = py.detach(|| model_tables(&folder)).map_err(|error| of_table(&shown, &error))?;
            if let Some(layers) = &layers {
                if let Some(layer) = layers.iter().find(|&&layer| tables.iter().all(|table| table.layer != layer)) {
                    return Err(wrong(format!("layer {layer} of the model has no table")));
                }
                tables.retain(|table| layers.contains(&table.layer));
            }
            tables.into_iter().map(|table| (format!("{name}.L{}", table.layer), table.rows)).collect()
        }
        (None, Some(file), Some(tensor)) if layers.is_none() => {
            let rows =
                tensor_table(&file, &tensor, scales.as_deref(), scale).map_err(|error| of_table(&shown, &error))?;
            vec![(name.to_owned(), rows)]
        }
        _ => return Err(wrong("give a model's folder, perhaps with layers; or weights and a tensor")),
    };
    // A load frees memory that its worker allocated and did not record, so it must be a worker that
    // allocates nothing else.
    let pool = region.join(py, host_slot, "engram load")?;
    let loaded = PyList::empty(py);
    for (name, source) in &sources {
        let outcome =
            py.detach(|| cenote_tables::load(&pool, name, source, &LoadOptions::waiting(clock().after(wait))));
        let (word, resumed, digest) = match outcome.map_err(|error| of_table(&shown, &error))? {
            Outcome::Loaded { resumed_bytes, digest } => ("loaded", resumed_bytes, digest),
            Outcome::Found { digest } => ("found", 0, digest),
        };
        let one = PyDict::new(py);
        one.set_item("table", name)?;
        one.set_item("outcome", word)?;
        one.set_item("format", &source.facts().format)?;
        one.set_item("rows", source.facts().rows)?;
        one.set_item("bytes", source.facts().bytes())?;
        one.set_item("resumed_bytes", resumed)?;
        one.set_item("digest", digest)?;
        loaded.append(one)?;
    }
    Ok(loaded)
}

/// All tables of the region, by name, in the form of `cenote engram info --json`.
#[pyfunction]
#[pyo3(signature = (region, *, host_slot=0))]
pub fn tables<'py>(py: Python<'py>, region: At<'py>, host_slot: u8) -> PyResult<Py<PyAny>> {
    let pool = region.pool(py, host_slot, "engram info")?;
    let text = py.detach(|| serde_json::to_string(&cenote_tables::list(&pool)));
    parse(py, &text.map_err(|error| CenoteError::new_err(error.to_string()))?)
}

/// Reads a whole table and compares it with its checksums and its digest.
#[pyfunction]
#[pyo3(signature = (region, name, *, host_slot=0))]
pub fn check_table<'py>(py: Python<'py>, region: At<'py>, name: &str, host_slot: u8) -> PyResult<Py<PyAny>> {
    let pool = region.pool(py, host_slot, "engram check")?;
    let checked = py.detach(|| cenote_tables::check(&pool, name)).map_err(|error| of_table(region.name(), &error))?;
    let text = serde_json::to_string(&checked);
    parse(py, &text.map_err(|error| CenoteError::new_err(error.to_string()))?)
}

/// Drops a table; returns whether there was one.
#[pyfunction]
#[pyo3(signature = (region, name, *, wait=10.0, host_slot=0))]
pub fn drop_table<'py>(py: Python<'py>, region: At<'py>, name: &str, wait: f64, host_slot: u8) -> PyResult<bool> {
    let wait = seconds("a wait", wait)?.min(WAIT_MAX);
    let pool = region.join(py, host_slot, "engram drop")?;
    let dropped = py.detach(|| cenote_tables::drop_table(&pool, name, clock().after(wait)));
    dropped.map_err(|error| of_table(region.name(), &error))
}

/// The name for the tables of a model's folder, without the layer.
#[pyfunction]
pub fn default_table_name(folder: PathBuf) -> String {
    cenote_tables::default_name(&folder)
}
