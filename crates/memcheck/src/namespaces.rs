//! Operations on namespaces: rows are reclaimed, and no two workers have one row for two models.

use crate::oracle::{Checker, Oracle};
use crate::scenario::{Actor, SimPool};
use cenote_base::prng::Prng;
use cenote_pool::Namespace;

/// Number of further models in shapes with few rows.
const MODELS: u64 = 16;
/// Models of these that publish blocks, which may stay when their worker is gone.
pub const STAYING: u64 = 2;

/// Label of a further model.
pub fn model_label(model: u64) -> String {
    "m".repeat(20 + model as usize)
}

/// The rows that a process has open, as the oracle knows them. Drop it before the pool: from then
/// on another process may reclaim them.
pub struct HeldRows<'a> {
    oracle: &'a Oracle,
    process: usize,
}

impl Drop for HeldRows<'_> {
    fn drop(&mut self) {
        self.oracle.notes().holders.values_mut().for_each(|holders| drop(holders.remove(&self.process)));
    }
}

impl Actor {
    /// The rows of this process, to be dropped before its pool.
    pub fn held_rows(&self) -> HeldRows<'_> {
        HeldRows { oracle: &self.oracle, process: self.process.number() }
    }

    /// Opens a namespace. No other worker may have its row for another one. Where no row is
    /// reclaimed, it is the row that other processes got.
    pub fn named(&self, pool: &SimPool, label: &str) -> Option<Namespace> {
        let opened = pool.namespace(&self.shape.record(label));
        let number = self.process.number();
        if !self.process.lives(number) {
            return None;
        }
        self.process.note(&format!("opened `{label}`: {:?}", opened.as_ref().map(|namespace| namespace.id)));
        let namespace = opened.ok()?;
        let id = namespace.id.0;
        let mut notes = self.oracle.notes();
        let holders = notes.holders.entry(id).or_default();
        let other = holders.iter().find(|&(&other, of)| of != label && self.process.lives(other));
        let both =
            other.map(|(other, of)| format!("row {id} is `{of}` for process {other} and `{label}` for {number}"));
        holders.insert(number, label.to_owned());
        let known = *notes.namespaces.entry(label.to_owned()).or_insert(id);
        drop(notes);
        if let Some(fact) = both {
            self.oracle.report_unless_lossy(Checker::Index, fact);
        }
        if known != id && !self.shape.has_few_rows() {
            let fact = format!("namespace `{label}` has row {id} and had row {known}");
            self.oracle.report_unless_lossy(Checker::Index, fact);
        }
        Some(namespace)
    }

    /// Opens a further model, and publishes a block of some. Half of those blocks leave at once.
    pub fn use_other_model(&self, pool: &SimPool, prng: &mut Prng) {
        let model = prng.below(MODELS);
        let Some(namespace) = self.named(pool, &model_label(model)) else { return };
        let number = prng.below(self.shape.universe as u64) as usize;
        if model < STAYING {
            let _ = self.publish(pool, &namespace, number);
        } else if prng.below(2) == 0 {
            let _ = self.publish(pool, &namespace, number);
            self.notes_evicted(pool.forget(&namespace));
        }
    }

    /// Checks the rows, labels and quotas of all namespaces that a process opened.
    pub fn look_at_namespaces(&self, pool: &SimPool) {
        let from = self.oracle.notes().now();
        let rows = pool.info().namespaces;
        for (label, id) in self.living_namespaces() {
            let Some(row) = rows.iter().find(|row| row.id.0 == id && row.label == label) else {
                let fact = format!("no row {id} with the label `{label}`: {rows:?}");
                self.oracle.report_unless_lossy(Checker::Index, fact);
                continue;
            };
            if label == "sim" && self.shape.quota_blocks > 0 {
                let over = row.used_bytes.saturating_sub(self.shape.quota_blocks * self.shape.block_bytes);
                let mut notes = self.oracle.notes();
                notes.overshoot = notes.overshoot.max(over);
            }
            let limit = Some(row.quota_bytes).filter(|&bytes| bytes > 0);
            if label != "sim" && !self.oracle.notes().may_be(&label, limit, from, true) {
                let fact = format!("namespace `{label}` has the quota {limit:?}, which is not the last one set");
                self.oracle.report_unless_lossy(Checker::Index, fact);
            }
        }
    }

    /// Label and row of each namespace that must be there: all that were opened, or where rows are
    /// reclaimed, those that a living process has open.
    fn living_namespaces(&self) -> Vec<(String, u16)> {
        let notes = self.oracle.notes();
        if !self.shape.has_few_rows() {
            return notes.namespaces.clone().into_iter().collect();
        }
        let held = notes.holders.iter().flat_map(|(&id, holders)| holders.iter().map(move |held| (id, held)));
        held.filter(|(_, (process, _))| self.process.lives(**process))
            .map(|(id, (_, label))| (label.clone(), id))
            .collect()
    }
}
