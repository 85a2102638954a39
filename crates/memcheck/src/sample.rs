//! A sample of the mutations, for a test of each commit.

use cenote_memmodel::{Mutation, Place};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Functions with effects that no seed or few seeds detect (docs/evidence/testing.md): file,
/// function.
const RARELY_DETECTED: &[(&str, &str)] = &[
    ("admin/gc.rs", "orphans"),
    ("admin/info.rs", "info"),
    ("admin/memory.rs", "maker_alive"),
    ("blocks/life.rs", "discard_damaged"),
    ("blocks/offers.rs", "offer"),
    ("blocks/offers.rs", "offer_one"),
    ("blocks/offers.rs", "read_recency"),
    ("blocks/offers.rs", "settle_offers"),
    ("blocks/offers.rs", "write_recency"),
    ("blocks/rebuild.rs", "rebuild_heap"),
    ("blocks/rebuild.rs", "refresh_taken"),
    ("hosts/demand.rs", "board"),
    ("hosts/demand.rs", "demand_of"),
    ("hosts/hazards.rs", "clear_free_pins"),
    ("hosts/hits.rs", "hear_hits"),
    ("hosts/hits.rs", "report_hits"),
    ("hosts/lines.rs", "clear_opened"),
    ("index/table.rs", "find_each_now"),
    ("index/table.rs", "find_now"),
    ("log/events.rs", "put_names"),
    ("log/follow.rs", "look_at_unsure"),
    ("log/follow.rs", "walk_blocks"),
    ("pool/fill.rs", "publish"),
    ("pool/fill.rs", "publish_in_place"),
    ("pool/memory.rs", "find_memory"),
    ("pool/memory.rs", "name_memory"),
    ("pool/swap.rs", "swap_out"),
    ("pool/tables.rs", "object_keys"),
    ("pool/tables.rs", "set_quota"),
    ("region/superblock.rs", "mend"),
    ("space/chunks.rs", "claim_chunk"),
    ("space/chunks.rs", "line_of_blocks"),
    ("space/chunks.rs", "release_chunk"),
    ("space/chunks.rs", "repair_lines"),
    ("space/strays.rs", "strays"),
    ("space/strays.rs", "sweep_strays"),
    ("sync/bakery.rs", "enter"),
    ("sync/bakery.rs", "enter_free"),
    ("sync/locks.rs", "show_left"),
    ("tables/locks.rs", "give_lock"),
    ("tables/memory.rs", "enter_memory"),
    ("tables/memory.rs", "memory_in_slot"),
    ("tables/memory.rs", "memory_word"),
    ("tables/memory.rs", "pieces_of"),
    ("tables/memory.rs", "prepare_memory"),
    ("tables/memory.rs", "release"),
    ("tables/memory.rs", "slots_with_memory"),
    ("tables/memory.rs", "take_from"),
    ("tables/namespaces.rs", "enter_namespace"),
    ("tables/opened.rs", "renew_rows"),
    ("tables/opened.rs", "rows_with_blocks"),
    ("tables/rows.rs", "repair_rows"),
    ("tables/rows.rs", "write_row"),
];

/// The mutations of a test run: file, function, effect. Always the same, so that no commit fails for a
/// draw that is not its own. A few seeds detect each.
const STANDING: [(&str, &str, &str); 10] = [
    ("blocks/life.rs", "describe", "flush"),
    ("blocks/life.rs", "read_freely", "invalidation"),
    ("index/table.rs", "refresh_index", "invalidation"),
    ("space/chunks.rs", "lock_all_chunks", "fence"),
    ("space/usage.rs", "usage_elsewhere", "invalidation"),
    ("sync/locks.rs", "is_given", "invalidation"),
    ("tables/memory.rs", "put_piece", "flush"),
    ("tables/opened.rs", "show_opened", "flush"),
    ("tables/rows.rs", "probe", "fence"),
    ("tables/rows.rs", "probe", "invalidation"),
];

/// Least share of a sample that some seed must detect, in tenths. The rest allows for mutations that
/// only few seeds detect.
pub const DETECTED_TENTHS_MIN: usize = 8;

/// The first mutation of each of [`STANDING`].
///
/// # Errors
/// Names one that these runs do not pass: its code has changed, and the list must follow.
pub fn standing(mutations: &[Mutation]) -> Result<Vec<Mutation>, String> {
    let find = |(file, function, effect): &(&str, &str, &str)| {
        let is_it = |mutation: &&Mutation| {
            mutation.place.file.ends_with(file)
                && mutation.to_string().ends_with(&format!("={effect}"))
                && function_of(&mutation.place).as_deref() == Some(function)
        };
        let found = mutations.iter().find(is_it).cloned();
        found.ok_or_else(|| format!("no seed passes the {effect} of `{function}` in {file}; name another in STANDING"))
    };
    STANDING.iter().map(find).collect()
}

/// Whether no seed or few seeds detect mutations of this function.
pub fn is_rarely_detected(mutation: &Mutation) -> bool {
    let function = function_of(&mutation.place);
    RARELY_DETECTED.iter().any(|(file, name)| mutation.place.file.ends_with(file) && function.as_deref() == Some(name))
}

/// Chooses `count` mutations by the hash of `key` and each mutation, without [`RARELY_DETECTED`] ones.
pub fn sample(mutations: Vec<Mutation>, count: usize, key: &str) -> Vec<Mutation> {
    let mut chosen: Vec<Mutation> = mutations.into_iter().filter(|mutation| !is_rarely_detected(mutation)).collect();
    chosen.sort_by_cached_key(|mutation| {
        let mut hasher = DefaultHasher::new();
        (key, mutation.to_string()).hash(&mut hasher);
        hasher.finish()
    });
    chosen.truncate(count);
    chosen
}

/// The function around a place, by the source file below the working directory.
fn function_of(place: &Place) -> Option<String> {
    let source = std::fs::read_to_string(&place.file).ok()?;
    let above: Vec<&str> = source.lines().take(place.line as usize).collect();
    above.iter().rev().find_map(|line| {
        let (before, after) = line.split_once("fn ")?;
        let is_item =
            before.split_whitespace().all(|word| word.starts_with("pub") || word == "unsafe" || word == "const");
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        (is_item && !name.is_empty()).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutations() -> Vec<Mutation> {
        (10..60).map(|line| format!("crates/pool/x.rs:{line}:9=flush").parse().expect("a mutation")).collect()
    }

    #[test]
    fn a_sample_depends_on_its_key_only() {
        assert_eq!(sample(mutations(), 10, "a"), sample(mutations(), 10, "a"));
        assert_ne!(sample(mutations(), 10, "a"), sample(mutations(), 10, "b"));
        assert_eq!(sample(mutations(), 100, "a").len(), 50);
    }

    #[test]
    fn rarely_detected_functions_exist() {
        for (file, name) in RARELY_DETECTED {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../pool/src").join(file);
            let source = std::fs::read_to_string(&path).expect("the file is there");
            assert!(source.contains(&format!("fn {name}")), "{file} has no function {name}");
        }
    }
}
