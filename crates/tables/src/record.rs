//! The objects that name a table's extents (docs/internals/format.md#tables).
//!
//! A sealed table has one record, and so has work on a table: a load or a drop. A record is 4 bytes
//! of the header's length, the header as JSON, 16 bytes for each extent, and BLAKE3 of all before
//! it. It names its region and its table, so that a copy in another region or under another key is none.

use crate::error::TableError;
use crate::facts::{Facts, SourceFile};
use cenote_base::prng::Prng;
use cenote_pool::Maker;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::time::Duration;

const VERSION: u32 = 3;
const DIGEST: usize = 32;

/// What differs if the files do.
pub(crate) const OTHER_FILES: &str = "it came from other files, or they have changed since";

/// What a record says about its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Complete, and never changed.
    Sealed,
    /// Its owner loads it.
    Loading,
    /// Its owner drops it.
    Dropping,
}

/// A run of rows in one piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Offset in the region.
    pub offset: u64,
    /// Checksum of its bytes under the record's key and the extent's number.
    pub sum: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    version: u32,
    /// Identity of the region, in hexadecimal.
    pub region: String,
    /// Name of the table.
    pub table: String,
    pub state: State,
    pub facts: Facts,
    /// The worker that works on the table, or that sealed it.
    pub owner: String,
    /// All workers that have allocated extents.
    pub makers: Vec<String>,
    /// Rows of each extent but the last.
    pub extent_rows: u64,
    /// Key of the extents' checksums.
    pub sum_key: u64,
    /// Digest of the rows, in hexadecimal; empty until the table is sealed.
    pub digest: String,
    /// Seconds since 1970 of the last change.
    pub changed: u64,
}

/// A record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub header: Header,
    pub extents: Vec<Extent>,
}

impl Record {
    /// A load that begins.
    pub fn begin(region: String, table: &str, facts: Facts, extent_rows: u64, owner: Maker, now: u64) -> Self {
        let seed = blake3::hash(format!("{region} {owner} {now}").as_bytes());
        let seed = u64::from_le_bytes(seed.as_bytes()[..8].try_into().expect("8 bytes"));
        let header = Header {
            version: VERSION,
            region,
            table: table.to_owned(),
            state: State::Loading,
            facts,
            owner: owner.to_string(),
            makers: vec![owner.to_string()],
            extent_rows,
            sum_key: Prng::new(seed).next_u64(),
            digest: String::new(),
            changed: now,
        };
        Self { header, extents: Vec::new() }
    }

    pub fn encode(&self) -> Vec<u8> {
        let header = serde_json::to_vec(&self.header).expect("a header is JSON");
        let mut bytes = Vec::with_capacity(4 + header.len() + 16 * self.extents.len() + DIGEST);
        bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&header);
        for extent in &self.extents {
            bytes.extend_from_slice(&extent.offset.to_le_bytes());
            bytes.extend_from_slice(&extent.sum.to_le_bytes());
        }
        bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
        bytes
    }

    /// A record of this table in this region; extents lie in `space`.
    pub fn decode(bytes: &[u8], region: &str, table: &str, space: &Range<u64>) -> Option<Self> {
        let (body, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST)?)?;
        if blake3::hash(body).as_bytes() != digest {
            return None;
        }
        let (length, rest) = body.split_at_checked(4)?;
        let (header, extents) = rest.split_at_checked(u32::from_le_bytes(length.try_into().ok()?) as usize)?;
        let header: Header = serde_json::from_slice(header).ok()?;
        if header.version != VERSION || header.region != region || header.table != table {
            return None;
        }
        if header.facts.verify().is_err() || header.facts.rows.checked_mul(header.facts.row_bytes).is_none() {
            return None;
        }
        if header.extent_rows == 0 || !extents.len().is_multiple_of(16) {
            return None;
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let extents: Vec<Extent> = extents
            .chunks_exact(16)
            .map(|bytes| Extent { offset: word(&bytes[..8]), sum: word(&bytes[8..]) })
            .collect();
        let record = Self { header, extents };
        let fits = |(number, extent): (u64, &Extent)| {
            // Past the end of a number it would round to nothing.
            let bytes = record.bytes(number).checked_next_multiple_of(64);
            let end = bytes.and_then(|bytes| extent.offset.checked_add(bytes));
            extent.offset.is_multiple_of(64)
                && space.contains(&extent.offset)
                && end.is_some_and(|end| end <= space.end)
        };
        let count = record.extents.len() as u64;
        let whole = count <= record.total() && (record.header.state != State::Sealed || count == record.total());
        (whole && (0..).zip(&record.extents).all(fits)).then_some(record)
    }

    /// Extents of the whole table.
    pub fn total(&self) -> u64 {
        self.header.facts.rows.div_ceil(self.header.extent_rows)
    }

    /// Rows of an extent.
    pub fn rows_of(&self, number: u64) -> Range<u64> {
        let from = number.saturating_mul(self.header.extent_rows).min(self.header.facts.rows);
        from..from.saturating_add(self.header.extent_rows).min(self.header.facts.rows)
    }

    fn bytes(&self, number: u64) -> u64 {
        let rows = self.rows_of(number);
        (rows.end - rows.start) * self.header.facts.row_bytes
    }

    /// Bytes of an extent's rows, in whole lines.
    pub fn padded_bytes(&self, number: u64) -> u64 {
        self.bytes(number).next_multiple_of(64)
    }

    /// Key of an extent's checksum.
    pub const fn sum_key(&self, number: u64) -> u64 {
        self.header.sum_key ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    pub fn owner(&self) -> Option<Maker> {
        self.header.owner.parse().ok()
    }

    pub fn makers(&self) -> Vec<Maker> {
        self.header.makers.iter().filter_map(|maker| maker.parse().ok()).collect()
    }

    /// Gives the work to a worker.
    pub fn hand_to(&mut self, owner: Maker, now: u64) {
        let owner = owner.to_string();
        if !self.header.makers.contains(&owner) {
            self.header.makers.push(owner.clone());
        }
        self.header.owner = owner;
        self.header.changed = now;
    }

    /// What differs from a table of these facts, if its forms tell. Equal forms, names and times prove
    /// nothing about rows: compare those as well.
    pub fn difference(&self, facts: &Facts) -> Option<String> {
        let own = &self.header.facts;
        let of = |facts: &Facts| format!("{} rows of {} bytes, {}", facts.rows, facts.row_bytes, facts.format);
        if of(own) != of(facts) {
            return Some(format!("it has {}, the files have {}", of(own), of(facts)));
        }
        if own.scale.map(f32::to_bits) != facts.scale.map(f32::to_bits) {
            return Some("its scale is another one".to_owned());
        }
        if own.layer != facts.layer {
            let of = |layer: Option<u64>| layer.map_or_else(|| "no layer".to_owned(), |layer| format!("layer {layer}"));
            return Some(format!("it is of {}, the files have {}", of(own.layer), of(facts.layer)));
        }
        // Names first: an error shows them, and equal names in equal files have equal offsets.
        let names = |facts: &Facts| facts.tensors.iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
        if let Some((own, other)) = names(own).into_iter().zip(names(facts)).find(|(own, other)| own != other) {
            return Some(format!("it has the tensor `{own}` instead of `{other}`"));
        }
        if own.tensors != facts.tensors {
            return Some("its tensors lie elsewhere in the files".to_owned());
        }
        let same = |(own, file): (&SourceFile, &SourceFile)| {
            // Copies of a file have times of their own.
            SourceFile { modified_ns: file.modified_ns, ..own.clone() } == *file
        };
        let are_same = own.source.len() == facts.source.len() && own.source.iter().zip(&facts.source).all(same);
        (!are_same).then(|| OTHER_FILES.to_owned())
    }

    /// The error of a caller that has waited so long for the owner.
    pub fn busy(&self, name: &str, waited: Duration) -> TableError {
        TableError::Busy {
            name: name.to_owned(),
            waited,
            owner: self.header.owner.clone(),
            verb: if self.header.state == State::Dropping { "drops" } else { "loads" },
            done: self.extents.len() as u64,
            total: self.total(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let facts = Facts {
            format: "bf16".to_owned(),
            row_bytes: 320,
            rows: 1000,
            scale: None,
            layer: Some(1),
            model: "m".to_owned(),
            source: Vec::new(),
            tensors: Vec::new(),
        };
        let mut record = Record::begin("ab".to_owned(), "t", facts, 128, Maker { host: 0, slot: 2, epoch: 7 }, 5);
        record.extents = (0..3).map(|n| Extent { offset: 4096 + n * 65536, sum: n }).collect();
        record
    }

    #[test]
    fn a_record_survives_its_bytes() {
        let record = record();
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes, "ab", "t", &(4096..1 << 20)), Some(record));
    }

    #[test]
    fn any_changed_byte_is_detected() {
        let bytes = record().encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Record::decode(&changed, "ab", "t", &(4096..1 << 20)), None, "byte {at}");
            assert_eq!(Record::decode(&bytes[..at], "ab", "t", &(4096..1 << 20)), None, "{at} bytes");
        }
    }

    #[test]
    fn records_of_other_regions_and_extents_outside_are_refused() {
        let mut record = record();
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes, "ac", "t", &(4096..1 << 20)), None);
        assert_eq!(Record::decode(&bytes, "ab", "u", &(4096..1 << 20)), None, "of another table");
        assert_eq!(Record::decode(&bytes, "ab", "t", &(8192..1 << 20)), None);
        assert_eq!(Record::decode(&bytes, "ab", "t", &(4096..140_000)), None);
        record.header.state = State::Sealed;
        assert_eq!(Record::decode(&record.encode(), "ab", "t", &(4096..1 << 20)), None, "3 of 8 extents");
        let mut endless = record.clone();
        endless.header.facts = Facts { rows: 1, row_bytes: u64::MAX - 10, ..endless.header.facts };
        endless.extents.truncate(1);
        assert_eq!(Record::decode(&endless.encode(), "ab", "t", &(4096..1 << 20)), None, "a row without end");
        record.header.facts.rows = 3 * 128;
        assert!(Record::decode(&record.encode(), "ab", "t", &(4096..1 << 20)).is_some());
    }
}
