//! Creation of a region, and comparison of an existing region with the requested settings.

use crate::clock;
use crate::errors::{CenoteError, of_opening, of_pool, wrong};
use cenote_base::HashSeed;
use cenote_base::seal::{Seal, SealKeys};
use cenote_base::units::ByteSize;
use cenote_mem::keys::KeySource;
use cenote_mem::{Flush, MapOptions, Mapping, RegionSource};
use cenote_pool::{OpenError, PoolConfig, make_region, peek, random_bytes};
use cenote_store::cold::Sealing;
use pyo3::prelude::*;
use std::path::PathBuf;

/// A size from Python: a number of bytes, or a text such as `4GiB`.
#[derive(FromPyObject)]
pub enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    /// The size in bytes. `name` is the name of the parameter, for the error.
    fn bytes(&self, name: &str) -> PyResult<u64> {
        match self {
            Self::Bytes(bytes) => Ok(*bytes),
            Self::Text(text) => {
                text.parse::<ByteSize>().map(|size| size.0).map_err(|error| wrong(format!("{name}: {error}")))
            }
        }
    }
}

/// A setting of an existing region: name, requested value, actual value.
pub type Difference = (&'static str, String, String);

/// The arguments of `Region.create`. An existing region may have any value for a `None`.
pub struct Wanted {
    pub size: Size,
    pub chunk_size: Option<Size>,
    pub min_block: Option<Size>,
    pub max_hosts: Option<u8>,
    pub pins_per_worker: Option<u32>,
    pub flush: Option<String>,
    pub mode: Option<u32>,
    pub hash_seed: Option<[u8; 32]>,
    pub prefault: bool,
    pub exist_ok: bool,
    pub events: Option<u32>,
    pub eviction: Option<String>,
    /// How payloads are sealed.
    pub seal: Option<String>,
    pub keys: Option<SealKeys>,
}

/// The seal of this name.
pub fn seal_of(name: &str) -> PyResult<Seal> {
    Seal::from_name(name).ok_or_else(|| wrong(format!("seal is {name:?}; it may be none, mac or encrypt")))
}

/// The seal of this name with these keys. A key without a seal is refused: no process would open the
/// region with it, and the region would seem to be sealed.
pub fn sealing(name: Option<&str>, keys: Option<&SealKeys>) -> PyResult<Sealing> {
    let no_seal = || {
        wrong(
            "seal: a key is given (seal_key_file or CENOTE_SEAL_KEY_FILE), but no seal; give mac or encrypt, or no key",
        )
    };
    let no_key = || wrong("seal: it needs a key; give seal_key_file, or set CENOTE_SEAL_KEY_FILE");
    match (name.map(seal_of).transpose()?, keys) {
        (None, None) | (Some(Seal::None), _) => Ok(None),
        (None, Some(_)) => Err(no_seal()),
        (Some(_), None) => Err(no_key()),
        (Some(seal), Some(keys)) => Ok(Some((seal, keys.clone()))),
    }
}

/// The keys in a file, or those that the environment names.
pub fn keys(file: Option<PathBuf>) -> PyResult<Option<SealKeys>> {
    let source = file.map(KeySource::File).or_else(KeySource::of_environment);
    source.map(|source| source.read()).transpose().map_err(|error| CenoteError::new_err(format!("seal key: {error}")))
}

const PINS_PER_LINE: u32 = 7;
const MODE: u32 = 0o600;

impl Wanted {
    /// Creates the region.
    ///
    /// With `exist_ok`, an existing region stays unchanged; returns its settings that differ.
    pub fn create(&self, py: Python<'_>, region: &str, source: &RegionSource) -> PyResult<Vec<Difference>> {
        // Validate first, so that an existing region does not hide invalid settings.
        let size = self.size.bytes("size")?;
        let mode = self.mode.unwrap_or(MODE);
        let is_there = || Mapping::is_there(source, mode).map_err(|error| of_opening(region, &OpenError::from(error)));
        let exists = self.exist_ok && is_there()?;
        let (flush, config) = (self.flush()?, self.config(size, exists)?);
        config.validate().map_err(|error| of_pool(region, &error))?;
        if size < config.chunk_bytes && !matches!(source, RegionSource::DevDax(_)) {
            let (size, chunk) = (ByteSize(size), ByteSize(config.chunk_bytes));
            return Err(wrong(format!(
                "size: {size} has no room for a chunk of {chunk}; give a larger size or a smaller chunk_size"
            )));
        }
        if exists {
            return self.differences(py, region, source, size, flush, &config);
        }
        let options = MapOptions { prefault: self.prefault, ..MapOptions::default() };
        match py.detach(|| make_region(source, size, mode, flush, &config, &options)) {
            Ok(_) => Ok(Vec::new()),
            // Another process created the region in the meantime.
            Err(_) if self.exist_ok && is_there()? => self.differences(py, region, source, size, flush, &config),
            Err(error) => Err(of_opening(region, &error)),
        }
    }

    fn flush(&self) -> PyResult<Flush> {
        match self.flush.as_deref() {
            None => Ok(Flush::None),
            Some("auto") => Flush::best().ok_or_else(|| wrong("this CPU has no known flush instruction")),
            Some(name) => name.parse().map_err(|error: cenote_mem::fabric::ParseFlushError| wrong(error.to_string())),
        }
    }

    /// The settings of a region of `size` bytes. An existing one has its seal already.
    fn config(&self, size: u64, exists: bool) -> PyResult<PoolConfig> {
        let mut config = PoolConfig::new(HashSeed(self.hash_seed.map_or_else(random_bytes, Ok)?), random_bytes()?);
        config.created = clock().unix().as_secs();
        config.max_hosts = self.max_hosts.unwrap_or(config.max_hosts);
        config.events_per_host = self.events.unwrap_or(config.events_per_host);
        config.hazard_lines_per_worker =
            self.pins_per_worker.map_or_else(|| config.hazard_lines_in(size), PoolConfig::hazard_lines_for);
        config.removals_per_host = config.removals_in(size);
        config.requests_per_host = config.requests_in(size);
        if let Some(name) = &self.eviction {
            config.eviction = name.parse().map_err(|error: cenote_pool::UnknownEviction| wrong(error.to_string()))?;
        }
        let keys = self.keys.as_ref().filter(|_| !exists || self.seal.is_some());
        if let Some((seal, keys)) = sealing(self.seal.as_deref(), keys)? {
            config = config.sealed(seal, &keys);
        }
        if let Some(size) = &self.chunk_size {
            config.chunk_bytes = size.bytes("chunk_size")?;
        }
        if let Some(size) = &self.min_block {
            config.min_block_bytes = size.bytes("min_block")?;
        }
        Ok(config)
    }

    /// The given settings that differ from those of the existing region.
    fn differences(
        &self,
        py: Python<'_>,
        region: &str,
        source: &RegionSource,
        size: u64,
        flush: Flush,
        wanted: &PoolConfig,
    ) -> PyResult<Vec<Difference>> {
        let opened = py.detach(|| Mapping::open(source, &MapOptions::default()));
        let mapping = opened.map_err(|error| of_opening(region, &OpenError::from(error)))?;
        let (page, file) = (mapping.obtained().page_bytes, mapping.region_file());
        let there = peek(mapping).map_err(|error| of_pool(region, &error))?;
        let mut found = Vec::new();
        let mut compare = |name, is_given: bool, wanted: String, actual: String| {
            if is_given && wanted != actual {
                found.push((name, wanted, actual));
            }
        };
        // A region takes a whole device, and a file is rounded up to pages.
        let is_device = matches!(source, RegionSource::DevDax(_));
        let is_size = there.region_bytes >= size && there.region_bytes - size < page;
        let bytes = |bytes: u64| ByteSize(bytes).to_string();
        let config = &there.config;
        compare("size", !is_device && !is_size, bytes_apart(size, there.region_bytes), bytes(there.region_bytes));
        compare("chunk_size", self.chunk_size.is_some(), bytes(wanted.chunk_bytes), bytes(config.chunk_bytes));
        compare("min_block", self.min_block.is_some(), bytes(wanted.min_block_bytes), bytes(config.min_block_bytes));
        compare("max_hosts", self.max_hosts.is_some(), wanted.max_hosts.to_string(), config.max_hosts.to_string());
        compare(
            "pins_per_worker",
            self.pins_per_worker.is_some(),
            pins(wanted.hazard_lines_per_worker),
            pins(config.hazard_lines_per_worker),
        );
        compare("flush", self.flush.is_some(), flush.name().to_owned(), there.flush.name().to_owned());
        if let (Some(mode), Some(file), false) = (self.mode, file, is_device) {
            compare("mode", true, format!("{:04o}", mode & 0o777), format!("{:04o}", file.mode));
        }
        let differs = self.hash_seed.is_some_and(|seed| seed != there.config.seed.0);
        compare("hash_seed", differs, "the one given".to_owned(), "another one".to_owned());
        compare(
            "events",
            self.events.is_some(),
            wanted.events_per_host.to_string(),
            config.events_per_host.to_string(),
        );
        compare("eviction", self.eviction.is_some(), wanted.eviction.to_string(), config.eviction.to_string());
        compare("seal", self.seal.is_some(), wanted.seal.to_string(), config.seal.to_string());
        Ok(found)
    }
}

/// Formats a size. Falls back to bytes if the usual format equals that of `other`.
fn bytes_apart(size: u64, other: u64) -> String {
    let text = ByteSize(size).to_string();
    if text == ByteSize(other).to_string() { format!("{size} B") } else { text }
}

/// Number of pins in `lines` hazard lines (docs/internals/format.md#hazard-line), as a text.
fn pins(lines: u16) -> String {
    (u32::from(lines) * PINS_PER_LINE).to_string()
}
