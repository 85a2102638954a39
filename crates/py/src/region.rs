//! A region that a Python process has joined.

use crate::clock;
use crate::codec::Codec;
use crate::cold;
use crate::creation::{Difference, Size, Wanted, keys, seal_of, sealing};
use crate::errors::{CenoteError, guarded, of_opening, of_pool, wrong};
use crate::events::Follower;
use crate::namespace::Namespace;
use crate::tables::TableSlot;
use cenote_base::{HashSeed, HostId};
use cenote_mem::fork::ProcessStamp;
use cenote_mem::numa::{self, Place};
use cenote_mem::{MapOptions, Mapped, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Counter, HostPool, NamespaceRecord, Pool, Superblock, Ticker, open_region};
use cenote_reach::Given;
use cenote_store::cold::ColdTier;
use cenote_store::{Peers, Retained};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

/// State of an open region, shared by all objects made from it.
pub struct Open {
    /// The name given to `Region.open`.
    pub name: String,
    source: RegionSource,
    /// The file behind the name when it was opened.
    file: Option<(u64, u64)>,
    /// Id of the process that opened it, for errors.
    process: u32,
    /// Detects forked children: they inherit the memory but not the worker slot.
    stamp: ProcessStamp,
    /// This machine's number among those that share the region.
    pub host: HostId,
    pool: RwLock<Option<HostPool>>,
    /// Open tables, which `close` closes: each holds the pool.
    tables: Mutex<Vec<Weak<TableSlot>>>,
    /// L4, until `close`.
    cold: RwLock<Option<Arc<ColdTier>>>,
    /// Regions of other hosts, until `close`.
    peers: RwLock<Option<Arc<dyn Peers>>>,
    /// What clients asked to keep, until `close`.
    retained: RwLock<Option<Arc<Retained<Arc<Mapped>>>>>,
}

impl Open {
    /// Closes this table with the region.
    pub fn close_with(&self, table: &Arc<TableSlot>) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|table| table.strong_count() > 0);
        tables.push(Arc::downgrade(table));
    }

    /// L4, if the region has one. None in a forked child and after `close`.
    pub fn cold(&self) -> Option<Arc<ColdTier>> {
        if self.is_inherited() {
            return None;
        }
        self.cold.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Regions of other hosts, if the region has such. None in a forked child and after `close`.
    pub fn peers(&self) -> Option<Arc<dyn Peers>> {
        if self.is_inherited() {
            return None;
        }
        self.peers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What clients asked to keep. None in a forked child and after `close`.
    pub fn retained(&self) -> Option<Arc<Retained<Arc<Mapped>>>> {
        if self.is_inherited() {
            return None;
        }
        self.retained.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// L4 for the blocks of a namespace.
    pub fn below(&self, namespace: &cenote_pool::Namespace) -> Option<cold::Below> {
        self.cold().map(|tier| cold::Below { tier, namespace: namespace.clone() })
    }

    /// True in a forked child of the process that opened the region.
    pub fn is_inherited(&self) -> bool {
        self.stamp.is_inherited()
    }

    /// The pool. Fails in a forked child and after `close`.
    pub fn pool(&self) -> PyResult<HostPool> {
        if self.is_inherited() {
            return Err(CenoteError::new_err(format!(
                "{}: process {} opened the region, but its child {} uses it; open it in the child",
                self.name,
                self.process,
                std::process::id()
            )));
        }
        let pool = self.pool.read().unwrap_or_else(PoisonError::into_inner);
        pool.clone().ok_or_else(|| CenoteError::new_err(format!("{}: the region is closed", self.name)))
    }
}

/// A shared region that this process has joined as a worker.
#[pyclass(frozen, module = "cenote")]
pub struct Region {
    pub open: Arc<Open>,
    ticker: Mutex<Option<Ticker>>,
}

pub fn source(region: &str) -> PyResult<RegionSource> {
    region.parse().map_err(|error: cenote_mem::region::ParseRegionError| wrong(error.to_string()))
}

pub fn seconds(text: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| wrong(format!("{text} of {value} seconds is not a duration")))
}

#[pymethods]
impl Region {
    #[staticmethod]
    #[pyo3(signature = (region, size, *, chunk_size=None, min_block=None, max_hosts=None, pins_per_worker=None,
                        flush=None, mode=None, hash_seed=None, prefault=false, exist_ok=false, events=None, eviction=None,
                        cold=None, seal=None, seal_key_file=None))]
    fn create(
        py: Python<'_>,
        region: &str,
        size: Size,
        chunk_size: Option<Size>,
        min_block: Option<Size>,
        max_hosts: Option<u8>,
        pins_per_worker: Option<u32>,
        flush: Option<String>,
        mode: Option<u32>,
        hash_seed: Option<[u8; 32]>,
        prefault: bool,
        exist_ok: bool,
        events: Option<u32>,
        eviction: Option<String>,
        cold: Option<&str>,
        seal: Option<String>,
        seal_key_file: Option<PathBuf>,
    ) -> PyResult<Vec<Difference>> {
        // An existing region has its seed already.
        let exists = exist_ok && Mapping::open(&source(region)?, &MapOptions::default()).is_ok();
        let keys = py.detach(|| keys(seal_key_file))?;
        let hash_seed = match cold.filter(|_| !exists) {
            Some(cold) => {
                let seal = sealing(seal.as_deref(), keys.as_ref())?;
                Some(py.detach(|| cold::seed(cold, hash_seed, seal))?)
            }
            None => hash_seed,
        };
        let wanted = Wanted {
            size,
            chunk_size,
            min_block,
            max_hosts,
            pins_per_worker,
            flush,
            mode,
            hash_seed,
            prefault,
            exist_ok,
            events,
            eviction,
            seal,
            keys,
        };
        wanted.create(py, region, &source(region)?)
    }

    #[staticmethod]
    #[pyo3(signature = (region, *, worker="python", host_slot=0, lock_timeout=0.5, host_timeout=10.0, quarantine=30.0,
                        hash_seed=None, numa_node=None, huge_pages=true, cold=None, seal=None, seal_key_file=None, peers=None,
                        peer_key_file=None, nixl=None))]
    fn open(
        py: Python<'_>,
        region: &str,
        worker: &str,
        host_slot: u8,
        lock_timeout: f64,
        host_timeout: f64,
        quarantine: f64,
        hash_seed: Option<[u8; 32]>,
        numa_node: Option<u32>,
        huge_pages: bool,
        cold: Option<&str>,
        seal: Option<&str>,
        seal_key_file: Option<PathBuf>,
        peers: Option<String>,
        peer_key_file: Option<PathBuf>,
        nixl: Option<PathBuf>,
    ) -> PyResult<Self> {
        let seal = seal.map(seal_of).transpose()?;
        let settings = cold.map(cold::settings).transpose()?;
        let given = Given { peers, key_file: peer_key_file, nixl };
        let access =
            py.detach(|| given.or_environment()?.open()).map_err(|error| CenoteError::new_err(error.to_string()))?;
        let source = source(region)?;
        let map = MapOptions { numa_node, huge_pages, prefault: false };
        let options = AttachOptions {
            host: HostId(host_slot),
            expected_seed: hash_seed.map(HashSeed),
            lock_timeout: seconds("a lock timeout", lock_timeout)?,
            host_timeout: seconds("a host timeout", host_timeout)?,
            quarantine: seconds("a quarantine", quarantine)?,
            keys: py.detach(|| keys(seal_key_file))?,
            ..AttachOptions::named(worker)
        };
        let file = source.file().ok();
        let fabric = py.detach(|| open_region(&source, &map)).map_err(|error| of_opening(region, &error))?;
        if source.file().ok() != file {
            return Err(CenoteError::new_err(format!(
                "{region}: the region was replaced while it was opened; open it again"
            )));
        }
        let pool = py.detach(|| Pool::attach(fabric, &options)).map_err(|error| of_pool(region, &error))?;
        if let Some(seal) = seal.filter(|seal| *seal != pool.seal()) {
            return Err(CenoteError::new_err(format!(
                "{region}: seal is {seal}, and the region has {}; give its seal, or make the region anew",
                pool.seal()
            )));
        }
        let start = |settings: &_| py.detach(|| ColdTier::start(pool.clone(), settings, clock()));
        let tier = settings.as_ref().map(start).transpose();
        let tier = tier.map_err(|error| CenoteError::new_err(format!("cold: {error}")))?;
        let peers = access.map(|access| -> Arc<dyn Peers> { access.start(pool.clone(), clock()) });
        let open = Open {
            name: region.to_owned(),
            source,
            file: file.flatten(),
            process: std::process::id(),
            stamp: ProcessStamp::current(),
            host: options.host,
            retained: RwLock::new(Some(Arc::new(Retained::new(pool.clone())))),
            pool: RwLock::new(Some(pool)),
            tables: Mutex::default(),
            cold: RwLock::new(tier),
            peers: RwLock::new(peers),
        };
        let open = Arc::new(open);
        let every = Duration::from_secs(1).min(options.host_timeout / 4).max(Duration::from_millis(1));
        let ticking = Arc::downgrade(&open);
        let beat = move || {
            let Some(open) = ticking.upgrade() else { return false };
            let Ok(pool) = open.pool() else { return false };
            pool.tick();
            if let Some(retained) = open.retained() {
                retained.keep_up(clock().now_ns());
            }
            true
        };
        let ticker = Mutex::new(Some(Ticker::start(every, beat)?));
        Ok(Self { open, ticker })
    }

    /// The namespace of a fingerprint. Creates it if it does not exist.
    #[pyo3(signature = (fingerprint, block_bytes, *, label="", block_tokens=0, num_layers=0, codec=None))]
    fn namespace(
        &self,
        py: Python<'_>,
        fingerprint: &[u8],
        block_bytes: u64,
        label: &str,
        block_tokens: u32,
        num_layers: u32,
        codec: Option<PyRef<'_, Codec>>,
    ) -> PyResult<Namespace> {
        let pool = self.open.pool()?;
        let coding = codec.map(|codec| Arc::clone(&codec.coding));
        if let Some(bytes) = coding.as_ref().map(|coding| coding.block_bytes()).filter(|&bytes| bytes != block_bytes) {
            return Err(wrong(format!("a codec for blocks of {bytes} bytes, but the namespace's have {block_bytes}")));
        }
        let record = NamespaceRecord {
            fingerprint: *blake3::hash(fingerprint).as_bytes(),
            label: label.to_owned(),
            block_bytes,
            block_tokens,
            num_layers,
        };
        let namespace = py.detach(|| pool.namespace(&record)).map_err(|error| of_pool(&self.open.name, &error))?;
        if let Some(cold) = self.open.cold() {
            cold.open(&namespace);
        }
        Ok(Namespace::new(Arc::clone(&self.open), namespace, coding))
    }

    /// A reader of the stored and removed blocks of all hosts.
    fn follow(&self) -> PyResult<Follower> {
        self.open.pool()?;
        Ok(Follower::new(Arc::clone(&self.open)))
    }

    /// The damage due to which this process does not use the region; `None` if it uses the region.
    ///
    /// The process checks once a second whether the damage is repaired.
    #[getter]
    fn degraded(&self) -> Option<String> {
        let pool = self.open.pool().ok()?;
        pool.health().reasons().first().cloned()
    }

    /// True if the name still leads to this region, and all of its memory is there.
    ///
    /// False after the region was removed or made anew. This process still has the memory of the first one then.
    #[getter]
    fn is_current(&self, py: Python<'_>) -> bool {
        let Ok(pool) = self.open.pool() else { return false };
        py.detach(|| {
            let same =
                Superblock::read(pool.fabric()).is_ok_and(|now| now.config.uuid == pool.superblock().config.uuid);
            same && pool.fabric().mapping().still_whole()
                && self.open.source.file().is_ok_and(|file| file == self.open.file)
        })
    }

    /// Binds the calling thread to the NUMA node nearest to the region's memory (TraCT §4.4).
    ///
    /// Returns the node; `None` if the thread stays where it was, also if the region is closed.
    fn bind_thread(&self) -> PyResult<Option<u32>> {
        let Ok(pool) = self.open.pool() else { return Ok(None) };
        guarded(|| match numa::stay_near(pool.fabric().mapping()) {
            Place::Bound(node) => Ok(Some(node)),
            Place::Unchanged | Place::Refused(..) => Ok(None),
        })
    }

    /// Counters of this host's workers, by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (pool, all) = (self.open.pool()?, PyDict::new(py));
        for &counter in Counter::ALL {
            all.set_item(counter.name(), pool.counter(counter))?;
        }
        Ok(all)
    }

    /// Counters and gauges of L4 in this process, by name; `None`: the region has no L4.
    #[getter]
    fn cold<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(cold) = self.open.cold() else { return Ok(None) };
        let all = PyDict::new(py);
        // It takes locks that the tier's threads hold.
        for (name, value) in py.detach(|| cold.stats()) {
            all.set_item(name, value as u64)?;
        }
        Ok(Some(all))
    }

    /// The last error of L4 in this process; `None`: there was none.
    #[getter]
    fn cold_error(&self) -> Option<String> {
        self.open.cold()?.last_error()
    }

    /// Counters and gauges of peers in this process, by name; `None`: no peers are named.
    #[getter]
    fn peers<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(peers) = self.open.peers() else { return Ok(None) };
        let all = PyDict::new(py);
        for (name, value) in peers.stats() {
            all.set_item(name, value as u64)?;
        }
        Ok(Some(all))
    }

    /// What clients asked to keep at this process, by name: see `Namespace.retain`.
    #[getter]
    fn retained<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (name, value) in self.open.retained().iter().flat_map(|retained| retained.stats()) {
            all.set_item(name, value)?;
        }
        Ok(all)
    }

    /// Why a peer is not asked now; `None`: all are.
    #[getter]
    fn peers_error(&self) -> Option<String> {
        self.open.peers()?.trouble()
    }

    /// True if `Namespace.promote` may bring blocks: there is L4, or there are peers.
    #[getter]
    fn promotes(&self) -> bool {
        self.open.cold().is_some() || self.open.peers().is_some()
    }

    /// Waits until L4 is open and all published blocks are written or dropped.
    ///
    /// Returns false after `timeout` seconds.
    #[pyo3(signature = (timeout))]
    fn settle_cold(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let deadline = clock().after(seconds("a timeout", timeout)?);
        let Some(cold) = self.open.cold() else { return Ok(true) };
        Ok(py.detach(|| cold.wait_open(deadline) && cold.settle(deadline)))
    }

    /// Content and users of the region, in the form of `cenote pool info --json`.
    fn info(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let pool = self.open.pool()?;
        let text = py.detach(|| serde_json::to_string(&pool.info()));
        parse(py, &text.map_err(|error| CenoteError::new_err(error.to_string()))?)
    }

    /// The models that share the region: the rows of `info` without counts of their blocks.
    fn namespaces(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let pool = self.open.pool()?;
        let text = py.detach(|| serde_json::to_string(&pool.namespaces()));
        parse(py, &text.map_err(|error| CenoteError::new_err(error.to_string()))?)
    }

    /// Removes the recorded facts of models that have no namespace any more; returns their number.
    fn drop_old_facts(&self, py: Python<'_>) -> PyResult<usize> {
        let pool = self.open.pool()?;
        py.detach(|| cenote_store::facts::drop_old(&pool)).map_err(|error| of_pool(&self.open.name, &error))
    }

    /// Checks all structures of this host, and with `payloads` every payload byte.
    ///
    /// The result has the form of `cenote pool check --json`.
    #[pyo3(signature = (payloads=false))]
    fn check(&self, py: Python<'_>, payloads: bool) -> PyResult<Py<PyAny>> {
        let pool = self.open.pool()?;
        let report = py.detach(|| pool.check(payloads)).map_err(|error| of_pool(&self.open.name, &error))?;
        let clean = report.is_clean();
        let text = serde_json::to_string(&report).map_err(|error| CenoteError::new_err(error.to_string()))?;
        let report = parse(py, &text)?;
        report.bind(py).set_item("is_clean", clean)?;
        Ok(report)
    }

    /// Reclaims resources that no living process holds.
    fn gc(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let pool = self.open.pool()?;
        let report = py.detach(|| pool.gc()).map_err(|error| of_pool(&self.open.name, &error))?;
        parse(py, &serde_json::to_string(&report).map_err(|error| CenoteError::new_err(error.to_string()))?)
    }

    /// Publishes bytes under a key. Replaces the previous object.
    fn put_object(&self, py: Python<'_>, key: &str, data: &[u8]) -> PyResult<()> {
        let pool = self.open.pool()?;
        py.detach(|| pool.put_object(key, data)).map_err(|error| of_pool(&self.open.name, &error))
    }

    /// The bytes under a key; `None` if the key is absent.
    fn get_object<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let pool = self.open.pool()?;
        let found = py.detach(|| pool.get_object(key)).map_err(|error| of_pool(&self.open.name, &error))?;
        Ok(found.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Address in this process and length in bytes, for devices that copy by themselves.
    #[getter]
    fn extent(&self) -> PyResult<(usize, u64)> {
        use cenote_mem::Fabric;
        let pool = self.open.pool()?;
        Ok((pool.fabric().address(0, 64).addr(), pool.fabric().len()))
    }

    #[getter]
    fn name(&self) -> &str {
        &self.open.name
    }

    /// True after `close`, and in a forked child.
    #[getter]
    fn closed(&self) -> bool {
        if self.open.is_inherited() {
            return true;
        }
        self.open.pool.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Leaves the region. Loads, saves and leases in progress keep the mapping until they end.
    ///
    /// Does nothing in a forked child: the parent is the worker.
    fn close(&self, py: Python<'_>) {
        // A thread of the parent may have held one of these locks at the fork.
        if self.open.is_inherited() {
            return;
        }
        py.detach(|| {
            let ticker = self.ticker.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(ticker);
            // First: their threads use the pool.
            // Their threads end without a lock that a caller with the interpreter's lock may wait for.
            let peers = self.open.peers.write().unwrap_or_else(PoisonError::into_inner).take();
            let cold = self.open.cold.write().unwrap_or_else(PoisonError::into_inner).take();
            let retained = self.open.retained.write().unwrap_or_else(PoisonError::into_inner).take();
            drop((peers, cold, retained));
            let tables = std::mem::take(&mut *self.open.tables.lock().unwrap_or_else(PoisonError::into_inner));
            for table in tables.iter().filter_map(Weak::upgrade) {
                drop(table.write().unwrap_or_else(PoisonError::into_inner).take());
            }
            drop(self.open.pool.write().unwrap_or_else(PoisonError::into_inner).take());
        });
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("Region({:?}{})", self.open.name, if self.closed() { ", closed" } else { "" })
    }
}

/// The value of a JSON text.
pub fn parse(py: Python<'_>, text: &str) -> PyResult<Py<PyAny>> {
    Ok(py.import("json")?.call_method1("loads", (text,))?.unbind())
}
