//! Records of the facts behind fingerprints: objects of the region by fingerprint, for comparing
//! two namespaces (docs/internals/format.md#object-row).

use cenote_mem::Fabric;
use cenote_pool::{Pool, PoolError};
use std::collections::BTreeSet;

const PREFIX: &str = "cenote/facts/";
/// Digits of a fingerprint in the key; a key has at most 56 bytes.
const KEY_DIGITS: usize = 32;

/// The key of the record of a fingerprint, which is in hexadecimal digits.
#[must_use]
pub fn key(fingerprint: &str) -> String {
    format!("{PREFIX}{fingerprint:.KEY_DIGITS$}")
}

/// Removes the records of fingerprints that have no namespace any more. Returns their number.
///
/// # Errors
/// The table of objects was busy for too long.
pub fn drop_old<F: Fabric>(pool: &Pool<F>) -> Result<usize, PoolError> {
    // A record follows its namespace, so keys that are read first have their namespace in the rows
    // that are read second.
    let recorded: Vec<String> = pool.object_keys().into_iter().filter(|key| key.starts_with(PREFIX)).collect();
    let known: BTreeSet<String> = pool.namespaces().iter().map(|row| key(&row.fingerprint)).collect();
    let old = recorded.iter().filter(|key| !known.contains(*key));
    old.map(|key| pool.destroy_object(key).map(usize::from)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::HashSeed;
    use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
    use cenote_pool::{AttachOptions, NamespaceRecord, PoolConfig, Superblock};
    use std::sync::Arc;

    #[test]
    fn a_record_goes_after_its_namespace() {
        let mapping = Mapping::create(&RegionSource::Anon, 16 << 20, 0o600, &MapOptions::default()).expect("memory");
        let fabric = Arc::new(Coherent::new(mapping));
        let config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: 4 << 10,
            namespaces: 2,
            ..PoolConfig::new(HashSeed([1; 32]), [1; 16])
        };
        Superblock::format(&fabric, &config).expect("the configuration fits");
        let fingerprint = |model: u8| format!("{model:02x}").repeat(32);
        let attach = || {
            let options = AttachOptions { private: true, ..AttachOptions::named("test") };
            Pool::attach(Arc::clone(&fabric), &options).expect("a sound region attaches")
        };
        let open = |pool: &Pool<_>, model: u8| {
            let record = NamespaceRecord {
                fingerprint: [model; 32],
                label: "model".to_owned(),
                block_bytes: 4 << 10,
                block_tokens: 16,
                num_layers: 2,
            };
            pool.namespace(&record).expect("a row is free or reclaimed");
            assert_eq!(drop_old(pool).expect("no lock is held"), usize::from(model > 2));
            pool.put_object(&key(&fingerprint(model)), b"facts").expect("there is room");
        };
        (1..=8).for_each(|model| open(&attach(), model));
        let pool = attach();
        pool.put_object("other", b"stays").expect("there is room");
        // Rows of one second are equally old, so either of the earlier two may be left.
        let keys = pool.object_keys();
        assert!(keys.len() == 3 && keys[1..] == [key(&fingerprint(8)), "other".to_owned()], "{keys:?}");
    }
}
